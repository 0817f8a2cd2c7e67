"""Which state of its own a machine may keep, and what it is then handed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import pytest

from dledger import Applied, AppliedEntry, DurableStateMachine
from dledger.core.values import ENTRY_HEADER_SIZE, Base
from dledger.errors import Code, StorageError
from dledger.infra.files.disk import CrashKind
from dledger.node.machine.state_feeder import StateFeeder
from dledger.node.machine.state_machine import SnapshotStateMachine
from dledger.node.machine.state_plan import (
    ApplyStep,
    LoadResult,
    LoadStep,
    ReplayStep,
    SaveOnStep,
    SaveStep,
    StatePlan,
)
from dledger.replica.images import ImageRequest
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.identity import Identity
from dledger.testing.memory_store import MemoryLogStore
from tests.replica.logged_images import mark_of
from tests.store.helpers import IDENTITY, SIZE, make_batches


class Kept:
    """A machine with a list of calls, and some state that it has kept."""

    def __init__(self, kept: Applied | None = None) -> None:
        self.kept = kept
        self.calls: list[object] = []
        self.fails = False

    def _call(self, *call: object) -> None:
        self.calls.append(call)
        if self.fails:
            raise ValueError("it failed")

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        self._call("apply", *[entry.index for entry in entries])

    def save(self) -> Iterable[bytes]:
        self._call("save")
        return [b"state"]

    def load(self, chunks: Iterable[bytes]) -> None:
        self._call("load", b"".join(chunks))

    def recover(self) -> Applied | None:
        self._call("recover")
        return self.kept

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        self._call("replay", *[entry.index for entry in entries])

    def close(self) -> None:
        self._call("close")


class Plain:
    """A machine that keeps nothing."""

    def apply(self, entries: Sequence[AppliedEntry]) -> None: ...

    def save(self) -> Iterable[bytes]:
        return []

    def load(self, chunks: Iterable[bytes]) -> None: ...


def a_log(identity: Identity = IDENTITY) -> tuple[MemoryLogStore, list[Batch]]:
    store = MemoryLogStore(identity)
    batches = make_batches(30, seed=5)
    store.append(batches)
    store.sync()
    return store, batches


def applied_at(store: MemoryLogStore, index: int) -> Applied:
    tail = store.entry(index).tail
    return Applied(tail.index, tail.term, tail.pos)


def why_not(store: MemoryLogStore, kept: Applied) -> str:
    found = StateFeeder(Kept(kept), store).recover()
    assert found is not None and found.found == kept
    return found.why_not


def test_a_machine_with_a_recover_is_durable_and_others_are_not() -> None:
    assert isinstance(Kept(), DurableStateMachine)
    assert not isinstance(Plain(), DurableStateMachine)
    store, _ = a_log()
    assert StateFeeder(Kept(), store).is_durable
    plain = StateFeeder(Plain(), store)
    assert not plain.is_durable and plain.recover() is None
    assert StateFeeder(Kept(None), store).recover() is None


def test_rule_8_state_that_the_log_agrees_with_makes_its_batch_committed() -> None:
    for index in range(a_log()[0].end_index + 1):
        store, batches = a_log()
        assert store.committed_checkpoint == -1
        assert why_not(store, applied_at(store, index)) == ""
        end = next(batch.last_index for batch in batches if batch.last_index >= index)
        assert store.committed_checkpoint == end


@pytest.mark.parametrize("change", [Applied(1, 0, 0), Applied(0, 1, 0), Applied(0, 0, 1), Applied(0, 0, -1)])
def test_state_of_another_entry_is_not_used(change: Applied) -> None:
    store, _ = a_log()
    kept = Applied(*(a + b for a, b in zip(applied_at(store, 10), change, strict=True)))
    assert why_not(store, kept)
    assert store.committed_checkpoint == -1


def test_state_ahead_of_a_log_that_lost_its_unsynced_end_is_not_used() -> None:
    store, _ = a_log()
    more = make_batches(5, seed=6, tail=store.tail)
    store.append(more)
    kept = applied_at(store, store.end_index)
    for seed in range(20):
        after = store.crash(CrashKind.POWER, Random(seed))
        assert bool(why_not(after, kept)) == (after.end_index < kept.index)


def test_state_that_reaches_to_the_base_is_used_and_an_older_one_is_not() -> None:
    store, _ = a_log()
    base = store.borders()[2]
    at_base, before, behind = (applied_at(store, base.index + by) for by in (0, -1, 1))
    assert at_base.end_pos < base.pos, "a blank lies between"
    store.purge_to(base)
    assert why_not(store, at_base) == "" == why_not(store, behind)
    assert "begins after" in why_not(store, at_base._replace(term=at_base.term + 1))
    assert "begins after" in why_not(store, at_base._replace(end_pos=base.pos - SIZE))
    assert "the log goes from" in why_not(store, before)
    store.reset_to(Base(500, 9, 40 * SIZE, 7))
    assert "the log goes from 501 to 500" in why_not(store, behind)


def test_state_whose_entry_is_damaged_is_not_used() -> None:
    store, _ = a_log()
    kept = applied_at(store, 10)
    store.corrupt(10)
    assert "damaged" in why_not(store, kept)


class FullStore(MemoryLogStore):
    """No checkpoint finds room; an error of another kind is one of the disk."""

    code = Code.DISK_FULL

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        raise StorageError("no", code=self.code)


def test_state_is_not_used_if_a_full_disk_keeps_it_from_being_noted() -> None:
    store = FullStore(IDENTITY)
    store.append(make_batches(3))
    store.sync()
    assert "cannot be stored as committed" in why_not(store, applied_at(store, 0))
    store.code = Code.DISK_ERROR
    with pytest.raises(StorageError):
        why_not(store, applied_at(store, 0))


def test_applying_goes_on_within_the_batch_in_which_the_state_ends_and_then_by_whole_batches() -> None:
    store = MemoryLogStore(IDENTITY)
    tail, ends = store.tail, []
    for count in (4, 3, 3):
        batch = encode_batch(tail, 1, [b"%d" % i for i in range(count)], data_file_size=SIZE)
        store.append([batch])
        tail = batch.tail
        ends.append(tail.index)
    store.sync()
    machine = Kept(applied_at(store, 1))
    feeder = StateFeeder(machine, store, read_bytes=1)
    assert feeder.recover() is not None and store.committed_checkpoint == ends[0]
    applied = 1
    while applied < ends[-1]:
        applied = feeder.apply(ApplyStep(applied + 1, ends[-1]))
    assert machine.calls == [
        ("recover",),
        ("apply", 2),
        ("apply", 3),
        ("apply", 4, 5, 6),
        ("apply", 7, 8, 9),
    ]


def test_after_an_image_is_loaded_batches_are_applied_whole() -> None:
    """Where a state ended that is not used any more is nothing to go by."""
    store = MemoryLogStore(IDENTITY)
    store.append([encode_batch(store.tail, 1, [b"0", b"1", b"2", b"3"], data_file_size=SIZE)])
    store.sync()
    machine = Kept(applied_at(store, 1))
    feeder = StateFeeder(machine, store, read_bytes=1)
    assert feeder.recover() is not None
    assert feeder.load(LoadStep(-1, 3)) == LoadResult(-1, -1, 0)
    assert feeder.apply(ApplyStep(0, 3)) == 3
    assert machine.calls[-1] == ("apply", 0, 1, 2, 3)


def test_entries_carry_where_they_are_in_the_log() -> None:
    store, batches = a_log()
    machine = Kept()
    seen: list[AppliedEntry] = []
    machine.apply = seen.extend  # type: ignore[method-assign]
    feeder, index = StateFeeder(machine, store), 0
    while index <= store.end_index:
        index = feeder.apply(ApplyStep(index, store.end_index)) + 1
    assert len(seen) == sum(batch.count - (batch.head is not None) for batch in batches)
    for entry in seen:
        header = store.entry(entry.index)
        assert (entry.term, entry.pos) == (header.term, header.pos)
        assert ENTRY_HEADER_SIZE + len(entry.body) == header.size
        assert store.read_bodies([(entry.pos, len(entry.body))], store.tail.pos) == [entry.body]


@pytest.mark.parametrize("as_view", [False, True])
def test_batches_in_memory_are_applied_as_if_they_were_read(as_view: bool) -> None:
    store, batches = a_log()
    read, handed = Kept(), Kept()
    entries: dict[Kept, list[AppliedEntry]] = {read: [], handed: []}
    for machine, seen in entries.items():
        machine.apply = seen.extend  # type: ignore[method-assign]
    index, feeder = 0, StateFeeder(read, store)
    while index <= store.end_index:
        index = feeder.apply(ApplyStep(index, store.end_index)) + 1
    if as_view:
        batches = [replace(batch, data=memoryview(batch.data)) for batch in batches]
    empty = MemoryLogStore(IDENTITY)  # of which nothing can be read
    assert StateFeeder(handed, empty).apply(ApplyStep(0, store.end_index), batches) == store.end_index
    assert entries[read] and entries[read] == entries[handed]
    assert all(type(entry.body) is bytes for entry in entries[handed])


def test_a_machine_is_closed_once_and_not_after_it_has_failed() -> None:
    store, _ = a_log()
    machine = Kept()
    feeder = StateFeeder(machine, store)
    feeder.close()
    assert machine.calls == [], "it was never opened"
    feeder.recover()
    feeder.load(LoadStep(-1, -1))
    feeder.close()
    feeder.close()
    assert machine.calls == [("recover",), ("load", b""), ("close",)]
    for work in (
        lambda feeder: feeder.load(LoadStep(-1, -1)),
        lambda feeder: feeder.apply(ApplyStep(0, 5)),
        lambda feeder: feeder.replay(ReplayStep(0, 5)),
        lambda feeder: feeder.begin_save(ImageRequest(5, store.entry(5).term, b""), 4),
    ):
        broken = Kept()
        feeder = StateFeeder(broken, store)
        feeder.recover()
        broken.fails = True
        with pytest.raises(ValueError, match="it failed"):
            work(feeder)
        broken.fails = False
        feeder.close()
        assert ("close",) not in broken.calls


def following(plan: StatePlan, base: int, readable: int, image: int = -1, *, needs: bool = False) -> object:
    return plan.next(base, readable, image, needs_image=needs)


def test_a_loaded_state_counts_once_the_entries_behind_it_are_replayed() -> None:
    plan = StatePlan(replays=True)
    assert following(plan, 9, 50, 30) == LoadStep(30, 50)
    plan.loaded(LoadResult(29, 9, 100))
    assert plan.applied == -1
    assert following(plan, 9, 50, 30) == ReplayStep(10, 29)
    plan.replayed(20)
    assert (following(plan, 9, 50, 30), plan.applied) == (ReplayStep(21, 29), -1)
    plan.replayed(29)
    assert (following(plan, 9, 50, 30), plan.applied) == (ApplyStep(30, 50), 29)


def test_a_purge_into_what_is_being_replayed_begins_anew() -> None:
    """Else what is derived of the entries would have a hole."""
    plan = StatePlan(replays=True)
    plan.loaded(LoadResult(29, 9, 100))
    plan.replayed(15)
    assert following(plan, 15, 50, 30) == ReplayStep(16, 29)
    assert following(plan, 19, 80, 70) == LoadStep(70, 80)


def test_a_state_that_ends_before_the_log_begins_is_loaded_once_there_is_an_image() -> None:
    plan = StatePlan(replays=True)
    plan.recovered(20)
    assert following(plan, -1, 20) is None
    assert following(plan, 20, 25) == ApplyStep(21, 25)
    assert following(plan, 21, 25, needs=True) is None
    assert following(plan, 21, 25, 23) == LoadStep(23, 25)


def request(index: int) -> ImageRequest:
    return ImageRequest(index, 1, b"sessions")


def test_the_image_is_saved_between_what_comes_before_and_behind_it() -> None:
    plan = StatePlan(replays=True)
    plan.recovered(20)
    plan.save(request(31))
    assert following(plan, -1, 50) == ApplyStep(21, 30)
    plan.has_applied(30)
    assert following(plan, -1, 30) is None, "the mark is not committed"
    assert following(plan, -1, 50) == SaveStep(request(31))
    plan.saving(is_saving=True)
    for _ in range(3):
        assert following(plan, -1, 50) == SaveOnStep(), "no entry may change the state meanwhile"
        plan.saving(is_saving=True)
    plan.saving(is_saving=False)
    assert following(plan, -1, 50) == ApplyStep(31, 50)
    plan.has_applied(50)
    assert following(plan, -1, 50) is None
    plan.save(request(40))
    assert following(plan, -1, 50) == SaveStep(request(40)), "the feeder refuses what is too late"


def test_entries_and_parts_of_the_image_take_turns_if_the_machine_permits_that() -> None:
    plan = StatePlan(replays=False, saves_aside=True)
    plan.loaded(LoadResult(29, -1, 0))
    plan.save(request(30))
    assert following(plan, -1, 50) == SaveStep(request(30))
    plan.saving(is_saving=True)
    assert following(plan, -1, 50) == ApplyStep(30, 50)
    plan.has_applied(40)
    assert following(plan, -1, 50) == SaveOnStep()
    plan.saving(is_saving=True)
    assert following(plan, -1, 50) == ApplyStep(41, 50)
    plan.has_applied(50)
    for _ in range(2):
        assert following(plan, -1, 50) == SaveOnStep(), "there is nothing else to do"
        plan.saving(is_saving=True)
    plan.saving(is_saving=False)
    assert following(plan, -1, 50) is None


def test_a_load_ends_the_image_in_progress() -> None:
    plan = StatePlan(replays=False)
    plan.loaded(LoadResult(29, -1, 0))
    plan.save(request(30))
    assert following(plan, -1, 50) == SaveStep(request(30))
    plan.saving(is_saving=True)
    assert following(plan, 44, 50, 45) == LoadStep(45, 50)
    plan.loaded(LoadResult(44, 44, 0))
    assert following(plan, 44, 50, 45) == ApplyStep(45, 50)


def save_whole(feeder: StateFeeder) -> bool | None:
    more: bool | None = True
    while more:
        more = feeder.save_on()
    return more


def test_an_image_is_the_sessions_and_the_state_at_its_mark() -> None:
    store, _ = a_log()
    feeder = StateFeeder(Kept(), store)
    mark = mark_of(store, 5)
    assert feeder.begin_save(ImageRequest(5, mark.term, b"sessions"), 4)
    assert store.images.newest is None
    assert save_whole(feeder) is False
    stored = store.images.stored()
    assert stored is not None and stored.mark == mark and stored.sessions == b"sessions"
    assert b"".join(store.images.state(stored.manifest)) == b"state"


@pytest.mark.parametrize(("term_by", "applied"), [(1, 4), (0, 5), (0, 3)])
def test_no_image_is_begun_of_another_entry_or_another_state(term_by: int, applied: int) -> None:
    """The request is from an earlier leadership, or the state has entries behind its mark."""
    store, _ = a_log()
    machine = Kept()
    feeder = StateFeeder(machine, store)
    assert not feeder.begin_save(ImageRequest(5, store.entry(5).term + term_by, b""), applied)
    assert machine.calls == [] and store._image_disk.files() == []


def test_an_image_that_finds_no_room_leaves_the_one_before_it() -> None:
    store, _ = a_log()
    machine = Kept()
    feeder = StateFeeder(machine, store)
    assert feeder.begin_save(ImageRequest(5, store.entry(5).term, b""), 4)
    assert save_whole(feeder) is False
    machine.save = lambda: [bytes(1 << 20) for _ in range(9)]  # type: ignore[method-assign]
    store._image_disk.capacity = 6 << 20
    assert feeder.begin_save(ImageRequest(9, store.entry(9).term, b""), 8)
    assert save_whole(feeder) is None
    newest = store.images.newest
    assert newest is not None and newest.mark.index == 5
    assert b"".join(store.images.state(newest)) == b"state"
    assert len(store._image_disk.files()) == 2, "nothing is left of the other one"
    store._image_disk.capacity = 1 << 30
    assert feeder.begin_save(ImageRequest(9, store.entry(9).term, b""), 8)
    assert save_whole(feeder) is False and store.images.newest_bytes == 9 << 20


class Snapshotting(Kept):
    """Counts the entries that it has applied. Its snapshots consist of many pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        self.count += len(entries)

    def snapshot(self) -> Iterable[bytes]:
        count = self.count
        return (b"%08d" % count * (1 << 17) for _ in range(12))


def test_entries_are_applied_while_a_snapshot_is_written() -> None:
    store, batches = a_log()
    machine = Snapshotting()
    feeder = StateFeeder(machine, store)
    assert feeder.saves_aside and not StateFeeder(Kept(), store).saves_aside
    assert isinstance(machine, SnapshotStateMachine)
    plan = StatePlan(replays=False, saves_aside=True)
    plan.loaded(LoadResult(-1, -1, 0))
    mark = batches[4].first_index
    plan.save(ImageRequest(mark, batches[4].term, b""))
    expected = -1
    while store.images.newest is None:
        match plan.next(-1, store.end_index, -1, needs_image=False):
            case ApplyStep() as step:
                plan.has_applied(feeder.apply(step))
            case SaveStep(image):
                expected = machine.count
                plan.saving(is_saving=feeder.begin_save(image, plan.applied))
            case SaveOnStep():
                plan.saving(is_saving=feeder.save_on() is True)
    assert machine.count > expected >= 0, "entries were applied in between"
    newest = store.images.newest
    assert newest is not None and newest.mark.index == mark
    assert b"".join(store.images.state(newest)) == b"%08d" % expected * (1 << 17) * 12
