"""Signatures, permissions and reloading, in front of the service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.endpoints.access.guard import Guard
from broker_adapter.endpoints.access.permissions import NEEDS
from broker_adapter.endpoints.v5.messages.methods import METHODS, TELEMETRY
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from tests.broker_adapter.v5.access.signed import NOW_S, signed
from tests.broker_adapter.v5.world import HEADERS, QUICK, World, message, resource, world

Code = pb.Code
ACCOUNTS = """
[[accounts]]
access_key = "boss"
secret = "s-boss"
admin = true

[[accounts]]
access_key = "writer"
secret = "s-writer"
topics = { t = "PUB" }

[[accounts]]
access_key = "reader"
secret = "s-reader"
topics = { t = "SUB" }
groups = { g = "SUB" }

[[accounts]]
access_key = "nobody"
secret = "s-nobody"

[[accounts]]
access_key = "elsewhere"
secret = "s-elsewhere"
admin = true
source_addresses = ["10.0.0.0/8"]
"""


def by(key: str, **more: Any) -> dict[str, str]:
    return signed(key, f"s-{key}", **more)


@asynccontextmanager
async def guarded(folder: Path, text: str = ACCOUNTS) -> AsyncIterator[tuple[World, Guard]]:
    path = folder / "accounts.toml"
    path.write_text(text)
    guard = Guard(path, lambda: NOW_S)
    async with world(QUICK, guard=guard) as w:
        yield w, guard


async def code_of(w: World, method: str, request: Any, headers: dict[str, str]) -> int:
    if METHODS[method].streams_answers:
        answers = await w.stream(method, request, headers)
        return int(answers[0].status.code)
    return int((await w.call(method, request, headers)).status.code)


SEND = calls.SendMessageRequest(messages=[message()])
ROUTE = calls.QueryRouteRequest(topic=resource("t"))
BEAT = calls.HeartbeatRequest(client_type=pb.ClientType.PRODUCER)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (by("boss"), Code.OK),
        (by("boss", upper=True), Code.OK),
        (signed("boss/region/product", "s-boss"), Code.OK),
        (by("boss", date="20260302T115900Z"), Code.OK),  # a client's local time
        (by("boss", date="20260303T120000Z"), Code.UNAUTHORIZED),
        (by("boss", date="20260227T120000Z"), Code.UNAUTHORIZED),
        (by("boss", date="yesterday"), Code.UNAUTHORIZED),
        (HEADERS, Code.UNAUTHORIZED),
        (signed("", ""), Code.UNAUTHORIZED),
        (signed("stranger", "x"), Code.UNAUTHORIZED),
        (signed("boss", "wrong"), Code.UNAUTHORIZED),
        ({**by("boss"), "x-mq-date-time": "20260301T120001Z"}, Code.UNAUTHORIZED),
        ({**by("boss"), "authorization": "Basic Ym9zczpzLWJvc3M="}, Code.UNAUTHORIZED),
        ({**by("boss"), "authorization": "MQv2-HMAC-SHA1 Credential=boss, Signature=xyz"}, Code.UNAUTHORIZED),
        (by("elsewhere"), Code.FORBIDDEN),
    ],
)
async def test_only_signed_calls_are_taken(tmp_path: Path, headers: dict[str, str], code: int) -> None:
    async with guarded(tmp_path) as (w, _):
        assert await code_of(w, "QueryRoute", ROUTE, headers) == code


async def test_a_refusal_says_what_clients_look_for(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        unknown = await w.call("QueryRoute", ROUTE, signed("stranger", "x"))
        assert "Username is not matched" in unknown.status.message
        wrong = await w.call("QueryRoute", ROUTE, signed("boss", "wrong"))
        assert wrong.status.message == "Check signature failed for accessKey=boss"


def request_of(method: str) -> Any:
    """One that names topic t and group g wherever there is room for them."""
    if method == "SendMessage":
        return SEND
    request = METHODS[method].request()
    fields = {field.name for field in request.DESCRIPTOR.fields}
    if "topic" in fields:
        request.topic.name = "t"
    if "group" in fields:
        request.group.name = "g"
    if "message_queue" in fields:
        request.message_queue.topic.name = "t"
    if method == "Heartbeat":
        request.client_type = pb.ClientType.SIMPLE_CONSUMER
    return request


TO_SEND = {"SendMessage", "EndTransaction", "RecallMessage"}


@pytest.mark.parametrize("method", METHODS)
async def test_every_call_needs_its_permission(tmp_path: Path, method: str) -> None:
    async with guarded(tmp_path) as (w, _):
        may = {
            key: await code_of(w, method, request_of(method), by(key)) != Code.FORBIDDEN
            for key in ("boss", "writer", "reader", "nobody")
        }
    is_for_both = method == "QueryRoute"
    assert may == {
        "boss": True,
        "writer": is_for_both or method in TO_SEND,
        "reader": is_for_both or method not in TO_SEND,
        "nobody": False,
    }


def test_every_method_is_in_the_table() -> None:
    assert set(NEEDS) == {TELEMETRY, *METHODS}


async def test_all_messages_of_a_send_are_looked_at(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        both = calls.SendMessageRequest(messages=[message(), message(topic="other", message_id="2")])
        assert await code_of(w, "SendMessage", both, by("writer")) == Code.FORBIDDEN


async def test_the_namespace_is_part_of_what_is_permitted(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        headers = {**by("writer"), "x-mq-namespace": "ns"}
        assert await code_of(w, "SendMessage", SEND, headers) == Code.FORBIDDEN


async def test_telemetry_is_signed_and_its_settings_are_judged(tmp_path: Path) -> None:
    settings = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing={"topics": [resource("t")]})
    async with guarded(tmp_path) as (w, _):
        unsigned = [command async for command in w.telemetry(HEADERS)]
        assert [command.status.code for command in unsigned] == [Code.UNAUTHORIZED]
        for key, code in (("reader", Code.FORBIDDEN), ("writer", Code.OK)):
            talk = w.telemetry(by(key))
            await talk.write(calls.TelemetryCommand(settings=settings))
            assert (await talk.read()).status.code == code
            await talk.done_writing()


async def test_a_transaction_is_asked_of_nobody_who_may_not_end_it(tmp_path: Path) -> None:
    """Client ids are no secrets, and the message is in the question."""
    half = message(b"secret", message_type=pb.MessageType.TRANSACTION)
    settings = calls.TelemetryCommand(settings=pb.Settings(client_type=pb.ClientType.PRODUCER))
    async with guarded(tmp_path) as (w, _):
        w.delivery.check_after_ms = 50
        asked: dict[asyncio.Task[Any], str] = {}
        for key in ("writer", "nobody"):  # both as the same client; the newer stream would be preferred
            talk = w.telemetry(by(key))
            await talk.write(settings)
            assert (await talk.read()).status.code == Code.OK
            asked[asyncio.ensure_future(talk.read())] = key
        await code_of(w, "SendMessage", calls.SendMessageRequest(messages=[half]), by("writer"))
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert {asked[task] for task in done} == {"writer"}
        assert (await done.pop()).recover_orphaned_transaction_command.message.body == b"secret"


async def test_who_names_no_group_releases_none(tmp_path: Path) -> None:
    """Client ids are no secrets."""
    async with guarded(tmp_path) as (w, _):
        released: list[str] = []

        async def release(client_id: str, group: str = "") -> None:
            released.append(group)

        w.delivery.release = release  # type: ignore[method-assign]
        gone = calls.NotifyClientTerminationRequest()
        assert await code_of(w, "NotifyClientTermination", gone, by("nobody")) == Code.OK
        gone.group.name = "g"
        assert await code_of(w, "NotifyClientTermination", gone, by("reader")) == Code.OK
        assert released == ["g"]


def rewrite(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)  # noqa: PTH105


async def test_a_changed_file_is_taken_over_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    async with guarded(tmp_path) as (w, guard):
        rewrite(path, ACCOUNTS.replace("s-writer", "s-other"))
        guard.reload_changed_files()
        assert await code_of(w, "SendMessage", SEND, by("writer")) == Code.UNAUTHORIZED
        assert await code_of(w, "SendMessage", SEND, signed("writer", "s-other")) == Code.OK
        for bad in ("[[accounts", "[[accounts]]\naccess_key = 'x'\n"):
            rewrite(path, bad)
            guard.reload_changed_files()
            assert await code_of(w, "SendMessage", SEND, signed("writer", "s-other")) == Code.OK
        path.unlink()
        guard.reload_changed_files()
        assert await code_of(w, "SendMessage", SEND, signed("writer", "s-other")) == Code.OK
        rewrite(path, "accounts = []")
        guard.reload_changed_files()
        assert await code_of(w, "SendMessage", SEND, signed("writer", "s-other")) == Code.UNAUTHORIZED


@pytest.mark.parametrize(
    ("key", "beat", "heard"),
    [
        ("nobody", calls.HeartbeatRequest(client_type=pb.ClientType.SIMPLE_CONSUMER), []),
        ("nobody", BEAT, []),
        ("nobody", calls.HeartbeatRequest(client_type=pb.ClientType.PRODUCER, group=resource("g")), []),
        (
            "reader",
            calls.HeartbeatRequest(client_type=pb.ClientType.PUSH_CONSUMER, group=resource("g")),
            ["g"],
        ),
    ],
)
async def test_a_heartbeat_speaks_for_the_groups_of_its_account_alone(
    tmp_path: Path, key: str, beat: calls.HeartbeatRequest, heard: list[str]
) -> None:
    """Client ids are no secrets: what somebody else holds is not renewed for a stranger's heartbeat."""
    async with guarded(tmp_path) as (w, _):
        assert await code_of(w, "Heartbeat", beat, by(key)) == Code.OK
        assert w.delivery.heard == [(f"{key}/{HEADERS['x-mq-client-id']}", group) for group in heard]


