"""UNIQ_KEY of a producer's messages: RocketMQ's message id, made before the message is sent."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from datetime import UTC, datetime

from broker_adapter.format.message_id import format_unique_key

#: The counter comes last in a key.
_COUNTER_DIGITS = 4


class UniqueKeys:
    """Makes keys that no other producer makes: address, process, a random number, time in month, counter.

    Args:
        address: 4 or 16 bytes, default: this host's.
        loader: tells producers of one process apart, default: random.
        now_ms: milliseconds since 1970.
    """

    def __init__(
        self, now_ms: Callable[[], int], *, address: bytes | None = None, loader: int | None = None
    ) -> None:
        self._now_ms = now_ms
        self._address = own_address() if address is None else address
        self._loader = secrets.randbits(32) if loader is None else loader
        self._process = os.getpid()
        self._counter = 0
        self._month = (0, 0)  # [begin, end) of the present month, ms since 1970

    def next(self) -> str:
        return self.take(1)[0]

    def take(self, count: int) -> list[str]:
        """So many keys at once: they share their time."""
        now = self._now_ms()
        if not self._month[0] <= now < self._month[1]:
            self._month = _month_around(now)
        first = self._counter + 1
        self._counter += count
        key = format_unique_key(self._address, self._process, self._loader, now - self._month[0], 0)
        prefix = key[:-_COUNTER_DIGITS]
        return [f"{prefix}{number & 0xFFFF:04X}" for number in range(first, first + count)]


def _month_around(now_ms: int) -> tuple[int, int]:
    day = datetime.fromtimestamp(now_ms / 1000, UTC)
    begin = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)


def own_address() -> bytes:
    """An IPv4 address of this host; that of the loopback without one."""
    try:
        return socket.inet_aton(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return socket.inet_aton("127.0.0.1")
