"""Generates UNIQ_KEY, the message id that RocketMQ's clients assign before they send a message."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from datetime import UTC, datetime

from broker_adapter.wire.message_id import format_unique_key

#: The counter is the last part of a key.
_COUNTER_DIGITS = 4


class UniqueKeys:
    """Generates keys that are unique across producers. A key consists of address, process, random number,
    time since the start of the month, and counter.

    Args:
        address: 4 or 16 bytes, default: an address of this host.
        loader: a number that distinguishes producers of one process, default: random.
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
        self._month = (0, 0)  # current month as [start, end), ms since 1970

    def next(self) -> str:
        return self.next_keys(1)[0]

    def next_keys(self, count: int) -> list[str]:
        """Generate `count` keys with the same timestamp."""
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
    """Return an IPv4 address of this host, or the loopback address."""
    try:
        return socket.inet_aton(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return socket.inet_aton("127.0.0.1")
