"""When a node applies committed entries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger.node.machine import applier
from dledger.node.machine.applier import Applier
from dledger.node.machine.state_feeder import StateFeeder
from dledger.node.machine.state_plan import ApplyStep, LoadResult, LoadStep
from dledger.replica.images import ImageRequest
from dledger.store.api import LogStore
from dledger.testing.memory_store import MemoryLogStore
from tests.node.local import until
from tests.store.helpers import IDENTITY, make_batches


class Feeder:
    """Notes the ranges that it applies."""

    is_durable = saves_aside = False

    def __init__(self) -> None:
        self.applied: list[tuple[int, int]] = []
        self.may_save = threading.Event()

    def apply(self, piece: ApplyStep, batches: object) -> int:
        self.applied.append((piece.first, piece.last))
        return piece.last

    def load(self, piece: LoadStep) -> LoadResult:
        return LoadResult(-1, -1, 0)

    def begin_save(self, request: ImageRequest, applied: int) -> bool:
        return applied == request.index - 1

    def save_on(self) -> bool:
        assert self.may_save.wait(30)
        return False

    def close(self) -> None: ...


class Node:
    def __init__(self) -> None:
        self.feeder = Feeder()
        store = SimpleNamespace(base=SimpleNamespace(index=-1))
        self.applier = Applier(cast(StateFeeder, self.feeder), cast(LogStore, store))
        self.readable = SimpleNamespace(index=-1)
        self.is_leader = False
        self.saved: list[tuple[int, bool]] = []
        self.applier.wire(
            cast(Any, self.readable),
            cached=lambda first, last, size: (),
            newest_image=lambda: -1,
            needs_image=lambda: False,
            is_leader=lambda: self.is_leader,
            saved=lambda index, is_stored: self.saved.append((index, is_stored)),
            image_damaged=lambda mark: None,
            on_damage=lambda index: None,
            on_fatal=lambda error: None,
        )
        self.applier.start()

    def commit(self, index: int) -> None:
        self.readable.index = index
        self.applier.committed()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    yield node
    await node.applier.stop()


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier, "FOLLOWER_PAUSE_S", 600.0)


async def test_a_follower_applies_entries_that_are_committed_shortly_after_each_other_together(
    node: Node,
) -> None:
    node.commit(0)
    await until(lambda: node.applier.applied_index == 0)
    for index in range(1, 4):
        node.commit(index)
        await asyncio.sleep(0)
    await until(lambda: node.applier.applied_index == 3)
    assert node.feeder.applied == [(0, 0), (1, 3)]


@pytest.mark.usefixtures("long_pause")
async def test_a_leader_applies_each_entry_at_once(node: Node) -> None:
    node.is_leader = True
    for index in range(3):
        node.commit(index)
        await until(lambda index=index: node.applier.applied_index == index)


@pytest.mark.usefixtures("long_pause")
async def test_a_read_does_not_wait_for_the_pause_of_a_follower(node: Node) -> None:
    node.commit(0)
    await node.applier.wait(0, 60_000)
    waiting = asyncio.create_task(node.applier.wait(2, 60_000))
    await asyncio.sleep(0)
    node.commit(1)
    await until(lambda: node.applier.applied_index == 1)
    node.commit(2)
    await waiting


async def test_a_read_of_an_entry_within_a_piece_is_served_when_the_piece_is_applied(node: Node) -> None:
    node.is_leader = True
    waits = [asyncio.create_task(node.applier.wait(index, 60_000)) for index in range(3)]
    await asyncio.sleep(0)
    node.commit(2)
    await asyncio.gather(*waits)
    assert node.feeder.applied == [(0, 2)]


async def test_a_read_of_the_next_entry_waits_for_it(node: Node) -> None:
    node.commit(0)
    await until(lambda: node.applier.applied_index == 0)
    waiting = asyncio.create_task(node.applier.wait(1, 60_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    node.commit(1)
    await waiting
    assert node.applier.applied_index == 1


async def test_a_read_is_not_served_before_its_entry_is_applied_although_it_is_committed(node: Node) -> None:
    may_go = threading.Event()

    def one(piece: ApplyStep, batches: object) -> int:
        if piece.first > 0:
            may_go.wait()
        return piece.first

    node.feeder.apply = one  # type: ignore[method-assign]
    early, late = (asyncio.create_task(node.applier.wait(index, 60_000)) for index in (0, 1))
    await asyncio.sleep(0)
    try:
        node.commit(1)
        await early
        await asyncio.sleep(0)
        assert not late.done()
    finally:
        may_go.set()
    await late
    assert node.applier.applied_index == 1


@pytest.mark.parametrize("is_leader", [False, True])
async def test_entries_that_are_committed_while_a_piece_is_applied_are_applied_next(
    node: Node, is_leader: bool
) -> None:
    node.is_leader = is_leader
    started, may_go, apply = threading.Event(), threading.Event(), node.feeder.apply

    def slow(piece: ApplyStep, batches: object) -> int:
        started.set()
        may_go.wait()
        return apply(piece, batches)

    node.feeder.apply = slow  # type: ignore[method-assign]
    try:
        node.commit(0)
        await until(started.is_set)
        node.commit(1)
    finally:
        may_go.set()
    await until(lambda: node.applier.applied_index == 1)
    assert node.feeder.applied == [(0, 0), (1, 1)]


async def test_the_rest_of_a_piece_is_applied_without_another_commit(node: Node) -> None:
    def one(piece: ApplyStep, batches: object) -> int:
        node.feeder.applied.append((piece.first, piece.first))
        return piece.first

    node.feeder.apply = one  # type: ignore[method-assign]
    node.commit(3)
    await until(lambda: node.applier.applied_index == 3)
    assert node.feeder.applied == [(index, index) for index in range(4)]


async def test_a_follower_applies_entries_after_each_of_its_pauses(node: Node) -> None:
    for index in range(3):
        node.commit(index)
        await until(lambda index=index: node.applier.applied_index == index)
    await until(lambda: node.applier._timer is None)
    node.commit(3)
    await until(lambda: node.applier.applied_index == 3)


async def test_an_image_that_is_requested_while_an_earlier_one_is_written_is_reported_too(node: Node) -> None:
    """A leader that loses its office and leads again requests one although a large state is being saved."""
    node.is_leader = True
    node.applier.save(ImageRequest(3, 1, b""))
    node.commit(5)
    await until(lambda: node.applier.applied_index == 2 and node.applier._saving == 3)
    node.applier.save(ImageRequest(9, 2, b""))
    node.commit(12)
    node.feeder.may_save.set()
    await until(lambda: node.applier.applied_index == 12)
    assert node.saved == [(3, True), (9, True)]


async def test_sessions_that_are_requested_while_earlier_ones_are_written_are_saved_after_them() -> None:
    saved: list[tuple[int, bool]] = []
    store = MemoryLogStore(IDENTITY)
    store.append(make_batches(20))
    keeper = Applier(None, store)
    readable = SimpleNamespace(index=store.end_index)
    keeper.wire(
        cast(Any, readable),
        cached=lambda first, last, size: (),
        newest_image=lambda: -1,
        needs_image=lambda: False,
        is_leader=lambda: True,
        saved=lambda index, is_stored: saved.append((index, is_stored)),
        image_damaged=lambda mark: None,
        on_damage=lambda index: None,
        on_fatal=lambda error: None,
    )
    try:
        for index in (5, 9):
            keeper.save(ImageRequest(index, store.entry(index).term, b"sessions"))
        await until(lambda: len(saved) == 2)
    finally:
        await keeper.stop()
    assert saved == [(5, True), (9, True)]
    assert store.images.newest is not None and store.images.newest.mark.index == 9
