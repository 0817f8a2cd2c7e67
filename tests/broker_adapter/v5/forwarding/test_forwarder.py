"""Who is asked, what is sent again, and how long a call waits: two nodes' ends of a stream, no log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from broker_adapter.endpoints.context import CallContext, ResponseDelivery
from broker_adapter.endpoints.forwarding import service
from broker_adapter.endpoints.forwarding.forwarder import Forwarder
from broker_adapter.endpoints.forwarding.frames import METHOD, AddTo, FrameQueue
from broker_adapter.endpoints.forwarding.link import MasterLink
from broker_adapter.endpoints.forwarding.members import Members
from broker_adapter.endpoints.forwarding.service import ForwardService
from broker_adapter.endpoints.rejected import Code
from broker_adapter.endpoints.v5.clients import ClientInfo, ClientStreams
from broker_adapter.endpoints.v5.connected import ConnectedClients
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, IllegalMessage, PutIndeterminate, Status, error_for
from broker_adapter.v1 import forward_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger import InvalidRequest, NodeConfig, Role, RoleEvent
from dledger.infra.transport.channels import new_server, open_channel
from dledger.node.setup.config import parse_config
from tests.broker_adapter.v5.world import message
from tests.node.local import until
from tests.process.cluster import free_ports

CONTEXT = CallContext("c", "ns", "JAVA", "5", "10.0.0.1:2", "account", 5.0, "tls")
SEND = calls.SendMessageRequest(messages=[message()]).SerializeToString()
NAMELESS = calls.SendMessageRequest(messages=[message(), message(message_id="")]).SerializeToString()


def config(node_id: str, members: dict[str, str], **more: Any) -> NodeConfig:
    content = {"directory": "/nowhere", "node_id": node_id, "cluster_id": "c", "members": members, **more}
    return parse_config(content)


class Scripted:
    """Answers with what is next in `script`: bytes, or raises an error; then with "ok"."""

    def __init__(self, *script: bytes | BrokerError) -> None:
        self.script = list(script)
        self.seen: list[tuple[str, CallContext]] = []
        self.may = asyncio.Event()
        self.may.set()
        self.cancelled = 0
        self.ends: list[bool] = []  # of streams: whether their answers were passed on

    async def unary(self, request: Request, context: CallContext) -> bytes:
        self.seen.append((request.name, context))
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        found = self.script.pop(0) if self.script else b"ok"
        if isinstance(found, BrokerError):
            raise found
        return found

    async def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        self.seen.append((request.name, context))
        if context.response_delivery is not None:
            context.response_delivery.then(self.ends.append)
        try:
            while self.script:
                found = self.script.pop(0)
                if isinstance(found, BrokerError):
                    raise found
                yield found
            await self.may.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Pair:
    """n1 forwards to n2. `lead` says who leads."""

    def __init__(self, remote: Scripted, settings: ClientServiceSettings) -> None:
        ports = free_ports(2)
        self.members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(ports, 1)}
        self.remote, self.local = remote, Scripted(b"local")
        self.is_local_master = self.is_remote_master = False
        self.clients = ClientStreams(200)
        self.connected = ConnectedClients(ClientStreams(9), lambda: 0.0)
        self.forwarder = Forwarder(
            "n1",
            Members(config("n1", self.members)),
            self.local,
            self.clients,
            settings,
            lambda: self.is_local_master,
        )
        self.settings = settings
        self.service = self.make_service()
        self.server: Any = None

    def make_service(self) -> ForwardService:
        members = Members(config("n2", self.members))
        return ForwardService(
            self.remote, members, self.connected, self.settings, lambda: self.is_remote_master
        )

    async def start(self) -> None:
        self.server = new_server()
        self.server.add_generic_rpc_handlers((self.service.handler,))
        self.server.add_insecure_port(self.members["n2"])
        await self.server.start()

    async def restart(self) -> None:
        self.service.stop()
        await self.server.stop(None)
        self.service = self.make_service()
        await self.start()

    def lead(self, leader: str | None) -> None:
        self.forwarder.role_changed(RoleEvent(Role.FOLLOWER, 1, 1, leader, -1))

    def remote_master(self, is_master: bool) -> None:
        self.is_remote_master = is_master
        self.service.announce()

    async def unary(
        self,
        method: str = "SendMessage",
        request: bytes = SEND,
        timeout_s: float = 5.0,
        context: CallContext = CONTEXT,
    ) -> bytes:
        return await self.forwarder.unary(Request(method, request), context._replace(timeout_s=timeout_s))


@asynccontextmanager
async def pair(
    *script: bytes | BrokerError, settings: ClientServiceSettings | None = None
) -> AsyncIterator[Pair]:
    made = Pair(Scripted(*script), settings or ClientServiceSettings())
    await made.start()
    made.lead("n2")
    made.remote_master(True)
    try:
        yield made
    finally:
        await made.forwarder.stop()
        made.service.stop()
        await made.server.stop(None)


def unknown() -> BrokerError:
    return error_for(Status.OUTCOME_UNKNOWN, "who knows")


def not_master() -> BrokerError:
    return error_for(Status.NOT_MASTER, "not I")


async def test_who_called_travels_with_the_call() -> None:
    async with pair(b"answer") as p:
        assert await p.unary() == b"answer"
        ((method, context),) = p.remote.seen
        assert method == "SendMessage"
        assert context.timeout_s is not None and 0 < context.timeout_s <= 5
        assert context._replace(timeout_s=5.0) == CONTEXT


async def test_a_call_that_meets_a_bug_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> bytes:
        raise ZeroDivisionError

    async with pair() as p:
        await until(lambda: p.forwarder.destination() is not None)
        p.remote.may.clear()
        other = asyncio.create_task(p.unary())
        await until(lambda: bool(p.remote.seen))
        monkeypatch.setattr(p.remote, "unary", broken)
        answer = calls.SendMessageResponse.FromString(await p.unary())
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        p.remote.may.set()
        assert await other == b"ok"
        assert p.forwarder.figures.outcomes["SendMessage", "sent again"] == 0


async def test_a_node_that_stops_gives_up_what_it_was_to_send_again() -> None:
    async with pair(not_master()) as p:
        await until(lambda: p.forwarder.destination() is not None)
        waiting = asyncio.create_task(p.unary(timeout_s=600))
        await until(lambda: bool(p.remote.seen))
        p.lead(None)
        p.remote_master(False)
        await until(lambda: p.forwarder.figures.outcomes["SendMessage", "sent again"] == 1)
        await p.forwarder.stop()
        with pytest.raises(type(not_master())):
            await waiting


async def test_the_master_itself_is_not_asked_over_a_stream() -> None:
    async with pair() as p:
        p.is_local_master = True
        assert await p.unary() == b"local"
        assert p.remote.seen == []


async def test_a_forwarded_call_goes_no_further() -> None:
    """The stream's other end answers for itself or says that it is not the master."""
    async with pair() as p, open_channel(p.members["n2"]) as channel:
        p.remote_master(False)
        method: Any = channel.stream_stream(
            METHOD,
            request_serializer=pb.FromNode.SerializeToString,
            response_deserializer=pb.FromMaster.FromString,
        )
        stream = method()
        await stream.write(pb.FromNode(hello=Members(config("n1", p.members)).hello("n2")))
        assert not (await stream.read()).welcome.code
        await stream.write(pb.FromNode(calls=[pb.ForwardedCall(id=1, method="SendMessage", request=SEND)]))
        answers: list[Any] = []
        while not answers:
            answers.extend((await stream.read()).answers)
        assert [(one.id, one.code, one.is_last) for one in answers] == [(1, Status.NOT_MASTER, True)]
        assert p.remote.seen == []
        stream.cancel()


