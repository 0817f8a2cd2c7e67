"""What gRPC between members and the network of the simulator both have to do.

A script runs where the asking member does; a port is the other member. In the simulator each of them is on
the event loop of its own process, so they share plain values only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

import pytest

from dledger.core.messages import (
    Commit,
    Goodbye,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PositionRequest,
    PositionResponse,
    PushMessage,
    PushResponse,
    PushType,
    TakeLeadership,
    TakeLeadershipResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.errors import Code, DLedgerError, InvalidRequest, Overloaded, ReadFailed
from dledger.infra.files.disk import CrashKind
from dledger.infra.transport.channels import new_server
from dledger.rpc.envelope import PeerClaims, PeerIdentity
from dledger.rpc.peer_client import PeerClient
from dledger.rpc.peer_service import PeerService
from dledger.rpc.peer_transport import PeerTransport, PeerUnreachable, Question
from dledger.rpc.ports import FetchedFrames, PushPeer
from dledger.rpc.push_stream import PushSender
from dledger.rpc.serving import peer_handler
from dledger.testing import QUIET, Simulation
from dledger.testing.peer_transport import SimTransport
from tests.node.local import until

PATIENT_S = 60.0
SHORT_S = 0.2
STREAM = 7
MEMBERS = ("n0", "n1", "n2")
DIRECTORIES = {"n0": 5, "n1": (1 << 32) + 6, "n2": 0}


async def soon(condition: Callable[[], object]) -> None:
    await until(lambda: bool(condition()), PATIENT_S)


class Port:
    """Implements dledger.rpc.ports.PeerPort: the asked member, which does what the test says."""

    def __init__(self) -> None:
        self.identity = PeerIdentity("sim", "sim", "n1", MEMBERS, 5)
        self.answer: Callable[[Message], Awaitable[Message]] | Message | Exception | None = None
        self.frames: list[FetchedFrames | DLedgerError] = []
        self.on_push: Callable[[PushPeer, PushMessage], None] = lambda stream, message: None
        self.asked: list[object] = []
        self.events: list[object] = []
        self.streams: list[PushPeer] = []
        self.cancelled = 0
        self.claims: list[tuple[str, PeerClaims]] = []
        self.refusal: InvalidRequest | None = None

    def check_claims(self, peer: str, claims: PeerClaims) -> None:
        self.claims.append((peer, claims))
        if self.refusal is not None:
            raise self.refusal

    async def request(self, peer: str, message: Message) -> Message:
        self.asked.append((peer, message))
        answer = self.answer
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            assert not callable(answer)
            return answer
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError

    async def fetch(
        self, first_index: int, last_index: int, max_bytes: int, *, uncommitted: bool
    ) -> FetchedFrames:
        self.asked.append((first_index, last_index, max_bytes, uncommitted))
        frames = self.frames.pop(0)
        if isinstance(frames, DLedgerError):
            raise frames
        return frames

    def push_opened(self, stream: PushPeer) -> None:
        self.streams.append(stream)
        self.events.append(("opened", stream.peer, stream.stream_id, stream.incarnation))

    def push_received(
        self, stream: PushPeer, message: PushMessage, payload: bytes | memoryview | None
    ) -> None:
        self.events.append(message)
        self.on_push(stream, message)

    def push_ended(self, stream: PushPeer, *, said_goodbye: bool) -> None:
        self.events.append(("ended", said_goodbye))


class World(Protocol):
    """A member, `transport` from it to another one, which is `port`."""

    transport: PeerTransport
    port: Port

    async def go_down(self) -> None:
        """The process of the asked member is killed."""

    async def come_up(self) -> None: ...


Script = Callable[[World], Awaitable[None]]


class _Grpc:
    def __init__(self) -> None:
        self.port = Port()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        me = PeerIdentity("sim", "sim", "n0", MEMBERS, 3, directory_of=DIRECTORIES.__getitem__)
        self.transport: PeerTransport = PeerClient("n1", self._address, me)

    async def come_up(self) -> None:
        self._server = new_server()
        self._server.add_generic_rpc_handlers((peer_handler(PeerService(self.port)),))
        self._server.add_insecure_port(self._address)
        await self._server.start()

    async def go_down(self) -> None:
        await self._server.stop(0)


def over_grpc(script: Script, *, is_up: bool = True) -> None:
    async def run() -> None:
        world = _Grpc()
        if is_up:
            await world.come_up()
        try:
            await script(world)
        finally:
            await world.transport.close()
            if hasattr(world, "_server"):
                await world.go_down()

    asyncio.run(run())


class _Simulated:
    def __init__(self) -> None:
        self.port = Port()
        self.refused: list[InvalidRequest] = []
        self._simulation = simulation = Simulation(replace(QUIET, request_timeout_ms=200))
        simulation.start()
        for process in simulation.processes():
            process.shell.give_up()  # its replica says and asks nothing more
        simulation.run_for(1_000)  # what was under way is over
        self.process = simulation.process("n0")
        self.process.identity = replace(self.process.identity, directory_of=DIRECTORIES.__getitem__)
        self.transport: PeerTransport = SimTransport(self.process, "n1")
        self._take()

    def _take(self) -> None:
        process = self._simulation.process("n1")
        process.shell.give_up()
        process.inbound = self.port  # type: ignore[assignment]
        process.push_refused = self.refused.append  # type: ignore[method-assign]
        self.port.identity = replace(self.port.identity, incarnation=process.incarnation)

    async def come_up(self) -> None:
        done: list[object] = []
        self._outside(lambda: done.append((self._simulation.boot("n1"), self._take())))
        await soon(lambda: bool(done))

    async def go_down(self) -> None:
        self._outside(lambda: self._simulation.crash("n1", CrashKind.PROCESS))
        await soon(lambda: self._simulation.nodes["n1"].process is None)

    def _outside(self, action: Callable[[], object]) -> None:
        self._simulation.clock.after(0, action)  # type: ignore[arg-type]


def in_the_simulator(script: Script, *, is_up: bool = True) -> None:
    world = _Simulated()
    simulation, process = world._simulation, world.process
    if not is_up:
        simulation.crash("n1", CrashKind.PROCESS)
    tasks: list[asyncio.Task[None]] = []
    process.post(lambda: tasks.append(process.loop.create_task(_as_coroutine(script, world))))
    simulation.run_until(lambda: tasks[0].done(), limit_ms=60_000)
    error = tasks[0].exception()
    simulation.close()
    if error is not None:
        raise error


async def _as_coroutine(script: Script, world: World) -> None:
    await script(world)


class Run(Protocol):
    def __call__(self, script: Script, *, is_up: bool = True) -> None: ...


both = pytest.mark.parametrize("run", [over_grpc, in_the_simulator])

VOTE = VoteRequest(4, "n0", 9, 3, False, False, 11)
QUESTIONS: list[tuple[Question, Any]] = [
    (VOTE, VoteResponse(4, "n1", VoteResult.ACCEPT, False, 11)),
    (Heartbeat(4, "n0", 12, 8), HeartbeatResponse(4, "n1", 12, True, stored_all=True)),
    (TakeLeadership(4, "n0", 9), TakeLeadershipResponse(4, "n1", Code.SUCCESS)),
    (PositionRequest(4, "n0", 13), PositionResponse(4, "n1", 13, 3, 9)),
]


@both
@pytest.mark.parametrize(("question", "answer"), QUESTIONS, ids=lambda value: type(value).__name__)
def test_questions_and_answers_arrive_as_they_were(run: Run, question: Question, answer: Any) -> None:
    async def script(world: World) -> None:
        world.port.answer = answer
        assert await world.transport.request(question, PATIENT_S) == answer
        assert world.port.asked == [("n0", question)]

    run(script)


@both
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("a term far away", code=Code.UNEXPECTED_ARGUMENT), Code.UNEXPECTED_ARGUMENT),
        (Overloaded("too many"), Overloaded("").code),
        (TimeoutError(), Code.TIMEOUT),
    ],
    ids=["invalid", "overloaded", "late"],
)
def test_refusals_keep_their_numbers(run: Run, error: Exception, code: Code) -> None:
    async def script(world: World) -> None:
        world.port.answer = error
        with pytest.raises(InvalidRequest) as caught:
            await world.transport.request(VOTE, PATIENT_S)
        assert caught.value.code is code

    run(script)


@both
@pytest.mark.parametrize("kind", ["call", "fetch", "push"])
def test_claims_are_checked_before_anything_else(run: Run, kind: str) -> None:
    async def ask(transport: PeerTransport) -> None:
        if kind == "call":
            await transport.request(VOTE, PATIENT_S)
        elif kind == "fetch":
            await anext(transport.fetch(0, 3, 100, PATIENT_S))
        else:
            await transport.open_push(7).run(lambda incarnation: None, lambda response: None)

    async def script(world: World) -> None:
        world.port.refusal = InvalidRequest("an earlier one", code=Code.DIRECTORY_REPLACED)
        with pytest.raises(InvalidRequest, match="an earlier one") as caught:
            await ask(world.transport)
        assert caught.value.code is Code.DIRECTORY_REPLACED
        assert world.port.claims == [("n0", PeerClaims(0, 0, DIRECTORIES["n0"], DIRECTORIES["n1"]))]
        assert not world.port.asked and not world.port.events

    run(script)


@both
def test_who_gets_no_answer_in_time_asks_no_longer_and_nor_does_the_asked_one_go_on(run: Run) -> None:
    async def script(world: World) -> None:
        with pytest.raises(PeerUnreachable):
            await world.transport.request(VOTE, SHORT_S)
        await soon(lambda: world.port.cancelled)
        world.port.answer = QUESTIONS[0][1]
        assert await world.transport.request(VOTE, PATIENT_S) == world.port.answer

    run(script)


@both
def test_cancelled_question_is_given_up_at_its_deadline_at_the_latest(run: Run) -> None:
    async def script(world: World) -> None:
        asking = asyncio.ensure_future(world.transport.request(VOTE, SHORT_S))
        await soon(lambda: world.port.asked)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await soon(lambda: world.port.cancelled)

    run(script)


@both
def test_member_that_is_down_is_unreachable_and_is_reached_once_it_is_up(run: Run) -> None:
    async def script(world: World) -> None:
        world.port.answer = QUESTIONS[0][1]
        with pytest.raises(PeerUnreachable):
            await world.transport.request(VOTE, SHORT_S)
        with pytest.raises(PeerUnreachable):
            await fetched(world, 0, 3, SHORT_S)
        await world.come_up()
        while True:
            try:
                answer = await world.transport.request(VOTE, PATIENT_S)
            except PeerUnreachable:
                continue  # gRPC connects when it tries next
            assert answer == world.port.answer
            return

    run(script, is_up=False)


async def fetched(world: World, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
    """The first piece, as PeerLink takes it."""
    async with aclosing(world.transport.fetch(first_index, last_index, 100, timeout_s)) as parts:
        async for part in parts:
            return part
    raise AssertionError("nothing came")


@both
def test_fetched_entries_are_those_of_the_member_committed_or_not(run: Run) -> None:
    async def script(world: World) -> None:
        world.port.frames = [FetchedFrames(2, 5, b"entries"), FetchedFrames(6, 9, b"more")]
        assert await fetched(world, 2, 9, PATIENT_S) == FetchedFrames(2, 5, b"entries")
        assert world.port.asked[0] == (2, 9, 100, True)

    run(script)


@both
@pytest.mark.parametrize(
    "code", [Code.INDEX_LESS_THAN_LOCAL_BEGIN, Code.INDEX_OUT_OF_RANGE, Code.DATA_DAMAGED]
)
def test_refused_fetch_says_why_by_its_number(run: Run, code: Code) -> None:
    async def script(world: World) -> None:
        world.port.frames = [ReadFailed("not here", code=code)]
        with pytest.raises(InvalidRequest) as caught:
            await fetched(world, 2, 9, PATIENT_S)
        assert caught.value.code is code

    run(script)


@both
@pytest.mark.parametrize(("first_index", "last_index"), [(5, 3), (-1, 3)])
def test_fetch_of_no_range_is_refused_before_it_reaches_the_log(
    run: Run, first_index: int, last_index: int
) -> None:
    async def script(world: World) -> None:
        with pytest.raises(InvalidRequest):
            await fetched(world, first_index, last_index, PATIENT_S)
        assert world.port.asked == []

    run(script)


class Leader:
    """A push stream, run, and what came of it."""

    def __init__(self, world: World) -> None:
        stream = world.transport.open_push(STREAM)
        assert isinstance(stream, PushSender)
        self.stream = stream
        self.incarnations: list[int] = []
        self.responses: list[PushResponse] = []
        self.running = asyncio.ensure_future(stream.run(self.incarnations.append, self.responses.append))

    async def up(self) -> Leader:
        await soon(lambda: self.incarnations)
        return self

    async def ended(self) -> BaseException | None:
        """None: in order."""
        await asyncio.wait([self.running], timeout=PATIENT_S)
        return self.running.exception()


@asynccontextmanager
async def leading(world: World) -> AsyncIterator[Leader]:
    leader = Leader(world)
    try:
        yield leader
    finally:
        leader.running.cancel()
        await asyncio.gather(leader.running, return_exceptions=True)


def commit(committed_index: int) -> Commit:
    return Commit(4, "n0", STREAM, committed_index)


def goodbye() -> Goodbye:
    return Goodbye(4, "n0", STREAM, 9, "transfer")


def response_to(message: PushMessage) -> PushResponse:
    return PushResponse(
        4, "n1", message.stream_id, Code.SUCCESS, PushType.APPEND, message.committed_index, 0, 9
    )


def answering(stream: PushPeer, message: PushMessage) -> None:
    stream.respond(response_to(message))


@both
def test_stream_keeps_the_order_both_ways_and_begins_with_incarnations(run: Run) -> None:
    async def script(world: World) -> None:
        world.port.on_push = answering
        async with leading(world) as leader:
            await leader.up()
            assert leader.incarnations == [world.port.identity.incarnation]
            for index in range(5):
                leader.stream.put(commit(index), None)
                await soon(lambda index=index: len(leader.responses) == index + 1)  # type: ignore[misc]
            sent = [commit(index) for index in range(5)]
            assert world.port.events[0][:3] == ("opened", "n0", STREAM)  # type: ignore[index]
            assert world.port.events[1:] == sent
            assert leader.responses == [response_to(message) for message in sent]

    run(script)


@both
@pytest.mark.parametrize("says_goodbye", [True, False])
def test_finished_stream_ends_behind_what_was_put_and_in_order(run: Run, says_goodbye: bool) -> None:
    async def script(world: World) -> None:
        async with leading(world) as leader:
            await leader.up()
            last = goodbye() if says_goodbye else commit(9)
            leader.stream.put(commit(8), None)
            leader.stream.put(goodbye() if says_goodbye else commit(9), None)
            leader.stream.finish()
            assert await leader.ended() is None
            await soon(lambda: ("ended", says_goodbye) in world.port.events)
            assert world.port.events[-2:] == [last, ("ended", says_goodbye)]

    run(script)


@both
def test_stream_that_its_leader_leaves_is_lost_for_the_follower(run: Run) -> None:
    async def script(world: World) -> None:
        async with leading(world) as leader:
            await leader.up()
            leader.stream.put(commit(8), None)
            await soon(lambda: commit(8) in world.port.events)
        await soon(lambda: ("ended", False) in world.port.events)

    run(script)


@both
def test_stream_to_a_process_that_is_killed_breaks_for_the_leader(run: Run) -> None:
    async def script(world: World) -> None:
        async with leading(world) as leader:
            await leader.up()
            await world.go_down()
            assert isinstance(await leader.ended(), PeerUnreachable)
            leader.stream.put(commit(8), None)  # lost in silence

    run(script)


@both
def test_stream_opens_once_the_member_can_be_reached(run: Run) -> None:
    async def script(world: World) -> None:
        async with leading(world) as leader:
            leader.stream.put(commit(8), None)
            with pytest.raises(PeerUnreachable):
                await world.transport.request(VOTE, SHORT_S)
            assert not leader.stream.is_up
            await world.come_up()
            await leader.up()
            await soon(lambda: commit(8) in world.port.events)

    run(script, is_up=False)


@both
def test_refused_push_ends_the_stream_with_its_number(run: Run) -> None:
    def refuse(stream: PushPeer, message: PushMessage) -> None:
        stream.refuse(InvalidRequest("a term far away", code=Code.UNEXPECTED_ARGUMENT))

    async def script(world: World) -> None:
        world.port.on_push = refuse
        async with leading(world) as leader:
            await leader.up()
            leader.stream.put(commit(8), None)
            error = await leader.ended()
            assert isinstance(error, InvalidRequest) and error.code is Code.UNEXPECTED_ARGUMENT
            await soon(lambda: ("ended", False) in world.port.events)

    run(script)


@both
def test_replaced_stream_ends_at_once_though_its_leader_sends_nothing(run: Run) -> None:
    async def script(world: World) -> None:
        async with leading(world) as leader:
            await leader.up()
            await soon(lambda: world.port.streams)
            world.port.streams[0].replace()
            assert await leader.ended() is None
            await soon(lambda: ("ended", False) in world.port.events)

    run(script)


@both
def test_message_of_another_stream_is_refused(run: Run) -> None:
    async def script(world: World) -> None:
        async with leading(world) as leader:
            await leader.up()
            leader.stream.put(replace(commit(8), stream_id=STREAM + 1), None)
            assert isinstance(await leader.ended(), InvalidRequest)
            assert commit(8) not in world.port.events

    run(script)
