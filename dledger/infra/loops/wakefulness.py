"""Keeps the CPUs awake while a node has work in flight.

The kernel puts an idle CPU to sleep, and an append is a chain of short waits for threads, disks and peers. On
a virtual machine, sleep returns the CPU to the hypervisor, which adds 30 to 60 microseconds to each wait and
leaves the caches to other guests; on a physical machine, deeper C-states add their exit latency. Linux can
limit this latency: while a process holds /dev/cpu_dma_latency open, after writing a number of microseconds to
it, CPUs enter no state with a longer exit latency (Documentation/power/pm_qos_interface.rst). With 0, idle
CPUs poll for work. This affects the whole machine and consumes power, so it is requested only while there is
work.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from dledger.infra.logs import get_logger

_log = get_logger("node")

DEVICE = Path("/dev/cpu_dma_latency")

#: A pause of this length, in seconds, ends the work. It is longer than a disk sync or an exchange with a
#: peer.
LINGER_S = 0.01

_AWAKE = struct.pack("@i", 0)
_MAY_SLEEP = struct.pack("@i", 2_000_000_000)  # the kernel's default without a request


class CpuLatency:
    """A latency request to the kernel. It ends with this process, even after a crash."""

    def __init__(self, path: Path = DEVICE) -> None:
        """Raises OSError if the machine has no such device, or this process may not open it."""
        self._handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self.stay_awake(False)

    def stay_awake(self, yes: bool) -> None:
        os.write(self._handle, _AWAKE if yes else _MAY_SLEEP)

    def close(self) -> None:
        os.close(self._handle)


class CpuWakeLock:
    """Keeps CPUs awake from the first piece of work until LINGER_S after the last. Belongs to one loop.

    Calls `request` alternately with True and False. After an OSError from it, the lock stays disabled.
    """

    def __init__(
        self, request: Callable[[bool], None] | None, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """If `request` is None, CPUs are never kept awake."""
        self._request = request
        self._monotonic_s = monotonic_s
        self.is_kept = False
        self._worked = False
        self._until_s = 0.0

    @property
    def is_possible(self) -> bool:
        """True if CPUs can be kept awake and the kernel has not refused yet."""
        return self._request is not None

    def work(self) -> None:
        """Record that there is work now."""
        self._worked = True
        if not self.is_kept and self._request is not None:
            self._set_awake(True)

    def remaining_s(self) -> float:
        """Return how many seconds remain until the CPUs may sleep. The result is 0 or less if they already
        may."""
        now_s = self._monotonic_s()
        if self._worked:
            self._worked = False
            self._until_s = now_s + LINGER_S
        return self._until_s - now_s

    def release(self) -> None:
        if self.is_kept:
            self._set_awake(False)

    def _set_awake(self, yes: bool) -> None:
        assert self._request is not None
        try:
            self._request(yes)
            self.is_kept = yes
        except OSError as error:
            _log.warning("CPUs may sleep during an append from now on: the kernel refused", why=str(error))
            self._request = None
            self.is_kept = False