async def test_what_surely_was_not_done_is_sent_again() -> None:
    async with pair(not_master(), error_for(Status.SHUTTING_DOWN, "bye"), b"done") as p:
        assert await p.unary("RecallMessage", b"") == b"done"
        assert p.forwarder.figures.outcomes["RecallMessage", "sent again"] == 2


@pytest.mark.parametrize(
    ("method", "request_", "is_again"),
    [
        ("SendMessage", SEND, True),
        ("SendMessage", NAMELESS, False),
        ("SendMessage", b"\xff", False),
        ("AckMessage", b"", True),
        ("EndTransaction", b"", True),
        ("Heartbeat", b"", True),
        ("RecallMessage", b"", False),
        ("ChangeInvisibleDuration", b"", False),
        ("ForwardMessageToDeadLetterQueue", b"", False),
    ],
)
async def test_what_may_be_done_is_sent_again_only_if_that_changes_nothing(
    method: str, request_: bytes, is_again: bool
) -> None:
    assert Request(method, request_).is_repeatable is is_again
    async with pair(unknown(), b"done") as p:
        if is_again:
            assert await p.unary(method, request_) == b"done"
        else:
            with pytest.raises(PutIndeterminate):
                await p.unary(method, request_)


async def test_what_may_have_ended_a_master_is_tried_once_more_and_marked() -> None:
    """A request that froze its master was repeated at the next one, until no quorum was left."""
    async with pair(unknown(), unknown(), b"done") as p:
        with pytest.raises(PutIndeterminate):
            await p.unary("AckMessage", b"")
        assert [context.is_repeated for _, context in p.remote.seen] == [False, True]


