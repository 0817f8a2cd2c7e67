"""Bodies by position, read on several threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from dledger.errors import Code, ReadFailed
from dledger.infra.loops.readable import ReadableLog
from dledger.node.disk.body_reader import BodyReader
from dledger.store.api import LogStore


class _Tail:
    def __init__(self, pos: int) -> None:
        self.pos = pos


class _Readable:
    index = 7


class _Store:
    """Readable up to 100. `meanwhile` is done by another thread while the first call is under way."""

    def __init__(self) -> None:
        self.meanwhile: BodyReader | None = None

    def tail_at(self, index: int) -> _Tail:
        return _Tail(100)

    def read_bodies(self, spans: Sequence[tuple[int, int]], end_pos: int) -> list[bytes]:
        if (other := self.meanwhile) is not None:
            self.meanwhile = None
            other.read([(0, 50)])
        if any(pos + size > end_pos for pos, size in spans):
            raise ReadFailed(f"the readable log ends at {end_pos}", code=Code.INDEX_OUT_OF_RANGE)
        return [b"x" * size for _, size in spans]


def _reader(store: _Store) -> BodyReader:
    return BodyReader(cast("LogStore", store), cast("ReadableLog", _Readable()), lambda index: None)


def test_a_read_succeeds_when_another_thread_has_just_looked_how_far_one_may_read() -> None:
    store = _Store()
    reader = store.meanwhile = _reader(store)
    assert reader.read([(10, 20)]) == [b"x" * 20]


def test_what_is_beyond_the_end_is_refused() -> None:
    reader = _reader(_Store())
    with pytest.raises(ReadFailed, match="ends at 100"):
        reader.read([(10, 20), (90, 20)])
    assert reader.read([(90, 10)]) == [b"x" * 10]
