"""Entries of the log's own that no leader writes: no node fails for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from types import SimpleNamespace

import pytest

from dledger import AppliedEntry, ImageRefused
from dledger.core.values import Base
from dledger.node.machine.state_feeder import StateFeeder
from dledger.node.machine.state_plan import LoadResult, LoadStep
from dledger.replica.images import ImageWriter
from dledger.replica.log_state import LogState
from dledger.replica.retainer import Retainer
from dledger.replica.retention import RetentionLimits
from dledger.store.format.batch import encode_batch
from dledger.store.format.internal import (
    ImageBegin,
    ImageChunk,
    ImageEnd,
    Internal,
    NoOp,
    Purge,
    SessionBatch,
    SessionOpen,
    StampedInternal,
    UnknownInternal,
    decode_internal,
    encode_internal,
)
from dledger.testing.memory_store import MemoryLogStore
from tests.store.helpers import IDENTITY, SIZE


class Picky:
    """Loads what begins with "good"."""

    def __init__(self) -> None:
        self.state = b"none"
        self.loads = 0

    def apply(self, entries: Sequence[AppliedEntry]) -> None: ...

    def save(self) -> Iterable[bytes]:
        return [self.state]

    def load(self, chunks: Iterable[bytes]) -> None:
        self.loads += 1
        found = b"".join(chunks)
        if found and not found.startswith(b"good"):
            raise ImageRefused(f"{found!r}")
        self.state = found


class ImageLog:
    def __init__(self) -> None:
        self.store = MemoryLogStore(IDENTITY)

    def append(self, value: Internal) -> int:
        head = encode_internal(StampedInternal(1000, value))
        self.store.append([encode_batch(self.store.tail, 1, [], data_file_size=SIZE, head=head)])
        self.store.sync()
        return self.store.end_index

    def image(self, state: bytes) -> int:
        index = self.append(ImageBegin())
        writer = ImageWriter(index, LogState(max_sessions=4).sessions.encode_all())
        writer.provide([state])
        while (entry := writer.next_entry()) is not None:
            writer.advance()
            self.append(entry)
        return index


def test_an_image_that_the_machine_refuses_is_passed_over_for_the_one_before_it() -> None:
    log, machine = ImageLog(), Picky()
    older = log.image(b"good older")
    newest = log.image(b"bad")
    feeder = StateFeeder(machine, log.store)
    assert feeder.load(LoadStep(newest, log.store.end_index)) == LoadResult(older - 1, -1, 10)
    assert machine.state == b"good older"


def test_an_image_that_is_not_readable_yet_is_not_loaded() -> None:
    """It may be truncated, and it need not be the state of what is committed."""
    log, machine = ImageLog(), Picky()
    older = log.image(b"good older")
    readable = log.store.end_index
    log.image(b"good newer")
    end = log.store.end_index
    assert StateFeeder(machine, log.store).load(LoadStep(older, end - 1)) == LoadResult(older - 1, -1, 10)
    assert StateFeeder(machine, log.store).load(LoadStep(older, readable)) == LoadResult(older - 1, -1, 10)
    assert machine.state == b"good older"
    loaded = StateFeeder(machine, log.store).load(LoadStep(older, end))
    assert loaded is not None and machine.state == b"good newer", "an image is readable with its end mark"


def test_without_another_image_a_whole_log_is_applied_from_its_begin() -> None:
    log, machine = ImageLog(), Picky()
    newest = log.image(b"bad")
    assert StateFeeder(machine, log.store).load(LoadStep(newest, log.store.end_index)) == LoadResult(
        -1, -1, 0
    )
    assert machine.state == b""


def test_a_log_that_was_purged_waits_for_the_next_image_and_does_not_try_the_refused_one_again() -> None:
    log, machine = ImageLog(), Picky()
    while not log.store.borders():
        log.append(NoOp())
    newest = log.image(b"bad")
    log.store.purge_to(log.store.borders()[0])
    feeder = StateFeeder(machine, log.store)
    for _ in range(3):
        assert feeder.load(LoadStep(newest, log.store.end_index)) is None
    assert machine.loads == 1
    later = log.image(b"good later")
    loaded = feeder.load(LoadStep(later, log.store.end_index))
    assert loaded is not None and loaded.applied == later - 1 and machine.state == b"good later"


def heads(rng: Random) -> list[Internal]:
    index = rng.choice((0, 1, 5, 20, 1 << 40, (1 << 63) - 1))
    sessions = rng.choice((0, 3, 9, (1 << 64) - 1))
    return [
        NoOp(),
        SessionOpen(),
        SessionBatch(sessions, rng.choice((0, 1, 2, (1 << 64) - 1)), 1, 7),
        ImageBegin(),
        ImageChunk(index, rng.choice((0, 1, 7)), rng.randbytes(rng.randint(0, 30))),
        ImageEnd(index, rng.choice((0, 1)), 0),
        Purge(Base(index - 2, rng.choice((0, 1, -1)), rng.choice((-5, 0, SIZE, 1 << 60)), 5)),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_heads_with_any_bytes_are_noted_alike_by_a_log_from_its_begin_and_by_one_that_was_stored(
    seed: int,
) -> None:
    rng = Random(seed)
    whole, again = LogState(max_sessions=4), LogState(max_sessions=4)
    for index in range(300):
        head = bytearray(encode_internal(StampedInternal(1000 + index, rng.choice(heads(rng)))))
        for _ in range(rng.choice((0, 0, 1, 3))):
            head[rng.randrange(len(head))] ^= 1 << rng.randrange(8)
        for state in (whole, again):
            state.note(bytes(head), index, index, 1, index * 100, 0)
            state.committed(index)
        if index % 50 == 49:
            stored = whole.encode_committed()
            assert stored is not None and stored == again.encode_committed()
            again = LogState(max_sessions=4)
            assert again._load(stored, 0)
        assert whole.purge.index < index, "a PURGE names what is before it"
        assert whole.clock.read(10**6, 0) < 1 << 62
    assert whole.set_aside


@pytest.mark.parametrize("stamp_ms", [-1, (1 << 48) + 1, (1 << 63) - 1])
def test_a_stamp_beyond_all_reason_is_none(stamp_ms: int) -> None:
    body = encode_internal(StampedInternal(stamp_ms, NoOp()))
    assert decode_internal(body) == UnknownInternal(body)


@pytest.mark.parametrize("change", [Base(1, 0, 0, 0), Base(0, 0, 48, 0), Base(0, 1, 0, 0), Base(0, 0, 0, 1)])
def test_a_purge_where_the_log_cannot_begin_is_not_carried_out(change: Base) -> None:
    log = ImageLog()
    while not log.store.borders():
        log.append(NoOp())
    border = log.store.borders()[0]
    retainer = Retainer(SimpleNamespace(store=log.store), RetentionLimits())  # type: ignore[arg-type]
    assert retainer.is_border(border)
    wrong = Base(*(a + b for a, b in zip(border, change, strict=True)))
    assert not retainer.is_border(wrong)
