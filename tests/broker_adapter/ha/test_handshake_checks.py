"""What each end of the handshake checks for itself, whatever the other end lets through."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from broker_adapter.errors import Status
from broker_adapter.log.classic.ha.group_transfer import SlaveAck
from broker_adapter.log.classic.ha.handshake import (
    NONCE_BYTES,
    PROBE,
    VERSION,
    Challenge,
    HaIdentity,
    HandshakeReader,
    Introduction,
    LogRange,
    Refusal,
    Welcome,
    encode_challenge,
    encode_introduction,
    encode_welcome,
    tail_digest,
    to_prove_introduction,
    to_prove_welcome,
)
from broker_adapter.log.classic.ha.options import Handshake, HaOptions
from broker_adapter.log.classic.ha.transfers import encode_report
from tests.broker_adapter.ha.memory_log import FILE_SIZE, MemoryLog
from tests.broker_adapter.ha.pair import MASTER, QUICK, SECRET, following, master, plain, scripted, slave
from tests.node.local import until

WHOLE = replace(QUICK, whole_log=True)
NOTHING = LogRange(0, 0, FILE_SIZE)


async def next_frame(reader: asyncio.StreamReader) -> Challenge | Introduction | Welcome | Refusal:
    frames = HandshakeReader()
    while (found := frames.next()) is None:
        data = await reader.read(1 << 16)
        assert data, "the connection has ended"
        frames.feed(data)
    return found


# -- a master ----------------------------------------------------------------------------------------------


def introduction(own: HaIdentity) -> Introduction:
    return Introduction(bytes(NONCE_BYTES), own, NOTHING, 0, tail_digest(b""), True)


@pytest.mark.parametrize(
    "own", [slave()._replace(cluster="other"), slave()._replace(broker_name="b"), slave(0), slave(-1)]
)
async def test_a_master_looks_at_the_identity_of_a_slave_that_does_not_look_at_its_own(
    own: HaIdentity,
) -> None:
    log = MemoryLog()
    log.fill(3)
    async with master(log) as service, plain(service.address) as (reader, writer):
        writer.write(encode_report(PROBE))
        assert isinstance(await next_frame(reader), Challenge)
        writer.write(encode_introduction(introduction(own)))
        refusal = await next_frame(reader)
        assert isinstance(refusal, Refusal) and refusal.status == Status.HA_IDENTITY
        assert service.status().refusals == {"HA_IDENTITY": 1} and not service.status().slaves


async def test_an_introduction_that_was_overheard_opens_no_other_connection() -> None:
    """A proof holds for the challenge of its connection, and no challenge comes twice."""
    log = MemoryLog()
    log.fill(3)
    async with master(log, HaOptions(require_handshake=True), secret=SECRET) as service:
        overheard, nonces = b"", set[bytes]()
        for number in range(3):
            async with plain(service.address) as (reader, writer):
                writer.write(encode_report(PROBE))
                challenge = await next_frame(reader)
                assert isinstance(challenge, Challenge)
                nonces.add(challenge.nonce)
                if not overheard:
                    said = introduction(slave())
                    proof = SECRET.proof_of(to_prove_introduction(challenge, said))
                    overheard = encode_introduction(said._replace(proof=proof))
                writer.write(overheard)
                answer = await next_frame(reader)
            if number:
                assert isinstance(answer, Refusal) and answer.status == Status.HA_NOT_PROVEN
            else:
                assert isinstance(answer, Welcome)
        assert len(nonces) == 3


@pytest.mark.parametrize("handshake", [Handshake.OFF, Handshake.REQUIRED])
async def test_a_slave_that_begins_with_the_last_file_has_acknowledged_nothing(handshake: Handshake) -> None:
    """Where it begins is not what it has: a send before that place is on one disk only."""
    log = MemoryLog()
    log.fill(100)
    begin = log.last_file_offset
    assert begin > 0
    async with master(log) as service, plain(service.address) as (reader, writer):
        if handshake is Handshake.OFF:
            writer.write(encode_report(0))
        else:
            writer.write(encode_report(PROBE))
            await next_frame(reader)
            writer.write(encode_introduction(introduction(slave())._replace(whole_log=False)))
            welcome = await next_frame(reader)
            assert isinstance(welcome, Welcome) and welcome.start == begin
        await until(lambda: len(service.status().slaves) == 1)
        assert service.status().slaves[0].acked == 0
        assert service.status().push2slave_max_offset == 0
        assert await service.wait_acked(begin, 1) is SlaveAck.FLUSH_SLAVE_TIMEOUT


async def test_what_was_sent_to_a_slave_is_not_acknowledged_by_it() -> None:
    log = MemoryLog()
    end = log.fill(30)
    async with master(log) as service, plain(service.address) as (_, writer):
        writer.write(encode_report(1))
        await until(lambda: [one.sent for one in service.status().slaves] == [end])
        writer.write(encode_report(1) + encode_report(500))
        await until(lambda: service.status().push2slave_max_offset == 500)
        assert await service.wait_acked(501, 1) is SlaveAck.FLUSH_SLAVE_TIMEOUT


async def test_a_slave_that_has_gone_is_waited_for_no_more() -> None:
    log = MemoryLog()
    log.fill(3)
    async with master(log) as service:
        async with plain(service.address) as (_, writer):
            writer.write(encode_report(1))
            await until(lambda: len(service.status().slaves) == 1)
        await until(lambda: not service.status().slaves)
        assert await service.wait_acked(log.end_offset, 600_000) is SlaveAck.SLAVE_NOT_AVAILABLE


async def test_a_master_that_leaves_waits_for_the_slave_that_is_furthest_behind() -> None:
    log = MemoryLog()
    end = log.fill(3)
    async with (
        master(log) as service,
        plain(service.address) as (_, complete),
        plain(service.address) as (_, behind),
    ):
        for writer in (complete, behind):
            writer.write(encode_report(1))
        await until(lambda: [one.sent for one in service.status().slaves] == [end, end])
        complete.write(encode_report(end))
        await until(lambda: service.status().push2slave_max_offset == end)
        assert await service.drain(0.01) == end - 1
        behind.write(encode_report(end))
        assert await service.drain(3600.0) == 0, "at once, and not when the time is over"


# -- a slave -----------------------------------------------------------------------------------------------


async def problem_of(copy: MemoryLog, script: Any) -> Status:
    """What a slave says of a master that does this. Its log is as it was."""
    before = bytes(copy.data)
    async with (
        scripted(script) as address,
        following(copy, address, handshake=Handshake.REQUIRED, options=WHOLE, secret=SECRET) as client,
    ):
        await until(lambda: client.status().problem != "")
        problem = client.status().problem
    assert copy.data == before
    return Status(int(problem.split()[0]))


def welcoming(**other: Any) -> Any:
    """A master that knows the secret, and says this instead of what a slave's log asks for."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == encode_report(PROBE)
        challenge = Challenge(VERSION, bytes(NONCE_BYTES))
        writer.write(encode_challenge(challenge))
        said = await next_frame(reader)
        assert isinstance(said, Introduction)
        log = LogRange(0, 1 << 20, FILE_SIZE)
        welcome = Welcome(MASTER, log, said.log.end)._replace(**other)
        proof = SECRET.proof_of(to_prove_welcome(challenge, said, welcome))
        writer.write(encode_welcome(welcome._replace(proof=proof)))
        await reader.read()

    return script


