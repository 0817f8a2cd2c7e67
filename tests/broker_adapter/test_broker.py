"""Brokers on real nodes: what is sent is there, everywhere, once, in order, also after a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, current_thread
from typing import Any

import pytest

from broker_adapter.api import (
    GetMessageResult,
    GetMessageStatus,
    GroupConfig,
    OutgoingMessage,
    QueueOffset,
    TopicConfig,
)
from broker_adapter.errors import BrokerError, NotMaster, ReadFailed, Status
from broker_adapter.server.broker import Broker
from broker_adapter.store.dispatcher import Dispatcher
from broker_adapter.store.queue_reader import QueueReader
from broker_adapter.wire.message import decode
from dledger import AppliedEntry
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.infra.files import platform
from tests.broker_adapter.begun_work import BegunWork, turn
from tests.broker_adapter.cluster import bodies, brokers, in_step, messages
from tests.broker_adapter.sending import send_to
from tests.node.local import until


async def test_a_message_is_in_one_queue_of_every_broker_once_it_was_answered(tmp_path: Path) -> None:
    async with brokers(tmp_path) as cluster:
        master = await cluster.master()
        result = await send_to(master, "orders", messages("a", "b", "c"), queue_id=1)
        assert (result.queue_id, result.queue_offset, len(result.physical_offsets)) == (1, 0, 3)
        await in_step(*cluster.programs.values())
        for program in cluster.programs.values():
            assert await bodies(program, "orders", 1) == [b"a", b"b", b"c"]
            assert await bodies(program, "orders", 0) == []
            record = decode(await program.broker.message_at(result.physical_offsets[1]))
            assert (record.body, record.queue_offset) == (b"b", 1)
            assert record.physical_offset == result.physical_offsets[1]


async def test_only_the_master_takes_messages_and_others_name_it(tmp_path: Path) -> None:
    async with brokers(tmp_path) as cluster:
        master = await cluster.master()
        assert len(cluster.masters) == 1
        for program in cluster.programs.values():
            if program is not master:
                with pytest.raises(NotMaster) as caught:
                    await send_to(program, "orders", messages("a"))
                assert caught.value.master_address == master.config.address


async def test_messages_offsets_and_topics_survive_the_master(tmp_path: Path) -> None:
    async with brokers(tmp_path) as cluster:
        old = await cluster.master()
        await old.broker.put_topic(TopicConfig("orders", read_queues=3, write_queues=3))
        for n in range(60):
            await send_to(old, "orders", messages(f"{n}"), queue_id=n % 3)
        await old.broker.commit_offsets("readers", [QueueOffset("orders", 0, 7)])
        gone = old.config.node_id
        await cluster.stop(gone)
        new = await cluster.master(other_than=gone)
        assert new.broker.topics() == [TopicConfig("orders", read_queues=3, write_queues=3)]
        assert await new.broker.offsets("readers") == [QueueOffset("orders", 0, 7)]
        result = await send_to(new, "orders", messages("after"), queue_id=0)
        assert result.queue_offset == 20, "no offset is used twice, none is left out"
        await cluster.start(gone)
        back = cluster.programs[gone]
        await in_step(new, back)
        for program in (new, back):
            assert await bodies(program, "orders", 0) == [b"%d" % n for n in range(0, 60, 3)] + [b"after"]
            assert await bodies(program, "orders", 2) == [b"%d" % n for n in range(2, 60, 3)]


async def test_a_pull_is_not_sent_back_to_what_a_slave_has_shown_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer reads at a slave, and goes on at its master, which has dispatched less than the slave."""
    gate, dispatch = Event(), Dispatcher.apply
    behind: list[Dispatcher] = []

    def late(self: Dispatcher, entries: Sequence[AppliedEntry]) -> None:
        if self in behind:
            gate.wait()
        dispatch(self, entries)

    looked: list[int] = []
    look = QueueReader.read

    def looking(self: QueueReader, topic: str, queue_id: int, offset: int, **how: Any) -> GetMessageResult:
        looked.append(offset)
        return look(self, topic, queue_id, offset, **how)

    monkeypatch.setattr(Dispatcher, "apply", late)
    monkeypatch.setattr(QueueReader, "read", looking)
    async with brokers(tmp_path) as cluster:
        try:
            master = await cluster.master()
            await send_to(master, "orders", messages("first"), queue_id=0)
            slave = next(p for p in cluster.programs.values() if p is not master)
            await in_step(*cluster.programs.values())
            behind.append(master.dispatcher)
            await send_to(master, "orders", messages("second", "third"), queue_id=0)
            await until(lambda: slave.files.next_offsets().get(("orders", 0)) == 3)
            assert master.files.bounds("orders", 0) == (0, 1)
            pulls = [asyncio.create_task(master.broker.pull("orders", 0, offset)) for offset in (3, 4)]
            await until(lambda: {3, 4} <= set(looked))
            gate.set()
            there, beyond = await asyncio.gather(*pulls)
            assert (there.status, there.next_offset) == (GetMessageStatus.NO_NEW_MESSAGE, 3)
            assert (beyond.status, beyond.next_offset) == (GetMessageStatus.OFFSET_ILLEGAL, 3)
        finally:
            gate.set()


