"""Entries of the log's own that no leader writes: no node fails for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from types import SimpleNamespace

import pytest

from dledger import AppliedEntry, ImageRefused
from dledger.core.values import Base
from dledger.node.machine.state_feeder import ImageDamaged, StateFeeder
from dledger.node.machine.state_plan import LoadResult, LoadStep
from dledger.replica.images import LoggedImage, copy_image, newest_logged
from dledger.replica.log_state import LogState
from dledger.replica.retainer import Retainer
from dledger.replica.retention import RetentionLimits
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
from tests.replica.logged_images import append_internal, logged_image, mark_of, write_image
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
        return append_internal(self.store, value)

    def image(self, state: bytes) -> int:
        """A mark in the log, and its image in the files."""
        index = self.append(ImageBegin())
        write_image(self.store.images, mark_of(self.store, index), state=state)
        return index

    def logged_image(self, state: bytes, sessions: bytes = b"") -> int:
        """An image in the log alone, as release 0.2 wrote it."""
        index = self.store.end_index + 1
        for value in logged_image(index, sessions, state):
            self.append(value)
        return index

    def load(self, feeder: StateFeeder, newest: int) -> LoadResult | None:
        return feeder.load(LoadStep(newest, self.store.end_index))


def test_a_whole_log_is_applied_from_its_begin_if_the_machine_refuses_its_image() -> None:
    log, machine = ImageLog(), Picky()
    newest = log.image(b"bad")
    assert log.load(StateFeeder(machine, log.store), newest) == LoadResult(-1, -1, 0)
    assert machine.state == b""


def test_an_image_that_was_replaced_by_one_that_is_not_readable_yet_is_not_loaded() -> None:
    """The newer one may be of entries that are not known to be committed here."""
    log, machine = ImageLog(), Picky()
    older = log.image(b"good older")
    newer = log.image(b"good newer")
    feeder = StateFeeder(machine, log.store)
    assert log.load(feeder, older) is None and machine.loads == 0
    assert log.load(feeder, newer) == LoadResult(newer - 1, -1, 10)
    assert machine.state == b"good newer"


def purged_log() -> ImageLog:
    log = ImageLog()
    while not log.store.borders():
        log.append(NoOp())
    return log


def test_a_log_that_was_purged_waits_for_the_next_image_and_does_not_try_the_refused_one_again() -> None:
    log, machine = purged_log(), Picky()
    newest = log.image(b"bad")
    log.store.purge_to(log.store.borders()[0])
    feeder = StateFeeder(machine, log.store)
    for _ in range(3):
        assert log.load(feeder, newest) is None
    assert machine.loads == 1
    later = log.image(b"good later")
    loaded = log.load(feeder, later)
    assert loaded is not None and loaded.applied == later - 1 and machine.state == b"good later"


def test_a_damaged_image_names_its_mark_and_is_not_loaded() -> None:
    log, machine = purged_log(), Picky()
    newest = log.image(b"good")
    mark = mark_of(log.store, newest)
    [path] = [path for path in log.store._image_disk.files() if path.name.endswith(".data")]
    log.store._image_disk.flip(path, 2)
    with pytest.raises(ImageDamaged) as caught:
        log.load(StateFeeder(machine, log.store), newest)
    assert caught.value.mark == mark and machine.state == b"none"


# -- images of release 0.2


@pytest.mark.parametrize("size", [0, 1, 59, 60, 61, 1000])
def test_an_image_of_release_0_2_is_copied_into_files(size: int) -> None:
    log = ImageLog()
    log.append(NoOp())
    sessions, state = Random(1).randbytes(70), Random(size).randbytes(size)
    index = log.logged_image(state, sessions)
    end = log.store.end_index
    log.append(NoOp())
    image = newest_logged(log.store.iter_heads(0), log.store.end_index)
    assert image == LoggedImage(index, end)
    assert copy_image(log.store, image)
    stored = log.store.images.stored()
    assert stored is not None and stored.sessions == sessions and stored.manifest.is_copy
    assert stored.mark == mark_of(log.store, index)
    assert b"".join(log.store.images.state(stored.manifest)) == state


def test_of_the_images_of_release_0_2_the_newest_complete_one_counts() -> None:
    log = ImageLog()
    older = log.logged_image(b"older")
    end = log.store.end_index
    newer = log.logged_image(b"newer")
    last = log.store.end_index
    log.append(ImageBegin())
    log.append(ImageChunk(last + 1, 0, b"never completed"))
    heads = list(log.store.iter_heads(0))
    assert newest_logged(heads, log.store.end_index) == LoggedImage(newer, last)
    assert newest_logged(heads, last) == LoggedImage(newer, last)
    assert newest_logged(heads, last - 1) == LoggedImage(older, end)
    assert newest_logged(heads, end - 1) is None
    assert newest_logged(log.store.iter_heads(older + 1), end) is None, "its begin is purged"
    begun = log.append(ImageBegin())
    log.append(ImageEnd(begun, 1, 0))
    assert newest_logged(log.store.iter_heads(0), log.store.end_index) == LoggedImage(newer, last)


@pytest.mark.parametrize("broken", ["chunk", "crc", "length"])
def test_an_image_of_release_0_2_with_wrong_bytes_is_not_copied(broken: str) -> None:
    log = ImageLog()
    values = list(logged_image(0, bytes(10), bytes(100)))
    match values[1], values[-1]:
        case ImageChunk() as chunk, ImageEnd() as end:
            if broken == "crc":
                end.crc ^= 1
            else:
                at = 0 if broken == "length" else 20
                chunk.data = chunk.data[:at] + b"\1" + chunk.data[at + 1 :]
    for value in values:
        log.append(value)
    assert not copy_image(log.store, LoggedImage(0, log.store.end_index))
    assert log.store.images.newest is None
    assert log.store._image_disk.files() == [], "the remains are removed"


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
