"""Who is refused, by which number, and what it leaves behind: wrong slaves, wrong masters, hostile peers."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from broker_adapter.errors import Status
from broker_adapter.log.classic.ha.group_transfer import SlaveAck
from broker_adapter.log.classic.ha.handshake import HaIdentity
from broker_adapter.log.classic.ha.options import HaClientOptions, Handshake, HaOptions
from broker_adapter.log.classic.shipped_units import UnitRun
from broker_adapter.wire.message import MessageRecord, encode
from dledger.rpc.cluster_secret import ClusterSecret
from tests.broker_adapter.ha.memory_log import FILE_SIZE, MemoryLog, blank
from tests.broker_adapter.ha.pair import (
    MASTER,
    QUICK,
    SECRET,
    following,
    master,
    plain,
    scripted,
    slave,
    wire,
)
from tests.broker_adapter.ha.test_transfers import frame
from tests.node.local import until

WHOLE = replace(QUICK, whole_log=True)
REQUIRED = HaOptions(require_handshake=True)
OLD, NEW = b"s" * 32, b"o" * 32
OTHER_SECRET = ClusterSecret([NEW])


def copy_of(log: MemoryLog) -> MemoryLog:
    copy = MemoryLog(log.begin_offset, log.file_size)
    copy.data += log.data
    copy.count = log.count
    return copy


async def refused(
    log: MemoryLog,
    copy: MemoryLog,
    options: HaOptions | None = None,
    own: HaIdentity | None = None,
    theirs: HaIdentity = MASTER,
    handshake: Handshake = Handshake.REQUIRED,
    secret: ClusterSecret | None = None,
    of_master: ClusterSecret | None = None,
) -> tuple[Status, dict[str, int]]:
    """What the slave is told, and what the master counts. The slave's log is as it was."""
    before = bytes(copy.data)
    async with (
        master(log, options, own=theirs, secret=of_master) as service,
        following(
            copy, service.address, handshake=handshake, options=WHOLE, own=own, secret=secret
        ) as client,
    ):
        await until(lambda: client.status().problem != "")
        number = int(client.status().problem.split()[0])
        await until(lambda: not service.status().slaves)
        refusals = service.status().refusals
    assert copy.data == before
    return Status(number), refusals


@pytest.mark.parametrize("ends_with_blank", [False, True])
async def test_logs_that_differ_and_end_with_the_same_bytes(ends_with_blank: bool) -> None:
    """A master that lost its end wrote as many bytes again; 64 KiB of a body, or a blank, are alike."""
    size = 1 << 20
    logs = MemoryLog(file_size=size), MemoryLog(file_size=size)
    for stamp, log in enumerate(logs, 1):
        for number in range(4):
            message = MessageRecord(
                "t", bytes(100_000), queue_offset=number, store_timestamp=stamp if number else 1
            )
            log.data += encode(message._replace(physical_offset=log.end_offset))
        if ends_with_blank:
            log.data += blank(size - log.end_offset)
    log, copy = logs
    log.put(b"more")
    status, _ = await refused(log, copy)
    assert status is Status.HA_DIVERGED


async def test_logs_that_differ_where_the_slave_ends() -> None:
    log = MemoryLog()
    log.fill(10)
    copy = copy_of(log)
    log.fill(10)
    copy.put(b"what the master never had")
    status, refusals = await refused(log, copy)
    assert status is Status.HA_DIVERGED and "HA_DIVERGED" in refusals


@pytest.mark.parametrize("back", [1, 50, 3000])
async def test_one_wrong_byte_near_the_end(back: int) -> None:
    log = MemoryLog()
    log.fill(60)
    copy = copy_of(log)
    copy.data[-back] ^= 1
    assert (await refused(log, copy))[0] is Status.HA_DIVERGED


async def test_a_slave_that_is_ahead_of_its_master() -> None:
    log = MemoryLog()
    log.fill(10)
    copy = copy_of(log)
    copy.fill(1)
    assert (await refused(log, copy))[0] is Status.HA_DIVERGED
    # Without the handshake it is told loudly at the master, and its connection is closed.
    status, refusals = await refused(log, copy, handshake=Handshake.OFF)
    assert status is Status.ANSWER_MISSING and "HA_REPORT_REFUSED" in refusals


