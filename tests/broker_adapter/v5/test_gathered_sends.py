"""Sends of gRPC clients that arrive in one turn of the event loop: one list, and an outcome for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker_adapter.endpoints.context import LATE_S, CallContext
from broker_adapter.endpoints.lists.calls import ListedCall, ListOutcomes
from broker_adapter.endpoints.lists.send_list import NodeSends
from broker_adapter.endpoints.v4.request import REMOTING, SEND, RemotingRequest
from broker_adapter.endpoints.v5 import gathered as gathered_sends
from broker_adapter.endpoints.v5.messages.methods import SEND_MESSAGE
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, Busy, NotMaster, PutIndeterminate, Status
from broker_adapter.put.committer import PutRequest, RequestOutcome
from broker_adapter.put.message_writer import StoredAt
from broker_adapter.put.sender import Send, StartedSend, SubmittedSend
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand, decode
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.wire.message import decode as decode_record
from dledger.infra.loops.turns import MAX_TOGETHER
from tests.broker_adapter.v4.test_forwarded_lists import STORED, BusyLoop, pair
from tests.broker_adapter.v5.test_producer_calls import delayed
from tests.broker_adapter.v5.world import MAX_BODY, World, message, world
from tests.node.local import until

Code = pb.Code
CONTEXT = CallContext("c", remote="127.0.0.1:1", timeout_s=30.0)


def request_for(*messages: pb.Message) -> Request:
    return Request(SEND_MESSAGE, calls.SendMessageRequest(messages=messages).SerializeToString())


class Gathered:
    """Sends without a network, so that the test decides what arrives in one turn. `outcomes` by message id:
    an error, a put status, or None: never stored. Messages without an outcome are stored."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.outcomes: dict[str, object] = {}
        self.sizes: list[int] = []
        self.pending: dict[str, PutRequest] = {}
        self.store = w.delivery.start

    def start(self, send: Send) -> StartedSend:
        outcome = self.outcomes.get(send.message_id, ...)
        if isinstance(outcome, BrokerError):
            return outcome
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is ...:
            return self.store(send)
        request = self.pending[send.message_id] = PutRequest()
        if outcome is not None:
            assert isinstance(outcome, Status)
            stored = self.store(send)
            assert isinstance(stored, SubmittedSend)
            result = stored.result()
            request.settle(RequestOutcome([0], [], [StoredAt(result.queue_offset, 0)], outcome))
        return SubmittedSend(request, 0)

    def arrive(self, *messages: pb.Message, context: CallContext = CONTEXT) -> list[asyncio.Future[bytes]]:
        return [self.w.service._start_call(request_for(one), context, None) for one in messages]


@asynccontextmanager
async def gathered(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gathered]:
    async with world() as w:
        await w.delivery.ensure_topic("t")
        made, process = Gathered(w), NodeSends.process

        async def counted(self: NodeSends, listed: Sequence[ListedCall], outcomes: ListOutcomes) -> None:
            made.sizes.append(len(listed))
            await process(self, listed, outcomes)

        monkeypatch.setattr(NodeSends, "process", counted)
        monkeypatch.setattr(w.delivery, "start", made.start)
        yield made
        await until(lambda: not w.service._under_way and not w.service._calls.used)


def answer_of(data: bytes) -> Any:
    return calls.SendMessageResponse.FromString(data)


def bodies(w: World) -> list[bytes]:
    return [decode_record(record).body for queue in w.delivery.queues.values() for record in queue]


async def test_calls_of_one_turn_are_lists_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gathered(monkeypatch) as g:
        ids = [f"id{n:03}" for n in range(MAX_TOGETHER + 6)]
        fifo = {"message_type": pb.MessageType.FIFO, "message_group": "g"}
        found = g.arrive(*(message(one.encode(), message_id=one, **fifo) for one in ids))
        answers = [answer_of(await one) for one in found]
        assert g.sizes == [MAX_TOGETHER, 6]
        assert [entry.message_id for answer in answers for entry in answer.entries] == ids
        assert bodies(g.w) == [one.encode() for one in ids]
        (lone,) = g.arrive(message(message_id="lone"))
        assert answer_of(await lone).status.code == Code.OK and g.sizes[2:] == [1]


