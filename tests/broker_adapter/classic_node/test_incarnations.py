"""Queues of a classic log that RocketMQ deleted and recreated: they restart at offset 0."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.log.classic.commit_log_files import CommitLogOptions
from broker_adapter.log.classic.node import feed
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.server.program import BrokerProgram
from broker_adapter.store.checkpoint import FILE_NAME as CHECKPOINT
from broker_adapter.store.dispatcher import Arrivals
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, decode, encode
from dledger.infra.files.disk import OsDisk
from tests.broker_adapter.sending import send_to
from tests.node.local import until

from .classic_pair import FILE_SIZE, ClassicPair, classic_pair
from .test_classic_node import messages
from .test_role_changes import ASYNC

_HOST = Host(bytes((127, 0, 0, 1)), 10_911)
NEW = ["new 0", "new 1", "new 2"]


def append_foreign(
    root: Path,
    first: int,
    texts: list[str],
    topic: str = "t",
    queue_id: int = 0,
    *,
    properties: str = "KEYS\1key\2",
) -> None:
    """Append messages as another broker does that counts queue offsets from `first` on."""
    log = open_commit_log(root, OsDisk(), CommitLogOptions(FILE_SIZE))
    for queue_offset, text in enumerate(texts, first):
        now_ms = time.time_ns() // 1_000_000
        message = MessageRecord(topic, text.encode(), properties, 0, queue_offset=queue_offset)
        message = message._replace(
            queue_id=queue_id,
            born_timestamp=now_ms,
            store_timestamp=now_ms,
            born_host=_HOST,
            store_host=_HOST,
        )
        (place,) = log.place([len(encode(message))])
        log.append([encode(message._replace(physical_offset=place))])
    log.flush()
    log.close()


def rewrite(root: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / "config" / name
    table = json.loads(path.read_bytes())
    change(table)
    path.write_text(json.dumps(table))


def bodies(program: BrokerProgram, topic: str = "t", queue_id: int = 0) -> list[str]:
    least, end = program.files.bounds(topic, queue_id)
    units = program.files.units(topic, queue_id, least, end - least)
    return [decode(program.host.records.record_at(unit.physical_offset)).body.decode() for unit in units]


def committed(program: BrokerProgram, group: str = "g", topic: str = "t") -> int | None:
    found = program.metadata.group(group)
    return None if found is None else found.offsets.get((topic, 0))


async def master(pair: ClassicPair, node_id: str = "n1") -> BrokerProgram:
    await pair.start(node_id, **ASYNC)
    program = await pair.writable(node_id)
    await program.files.wait_applied()
    return program


async def left(pair: ClassicPair, *texts: str) -> None:
    """A topic with five messages, which a group has read; the broker is stopped then."""
    program = await master(pair)
    await program.broker.put_topic(TopicConfig("t", 1, 1))
    await program.broker.put_group(GroupConfig("g"))
    await send_to(program, "t", messages("a", "b", "c", "d", "e"), queue_id=0)
    await program.broker.commit_offsets("g", [QueueOffset("t", 0, 5)])
    await program.files.wait_applied()
    await pair.stop("n1")


async def test_a_queue_that_restarts_at_offset_0_serves_its_new_messages_only(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        append_foreign(tmp_path / "n1", 0, NEW)
        program = await master(pair)
        assert bodies(program) == NEW
        assert program.dispatcher.figures().set_aside.number == 0
        assert committed(program) is None, "the offset was that of a message of the deleted topic"
        found = list[bytes]()
        while len(found) < len(NEW):  # the IndexFile may lag
            found = await program.broker.query("t", "key", begin_ms=0, end_ms=1 << 60, max_messages=9)
        assert sorted(decode(one).body.decode() for one in found) == NEW
        await send_to(program, "t", messages("ours"), queue_id=0)
        await program.broker.commit_offsets("g", [QueueOffset("t", 0, 2)])
        await program.files.wait_applied()
        assert bodies(program) == [*NEW, "ours"]


@pytest.mark.parametrize(("is_killed", "expected"), [(False, 5), (True, None)])
async def test_an_offset_in_a_recreated_topic_may_equal_that_in_the_deleted_one(
    tmp_path: Path, is_killed: bool, expected: int | None
) -> None:
    """RocketMQ drops the offsets with the topic, and writes the table when it stops. After a kill the table
    may have those of the deleted topic still."""
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        append_foreign(tmp_path / "n1", 0, [*NEW, "new 3", "new 4", "new 5", "new 6"])
        table = json.loads((tmp_path / "n1/config/consumerOffset.json").read_bytes())
        assert table["offsetTable"]["t@g"] == {"0": 5}
        if is_killed:
            (tmp_path / "n1/abort").touch()
        assert committed(await master(pair)) == expected
        await pair.start("n2")
        await pair.in_step()
        await until(lambda: committed(pair.programs["n2"]) == expected)
        await pair.stop()
        assert committed(await master(pair)) == expected


@pytest.mark.parametrize("loss", ["nothing", "checkpoint", "queues"])
async def test_a_restart_keeps_the_new_messages_and_offsets_whatever_was_lost(
    tmp_path: Path, loss: str
) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        append_foreign(tmp_path / "n1", 0, NEW)
        program = await master(pair)
        await program.broker.commit_offsets("g", [QueueOffset("t", 0, 2)])
        await pair.stop("n1")
        for _ in range(2):
            if loss == "checkpoint":
                (tmp_path / "n1" / CHECKPOINT).unlink()
            elif loss == "queues":
                for path in (tmp_path / "n1/consumequeue/t/0").iterdir():
                    path.unlink()
            program = await master(pair)
            assert bodies(program) == NEW and committed(program) == 2
            await pair.stop("n1")


@pytest.mark.parametrize("piece_bytes", [1, 2_000])
async def test_a_rebuild_never_shows_messages_of_the_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Record by record, and in runs of messages without keys."""
    async with classic_pair(tmp_path) as pair:
        await (await master(pair)).broker.put_topic(TopicConfig("t", 1, 1))
        await pair.stop("n1")
        append_foreign(tmp_path / "n1", 0, [f"old {number}" for number in range(10, 90)], properties="")
        append_foreign(tmp_path / "n1", 0, NEW, properties="")
        await master(pair)
        await pair.stop("n1")
        (tmp_path / "n1" / CHECKPOINT).unlink()
        monkeypatch.setattr(feed, "_PIECE_BYTES", piece_bytes)
        seen: set[str] = set()
        program = pair.program("n1", **ASYNC)
        node = program.make_node()

        def look(_: Arrivals) -> None:
            queue = program.dispatcher.queues.get("t", 0)
            units = [] if queue is None else queue.read(queue.min_offset, 9)
            records = [program.host.records.record_at(unit.physical_offset) for unit in units]
            seen.update(decode(record).body.decode() for record in records)

        monkeypatch.setattr(program.dispatcher, "_on_arrival", look)
        await node.start()
        await program.start()
        pair.programs["n1"] = program
        await pair.writable("n1")
        await program.files.wait_applied()
        assert bodies(program) == NEW and seen == set(NEW)


