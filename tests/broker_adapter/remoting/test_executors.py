"""Executors: which requests run, which wait, and for whom."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.endpoints.v4.node import make_executors
from broker_adapter.errors import ResponseCode, Status, error_for
from broker_adapter.namesrv.name_server import NameServer, NameServerLimits
from broker_adapter.remoting import executors
from broker_adapter.remoting.command import RemotingCommand, encode
from broker_adapter.remoting.connection import ConnectionLimits, FrameReader, RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor, RequestList
from dledger.infra.loops.turns import LARGE_BYTES, MAX_TOGETHER, MAX_WOKEN
from dledger.infra.quotas import FairQueue
from tests.node.local import until

ECHO, LARGE = 1, 6
FLOOD, OTHER = "10.0.0.1", "10.0.0.2"


class _User:
    def connected(self, connection: RemotingConnection) -> None: ...

    unsent = connected

    def closed(self, connection: RemotingConnection, reason: str) -> None: ...


class _Answered(RemotingConnection):
    """Keeps what would be sent."""

    def __init__(self, host: str = "") -> None:
        super().__init__(_User(), lambda *_: None, ConnectionLimits(), FairQueue(1 << 20))
        self.host = self.peer = host
        self.answers: list[RemotingCommand] = []
        self.written: list[bytes] = []

    def send(self, command: RemotingCommand) -> None:
        self.answers.append(command)

    def send_encoded(self, data: bytes) -> None:
        self.written.append(data)


async def test_one_request_of_another_address_does_not_wait_behind_a_flood() -> None:
    """With the places of the NameServer's executor for routes: one address could fill its queue for all."""
    started: list[str] = []
    permits = asyncio.Semaphore(0)

    async def processor(connection: RemotingConnection, request: RemotingCommand) -> None:
        started.append(connection.host)
        await permits.acquire()

    dispatch = Dispatch()
    dispatch.register([ECHO], processor, Executor("route", running=8, waiting=4096))
    flood, other = _Answered(FLOOD), _Answered(OTHER)
    for _ in range(3000):
        dispatch.answer(flood, RemotingCommand(ECHO))
    await until(lambda: len(started) >= 6)
    dispatch.answer(other, RemotingCommand(ECHO))
    for _ in range(8):
        permits.release()
    await until(lambda: len(started) >= 14)
    assert OTHER in started
    await dispatch.stop()


@pytest.mark.parametrize("size", [0, LARGE_BYTES])
async def test_connections_of_one_address_do_not_multiply_its_turns(size: int) -> None:
    """Each had turns of its own: those of a thousand connections came before any of another address."""
    started: list[str] = []

    async def processor(connection: RemotingConnection, request: RemotingCommand) -> None:
        started.append(connection.host)

    dispatch = Dispatch()
    dispatch.register([ECHO], processor, Executor("sends", running=4096, waiting=0))
    for number in range(200):
        connection = _Answered(FLOOD)
        connection.peer = f"{FLOOD}:{number}"
        dispatch.answer(connection, RemotingCommand(ECHO, body=bytes(size)))
    dispatch.answer(_Answered(OTHER), RemotingCommand(ECHO, body=bytes(size)))
    await until(lambda: OTHER in started)
    assert started.index(OTHER) <= 2 * MAX_WOKEN
    await dispatch.stop()


async def test_large_requests_that_wait_on_connections_of_one_address_delay_no_other_address() -> None:
    """They wait for a turn of their own each, and those turns belong to addresses, too."""
    started: list[str] = []

    async def processor(connection: RemotingConnection, request: RemotingCommand) -> None:
        started.append(connection.host)

    dispatch = Dispatch()
    dispatch.register([ECHO], processor, Executor("sends", running=4096, waiting=0))
    for _ in range(200):
        dispatch.answer(_Answered(FLOOD), RemotingCommand(ECHO, body=bytes(LARGE_BYTES)))
    await until(lambda: len(started) >= 20)
    before = len(started)
    dispatch.answer(_Answered(OTHER), RemotingCommand(ECHO, body=bytes(LARGE_BYTES)))
    await until(lambda: OTHER in started)
    assert started.index(OTHER) - before <= 2 * MAX_WOKEN
    await dispatch.stop()


def _name_server() -> NameServer:
    limits = NameServerLimits()
    return NameServer(cast(Any, None), cast(Any, None), now_ms=int, unix_ms=int, limits=limits)