async def test_accounts_of_one_group_speak_for_what_their_own_calls_were_given(tmp_path: Path) -> None:
    """Both may consume in the group, and either may call itself by the other's client id."""
    async with guarded(tmp_path) as (w, _):
        await code_of(w, "SendMessage", SEND, by("writer"))
        receive = calls.ReceiveMessageRequest(group=resource("g"), auto_renew=True, batch_size=1)
        receive.message_queue.topic.name = "t"
        answers = await w.stream("ReceiveMessage", receive, by("reader"))
        (handle,) = [
            one.message.system_properties.receipt_handle for one in answers if one.HasField("message")
        ]
        (popped,) = w.delivery._groups["g", "t"].popped
        before = replace(popped)

        beat = calls.HeartbeatRequest(client_type=pb.ClientType.PUSH_CONSUMER, group=resource("g"))
        gone = calls.NotifyClientTerminationRequest(group=resource("g"))
        for key in ("boss", "reader"):
            assert await code_of(w, "Heartbeat", beat, by(key)) == Code.OK
        (boss, _), (reader, _) = w.delivery.heard
        assert boss != reader == popped.client_id
        assert await code_of(w, "NotifyClientTermination", gone, by("boss")) == Code.OK
        assert popped == before and popped.handle == handle
        assert await code_of(w, "NotifyClientTermination", gone, by("reader")) == Code.OK
        assert popped != before, "it is visible soon"
