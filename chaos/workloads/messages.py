"""Numbered messages, so that the checker recognizes every copy."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random

UNREADABLE = -1
MAX_INPUT_BYTES = 256 << 20


def digest(body: bytes) -> str:
    """Return 16 hex digits of a BLAKE2b hash."""
    return blake2b(body, digest_size=8).hexdigest()


def number_of(body: bytes) -> int:
    """Return the number of a workload message; UNREADABLE if the body does not start with one."""
    number, blank, _ = body.partition(b" ")
    return int(number) if blank and number.isdigit() and len(number) <= 19 else UNREADABLE


def payload_of(body: bytes) -> bytes:
    """Return the bytes after the number."""
    return body.partition(b" ")[2]


class Bodies:
    """Builds message bodies: the number followed by a payload.

    The payload is the next of `payloads`, if given, or else consists of random bytes, at most `max_bytes`.
    """

    def __init__(self, rng: Random, max_bytes: int, payloads: Iterator[bytes] | None = None) -> None:
        self._rng = rng
        self._max_bytes = max_bytes
        self._payloads = payloads

    def make(self, mid: int) -> bytes:
        if self._payloads is not None:
            return b"%d %s" % (mid, next(self._payloads))
        return b"%d %s" % (mid, self._rng.randbytes(self._rng.randint(0, self._max_bytes)))


def lines_of(path: Path) -> list[bytes]:
    """Return the lines of a file. Raises ValueError if it has none or exceeds MAX_INPUT_BYTES."""
    if path.stat().st_size > MAX_INPUT_BYTES:
        raise ValueError(f"{path} is larger than {MAX_INPUT_BYTES >> 20} MiB")
    lines = path.read_bytes().splitlines()
    if not lines:
        raise ValueError(f"{path} contains no lines")
    return lines