def _executors_of_both_servers() -> list[Executor]:
    server = _name_server()
    return [*make_executors(RemotingSettings()).values(), server.registrations, server.routes, server.config]


@pytest.mark.parametrize("name", [executor.name for executor in _executors_of_both_servers()])
async def test_an_executor_full_of_one_address_starts_the_next_request_of_another(name: str) -> None:
    """Each executor of brokers and NameServers. One connection that sends without waiting is enough."""
    started: list[str] = []
    permits = asyncio.Semaphore(0)

    async def processor(connection: RemotingConnection, request: RemotingCommand) -> None:
        started.append(connection.host)
        await permits.acquire()

    [executor] = [one for one in _executors_of_both_servers() if one.name == name]
    dispatch, flood, other = Dispatch(), _Answered(FLOOD), _Answered(OTHER)
    dispatch.register([ECHO], processor, executor)
    while not flood.answers:
        dispatch.answer(flood, RemotingCommand(ECHO))
    busy = min(executor.running, executor.under_way) if executor.waiting else executor.under_way
    share = -(-3 * executor.running // 4)
    await until(lambda: len(started) >= min(share, busy))
    dispatch.answer(other, RemotingCommand(ECHO))
    assert not other.answers
    if len(started) >= executor.running:
        permits.release()
    await until(lambda: OTHER in started)
    await dispatch.stop()


async def test_a_request_whose_turn_comes_too_late_is_refused_and_not_begun() -> None:
    clock_s, begun, go_on = [7.0], list[int](), asyncio.Event()

    async def processor(_: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        begun.append(request.opaque)
        await go_on.wait()
        return request.answer(0)

    dispatch, connection = Dispatch(now=lambda: clock_s[0]), _Answered()
    executor = Executor("sends", running=1, waiting=8)
    dispatch.register([ECHO], processor, executor, most_wait_s=0.2)
    dispatch.register([LARGE], processor, executor)
    for opaque, (arrived_s, code) in enumerate([(7, ECHO), (7, LARGE), (7, ECHO), (7.125, ECHO)]):
        clock_s[0] = arrived_s
        dispatch.answer(connection, RemotingCommand(code, opaque=opaque))
        await until(lambda: begun == [0])
    clock_s[0] = 7.25  # the third waited for 250 ms, the fourth for 125
    go_on.set()
    await dispatch.drained()
    assert begun == [0, 1, 3]
    [refused] = [answer for answer in connection.answers if answer.code != 0]
    assert (refused.opaque, refused.code) == (2, ResponseCode.SYSTEM_BUSY)
    assert "808" in (refused.remark or "") and "[TIMEOUT_CLEAN_QUEUE]broker busy" in (refused.remark or "")
    assert "period in queue: 250ms, size of queue: " in (refused.remark or "")


async def test_what_waits_for_its_turn_is_not_begun_when_its_connection_has_ended() -> None:
    begun, go_on = list[int](), asyncio.Event()

    async def processor(_: RemotingConnection, request: RemotingCommand) -> None:
        begun.append(request.opaque)
        await go_on.wait()

    dispatch, connection = Dispatch(), _Answered()
    dispatch.register([ECHO], processor, Executor("sends", running=1, waiting=8))
    for opaque in range(2):
        dispatch.answer(connection, RemotingCommand(ECHO, opaque=opaque))
    await until(lambda: begun == [0])
    connection.close("it has gone")
    go_on.set()
    await dispatch.drained()
    assert begun == [0]


@pytest.mark.parametrize(("is_expensive", "most"), [(False, MAX_WOKEN), (True, 1)])
async def test_processors_that_do_not_wait_share_the_turns(is_expensive: bool, most: int) -> None:
    of_turn = [0]

    async def processor(_: RemotingConnection, request: RemotingCommand) -> None:
        of_turn[-1] += 1

    dispatch = Dispatch()
    dispatch.register([ECHO], processor, Executor("all", 64, 64, is_expensive=is_expensive))
    connection = _Answered()
    for _ in range(50):
        dispatch.answer(connection, RemotingCommand(ECHO))
    while sum(of_turn) < 50:
        assert len(of_turn) < 200, of_turn
        of_turn.append(0)
        await asyncio.sleep(0)
    assert max(of_turn) <= most


async def test_bodies_of_large_requests_in_progress_are_bounded_in_bytes() -> None:
    permits = asyncio.Semaphore(0)

    async def processor(_: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        await permits.acquire()
        return request.answer(0)

    total, executor = 8 * LARGE_BYTES, Executor("sends", running=100, waiting=0)
    dispatch = Dispatch(max_request_bytes=total)
    dispatch.register([ECHO], processor, executor)
    flood, other = _Answered(FLOOD), _Answered(OTHER)

    def send(connection: _Answered, size: int) -> None:
        dispatch.answer(connection, RemotingCommand(ECHO, body=bytes(size)))

    for _ in range(7):
        send(flood, LARGE_BYTES)
    assert dispatch.under_way == 6, "one address gets three quarters"
    [refused] = flood.answers
    assert refused.code == ResponseCode.SYSTEM_BUSY and executor.refused == 1
    assert "801" in (refused.remark or "") and "[OVERLOAD]system busy: " in (refused.remark or "")
    # the send-only port of the same node
    dispatch.variant({}).answer(other, RemotingCommand(ECHO, body=bytes(3 * LARGE_BYTES)))
    assert [answer.code for answer in other.answers] == [ResponseCode.SYSTEM_BUSY]
    send(other, 2 * LARGE_BYTES)
    send(flood, LARGE_BYTES - 1)
    assert dispatch.under_way == 8 and len(flood.answers) == len(other.answers) == 1
    for _ in range(8):
        permits.release()
    await dispatch.drained()
    send(other, 2 * total)
    send(other, LARGE_BYTES)
    assert dispatch.under_way == 1, "a single request fits whatever its size"
    await dispatch.stop()
    send(other, total)
    assert dispatch.under_way == 1, "canceled requests release their bytes"
    await dispatch.stop()


async def test_headers_of_small_requests_in_progress_are_bounded_in_bytes() -> None:
    """A header has up to 256 KiB, and thousands of requests may wait: they were bounded in number only."""
    permits = asyncio.Semaphore(0)

    async def processor(_: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        await permits.acquire()
        return request.answer(0)

    dispatch = Dispatch(max_request_bytes=8 << 20)
    dispatch.register([ECHO], processor, Executor("pulls", running=10_000, waiting=0))
    flood, other = _Answered(FLOOD), _Answered(OTHER)
    fields = {f"f{number}": "x" * 1000 for number in range(200)}
    while not flood.answers:
        dispatch.answer(flood, RemotingCommand(ECHO, fields))
    assert 20 < dispatch.under_way <= 30, "three quarters of 8 MiB, and 215 KB for each request"
    assert "of small requests" in (flood.answers[0].remark or "")
    before = dispatch.under_way
    dispatch.answer(other, RemotingCommand(ECHO, fields))
    dispatch.answer(flood, RemotingCommand(ECHO, body=bytes(LARGE_BYTES)))
    assert dispatch.under_way == before + 2, "of another address, and a large one"
    for _ in range(before + 2):
        permits.release()
    await dispatch.drained()
    dispatch.answer(flood, RemotingCommand(ECHO, fields))
    assert dispatch.under_way == 1, "released"
    await dispatch.stop()


async def test_a_full_executor_refuses_a_large_request_without_counting_its_bytes() -> None:
    go_on = asyncio.Event()

    async def processor(_: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        await go_on.wait()
        return request.answer(0)

    dispatch, connection = Dispatch(max_request_bytes=LARGE_BYTES), _Answered()
    dispatch.register([LARGE], processor, Executor("full", running=1, waiting=0))
    dispatch.register([ECHO], processor, Executor("sends", running=1, waiting=0))
    for opaque, (code, size) in enumerate([(LARGE, 0), (LARGE, LARGE_BYTES), (ECHO, LARGE_BYTES)]):
        dispatch.answer(connection, RemotingCommand(code, body=bytes(size), opaque=opaque))
    assert [(answer.opaque, answer.code) for answer in connection.answers] == [(1, ResponseCode.SYSTEM_BUSY)]
    go_on.set()
    await dispatch.drained()
    assert sorted(answer.opaque for answer in connection.answers if answer.code == 0) == [0, 2]


async def test_requests_of_closed_connections_keep_no_slot() -> None:
    started = list[int]()

    async def processor(_: RemotingConnection, request: RemotingCommand) -> None:
        started.append(request.opaque)
        await asyncio.get_running_loop().create_future()

    dispatch, executor = Dispatch(), Executor("pulls", running=2, waiting=8, ends_with_connection=True)
    dispatch.register([ECHO], processor, executor)
    running, early = _Answered(FLOOD), _Answered(OTHER)
    dispatch.answer(running, RemotingCommand(ECHO, opaque=1))
    await until(lambda: started == [1])
    dispatch.answer(early, RemotingCommand(ECHO, opaque=2))
    early.close("it closes before its request starts")
    running.close("it closes while its request runs")
    dispatch.gone(running)
    await dispatch.drained()
    assert started == [1] and (executor.slots.used, executor.under_way) == (0, 0)
    assert not dispatch._of_connection


async def test_a_request_that_has_ended_does_not_let_others_outlive_their_connection() -> None:
    permits = {1: asyncio.Event(), 2: asyncio.Event()}

    async def processor(_: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        await permits[request.opaque].wait()
        return request.answer(0)

    dispatch, executor = Dispatch(), Executor("pulls", running=2, waiting=8, ends_with_connection=True)
    dispatch.register([ECHO], processor, executor)
    connection = _Answered()
    for opaque in permits:
        dispatch.answer(connection, RemotingCommand(ECHO, opaque=opaque))
    permits[1].set()
    await until(lambda: dispatch.under_way == 1)
    connection.close("it closes while its second request runs")
    dispatch.gone(connection)
    await until(lambda: not dispatch.under_way)
    assert [answer.opaque for answer in connection.answers] == [1]


@pytest.mark.parametrize("has_lists", [False, True])
async def test_requests_of_one_connection_keep_their_order_behind_a_large_one(has_lists: bool) -> None:
    started = list[int]()

    async def processor(_: RemotingConnection, request: RemotingCommand) -> None:
        started.append(request.opaque)

    async def together(_: RemotingConnection, listed: RequestList) -> None:
        requests = listed.requests
        started.extend(request.opaque for request in requests)
        listed.answer([(request, encode(request.answer(0))) for request in requests])

    sizes = [0, LARGE_BYTES, 0, LARGE_BYTES, 0, 0, *[0] * 2 * MAX_TOGETHER, LARGE_BYTES, LARGE_BYTES, 0]
    dispatch, connection = Dispatch(), _Answered(FLOOD)
    executor = Executor("sends", running=2 * len(sizes), waiting=0)
    dispatch.register([ECHO], processor, executor, together=together if has_lists else None)
    for opaque, size in enumerate(sizes):
        dispatch.answer(connection, RemotingCommand(ECHO, body=bytes(size), opaque=opaque))
    await dispatch.drained()
    assert started == list(range(len(sizes)))


@pytest.mark.parametrize("seed", range(20))
async def test_sends_of_one_connection_start_in_order_whatever_they_wait_for(seed: int) -> None:
    """Lists and large sends, which wait for slots and for steps of the event loop, next to other requests."""
    choice, started = random.Random(seed), list[int]()

    async def processor(_: RemotingConnection, request: RemotingCommand) -> None:
        started.append(request.opaque)
        await pause()

    async def together(_: RemotingConnection, listed: RequestList) -> None:
        requests = listed.requests
        started.extend(request.opaque for request in requests)
        await pause()
        listed.answer([(request, encode(request.answer(0))) for request in requests])

    async def other(_: RemotingConnection, request: RemotingCommand) -> None:
        pass

    async def pause() -> None:
        for _ in range(choice.randrange(5)):
            await asyncio.sleep(0)

    dispatch, connection = Dispatch(), _Answered(FLOOD)
    dispatch.register([ECHO], processor, Executor("sends", running=4, waiting=5_000), together=together)
    dispatch.register([LARGE], other, Executor("others", running=4_000, waiting=0))
    sent = 0
    for _ in range(100):
        for _ in range(choice.randrange(4)):
            size = choice.choice([0, 0, LARGE_BYTES])
            dispatch.answer(connection, RemotingCommand(ECHO, body=bytes(size), opaque=sent))
            sent += 1
        for _ in range(choice.randrange(6)):
            dispatch.answer(connection, RemotingCommand(LARGE))
        await asyncio.sleep(0)
    await dispatch.drained()
    assert started == list(range(sent))


async def test_requests_from_an_ipv6_address_are_released_under_the_network_that_was_counted() -> None:
    async def processor(_: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(0)

    dispatch, executor = Dispatch(), Executor("sends", running=1, waiting=0)
    dispatch.register([ECHO], processor, executor)
    for host in (f"2001:db8::{number}" for number in range(8)):
        connection = _Answered(host)
        dispatch.answer(connection, RemotingCommand(ECHO))
        await dispatch.drained()
        await until(lambda connection=connection: connection.is_idle)  # type: ignore[misc]
        assert [answer.code for answer in connection.answers] == [0]
    assert executor.under_way == 0


async def test_a_name_server_counts_registrations_that_exceed_the_bytes_in_progress() -> None:
    async def processor(_: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(0)

    server, dispatch, connection = _name_server(), Dispatch(max_request_bytes=LARGE_BYTES), _Answered(FLOOD)
    dispatch.register([ECHO], processor, server.registrations)
    for _ in range(2):
        dispatch.answer(connection, RemotingCommand(ECHO, body=bytes(LARGE_BYTES)))
    assert [answer.code for answer in connection.answers] == [ResponseCode.SYSTEM_BUSY]
    assert server.limits_hit == {"registration": 1} and server.registrations.refused == 1
    await dispatch.stop()


class _Together:
    """A ListProcessor that answers nothing until `permits` lets it."""

    def __init__(self) -> None:
        self.lists: list[tuple[str, list[int]]] = []
        self.permits = asyncio.Semaphore(0)

    async def __call__(self, connection: RemotingConnection, listed: RequestList) -> None:
        requests = listed.requests
        self.lists.append((connection.host, [one.opaque for one in requests]))
        await self.permits.acquire()
        listed.answer([(one, encode(one.answer(0))) for one in requests if one.opaque != ALONE])
        for one in listed.requests:
            listed.process_alone(one)


async def _echo(connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(0)


ALONE = 7


async def test_requests_that_arrive_together_are_processed_together_within_bounds_and_in_order() -> None:
    together = _Together()
    dispatch = Dispatch()
    dispatch.register([ECHO], _echo, Executor("sends", running=4096, waiting=0), together=together)
    flood, other = _Answered(FLOOD), _Answered(OTHER)
    for number in range(200):
        dispatch.answer(flood, RemotingCommand(ECHO, opaque=number))
    dispatch.answer(other, RemotingCommand(ECHO, opaque=0))
    await until(lambda: sum(len(numbers) for _, numbers in together.lists) == 201)
    assert [number for host, numbers in together.lists if host == FLOOD for number in numbers] == [
        *range(200)
    ]
    assert max(len(numbers) for _, numbers in together.lists) == MAX_TOGETHER
    assert [host for host, _ in together.lists].index(OTHER) <= MAX_WOKEN
    assert dispatch.under_way == 201
    for _ in together.lists:
        together.permits.release()
    await until(lambda: dispatch.under_way == 0)
    written = FrameReader()
    written.feed(b"".join(flood.written))
    assert len(flood.written) == len(together.lists) - 1, "one write for each list"
    opaques = [written.next() for _ in range(199)]
    assert [one.opaque for one in opaques if one] == [n for n in range(200) if n != ALONE]
    assert [one.opaque for one in flood.answers] == [ALONE]
    await dispatch.stop()


async def test_lists_that_are_not_processed_release_what_they_hold() -> None:
    executor, together = Executor("sends", running=100, waiting=0), _Together()
    dispatch = Dispatch()
    dispatch.register([ECHO], _echo, executor, together=together)
    waiting, closed = _Answered(FLOOD), _Answered(OTHER)
    for number in range(10):
        dispatch.answer(waiting, RemotingCommand(ECHO, opaque=number))
        dispatch.answer(closed, RemotingCommand(ECHO, opaque=number))
    closed.is_closed = True
    await until(lambda: dispatch.under_way == 10)
    await dispatch.stop()
    assert dispatch.under_way == executor.under_way == executor.slots.used == 0 and not waiting.written


@pytest.mark.parametrize("is_started", [True, False])
async def test_a_list_that_is_canceled_before_its_turn_releases_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, is_started: bool
) -> None:
    """A task that is canceled before its start executes nothing."""
    executor, connection = Executor("sends", running=100, waiting=0), _Answered(FLOOD)
    dispatch, turn = Dispatch(max_request_bytes=1 << 20), asyncio.get_running_loop().create_future()
    dispatch.register([ECHO], _echo, executor, together=_Together())
    monkeypatch.setattr(executors, "wake_queue", lambda: SimpleNamespace(turn=lambda _: turn))
    for number in range(3):
        dispatch.answer(connection, RemotingCommand(ECHO, opaque=number))
    if is_started:
        await asyncio.sleep(0)
    assert dispatch.under_way == 3 and not connection.is_idle
    await dispatch.stop()
    assert dispatch.under_way == executor.under_way == dispatch._listed.used == 0 and connection.is_idle


async def test_a_defect_answers_the_rest_of_its_list() -> None:
    async def defect(connection: RemotingConnection, listed: RequestList) -> None:
        raise ValueError("a defect")

    dispatch, connection = Dispatch(), _Answered(FLOOD)
    dispatch.register([ECHO], _echo, Executor("sends", running=100, waiting=0), together=defect)
    for number in range(3):
        dispatch.answer(connection, RemotingCommand(ECHO, opaque=number))
    await until(lambda: dispatch.under_way == 0)
    reader = FrameReader()
    reader.feed(b"".join(connection.written))
    answers = [reader.next() for _ in range(3)]
    assert [one.code for one in answers if one] == [ResponseCode.SYSTEM_ERROR] * 3
    assert not any("a defect" in (one.remark or "") for one in answers if one)
    await dispatch.stop()


class _Rejecting:
    """A hook that rejects the requests with one number."""

    def __init__(self, opaque: int) -> None:
        self.opaque = opaque

    def before(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        if request.opaque == self.opaque:
            raise error_for(Status.NOT_PERMITTED, "rejected")

    def after(self, connection: RemotingConnection, request: RemotingCommand, answer: object) -> None: ...


@pytest.mark.parametrize("waited_s", [0.0, 2.0])
async def test_requests_of_a_list_are_checked_and_one_way_requests_get_no_response(waited_s: float) -> None:
    together, executor, times = _Together(), Executor("sends", running=100, waiting=0), [0.0]
    dispatch, connection = Dispatch([_Rejecting(1)], now=lambda: times[0]), _Answered(FLOOD)
    dispatch.register([ECHO], _echo, executor, most_wait_s=1.0, together=together)
    together.permits.release()
    for number in range(3):
        dispatch.answer(connection, RemotingCommand(ECHO, opaque=number))
    dispatch.answer(connection, RemotingCommand.oneway(ECHO, {}))
    times[0] = waited_s
    await until(lambda: dispatch.under_way == 0)
    reader = FrameReader()
    reader.feed(b"".join(connection.written))
    stored = [one.opaque for one in iter(reader.next, None) if one]
    refused = {one.opaque: one.code for one in connection.answers}
    if waited_s:
        assert stored == [] and refused == dict.fromkeys(range(3), ResponseCode.SYSTEM_BUSY)
    else:
        assert stored == [0, 2] and refused == {1: error_for(Status.NOT_PERMITTED, "").response_code}
    assert executor.under_way == executor.slots.used == 0
    await dispatch.stop()


async def test_only_the_requests_of_a_list_that_waited_too_long_are_refused() -> None:
    together, executor, times = _Together(), Executor("sends", running=100, waiting=0), [0.0]
    dispatch, connection = Dispatch(now=lambda: times[0]), _Answered(FLOOD)
    dispatch.register([ECHO], _echo, executor, most_wait_s=1.0, together=together)
    together.permits.release()
    for number, arrived_s in enumerate([0.0, 0.5, 1.5, 2.0]):
        times[0] = arrived_s
        dispatch.answer(connection, RemotingCommand(ECHO, opaque=number))
    await until(lambda: dispatch.under_way == 0)
    assert together.lists == [(FLOOD, [2, 3])]
    assert {one.opaque: one.code for one in connection.answers} == dict.fromkeys(
        [0, 1], ResponseCode.SYSTEM_BUSY
    )
    await dispatch.stop()


async def test_sends_that_use_up_their_bytes_leave_those_of_other_requests() -> None:
    together, dispatch = _Together(), Dispatch(max_request_bytes=1 << 20)
    dispatch.register([ECHO], _echo, Executor("sends", running=1000, waiting=0), together=together)
    dispatch.register([LARGE], _echo, Executor("clients", running=1000, waiting=0))
    connection, fields = _Answered(FLOOD), {"f": "x" * 10_000}
    while not connection.answers:
        dispatch.answer(connection, RemotingCommand(ECHO, fields))
    [refused] = connection.answers
    assert "of small sends" in (refused.remark or "")
    dispatch.answer(connection, RemotingCommand(LARGE, fields, opaque=1))
    await until(lambda: len(connection.answers) == 2)
    assert (connection.answers[1].opaque, connection.answers[1].code) == (1, 0)
    await dispatch.stop()
