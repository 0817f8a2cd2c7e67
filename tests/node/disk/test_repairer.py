"""Repairs go on while those who read what is damaged ask again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from dledger.core.values import EMPTY_TAIL, Base
from dledger.errors import Code, DLedgerError, InvalidRequest, StorageError
from dledger.node.members.repairer import Repairer, RepairSource, Scrubber
from dledger.rpc.peer_transport import PeerUnreachable
from dledger.rpc.ports import FetchedFrames
from dledger.store.api import Damage, LogStore, ScrubStep
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.identity import Identity
from dledger.testing.memory_store import MemoryLogStore
from tests.node.local import until
from tests.store.helpers import SIZE, corrupt, make_batches, new_sim_store
from tests.store.test_purged_damage import BATCHES, RANGES, damaged, must_be_whole

BATCH = encode_batch(EMPTY_TAIL, 1, [bytes(100)], data_file_size=4096)


class Peer:
    """Another member, which cannot be reached unless it has the entry."""

    def __init__(self, *, has_it: bool) -> None:
        self.has_it = has_it
        self.asked = 0
        self.mistakes = 0

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        self.asked += 1
        if self.mistakes:
            self.mistakes -= 1
            raise ZeroDivisionError("a mistake")
        if not self.has_it:
            raise PeerUnreachable("it is down")
        return FetchedFrames(0, 0, bytes(BATCH.data))


class Disk:
    """The disk thread. Whenever it is asked for something, a read has just failed."""

    def __init__(self) -> None:
        self.is_full = False
        self.asked = 0
        self.repairer: Repairer | None = None

    def call(self, work: Callable[[], object]) -> Future[object]:
        self.asked += 1
        done: Future[object] = Future()
        if self.is_full:
            done.set_exception(StorageError("no room for the list of damages", code=Code.DISK_FULL))
        else:
            done.set_result(work())
        assert self.repairer is not None
        self.repairer.suspect(0)
        return done


def make_repairer(
    store: LogStore,
    peers: Mapping[str, RepairSource],
    call: Callable[[Callable[[], object]], Future[object]],
    on_fatal: Callable[[DLedgerError], None] = lambda _: None,
    on_purged: Callable[[Damage], None] = lambda _: None,
) -> Repairer:
    return Repairer(
        store,
        peers,
        call,
        on_fatal=on_fatal,
        on_purged=on_purged,
        is_urgent=lambda: True,
        bytes_per_second=0,
    )


@asynccontextmanager
async def repairing(peer: Peer, disk: Disk) -> AsyncIterator[tuple[MemoryLogStore, Repairer]]:
    """A log whose only entry is damaged, and read all the time."""
    store = MemoryLogStore(Identity("c", "g", "n0", data_file_size=4096))
    store.append([BATCH])
    store.sync()
    store.corrupt(0)
    repairer = disk.repairer = make_repairer(store, {"peer": peer}, disk.call)
    repairer.start()
    repairer.suspect(0)
    try:
        yield store, repairer
    finally:
        await repairer.stop()


async def read_often(repairer: Repairer) -> None:
    for _ in range(1000):
        repairer.suspect(0)
        await asyncio.sleep(0)


async def test_damage_that_is_read_all_the_time_is_repaired() -> None:
    async with repairing(Peer(has_it=True), Disk()) as (store, repairer):
        await until(lambda: repairer.repaired == 1)
        assert store.damages == ()


async def test_members_that_cannot_help_are_asked_seldom_however_often_the_damage_is_read() -> None:
    peer = Peer(has_it=False)
    async with repairing(peer, Disk()) as (store, repairer):
        await until(lambda: peer.asked > 0)
        await read_often(repairer)
        assert peer.asked < 100
        assert store.damages
        peer.has_it = True
        await until(lambda: not store.damages)


class Part:
    """Another member, which has these batches only."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = batches

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        for batch in self.batches:
            if batch.first_index == first_index:
                return FetchedFrames(first_index, batch.last_index, bytes(batch.data))
        raise InvalidRequest("it has lost it, too", code=Code.DATA_DAMAGED)


class Purged:
    """Another member, whose log begins behind the damage."""

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        raise InvalidRequest("it is gone", code=Code.INDEX_LESS_THAN_LOCAL_BEGIN)


def damaged_batches() -> tuple[LogStore, list[Batch]]:
    """At least three batches that are damaged, and good ones around them."""
    disk, store = new_sim_store()
    batches = make_batches(10, seed=11)
    store.append(batches)
    store.sync()
    corrupt(disk, batches[3], batches[5])
    damage = store.note_damage(batches[3].first_index)
    assert damage is not None and damage.first_index == batches[3].first_index
    return store, [batch for batch in batches[3:] if batch.last_index <= damage.last_index]


def at_once(work: Callable[[], object]) -> Future[object]:
    done: Future[object] = Future()
    done.set_result(work())
    return done


async def test_rule_10_what_one_member_has_lost_comes_from_another_one_whoever_is_asked_first() -> None:
    for _ in range(8):
        store, batches = damaged_batches()
        peers = {"a": Part(batches[0], *batches[2:]), "b": Part(batches[1])}
        assert await make_repairer(store, peers, at_once).repair_all()
        assert store.damages == ()


