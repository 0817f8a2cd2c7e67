"""What another broker has written into the tables stays known, whenever this one ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import Status, error_for
from broker_adapter.metadata.commands import (
    NO_GENERATION,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    PutGroup,
    PutTopic,
    ResetOffsets,
    SetMergedTables,
)
from broker_adapter.metadata.state import MetadataState
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.server import classic_tables
from broker_adapter.server.classic_tables import AdoptedChanges, TableAdoption, TableWriter, tables_of
from broker_adapter.server.log_host import BrokerParts
from broker_adapter.server.program import BrokerProgram
from broker_adapter.store.consume_queues import Incarnation
from dledger import AppendOutcome
from dledger.infra.files.disk import Buffer, OsDisk
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.classic_node.test_classic_node import messages
from tests.broker_adapter.classic_node.test_role_changes import ASYNC
from tests.broker_adapter.sending import send_to
from tests.node.local import until


async def another_broker_was_here(pair: ClassicPair, deleted: str = "") -> None:
    """It has made a topic, deleted one, and a group has come further; the log is as it was."""
    await pair.start("n1", **ASYNC)
    master = await pair.writable("n1")
    await master.broker.put_topic(TopicConfig("t", 1, 1))
    if deleted:
        await master.broker.put_topic(TopicConfig(deleted, 1, 1))
    await master.broker.put_group(GroupConfig("g"))
    await send_to(master, "t", messages("a", "b"), queue_id=0)
    await master.files.wait_applied()
    await pair.stop("n1")
    config = pair.folder / "n1/config"
    topics = json.loads((config / "topics.json").read_bytes())
    topics["topicConfigTable"].pop(deleted, None)
    topics["topicConfigTable"]["new"] = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    (config / "topics.json").write_text(json.dumps(topics))
    offsets = json.loads((config / "consumerOffset.json").read_bytes())
    offsets["offsetTable"]["t@g"] = {"0": 2}
    (config / "consumerOffset.json").write_text(json.dumps(offsets))


async def started(pair: ClassicPair) -> BrokerProgram:
    await pair.start("n1", **ASYNC)
    master = await pair.writable("n1")
    assert "new" in master.metadata.topics
    assert await master.broker.offset("g", "t", 0) == 2
    return master


async def test_what_was_taken_over_outlives_this_broker_though_the_log_has_nothing_of_it(
    tmp_path: Path,
) -> None:
    async with classic_pair(tmp_path) as pair:
        await another_broker_was_here(pair)
        for _ in range(3):
            await started(pair)
            await pair.stop("n1")


async def test_what_was_taken_over_gets_into_a_checkpoint_without_messages(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        await another_broker_was_here(pair)
        master = await started(pair)
        await until(lambda: master.dispatcher.durable_adopted_count == master.dispatcher.adopted_count)


async def test_tables_are_not_written_before_a_checkpoint_has_what_was_taken_over(tmp_path: Path) -> None:
    """A process may end before: its next start finds the older checkpoint, and merges once more."""
    metadata = MetadataState()
    metadata.adopt(PutTopic(TopicConfig("new", 1, 1)))
    for is_durable in (False, True):
        parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
        adopted = AdoptedChanges(
            lambda: True, number_of(1), lambda is_durable=is_durable: int(is_durable), number_of(0)
        )
        writer = TableWriter(tmp_path, cast(BrokerParts, parts), applied, adopted)
        writer.start()
        await writer.stop()
        assert (tmp_path / "topics.json").exists() is is_durable


@pytest.mark.slow
async def test_tables_are_written_though_there_are_always_changes_that_no_checkpoint_has(
    tmp_path: Path,
) -> None:
    """A slave copies the offsets of a busy master again and again."""
    async with classic_pair(tmp_path, "n1", **ASYNC) as pair:
        master, node = await pair.writable("n1"), pair.node("n1")
        await master.broker.put_topic(TopicConfig("t", 1, 1))
        await master.broker.put_group(GroupConfig("g"))
        path, offset = tmp_path / "n1/config/consumerOffset.json", 0

        def copy() -> None:
            commit = CommitOffsets("g", NO_GENERATION, (QueueOffset("t", 0, offset),))
            master.metadata.adopt(commit)
            master.dispatcher.adopted()

        def written() -> int:
            table = json.loads(path.read_bytes())["offsetTable"] if path.exists() else {}
            return int(table.get("t@g", {}).get("0", 0))

        async with asyncio.timeout(30):
            while not written():
                offset += 1
                await node.feed.run(copy)


async def test_a_merge_is_logged_and_its_base_written_though_the_log_first_refuses_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended in between, the next start appends what RocketMQ changed again: slaves go by the log."""
    async with classic_pair(tmp_path) as pair:
        await another_broker_was_here(pair, deleted="gone")
        base = tmp_path / "n1/config/tables_base.json"
        calls, append = list[bytes](), MessageWriter.append_command

        def written() -> object:
            return json.loads(base.read_bytes())["written"]

        before = written()

        def refuse_second(writer: MessageWriter, topic: str, command: bytes) -> asyncio.Future[AppendOutcome]:
            calls.append(command)
            if len(calls) != 2:
                return append(writer, topic, command)
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(error_for(Status.DISK_FULL, "there is no room"))
            return refused

        monkeypatch.setattr(MessageWriter, "append_command", refuse_second)
        await pair.start("n1", **ASYNC)
        await until(lambda: len(calls) == 2)
        await pair.stop("n1")
        assert written() == before, "nothing would be merged any more"
        await pair.start("n1", **ASYNC)
        master = await pair.writable("n1")
        assert "gone" not in master.metadata.topics and "new" in master.metadata.topics
        await until(lambda: written() != before)
        await pair.start("n2")
        await pair.in_step()
        slave = pair.programs["n2"]
        assert sorted(slave.metadata.topics) == ["new", "t"]
        group = slave.metadata.group("g")
        assert group is not None and dict(group.offsets) == {("t", 0): 2}
        calls.clear()
        await pair.stop("n1")
        await pair.start("n1", **ASYNC)
        await pair.writable("n1")
        assert not calls, "it was merged before"


