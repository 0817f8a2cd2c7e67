<<<<<<< HEAD
"""Bodies by position, read on several threads."""
=======
"""Threads that read bodies at the same time, as far as an order of their steps can go wrong."""
>>>>>>> w-process

from __future__ import annotations

from collections.abc import Sequence
<<<<<<< HEAD
from typing import cast
=======
from typing import Any, NamedTuple
>>>>>>> w-process

import pytest

from dledger.errors import Code, ReadFailed
from dledger.node.body_reader import BodyReader
<<<<<<< HEAD
from dledger.node.readable import ReadableLog
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
            raise ReadFailed(f"the log can be read up to {end_pos}", code=Code.INDEX_OUT_OF_RANGE)
        return [b"x" * size for _, size in spans]


def _reader(store: _Store) -> BodyReader:
    return BodyReader(cast("LogStore", store), cast("ReadableLog", _Readable()), lambda index: None)


def test_a_read_succeeds_when_another_thread_has_just_looked_how_far_one_may_read() -> None:
    store = _Store()
    reader = store.meanwhile = _reader(store)
    assert reader.read([(10, 20)]) == [b"x" * 20]


def test_what_is_beyond_the_end_is_refused() -> None:
    reader = _reader(_Store())
    with pytest.raises(ReadFailed, match="up to 100"):
        reader.read([(10, 20), (90, 20)])
    assert reader.read([(90, 10)]) == [b"x" * 10]
=======


class Tail(NamedTuple):
    pos: int


class Log:
    """Entries of 100 bytes, of which `index` may be read; and another thread's call in the middle of one."""

    def __init__(self) -> None:
        self.index = 9
        self.meanwhile: Any = None

    def tail_at(self, index: int) -> Tail:
        return Tail(100 * (index + 1))

    def read_bodies(self, spans: Sequence[tuple[int, int]], end_pos: int) -> list[bytes]:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        if any(pos + size > end_pos for pos, size in spans):
            raise ReadFailed(f"up to {end_pos}", code=Code.INDEX_OUT_OF_RANGE)
        return [b"x" * size for _, size in spans]


def reader_of(log: Log) -> BodyReader:
    ignored: Any = log
    return BodyReader(ignored, ignored, lambda _: None)


def test_who_was_overtaken_in_looking_how_far_it_may_read_reads_all_the_same() -> None:
    log = Log()
    reader = reader_of(log)
    log.meanwhile = lambda: reader.read([(900, 52)])
    assert reader.read([(900, 52)]) == [b"x" * 52]


def test_what_cannot_be_read_yet_is_refused() -> None:
    log = Log()
    reader = reader_of(log)
    for _ in range(2):
        with pytest.raises(ReadFailed):
            reader.read([(1000, 52)])
    log.index = 10
    assert reader.read([(1000, 52)]) == [b"x" * 52]
>>>>>>> w-process