async def test_a_waiting_pull_is_woken_by_what_it_waits_for(tmp_path: Path) -> None:
    async with brokers(tmp_path) as cluster:
        master = await cluster.master()
        await send_to(master, "orders", messages("first"), queue_id=0)
        slave = next(p for p in cluster.programs.values() if p is not master)
        await in_step(master, slave)
        waiting = asyncio.create_task(slave.broker.pull("orders", 0, 1, wait_ms=30_000, tags=["x"]))
        await until(lambda: len(slave.broker.long_polls) == 1)
        await send_to(master, "orders", messages("no"), queue_id=0)
        await send_to(master, "orders", messages("yes", TAGS="x"), queue_id=0)
        result = await waiting
        assert (result.status, result.next_offset) == (GetMessageStatus.FOUND, 3)
        assert [decode(record).body for record in result.records] == [b"yes"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda broker, remote: broker.pull("orders", 0, 0, remote=remote),
        lambda broker, remote: broker.message_at(ENTRY_HEADER_SIZE, remote=remote),
        lambda broker, remote: broker.query(
            "orders", "k", begin_ms=0, end_ms=1 << 60, max_messages=1, remote=remote
        ),
        lambda broker, remote: broker.offset_by_time("orders", 0, 0, remote=remote),
        lambda broker, remote: broker.topic_stats("orders", remote=remote),
        lambda broker, remote: broker.queue_stats("orders", 0, remote=remote),
        lambda broker, remote: broker.offsets("g", remote=remote),
    ],
    ids=["pull", "message_at", "query", "offset_by_time", "topic_stats", "queue_stats", "offsets"],
)
async def test_reads_of_an_address_take_turns_with_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Broker, str], Awaitable[object]]
) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await send_to(program, "orders", messages("a"), queue_id=0)
        await in_step(program)
        await program.broker.commit_offsets("g", [QueueOffset("orders", 0, 1)])
        monkeypatch.setattr(platform, "cached_read", lambda handle, size, offset: None)
        gate, turns = Event(), program._readers._readers
        assert turns.executor is not None
        began = BegunWork(turns.executor)
        monkeypatch.setattr(turns, "executor", began)

        async def read(remote: str) -> None:
            turn.set(remote)
            with suppress(ReadFailed):  # there need not be a message at that position
                await ask(program.broker, remote)

        busy = [asyncio.create_task(program._readers.run(gate.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        remotes = [*(f"10.0.0.1:{port}" for port in range(50)), "10.0.0.2:1"]
        reads = [asyncio.create_task(read(remote)) for remote in remotes]
        await until(lambda: turns._free.waiting == 51)
        gate.set()
        await asyncio.gather(*busy, *reads)
        assert len(began.order) == 53
        assert began.order.index("10.0.0.2:1") <= 4, "two under way, and two of the other for two threads"


async def test_offsets_of_groups_are_read_beside_the_event_loop(tmp_path: Path) -> None:
    """A group may have tens of thousands, and there may be thousands of groups."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await send_to(program, "orders", messages("a"), queue_id=0)
        for group in ("g1", "g2"):
            await program.broker.commit_offsets(group, [QueueOffset("orders", 0, 1)])
        where: list[str] = []

        class Noting:
            def offsets_of(self, group: str) -> dict[tuple[str, int], int]:
                where.append(current_thread().name.partition("_")[0])
                return program.delivery_state.offsets_of(group)

            def topics_of(self, group: str) -> set[str]:
                where.append(current_thread().name.partition("_")[0])
                return program.delivery_state.topics_of(group)

        program.broker._given = Noting()
        assert await program.broker.all_offsets() == {
            group: [QueueOffset("orders", 0, 1)] for group in ("g1", "g2")
        }
        assert await program.broker.offsets("g1") == [QueueOffset("orders", 0, 1)]
        assert await program.broker.groups_of("orders") == ["g1", "g2"]
        assert where == ["pull"] * 5


async def test_messages_are_found_by_key_tag_and_time(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        broker = program.broker
        for n in range(10):
            properties = {"KEYS": f"k{n % 3} shared", "TAGS": "Aa" if n % 2 else "BB", "UNIQ_KEY": f"id{n}"}
            await send_to(program, "orders", [OutgoingMessage(b"%d" % n, properties)], queue_id=0)
        await in_step(cluster.programs["n1"])
        ever = {"begin_ms": 0, "end_ms": 1 << 60}
        found = await broker.query("orders", "k0", **ever, max_messages=10)
        assert [decode(record).body for record in found] == [b"9", b"6", b"3", b"0"]
        assert len(await broker.query("orders", "shared", **ever, max_messages=4)) == 4
        (one,) = await broker.query("orders", "id7", **ever, max_messages=10)
        stored = decode(one).store_timestamp
        assert await broker.query("orders", "id7", begin_ms=stored + 1, end_ms=1 << 60, max_messages=9) == []
        program = cluster.programs["n1"]
        assert await bodies(program, "orders", 0, ["BB"]) == [b"0", b"2", b"4", b"6", b"8"]
        assert await broker.offset_by_time("orders", 0, 0) == 0
        assert await broker.offset_by_time("orders", 0, stored + 3_600_000) == 10
        at = await broker.offset_by_time("orders", 0, stored)
        record = decode((await broker.pull("orders", 0, at)).records[0])
        assert record.store_timestamp == stored


async def test_what_is_wrong_is_refused_with_its_own_status(tmp_path: Path) -> None:
    settings = {"auto_create_topics": False, "max_body_bytes": 100}
    async with brokers(tmp_path, 1, settings) as cluster:
        program = await cluster.master()
        broker = program.broker
        await broker.put_topic(TopicConfig("open"))
        await broker.put_topic(TopicConfig("closed", perm=4))
        await broker.put_topic(TopicConfig("hidden", perm=2))

        async def status_of(topic: str, body: bytes = b"x", queue_id: int = 0, **properties: str) -> Status:
            with pytest.raises(BrokerError) as caught:
                await send_to(program, topic, [OutgoingMessage(body, properties)], queue_id=queue_id)
            return caught.value.status

        assert await status_of("nowhere") is Status.TOPIC_UNKNOWN
        assert await status_of("bad name!") is Status.TOPIC_NAME_INVALID
        assert await status_of("closed") is Status.TOPIC_NOT_WRITABLE
        assert await status_of("open", queue_id=4) is Status.FIELD_OUT_OF_RANGE
        assert await status_of("open", bytes(101)) is Status.BODY_TOO_LARGE
        assert await status_of("open", KEYS="k" * 33_000) is Status.PROPERTIES_TOO_LONG
        with pytest.raises(BrokerError) as caught:
            await broker.pull("hidden", 0, 0)
        assert caught.value.status is Status.TOPIC_NOT_READABLE
        await broker.put_group(GroupConfig("stopped", consume_enable=False))
        with pytest.raises(BrokerError) as caught:
            await broker.pull("open", 0, 0, group="stopped")
        assert caught.value.status is Status.GROUP_NOT_ENABLED
        pulled = await broker.pull("open", 0, 5)
        assert (pulled.status, pulled.next_offset) == (GetMessageStatus.OFFSET_ILLEGAL, 0)
        with pytest.raises(BrokerError) as caught:
            await broker.message_at(1234)
        assert caught.value.status is Status.MESSAGE_NOT_FOUND


async def test_a_restart_goes_on_from_the_checkpoint_and_the_log(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        for n in range(200):
            await send_to(program, "orders", messages(f"{n}", KEYS=f"k{n}"), queue_id=n % 2)
        for kept in (True, False):
            await cluster.stop("n1")
            if not kept:
                (tmp_path / "n1-broker" / "checkpoint").unlink(missing_ok=True)
            await cluster.start("n1")
            program = await cluster.master()
            assert await bodies(program, "orders", 0) == [b"%d" % n for n in range(0, 200, 2)]
            await in_step(cluster.programs["n1"])
            found = await program.broker.query("orders", "k77", begin_ms=0, end_ms=1 << 60, max_messages=5)
            assert [decode(record).body for record in found] == [b"77"]
        assert (await send_to(program, "orders", messages("next"), queue_id=1)).queue_offset == 100


async def test_a_group_commits_up_to_the_end_and_only_a_reset_sets_it_back(tmp_path: Path) -> None:
    async with brokers(tmp_path) as cluster:
        program = await cluster.master()
        broker = program.broker
        await broker.put_topic(TopicConfig("orders", read_queues=4, write_queues=4))
        await send_to(program, "orders", messages(*"123456789"), queue_id=0)
        with pytest.raises(BrokerError) as caught:
            await broker.commit_offsets("readers", [QueueOffset("orders", 0, 10)])
        assert caught.value.status is Status.OFFSET_OUT_OF_RANGE
        await broker.commit_offsets("readers", [QueueOffset("orders", 0, 5)])
        await broker.commit_offsets("readers", [QueueOffset("orders", 0, 3)])
        assert await broker.offsets("readers") == [QueueOffset("orders", 0, 5)]
        await broker.reset_offsets("readers", [QueueOffset("orders", 0, 1)])
        assert await broker.offsets("readers") == [QueueOffset("orders", 0, 1)]


async def test_a_purge_of_derived_files_that_fails_is_not_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purge = Dispatcher.purge_below
    tried: list[int] = []

    def fail_once(self: Dispatcher, physical_offset: int) -> None:
        tried.append(physical_offset)
        if len(tried) == 1:
            raise OSError("a bad day")
        purge(self, physical_offset)

    monkeypatch.setattr(Dispatcher, "purge_below", fail_once)
    async with brokers(tmp_path, 1):
        await until(lambda: len(tried) == 2)
    assert tried[0] == tried[1]


async def test_raw_appends_are_refused_where_a_broker_is(tmp_path: Path) -> None:
    from dledger import AsyncClient, Code, DLedgerError
    from tests.node.local import GROUP

    async with brokers(tmp_path, 1) as cluster:
        address = (await cluster.master()).config.address
        async with AsyncClient([address], group=GROUP, session=False, timeout=2) as client:
            with pytest.raises(DLedgerError) as caught:
                await client.append(b"raw")
        assert caught.value.code is Code.APPENDS_BY_OWNER_ONLY