async def applied() -> int:
    return 0


def number_of(value: int) -> Callable[[], Any]:
    async def give() -> int:
        return value

    return give


def write_now(writer: TableWriter) -> None:
    writer._put(writer._copy())


class _Ended(Exception):
    """The process has ended."""


class EndingDisk(OsDisk):
    """The process ends before this call that changes files, counted from 1 on."""

    def __init__(self, number: int) -> None:
        self.left = number

    def _count(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise _Ended

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._count()
        return super().pwritev(handle, buffers, offset)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._count()
        super().sync_directory(path)


def changed(metadata: MetadataState, life: int) -> None:
    metadata.adopt(PutTopic(TopicConfig(f"t{life}", 1, 1)))
    metadata.adopt(PutGroup(GroupConfig("g")))
    metadata.adopt(CommitOffsets("g", NO_GENERATION, (QueueOffset(f"t{life}", 0, life),)))
    if life:
        metadata.adopt(DeleteTopic(f"t{life - 1}"))
    else:
        for topic in ("kept", "all"):
            metadata.adopt(PutTopic(TopicConfig(topic, 1, 1)))
        metadata.adopt(CommitOffsets("g", NO_GENERATION, (QueueOffset("all", 0, 5),)))


def changed_tables(path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """As RocketMQ writes them, with the version before beside it."""
    table = json.loads((path / name).read_bytes())
    change(table)
    (path / f"{name}.bak").write_bytes((path / name).read_bytes())
    (path / name).write_text(json.dumps(table))


def start_again(folder: Path, ours: MetadataState) -> Sequence[Command]:
    adoption = TableAdoption(folder, ours, DeliveryState())
    adoption.begin(False)
    return adoption.finish(lambda *queue: 100)


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_merge_is_right_wherever_our_writer_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_foreign: bool
) -> None:
    """Killed before each call that changes a file, while base and tables are replaced. The state is what the
    log says; in between RocketMQ may have made a topic, deleted one and set an offset back."""
    number, is_done = 0, False
    while not is_done:
        number += 1
        folder, metadata = tmp_path / f"{number}", MetadataState()
        parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
        is_done = True
        for life in range(4):  # of which all but the first and the last end early
            changed(metadata, life)
            disk = EndingDisk(number if life in (1, 2) else 1 << 40)
            monkeypatch.setattr(classic_tables, "OsDisk", lambda disk=disk: disk)
            writer = TableWriter(folder, cast(BrokerParts, parts), applied)
            try:
                write_now(writer)
            except _Ended:
                is_done = False
            monkeypatch.setattr(classic_tables, "OsDisk", OsDisk)
            before = tables_of(metadata, DeliveryState())
            commands = start_again(folder, metadata)
            assert tables_of(metadata, DeliveryState()) == before, (number, life)
            if not is_foreign:
                assert commands == [], (number, life)
                continue

            def change_topics(table: dict[str, Any], life: int = life) -> None:
                table["topicConfigTable"].pop("kept", None)
                table["topicConfigTable"][f"new{life}"] = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}

            def set_back(table: dict[str, Any]) -> None:
                table["offsetTable"]["all@g"] = {"0": 1}

            changed_tables(folder, "topics.json", change_topics)
            changed_tables(folder, "consumerOffset.json", set_back)
            start_again(folder, metadata)
            assert "kept" not in metadata.topics and f"new{life}" in metadata.topics, (number, life)
            assert f"t{life}" in metadata.topics and f"t{life - 1}" not in metadata.topics, (number, life)
            group = metadata.group("g")
            assert group is not None and group.offsets["all", 0] == 1, (number, life)
    assert number > 15