async def test_a_master_names_the_call_that_another_one_has_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it ends, too, that is the last line of its log."""
    told: list[dict[str, Any]] = []
    log = SimpleNamespace(warning=lambda _, **fields: told.append(fields))
    monkeypatch.setattr(service, "_log", log)
    async with pair(b"done", unknown(), b"done") as p:
        await p.unary("AckMessage", b"")
        assert told == []
        await p.unary("AckMessage", b"")
        assert told == [{"method": "AckMessage", "client": CONTEXT.client_id, "node": "n1"}]


async def test_a_stopped_node_follows_no_new_leader() -> None:
    async with pair() as p:
        await until(lambda: p.forwarder.destination() is not None)
        await p.forwarder.stop()
        tasks = asyncio.all_tasks()
        p.lead(None)
        p.lead("n2")
        assert asyncio.all_tasks() == tasks and p.forwarder.destination() is None


async def test_the_master_counts_streams_and_single_calls_of_a_node_together() -> None:
    async with pair() as p:
        await until(lambda: p.forwarder.destination() is not None)
        p.settings = ClientServiceSettings(max_calls=1, max_waiting_receives=1)  # the master's
        await p.restart()
        p.remote.may.clear()
        receiving = asyncio.ensure_future(anext(p.forwarder.stream(Request("ReceiveMessage", b""), CONTEXT)))
        await until(lambda: len(p.remote.seen) == 1)
        sending = asyncio.create_task(p.unary())
        await until(lambda: len(p.remote.seen) == 2)
        with pytest.raises(BrokerError) as caught:
            await p.unary()
        assert caught.value.status is Status.TOO_MANY_CALLS
        receiving.cancel()
        await asyncio.wait([receiving])
        p.remote.may.set()
        assert await sending == b"ok"


async def test_a_call_that_is_tried_once_more_waits_for_a_master_as_any_other() -> None:
    async with pair(unknown(), not_master(), not_master(), b"done") as p:
        assert await p.unary("AckMessage", b"") == b"done"
        assert [context.is_repeated for _, context in p.remote.seen] == [False, True, True, True]


@pytest.mark.parametrize("status", [Status.NOT_MASTER, Status.SHUTTING_DOWN])
async def test_a_refusal_says_nothing_of_an_earlier_attempt(status: Status) -> None:
    async with pair(unknown(), *[error_for(status, "not I")] * 999) as p:
        with pytest.raises(PutIndeterminate, match="an earlier attempt may have succeeded"):
            await p.unary(timeout_s=2.0)


async def test_a_silent_master_is_asked_no_longer_than_the_deadline() -> None:
    async with pair() as p:
        p.remote.may.clear()
        with pytest.raises(PutIndeterminate):
            await p.unary(timeout_s=2.0)
        await until(lambda: p.forwarder.link is not None and not len(p.forwarder.link))
        p.remote.may.set()
        assert await p.unary() == b"ok"


async def test_calls_at_a_silent_master_go_to_the_next_one() -> None:
    async with pair() as p:
        p.remote.may.clear()
        waiting = asyncio.create_task(p.unary())
        await until(lambda: len(p.remote.seen) == 1)
        p.lead(None)
        p.is_local_master = True
        p.lead("n1")
        assert await waiting == b"local"


async def test_calls_outlive_a_stream_that_breaks() -> None:
    async with pair() as p:
        p.remote.may.clear()
        waiting = asyncio.create_task(p.unary())
        await until(lambda: len(p.remote.seen) == 1)
        await p.restart()
        p.remote.may.set()
        assert await waiting == b"ok"
        assert len(p.remote.seen) == 2


async def test_a_link_that_fails_by_a_mistake_of_its_own_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve, failures = MasterLink._serve, 0

    async def fail_once(self: MasterLink, stream: Any) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise RuntimeError("a mistake")
        await serve(self, stream)

    monkeypatch.setattr(MasterLink, "_serve", fail_once)
    async with pair() as p:
        assert await p.unary(timeout_s=30.0) == b"ok"
        assert failures == 2


@pytest.mark.parametrize("client_id", ["\ud800", "x" * (5 << 20)])
async def test_what_cannot_be_written_is_refused_and_harms_no_other_call(client_id: str) -> None:
    """It would end the stream, and with it all that this node's clients have asked for."""
    async with pair(b"before", b"after") as p:
        assert await p.unary() == b"before"
        link = p.forwarder.link
        with pytest.raises(IllegalMessage):
            await p.unary("SendMessage", NAMELESS, 60.0, CONTEXT._replace(client_id=client_id))
        assert await p.unary() == b"after"
        assert p.forwarder.link is link


