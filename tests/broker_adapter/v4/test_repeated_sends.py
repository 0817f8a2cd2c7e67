"""Sends that repeat a stored message, and sends that only look like that, in both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.delivery_state.handles import parse_recall
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.message_id import parse_offset_id
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking, send_fields
from tests.broker_adapter.v4.test_remoting_sends import batch
from tests.node.local import until

Store = Literal["replicated", "classic"]
#: As clients send it first, and as they send it again later.
BORN_MS = 1_700_000_000_000
_ROLLBACK, _COMMIT = 12, 8
_HALF = {"TRAN_MSG": "true", "PGROUP": "p"}

both_stores = pytest.mark.parametrize("store", ["replicated", "classic"])


@asynccontextmanager
async def broker(folder: Path, store: Store, **delivery: int) -> AsyncIterator[BrokerProgram]:
    """One master with the topic t, of one queue."""
    if store == "replicated":
        async with brokers(folder, 1, {**LISTEN, "delivery": delivery}) as cluster:
            program = await cluster.master()
            await program.broker.put_topic(TopicConfig("t", 1, 1))
            yield program
    else:
        async with classic_pair(folder) as pair:
            pair.more = {"delivery": delivery}
            await pair.start("n1", broker_role="ASYNC_MASTER", waits_for_slaves=False)
            program = await pair.writable("n1")
            await program.broker.put_topic(TopicConfig("t", 1, 1))
            yield program


def stored(program: BrokerProgram) -> list[MessageRecord]:
    _, end = program.files.bounds("t", 0)
    units = program.files.units("t", 0, 0, end)
    return [decode(program.host.records.record_at(unit.physical_offset)) for unit in units]


async def stored_bodies(program: BrokerProgram, count: int) -> list[bytes]:
    await until(lambda: len(stored(program)) >= count)
    return [message.body for message in stored(program)]


async def send(asker: Asker, body: bytes, born_ms: int = BORN_MS, **properties: str) -> Mapping[str, str]:
    fields = {**send_fields("t", 0, UNIQ_KEY="id", **properties), "g": born_ms}
    return await asker.get(RequestCode.SEND_MESSAGE_V2, body, **fields)


async def refused_send(asker: Asker, body: bytes, born_ms: int, **properties: str) -> str:
    fields = {**send_fields("t", 0, UNIQ_KEY="id", **properties), "g": born_ms}
    return (await asker.ask(RequestCode.SEND_MESSAGE_V2, body, **fields)).remark or ""


async def begin(asker: Asker, body: bytes = b"half", born_ms: int = BORN_MS) -> Mapping[str, str]:
    return await send(asker, body, born_ms, **_HALF)


async def end(asker: Asker, half: Mapping[str, str], how: int, *, is_oneway: bool = False) -> None:
    fields: dict[str, object] = {
        "topic": "t",
        "producerGroup": "p",
        "tranStateTableOffset": half.get("queueOffset", 0),
        "commitLogOffset": parse_offset_id(half["msgId"]).physical_offset,
        "commitOrRollback": how,
        "msgId": "id",
        "transactionId": half["transactionId"],
    }
    if is_oneway:
        asker.oneway(RequestCode.END_TRANSACTION, **fields)
    else:
        await asker.get(RequestCode.END_TRANSACTION, **fields)


@both_stores
async def test_one_message_object_that_is_filled_and_sent_three_times_is_three_messages(
    tmp_path: Path, store: Store
) -> None:
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        for body in (b"1", b"2", b"3"):
            assert "duplicate" not in await send(asker, body)
        assert await stored_bodies(program, 3) == [b"1", b"2", b"3"]


@both_stores
async def test_equal_messages_of_two_producer_groups_are_two(tmp_path: Path, store: Store) -> None:
    """Two programs that copy one message, with its id, from elsewhere. Also in a batch."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        body = batch(b"batched")
        for group in ("appA", "appB", "appA"):
            fields = {**send_fields("t", 0, UNIQ_KEY="id"), "a": group}
            await asker.get(RequestCode.SEND_MESSAGE_V2, b"x", **fields)
            await asker.get(RequestCode.SEND_BATCH_MESSAGE, body, **{**fields, "m": "true"})
        await send(asker, b"end")
        assert await stored_bodies(program, 5) == [b"x", b"batched"] * 2 + [b"end"]


@both_stores
async def test_a_message_object_that_is_sent_again_after_the_span_is_another_message(
    tmp_path: Path, store: Store
) -> None:
    """A heartbeat message each hour, and nothing else: no other send makes the broker forget the first."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        for hour in range(3):
            await send(asker, b"heartbeat", BORN_MS + 3_600_000 * hour)
        assert await stored_bodies(program, 3) == [b"heartbeat"] * 3


@both_stores
async def test_a_late_retry_repeats_its_own_send_of_several_under_one_id(
    tmp_path: Path, store: Store
) -> None:
    """Once the object was sent again as another message, a retry of the first send was stored again."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        births_ms = [BORN_MS, BORN_MS + 3_600_000, BORN_MS - 3_600_000]
        for born_ms in births_ms:
            assert "duplicate" not in await send(asker, b"x", born_ms)
        again = [await send(asker, b"x", born_ms) for born_ms in births_ms]
        assert [(one.get("duplicate"), one["queueOffset"]) for one in again] == [
            ("true", str(offset)) for offset in range(3)
        ]
        await send(asker, b"end")
        assert await stored_bodies(program, 4) == [b"x"] * 3 + [b"end"]


