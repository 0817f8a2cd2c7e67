"""Repairs go on while those who read what is damaged ask again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager

from dledger.core.values import EMPTY_TAIL
from dledger.node.repairer import Repairer
from dledger.rpc.peer_client import PeerUnreachable
from dledger.rpc.ports import FetchedFrames
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

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        self.asked += 1
        if not self.has_it:
            raise PeerUnreachable("it is down")
        return FetchedFrames(0, 0, bytes(BATCH.data))


@asynccontextmanager
async def repairing(peer: Peer) -> AsyncIterator[tuple[MemoryLogStore, Repairer]]:
    """A log whose only entry is damaged. Whenever its disk is asked for something, a read has just failed."""
    store = MemoryLogStore(Identity("c", "g", "n0", data_file_size=4096))
    store.append([BATCH])
    store.sync()
    store.corrupt(0)

    def call(work: Callable[[], object]) -> Future[object]:
        done: Future[object] = Future()
        done.set_result(work())
        repairer.suspect(0)
        return done

    repairer = Repairer(store, {"peer": peer}, call, on_fatal=lambda _: None, bytes_per_second=0)
    repairer.start()
    repairer.suspect(0)
    try:
        yield store, repairer
    finally:
        await repairer.stop()


async def test_damage_that_is_read_all_the_time_is_repaired() -> None:
    async with repairing(Peer(has_it=True)) as (store, repairer):
        await until(lambda: repairer.repaired == 1)
        assert store.damages == ()


async def test_members_that_cannot_help_are_asked_seldom_however_often_the_damage_is_read() -> None:
    peer = Peer(has_it=False)
    async with repairing(peer) as (store, repairer):
        await until(lambda: peer.asked > 0)
        for _ in range(1000):
            repairer.suspect(0)
            await asyncio.sleep(0)
        assert peer.asked < 100
        assert store.damages
        peer.has_it = True
        await until(lambda: not store.damages)