async def test_an_answer_that_is_too_large_for_a_frame_harms_no_other_call() -> None:
    async with pair(b"before", bytes(5 << 20), b"after") as p:
        assert await p.unary() == b"before"
        link = p.forwarder.link
        assert len(await p.unary()) < 1_000, "a refusal"
        assert await p.unary() == b"after"
        assert p.forwarder.link is link


async def test_the_end_of_an_earlier_connection_leaves_the_newer_one() -> None:
    async with pair() as p:
        assert await p.unary() == b"ok"
        p.lead("n1")
        p.lead("n2")
        await until(lambda: not p.forwarder._ended)
        assert await p.unary() == b"ok"


class Read(Request):
    """A request that any node may answer, as the other endpoint has them."""

    is_read = True  # type: ignore[assignment]


async def test_a_read_that_fails_here_goes_to_the_master() -> None:
    async with pair() as p:
        p.forwarder._reads_here = lambda: True
        p.local.script.insert(0, not_master())
        assert await p.forwarder.unary(Read("QueryRoute", b""), CONTEXT) == b"ok"
        assert await p.forwarder.unary(Read("QueryRoute", b""), CONTEXT) == b"local"


async def test_a_call_that_is_cancelled_before_it_is_written_is_never_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair() as p:
        await until(lambda: p.forwarder.destination() is not None)
        link = p.forwarder.link
        assert link is not None
        parts: list[AddTo] = []
        monkeypatch.setattr(link._outbox, "put", lambda _, add: parts.append(add))
        calls_ = [asyncio.create_task(p.unary("QueryRoute", b"")) for _ in range(2)]
        await until(lambda: len(parts) == 2)
        calls_[0].cancel()
        await asyncio.wait(calls_[:1])
        frame = pb.FromNode()
        for add in parts:
            add(frame)
        assert [call.method for call in frame.calls] == ["QueryRoute"] and not frame.cancelled
        calls_[1].cancel()


async def test_calls_wait_until_the_elected_takes_writes() -> None:
    async with pair() as p:
        assert await p.unary() == b"ok"
        before = p.forwarder.figures.held
        p.remote_master(False)
        await until(lambda: p.forwarder.destination() is None)
        waiting = asyncio.create_task(p.unary())
        await until(lambda: p.forwarder._change is not None)
        p.remote_master(True)
        assert await waiting == b"ok"
        assert p.forwarder.figures.held == before + 1


async def test_without_a_master_a_call_is_refused_before_its_deadline() -> None:
    async with pair() as p:
        p.lead(None)
        with pytest.raises(BrokerError) as caught:
            await p.unary(timeout_s=1.0)
        assert caught.value.status is Status.NOT_MASTER


async def test_streams_give_their_answers_one_by_one_and_end_at_the_master_too() -> None:
    async with pair(b"1", b"2") as p:
        answers = p.forwarder.stream(Request("ReceiveMessage", b""), CONTEXT)
        p.remote.may.clear()
        async with aclosing(answers):
            assert [await anext(answers), await anext(answers)] == [b"1", b"2"]
        await until(lambda: p.remote.cancelled == 1)


async def test_a_question_ends_at_the_master_when_its_caller_gives_up() -> None:
    """Thousands went on there once, and no client was left: they cost the leader its office."""
    async with pair() as p:
        p.remote.may.clear()
        asked = asyncio.ensure_future(p.unary("QueryRoute", b"", timeout_s=3_600.0))
        await until(lambda: len(p.remote.seen) == 1)
        asked.cancel()
        await until(lambda: p.remote.cancelled == 1)


