"""A genuine broker as the master of our slave, and as the slave of our master: equal byte by byte."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from broker_adapter.client import Admin, Message, Producer
from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.commit_log_files import CommitLogFiles, CommitLogOptions
from broker_adapter.log.classic.ha.client import HaClient
from broker_adapter.log.classic.ha.group_transfer import SlaveAck
from broker_adapter.log.classic.ha.handshake import HaIdentity
from broker_adapter.log.classic.ha.options import HaClientOptions, Handshake
from broker_adapter.log.classic.ha.records import RecordReader
from broker_adapter.log.classic.ha.service import HaService
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.namesrv.remoting_bodies import DataVersion, body_crc32, encode_register_body
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord as Record
from broker_adapter.wire.message import decode, encode
from dledger.infra.files.disk import OsDisk
from tests.process.cluster import free_ports

from . import genuine
from .genuine import eventually

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

FILE_SIZE = 1 << 20
SMALL = {"mappedFileSizeCommitLog": FILE_SIZE}
LOCAL, SOMEBODY = Host(bytes((127, 0, 0, 1)), 10911), Host(bytes((10, 0, 0, 1)), 4711)
ACK_MS = 60_000


@contextmanager
def commit_log(root: Path) -> Iterator[CommitLogFiles]:
    log = open_commit_log(root, OsDisk(), CommitLogOptions(file_size=FILE_SIZE))
    try:
        yield log
    finally:
        log.close()


def bytes_of(store: Path, begin: int = 0) -> bytes:
    """Of a commitlog folder from an offset on, with the zeros behind its end."""
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdecimal())
    assert [int(path.name) % FILE_SIZE for path in files] == [0] * len(files)
    return b"".join(path.read_bytes() for path in files if int(path.name) >= begin)


async def until_equal(copy: Path, original: Path, end: int, begin: int = 0) -> None:
    """Both have the same bytes from `begin` to `end`."""

    async def are_equal() -> bool:
        return await asyncio.to_thread(
            lambda: bytes_of(copy, begin)[: end - begin] == bytes_of(original, begin)[: end - begin]
        )

    await eventually(are_equal)


# -- our slave, their master -------------------------------------------------------------------------------


@asynccontextmanager
async def following(log: CommitLogFiles, port: int, handshake: Handshake) -> AsyncIterator[HaClient]:
    options = HaClientOptions(handshake=handshake, whole_log=True, probe_s=0.5)
    client = HaClient(log, options, own=HaIdentity("main", "java-a", 1))
    client.set_master(f"127.0.0.1:{port}")
    client.start()
    try:
        yield client
    finally:
        await client.stop()


async def send(names: str, topic: str, count: int) -> None:
    """Until they are acknowledged."""
    async with Admin(names) as admin:

        async def is_there() -> bool:
            try:
                await admin.create_topic(topic, queues=2)
            except BrokerError:
                return False
            return True

        await eventually(is_there)
    async with Producer("makers", names) as producer:
        for number in range(count):
            message = Message(topic, b"%d." % number + b"x" * 3000, keys=[f"k{number}"], tags="a")

            async def is_sent(one: Message = message) -> bool:
                try:
                    await producer.send(one)
                except BrokerError:
                    return False
                return True

            await eventually(is_sent)


def bodies(log: CommitLogFiles, topic: str) -> set[bytes]:
    """Of the messages in it, and all of it is records."""
    reader, found, at = RecordReader(log.begin_offset), set(), log.begin_offset
    while data := log.read(at, 1 << 20):
        at += len(data)
        found |= {one.message.body for one in reader.feed(data) if one.message.topic == topic}
    assert reader.position == log.end_offset
    return found


async def test_our_slave_has_the_bytes_of_a_genuine_master(tmp_path: Path) -> None:
    """While it is sent to, over a restart of either."""
    genuine.require()
    names_port, port, _ = free_ports(3)
    names, store = f"127.0.0.1:{names_port}", tmp_path / "java/store"
    ours = tmp_path / "ours"

    async def until_copied(log: CommitLogFiles, topic: str, count: int) -> None:
        async def is_copied() -> bool:
            return len(await asyncio.to_thread(bodies, log, topic)) == count

        await eventually(is_copied)

    with genuine.name_server(tmp_path / "names", names_port):
        with genuine.broker(tmp_path / "java", names, port, **SMALL), commit_log(ours) as log:
            async with following(log, port + 1, Handshake.OFF):
                await send(names, "first", 400)
                await until_copied(log, "first", 400)
        with genuine.broker(tmp_path / "java", names, port, **SMALL), commit_log(ours) as log:
            # A genuine master takes the question for the handshake for no report.
            async with following(log, port + 1, Handshake.PREFERRED) as client:
                await send(names, "second", 400)
                await until_copied(log, "second", 400)
                assert client.status().problem == "" and not client.status().by_handshake
            end = log.end_offset
        assert end > 2 * FILE_SIZE
        await until_equal(ours, store, end)
        with commit_log(ours) as log:
            assert log.recovery.was_clean and log.end_offset == end


# -- our master, their slave -------------------------------------------------------------------------------


class Writer:
    """Puts records of our code into a log of ours, and tells its slaves."""

    def __init__(self, log: CommitLogFiles) -> None:
        self.log = log
        self.service: HaService | None = None
        self.counts = [0, 0]

    def put(self, count: int) -> int:
        """The end of the log."""
        for _ in range(count):
            queue_id = sum(self.counts) % 2
            number = self.counts[queue_id]
            self.counts[queue_id] += 1
            now = int(time.time() * 1000)
            record = Record(
                "of-ours",
                b"%d." % number + b"y" * (2000 + number % 300),
                f"KEYS\x01k{number}\x02TAGS\x01a\x02",
                queue_id=queue_id,
                queue_offset=number,
                born_timestamp=now,
                store_timestamp=now,
                born_host=SOMEBODY,
                store_host=LOCAL,
            )
            (place,) = self.log.place([len(encode(record))])
            self.log.append([encode(record._replace(physical_offset=place))])
        if self.service is not None:
            self.service.grown()
        return self.log.end_offset


@asynccontextmanager
async def registered(names: str, port: int, ha_port: int) -> AsyncIterator[None]:
    """Our master is known to the NameServer, which tells slaves: `haMasterAddress` in the file of a broker of
    RocketMQ 5 is forgotten before it has a HAClient."""

    async def is_up() -> bool:
        try:
            (await connect(names, timeout_s=5)).close("it is up")
        except BrokerError:
            return False
        return True

    await eventually(is_up)
    connection = await connect(names, timeout_s=5)
    body = encode_register_body((), DataVersion())
    fields = {
        "clusterName": "main",
        "brokerName": "java-a",
        "brokerId": "0",
        "brokerAddr": f"127.0.0.1:{port}",
        "haServerAddr": f"127.0.0.1:{ha_port}",
        "heartbeatTimeoutMillis": "600000",
        "enableActingMaster": "false",
        "compressed": "false",
        "bodyCrc32": str(body_crc32(body)),
    }
    answer = await connection.invoke(RemotingCommand(RequestCode.REGISTER_BROKER, fields, body), 10)
    assert answer.code == 0, answer.remark
    try:
        yield
    finally:
        connection.close("it has ended")


@asynccontextmanager
async def serving(writer: Writer, port: int) -> AsyncIterator[HaService]:
    service = HaService(writer.log, own=HaIdentity("main", "java-a", 0))
    await service.start(f"127.0.0.1:{port}")
    writer.service = service
    try:
        yield service
    finally:
        writer.service = None
        await service.stop()


def units(store: Path, topic: str, queue_id: int) -> list[int]:
    """Physical offsets in the ConsumeQueue."""
    path = store / "consumequeue" / topic / str(queue_id) / f"{0:020d}"
    found = struct.iter_unpack(">qiq", path.read_bytes()) if path.exists() else ()
    return [offset for offset, size, _ in found if size]


async def test_a_genuine_slave_has_the_bytes_of_our_master(tmp_path: Path) -> None:
    """And dispatches them, over a kill of the slave and a restart of the master."""
    genuine.require()
    names_port, port, _, ha_port, master_port = free_ports(5)
    names, store = f"127.0.0.1:{names_port}", tmp_path / "java/store"
    settings = {
        **SMALL,
        "brokerRole": "SLAVE",
        "brokerId": 1,
        "haSendHeartbeatInterval": 500,
    }
    with genuine.name_server(tmp_path / "names", names_port), commit_log(tmp_path / "ours") as log:
        writer = Writer(log)
        async with registered(names, master_port, ha_port), serving(writer, ha_port) as service:
            writer.put(5)
            with genuine.broker(tmp_path / "java", names, port, **settings) as process:
                await until_acked(service, writer.put(1))
                for _ in range(20):
                    end = writer.put(50)
                    assert await service.wait_acked(end, ACK_MS) is SlaveAck.PUT_OK
                assert end > 2 * FILE_SIZE
                await until_equal(store, tmp_path / "ours", end)
                process.kill()
                process.wait()
            writer.put(300)
            with genuine.broker(tmp_path / "java", names, port, **settings):
                await until_acked(service, writer.put(1))
                await service.stop()
                async with serving(writer, ha_port) as again:
                    await until_acked(again, writer.put(300))
                await until_equal(store, tmp_path / "ours", log.end_offset)
                await until_dispatched(store, log)


async def until_acked(service: HaService, end: int) -> None:
    async def is_acked() -> bool:
        return service.status().push2slave_max_offset >= end

    await eventually(is_acked)
    assert service.status().refusals == {}


async def until_dispatched(store: Path, log: CommitLogFiles) -> None:
    """The slave's ConsumeQueues name each record of ours."""
    reader, wanted, at = RecordReader(0), {0: [], 1: []}, 0  # type: tuple[RecordReader, dict[int, list[int]], int]
    while data := log.read(at, 1 << 20):
        at += len(data)
        for one in reader.feed(data):
            assert decode(one.record).topic == "of-ours"
            wanted[one.message.queue_id].append(one.message.physical_offset)

    async def is_dispatched() -> bool:
        return all(units(store, "of-ours", queue_id) == offsets for queue_id, offsets in wanted.items())

    await eventually(is_dispatched)


async def test_a_fresh_genuine_slave_begins_with_our_last_file(tmp_path: Path) -> None:
    genuine.require()
    names_port, port, _, ha_port, master_port = free_ports(5)
    names = f"127.0.0.1:{names_port}"
    settings = {
        **SMALL,
        "brokerRole": "SLAVE",
        "brokerId": 1,
    }
    with (
        genuine.name_server(tmp_path / "names", names_port),
        commit_log(tmp_path / "ours") as log,
    ):
        writer = Writer(log)
        writer.put(1200)
        begin = log.last_file_offset
        assert begin >= 2 * FILE_SIZE
        async with registered(names, master_port, ha_port), serving(writer, ha_port) as service:
            with genuine.broker(tmp_path / "java", names, port, **settings):
                await until_acked(service, writer.put(10))
                store = tmp_path / "java/store"
                assert {path.name for path in (store / "commitlog").iterdir()} >= {f"{begin:020d}"}
                await until_equal(store, tmp_path / "ours", log.end_offset, begin)
