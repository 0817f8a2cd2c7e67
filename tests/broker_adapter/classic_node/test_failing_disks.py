"""A node whose disk fails, or whose derived files lag behind."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, Busy, ResponseCode, Status
from broker_adapter.put.message_writer import AppendedBatch, MessageWriter
from broker_adapter.wire.host import NO_HOST
from dledger.infra.files.disk import Buffer, OsDisk
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.classic_node.test_classic_node import messages
from tests.broker_adapter.sending import send_to
from tests.node.local import until

ASYNC = {"broker_role": "ASYNC_MASTER", "waits_for_slaves": False}


class FailingDisk(OsDisk):
    is_broken = cannot_allocate = False

    def allocate(self, handle: int, offset: int, size: int) -> None:
        if self.cannot_allocate:
            raise OSError(errno.EIO, "no such sector")
        super().allocate(handle, offset, size)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.is_broken:
            raise OSError(errno.EIO, "no such sector")
        return super().pwritev(handle, buffers, offset)


def test_a_slave_whose_disk_does_not_write_ends_as_its_master_would(tmp_path: Path) -> None:
    """Nothing of it has to be synced: nobody else would find out."""

    async def run() -> None:
        disk, fatal = FailingDisk(), list[Exception]()
        async with classic_pair(tmp_path, flush="ASYNC_FLUSH") as pair:
            await pair.start("n1", **ASYNC)
            program = pair.programs["n2"] = pair.program("n2", broker_role="SLAVE")
            await program.make_node(disk=disk, on_fatal=fatal.append).start()
            await program.start()
            master, node = await pair.writable("n1"), pair.node("n2")
            await until(lambda: node.replication.follows)
            disk.is_broken = True
            await send_to(master, "t", messages("a"), queue_id=0)
            await until(lambda: fatal != [])
            assert isinstance(fatal[0], BrokerError) and fatal[0].status is Status.LOG_FAILED
            assert node.health.startswith("failed")

    asyncio.run(run())


async def test_a_master_whose_next_file_cannot_be_made_ends(tmp_path: Path) -> None:
    """By an append: nothing was written, and nothing has to be synced."""
    disk, fatal = FailingDisk(), list[Exception]()
    disk.cannot_allocate = True
    async with classic_pair(tmp_path) as pair:
        program = pair.programs["n1"] = pair.program("n1", **ASYNC)
        await program.make_node(disk=disk, on_fatal=fatal.append).start()
        await program.start()
        await until(lambda: program.writer.expected is not None)
        with pytest.raises(BrokerError) as caught:
            await program.broker.put_topic(TopicConfig("t", 1, 1))
        assert caught.value.status is Status.LOG_FAILED
        await until(lambda: fatal != [])
        assert fatal == [pair.node("n1").log.failure]


@pytest.mark.slow
def test_the_checkpoint_says_nothing_of_messages_that_were_not_dispatched(tmp_path: Path) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path, flush="ASYNC_FLUSH") as pair:
            await pair.start("n1", **ASYNC)
            master, node = await pair.writable("n1"), pair.node("n1")
            await send_to(master, "t", messages("a"), queue_id=0)
            await until(lambda: master.dispatcher.figures().checkpoint.end_pos == node.log.end_offset)
            before_ms, goes_on = node.log.last_stamp_ms, threading.Event()
            node._machine_thread.submit(goes_on.wait)
            try:
                await until(lambda: node.cluster_time_ms() > before_ms)
                await send_to(master, "t", messages("b"), queue_id=0)
                assert node.log.last_stamp_ms > before_ms
                node._note_derived()
                assert node.log.checkpoint.logics_ms <= before_ms
            finally:
                goes_on.set()
            newest_ms = node.log.last_stamp_ms
            await until(lambda: node.log.checkpoint.logics_ms >= newest_ms)

    asyncio.run(run())


class StalledDisk(OsDisk):
    """Its syncs stand still while `may_go` is not set."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()

    def fdatasync(self, handle: int) -> None:
        self.may_go.wait()
        super().fdatasync(handle)


async def append(writer: MessageWriter, text: str) -> AppendedBatch:
    """Without waiting for the append before it."""
    return await writer.put_together([writer.records("t", 0, messages(text), born_host=NO_HOST)], "", [])


def test_a_master_whose_disk_stands_still_refuses_appends_until_it_goes_on(tmp_path: Path) -> None:
    """Else each waits for its time-out, and is in the log all the same."""

    async def run() -> None:
        disk, clock_s = StalledDisk(), [0.0]
        async with classic_pair(tmp_path) as pair:
            program = pair.programs["n1"] = pair.program("n1", page_cache_busy_ms=700, **ASYNC)
            await program.make_node(disk=disk).start()
            await program.start()
            master, node = await pair.writable("n1"), pair.node("n1")
            await send_to(master, "t", messages("makes the topic"), queue_id=0)
            node.commit._now = lambda: clock_s[0]
            disk.may_go.clear()
            try:
                stored = asyncio.ensure_future(append(master.writer, "a"))
                await until(lambda: node.commit.syncing_since is not None)
                clock_s[0] = 0.7
                also = asyncio.ensure_future(append(master.writer, "b"))
                end = node.log.end_offset
                await until(lambda: node.log.end_offset > end)
                end, clock_s[0] = node.log.end_offset, 0.701
                with pytest.raises(Busy, match=r"REJECTREQUEST.*701 ms") as refused:
                    await append(master.writer, "refused")
                assert refused.value.status is Status.OS_PAGE_CACHE_BUSY
                assert refused.value.response_code is ResponseCode.SYSTEM_BUSY
                assert node.log.end_offset == end and not stored.done()
            finally:
                disk.may_go.set()
            assert [(await one).places[0].queue_offset for one in (stored, also)] == [1, 2]
            assert (await send_to(master, "t", messages("c"), queue_id=0)).queue_offset == 3

    asyncio.run(run())