async def test_a_question_ends_at_the_master_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the master does not hear that its caller has given up: it may be too busy."""

    def forget(self: MasterLink, call_id: int, call: object) -> None:
        self._calls.pop(call_id, None)

    refused: list[Status] = []
    refuse = service._NodeStream._refuse

    def noted(self: service._NodeStream, call: pb.ForwardedCall, error: BrokerError) -> None:
        refused.append(error.status)
        refuse(self, call, error)

    monkeypatch.setattr(MasterLink, "_end_call", forget)
    monkeypatch.setattr(service._NodeStream, "_refuse", noted)
    async with pair() as p:
        p.remote.may.clear()
        with pytest.raises(BrokerError):
            await p.unary("QueryRoute", b"", timeout_s=2.0)
        await until(lambda: p.remote.cancelled == 1)
        await until(lambda: refused == [Status.TOO_MANY_CALLS])


async def test_what_is_to_be_done_is_done_though_its_caller_gives_up() -> None:
    async with pair() as p:
        p.remote.may.clear()
        sent = asyncio.ensure_future(p.unary())
        await until(lambda: len(p.remote.seen) == 1)
        sent.cancel()
        asked = asyncio.ensure_future(p.unary("QueryRoute", b""))  # behind it on the stream
        await until(lambda: len(p.remote.seen) == 2)
        asked.cancel()
        await until(lambda: p.remote.cancelled == 1)
        p.remote.may.set()


async def test_a_stream_that_breaks_after_its_first_answer_ends_with_an_error_and_was_not_passed_on() -> None:
    async with pair(b"1") as p:
        p.remote.may.clear()
        answers = p.forwarder.stream(Request("ReceiveMessage", b""), CONTEXT)
        assert await anext(answers) == b"1"
        await p.restart()
        with pytest.raises(BrokerError):
            await anext(answers)
        await until(lambda: p.remote.ends == [False])


async def test_a_master_that_fails_after_its_first_answer_says_so() -> None:
    async with pair(b"1", unknown()) as p:
        answers = p.forwarder.stream(Request("ReceiveMessage", b""), CONTEXT)
        assert await anext(answers) == b"1"
        with pytest.raises(BrokerError):
            await anext(answers)
        await until(lambda: p.remote.ends == [False])


@pytest.mark.parametrize("is_passed_on", [True, False])
async def test_the_master_hears_what_became_of_answers_that_it_has_given(is_passed_on: bool) -> None:
    async with pair(b"1", b"2") as p:
        response_delivery = ResponseDelivery()
        answers = p.forwarder.stream(
            Request("ReceiveMessage", b""), CONTEXT._replace(response_delivery=response_delivery)
        )
        assert [answer async for answer in answers] == [b"1", b"2"]
        await p.unary()  # whatever the master was told before this it knows by now
        assert p.remote.ends == []
        response_delivery.settle(is_passed_on)
        await until(lambda: p.remote.ends == [is_passed_on])


async def test_answers_that_nobody_took_were_not_passed_on() -> None:
    async with pair(b"1", b"2") as p:
        answers = p.forwarder.stream(Request("ReceiveMessage", b""), CONTEXT)
        async with aclosing(answers):
            assert await anext(answers) == b"1"
            await p.unary()  # all of them are here by now
        await until(lambda: p.remote.ends == [False])


async def test_a_node_that_does_not_tell_what_became_of_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is of an older version."""

    def hello(self: Members, remote_id: str) -> pb.ForwardHello:
        found = right(self, remote_id)
        found.tells_passed_on = False
        return found

    right = Members.hello
    monkeypatch.setattr(Members, "hello", hello)
    async with pair(b"1") as p:
        answers = p.forwarder.stream(
            Request("ReceiveMessage", b""), CONTEXT._replace(response_delivery=ResponseDelivery())
        )
        assert [answer async for answer in answers] == [b"1"]
        await until(lambda: p.remote.ends == [True])


