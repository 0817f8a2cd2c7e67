"""The tail cache against a plain list of batches."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dledger.core.values import EMPTY_TAIL, Tail
from dledger.replica import tail_cache
from dledger.replica.tail_cache import TailCache
from dledger.store.format.batch import Batch, encode_batch, unpack_header

FILE_SIZE = 4096


class TailCacheMachine(RuleBasedStateMachine):
    """`log` are all batches; `kept` those that the cache should still have."""

    @initialize(limit=st.sampled_from([0, 200, 1000]), trim=st.sampled_from([1, 3, 1024]))
    def start(self, limit: int, trim: int) -> None:
        self.limit = limit
        self.cache = TailCache(limit)
        self.trim = tail_cache._TRIM_BATCHES
        tail_cache._TRIM_BATCHES = trim
        self.log: list[Batch] = []
        self.kept: list[Batch] = []
        self.durable = -1
        self.term = 1

    def teardown(self) -> None:
        if hasattr(self, "trim"):
            tail_cache._TRIM_BATCHES = self.trim

    @property
    def tail(self) -> Tail:
        return self.log[-1].tail if self.log else EMPTY_TAIL

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4), rise=st.integers(0, 1))
    def append(self, sizes: list[int], rise: int) -> None:
        self.term += rise
        batch = encode_batch(self.tail, self.term, [bytes(n) for n in sizes], data_file_size=FILE_SIZE)
        self.log.append(batch)
        self.kept.append(batch)
        self.cache.append(batch)

    @rule(data=st.data())
    def becomes_durable(self, data: st.DataObject) -> None:
        ends = [b.last_index for b in self.log if b.last_index > self.durable]
        if ends:
            self.durable = data.draw(st.sampled_from(ends))
        self.cache.evict(self.durable)
        while self.kept and sum(b.size for b in self.kept) > self.limit:
            if self.kept[0].last_index > self.durable:
                break
            self.kept.pop(0)

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        last = data.draw(st.sampled_from([-1, *(b.last_index for b in self.log)]))
        self.cache.truncate_after(last)
        self.log = [b for b in self.log if b.last_index <= last]
        self.kept = [b for b in self.kept if b.last_index <= last]
        self.durable = min(self.durable, last)

    @rule(first=st.integers(-1, 40), last=st.integers(-1, 40), max_bytes=st.sampled_from([1, 150, 10_000]))
    def read(self, first: int, last: int, max_bytes: int) -> None:
        taken: list[Batch] = []
        for batch in self.kept:
            if batch.first_index < first or batch.last_index > last:
                continue
            if not taken and batch.first_index != first:
                break
            if taken and sum(b.size for b in taken) + batch.size > max_bytes:
                break
            taken.append(batch)
        expected = (taken[-1].last_index, b"".join(bytes(b.data) for b in taken)) if taken else None
        assert self.cache.read(first, last, max_bytes) == expected

    @rule(index=st.integers(-1, 40))
    def tail_at(self, index: int) -> None:
        expected = None
        for batch in self.kept:
            at = 0
            for i in range(batch.first_index, batch.last_index + 1):
                header = unpack_header(batch.data, at)
                at += header.size
                if i == index:
                    expected = Tail(index, batch.term, header.pos + header.size, header.chain_crc)
        assert self.cache.tail_at(index) == expected

    @invariant()
    def gives_all_that_it_keeps(self) -> None:
        """With each step, so that bytes joined before a truncation would be met behind it."""
        if not self.kept:
            return
        whole = b"".join(bytes(b.data) for b in self.kept)
        first, last = self.kept[0].first_index, self.kept[-1].last_index
        assert self.cache.read(first, last, 1 << 20) == (last, whole)

    @invariant()
    def keeps_what_it_should(self) -> None:
        assert self.cache.byte_size == sum(b.size for b in self.kept)
        assert self.cache.first_index == (self.kept[0].first_index if self.kept else None)


TailCacheMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
TestTailCache = TailCacheMachine.TestCase


def test_followers_share_the_joined_bytes() -> None:
    cache, tail = TailCache(1 << 20), EMPTY_TAIL
    for _ in range(3):
        batch = encode_batch(tail, 1, [b"x"], data_file_size=FILE_SIZE)
        cache.append(batch)
        tail = batch.tail
    one, other = cache.read(0, 2, 1000), cache.read(0, 2, 1000)
    assert one is not None and other is not None
    assert one[1] is other[1]


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_joined_bytes_do_not_outlive_their_batches(how: str) -> None:
    cache = TailCache(1 << 20)
    old = _batches(1, 3)
    for batch in old:
        cache.append(batch)
    assert cache.read(1, 2, 1000) == (2, bytes(old[1].data) + bytes(old[2].data))
    if how == "truncated":
        cache.truncate_after(0)
        new = [old[0], *_batches(2, 2, old[0].tail)]
    else:
        cache.clear()
        new = _batches(2, 3)
        cache.append(new[0])
    for batch in new[1:]:
        cache.append(batch)
    assert cache.read(1, 2, 1000) == (2, bytes(new[1].data) + bytes(new[2].data))


def _batches(term: int, count: int, tail: Tail = EMPTY_TAIL) -> list[Batch]:
    batches = []
    for _ in range(count):
        batches.append(encode_batch(tail, term, [b"x"], data_file_size=FILE_SIZE))
        tail = batches[-1].tail
    return batches
