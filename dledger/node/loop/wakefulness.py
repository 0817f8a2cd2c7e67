"""CPUs that stay awake while a node has work in flight.

A CPU that has nothing to do is put to sleep, and an append is a chain of short waits: between threads, for a
disk, for a peer. On a virtual machine sleeping means giving the CPU back to the hypervisor, and each link of
that chain takes 30 to 60 microseconds longer, with caches that somebody else has filled meanwhile; on a
machine of one's own it is what the deeper C-states take. Linux has a way to ask for shorter waits: whoever
writes a number of microseconds to /dev/cpu_dma_latency gets no state that takes longer to leave, for as long
as the file is open (Documentation/power/pm_qos_interface.rst). With 0 idle CPUs wait for work in a loop.
That holds for the whole machine and takes power, so it is asked for only while there is work.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from dledger.logs import get_logger

_log = get_logger("node")

DEVICE = Path("/dev/cpu_dma_latency")

#: Work has ended if nothing more came for so long: longer than a sync of a disk or an exchange with a peer.
LINGER_S = 0.01

_AWAKE = struct.pack("@i", 0)
_MAY_SLEEP = struct.pack("@i", 2_000_000_000)  # what the kernel itself assumes while nobody asks


class CpuLatency:
    """The kernel's device. What was asked for ends with this process, however that ends."""

    def __init__(self, path: Path = DEVICE) -> None:
        """Raises OSError if the machine has no such device, or this process may not use it."""
        self._handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self.stay_awake(False)

    def stay_awake(self, yes: bool) -> None:
        os.write(self._handle, _AWAKE if yes else _MAY_SLEEP)

    def close(self) -> None:
        os.close(self._handle)


class CpuWakeLock:
    """Keep CPUs awake from the first piece of work until LINGER_S after the last. Belongs to one loop.

    `ask` is called with True and False by turns. An OSError of it ends the matter for good.
    """

    def __init__(
        self, ask: Callable[[bool], None] | None, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask` None: CPUs sleep as they like."""
        self._ask = ask
        self._monotonic_s = monotonic_s
        self.is_kept = False
        self._worked = False
        self._until_s = 0.0

    @property
    def is_possible(self) -> bool:
        """Whether there is whom to ask, and it has not refused yet."""
        return self._ask is not None

    def work(self) -> None:
        """There is work, now."""
        self._worked = True
        if not self.is_kept and self._ask is not None:
            self._tell(True)

    def left_s(self) -> float:
        """The loop is to wait: for how long that counts as a pause within work. At most 0: it is over."""
        now_s = self._monotonic_s()
        if self._worked:
            self._worked = False
            self._until_s = now_s + LINGER_S
        return self._until_s - now_s

    def end(self) -> None:
        if self.is_kept:
            self._tell(False)

    def _tell(self, yes: bool) -> None:
        assert self._ask is not None
        try:
            self._ask(yes)
            self.is_kept = yes
        except OSError as error:
            _log.warning("CPUs may sleep within an append from now on: the kernel refused", why=str(error))
            self._ask = None
            self.is_kept = False
