"""Appends of several records are all or nothing: with masters that die while they send, kills and cuts."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.commit_log_files import CommitLogFiles, CommitLogOptions
from broker_adapter.log.classic.ha.connection import HaConnection
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.put.sender import PutResult
from broker_adapter.scheduled.deferring import OrphanedHalf, Resolution
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.message import BLANK_MAGIC, decode
from dledger import ReadFailed
from dledger.infra.files.disk import OsDisk
from tests.broker_adapter.sending import send_to
from tests.node.local import until

from .classic_pair import FILE_SIZE, ClassicPair, classic_pair
from .test_logged_merges import copy_running, replace_directory
from .test_system_queues import ALONE, OFTEN, bodies, delayed, half, outgoing, read, started

#: A part of an append, which ends within a record.
_SENT_BYTES = 40_000
_LATE = {**OFTEN, "check_first_ms": 60_000, "check_again_ms": 60_000}


def texts(program: BrokerProgram, topic: str = "t") -> list[bytes]:
    queues = range(program.metadata.topics[topic].read_queues)
    return [message.body[:4] for queue_id in queues for message in read(program, topic, queue_id)]


def repeated(program: BrokerProgram) -> dict[bytes, int]:
    return {text: count for text, count in Counter(texts(program)).items() if count > 1}


def body(number: int) -> bytes:
    return b"%04d" % number + bytes(8_000)


class DyingMaster:
    """A master whose streams to slaves end after `left` more bytes, as if it died."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        send, may_send = HaConnection._send, HaConnection._may_send
        self.left = left

        def send_until_dead(connection: HaConnection, data: bytes) -> None:
            data = data[: max(0, self.left)]
            if data:
                self.left -= len(data)
                send(connection, data)

        monkeypatch.setattr(HaConnection, "_send", send_until_dead)
        monkeypatch.setattr(HaConnection, "_may_send", lambda one: self.left > 0 and may_send(one))


async def followed(pair: ClassicPair) -> BrokerProgram:
    """The master, with a topic that its slave has, too."""
    program = await pair.writable("n1")
    await program.broker.put_topic(TopicConfig("t", 1, 1))
    await pair.in_step()
    return program


async def promoted(pair: ClassicPair) -> BrokerProgram:
    """The slave, as master, once it had received the first part of its master's last append."""
    log = pair.node("n2").log
    await until(lambda: log.complete_end_offset < log.end_offset)
    assert pair.node("n2").feed.position <= log.complete_end_offset
    with pytest.raises(ReadFailed):
        pair.programs["n2"].host.records.record_at(log.complete_end_offset)
    await pair.stop("n1")
    await pair.node("n2").change_role(True, force=True)
    program = await pair.writable("n2")
    await program.files.wait_applied()
    return program


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_batch_whose_master_died_while_it_sent_is_not_there_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    async with classic_pair(tmp_path, "n1", "n2", flush=flush) as pair:
        program = await followed(pair)
        born = time.time_ns() // 1_000_000
        batch = [OutgoingMessage(body(number), {}, born_timestamp=born) for number in range(20)]

        async def send(program: BrokerProgram) -> PutResult:
            return await send_to(program, "t", batch, message_id="id", queue_id=0, timeout_ms=1_000)

        DyingMaster(monkeypatch, _SENT_BYTES)
        first = asyncio.create_task(send(program))
        program = await promoted(pair)
        await asyncio.gather(first, return_exceptions=True)
        assert texts(program) == []
        await send(program)
        await program.files.wait_applied()
        assert texts(program) == [message.body[:4] for message in batch]


async def test_sends_with_ids_are_stored_once_when_their_master_died_while_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with classic_pair(tmp_path, "n1", "n2") as pair:
        program = await followed(pair)
        born = time.time_ns() // 1_000_000
        DyingMaster(monkeypatch, _SENT_BYTES)

        async def send(program: BrokerProgram, number: int) -> PutResult:
            message = OutgoingMessage(body(number), {}, born_timestamp=born)
            return await send_to(
                program, "t", message, message_id=f"id{number}", queue_id=0, timeout_ms=1_000
            )

        first = [asyncio.create_task(send(program, number)) for number in range(20)]
        program = await promoted(pair)
        await asyncio.gather(*first, return_exceptions=True)
        for number in range(20):
            await send(program, number)
        await program.files.wait_applied()
        assert len(texts(program)) == 20 and not repeated(program)