async def test_a_slave_that_was_away_for_too_long() -> None:
    log = MemoryLog()
    log.fill(10)
    copy = copy_of(log)
    log.fill(100)
    log.purge_below(2 * FILE_SIZE)
    assert (await refused(log, copy))[0] is Status.HA_GAP
    status, refusals = await refused(log, copy, handshake=Handshake.OFF)
    assert status is Status.ANSWER_MISSING and "HA_GAP" in refusals


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        (slave()._replace(cluster="other"), MASTER),
        (slave()._replace(broker_name="b"), MASTER),
        (slave(0), MASTER),
        (slave(-1), MASTER),
        (slave(), MASTER._replace(broker_id=1)),
    ],
)
async def test_master_and_slave_that_do_not_belong_together(own: HaIdentity, theirs: HaIdentity) -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(3)
    assert (await refused(log, copy, own=own, theirs=theirs))[0] is Status.HA_IDENTITY


async def test_files_of_another_size() -> None:
    log, copy = MemoryLog(), MemoryLog(file_size=2 * FILE_SIZE)
    log.fill(3)
    assert (await refused(log, copy))[0] is Status.HA_IDENTITY


@pytest.mark.parametrize(
    ("secret", "of_master"), [(None, SECRET), (OTHER_SECRET, SECRET), (SECRET, None), (SECRET, OTHER_SECRET)]
)
async def test_who_does_not_know_the_secret(
    secret: ClusterSecret | None, of_master: ClusterSecret | None
) -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(3)
    assert (await refused(log, copy, secret=secret, of_master=of_master))[0] is Status.HA_NOT_PROVEN


async def test_a_secret_is_changed_while_both_run() -> None:
    """First all accept the new one, then all prove with it, then the old one goes."""
    log = MemoryLog()
    log.fill(3)
    steps = [ClusterSecret(known) for known in ([OLD], [OLD, NEW], [NEW, OLD], [NEW])]
    for before, after in pairwise(steps):
        for theirs, ours in ((before, after), (after, before)):
            copy = MemoryLog()
            async with (
                master(log, REQUIRED, secret=theirs) as service,
                following(copy, service.address, handshake=Handshake.REQUIRED, options=WHOLE, secret=ours),
            ):
                await until(lambda copied=copy: copied.data == log.data)


async def test_nothing_but_the_handshake_where_it_is_required() -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(3)
    status, refusals = await refused(log, copy, REQUIRED, handshake=Handshake.OFF)
    assert status is Status.ANSWER_MISSING and "HA_HANDSHAKE_MISSING" in refusals
    async with master(log, REQUIRED) as service, plain(service.address) as (reader, writer):
        end = log.fill(1)
        writer.write(end.to_bytes(8))
        assert await reader.read() == b""
        assert service.status().push2slave_max_offset == 0
        assert await service.wait_acked(end, 600_000) is SlaveAck.SLAVE_NOT_AVAILABLE


async def test_a_slave_that_comes_again_replaces_its_connection() -> None:
    """Its first one may be half open: nobody has ended it."""
    log = MemoryLog()
    log.fill(10)
    async with master(log) as service, wire(service.address) as between:
        options = replace(WHOLE, retry_first_s=3600, retry_most_s=3600)
        copy = MemoryLog()
        async with following(copy, between.address, handshake=Handshake.REQUIRED, options=options):
            await until(lambda: copy.data == log.data)
            again = MemoryLog()
            async with following(again, service.address, handshake=Handshake.REQUIRED, options=WHOLE):
                await until(lambda: again.data == log.data)
                assert len(service.status().slaves) == 1


# -- masters that are none ---------------------------------------------------------------------------------