def test_a_topic_stays_that_was_acknowledged_before_the_tables_had_it(tmp_path: Path) -> None:
    metadata = MetadataState()
    changed(metadata, 0)
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    write_now(TableWriter(tmp_path, cast(BrokerParts, parts), applied))
    metadata.adopt(PutTopic(TopicConfig("acknowledged", 1, 1)))
    metadata.adopt(CommitOffsets("g", NO_GENERATION, (QueueOffset("t0", 0, 9),)))
    changed_tables(tmp_path, "topics.json", lambda table: table["topicConfigTable"].pop("kept"))
    start_again(tmp_path, metadata)
    assert sorted(metadata.topics) == ["acknowledged", "all", "t0"]
    group = metadata.group("g")
    assert group is not None and group.offsets["t0", 0] == 9


def test_a_merge_that_a_checkpoint_has_and_no_log_is_logged_by_the_next_start(tmp_path: Path) -> None:
    metadata = MetadataState()
    changed(metadata, 0)
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    write_now(TableWriter(tmp_path, cast(BrokerParts, parts), applied))
    changed_tables(tmp_path, "topics.json", lambda table: table["topicConfigTable"].pop("kept"))
    changed_tables(
        tmp_path, "consumerOffset.json", lambda table: table["offsetTable"].update({"all@g": {"0": 1}})
    )
    commands = start_again(tmp_path, metadata)
    assert commands[:-1] == [DeleteTopic("kept"), ResetOffsets("g", (QueueOffset("all", 0, 1),), False)]
    assert isinstance(commands[-1], SetMergedTables)
    assert start_again(tmp_path, metadata) == commands
    metadata.adopt(commands[-1])
    assert start_again(tmp_path, metadata) == []


def test_entries_that_changed_since_a_merge_are_not_logged_as_it_left_them(tmp_path: Path) -> None:
    """The log may have refused them first, and had room for clients before it was tried again."""
    metadata = MetadataState()
    changed(metadata, 0)
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    write_now(TableWriter(tmp_path, cast(BrokerParts, parts), applied))
    changed_tables(tmp_path, "topics.json", lambda table: table["topicConfigTable"].pop("kept"))
    changed_tables(
        tmp_path, "consumerOffset.json", lambda table: table["offsetTable"].update({"all@g": {"0": 1}})
    )
    adoption = TableAdoption(tmp_path, metadata, DeliveryState())
    adoption.begin(False)
    done = adoption.finish(lambda *queue: 100)[-1]
    metadata.adopt(PutTopic(TopicConfig("kept", 1, 1)))
    metadata.adopt(CommitOffsets("g", NO_GENERATION, (QueueOffset("all", 0, 3),)))
    assert adoption.unlogged() == [done]


@pytest.mark.parametrize("keeps_offsets", [True, False])
def test_a_group_that_rocketmq_deleted_leaves_the_offsets_that_are_there_still(
    tmp_path: Path, keeps_offsets: bool
) -> None:
    metadata = MetadataState()
    changed(metadata, 0)
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    write_now(TableWriter(tmp_path, cast(BrokerParts, parts), applied))
    name = "subscriptionGroup.json"
    changed_tables(tmp_path, name, lambda table: table["subscriptionGroupTable"].pop("g"))
    if keeps_offsets:  # it has moved one before
        changed_tables(
            tmp_path, "consumerOffset.json", lambda one: one["offsetTable"]["all@g"].update({"0": 9})
        )
    else:
        changed_tables(tmp_path, "consumerOffset.json", lambda one: one["offsetTable"].clear())
    start_again(tmp_path, metadata)
    assert not metadata.groups()
    metadata.adopt(PutGroup(GroupConfig("g")))
    group = metadata.group("g")
    assert group is not None
    assert group.offsets == ({("all", 0): 9, ("t0", 0): 0} if keeps_offsets else {})


