"""The feed gives the dispatcher whole appends, however small its pieces are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_adapter.log.classic.append_heads import APPEND_TOPIC
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.node import feed as feed_module
from broker_adapter.log.classic.node.feed import DispatchFeed
from broker_adapter.wire.message import decode
from dledger import Applied, AppliedEntry
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.classic.log_helpers import append_of, opened, put, record


class Machine:
    """Notes the end of each piece that it gets, and the bodies of its messages."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.bodies: list[bytes] = []

    def recover(self) -> Applied | None:
        return None

    def rebuild_from(self, physical_offset: int) -> None: ...

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        messages = [decode(entry.body) for entry in entries]
        if messages:  # a piece may be a blank
            self.ends.append(entries[-1].pos + len(entries[-1].body))
        self.bodies += [message.body for message in messages if message.topic != APPEND_TOPIC]

    def close(self) -> None: ...


async def dispatched(log: CommitLogFiles, limit: int) -> Machine:
    machine, failures = Machine(), list[Exception]()
    with ThreadPoolExecutor(1) as thread:
        feed = DispatchFeed(log, machine, thread, failures.append)
        await feed.start(lambda is_new: None)
        feed.advance(limit)
        async with asyncio.timeout(30):
            await feed.wait(limit, 30_000)
        await feed.stop()
    assert not failures
    return machine


@pytest.mark.parametrize("piece_bytes", [100, 300, 500, 1 << 20])
async def test_a_piece_never_ends_within_an_append(monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(feed_module, "_PIECE_BYTES", piece_bytes)
    log, ends, bodies = opened(SimDisk()), set[int](), list[bytes]()
    for number in range(12):
        texts = [b"%d.%d" % (number, at) * (1 + 9 * at) for at in range(1 + number % 4)]
        if len(texts) > 1:
            log.append(append_of(log, *texts)[1])
        else:
            put(log, *texts)
        ends.add(log.end_offset)
        bodies += texts
    machine = await dispatched(log, log.end_offset)
    assert machine.bodies == bodies and set(machine.ends) <= ends
    assert len(machine.ends) == 12 or piece_bytes > 100


@pytest.mark.parametrize("piece_bytes", [100, 300, 1 << 20])
async def test_records_behind_an_append_that_another_broker_continued_are_dispatched(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(feed_module, "_PIECE_BYTES", piece_bytes)
    log = opened(SimDisk())
    begin, records = append_of(log, *[b"%d" % number * 50 for number in range(5)])
    log.append_bytes(begin, b"".join(records[:2]))
    assert log.complete_end_offset == begin
    foreign = [b"f%d" % number for number in range(6)]
    for body in foreign[:2]:
        log.append_bytes(log.end_offset, bytes(record(body, log.end_offset)))
    machine = await dispatched(log, log.complete_end_offset)
    assert machine.bodies == [b"0" * 50, *foreign[:2]]
    for body in foreign[2:]:
        put(log, body)
    assert (await dispatched(log, log.complete_end_offset)).bodies == [b"0" * 50, *foreign]
