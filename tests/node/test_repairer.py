"""Repairs go on while those who read what is damaged ask again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from dledger.core.values import EMPTY_TAIL
from dledger.errors import Code, DLedgerError, StorageError
from dledger.node.repairer import Repairer, Scrubber, Source
from dledger.rpc.peer_transport import PeerUnreachable
from dledger.rpc.ports import FetchedFrames
from dledger.store.api import Damage, ScrubStep
from dledger.store.batch import encode_batch
from dledger.store.identity import Identity
from dledger.store.memory_store import MemoryLogStore
from tests.node.local import until

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
    store: MemoryLogStore,
    peers: Mapping[str, Source],
    call: Callable[[Callable[[], object]], Future[object]],
    on_fatal: Callable[[DLedgerError], None] = lambda _: None,
) -> Repairer:
    return Repairer(
        store,
        peers,
        call,
        on_fatal=on_fatal,
        on_purged=lambda _: None,
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
        scrubber = Scrubber(store, readers, lambda _: None, bytes_per_second=1 << 20, pause_s=0.0)
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