@pytest.mark.parametrize("is_new", [True, False])
def test_offsets_of_a_deleted_group_are_in_the_tables_and_come_back_with_them(
    tmp_path: Path, is_new: bool
) -> None:
    metadata = MetadataState()
    changed(metadata, 0)
    metadata.adopt(DeleteGroup("g", keeps_offsets=True))
    kept = dict(metadata.deleted_groups["g"])
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    write_now(TableWriter(tmp_path, cast(BrokerParts, parts), applied))
    found = json.loads((tmp_path / "consumerOffset.json").read_bytes())["offsetTable"]
    assert found["all@g"] == {"0": 5}
    if is_new:
        metadata = MetadataState()
    adoption = TableAdoption(tmp_path, metadata, DeliveryState())
    adoption.begin(is_new)
    adoption.restore()
    adoption.finish(lambda *queue: 100)
    assert not metadata.groups() and metadata.deleted_groups == {"g": kept}


def test_a_group_that_was_deleted_here_and_used_by_rocketmq_comes_back_as_it_was(tmp_path: Path) -> None:
    """The process ended before the tables were without it, and before the deletion was answered."""
    metadata = MetadataState()
    changed(metadata, 0)
    metadata.adopt(PutGroup(GroupConfig("g", retry_max_times=3)))
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    write_now(TableWriter(tmp_path, cast(BrokerParts, parts), applied))
    metadata.adopt(DeleteGroup("g"))
    changed_tables(
        tmp_path, "consumerOffset.json", lambda table: table["offsetTable"].update({"all@g": {"0": 7}})
    )
    commands = start_again(tmp_path, metadata)
    group = metadata.group("g")
    assert group is not None and group.offsets["all", 0] == 7
    assert PutGroup(group.config) in commands, "slaves go by the log"
    assert group.config.retry_max_times == 3


def test_tables_of_release_0_1_0_are_a_base(tmp_path: Path) -> None:
    """It left digests of them, and no base."""
    metadata = MetadataState()
    changed(metadata, 0)
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    write_now(TableWriter(tmp_path, cast(BrokerParts, parts), applied))
    (tmp_path / "tables_base.json").unlink()
    names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
    digests = {name: blake2b((tmp_path / name).read_bytes(), digest_size=16).hexdigest() for name in names}
    (tmp_path / "tables_written.json").write_text(json.dumps(digests))
    metadata.adopt(DeleteTopic("kept"))
    assert start_again(tmp_path, metadata) == []
    assert "kept" not in metadata.topics


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2}', "{" * 9_000])
def test_a_base_that_cannot_be_read_deletes_nothing(tmp_path: Path, content: str) -> None:
    metadata = MetadataState()
    changed(metadata, 0)
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    write_now(TableWriter(tmp_path, cast(BrokerParts, parts), applied))
    (tmp_path / "tables_base.json").write_text(content)
    metadata.adopt(PutTopic(TopicConfig("acknowledged", 1, 1)))
    start_again(tmp_path, metadata)
    assert sorted(metadata.topics) == ["acknowledged", "all", "kept", "t0"]


def test_an_offset_beyond_a_queue_that_started_again_is_that_of_the_deleted_topic(tmp_path: Path) -> None:
    """Limited to the end of the queue, it would skip the messages that the new topic already has."""
    for incarnations, expected in (((), 3), ((Incarnation("all", 0, 4711),), None)):
        folder, metadata = tmp_path / f"{len(incarnations)}", MetadataState()
        changed(metadata, 0)
        parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
        write_now(TableWriter(folder, cast(BrokerParts, parts), applied))
        changed_tables(
            folder, "consumerOffset.json", lambda table: table["offsetTable"].update({"all@g": {"0": 9}})
        )
        metadata.drop_queue("all", 0)  # as the log says
        adoption = TableAdoption(folder, metadata, DeliveryState())
        adoption.begin(False)
        adoption.finish(lambda *queue: 3, incarnations)
        group = metadata.group("g")
        assert group is not None and group.offsets.get(("all", 0)) == expected
