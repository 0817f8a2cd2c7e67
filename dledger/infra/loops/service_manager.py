"""Notifies the service manager that started this process: ready, stopping, and alive (systemd's sd_notify).

The protocol: `NOTIFY_SOCKET` names a datagram socket, and each datagram contains lines of `NAME=VALUE`.
Without this variable, nothing is sent.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import socket
from collections.abc import MutableMapping
from typing import Final

from dledger.infra.logs import get_logger

#: Pings per watchdog interval. One of them may be lost, and the loop may be late.
_PINGS: Final = 3
#: Pause before a notification is repeated that did not fit into the queue of the socket (seconds).
_RETRY_S: Final = 0.1

_log = get_logger("service_manager")


class ServiceManager:
    """The service manager of this process. Call all methods on one event loop."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """`address`: path of the socket, or `@` and a name in the abstract namespace; "": there is no service
        manager. `watchdog_s`: it ends the process after this time without a ping; 0: never."""
        self._address = b"\0" + os.fsencode(address[1:]) if address.startswith("@") else os.fsencode(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._ping_s = watchdog_s / _PINGS
        self._timer: asyncio.TimerHandle | None = None
        self._state = b""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> ServiceManager:
        """Return the service manager that started this process, and remove its variables, so that child
        processes do not send notifications."""
        address = environment.pop("NOTIFY_SOCKET", "")
        interval_us = environment.pop("WATCHDOG_USEC", "")
        watched_pid = environment.pop("WATCHDOG_PID", "")
        if address and address[0] not in "/@":
            _log.warning("cannot notify the service manager: unknown kind of socket", address=address)
            address = ""
        is_watched = interval_us.isdecimal() and watched_pid in ("", str(os.getpid()))
        return cls(address, int(interval_us) / 1e6 if is_watched else 0.0)

    def ready(self) -> None:
        """Report that the process serves, and start the pings, which stop if the event loop hangs."""
        if self._socket is None:
            return
        if self._ping_s:
            # The watchdog ends a process with SIGABRT. The stack traces show where it hung, even if a thread
            # holds the interpreter lock.
            faulthandler.enable(all_threads=True)
        self._report(b"READY=1")
        self._ping()

    def stopping(self) -> None:
        """Report that the process has started to stop. Pings continue until `close`."""
        self._report(b"STOPPING=1")

    def close(self) -> None:
        """Stop the pings. The process still has to end."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _report(self, state: bytes) -> None:
        self._state = state
        self._send_state()

    def _send_state(self) -> None:
        # A lost state would leave the service starting forever, so it is repeated. A lost ping is not.
        if self._state and not self._send(self._state):
            asyncio.get_running_loop().call_later(_RETRY_S, self._send_state)
            return
        self._state = b""

    def _ping(self) -> None:
        if self._ping_s:
            self._send(b"WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(self._ping_s, self._ping)

    def _send(self, message: bytes) -> bool:
        """Send without waiting. Return False if the queue of the socket is full."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(message, socket.MSG_DONTWAIT, self._address)
        except BlockingIOError:
            return False
        except OSError as error:
            _log.warning("cannot notify the service manager", message=message.decode(), reason=str(error))
        return True