async def test_delayed_messages_come_once_when_their_master_died_while_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with classic_pair(tmp_path, "n1", "n2") as pair:
        program = await followed(pair)
        await send_delayed(program)
        await pair.in_step()
        DyingMaster(monkeypatch, _SENT_BYTES)
        program = await promoted(pair)
        await until(lambda: program.delivery_state.system_offset(SCHEDULE_TOPIC, 0) == 20)
        await program.files.wait_applied()
        assert len(texts(program)) == 20 and not repeated(program)


async def send_delayed(program: BrokerProgram) -> None:
    due_ms = time.time_ns() // 1_000_000 + 1_000
    sends = [
        program.delivery.send_delayed(
            "t", OutgoingMessage(body(number), {}), message_id=f"d{number}", deliver_at_ms=due_ms, level=1
        )
        for number in range(20)
    ]
    await asyncio.gather(*sends)


async def test_a_half_is_committed_once_when_its_op_message_did_not_reach_the_slave(tmp_path: Path) -> None:
    async with classic_pair(tmp_path, "n1", "n2") as pair:
        pair.more = {"delivery": _LATE}
        await pair.stop()
        await pair.start("n1", "n2")
        program = await followed(pair)
        transaction = await half(program, "0000", check_after_ms=60_000)
        await pair.in_step()
        slave, master = pair.node("n2"), pair.node("n1").log
        await slave.replication.stop()
        await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        for _ in ("head", "message"):
            begin = slave.log.end_offset
            slave.log.append_bytes(begin, master.read(begin, int.from_bytes(master.read(begin, 4), "big")))
        assert decode(slave.log.read(begin, FILE_SIZE)).body == b"0000"
        program = await promoted(pair)
        assert texts(program) == []
        await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
        await program.files.wait_applied()
        assert texts(program) == [b"0000"]


@pytest.mark.parametrize("append", ["batch", "commit", "levels"])
async def test_a_kill_at_any_record_of_an_append_leaves_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, append: str
) -> None:
    async with classic_pair(tmp_path) as pair:
        pair.more = {"delivery": _LATE}
        program = await started(pair)
        born = time.time_ns() // 1_000_000
        batch = [OutgoingMessage(body(number), {}, born_timestamp=born) for number in range(20)]
        transaction = ""
        if append == "commit":
            transaction = await half(program, "0000", check_after_ms=60_000)
        elif append == "levels":
            await send_delayed(program)

        async def run(program: BrokerProgram) -> None:
            if append == "batch":
                await send_to(program, "t", batch, message_id="id", queue_id=0)
            elif append == "commit":
                await program.delivery.end_transaction("t", transaction, Resolution.COMMIT)
            else:
                await until(lambda: program.delivery_state.system_offset(SCHEDULE_TOPIC, 0) == 20)
            await program.files.wait_applied()

        write = CommitLogFiles._write
        kills: list[tuple[int, Path]] = []

        def write_in_parts(
            log: CommitLogFiles, begin: int, within: int, buffers: Sequence[bytes | bytearray]
        ) -> None:
            if len(buffers) < 2 or kills:
                write(log, begin, within, buffers)
                return
            for number, buffer in enumerate(buffers):
                write(log, begin, within, [buffer])
                within += len(buffer)
                if number in (0, 1, len(buffers) - 2):
                    kills.append((number, tmp_path / f"killed{number}"))
                    copy_running(tmp_path / "n1", kills[-1][1])

        monkeypatch.setattr(CommitLogFiles, "_write", write_in_parts)
        await run(program)
        monkeypatch.setattr(CommitLogFiles, "_write", write)
        await pair.stop("n1")
        assert len(kills) >= 2
        expected = 1 if append == "commit" else 20
        for number, copy in kills:
            replace_directory(tmp_path / "n1", copy)
            await pair.start("n1", **ALONE)
            program = await pair.writable("n1")
            await program.files.wait_applied()
            if append != "levels":
                assert texts(program) == [], number
            await run(program)
            assert len(texts(program)) == expected and not repeated(program), number
            await pair.stop("n1")