async def test_rule_10_a_member_with_other_entries_keeps_nobody_from_giving_the_right_ones() -> None:
    for _ in range(8):
        store, batches = damaged_batches()
        other = encode_batch(batches[1].tail, 99, [b"other"] * batches[2].count, data_file_size=SIZE)
        peers = {"a": Part(*batches), "b": Part(batches[0], batches[1], other)}
        assert await make_repairer(store, peers, at_once).repair_all()
        assert store.damages == ()


async def test_rule_10_all_of_a_damage_that_others_have_purged_is_given_up() -> None:
    store, batches = damaged_batches()
    purged: list[Damage] = []
    repairer = make_repairer(store, {"a": Purged()}, at_once, on_purged=purged.append)
    assert not await repairer.repair_all()
    assert {d[:2] for d in purged} == {(batches[0].first_index, batches[-1].last_index)}


class PurgesMeanwhile:
    """Another member, whose entries are purged while it is asked for them, as those of this log are."""

    def __init__(self, store: LogStore, base: Base) -> None:
        self.store = store
        self.base = base
        self.asked = 0

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        self.asked += 1
        self.store.purge_to(self.base)
        if first_index <= self.base.index:
            raise InvalidRequest("it is gone", code=Code.INDEX_LESS_THAN_LOCAL_BEGIN)
        batch = next(batch for batch in BATCHES if batch.first_index == first_index)
        return FetchedFrames(first_index, batch.last_index, bytes(batch.data))


@pytest.mark.parametrize("where", RANGES)
async def test_rule_10_a_repair_that_a_purge_overtakes_goes_on_with_what_is_left(where: str) -> None:
    """Without a pause, and without the belief that others have purged what is left."""
    disk, store, base = damaged(*RANGES[where])
    purged: list[Damage] = []
    peers = {name: PurgesMeanwhile(store, base) for name in ("a", "b")}
    repairer = make_repairer(store, peers, at_once, on_purged=purged.append)
    assert await repairer.repair_all()
    assert await repairer.repair_all()
    assert purged == [] and repairer.repaired == (where != "before the border")
    must_be_whole(disk, store, base)


async def test_a_mistake_costs_an_attempt_and_not_all_repairs() -> None:
    peer = Peer(has_it=True)
    peer.mistakes = 3
    async with repairing(peer, Disk()) as (store, repairer):
        await until(lambda: repairer.repaired == 1)
        assert store.damages == () and not peer.mistakes


async def test_a_mistake_costs_a_scrub_a_round_and_not_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryLogStore(Identity("c", "g", "n0", data_file_size=4096))
    store.append([BATCH])
    store.sync()
    scrub, rounds = store.scrub, 0

    def fail_at_first(from_index: int, max_bytes: int) -> ScrubStep:
        nonlocal rounds
        rounds += 1
        if rounds < 3:
            raise ZeroDivisionError("a mistake")
        return scrub(from_index, max_bytes)

    monkeypatch.setattr(store, "scrub", fail_at_first)
    with ThreadPoolExecutor(1) as readers:
        scrubber = Scrubber(
            store,
            readers,
            lambda _: None,
            image_damaged=lambda _: None,
            bytes_per_second=1 << 20,
            pause_s=0.0,
        )
        scrubber.start()
        await until(lambda: scrubber.scrubbed_index == 0)
        await scrubber.stop()


async def test_what_cannot_be_noted_on_a_full_disk_is_tried_again_after_a_pause() -> None:
    disk = Disk()
    disk.is_full = True
    async with repairing(Peer(has_it=True), disk) as (_, repairer):
        await until(lambda: disk.asked > 0)
        await read_often(repairer)
        assert disk.asked < 100
        disk.is_full = False
        await until(lambda: repairer.repaired == 1)


async def test_rule_9_a_disk_that_fails_while_damage_is_looked_at_ends_the_node() -> None:
    store, fatals = MemoryLogStore(Identity("c", "g", "n0", data_file_size=4096)), list[DLedgerError]()

    def fail(work: Callable[[], object]) -> Future[object]:
        done: Future[object] = Future()
        done.set_exception(StorageError("the fsync failed", code=Code.FSYNC_FAILED))
        return done

    repairer = make_repairer(store, {}, fail, fatals.append)
    repairer.suspect(0)
    repairer.start()
    await until(lambda: bool(fatals))
    await repairer.stop()
    assert fatals[0].code is Code.FSYNC_FAILED


async def test_a_store_that_has_failed_meanwhile_is_no_damage_that_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with repairing(Peer(has_it=False), Disk()) as (store, repairer):
        await until(lambda: bool(store.damages))
        await repairer.stop()

        def failed(damage: Damage) -> NoReturn:
            raise StorageError("the disk failed", code=Code.FSYNC_FAILED)

        monkeypatch.setattr(store, "begin_repair", failed)
        assert not await repairer.repair_all(), "to be tried again at once, it would keep the loop for ever"