async def problem_with(sent: bytes, copy: MemoryLog, options: HaClientOptions = QUICK) -> Status:
    """What a slave says of a master that sends this."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(sent)
        await reader.read()

    before = bytes(copy.data)
    async with scripted(script) as address, following(copy, address, options=options) as client:
        await until(lambda: client.status().problem != "")
        assert copy.data == before
        return Status(int(client.status().problem.split()[0]))


async def test_transfers_that_do_not_go_on_where_the_log_ends() -> None:
    copy = MemoryLog()
    end = copy.fill(3)
    log = copy_of(copy)
    log.fill(3)
    more = bytes(log.data[end:])
    for sent in (
        frame(end - 1, more),
        frame(end + 1, more),
        frame(0, more),
        frame(end, b"")[:-4] + struct.pack(">i", -1),
        frame(end, b"")[:-4] + struct.pack(">i", (1 << 31) - 1),
        frame(-1, b""),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ):
        assert await problem_with(sent, copy) is Status.HA_TRANSFER_REFUSED
    assert await problem_with(frame(100, more), MemoryLog()) is Status.HA_TRANSFER_REFUSED


async def test_damaged_records_are_not_stored() -> None:
    copy = MemoryLog()
    end = copy.fill(3)
    log = copy_of(copy)
    log.put(b"body")
    more = bytearray(log.data[end:])
    more[-len(b"body")] ^= 1  # a property's length, or the body: both are seen
    assert await problem_with(frame(end, bytes(more)), copy) in (
        Status.RECORD_BODY_CRC,
        Status.RECORD_LENGTHS,
    )
    elsewhere = MemoryLog()
    elsewhere.fill(1)
    assert await problem_with(frame(end, bytes(elsewhere.data)), copy) is Status.RECORD_FIELD
    assert await problem_with(frame(end, bytes(100)), copy) is Status.RECORD_MAGIC


async def test_a_slave_goes_on_when_the_damage_is_repaired() -> None:
    log, copy = MemoryLog(), MemoryLog()
    good = log.fill(5)
    end = log.put(b"body")
    log.fill(5)
    log.data[end - 10] ^= 0xFF
    async with (
        master(log) as service,
        following(copy, service.address, handshake=Handshake.REQUIRED, options=WHOLE) as client,
    ):
        await until(lambda: client.status().problem.startswith("75"))
        assert copy.end_offset == good
        log.data[end - 10] ^= 0xFF
        await until(lambda: copy.data == log.data)
        await until(lambda: client.status().problem == "")


async def test_a_log_that_cannot_be_written_is_told() -> None:
    class FullLog(MemoryLog):
        def append_bytes(self, offset: int, data: memoryview, units: Sequence[UnitRun]) -> None:
            raise OSError(28, "No space left on device")

    log = MemoryLog()
    log.fill(3)
    async with master(log) as service, following(FullLog(), service.address, options=WHOLE) as client:
        await until(lambda: "No space left" in client.status().problem)


# -- peers that are hostile --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 16,
        b"\x80" + bytes(7),
        (1 << 40).to_bytes(8),
        b"\xff" * 8 + b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 8 + b"DLHA\x02\xff\xff",
        b"\xff" * 8 + b"DLHA\x02\x00\x00",
        b"\xff" * 8 + b"DLHA\x09\x00\x00",
        b"\xff" * 8 + b"DLHA\x01\x00\x21" + bytes(33),
        b"\xff" * 8 + b"DLHA\x02\x10\x00" + bytes(4096),
    ],
)
async def test_what_is_no_slave_acknowledges_nothing(said: bytes) -> None:
    log = MemoryLog()
    log.fill(3)
    async with master(log) as service:
        async with plain(service.address) as (reader, writer):
            writer.write(said)
            await reader.read()
        await until(lambda: not service.status().connections)
        status = service.status()
        assert sum(status.refusals.values()) == 1 and status.push2slave_max_offset == 0


async def test_random_bytes_acknowledge_nothing() -> None:
    rng, log = random.Random(1), MemoryLog()
    log.fill(3)
    async with master(log) as service:
        for _ in range(100):
            async with plain(service.address) as (reader, writer):
                writer.write(rng.randbytes(rng.randrange(8, 300)))
                await reader.read()
        await until(lambda: not service.status().connections)
        assert service.status().push2slave_max_offset == 0


async def test_a_flood_of_reports_ends_its_connection() -> None:
    log = MemoryLog()
    end = log.fill(3)
    async with master(log) as service, plain(service.address) as (reader, writer):
        writer.write(end.to_bytes(8) * 5_000)
        assert await reader.read() == b""
        assert service.status().refusals == {"HA_REPORT_REFUSED": 1}


async def test_connections_have_a_limit_and_slaves_keep_theirs() -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(3)
    options = HaOptions(connections=4, per_address=4)
    async with (
        master(log, options) as service,
        following(copy, service.address, options=WHOLE) as client,
    ):
        await until(lambda: copy.data == log.data)
        # Those that say nothing give way to others, a slave does not.
        silent = [await asyncio.open_connection(*service.address.split(":")) for _ in range(20)]
        await until(lambda: service.status().limits_hit["silent connection closed"] >= 17)
        assert service.status().connections == 4 and client.status().connections == 1
        for _, writer in silent:
            writer.transport.abort()
        # Slaves give way to nobody.
        slaves = [await asyncio.open_connection(*service.address.split(":")) for _ in range(3)]
        for _, writer in slaves:
            writer.write(log.end_offset.to_bytes(8))
        await until(lambda: len(service.status().slaves) == 4)
        async with plain(service.address) as (reader, _):
            assert await reader.read() == b"" and service.status().limits_hit["connections"] == 1
        for _, writer in slaves:
            writer.transport.abort()
        assert client.status().connections == 1


def test_settings_that_no_slave_of_rocketmq_could_follow() -> None:
    for wrong in (
        {"transfer_batch_bytes": 4 << 20},
        {"transfer_batch_bytes": 0},
        {"heartbeat_s": 20.0},
        {"connections": 0},
    ):
        with pytest.raises(ValueError):
            HaOptions(**wrong)  # type: ignore[arg-type]
