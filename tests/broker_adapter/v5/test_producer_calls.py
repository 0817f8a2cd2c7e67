"""SendMessage, EndTransaction and RecallMessage, and what of errors is an answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5.calls.producer_calls import queue_of
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import (
    BrokerError,
    Busy,
    NotMaster,
    PutIndeterminate,
    PutRefused,
    Status,
    TopicRefused,
)
from broker_adapter.put.sender import PutResult, Send
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.wire.java_hash import java_hash
from broker_adapter.wire.message import decode
from tests.broker_adapter.v5.world import MAX_BODY, World, message, resource, world

Code, KINDS = pb.Code, pb.MessageType


def delayed(body: bytes, after_ms: int, message_id: str = "id-1") -> pb.Message:
    made = message(body, message_id=message_id, message_type=KINDS.DELAY)
    made.system_properties.delivery_timestamp.FromMilliseconds(int(time.time() * 1000) + after_ms)
    return made


async def bodies(w: World, **fields: Any) -> list[bytes]:
    return [found.body for found in await w.messages(**fields)]


async def test_an_entry_tells_where_a_message_is() -> None:
    """Quirk: outside of transactions clients expect the message id in place of the transaction's."""
    async with world() as w:
        await w.send(message(message_id="a", message_type=KINDS.FIFO, message_group="g"))
        answer = await w.send(message(message_id="b", message_type=KINDS.FIFO, message_group="g"))
        (entry,) = answer.entries
        assert (entry.status.code, entry.message_id, entry.transaction_id) == (Code.OK, "b", "b")
        assert (entry.offset, entry.recall_handle) == (1, "")


async def test_the_same_message_id_is_stored_once() -> None:
    async with world() as w:
        first, again = await w.send(message(b"x")), await w.send(message(b"x"))
        (one,), (other,) = first.entries, again.entries
        assert (one.status.message, other.status.message) == ("OK", "OK, duplicate=true")
        assert (one.message_id, one.offset) == (other.message_id, other.offset)
        assert await bodies(w) == [b"x"]


