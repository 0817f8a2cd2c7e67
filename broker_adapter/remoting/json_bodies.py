"""Encodes JSON bodies like RocketMQ."""

from __future__ import annotations

import json
from collections.abc import Iterable


def check_limits(body: bytes, max_bytes: int, max_values: int) -> None:
    """Raise ValueError for JSON that would block the event loop for a long time.

    Five million empty lists fit into a frame, and parsing them takes seconds.
    """
    if len(body) > max_bytes:
        raise ValueError(f"the body is {len(body)} bytes long; the limit is {max_bytes}")
    if (count := sum(map(body.count, (b"{", b"[", b",")))) > max_values:
        raise ValueError(f"the body has {count} values; the limit is {max_values}")


def dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def dump_rows(rows: Iterable[tuple[object, object]]) -> bytes:
    """Encode an object with many rows, whose keys may be objects, as fastjson does.

    Run this on a thread: ten thousand rows take tenths of a second. Rows are encoded one by one, because a
    single call of the encoder would block all other threads.
    """
    return b"{" + b",".join(dump(key) + b":" + dump(value) for key, value in rows) + b"}"
