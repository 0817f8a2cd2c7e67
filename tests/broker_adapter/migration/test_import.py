"""Stores of RocketMQ imported into a running group."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from broker_adapter.api import QueueOffset
from broker_adapter.errors import AnswerMissing, BrokerError, PutRefused, Status
from broker_adapter.log.classic.store_directory import StoreDirectory
from broker_adapter.migration.importer import Importer, ImportPlan
from broker_adapter.migration.target import ImportTarget
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode
from tests.broker_adapter.classic.store_writer import StoreWriter
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, asking
from tests.broker_adapter.v4.test_remoting_consumers import SUBSCRIPTION, pull, records
from tests.node.local import until

PROPERTIES = "UNIQ_KEY\x01%d\x02KEYS\x01k%d\x02"


class OneTarget(ImportTarget):
    """Without a NameServer. `fails` are errors for the next batches, each before or after it is stored."""

    def __init__(self, address: str) -> None:
        super().__init__(["127.0.0.1:1"], timeout_s=10)
        self._address = self.address = address
        self.fails: list[tuple[bool, BrokerError]] = []
        self.batches = 0

    async def _find_master(self) -> str:
        self._address = self.address
        return self.address

    async def store(self, records: Iterable[bytes]) -> None:
        self.batches += 1
        is_stored, error = self.fails.pop(0) if self.fails else (True, None)
        if is_stored:
            await super().store(records)
        if error is not None:
            raise error


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path / "nodes", 1, LISTEN) as cluster:
        await cluster.master()
        yield cluster


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    writer = StoreWriter(tmp_path / "store", begin=8_192)
    writer.topic("t", 3)
    writer.start_queue("t", 0, 200_000)  # more than could be filled with fillers
    writer.start_queue("t", 1, 7)
    for number in range(40):
        writer.put("t", b"%d" % number * 9, number % 2, properties=PROPERTIES % (number, number), flag=number)
    writer.groups["g"] = {"groupName": "g", "retryMaxTimes": 5}
    writer.offsets = {"t@g": {0: 200_003, 1: 9}, "t@bold": {0: 999_999}, "x@g": {0: 1}}
    return writer


async def imported(cluster: BrokerCluster, store: Path, said: list[str] | None = None) -> ImportPlan:
    return await imported_at((await cluster.master()).remoting.address, store, said)


async def imported_at(address: str, store: Path, said: list[str] | None = None) -> ImportPlan:
    async with OneTarget(address) as target:
        directory = StoreDirectory(store)
        say = print if said is None else said.append
        return await Importer(directory, target, say).run(directory.survey())


async def test_all_of_a_message_stays_and_groups_go_on_where_they_were(
    cluster: BrokerCluster, writer: StoreWriter
) -> None:
    stored = [writer.put("t", b"last", 1)]
    plan = await imported(cluster, writer.finish())
    assert plan.messages == 41 and plan.clamped == 1
    broker = (await cluster.master()).broker
    for queue_id, begin, end in ((0, 200_000, 200_020), (1, 7, 28)):
        found = await broker.pull("t", queue_id, begin)
        assert (found.min_offset, found.max_offset, len(found.records)) == (begin, end, end - begin)
    last = decode(found.records[-1])
    assert last == stored[0]._replace(physical_offset=last.physical_offset, version=last.version)
    assert await broker.offsets("g") == [QueueOffset("t", 0, 200_003), QueueOffset("t", 1, 9)]
    assert await broker.offsets("bold") == [QueueOffset("t", 0, 200_020)]
    assert next(one for one in broker.groups() if one.name == "g").retry_max_times == 5
    by_id = await broker.query("t", "11", begin_ms=0, end_ms=1 << 60, max_messages=9)
    assert [decode(one).flag for one in by_id] == [11]
    # Producers go on behind it.
    async with asking((await cluster.master()).remoting.address) as asker:
        assert (await asker.send("t", b"new", 0))["queueOffset"] == "200020"
        assert (await asker.send("t", b"new", 2))["queueOffset"] == "0"
    assert (await imported(cluster, writer.root)).messages == 41  # all of it is there, and more behind it


async def test_an_import_goes_on_where_it_was(cluster: BrokerCluster, writer: StoreWriter) -> None:
    directory = StoreDirectory(writer.finish())
    contents = directory.survey()
    said: list[str] = []
    async with OneTarget((await cluster.master()).remoting.address) as target:
        target.fails = [(True, KeyboardInterrupt())]  # type: ignore[list-item]
        with pytest.raises(KeyboardInterrupt):
            await Importer(directory, target, said.append, batch_records=9).run(contents)
        for _ in range(2):
            await Importer(directory, target, said.append).run(contents)
    assert [one for one in said if "already" in one] == [
        f"{count} of 40 messages are already stored" for count in (0, 9, 40)
    ]
    assert sum("equal" in one for one in said) == 2


async def test_answers_that_are_lost_store_nothing_twice(cluster: BrokerCluster, writer: StoreWriter) -> None:
    directory = StoreDirectory(writer.finish())
    async with OneTarget((await cluster.master()).remoting.address) as target:
        lost = AnswerMissing(Status.ANSWER_MISSING, "lost")
        busy = PutRefused(Status.SHUTTING_DOWN, "later")
        target.fails = [(True, lost), (False, lost), (False, busy), (True, busy)]
        await Importer(directory, target, [].append, batch_records=9).run(directory.survey())
        assert target.batches == 5 + 2  # stored ones are not sent again


async def test_nodes_that_start_again_have_the_same_queues(
    cluster: BrokerCluster, writer: StoreWriter
) -> None:
    await imported(cluster, writer.finish())
    folder = cluster.folder / "n1"
    for is_emptied in (False, True):
        await cluster.stop()
        if is_emptied:  # all derived files are made again of the log
            for path in folder.rglob("*"):
                if (
                    path.is_file()
                    and {"consumequeue", "index"} & set(path.parts)
                    and "data" not in path.parts
                ):
                    path.write_bytes(b"")
        await cluster.start()
        broker = (await cluster.master()).broker
        assert [(one.min_offset, one.max_offset) for one in await broker.topic_stats("t")] == [
            (200_000, 200_020),
            (7, 27),
            (0, 0),
        ]
        assert len((await broker.pull("t", 0, 200_000)).records) == 20


async def test_used_topics_are_not_imported_into(cluster: BrokerCluster, writer: StoreWriter) -> None:
    root = writer.finish()
    async with asking((await cluster.master()).remoting.address) as asker:
        fields = {"topic": "t", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
        await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        await asker.send("t", b"mine", 1)
        with pytest.raises(BrokerError) as caught:
            await imported(cluster, root)
        assert caught.value.status is Status.IMPORT_DIFFERS
        answer = await asker.ask(RequestCode.BEGIN_QUEUE, topic="t", queueId=1, offset=9)
        assert "815 QUEUE_NOT_NEW" in (answer.remark or "")
        await asker.get(RequestCode.BEGIN_QUEUE, topic="t", queueId=1, offset=1)  # where it is anyway


async def test_messages_that_differ_are_told(
    cluster: BrokerCluster, writer: StoreWriter, tmp_path: Path
) -> None:
    await imported(cluster, writer.finish())
    other = StoreWriter(tmp_path / "other")
    other.topic("t", 3)
    other.start_queue("t", 1, 7)
    for _ in range(20):
        other.put("t", b"other", 1)
    with pytest.raises(BrokerError) as caught:
        await imported(cluster, other.finish())
    assert caught.value.status is Status.IMPORT_DIFFERS and "queue 1 of t" in str(caught.value)


async def test_only_the_next_offset_is_taken(cluster: BrokerCluster, writer: StoreWriter) -> None:
    records = [one.record for one in StoreDirectory(writer.finish()).scan().messages()]
    async with asking((await cluster.master()).remoting.address) as asker:
        fields = {"topic": "t", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
        await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        for body, reason in (
            (records[0], "814 IMPORT_OUT_OF_ORDER"),
            (b"", "737 REQUEST_MALFORMED"),
            (records[1][:-1], "750 RECORD_TRUNCATED"),
            (records[1] + records[5], "735 FIELD_OUT_OF_RANGE"),
        ):
            answer = await asker.ask(RequestCode.IMPORT_MESSAGES, body)
            assert reason in (answer.remark or ""), (reason, answer)
        await asker.get(RequestCode.BEGIN_QUEUE, topic="t", queueId=1, offset=7)
        stored = await asker.get(RequestCode.IMPORT_MESSAGES, records[1] + records[3])
        assert stored["stored"] == "2"
        answer = await asker.ask(RequestCode.IMPORT_MESSAGES, records[3])
        assert "814 IMPORT_OUT_OF_ORDER" in (answer.remark or "")


async def test_delayed_messages_wait_here_each_once(cluster: BrokerCluster, tmp_path: Path) -> None:
    await delayed_are_taken_over(await cluster.master(), tmp_path)


async def test_a_broker_on_a_classic_log_takes_delayed_messages_over(tmp_path: Path) -> None:
    """It has SCHEDULE_TOPIC_XXXX itself: what it holds there is left alone."""
    async with classic_pair(tmp_path / "nodes", file_size=4 << 20) as pair:
        await pair.start("n1", broker_role="ASYNC_MASTER", waits_for_slaves=False)
        program = await pair.writable("n1")
        await delayed_are_taken_over(program, tmp_path)
        assert program.files.bounds("SCHEDULE_TOPIC_XXXX", 1) == (0, 0)


async def delayed_are_taken_over(program: BrokerProgram, tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    for name in ("t", "%RETRY%g"):
        writer.topic(name)
    writer.groups["g"] = {"groupName": "g"}
    schedule, far_ms = "SCHEDULE_TOPIC_XXXX", time.time_ns() // 1_000_000 + 3_600_000
    text = "UNIQ_KEY\x01%s\x02DELAY\x012\x02REAL_TOPIC\x01%s\x02REAL_QID\x010\x02"
    for body, topic, due_ms, times in (
        (b"was delivered", "t", 5, 0),
        (b"is late", "t", 5, 0),
        (b"comes again", "%RETRY%g", 6, 2),
        (b"of a deleted topic", "gone", 7, 0),
        (b"waits", "t", far_ms, 0),
    ):
        properties = text % (body.hex(), topic)
        writer.put(schedule, body, 1, tag_code=due_ms, properties=properties, reconsume_times=times)
    writer.delays = {2: 1}
    root, said = writer.finish(), list[str]()
    for _ in range(2):
        plan = await imported_at(program.remoting.address, root, said)
        assert plan.delayed == 4 and not plan.messages
    assert [one.split()[0] for one in said if "delayed" in one] == ["3", "0"]
    await until(lambda: program.files.bounds("t", 0)[1] == 1 == program.files.bounds("%RETRY%g", 0)[1])
    async with asking(program.remoting.address) as asker:
        (late,) = records((await pull(asker, "t", 0, sysFlag=SUBSCRIPTION)).body)
        assert late.body == b"is late" and "REAL_TOPIC" not in late.properties
        (again,) = records((await pull(asker, "%RETRY%g", 0, sysFlag=SUBSCRIPTION)).body)
        assert (again.body, again.reconsume_times) == (b"comes again", 2)
    assert program.delivery.figures().held_messages == 1