async def test_a_batch_has_an_entry_for_each_message_in_order() -> None:
    async with world() as w:
        answer = await w.send(*(message(b"%d" % i, message_id=f"m{i}") for i in range(5)))
        assert answer.status.code == Code.OK
        assert [entry.message_id for entry in answer.entries] == [f"m{i}" for i in range(5)]
        assert sorted(await bodies(w)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_messages_of_a_group_keep_their_order_in_a_batch() -> None:
    async with world() as w:
        await w.send(
            *(
                message(b"%d" % i, message_id=f"m{i}", message_type=KINDS.FIFO, message_group="g")
                for i in range(5)
            )
        )
        assert await bodies(w) == [b"0", b"1", b"2", b"3", b"4"]


async def test_nothing_of_a_group_overtakes_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends the refused message again would find it behind those that were sent after it."""
    async with world() as w:
        store, tried = w.delivery.send_one, list[str]()

        async def send_one(send: Send) -> PutResult:
            tried.append(send.message_id)
            if tried == ["a0"]:
                raise Busy(Status.TOO_MANY_PENDING_BYTES, "try again later")
            return await store(send)

        monkeypatch.setattr(w.delivery, "send_one", send_one)
        batch = [
            message(
                f"{group}{i}".encode(), message_id=f"{group}{i}", message_type=KINDS.FIFO, message_group=group
            )
            for i in range(3)
            for group in "ab"
        ]
        answer = await w.send(*batch)
        assert answer.status.code == Code.MULTIPLE_RESULTS
        assert [one.status.code for one in answer.entries] == [Code.TOO_MANY_REQUESTS, Code.OK] * 3
        assert [one.message_id for one in answer.entries] == ["a0", "b0", "a1", "b1", "a2", "b2"]
        assert tried == ["a0", "b0", "b1", "b2"]
        assert (await w.send(*batch)).status.code == Code.OK
        stored = await bodies(w)
        for group in (b"a", b"b"):
            assert [one for one in stored if one[:1] == group] == [group + b"%d" % i for i in range(3)]


def in_group(message_id: str) -> pb.Message:
    return message(
        message_id.encode(), message_id=message_id, message_type=KINDS.FIFO, message_group=message_id[0]
    )


async def test_a_delayed_message_of_a_batch_does_not_let_a_group_overtake_a_refused_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:

        async def send_one(send: Send) -> PutResult:
            assert send.message_id == "a0"
            raise Busy(Status.TOO_MANY_PENDING_BYTES, "try again later")

        monkeypatch.setattr(w.delivery, "send_one", send_one)
        answer = await w.send(in_group("a0"), delayed(b"late", 60_000, message_id="d0"), in_group("a1"))
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.TOO_MANY_REQUESTS, Code.OK, Code.TOO_MANY_REQUESTS]


async def test_entries_of_a_batch_with_a_delayed_message_have_the_order_of_its_messages() -> None:
    async with world() as w:
        answer = await w.send(delayed(b"late", 60_000, message_id="d0"), message(message_id="m1"))
        assert [entry.message_id for entry in answer.entries] == ["d0", "m1"]
        assert [bool(entry.recall_handle) for entry in answer.entries] == [True, False]


async def test_messages_of_a_batch_share_an_append_unless_they_share_a_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        store, lists = w.delivery.send, list[list[str]]()

        async def send(sends: Sequence[Send]) -> list[PutResult | BrokerError]:
            lists.append([one.message_id for one in sends])
            return await store(sends)

        monkeypatch.setattr(w.delivery, "send", send)
        await w.send(message(message_id="m0"), in_group("a0"), in_group("a1"), message(message_id="m1"))
        assert lists == [["m0", "a0", "m1"], ["a1"]]


async def test_a_message_group_has_one_queue() -> None:
    async with world() as w:
        for i in range(6):
            kind = {"message_type": KINDS.FIFO, "message_group": f"g{i % 3}"}
            await w.send(message(b"x", message_id=f"m{i}", **kind))
        for (_, queue_id), records in w.delivery.queues.items():
            for record in records:
                group = next(g for g in ("g0", "g1", "g2") if g in decode(record).properties)
                assert queue_id == java_hash(group) % 4 == queue_of(group, 4)


async def test_the_queue_that_a_client_names_does_not_matter() -> None:
    """Quirk: Python names queue 0 always."""
    async with world() as w:
        for i in range(8):
            await w.send(message(message_id=f"m{i}", queue_id=0))
        assert len([queue for queue in w.delivery.queues.values() if queue]) > 1


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([], Code.BAD_REQUEST),
        ([message(topic="t"), message(topic="u")], Code.BAD_REQUEST),
        ([message(topic="no such name")], Code.ILLEGAL_TOPIC),
        ([message(b"x" * (MAX_BODY + 1))], Code.MESSAGE_BODY_TOO_LARGE),
        ([message(), message(tag="a|b")], Code.ILLEGAL_MESSAGE_TAG),
    ],
)
async def test_a_request_that_is_wrong_stores_nothing(messages: list[pb.Message], code: int) -> None:
    async with world() as w:
        assert (await w.send(*messages)).status.code == code
        assert not any(w.delivery.queues.values())


async def test_a_topic_of_another_type_takes_no_such_message() -> None:
    class FifoTopic(TopicConfig):
        message_type = "FIFO"

    async with world() as w:
        w.delivery.topics["t"] = FifoTopic("t")
        assert (await w.send(message())).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        ordered = message(message_type=KINDS.FIFO, message_group="g")
        assert (await w.send(ordered)).status.code == Code.OK


async def test_a_topic_that_may_not_be_created_is_not_found() -> None:
    async with world() as w:
        w.delivery.auto_create = False
        assert (await w.send(message())).status.code == Code.TOPIC_NOT_FOUND


async def test_errors_of_one_message_are_its_own() -> None:
    async with world() as w:
        w.delivery.topics["t"] = await w.delivery.ensure_topic("t")
        w.delivery.fail_with = TopicRefused(Status.TOPIC_NOT_WRITABLE, "no")
        answer = await w.send(message(message_id="a"), message(message_id="b"))
        assert answer.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in answer.entries] == [Code.FORBIDDEN, Code.OK]
        w.delivery.fail_with = Busy(Status.TOO_MANY_PENDING_BYTES, "later")
        assert (await w.send(message(message_id="c"))).status.code == Code.TOO_MANY_REQUESTS


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotMaster("no"), Code.HA_NOT_AVAILABLE),
        (PutRefused(Status.SHUTTING_DOWN, "bye"), Code.HA_NOT_AVAILABLE),
        (PutIndeterminate(Status.OUTCOME_UNKNOWN, "?"), Code.MASTER_PERSISTENCE_TIMEOUT),
    ],
)
async def test_what_another_node_may_answer_leaves_the_handlers(error: Any, code: int) -> None:
    async with world() as w:
        await w.delivery.ensure_topic("t")
        request = calls.SendMessageRequest(messages=[message(), message(message_id="b")])
        w.delivery.fail_with = error
        with pytest.raises(type(error)):
            await w.handlers.unary(Request("SendMessage", request.SerializeToString()), CallContext("c"))
        w.delivery.fail_with = error
        assert (await w.call("SendMessage", request)).status.code == code


async def test_a_delayed_message_comes_when_it_is_due() -> None:
    async with world() as w:
        answer = await w.send(delayed(b"late", 200))
        assert answer.entries[0].recall_handle and answer.entries[0].transaction_id == "id-1"
        assert await bodies(w) == []
        wait = {"long_polling_timeout": {"seconds": 5}}
        assert await bodies(w, **wait) == [b"late"]


async def test_a_time_that_has_passed_is_now() -> None:
    async with world() as w:
        await w.send(delayed(b"late", -5_000))
        assert await bodies(w, long_polling_timeout={"seconds": 5}) == [b"late"]


async def test_a_time_too_far_away_is_refused() -> None:
    async with world() as w:
        answer = await w.send(delayed(b"x", 2 * 86_400_000))
        assert answer.entries[0].status.code == answer.status.code == Code.ILLEGAL_DELIVERY_TIME


async def test_a_delayed_message_is_recalled_once() -> None:
    async with world() as w:
        handle = (await w.send(delayed(b"x", 60_000))).entries[0].recall_handle
        request = calls.RecallMessageRequest(topic=resource("t"), recall_handle=handle)
        answer = await w.call("RecallMessage", request)
        assert (answer.status.code, answer.message_id) == (Code.OK, "id-1")
        # The Python client takes MESSAGE_NOT_FOUND for a success.
        assert (await w.call("RecallMessage", request)).status.code == Code.NOT_FOUND
        empty = calls.RecallMessageRequest(topic=resource("t"))
        assert (await w.call("RecallMessage", empty)).status.code == Code.BAD_REQUEST


def half(body: bytes = b"x", message_id: str = "id-1") -> pb.Message:
    return message(body, message_id=message_id, message_type=KINDS.TRANSACTION)


async def end(w: World, transaction_id: str, resolution: int) -> int:
    request = calls.EndTransactionRequest(
        topic=resource("t"),
        message_id="id-1",
        transaction_id=transaction_id,
        resolution=resolution,  # type: ignore[arg-type]
    )
    code: int = (await w.call("EndTransaction", request)).status.code
    return code


async def test_a_half_message_is_seen_when_it_is_committed() -> None:
    async with world() as w:
        transaction_id = (await w.send(half())).entries[0].transaction_id
        assert transaction_id and await bodies(w) == []
        assert await end(w, transaction_id, pb.TransactionResolution.COMMIT) == Code.OK
        (got,) = await w.messages()
        assert got.user_properties["__transactionId__"] == transaction_id
        assert got.system_properties.message_type == KINDS.TRANSACTION


async def test_a_half_message_that_is_rolled_back_is_never_seen() -> None:
    async with world() as w:
        transaction_id = (await w.send(half())).entries[0].transaction_id
        assert (
            await end(w, transaction_id, pb.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)
            == Code.OK
        )
        assert await end(w, transaction_id, pb.TransactionResolution.ROLLBACK) == Code.OK
        assert await bodies(w) == []


@pytest.mark.parametrize("transaction_id", ["", "unknown", "x" * 256])
async def test_an_unknown_transaction_is_refused(transaction_id: str) -> None:
    async with world() as w:
        commit = pb.TransactionResolution.COMMIT
        assert await end(w, transaction_id, commit) == Code.INVALID_TRANSACTION_ID
