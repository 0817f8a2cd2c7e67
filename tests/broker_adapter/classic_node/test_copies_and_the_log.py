"""A slave copies the tables of its master while commands in the log change the same entries: the log is newer
than tables that were requested before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.metadata.commands import (
    Command,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    ExpireGroup,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.metadata.records import encode
from broker_adapter.migration.master import Master
from tests.broker_adapter.sending import send_to

from .classic_pair import classic_pair
from .test_classic_node import messages
from .test_slave_sync import World, offsets


def log(world: World, *commands: Command) -> None:
    for command in commands:
        world.metadata.apply(world.metadata.applied_index + 1, encode(command))


def group_offsets(world: World) -> Mapping[tuple[str, int], int]:
    return world.offsets_here("g")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """The master has answered with topics, groups and offsets that the slave lacks."""
    world = World(monkeypatch)
    world.replication.by_handshake = True
    world.topics = {"t": TopicConfig("t", 4, 4), "new": TopicConfig("new", 1, 1)}
    world.groups = {"g": GroupConfig("g"), "h": GroupConfig("h")}
    world.offsets = {"g": [*offsets("t", 5), *offsets("new", 5)], "h": offsets("t", 5)}
    return world


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_topic_that_the_log_deletes_does_not_come_back(world: World, is_known: bool) -> None:
    if is_known:
        await world.copied()
    world.on_told = lambda: log(world, DeleteTopic("new"))
    await world.copied()
    assert set(world.metadata.topics) == {"t"} and group_offsets(world) == {("t", 0): 5}


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_group_that_the_log_deletes_does_not_come_back(world: World, is_known: bool) -> None:
    if is_known:
        await world.copied()
    world.on_told = lambda: log(world, DeleteGroup("h"))
    await world.copied()
    assert world.metadata.group("h") is None


async def test_a_group_that_expires_in_the_log_does_not_come_back(world: World) -> None:
    world.on_told = lambda: log(world, ExpireGroup("h", 0, 0))
    await world.copied()
    assert world.metadata.group("h") is None


async def test_configurations_in_the_log_are_kept(world: World) -> None:
    topic, group = TopicConfig("t", 8, 8), GroupConfig("g", retry_max_times=3)
    world.on_told = lambda: log(world, PutTopic(topic), PutGroup(group))
    await world.copied()
    found = world.metadata.group("g")
    assert world.metadata.topics["t"] == topic and found is not None and found.config == group
    assert "new" in world.metadata.topics, "other entries are copied"


async def test_offsets_that_the_log_sets_back_or_drops_are_not_moved_forward(world: World) -> None:
    world.offsets = {"g": offsets("t", 5, 5, 5)}
    world.on_told = lambda: log(
        world, ResetOffsets("g", (QueueOffset("t", 0, 2),)), DropOffsets("g", (("t", 1),))
    )
    await world.copied()
    assert group_offsets(world) == {("t", 0): 2, ("t", 2): 5}


async def test_tables_that_are_requested_later_are_copied_again(world: World) -> None:
    world.on_told = lambda: log(world, DeleteTopic("new"))
    await world.copied()
    world.on_told = lambda: None
    await world.copied()
    assert "new" in world.metadata.topics, "its master has created it again"


async def test_a_topic_that_the_log_deletes_is_not_made_up_from_its_messages(world: World) -> None:
    world.sync.arrived([("gone", 0, 1), ("lost", 0, 1)])
    log(world, DeleteTopic("gone"))
    await world.sync._create_unknown_topics()
    assert set(world.metadata.topics) == {"t", "lost"}


async def test_what_a_master_deletes_while_its_slave_copies_is_gone_after_a_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with classic_pair(tmp_path, "n1", "n2") as pair:
        program, slave = await pair.writable("n1"), pair.programs["n2"]
        for topic in ("t", "gone"):
            await program.broker.put_topic(TopicConfig(topic, 1, 1))
        await send_to(program, "t", messages("a", "b", "c"), queue_id=0)
        await program.files.wait_applied()
        for group in ("g", "gone-group"):
            await program.broker.put_group(GroupConfig(group))
            await program.broker.commit_offsets(group, [QueueOffset("t", 0, 3)])
        await pair.in_step()
        told, may_go_on, delays = asyncio.Event(), asyncio.Event(), Master.delays

        async def slow(of: Master) -> dict[int, int]:
            found = await delays(of)
            told.set()
            await may_go_on.wait()
            return found

        monkeypatch.setattr(Master, "delays", slow)
        sync = slave.host._slave_sync  # type: ignore[attr-defined]
        copying = asyncio.create_task(sync._sync(pair.remoting["n1"]))
        await told.wait()
        await program.broker.delete_topic("gone")
        await program.broker.delete_group("gone-group")
        await pair.in_step()
        await slave.files.wait_applied()
        may_go_on.set()
        await copying
        await sync._sync(pair.remoting["n1"])
        await pair.stop("n1")
        await pair.node("n2").change_role(True, force=True)
        program = await pair.writable("n2")
        assert "gone" not in program.metadata.topics and program.metadata.group("gone-group") is None
