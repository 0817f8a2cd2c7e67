"""Sends that arrive together on one connection: each has its own outcome, and their order stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import Mock

import pytest

from broker_adapter.endpoints.context import LATE_S, WAY_BACK_S, CallContext
from broker_adapter.endpoints.lists.calls import ListedCall, ListResults
from broker_adapter.endpoints.lists.send_list import NodeSends, SendList, StartedCall, second_attempt
from broker_adapter.endpoints.v4.calls import Forwarding
from broker_adapter.endpoints.v4.client_outcomes import ClientOutcomes
from broker_adapter.endpoints.v4.request import REMOTING, SEND, RemotingRequest
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, NotMaster, PutIndeterminate, ResponseCode, Status, error_for
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand, decode, encode
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Processor
from broker_adapter.remoting.signing import ACCESS_KEY
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode as decode_record
from tests.broker_adapter.cluster import BrokerCluster, bodies, brokers, in_step
from tests.broker_adapter.v4.asker import LISTEN, asking, send_fields
from tests.broker_adapter.v4.test_remoting_sends import batch
from tests.node.local import until

CLIENT = "127.0.0.1:1"
CONTEXT = CallContext("c", remote=CLIENT, timeout_s=30.0)
ALONE, STORED = "alone", ResponseCode.SUCCESS


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemotingRequest, "timeout_s", 30.0)  # instead of 3 s, which a busy machine may need


async def follower(cluster: BrokerCluster) -> BrokerProgram:
    """A node that can forward to the master."""
    master = await cluster.master()
    node = next(p for p in cluster.programs.values() if p is not master)
    await until(lambda: node.forwarder.destination() is not None)
    return node


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("at", ["master", "follower"])
async def test_each_send_of_a_list_has_its_own_outcome_and_order_stays(tmp_path: Path, at: str) -> None:
    async with brokers(tmp_path, 3, LISTEN) as cluster:
        master = await cluster.master()
        node = master if at == "master" else await follower(cluster)
        async with asking(node.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            rounds = master.committer.rounds
            plain = [(310, send_fields("t", 0, UNIQ_KEY=f"id{n}"), b"%d" % n) for n in range(20)]
            mixed: dict[int, tuple[int, dict[str, object], bytes]] = {
                3: (320, send_fields("t", 0), batch(b"b1", b"b2")),
                5: (310, send_fields("t", 0, UNIQ_KEY="id4"), b"4"),  # again
                7: (310, send_fields("t", 99), b"no such queue"),
                9: (310, send_fields("t", 0) | {"e": "x"}, b"no number"),
                11: (310, send_fields("new", 0), b"creates its topic"),
                12: (310, send_fields("new", 0), b"behind it"),
                13: (310, send_fields("t", 0, DELAY="1"), b"later"),
            }
            sends = [mixed.get(n, one) for n, one in enumerate(plain)]
            asker.oneway(310, b"one way", **send_fields("t", 0))
            answers = await asyncio.gather(*(asker.ask(code, body, **f) for code, f, body in sends))
        failed = {n for n, answer in enumerate(answers) if answer.code != ResponseCode.SUCCESS}
        assert failed == {7, 9}
        assert answers[5].fields["duplicate"] == "true"
        assert answers[5].fields["queueOffset"] == answers[4].fields["queueOffset"]
        assert answers[3].fields["msgId"].count(",") == 1
        await in_step(master)
        bodies = [
            decode_record(record).body
            for record in (await master.broker.pull("t", 0, 0, max_messages=64)).records
        ]
        kept = [b"%d" % n for n in range(20) if n not in mixed]
        kept[kept.index(b"4") : kept.index(b"4")] = [b"b1", b"b2"]
        assert bodies == [b"first", b"one way", *kept]
        created = (await master.broker.pull("new", 0, 0, max_messages=64)).records
        assert [decode_record(record).body for record in created] == [b"creates its topic", b"behind it"]
        assert master.committer.rounds - rounds < 15, "an append has many sends"


@pytest.mark.usefixtures("patient")
async def test_a_closed_connection_releases_its_bytes_and_its_list_is_stored(tmp_path: Path) -> None:
    async with brokers(tmp_path, 3, LISTEN) as cluster:
        master, node = await cluster.master(), await follower(cluster)
        async with asking(node.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            link, dispatch = node.forwarder.link, node.remoting._dispatch
            assert link is not None
            bodies_ = [b"%d" % n for n in range(10)]
            asks = [asyncio.create_task(asker.ask(310, body, **send_fields("t", 0))) for body in bodies_]
            await until(lambda: len(link) == len(asks))
            asker.connection.close("gone")
            await asyncio.wait(asks)
        await until(lambda: dispatch.under_way == 0)
        assert (len(link), link.sent_bytes, link.waiting_bytes) == (0, 0, 0)
        await in_step(master)
        assert await bodies(master, "t", 0) == [b"first", *bodies_]


@pytest.mark.usefixtures("patient")
async def test_a_full_link_leaves_other_requests_of_the_connection(tmp_path: Path) -> None:
    settings = {**LISTEN, "rocketmq_v2": {"max_forwarded_bytes": 8_000}}
    async with brokers(tmp_path, 3, settings) as cluster:
        node = await follower(cluster)
        async with asking(node.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            sends = [asker.ask(310, bytes(1_000), **send_fields("t", 0)) for _ in range(20)]
            beat = {"clientID": "c", "producerDataSet": [], "consumerDataSet": []}
            heartbeat = asker.ask(RequestCode.HEART_BEAT, json.dumps(beat).encode())
            end = asker.ask(RequestCode.END_TRANSACTION, transactionId="none@t", commitOrRollback=8)
            *answers, beaten, ended = await asyncio.gather(*sends, heartbeat, end)
        stored = [answer.code for answer in answers].index(ResponseCode.SYSTEM_BUSY)
        assert 0 < stored < 8
        codes = [ResponseCode.SUCCESS] * stored + [ResponseCode.SYSTEM_BUSY] * (20 - stored)
        assert [answer.code for answer in answers] == codes
        assert beaten.code == ResponseCode.SUCCESS
        assert ended.code == ResponseCode.SYSTEM_ERROR, ended
        await in_step(*cluster.programs.values())
        assert len(await bodies(node, "t", 0)) == 1 + stored


class Listed:
    """Implements RequestList for sends to the topics."""

    def __init__(self, topics: Iterable[str], uniq: str = "UNIQ_KEY\x01u", body: bytes = b"") -> None:
        fields = [{"b": topic, "i": uniq} for topic in topics]
        commands = [RemotingCommand(RequestCode.SEND_MESSAGE_V2, one, body) for one in fields]
        self.left = {id(command): command for command in commands}
        self.answered: dict[str, RemotingCommand] = {}
        self.writes: list[int] = []  # responses in each
        self.alone: dict[str, Processor | None] = {}
        self.repeated: dict[str, bool] = {}  # of those with a second attempt

    @property
    def requests(self) -> list[RemotingCommand]:
        return list(self.left.values())

    def answer(self, answers: Iterable[tuple[RemotingCommand, bytes]]) -> None:
        answers = list(answers)
        if answers:
            self.writes.append(len(answers))
        for request, data in answers:
            del self.left[id(request)]
            self.answered[request.fields["b"]] = decode(data[4:])

    def process_alone(self, request: RemotingCommand, processor: Processor | None = None) -> None:
        del self.left[id(request)]
        self.alone[request.fields["b"]] = processor

    async def process(self, context: CallContext, run: Callable[[SendList], Awaitable[None]]) -> None:
        """Process the list, and start the second attempts."""
        sends = [ListedCall(RemotingRequest(command, SEND), context) for command in self.requests]

        async def again(request: Request, context_: CallContext) -> bytes:
            assert isinstance(request, RemotingRequest)
            assert 0 < (context_.timeout_s or 0) <= (context.timeout_s or 0)
            self.repeated[request.command.fields["b"]] = context_.is_repeated
            return b""

        await run(SendList(sends, ClientOutcomes(self, sends, again), 30.0))
        assert not self.left, "each is answered or processed alone"
        connection = Mock(RemotingConnection)
        for processor in self.alone.values():
            if processor is not None:
                await processor(connection, RemotingCommand(RequestCode.SEND_MESSAGE_V2))


class NotStarted(NamedTuple):
    """The outcome of a send whose start raises an error."""

    error: Exception


class FakeProcessor:
    """A SendStarter whose sends end as `outcomes` say, by topic: an error, a code: stored, None: never,
    ALONE: not together with others."""

    def __init__(self, outcomes: Mapping[str, object]) -> None:
        self.outcomes = outcomes
        self.contexts: dict[str, CallContext] = {}
        self.started: dict[str, asyncio.Future[ResponseCode]] = {}

    def start(self, request: RemotingRequest, context: CallContext) -> StartedCall | None:
        self.contexts[request.command.fields["b"]] = context
        outcome = self.outcomes[request.command.fields["b"]]
        if outcome == ALONE:
            return None
        if isinstance(outcome, NotStarted):
            raise outcome.error
        done: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
        self.started[request.command.fields["b"]] = done
        if isinstance(outcome, BrokerError):
            done.set_exception(outcome)
        elif isinstance(outcome, ResponseCode):
            asyncio.get_running_loop().call_soon(done.set_result, outcome)
        return _Started(request, done)


class _Started(NamedTuple):
    request: RemotingRequest
    done: asyncio.Future[ResponseCode]

    def response(self) -> bytes:
        return encode(self.request.command.answer(self.done.result()))


async def outcomes(
    given: dict[str, object], *, timeout_s: float = 30.0, uniq: str = "UNIQ_KEY\x01u"
) -> Listed:
    listed, starters = Listed(given, uniq), {REMOTING: FakeProcessor(given)}
    await listed.process(CONTEXT._replace(timeout_s=timeout_s), lambda found: found.store(starters))
    return listed


UNKNOWN = PutIndeterminate(Status.OUTCOME_UNKNOWN, "?")


async def test_an_error_of_one_send_does_not_concern_another() -> None:
    refused = error_for(Status.BODY_TOO_LARGE, "large")
    listed = await outcomes(
        {"defect": NotStarted(TypeError("a defect")), "refused": refused, "stored": STORED}
    )
    codes = {topic: answer.code for topic, answer in listed.answered.items()}
    assert codes == {
        "defect": ResponseCode.SYSTEM_ERROR,
        "refused": refused.response_code,
        "stored": ResponseCode.SUCCESS,
    }
    assert "a defect" not in (listed.answered["defect"].remark or "")


@pytest.mark.parametrize("uniq", ["UNIQ_KEY\x01u", ""])
async def test_only_sends_with_an_id_are_tried_again_in_doubt(uniq: str) -> None:
    given: dict[str, object] = {
        "unknown": UNKNOWN,
        "moved": NotMaster("elsewhere"),
        "stored": ResponseCode.SUCCESS,
    }
    listed = await outcomes(given, uniq=uniq)
    assert listed.repeated == {"moved": False} | ({"unknown": True} if uniq else {})
    assert set(listed.alone) == set(listed.repeated)
    if not uniq:
        assert listed.answered["unknown"].code == UNKNOWN.response_code
    assert listed.answered["stored"].code == ResponseCode.SUCCESS


async def test_a_send_is_forwarded_if_this_node_stops_being_the_master_before_its_start() -> None:
    listed = await outcomes({"moved": NotStarted(NotMaster("elsewhere")), "stored": STORED})
    assert listed.repeated == {"moved": False} and listed.answered["stored"].code == ResponseCode.SUCCESS


@pytest.mark.parametrize("timeout_s", [0.1, WAY_BACK_S + LATE_S])
async def test_at_the_deadline_sends_are_answered_as_unknown_and_not_tried_again(timeout_s: float) -> None:
    listed = await outcomes({"never": None, "stored": STORED}, timeout_s=timeout_s)
    assert listed.answered["never"].code == UNKNOWN.response_code
    assert listed.answered["stored"].code == ResponseCode.SUCCESS


class _Elsewhere:
    """An Answering that notes the requests that it forwards to another master."""

    def __init__(self) -> None:
        #: Topic, account, address of the client, and whether it may be a repetition.
        self.forwarded: list[tuple[str, str, str, bool]] = []

    async def unary(self, request: RemotingRequest, context: CallContext) -> bytes:
        topic = request.command.fields["b"]
        self.forwarded.append((topic, context.account, context.remote, context.is_repeated))
        return b"answer"


async def test_a_forwarded_send_is_answered_at_its_own_deadline_if_the_master_is_silent() -> None:
    listed, responds = Listed("abc"), asyncio.Event()
    limits = {"a": LATE_S + 0.2, "b": LATE_S + 0.1, "c": 600.0}
    commands = listed.requests
    sends = [
        ListedCall(RemotingRequest(one, SEND), CONTEXT._replace(timeout_s=limits[one.fields["b"]]))
        for one in commands
    ]

    async def forward(calls: Sequence[ListedCall]) -> AsyncGenerator[ListResults, None]:
        await responds.wait()
        yield [(number, encode(command.answer(STORED))) for number, command in enumerate(commands)]

    found = SendList(sends, ClientOutcomes(listed, sends, _Elsewhere().unary), 30.0)
    forwarding = asyncio.create_task(found.forward(forward))
    await until(lambda: len(listed.answered) == 2)
    assert {topic: one.code for topic, one in listed.answered.items()} == dict.fromkeys(
        "ab", UNKNOWN.response_code
    )
    responds.set()  # the responses to the others are too late
    await forwarding
    assert [listed.answered[topic].code for topic in "abc"] == [UNKNOWN.response_code] * 2 + [STORED]


async def test_a_send_that_moves_keeps_its_account_and_a_one_way_send_gets_no_response() -> None:
    elsewhere, written = _Elsewhere(), list[bytes]()
    connection = cast(Any, SimpleNamespace(peer=CLIENT, send_encoded=written.append))
    processor = FakeProcessor({"first": NotMaster("elsewhere"), "second": UNKNOWN})
    forwarding = Forwarding(
        cast(Any, elsewhere),
        cast(Any, SimpleNamespace(table=SimpleNamespace(client_id=lambda _: "c"), replies=None)),
        cast(Any, None),
        {RequestCode.SEND_MESSAGE_V2: SEND},
        knows_accounts=True,
        sends=NodeSends({REMOTING: processor}, lambda: True, lambda calls: None, timeout_s=30.0),
    )
    fields = {"i": "UNIQ_KEY\x01u"}
    commands = [
        RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"b": "first", ACCESS_KEY: "one", **fields}),
        RemotingCommand.oneway(RequestCode.SEND_MESSAGE_V2, {"b": "second", ACCESS_KEY: "two", **fields}),
    ]
    listed = Listed([])
    listed.left = {id(command): command for command in commands}
    await forwarding.store_together(connection, listed)
    for command in commands:
        again = listed.alone[command.fields["b"]]
        assert again is not None and await again(connection, command) is None
    assert elsewhere.forwarded == [("first", "one", CLIENT, False), ("second", "two", CLIENT, True)]
    assert written == [b"answer"]


@pytest.mark.parametrize(("left_s", "is_made"), [(2 * WAY_BACK_S, True), (WAY_BACK_S / 2, False), (0, False)])
def test_a_second_attempt_has_only_the_rest_of_the_time(left_s: float, is_made: bool) -> None:
    send = ListedCall(
        RemotingRequest(RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"b": "t"}), SEND), CONTEXT
    )
    again = second_attempt(send, NotMaster("elsewhere"), 30.0 - left_s)
    expected = CONTEXT._replace(timeout_s=pytest.approx(left_s))
    assert again == (expected if is_made else None)
    unlimited = ListedCall(send.request, CONTEXT._replace(timeout_s=None))
    assert second_attempt(unlimited, NotMaster("elsewhere"), 3600.0) == unlimited.context


def test_a_send_whose_outcome_is_unknown_twice_is_not_tried_again() -> None:
    fields = {"b": "t", "i": "UNIQ_KEY\x01u"}
    request = RemotingRequest(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields), SEND)
    again = second_attempt(ListedCall(request, CONTEXT), UNKNOWN, 0.0)
    assert again == CONTEXT._replace(is_repeated=True)
    assert second_attempt(ListedCall(request, again), UNKNOWN, 0.0) is None