async def test_more_than_the_limit_is_refused() -> None:
    settings = ClientServiceSettings(max_calls=1, max_waiting_receives=1)
    async with pair(settings=settings) as p:
        p.remote.may.clear()
        tasks = [asyncio.create_task(p.unary()) for _ in range(2)]
        await until(lambda: len(p.remote.seen) == 2)
        with pytest.raises(BrokerError) as caught:
            await p.unary()
        assert caught.value.status is Status.TOO_MANY_CALLS
        p.remote.may.set()
        assert await asyncio.gather(*tasks) == [b"ok", b"ok"]
    async with pair(settings=ClientServiceSettings(max_forwarded_bytes=len(SEND))) as p:
        assert await p.unary() == b"ok"
        with pytest.raises(BrokerError) as caught:
            await p.unary(request=SEND + SEND)
        assert caught.value.status is Status.TOO_MANY_CALLS


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        (ClientServiceSettings(max_calls=4, max_waiting_receives=4), 6),
        (ClientServiceSettings(max_forwarded_bytes=8 * len(SEND)), 6),
    ],
)
async def test_an_address_leaves_others_some_of_the_way_to_the_master(
    settings: ClientServiceSettings, most: int
) -> None:
    def sent(p: Pair, remote: str) -> asyncio.Task[bytes]:
        call = p.forwarder.unary(Request("SendMessage", SEND), CONTEXT._replace(remote=remote))
        return asyncio.create_task(call)

    async with pair(settings=settings) as p:
        p.remote.may.clear()
        flood = [sent(p, "10.0.0.1:4711") for _ in range(8)]
        await until(lambda: len(p.remote.seen) == most and sum(task.done() for task in flood) == 8 - most)
        other = sent(p, "10.0.0.2:4711")
        await until(lambda: len(p.remote.seen) == most + 1)
        p.remote.may.set()
        assert await other == b"ok"
        found = await asyncio.gather(*flood, return_exceptions=True)
        assert found.count(b"ok") == most
        assert await asyncio.gather(*(sent(p, "10.0.0.1:4711") for _ in range(most))) == [b"ok"] * most


async def test_calls_that_a_node_sends_on_take_no_share_at_the_master() -> None:
    """All come from that node's address; the shares of its clients are taken where they are connected."""
    settings = ClientServiceSettings(max_calls=1, max_waiting_receives=7)
    async with pair(settings=settings) as p:
        p.remote.may.clear()
        contexts = [CONTEXT._replace(remote=f"10.0.0.{number}:2") for number in range(8)]
        receives = [p.forwarder.stream(Request("ReceiveMessage", b""), one) for one in contexts]
        tasks = [asyncio.ensure_future(anext(receive)) for receive in receives]
        await until(lambda: len(p.remote.seen) == 8)
        for task in tasks:
            task.cancel()
        await until(lambda: p.remote.cancelled == 8)


async def test_who_does_not_read_is_no_reason_to_refuse_others_what_is_small() -> None:
    large = bytes(150_000)
    async with pair(settings=ClientServiceSettings(max_forwarded_bytes=100_000)) as p:
        assert await p.unary() == b"ok"
        link = p.forwarder.link
        assert link is not None
        p.remote.script += [b"1", large]
        async with aclosing(p.forwarder.stream(Request("ReceiveMessage", b""), CONTEXT)) as silent:
            assert await anext(silent) == b"1"
            await until(lambda: link.waiting_bytes == len(large))
            assert await p.unary() == b"ok"
            p.remote.script += [large]
            with pytest.raises(BrokerError) as caught:
                await anext(p.forwarder.stream(Request("ReceiveMessage", b""), CONTEXT))
            assert caught.value.status is Status.TOO_MANY_CALLS
        assert (link.sent_bytes, link.waiting_bytes) == (0, 0)


async def test_clients_of_a_node_are_known_to_the_master_as_long_as_it_is_connected() -> None:
    class Silent:
        def queue_command(self, command: calls.TelemetryCommand) -> bool:
            told.append(command)
            return True

    told: list[calls.TelemetryCommand] = []
    command = calls.TelemetryCommand(verify_message_command=calls.VerifyMessageCommand(nonce="x"))
    async with pair() as p:
        stream = Silent()
        p.clients.add("a", stream)
        p.clients.describe("a", stream, ClientInfo(1, "", frozenset({"t"})))  # type: ignore[arg-type]
        assert await p.unary() == b"ok"
        await until(lambda: p.connected.send_to_producer("t", "gone", command))
        await until(lambda: told == [command])
        p.connected.sent("b", "u")
        assert not p.connected.send_to_producer("u", "gone", command)
        p.clients.add("b", stream)  # it says nothing of itself, but has sent
        await until(lambda: p.connected.send_to_producer("u", "gone", command))
        await p.restart()
        assert await p.unary() == b"ok"
        await until(lambda: p.connected.send_to_producer("t", "gone", command))  # told again
        p.clients.remove("a", stream)
        await until(lambda: not p.connected.send_to_producer("t", "gone", command))