@both_stores
async def test_an_object_sent_every_ten_seconds_is_not_lost_for_ever(tmp_path: Path, store: Store) -> None:
    """A duplicate does not move the born timestamp that the next send is compared with."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        answers = [await send(asker, b"x", BORN_MS + 10_000 * number) for number in range(6)]
        assert ["duplicate" in one for one in answers] == [False, True] * 3
        assert len(await stored_bodies(program, 3)) == 3


@both_stores
async def test_a_retry_is_stored_once_whatever_clients_change_between_tries(
    tmp_path: Path, store: Store
) -> None:
    """Another born timestamp, another order of the properties, another span of a tracing hook."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        first = await send(asker, b"x", a="1", b="2", traceparent="00-1")
        again = await send(asker, b"x", BORN_MS + 3_000, b="2", a="1", traceparent="00-2")
        assert again["duplicate"] == "true"
        assert (again["msgId"], again["queueOffset"]) == (first["msgId"], first["queueOffset"])
        await send(asker, b"end")
        assert await stored_bodies(program, 2) == [b"x", b"end"]
        assert program.delivery.duplicates == {"t": 1}


@both_stores
@pytest.mark.parametrize("header", [{"UNIQ_KEY": "batch"}, {"WAIT": "true"}], ids=["5.5", "4.9"])
async def test_a_batch_is_stored_once_under_the_id_of_its_header_or_those_of_its_messages(
    tmp_path: Path, store: Store, header: dict[str, str]
) -> None:
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        fields = {**send_fields("t", 0, **header), "m": "true"}
        bodies = [b"%d" % number for number in range(40)]
        first = await asker.get(RequestCode.SEND_BATCH_MESSAGE, batch(*bodies), **fields)
        await stored_bodies(program, 40)
        again = await asker.get(RequestCode.SEND_BATCH_MESSAGE, batch(*bodies), **fields)
        assert again.pop("duplicate") == "true"  # type: ignore[attr-defined]
        assert again == {name: first[name] for name in again}
        assert again["msgId"].count(",") == 39
        other = await asker.get(RequestCode.SEND_BATCH_MESSAGE, batch(b"other"), **fields)
        assert "duplicate" not in other
        assert await stored_bodies(program, 41) == [*bodies, b"other"]


@both_stores
async def test_a_transaction_that_is_begun_again_after_a_rollback_is_stored(
    tmp_path: Path, store: Store
) -> None:
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        first = await begin(asker)
        await end(asker, first, _ROLLBACK)
        second = await begin(asker, born_ms=BORN_MS + 1)
        assert "duplicate" not in second and second["transactionId"] != first["transactionId"]
        await end(asker, second, _COMMIT)
        assert await stored_bodies(program, 1) == [b"half"]


@both_stores
async def test_a_transaction_that_is_begun_again_behind_a_rollback_without_an_answer_is_stored(
    tmp_path: Path, store: Store
) -> None:
    """As the Java client does it: it ends transactions one-way, of itself after a FLUSH_SLAVE_TIMEOUT."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        for tried in range(5):
            half = await begin(asker, born_ms=BORN_MS + tried)
            await end(asker, half, _ROLLBACK, is_oneway=True)
        second = await begin(asker, born_ms=BORN_MS + 5)
        assert "duplicate" not in second
        await end(asker, second, _COMMIT)
        assert await stored_bodies(program, 1) == [b"half"]


@both_stores
async def test_a_transaction_that_is_begun_again_after_all_checks_is_stored(
    tmp_path: Path, store: Store
) -> None:
    checks = {"check_first_ms": 1, "check_again_ms": 1, "max_checks": 1}
    async with broker(tmp_path, store, **checks) as program, asking(program.remoting.advertised) as asker:
        first = await begin(asker)
        answers = [first]
        async with asyncio.timeout(30):
            while answers[-1]["transactionId"] == first["transactionId"]:
                answers.append(await begin(asker, born_ms=BORN_MS + len(answers)))
        assert "duplicate" not in answers[-1]


@both_stores
async def test_a_retry_of_a_half_is_answered_with_its_transaction(tmp_path: Path, store: Store) -> None:
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        first, again = await begin(asker), await begin(asker)
        assert (again["duplicate"], again["transactionId"]) == ("true", first["transactionId"])
        await end(asker, again, _COMMIT)
        assert await stored_bodies(program, 1) == [b"half"]
        assert (await begin(asker))["transactionId"] == first["transactionId"], "it is stored"


@both_stores
async def test_a_delayed_message_that_is_sent_again_after_its_recall_is_stored(
    tmp_path: Path, store: Store
) -> None:
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        first = await send(asker, b"late", TIMER_DELAY_MS="600000")
        again = await send(asker, b"late", TIMER_DELAY_MS="600000")
        numbers = {parse_recall("t", one["recallHandle"]) for one in (first, again)}
        assert again["duplicate"] == "true" and len(numbers) == 1, "both name the one message"
        await program.delivery.recall("t", first["recallHandle"])
        second = await send(asker, b"late", BORN_MS + 1, TIMER_DELAY_MS="600000")
        assert "duplicate" not in second and second["recallHandle"] != first["recallHandle"]
        assert await program.delivery.recall("t", second["recallHandle"]) == "id"


@both_stores
async def test_a_late_attempt_does_not_bring_a_half_back_after_its_rollback(
    tmp_path: Path, store: Store
) -> None:
    """The first attempt and the one between those that were answered arrive last."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        await begin(asker, born_ms=BORN_MS + 10)
        half = await begin(asker, born_ms=BORN_MS + 30)
        assert half["duplicate"] == "true"
        await end(asker, half, _ROLLBACK)
        for born_ms in (BORN_MS, BORN_MS + 20, BORN_MS + 30):
            assert "SEND_ENDED" in await refused_send(asker, b"half", born_ms, **_HALF)
        again = await begin(asker, born_ms=BORN_MS + 31)
        assert "duplicate" not in again
        await end(asker, again, _COMMIT)
        assert await stored_bodies(program, 1) == [b"half"]