@pytest.mark.parametrize(
    "other",
    [
        {"identity": MASTER._replace(cluster="other")},
        {"identity": MASTER._replace(broker_name="b")},
        {"identity": MASTER._replace(broker_id=1)},
        {"log": LogRange(0, 1 << 20, 2 * FILE_SIZE)},
        {"start": 0},
        {"start": FILE_SIZE},
    ],
)
async def test_a_slave_looks_at_a_master_that_does_not_look_at_it(other: dict[str, Any]) -> None:
    copy = MemoryLog()
    copy.fill(3)
    assert await problem_of(copy, welcoming(**other)) is Status.HA_IDENTITY


async def test_a_welcome_that_was_overheard_opens_no_other_connection() -> None:
    """Nobody without the secret is a master, not even with the words of a true one."""
    copy, said_once = MemoryLog(), list[bytes]()
    copy.fill(3)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        challenge = Challenge(VERSION, bytes(NONCE_BYTES))
        writer.write(encode_challenge(challenge))
        said = await next_frame(reader)
        assert isinstance(said, Introduction)
        if not said_once:
            welcome = Welcome(MASTER, LogRange(0, copy.end_offset, FILE_SIZE), said.log.end)
            proof = SECRET.proof_of(to_prove_welcome(challenge, said, welcome))
            said_once.append(encode_welcome(welcome._replace(proof=proof)))
            writer.write(said_once[0])
            return
        writer.write(said_once[0])
        await reader.read()

    async with scripted(script) as address:
        for is_true in (True, False):
            async with following(
                copy,
                address,
                handshake=Handshake.REQUIRED,
                options=replace(WHOLE, retry_first_s=3600.0, retry_most_s=3600.0),
                secret=SECRET,
            ) as client:
                if is_true:
                    await until(lambda one=client: one.status().by_handshake)
                else:
                    await until(lambda one=client: one.status().problem != "")
                    problem = client.status().problem
    assert Status(int(problem.split()[0])) is Status.HA_NOT_PROVEN


async def test_a_slave_that_requires_the_handshake_follows_nobody_without_it() -> None:
    log, copy = MemoryLog(), MemoryLog()
    log.fill(10)

    async def original(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """RocketMQ's: it waits for a first report that is not -1."""
        while (offset := int.from_bytes(await reader.readexactly(8), signed=True)) == -1:
            pass
        data = log.data[offset:]
        writer.write(offset.to_bytes(8) + len(data).to_bytes(4) + data)
        await reader.read()

    options = replace(WHOLE, connect_s=1.0, probe_s=0.05)
    async with (
        scripted(original) as address,
        following(copy, address, handshake=Handshake.REQUIRED, options=options) as client,
    ):
        await until(lambda: client.status().problem.startswith(f"{Status.HA_HANDSHAKE_MISSING:d} "))
        assert not copy.data