class Deaf:
    """A client's stream that nothing is told over."""

    def queue_command(self, command: calls.TelemetryCommand) -> bool:
        return False

    def renew(self) -> None:
        pass


async def test_clients_of_many_topics_are_told_of_in_frames_that_pass() -> None:
    async with pair() as p:
        for i in range(200):
            client_id = f"client-{i}"
            topics = frozenset(f"{i}-{n}-".ljust(120, "x") for n in range(256))
            p.clients.add(client_id, stream := Deaf())
            p.clients.describe(client_id, stream, ClientInfo(1, "", topics))  # type: ignore[arg-type]
        await p.restart()
        assert await p.unary() == b"ok"
        await until(lambda: [len(node.infos) for node in p.connected._nodes] == [200])


async def test_a_client_that_comes_and_goes_at_once_is_not_taken_for_connected() -> None:
    async with pair() as p:
        assert await p.unary() == b"ok"
        for client_id in ("a", "b"):
            stream = Deaf()
            p.clients.add(client_id, stream)
            p.clients.remove(client_id, stream)
        p.clients.add("a", Deaf())
        p.clients.add("c", Deaf())
        (node,) = p.connected._nodes
        await until(lambda: "c" in node.infos)
        assert set(node.infos) == {"a", "c"}


async def test_of_clients_nothing_is_kept_for_a_master_that_cannot_be_reached() -> None:
    async with pair() as p:
        await p.server.stop(None)
        await until(lambda: p.forwarder.link is not None and not p.forwarder.link.is_writable)
        link = p.forwarder.link
        assert link is not None
        for _ in range(100):
            stream = Deaf()
            p.clients.add("a", stream)
            p.clients.remove("a", stream)
        p.clients.add("b", Deaf())
        assert link._outbox.bytes == 0
        await p.restart()
        await until(lambda: [set(node.infos) for node in p.connected._nodes] == [{"b"}])


@pytest.mark.parametrize(
    "change",
    [{"cluster_id": "other"}, {"node_id": "n2"}, {"node_id": "n9"}, {"remote_id": "n1"}, {"version": 9}],
)
async def test_only_members_may_forward(change: dict[str, Any]) -> None:
    async with pair() as p, open_channel(p.members["n2"]) as channel:
        hello = Members(config("n1", p.members)).hello("n2")
        for name, value in change.items():
            setattr(hello, name, value)
        method: Any = channel.stream_stream(
            METHOD,
            request_serializer=pb.FromNode.SerializeToString,
            response_deserializer=pb.FromMaster.FromString,
        )
        stream = method()
        await stream.write(pb.FromNode(hello=hello))
        assert (await stream.read()).welcome.code
        assert not (await stream.read())  # and nothing more


def test_members_show_each_other_the_secret_of_the_cluster(tmp_path: Path) -> None:
    """Forwarded calls say themselves who their caller is, so whoever forwards has to be a member."""
    members = {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}
    secrets = {}
    for node, text in (("n1", "a" * 32), ("n2", "a" * 32), ("stranger", "b" * 32)):
        secrets[node] = tmp_path / node
        secrets[node].write_text(text)
    checks = Members(config("n2", members, cluster_secret_file=str(secrets["n2"])))
    known = Members(config("n1", members, cluster_secret_file=str(secrets["n1"])))
    assert checks.check(known.hello("n2"), {}) == "n1"
    for stranger in (
        Members(config("n1", members)),
        Members(config("n1", members, cluster_secret_file=str(secrets["stranger"]))),
    ):
        with pytest.raises(InvalidRequest) as caught:
            checks.check(stranger.hello("n2"), {})
        assert caught.value.code.name == "SECRET_REFUSED"
        assert "a" * 32 not in str(caught.value)


async def test_what_waits_travels_together_up_to_a_bound() -> None:
    written: list[Any] = []
    box = FrameQueue(list)
    for size in (10, 10, 2 << 20, 10):
        box.put(size, lambda frame, size=size: frame.append(size))

    async def write(frame: Any) -> None:
        written.append(frame)

    running = asyncio.create_task(box.run(write))
    await until(lambda: len(written) == 3)
    assert written == [[10, 10], [2 << 20], [10]]
    assert box.bytes == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
