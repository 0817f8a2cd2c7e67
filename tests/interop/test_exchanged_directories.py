"""RocketMQ deletes and recreates topics on our directory, and as the master of our slave: nothing that it
acknowledged is hidden, and nothing that it deleted comes back."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from broker_adapter.client import Admin, Message, MessageQueue, Producer, PullConsumer, PullStatus
from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.append_heads import decode_head
from tests.process.cluster import free_ports

from . import genuine
from .genuine import eventually
from .test_classic_brokers import OURS, ha_of, our_master

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]
GROUP, OTHER = "readers", "leavers"


async def until_up(names: str, topic: str) -> None:
    async def is_up() -> bool:
        with suppress(BrokerError):
            async with Admin(names) as admin:
                return bool(await admin.topic_stats(topic))
        return False

    await eventually(is_up)


async def send(names: str, topic: str, texts: list[str]) -> None:
    async with Producer("makers", names) as producer, PullConsumer("makers", names) as consumer:
        await queue_of(consumer, topic)
        for text in texts:
            await producer.send(Message(topic, text.encode(), keys=["key"]))


async def texts_of(names: str, topic: str) -> list[str]:
    found: list[str] = []
    async with PullConsumer("auditors", names) as consumer:
        for queue in [await queue_of(consumer, topic)]:
            offset = await consumer.min_offset(queue)
            while (pulled := await consumer.pull(queue, offset)).status is PullStatus.FOUND:
                found += [one.body.decode() for one in pulled.messages]
                offset = pulled.next_offset
    return found


async def queue_of(consumer: PullConsumer, topic: str) -> MessageQueue:
    """The only one; a NameServer may not have it yet."""
    found: list[MessageQueue] = []

    async def is_known() -> bool:
        with suppress(BrokerError):
            found[:] = await consumer.queues(topic)
        return bool(found)

    await eventually(is_known)
    (queue,) = found
    return queue


async def commit(names: str, topic: str, group: str, offset: int) -> None:
    async with PullConsumer(group, names) as consumer:
        await consumer.commit(await queue_of(consumer, topic), offset)


async def committed(names: str, topic: str, group: str) -> int | None:
    async with PullConsumer(group, names) as consumer, Admin(names) as admin:
        queue = await queue_of(consumer, topic)
        return await admin.committed(group, queue)


async def prepared(names: str) -> None:
    """Topics and groups that RocketMQ will change, at the broker that is there."""
    async with Admin(names) as admin:
        for topic in ("again", "gone", "kept"):
            await admin.create_topic(topic, queues=1)
            await until_up(names, topic)
        for group in (GROUP, OTHER):
            await admin.create_group(group)
    await send(names, "again", ["old"] * 5)
    await send(names, "gone", ["gone"])
    await send(names, "kept", [f"kept {number}" for number in range(6)])
    for topic, group, offset in (("again", GROUP, 5), ("kept", GROUP, 5), ("kept", OTHER, 2)):
        await commit(names, topic, group, offset)


async def changed_by_rocketmq(names: str) -> None:
    async with Admin(names) as admin:
        await admin.delete_topic("again")
        await admin.delete_topic("gone")
        await admin.delete_group(OTHER)
        await admin.create_topic("again", queues=1)
        await until_up(names, "again")
        async with PullConsumer(GROUP, names) as consumer:
            queue = await queue_of(consumer, "kept")
            await admin.reset_offset(GROUP, queue, 2)
    await send(names, "again", ["new 0", "new 1", "new 2"])


async def check(names: str) -> None:
    assert await texts_of(names, "again") == ["new 0", "new 1", "new 2"]
    assert await texts_of(names, "kept") == [f"kept {number}" for number in range(6)]
    async with Admin(names) as admin:
        topics = {one.name for one in await admin.topics()}
        groups = {one.name for one in await admin.groups()}
        found = [one.body for one in await admin.query("again", "key")]
    assert "gone" not in topics and "again" in topics
    assert OTHER not in groups and GROUP in groups
    assert b"old" not in found and len(found) == 3
    assert await committed(names, "kept", GROUP) == 2
    assert not await committed(names, "again", GROUP), "an offset of the deleted topic would hide messages"


async def offset_in(store: Path, topic: str, group: str) -> int:
    """-1: none, or the table has not been written yet."""
    try:
        table = json.loads((store / "config/consumerOffset.json").read_text())["offsetTable"]
    except FileNotFoundError:
        return -1
    return int(table.get(f"{topic}@{group}", {}).get("0", -1))


async def test_what_rocketmq_deleted_and_recreated_in_our_directory_is_as_it_left_it(tmp_path: Path) -> None:
    genuine.require()
    port = free_ports(1)[0]
    with our_master(tmp_path / "ours") as (running, names):
        store = running.store_directory("n1")
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        await prepared(names)
        running.stop_node("n1")
        with genuine.broker(tmp_path / "java", names, port, **{**OURS, **paths}):
            await until_up(names, "kept")
            await changed_by_rocketmq(names)
        running.start_node("n1")
        await until_up(names, "kept")
        await check(names)
        await send(names, "again", ["ours"])
        for stop in (running.kill, running.stop_node):
            stop("n1")
            running.start_node("n1")
            await until_up(names, "kept")
            assert await texts_of(names, "again") == ["new 0", "new 1", "new 2", "ours"]
        running.stop_node("n1")
        with genuine.broker(tmp_path / "java", names, port, **{**OURS, **paths}):
            await until_up(names, "kept")
            assert await texts_of(names, "again") == ["new 0", "new 1", "new 2", "ours"]


async def test_rocketmq_has_the_topics_and_groups_of_a_broker_that_was_killed(tmp_path: Path) -> None:
    """Immediately after the last answer: messages of a topic that RocketMQ does not know cannot be read."""
    genuine.require()
    port = free_ports(1)[0]
    with our_master(tmp_path / "ours") as (running, names):
        store = running.store_directory("n1")
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        await prepared(names)
        async with Admin(names) as admin:
            await admin.delete_topic("gone")
            await admin.delete_group(OTHER)
            await admin.create_topic("new", queues=1)
        await send(names, "new", ["acknowledged"])
        running.kill("n1")
        with genuine.broker(tmp_path / "java", names, port, **{**OURS, **paths}):
            await until_up(names, "kept")
            async with Admin(names) as admin:
                topics = {one.name for one in await admin.topics()}
                groups = {one.name for one in await admin.groups()}
            assert "new" in topics and "gone" not in topics
            assert GROUP in groups and OTHER not in groups
            assert await texts_of(names, "new") == ["acknowledged"]


async def test_a_running_slave_follows_deletions_of_its_genuine_master(tmp_path: Path) -> None:
    genuine.require()
    port = free_ports(1)[0]
    with our_master(tmp_path / "ours", broker_role="SLAVE", sync_period_ms=200) as (running, names):
        store = running.store_directory("n1")
        with genuine.broker(tmp_path / "java", names, port, **OURS):

            async def is_followed() -> bool:
                return (await asyncio.to_thread(ha_of, running)).get("state") == "TRANSFER"

            await eventually(is_followed)
            await prepared(names)

            async def has_copied() -> bool:
                return await offset_in(store, "kept", OTHER) == 2

            await eventually(has_copied)
            await changed_by_rocketmq(names)

            async def has_followed() -> bool:
                topics = json.loads((store / "config/topics.json").read_text())["topicConfigTable"]
                is_lower = await offset_in(store, "kept", GROUP) == 2
                ours = await asyncio.to_thread(log_bytes, store)
                theirs = await asyncio.to_thread(log_bytes, tmp_path / "java/store")
                return is_lower and "gone" not in topics and ours == theirs

            await eventually(has_followed)
        # The slave alone is left: its own clients and RocketMQ's tools ask it what there is.
        await until_up(names, "kept")
        await check(names)
        status = await asyncio.to_thread(
            genuine.mqadmin, tmp_path / "admin", names, "topicStatus", "-t", "kept"
        )
        assert [line.split()[:4] for line in status.splitlines() if "broker-a" in line] == [
            ["broker-a", "0", "0", "6"]
        ]


def log_bytes(store: Path) -> bytes:
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdecimal())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def lose_end_of_last_append(commit_log: Path, messages: int) -> None:
    """Keep only so many records behind the head of the log's last append, as a crash may."""
    (path,) = [path for path in commit_log.iterdir() if b"DLAH" in path.read_bytes()]
    content = path.read_bytes()
    end = content.rindex(b"DLAH\1") - 88  # a record's bytes before its body
    head_size = int.from_bytes(content[end : end + 4], "big")
    assert decode_head(content[end : end + head_size]) is not None
    for _ in range(1 + messages):
        end += int.from_bytes(content[end : end + 4], "big")
    assert content[end:].strip(b"\0")
    path.write_bytes(content[:end].ljust(len(content), b"\0"))


