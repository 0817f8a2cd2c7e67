"""RECALL_MESSAGE with handles in RocketMQ's format, which its Java client decodes before it sends one."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_adapter.delivery_state.handles import deferred_handle, parse_recall, recall_handle
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.v4.asker import Asker, asking, send_fields
from tests.broker_adapter.v4.stores import STORES, started

DUE_MS = 600_000


@pytest.fixture(params=STORES)
async def asker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Asker]:
    async with started(request.param, tmp_path) as address, asking(address) as asker:
        yield asker


async def recall(asker: Asker, handle: str, topic: str = "t") -> ResponseCode:
    fields = {"topic": topic, "recallHandle": handle, "producerGroup": "p", "brokerName": "broker-a"}
    answer = await asker.ask(RequestCode.RECALL_MESSAGE, **fields)
    if answer.code == ResponseCode.SUCCESS:
        assert answer.fields["msgId"] == "id"
    return ResponseCode(answer.code)


async def test_a_handle_names_the_broker_and_recalls_the_message_once(asker: Asker) -> None:
    handle = (await asker.send("t", b"x", 0, TIMER_DELAY_MS=str(DUE_MS), UNIQ_KEY="id"))["recallHandle"]
    version, topic, broker, due_ms, message_id, _ = urlsafe_b64decode(handle).decode().split(" ")
    assert (version, topic, broker, message_id) == ("v1", "t", "broker-a", "id")
    assert int(due_ms) > DUE_MS
    await asker.send("u", b"x", 0)
    assert await recall(asker, handle, "u") == ResponseCode.ILLEGAL_OPERATION
    assert await recall(asker, handle, "none") == ResponseCode.TOPIC_NOT_EXIST
    assert await recall(asker, handle) == ResponseCode.SUCCESS
    assert await recall(asker, handle) == ResponseCode.ILLEGAL_OPERATION


async def test_a_handle_contains_the_time_of_delivery(asker: Asker) -> None:
    due_ms = time.time_ns() // 1_000_000 + DUE_MS
    fields = send_fields("t", 0, TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY="id")
    sent = await asker.get(RequestCode.SEND_MESSAGE_V2, b"x", **fields)
    assert urlsafe_b64decode(sent["recallHandle"]).decode().split(" ")[3] == str(due_ms)


@pytest.mark.parametrize("kind", ["without our word", "a text", "half"])
async def test_what_is_no_handle_recalls_nothing(asker: Asker, kind: str) -> None:
    sent = await asker.send("t", b"x", 0, TIMER_DELAY_MS=str(DUE_MS), UNIQ_KEY="id")
    half = await asker.send("t", b"x", 0, TRAN_MSG="true", UNIQ_KEY="half")
    wrong = {
        "without our word": recall_handle("t", "broker-a", 1, "id", 0)[:24],
        "a text": "none",
        "half": half["transactionId"],
    }
    assert await recall(asker, wrong[kind]) == ResponseCode.ILLEGAL_OPERATION
    assert await recall(asker, sent["recallHandle"]) == ResponseCode.SUCCESS


def test_an_id_with_blanks_does_not_hide_the_message() -> None:
    assert parse_recall("t", recall_handle("t", "b", 1, "an id", 5)) == 5
    assert parse_recall("u", recall_handle("t", "b", 1, "an id", 5)) is None
    assert parse_recall("t", recall_handle("t", "b", 1, "ü", 5)) == 5
    assert parse_recall("t", "ü") is None


def test_a_handle_of_an_earlier_release_names_the_message() -> None:
    assert parse_recall("t", deferred_handle("t", 5)) == 5
    assert parse_recall("u", deferred_handle("t", 5)) is None