async def test_each_call_of_a_list_has_its_own_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gathered(monkeypatch) as g:
        g.outcomes = {
            "busy": Busy(Status.TOO_MANY_PENDING_BYTES, "later"),
            "defect": ZeroDivisionError("a defect"),
            "disk": Status.FLUSH_DISK_TIMEOUT,
            "slave": Status.FLUSH_SLAVE_TIMEOUT,
            "unknown": PutIndeterminate(Status.OUTCOME_UNKNOWN, "?"),
        }
        sent = {
            "first": message(message_id="first"),
            "empty": message(b"", message_id="empty"),
            "large": message(bytes(MAX_BODY + 1), message_id="large"),
            "again": message(message_id="first"),
            "delayed": delayed(b"later", 1_000, "delayed"),
            "new": message(topic="new", message_id="new"),
            **{one: message(message_id=one) for one in g.outcomes},
            "last": message(message_id="last"),
        }
        found = dict(zip(sent, g.arrive(*sent.values()), strict=True))
        await asyncio.wait(found.values())
        answers = {one: answer_of(data.result()) for one, data in found.items()}
        assert g.sizes == [len(sent)]
        assert {one: answer.status.code for one, answer in answers.items()} == {
            "first": Code.OK,
            "empty": Code.MESSAGE_BODY_EMPTY,
            "large": Code.MESSAGE_BODY_TOO_LARGE,
            "again": Code.OK,
            "delayed": Code.OK,
            "new": Code.OK,
            "busy": Code.TOO_MANY_REQUESTS,
            "defect": Code.INTERNAL_SERVER_ERROR,
            "disk": Code.MASTER_PERSISTENCE_TIMEOUT,
            "slave": Code.SLAVE_PERSISTENCE_TIMEOUT,
            "unknown": Code.OK,  # it has an id and is tried again
            "last": Code.OK,
        }
        assert answers["again"].entries[0].status.message == "OK, duplicate=true"
        assert answers["delayed"].entries[0].recall_handle
        assert answers["busy"].entries[0].message_id == "busy"


