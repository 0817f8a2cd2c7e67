"""Entries that no broker writes, committed on real nodes: all go on, agree, and start again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import MessageRecord, decode, encode, patch_offsets
from broker_adapter.wire.sys_flag import TRANSACTION_COMMIT
from dledger import Assigned
from dledger.core.values import ENTRY_HEADER_SIZE
from tests.broker_adapter.cluster import BrokerCluster, bodies, brokers, in_step, messages
from tests.broker_adapter.sending import send_to
from tests.broker_adapter.store.helpers import Log
from tests.broker_adapter.store.poison import good_entry, mutated
from tests.node.local import until


async def put_raw(program: BrokerProgram, record: bytes, queue_offset: int) -> None:
    """Commit a record as it is, but for the fields that tell where it lies."""

    def fill(assigned: Assigned) -> Sequence[bytes]:
        body = bytearray(record)
        try:
            patch_offsets(body, queue_offset, assigned.positions[0] + ENTRY_HEADER_SIZE)
        except ValueError:
            return [record]  # no magic number of a message
        return [bytes(body)]

    await program.node.append_batch([len(record)], fill, expected=program.writer.expected)


async def check_agreement(cluster: BrokerCluster) -> None:
    programs = list(cluster.programs.values())
    await in_step(*programs)
    states = {b"".join(program.dispatcher.save()) for program in programs}
    assert len(states) == 1, "all nodes make the same of the log"


async def check_service(cluster: BrokerCluster, life: int) -> None:
    """New messages are taken and read, in queues that poison was put into and in others.

    Some commands among the poison are valid: a delayed message may come due in between.
    """
    master = await cluster.master()
    for queue_id in range(2):
        body = f"life {life} queue {queue_id}"
        sent = await send_to(master, "T", messages(body), queue_id=queue_id)
        await in_step(master)
        read = decode((await master.broker.pull("T", queue_id, sent.queue_offset)).records[0])
        assert (read.queue_offset, read.body) == (sent.queue_offset, body.encode())
        next_one = await send_to(master, "T", messages(body), queue_id=queue_id)
        assert next_one.queue_offset > sent.queue_offset
        await in_step(master)


async def test_any_bytes_can_be_committed_and_all_nodes_go_on_and_start_again(tmp_path: Path) -> None:
    rng = Random(26)
    async with brokers(tmp_path) as cluster:
        await check_service(cluster, 0)
        for life in range(1, 3):
            master = await cluster.master()
            for _ in range(40):
                record = good_entry(Log(), rng, DeliveryState()).body
                wrong = mutated(record, rng)
                wrong = len(wrong).to_bytes(4) + wrong[4:]
                near = master.writer.table.next_offset("T", 0) + rng.choice((-1, 0, 1, 3))
                await put_raw(master, wrong, max(0, rng.choice((near, 1 << 62))))
            await in_step(*cluster.programs.values())
            await check_service(cluster, life)
            await check_agreement(cluster)
            assert master.dispatcher.figures().set_aside.number > 0
            await cluster.stop()
            shutil.rmtree(tmp_path / "n1" / "broker", ignore_errors=True)  # made of the log again
            await cluster.start()
            await check_service(cluster, life)
            await check_agreement(cluster)


@pytest.mark.parametrize("bits", [0x4, 0xC])
async def test_transaction_bits_are_refused_and_logs_that_have_them_go_on(tmp_path: Path, bits: int) -> None:
    """One such message, which took an offset and was left out of its queue, stopped all nodes for good."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await check_service(cluster, 0)
        with pytest.raises(IllegalMessage) as caught:
            await send_to(program, "T", [OutgoingMessage(b"x", sys_flag=bits)], queue_id=0)
        assert caught.value.status is Status.FIELD_OUT_OF_RANGE
        before = await bodies(program, "T", 0)
        record = encode(MessageRecord("T", b"from an earlier version", sys_flag=bits))
        program.writer.table.reserve("T", 0, 1)
        await put_raw(program, bytes(record), len(before))
        await check_service(cluster, 1)
        await cluster.stop()
        await cluster.start()
        program = await cluster.master()
        await check_service(cluster, 2)
        found = await bodies(program, "T", 0)
        assert found[: len(before)] == before and len(found) == len(before) + 4
        # By time and by pop, what is behind the hole is found as well.
        stats = program.files.bounds("T", 0)
        assert stats == (0, len(found) + 1)
        reader = program.broker._reader
        assert reader.offset_by_time("T", 0, 0) == 0
        assert reader.offset_by_time("T", 0, 1 << 50) == stats[1]
        assert reader.newest_ms("T", 0) > 0


async def test_a_message_with_bits_of_transactions_can_become_a_dead_letter(tmp_path: Path) -> None:
    """Else it would be the first of its group for ever."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await send_to(program, "T", messages("a"), queue_id=0)
        record = encode(MessageRecord("T", b"from an earlier version", sys_flag=TRANSACTION_COMMIT))
        await put_raw(program, bytes(record), program.writer.table.reserve("T", 0, 1))
        await in_step(program)
        found = await program.delivery.receive("g", "T", client_id="c", invisible_ms=60_000)
        assert [decode(one.record).body for one in found] == [b"a", b"from an earlier version"]
        await program.delivery.dead_letter("g", "T", found[1].handle)
        await in_step(program)
        assert await bodies(program, "%DLQ%g", 0) == [b"from an earlier version"]


async def test_an_offset_that_an_entry_has_taken_by_itself_is_given_to_no_message(tmp_path: Path) -> None:
    """What would come to the same offset is acknowledged, and in no queue."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await send_to(program, "T", messages("a"), queue_id=0)
        await put_raw(program, bytes(encode(MessageRecord("T", b"of nobody"))), 1)
        await in_step(program)
        await until(lambda: program.writer.table.next_offset("T", 0) == 2)
        assert (await send_to(program, "T", messages("b"), queue_id=0)).queue_offset == 2
        await in_step(program)
        assert await bodies(program, "T", 0) == [b"a", b"of nobody", b"b"]
