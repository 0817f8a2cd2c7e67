"""Messages with a number in them, by which they are recognised wherever they turn up."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random

UNREADABLE = -1
MAX_INPUT_BYTES = 256 << 20


def digest(body: bytes) -> str:
    """16 hex digits."""
    return blake2b(body, digest_size=8).hexdigest()


def number_of(body: bytes) -> int:
    """Of a message made here; UNREADABLE if it cannot be one."""
    number, blank, _ = body.partition(b" ")
    return int(number) if blank and number.isdigit() and len(number) <= 19 else UNREADABLE


def payload_of(body: bytes) -> bytes:
    """What follows the number."""
    return body.partition(b" ")[2]


class Bodies:
    """`make(mid)`: the number, and a payload after it: the next of `payloads`, or without any a random one,
    up to `max_bytes` long."""

    def __init__(self, rng: Random, max_bytes: int, payloads: Iterator[bytes] | None = None) -> None:
        self._rng = rng
        self._max_bytes = max_bytes
        self._payloads = payloads

    def make(self, mid: int) -> bytes:
        if self._payloads is not None:
            return b"%d %s" % (mid, next(self._payloads))
        return b"%d %s" % (mid, self._rng.randbytes(self._rng.randint(0, self._max_bytes)))


def lines_of(path: Path) -> list[bytes]:
    """The lines of a real file. ValueError if it has none, or is more than should be held in memory."""
    if path.stat().st_size > MAX_INPUT_BYTES:
        raise ValueError(f"{path} has more than {MAX_INPUT_BYTES >> 20} MiB")
    lines = path.read_bytes().splitlines()
    if not lines:
        raise ValueError(f"{path} has no lines")
    return lines