@pytest.mark.parametrize("timeout_s", [0.0, LATE_S + 0.01])
async def test_a_deadline_ends_one_wait_and_no_append(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    async with gathered(monkeypatch) as g:
        g.outcomes = {"long": None, "short": None}
        (long,) = g.arrive(message(message_id="long"))
        (short,) = g.arrive(message(message_id="short"), context=CONTEXT._replace(timeout_s=timeout_s))
        assert answer_of(await short).status.code == Code.MASTER_PERSISTENCE_TIMEOUT
        assert g.sizes == [2] and not long.done()
        assert not any(request.done.done() for request in g.pending.values())
        g.pending["long"].settle(RequestOutcome([0], []))
        assert answer_of(await long).status.code == Code.OK


async def test_a_call_whose_client_has_gone_ends_with_its_append(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gathered(monkeypatch) as g:
        g.outcomes = {"gone": None, "stays": None}
        gone, stays = g.arrive(message(message_id="gone"), message(message_id="stays"))
        await until(lambda: len(g.pending) == 2)
        gone.cancel()
        assert g.w.service._calls.used == 2, "the append uses its quota"
        g.pending["stays"].settle(RequestOutcome([0], []))
        g.pending["gone"].settle(RequestOutcome([1], []))
        assert answer_of(await stays).status.code == Code.OK


async def test_a_client_that_disconnects_before_the_turn_of_its_list_ends_no_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gathered(monkeypatch) as g:
        busy = BusyLoop()
        monkeypatch.setattr(gathered_sends, "wake_queue", lambda: busy)
        first, gone, last = g.arrive(*(message(one, message_id=one.decode()) for one in (b"1", b"2", b"3")))
        await until(lambda: busy.waiting == 1)
        gone.cancel()
        await asyncio.sleep(0)
        busy.is_over.set()
        assert answer_of(await first).status.code == answer_of(await last).status.code == Code.OK
        assert g.sizes == [3] and bodies(g.w) == [b"1", b"2", b"3"]


async def test_a_call_that_moves_is_tried_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gathered(monkeypatch) as g:
        g.outcomes = {"moved": NotMaster("elsewhere")}
        moved, stored = g.arrive(message(message_id="moved"), message(message_id="stored"))
        assert answer_of(await moved).status.code == answer_of(await stored).status.code == Code.OK
        assert len(bodies(g.w)) == 2


async def test_the_end_of_the_service_ends_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gathered(monkeypatch) as g:
        g.outcomes = {"a": None, "b": None}
        started = g.arrive(message(message_id="a"), message(message_id="b"))
        await until(lambda: len(g.pending) == 2)
        not_started = g.arrive(message(message_id="c"))
        g.w.service.stop()
        await asyncio.wait([*started, *not_started])
        assert all(one.cancelled() for one in (*started, *not_started))
        assert not any(request.done.done() for request in g.pending.values())


async def test_calls_of_clients_share_the_list_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gathered(monkeypatch) as g:
        sends = [g.w.send(message(message_id=f"id{n}")) for n in range(200)]
        answers = await asyncio.gather(*sends)
        assert [answer.entries[0].message_id for answer in answers] == [f"id{n}" for n in range(200)]
        assert sum(g.sizes) == 200 > len(g.sizes)


async def test_sends_of_both_protocols_share_a_list_at_the_master() -> None:
    class Started:
        """Implements StartedCall."""

        def __init__(self) -> None:
            self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.done.set_result(None)

        def response(self) -> bytes:
            return b"grpc"

    class Starter:
        def start(self, request: Request, context: CallContext) -> Started:
            assert context._replace(timeout_s=30.0) == CONTEXT
            return Started()

    async with pair({"t": STORED}) as p:
        p.lists._starters = {REMOTING: p.processor, SEND_MESSAGE: Starter()}
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"b": "t"})
        listed = [
            ListedCall(request_for(message()), CONTEXT),
            ListedCall(RemotingRequest(command, SEND), CONTEXT),
            ListedCall(request_for(message(message_id="2")), CONTEXT),
        ]
        groups = p.forwarder.forward_list(listed)
        assert groups is not None
        results = dict([one async for group in groups for one in group])
        assert p.lists.sizes == [3]
        assert results[0] == results[2] == b"grpc"
        remoting = results[1]
        assert isinstance(remoting, bytes) and decode(remoting[4:]).code == STORED


def test_only_sends_are_listed() -> None:
    sends = NodeSends({}, lambda: True, lambda _: None, timeout_s=1.0)
    pull = RemotingRequest(RemotingCommand(RequestCode.PULL_MESSAGE, {}))
    assert [sends.is_listed(one) for one in (request_for(message()), Request("Heartbeat", b""), pull)] == [
        True,
        False,
        False,
    ]


async def test_a_second_attempt_of_a_call_is_a_repetition_within_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gathered(monkeypatch) as g:
        seen = list[CallContext]()

        async def answer(request: Request, context: CallContext) -> bytes:
            seen.append(context)
            return b"again"

        monkeypatch.setattr(g.w.service, "_answer", answer)
        g.outcomes = {"unknown": None}
        (call,) = g.arrive(message(message_id="unknown"))
        await until(lambda: "unknown" in g.pending)
        g.pending["unknown"].fail(PutIndeterminate(Status.OUTCOME_UNKNOWN, "?"))
        assert await call == b"again"
        (context,) = seen
        assert context == CONTEXT._replace(timeout_s=context.timeout_s, is_repeated=True)
        assert context.timeout_s is not None and 0 < context.timeout_s < 30.0


async def test_a_drain_waits_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gathered(monkeypatch) as g:
        g.outcomes = {"late": None}
        (stored,) = g.arrive(message(message_id="stored"))
        assert answer_of(await stored).status.code == Code.OK
        (late,) = g.arrive(message(message_id="late"))
        await until(lambda: "late" in g.pending)
        alone = g.arrive(delayed(b"later", 1_000, "delayed"))[0]
        draining = asyncio.create_task(g.w.service.drain(600.0))
        assert answer_of(await alone).status.code == Code.OK
        for _ in range(100):  # turns of the loop, in which the drain would end
            await asyncio.sleep(0)
        assert not draining.done()
        g.pending["late"].settle(RequestOutcome([0], []))
        await draining
        assert answer_of(await late).status.code == Code.OK