def boundaries(root: Path, begin: int) -> list[int]:
    """Where records end in the log behind `begin`."""
    found = []
    log = open_commit_log(root, OsDisk(), CommitLogOptions(FILE_SIZE))
    at = begin
    while at < log.end_offset:
        left = FILE_SIZE - at % FILE_SIZE
        is_blank = left < 8 or int.from_bytes(log.read(at + 4, 4), "big") == BLANK_MAGIC
        at += left if is_blank else int.from_bytes(log.read(at, 4), "big")
        found.append(at)
    log.close(keep_abort=True)
    return found


def cut_log(root: Path, end: int) -> None:
    """Zeros from `end` on, as a loss of power may leave them."""
    for path in sorted((root / "commitlog").iterdir()):
        within = max(0, end - int(path.name))
        if within < FILE_SIZE:
            path.write_bytes(path.read_bytes()[:within].ljust(FILE_SIZE, b"\0"))


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8)]])
async def test_after_a_cut_at_any_record_each_message_comes_once(tmp_path: Path, seed: int) -> None:
    """Sends, halves, their ends, checks and levels; then the log loses everything behind some record."""
    lots = random.Random(seed)
    async with classic_pair(tmp_path) as pair:
        pair.more = {"delivery": OFTEN}
        program = await started(pair)
        program.delivery.on_orphan(lambda orphan: None)
        await pair.stop()
        shutil.copytree(tmp_path / "n1", tmp_path / "left")
        program = await started(pair)
        begin = pair.node("n1").log.end_offset
        fates = await run_mix(program, pair.node("n1").log, lots)
        copy_running(tmp_path / "n1", tmp_path / "killed")
        acknowledged = fates.acknowledged
        await pair.stop()
        ends = boundaries(shutil.copytree(tmp_path / "killed", tmp_path / "probe"), begin)
        for end in sorted(lots.sample(ends, min(len(ends), 12))):
            replace_directory(tmp_path / "n1", tmp_path / "left")
            replace_directory(tmp_path / "n1/commitlog", tmp_path / "killed/commitlog")
            cut_log(tmp_path / "n1", end)
            (tmp_path / "n1/abort").touch()
            program = await started(pair)
            fates.end_orphans(program)
            wanted = {text for at, text in acknowledged if at <= end and not fates.is_rolled_back(text)}
            await until(partial(has_all, program, wanted))
            await asyncio.gather(*fates.ends, return_exceptions=True)
            await program.files.wait_applied()
            found = Counter(bodies(program))
            assert max(found.values(), default=0) <= 1, (end, found)
            assert not any(fates.is_rolled_back(text) for text in found), (end, found)
            await pair.stop()


def has_all(program: BrokerProgram, wanted: set[str]) -> bool:
    return wanted <= set(bodies(program))


class Fates:
    """What a workload sent, and how each half ends."""

    def __init__(self) -> None:
        self.resolutions: dict[str, Resolution] = {}
        self.acknowledged: list[tuple[int, str]] = []
        self.ends: list[asyncio.Task[None]] = []

    def is_rolled_back(self, text: str) -> bool:
        return self.resolutions.get(text) is Resolution.ROLLBACK

    def end_orphans(self, program: BrokerProgram) -> None:
        async def end(orphan: OrphanedHalf) -> None:
            text = decode(orphan.record).body.decode()
            with suppress(BrokerError):  # it was ended meanwhile
                await program.delivery.end_transaction("t", orphan.transaction_id, self.resolutions[text])

        program.delivery.on_orphan(lambda orphan: self.ends.append(asyncio.ensure_future(end(orphan))))


async def run_mix(program: BrokerProgram, log: CommitLogFiles, lots: random.Random) -> Fates:
    fates, halves = Fates(), dict[str, str]()
    for number in range(14):
        kind = lots.choice(["send", "half", "half", "level", "end", "end"])
        text = f"{kind}{number}"
        if kind == "send":
            await send_to(program, "t", outgoing(text), message_id=text)
        elif kind == "half":
            fates.resolutions[text] = lots.choice([Resolution.COMMIT, Resolution.ROLLBACK])
            halves[text] = await half(program, text)
        elif kind == "level":
            await delayed(program, text, 1)
        elif halves:
            ended = lots.choice(sorted(halves))
            await program.delivery.end_transaction("t", halves.pop(ended), fates.resolutions[ended])
        if kind != "end":
            fates.acknowledged.append((log.end_offset, text))
    levels = sum(text.startswith("level") for _, text in fates.acknowledged)
    await until(lambda: program.delivery_state.system_offset(SCHEDULE_TOPIC, 0) >= levels)
    return fates