async def test_rocketmq_continues_behind_an_incomplete_append_and_all_that_it_acknowledged_stays(
    tmp_path: Path,
) -> None:
    genuine.require()
    port = free_ports(1)[0]
    with our_master(tmp_path / "ours") as (running, names):
        store = running.store_directory("n1")
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        await prepared(names)
        kept = await texts_of(names, "kept")
        batch = [Message("kept", b"batch %d" % number) for number in range(5)]
        async with Producer("makers", names) as producer:
            await producer.send_batch(batch)
        running.kill("n1")
        lose_end_of_last_append(store / "commitlog", 2)
        (store / "checkpoint").unlink()  # it may say that all of the batch was durable
        with genuine.broker(tmp_path / "java", names, port, **{**OURS, **paths}):
            await until_up(names, "kept")
            await send(names, "kept", ["java"])
            found = await texts_of(names, "kept")
        assert found == [*kept, "batch 0", "batch 1", "java"]
        running.start_node("n1")
        await until_up(names, "kept")
        assert await texts_of(names, "kept") == found
        async with Producer("makers", names) as producer:
            await producer.send_batch(batch)
        running.kill("n1")
        lose_end_of_last_append(store / "commitlog", 2)
        (store / "checkpoint").unlink()
        running.start_node("n1")
        await until_up(names, "kept")
        assert await texts_of(names, "kept") == found, "nobody has continued this one"
