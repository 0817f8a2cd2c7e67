"""Delivery on a real node, through the log and back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery.api import AckStatus, Delayed, Half, OrphanedHalf, Resolution, Sent
from broker_adapter.errors import ReadFailed, Status
from broker_adapter.message import decode
from broker_adapter.properties import split_properties
from tests.broker_adapter.cluster import brokers


def message(text: str, **properties: str) -> OutgoingMessage:
    return OutgoingMessage(text.encode(), properties)


async def test_what_was_sent_is_received_and_acknowledged_once(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        delivery = (await cluster.master()).delivery
        sent = await asyncio.gather(
            *[delivery.send("t", message(f"m{i}"), message_id=f"id{i}") for i in range(50)]
        )
        assert len({(one.queue_id, one.queue_offset) for one in sent}) == 50
        again = await delivery.send("t", message("m7"), message_id="id7")
        assert again == Sent(sent[7].queue_id, sent[7].queue_offset, True)
        bodies: list[bytes] = []
        while len(bodies) < 50:
            found = await delivery.receive("g", "t", client_id="c", invisible_ms=30_000, wait_ms=2000)
            bodies += [decode(one.record).body for one in found]
            statuses = await delivery.ack("g", "t", [one.handle for one in found])
            assert statuses == [AckStatus.OK] * len(found)
            assert await delivery.ack("g", "t", [found[0].handle, "?"]) == [AckStatus.INVALID_HANDLE] * 2
        assert sorted(bodies) == sorted(b"m%d" % i for i in range(50))
        assert await delivery.receive("g", "t", client_id="c", wait_ms=1) == []


async def test_a_waiting_receive_is_woken_by_a_send_and_by_a_time_that_is_over(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        delivery = (await cluster.master()).delivery
        await delivery.send("t", message("first"), message_id="1")
        (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=60_000)
        waiting = asyncio.create_task(delivery.receive("g", "t", client_id="c", wait_ms=20_000))
        handle = await delivery.change_invisible("g", "t", one.handle, 50)
        (again,) = await waiting
        assert again.attempt == 2
        with pytest.raises(ReadFailed) as refused:
            await delivery.change_invisible("g", "t", handle, 50)
        assert refused.value.status is Status.HANDLE_INVALID
        waiting = asyncio.create_task(delivery.receive("g", "t", client_id="c", wait_ms=20_000))
        await delivery.send("t", message("second"), message_id="2")
        assert [decode(found.record).body for found in await waiting] == [b"second"]


async def test_delays_and_halves_come_into_their_queues_once(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        asked: list[OrphanedHalf] = []
        heard = asyncio.Event()

        def ask(half: OrphanedHalf) -> None:
            asked.append(half)
            heard.set()

        delivery.on_orphan(ask)
        now = program.node.cluster_time_ms()
        delayed = await delivery.send_delayed("t", message("d"), message_id="d", deliver_at_ms=now + 200)
        assert await delivery.send_delayed(
            "t", message("d"), message_id="d", deliver_at_ms=now + 200
        ) == Delayed(delayed.recall_handle, True)
        other = await delivery.send_delayed("t", message("r"), message_id="r", deliver_at_ms=now + 60_000)
        assert await delivery.recall("t", other.recall_handle) == "r"
        with pytest.raises(ReadFailed):
            await delivery.recall("t", other.recall_handle)
        half = await delivery.send_half("t", message("h"), message_id="h", client_id="p", check_after_ms=50)
        assert isinstance(half, Half)
        (found,) = await delivery.receive("g", "t", client_id="c", invisible_ms=9999, wait_ms=9999)
        assert decode(found.record).body == b"d"
        await asyncio.wait_for(heard.wait(), 20)
        assert (asked[0].transaction_id, asked[0].client_id) == (half.transaction_id, "p")
        assert decode(asked[0].record).body == b"h"
        await delivery.end_transaction("t", half.transaction_id, Resolution.COMMIT)
        await delivery.end_transaction("t", half.transaction_id, Resolution.COMMIT)
        with pytest.raises(ReadFailed):
            await delivery.end_transaction("t", half.transaction_id, Resolution.ROLLBACK)
        (found,) = await delivery.receive("g", "t", client_id="c", invisible_ms=9999, wait_ms=9999)
        assert decode(found.record).body == b"h"
        properties = split_properties(decode(found.record).properties)
        assert properties["__transactionId__"] == half.transaction_id
        assert await delivery.receive("g", "t", client_id="c", wait_ms=1) == []


async def test_what_was_given_too_often_goes_to_the_dead_letters(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        from broker_adapter.api import GroupConfig

        await program.broker.put_group(GroupConfig("g", retry_max_times=1))
        await delivery.send("t", message("x", colour="red"), message_id="x")
        for attempt in (1, 2):
            (one,) = await delivery.receive("g", "t", client_id="c", invisible_ms=20, wait_ms=5000)
            assert one.attempt == attempt
        assert await delivery.receive("g", "t", client_id="c", invisible_ms=20, wait_ms=300) == []
        (dead,) = await delivery.receive("other", "%DLQ%g", client_id="c", wait_ms=5000)
        properties = split_properties(decode(dead.record).properties)
        assert properties["DLQ_ORIGIN_TOPIC"] == "t"
        assert properties["DLQ_ORIGIN_MESSAGE_ID"] == "x"
        assert properties["colour"] == "red"
        _, offsets = await program.broker.offsets("g")
        assert [one.offset for one in offsets if one.topic == "t"].count(1) == 1