@both_stores
async def test_a_late_attempt_does_not_bring_a_message_back_after_its_recall(
    tmp_path: Path, store: Store
) -> None:
    """Not even after its due time, when it would need no delay."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        due = {"TIMER_DELIVER_MS": str(program.delivery.now_ms() + 2_000)}
        first = await send(asker, b"late", BORN_MS + 10, **due)
        again = await send(asker, b"late", BORN_MS + 30, **due)
        assert again["duplicate"] == "true"
        await program.delivery.recall("t", first["recallHandle"])
        assert "SEND_ENDED" in await refused_send(asker, b"late", BORN_MS, **due)
        await until(lambda: program.delivery.now_ms() > int(due["TIMER_DELIVER_MS"]))
        for born_ms in (BORN_MS, BORN_MS + 20, BORN_MS + 30):
            assert "SEND_ENDED" in await refused_send(asker, b"late", born_ms, **due)
        assert "duplicate" not in await send(asker, b"late", BORN_MS + 31, **due)
        assert await stored_bodies(program, 1) == [b"late"]


@both_stores
async def test_without_a_span_every_send_is_stored(tmp_path: Path, store: Store) -> None:
    async with (
        broker(tmp_path, store, retry_span_ms=0) as program,
        asking(program.remoting.advertised) as asker,
    ):
        await send(asker, b"x")
        assert "duplicate" not in await send(asker, b"x")
        assert await stored_bodies(program, 2) == [b"x", b"x"]
        assert len(program.delivery_state.ids) == 0


@both_stores
@pytest.mark.parametrize("topic", ["t", ""])
async def test_a_transaction_is_ended_by_the_offsets_of_its_half(
    tmp_path: Path, store: Store, topic: str
) -> None:
    """For clients that name the message's own id, or none, as RocketMQ lets them. Old ones name no topic."""
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        rolled_back, committed = await begin(asker, b"1"), await begin(asker, b"2")
        by_offsets = {"msgId": "id", "transactionId": "id"} | ({"topic": topic} if topic else {})
        for half, how in ((rolled_back, _ROLLBACK), (committed, _COMMIT), (committed, _COMMIT)):
            fields = {
                **by_offsets,
                "producerGroup": "p",
                "commitOrRollback": how,
                "tranStateTableOffset": half["queueOffset"],
                "commitLogOffset": parse_offset_id(half["msgId"]).physical_offset,
            }
            wrong = await asker.ask(RequestCode.END_TRANSACTION, **{**fields, "tranStateTableOffset": 77})
            assert "TRANSACTION_UNKNOWN" in (wrong.remark or "")
            await asker.get(RequestCode.END_TRANSACTION, **fields)
        assert await stored_bodies(program, 1) == [b"2"]


@both_stores
async def test_only_the_producer_group_of_a_half_ends_its_transaction(tmp_path: Path, store: Store) -> None:
    async with broker(tmp_path, store) as program, asking(program.remoting.advertised) as asker:
        half = await begin(asker)
        fields = {"topic": "t", "transactionId": half["transactionId"], "commitOrRollback": _ROLLBACK}
        refused = await asker.ask(RequestCode.END_TRANSACTION, producerGroup="q", **fields)
        assert (refused.code, "another producer group" in (refused.remark or "")) == (1, True)
        await end(asker, half, _COMMIT)
        assert await stored_bodies(program, 1) == [b"half"]
