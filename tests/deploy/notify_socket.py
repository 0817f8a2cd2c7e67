"""A service manager's end of sd_notify, for tests that start real processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

#: A machine that is busy is no bug.
_PATIENCE_S = 60.0


class NotifySocket:
    """Receives the notifications of a process."""

    def __init__(self, address: str) -> None:
        """`address`: a path, or `@` and a name in the abstract namespace."""
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_PATIENCE_S)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def variables(self, watchdog_s: float = 0.0) -> dict[str, str]:
        """Environment variables of a service. `watchdog_s`: WatchdogSec of its unit."""
        watchdog = {"WATCHDOG_USEC": str(round(watchdog_s * 1e6))} if watchdog_s else {}
        return {"NOTIFY_SOCKET": self.address, **watchdog}

    def receive(self, timeout_s: float = _PATIENCE_S) -> str:
        """The next notification. TimeoutError if there is none."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv(4096).decode()

    def wait_for(self, expected: str) -> list[str]:
        """The notifications up to this one."""
        received = [self.receive()]
        while received[-1] != expected:
            received.append(self.receive())
        return received

    def close(self) -> None:
        self._socket.close()


@contextmanager
def notify_socket(address: str) -> Iterator[NotifySocket]:
    manager = NotifySocket(address)
    try:
        yield manager
    finally:
        manager.close()