async def test_messages_of_both_topics_in_one_batch_leave_those_of_the_new_one(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        append_foreign(tmp_path / "n1", 5, ["f", "g"])
        append_foreign(tmp_path / "n1", 0, NEW)
        program = await master(pair)
        assert bodies(program) == NEW and program.files.bounds("t", 0) == (0, len(NEW))


@pytest.mark.parametrize("offset", [1, 4])
async def test_any_other_lower_offset_is_damage(tmp_path: Path, offset: int) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        append_foreign(tmp_path / "n1", offset, ["damaged"])
        program = await master(pair)
        assert bodies(program) == ["a", "b", "c", "d", "e"] and committed(program) == 5
        assert program.dispatcher.figures().set_aside.number == 1


async def test_what_another_broker_changed_reaches_our_slave_by_the_log(tmp_path: Path) -> None:
    """It has the whole log of its master, and copies no tables."""
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        new = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
        rewrite(root, "topics.json", lambda table: table["topicConfigTable"].update(new=new))
        rewrite(root, "consumerOffset.json", lambda table: table["offsetTable"].update({"t@g": {"0": 2}}))
        await pair.start("n1", "n2")
        await pair.writable("n1")
        await pair.in_step()
        slave = pair.programs["n2"]
        await until(lambda: "new" in slave.metadata.topics)
        await until(lambda: committed(slave) == 2)
        assert committed(pair.programs["n1"]) == 2


async def test_a_rebuild_brings_back_nothing_that_another_broker_deleted(tmp_path: Path) -> None:
    """The log has the command that created it."""
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        rewrite(root, "topics.json", lambda table: table["topicConfigTable"].pop("t"))
        rewrite(root, "subscriptionGroup.json", lambda table: table["subscriptionGroupTable"].pop("g"))
        program = await master(pair)
        assert "t" not in program.metadata.topics and program.metadata.group("g") is None
        assert program.files.bounds("t", 0) == (5, 5)
        await pair.stop("n1")
        (root / CHECKPOINT).unlink()
        program = await master(pair)
        assert "t" not in program.metadata.topics and program.metadata.group("g") is None
        assert program.files.bounds("t", 0) == (5, 5), "nobody can read its messages"


async def two_queues_left(pair: ClassicPair, *counts: int) -> None:
    """A topic with so many messages in each of its queues; the broker is stopped then."""
    program = await master(pair)
    await program.broker.put_topic(TopicConfig("t", 2, 2))
    await program.broker.put_group(GroupConfig("g"))
    for queue_id, count in enumerate(counts):
        for at in range(count):
            await send_to(program, "t", messages(f"old {queue_id}.{at}"), queue_id=queue_id)
    await program.files.wait_applied()
    await pair.stop("n1")


def both(program: BrokerProgram) -> list[list[str]]:
    return [bodies(program, queue_id=queue_id) for queue_id in (0, 1)]


@pytest.mark.parametrize("counts", [(3, 3), (3, 1), (1, 3)])
async def test_a_queue_without_new_messages_serves_none_of_the_deleted_topic(
    tmp_path: Path, counts: tuple[int, int]
) -> None:
    async with classic_pair(tmp_path) as pair:
        await two_queues_left(pair, *counts)
        # The last queue to get a message decides what is known of the deletion.
        append_foreign(tmp_path / "n1", 0, ["new"], queue_id=1)
        program = await master(pair)
        assert both(program) == [[], ["new"]]
        await pair.start("n2")
        await pair.in_step()
        assert both(pair.programs["n2"]) == [[], ["new"]]
        await pair.stop()
        (tmp_path / "n1" / CHECKPOINT).unlink()
        for _ in range(2):  # the second time from the checkpoint and the base that the first one leaves
            program = await master(pair)
            assert both(program) == [[], ["new"]]
            await pair.stop("n1")
        append_foreign(tmp_path / "n1", 0, ["later"])
        (tmp_path / "n1" / CHECKPOINT).unlink()
        assert both(await master(pair)) == [["later"], ["new"]]


async def test_a_queue_keeps_messages_that_may_be_those_of_the_recreated_topic(tmp_path: Path) -> None:
    """It had none before, so that offset 0 is no sign in it."""
    async with classic_pair(tmp_path) as pair:
        await two_queues_left(pair, 3, 0)
        append_foreign(tmp_path / "n1", 0, ["new 1"], queue_id=1)
        append_foreign(tmp_path / "n1", 0, ["new 0"])
        assert both(await master(pair)) == [["new 0"], ["new 1"]]


async def test_all_queues_of_a_topic_that_was_recreated_twice_serve_the_last_messages(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        await two_queues_left(pair, 2, 2)
        for queue_id in (1, 0, 0, 1):
            append_foreign(tmp_path / "n1", 0, ["second"], queue_id=queue_id)
            if queue_id == 1:
                append_foreign(tmp_path / "n1", 1, ["more"], queue_id=1)
        assert both(await master(pair)) == [["second"], ["second", "more"]]


async def test_a_queue_that_retention_emptied_restarts_alone(tmp_path: Path) -> None:
    """Its master may have begun without its messages: nothing shows that the topic was deleted."""
    async with classic_pair(tmp_path) as pair:
        await two_queues_left(pair, 2, 2)
        program = await master(pair)
        (unit,) = program.files.units("t", 1, 0, 1)
        program.dispatcher.purge_below(unit.physical_offset)
        assert program.files.bounds("t", 0) == (2, 2)
        await pair.stop("n1")
        append_foreign(tmp_path / "n1", 0, ["new"])
        assert both(await master(pair)) == [["new"], ["old 1.0", "old 1.1"]]
