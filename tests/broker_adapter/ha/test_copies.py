"""A master's log at its slaves, byte by byte, whatever happens to the connections."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from dataclasses import replace

import pytest

from broker_adapter.log.classic.ha.client import HaClient, HaClientState
from broker_adapter.log.classic.ha.group_transfer import SlaveAck
from broker_adapter.log.classic.ha.options import Handshake, HaOptions
from tests.broker_adapter.ha.memory_log import FILE_SIZE, MemoryLog
from tests.broker_adapter.ha.pair import QUICK, SECRET, following, master, plain, scripted, slave, wire
from tests.node.local import until

WHOLE = replace(QUICK, whole_log=True)
LONG_MS = 600_000
BOTH = pytest.mark.parametrize("handshake", [Handshake.OFF, Handshake.REQUIRED])


def is_copied(ours: MemoryLog, theirs: MemoryLog) -> bool:
    begin = max(ours.begin_offset, theirs.begin_offset)
    return (
        ours.end_offset == theirs.end_offset
        and ours.data[begin - ours.begin_offset :] == (theirs.data[begin - theirs.begin_offset :])
    )


@BOTH
async def test_what_is_there_and_what_comes(handshake: Handshake) -> None:
    log, copy, grown = MemoryLog(), MemoryLog(), []
    log.fill(200)
    async with (
        master(log) as service,
        following(
            copy,
            service.address,
            handshake=handshake,
            options=WHOLE,
            on_grown=lambda: grown.append(copy.end_offset),
        ) as client,
    ):
        await until(lambda: is_copied(copy, log))
        await until(lambda: grown[-1:] == [log.end_offset])
        assert copy.begin_offset == 0
        for number in range(50):
            end = log.put(b"%d" % number)
            service.grown()
            assert await service.wait_acked(end, LONG_MS) is SlaveAck.PUT_OK
            assert copy.data == log.data
        (one,) = service.status().slaves
        assert (one.acked, one.sent, one.lag_bytes, one.in_sync) == (log.end_offset, log.end_offset, 0, True)
        assert one.id == (None if handshake is Handshake.OFF else 1)
        status = client.status()
        assert status.state is HaClientState.TRANSFER and status.position == status.reported == log.end_offset
        assert status.problem == "" and status.by_handshake == (handshake is not Handshake.OFF)
    assert client.status().state is HaClientState.SHUTDOWN
    assert service.status().slaves == [] and service.status().acks == {"PUT_OK": 50}


@BOTH
async def test_a_slave_that_has_nothing_begins_with_the_last_file(handshake: Handshake) -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(100)
    async with master(log) as service, following(copy, service.address, handshake=handshake):
        await until(lambda: is_copied(copy, log))
        assert copy.begin_offset == log.last_file_offset > 0


async def test_by_handshake_the_whole_log_is_what_the_master_still_has() -> None:
    log, copy = MemoryLog(2 * FILE_SIZE), MemoryLog()
    log.fill(100)
    async with (
        master(log) as service,
        following(copy, service.address, handshake=Handshake.REQUIRED, options=WHOLE),
    ):
        await until(lambda: is_copied(copy, log))
        assert copy.begin_offset == 2 * FILE_SIZE


@pytest.mark.parametrize("whole_log", [True, False])
@BOTH
async def test_an_empty_master(handshake: Handshake, whole_log: bool) -> None:
    log, copy = MemoryLog(), MemoryLog()
    options = replace(QUICK, whole_log=whole_log)
    async with (
        master(log) as service,
        following(copy, service.address, handshake=handshake, options=options),
    ):
        await until(lambda: len(service.status().slaves) == 1)
        end = log.fill(100)
        service.grown()
        assert await service.wait_acked(end, LONG_MS) is SlaveAck.PUT_OK
        assert copy.data == log.data


@BOTH
async def test_a_connection_that_is_cut_after_every_byte(handshake: Handshake) -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(12, 60)
    ends = {0}
    async with master(log, HaOptions(transfer_batch_bytes=100)) as service, wire(service.address) as between:
        between.cut_after = lambda number: number
        async with following(
            copy,
            between.address,
            handshake=handshake,
            options=WHOLE,
            on_grown=lambda: ends.add(copy.end_offset),
        ):
            await until(lambda: is_copied(copy, log))
    assert between.connections > 100
    assert {offset for offset, _ in copy.appends} <= ends


async def test_a_slave_that_stops_in_the_middle_of_a_record_goes_on_there() -> None:
    log, copy = MemoryLog(), MemoryLog()
    first = log.fill(3)
    log.put(b"x" * 2000)
    async with master(log) as service, wire(service.address) as between:
        between.cut_after = lambda number: first + 300 if number == 0 else None
        async with following(copy, between.address, options=WHOLE):
            await until(lambda: is_copied(copy, log))
    assert copy.appends[0] == (0, first) and copy.appends[1][0] == first


async def test_two_slaves_each_at_its_own_pace() -> None:
    log, quick, slow = MemoryLog(), MemoryLog(), MemoryLog()
    log.fill(50)
    async with master(log) as service, wire(service.address) as between:
        stopped = asyncio.Event()
        gate = asyncio.Event()

        async def run(function: object, *arguments: object) -> object:
            stopped.set()
            await gate.wait()
            return function(*arguments)  # type: ignore[operator]

        async with (
            following(quick, service.address, options=WHOLE, own=slave(1)),
            following(slow, between.address, options=WHOLE, own=slave(2), run=run),
        ):
            await stopped.wait()
            end = log.fill(50)
            service.grown()
            assert await service.wait_acked(end, LONG_MS) is SlaveAck.PUT_OK
            assert quick.data == log.data and not slow.data
            both = asyncio.ensure_future(service.wait_acked(end, LONG_MS, 2))
            gate.set()
            assert await both is SlaveAck.PUT_OK and slow.data == log.data


async def test_an_append_is_ended_before_anything_else_begins() -> None:
    log, copy, under_way = MemoryLog(), MemoryLog(), []
    log.fill(20)
    gate, begun = asyncio.Event(), asyncio.Event()

    async def run(function: object, *arguments: object) -> object:
        under_way.append(function)
        assert len(under_way) == 1
        begun.set()
        await gate.wait()
        under_way.pop()
        return function(*arguments)  # type: ignore[operator]

    async with master(log) as one, master(log) as other:
        client = HaClient(copy, WHOLE, run=run)
        client.set_master(one.address)
        client.start()
        await begun.wait()
        for address in (other.address, one.address, other.address):
            client.set_master(address)
            for _ in range(10):
                await asyncio.sleep(0)
        stopping = asyncio.ensure_future(client.stop())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stopping.done()
        gate.set()
        await stopping
        assert copy.data == log.data


async def test_a_slave_whose_log_has_nothing_from_some_offset_on() -> None:
    """As retention, or a log that was cut at its begin, leaves it."""
    log = MemoryLog()
    log.fill(100)
    for begin in (2 * FILE_SIZE, 100 * FILE_SIZE):
        copy = MemoryLog(begin)
        async with (
            master(log) as service,
            following(copy, service.address, handshake=Handshake.REQUIRED, options=WHOLE),
        ):
            await until(lambda copied=copy: is_copied(copied, log))
            await until(lambda: service.status().push2slave_max_offset == log.end_offset)
            assert service.status().refusals == {}
            assert copy.begin_offset == (begin if begin < log.end_offset else 0)


async def test_a_connection_that_ends_before_its_read_begins_leaves_no_coroutine() -> None:
    log = MemoryLog(file_size=1 << 20)
    log.fill(1)
    async with master(log, HaOptions()) as service:
        host, _, port = service.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write((1).to_bytes(8))
        await until(lambda: any(one.sent == log.end_offset for one in service.status().slaves))
        (connection,) = service._connections
        log.fill(400, 20_000)
        gc.collect()  # what tests before this one have left warns, too
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            service.grown()
            assert connection._working is not None
            connection.close()
            await asyncio.wait([connection._working])
            connection._working = None  # it keeps what it was to do
            gc.collect()
        writer.close()
    assert [text for one in found if "never awaited" in (text := str(one.message))] == []


async def test_a_slave_that_reads_slowly_bounds_what_waits_for_it() -> None:
    log = MemoryLog(file_size=1 << 20)
    log.fill(400, 20_000)
    options = HaOptions(unsent_bytes=64 << 10, read_ahead_bytes=256 << 10)
    async with master(log, options) as service:
        host, _, port = service.address.rpartition(":")
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=opened, limit=1 << 16)
        writer.write((1).to_bytes(8))
        await until(lambda: len(service.status().slaves) == 1)
        (connection,) = service._connections
        await until(lambda: connection._is_full and connection._working is None)
        assert connection._transport is not None
        waiting = connection._transport.get_write_buffer_size()
        assert 0 < waiting <= options.unsent_bytes + options.read_ahead_bytes + (1 << 16)
        sent, reads = connection.progress.sent, log.reads
        assert sent < log.end_offset
        log.fill(1)
        service.grown()
        assert (connection.progress.sent, log.reads) == (sent, reads)
        # It reads on, and all comes.
        got = 0
        size = log.end_offset - 1
        while got < size:
            head = await reader.readexactly(12)
            offset, body = int.from_bytes(head[:8]), int.from_bytes(head[8:])
            assert offset == 1 + got and await reader.readexactly(body) == log.data[offset : offset + body]
            got += body
        writer.close()


@BOTH
async def test_the_master_restarts(handshake: Handshake) -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(20)
    async with (
        master(log) as service,
        wire(service.address) as between,
        following(copy, between.address, handshake=handshake, options=WHOLE) as client,
    ):
        await until(lambda: is_copied(copy, log))
        await service.stop()
        await until(lambda: client.status().state is HaClientState.READY)
        await until(lambda: client.status().problem.startswith("803"))  # known once the connection is closed
        log.fill(20)
        async with master(log) as other:
            between.target = other.address
            await until(lambda: is_copied(copy, log))
            await until(lambda: client.status().problem == "")


async def test_a_slave_restarts_and_reports_what_it_has() -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(20)
    async with master(log) as service:
        for _ in range(5):
            async with following(copy, service.address, options=WHOLE):
                await until(lambda: is_copied(copy, log))
            log.fill(3)
        async with following(copy, service.address, options=WHOLE):
            assert await service.wait_acked(log.end_offset, LONG_MS) in SlaveAck
            await until(lambda: is_copied(copy, log))


async def test_another_master_is_followed_at_once() -> None:
    first, second, copy = MemoryLog(), MemoryLog(), MemoryLog()
    first.fill(10)
    second.data += first.data
    second.count = first.count
    second.fill(10)
    slow = replace(WHOLE, retry_first_s=3600, retry_most_s=3600)
    async with (
        master(first) as one,
        master(second) as other,
        following(copy, None, options=slow) as client,
    ):
        client.set_master("127.0.0.1:1")
        await until(lambda: client.status().problem != "")
        client.set_master(one.address)
        await until(lambda: is_copied(copy, first))
        client.set_master(None)
        await until(lambda: not one.status().slaves)
        client.set_master(other.address)
        await until(lambda: is_copied(copy, second))


async def test_a_master_that_has_no_first_file_gives_its_last_one() -> None:
    """RocketMQ's says nothing to who asks for what it has removed, but that it is there."""
    log, copy, asked = MemoryLog(2 * FILE_SIZE), MemoryLog(), []
    log.fill(100)

    async def original(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(int.from_bytes(await reader.readexactly(8)))
        if asked[-1] < log.begin_offset and asked[-1]:
            writer.write((asked[-1].to_bytes(8) + bytes(4)) * 2)
            await reader.read()
        offset = log.last_file_offset
        data = log.data[offset - log.begin_offset :]
        writer.write(offset.to_bytes(8) + len(data).to_bytes(4) + data)
        await reader.read()

    async with scripted(original) as address, following(copy, address, options=WHOLE):
        await until(lambda: is_copied(copy, log))
    assert asked == [1, 0] and copy.begin_offset == log.last_file_offset


async def test_only_what_is_durable_is_reported_if_that_is_asked_for() -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(10)
    options = replace(WHOLE, report_durable=True)
    async with master(log) as service, following(copy, service.address, options=options):
        await until(lambda: service.status().push2slave_max_offset == log.end_offset)
        assert copy.flushed_offset == copy.end_offset


async def test_a_master_with_nothing_to_send_says_that_it_is_there() -> None:
    log = MemoryLog()
    end = log.fill(3)
    async with (
        master(log, HaOptions(heartbeat_s=0.001)) as service,
        plain(service.address) as (reader, writer),
    ):
        writer.write(end.to_bytes(8))
        for _ in range(5):
            assert await reader.readexactly(12) == end.to_bytes(8) + bytes(4)


async def test_a_slave_with_nothing_new_says_that_it_is_there() -> None:
    reports: list[int] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(reports) < 5:
            reports.append(int.from_bytes(await reader.readexactly(8)))
        writer.close()

    copy = MemoryLog()
    end = copy.fill(3)
    async with scripted(silent) as address, following(copy, address):
        await until(lambda: len(reports) == 5)
    assert reports == [end] * 5


@pytest.mark.parametrize("said", [b"", bytes(7), b"\xff" * 7, b"\xff" * 8, b"\xff" * 8 + b"DLHA\x02\x00\x90"])
async def test_who_says_nothing_to_a_master_loses_the_connection(said: bytes) -> None:
    options = HaOptions(heartbeat_s=0.01, housekeeping_s=0.05)
    async with master(MemoryLog(), options) as service, plain(service.address) as (reader, writer):
        writer.write(said)
        answer = await reader.read()
        assert not answer or (answer[:4] == b"DLHA" and said[:8] == b"\xff" * 8)
        await until(lambda: not service.status().connections)


async def test_a_slave_whose_reports_end_loses_the_connection() -> None:
    log = MemoryLog()
    end = log.fill(3)
    options = HaOptions(heartbeat_s=0.01, housekeeping_s=0.05)
    async with master(log, options) as service, plain(service.address) as (reader, writer):
        writer.write(end.to_bytes(8))
        assert set(await reader.read()) <= set(end.to_bytes(8))  # heartbeats, then the end


@BOTH
async def test_a_master_that_says_nothing_loses_its_slave(handshake: Handshake) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    options = replace(WHOLE, housekeeping_s=0.05, connect_s=0.05)
    async with (
        scripted(silent) as address,
        following(MemoryLog(), address, handshake=handshake, options=options) as client,
    ):
        word = "has sent nothing" if handshake is Handshake.OFF else "does not answer"
        await until(lambda: word in client.status().problem)


async def test_the_secret_is_known_to_both() -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(10)
    async with (
        master(log, HaOptions(require_handshake=True), secret=SECRET) as service,
        following(copy, service.address, handshake=Handshake.REQUIRED, options=WHOLE, secret=SECRET),
    ):
        await until(lambda: is_copied(copy, log))
        assert service.status().refusals == {}


async def test_a_slave_that_prefers_the_handshake_follows_masters_that_do_not_know_it() -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(10)

    async def original(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """RocketMQ's: -1 is no first report, and nothing is said before there is one."""
        while (offset := int.from_bytes(await reader.readexactly(8), signed=True)) == -1:
            pass
        data = log.data[offset:]
        writer.write(offset.to_bytes(8) + len(data).to_bytes(4) + data)
        await reader.read()
        writer.close()

    options = replace(WHOLE, probe_s=0.05)
    async with (
        scripted(original) as address,
        following(copy, address, handshake=Handshake.PREFERRED, options=options) as client,
    ):
        await until(lambda: is_copied(copy, log))
        assert not client.status().by_handshake
