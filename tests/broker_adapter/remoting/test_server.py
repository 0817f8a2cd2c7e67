"""Server and client of the remoting protocol, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker_adapter.errors import AnswerMissing, ResponseCode, Status, TopicRefused
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.command import HeaderForm, RemotingCommand, encode
from broker_adapter.remoting.connection import ConnectionLimits, FrameReader, RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.remoting.server import RemotingServer, ServerLimits
from dledger.infra.loops.turns import MAX_WOKEN
from dledger.infra.quotas import FairQueue
from dledger.infra.transport.listener import TlsMode
from tests.node.local import until
from tests.tls.world import TlsWorld

ECHO, WAIT, FAIL, REFUSE, ASK, LARGE = range(1, 7)
LARGE_BYTES = 1 << 20
ROOMY = ConnectionLimits()


class World:
    """A server that echoes, and what has happened to it."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.seen: list[RemotingCommand] = []
        self.events: list[str] = []
        self.executor = Executor("all", running=2, waiting=2)
        self.dispatch = Dispatch([self])
        self.dispatch.register([ECHO], self._echo, Executor("echo", running=64, waiting=10_000))
        self.dispatch.register([LARGE], self._large, Executor("large", running=64, waiting=0))
        self.dispatch.register([WAIT], self._wait, self.executor)
        self.dispatch.register([FAIL], self._fail, self.executor)
        self.dispatch.register([REFUSE], self._refuse, self.executor)
        self.dispatch.register([ASK], self._ask, self.executor)

    @asynccontextmanager
    async def serving(
        self,
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        mode: TlsMode | None = None,
    ) -> AsyncIterator[RemotingServer]:
        server = RemotingServer(self.dispatch, limits=limits, tls=tls, mode=mode, events=[self])
        await server.start("127.0.0.1:0")
        try:
            yield server
        finally:
            self.go_on.set()
            await server.stop()

    # -- processors

    async def _echo(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(request)
        return request.answer(0, fields=request.fields, body=request.body)

    async def _wait(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(request)
        await self.go_on.wait()
        return request.answer(0)

    async def _large(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(request)
        await self.go_on.wait()
        return request.answer(0, body=bytes(LARGE_BYTES))

    async def _fail(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        raise KeyError("a secret of the server")

    async def _refuse(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        raise TopicRefused(Status.TOPIC_UNKNOWN, "no such topic")

    async def _ask(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """The server asks back before it answers."""
        return request.answer(0, body=(await connection.invoke(RemotingCommand(ECHO, body=b"?"), 5)).body)

    # -- hooks and events

    def before(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        if request.fields.get("forbidden"):
            raise TopicRefused(Status.TOPIC_NOT_READABLE, "not you")

    def after(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand
    ) -> None:
        answer.fields["hooked"] = "yes"
        if request.fields.get("breaks the hook"):
            raise KeyError("a mistake of the hook")

    def channel_connected(self, connection: RemotingConnection) -> None:
        self.events.append("connected")

    def channel_closed(self, connection: RemotingConnection, reason: str) -> None:
        self.events.append(reason)


@pytest.fixture
async def world() -> World:
    return World()


async def _closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other end closes."""
    async with asyncio.timeout(20):
        with suppress(ConnectionResetError):
            return await reader.read()
        return b""


def _open(server: RemotingServer) -> tuple[str, int]:
    host, _, port = server.address.rpartition(":")
    return host, int(port)


async def test_a_request_is_answered(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        answer = await connection.invoke(RemotingCommand(ECHO, {"k": "v"}, b"body"), 5)
        assert (answer.code, answer.fields, answer.body) == (0, {"k": "v", "hooked": "yes"}, b"body")
        connection.close("done")
        await until(lambda: len(world.events) == 2)
    assert world.events[0] == "connected"


async def test_answers_overtake_each_other(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        late = asyncio.ensure_future(connection.invoke(RemotingCommand(WAIT), 5))
        await until(lambda: world.seen)
        assert (await connection.invoke(RemotingCommand(ECHO), 5)).code == 0
        assert not late.done()
        world.go_on.set()
        assert (await late).code == 0


async def test_a_request_is_answered_in_its_form(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        for form in HeaderForm:
            assert (await connection.invoke(RemotingCommand(ECHO, form=form), 5)).form is form


async def test_nobody_answers_a_oneway_request(world: World) -> None:
    async with world.serving() as server:
        reader, writer = await asyncio.open_connection(*_open(server))
        for code in (ECHO, FAIL, REFUSE, 99):
            writer.write(encode(RemotingCommand.oneway(code)))
        writer.write(encode(RemotingCommand(ECHO, opaque=7)))
        frames, answer = FrameReader(), None
        while answer is None:
            frames.feed(await reader.read(1000))
            answer = frames.next()
        assert (answer.opaque, frames.buffered) == (7, 0)
        writer.close()


async def test_errors_are_response_codes(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        found = {code: await connection.invoke(RemotingCommand(code), 5) for code in (FAIL, REFUSE, 99)}
        assert {code: answer.code for code, answer in found.items()} == {
            FAIL: ResponseCode.SYSTEM_ERROR,
            REFUSE: ResponseCode.TOPIC_NOT_EXIST,
            99: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        }
        assert "secret" not in (found[FAIL].remark or "")
        assert "no such topic" in (found[REFUSE].remark or "")
        hooked = await connection.invoke(RemotingCommand(ECHO, {"forbidden": "1"}), 5)
        assert hooked.code == ResponseCode.NO_PERMISSION
        assert world.seen == []


async def test_a_full_executor_says_busy_at_once_and_others_go_on(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        waiting = [asyncio.ensure_future(connection.invoke(RemotingCommand(WAIT), 20)) for _ in range(3)]
        # Of four places: an address leaves one to others.
        await until(lambda: world.executor.under_way == 3 and world.seen)
        await until(lambda: world.executor.slots.used == 2)  # so many run at a time
        assert len(world.seen) <= 2
        assert (await connection.invoke(RemotingCommand(REFUSE), 5)).code == ResponseCode.SYSTEM_BUSY
        assert (await connection.invoke(RemotingCommand(ECHO), 5)).code == 0
        world.go_on.set()
        assert [(await one).code for one in waiting] == [0] * 3
        assert (await connection.invoke(RemotingCommand(REFUSE), 5)).code == ResponseCode.TOPIC_NOT_EXIST
        assert world.dispatch.counts[REFUSE, ResponseCode.SYSTEM_BUSY] == 1


async def test_the_server_asks_its_client(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5, dispatch=World().dispatch)
        assert (await connection.invoke(RemotingCommand(ASK), 5)).body == b"?"


async def test_an_answer_that_nobody_waits_for_is_dropped(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        with pytest.raises(AnswerMissing):
            await connection.invoke(RemotingCommand(WAIT), 0)
        world.go_on.set()
        assert (await connection.invoke(RemotingCommand(ECHO), 5)).code == 0


async def test_a_broken_connection_ends_what_waits_for_answers(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        waiting = asyncio.ensure_future(connection.invoke(RemotingCommand(WAIT), 20))
        await until(lambda: world.seen)
        server.connections[0].close("a test")
        with pytest.raises(AnswerMissing):
            await waiting
        with pytest.raises(AnswerMissing):
            await connection.invoke(RemotingCommand(ECHO), 5)


async def test_nobody_there_is_an_error_with_a_number() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(AnswerMissing, match="803 ANSWER_MISSING"):
            await connect(f"127.0.0.1:{taken.getsockname()[1]}", timeout_s=5)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">ii", 10, 2 << 24),
        b"\0\0\0\x04\0\0\0\0",
    ],
    ids=["http", "negative", "form", "no header"],
)
async def test_nonsense_closes_its_connection_only(world: World, nonsense: bytes) -> None:
    async with world.serving() as server:
        good = await connect(server.address, timeout_s=5)
        reader, writer = await asyncio.open_connection(*_open(server))
        writer.write(nonsense)
        assert await _closed(reader) == b""
        writer.close()
        assert (await good.invoke(RemotingCommand(ECHO), 5)).code == 0


async def test_many_requests_in_one_write_are_all_answered(world: World) -> None:
    async with world.serving() as server:
        reader, writer = await asyncio.open_connection(*_open(server))
        writer.write(b"".join(encode(RemotingCommand(ECHO, opaque=i)) for i in range(1000)))
        frames, found = FrameReader(), []
        while len(found) < 1000:
            frames.feed(await reader.read(1 << 16))
            while (answer := frames.next()) is not None:
                found.append(answer.opaque)
        assert sorted(found) == list(range(1000))
        writer.close()


async def test_one_connection_has_so_many_requests_under_way_and_no_more(world: World) -> None:
    limits = ServerLimits(connection=replace(ROOMY, under_way=1))
    async with world.serving(limits) as server:
        _, writer = await asyncio.open_connection(*_open(server))
        writer.write(encode(RemotingCommand(WAIT)) + encode(RemotingCommand(ECHO)))
        await until(lambda: world.seen)
        other = await connect(server.address, timeout_s=5)
        assert (await other.invoke(RemotingCommand(ECHO), 5)).code == 0
        assert [command.code for command in world.seen] == [WAIT, ECHO]  # that of the other connection
        world.go_on.set()
        await until(lambda: len(world.seen) == 3)
        writer.close()


@pytest.mark.parametrize(
    ("limits", "sent"),
    [
        (replace(ROOMY, idle_s=0.05), b""),
        (replace(ROOMY, frame_s=0.05), b"\0\0"),
        (replace(ROOMY, frame_s=0.05), encode(RemotingCommand(ECHO)) + b"\0"),
    ],
    ids=["silent", "half a frame", "half a second frame"],
)
async def test_who_says_nothing_more_is_closed(world: World, limits: ConnectionLimits, sent: bytes) -> None:
    async with world.serving(ServerLimits(connection=limits)) as server:
        reader, writer = await asyncio.open_connection(*_open(server))
        writer.write(sent)
        await _closed(reader)
        writer.close()
        await until(lambda: not server.connections)


async def test_who_waits_for_an_answer_is_not_idle(world: World) -> None:
    async with world.serving(ServerLimits(connection=replace(ROOMY, idle_s=0.5))) as server:
        reader, writer = await asyncio.open_connection(*_open(server))
        writer.write(encode(RemotingCommand(WAIT)))
        await until(lambda: world.seen)
        other_reader, other = await asyncio.open_connection(*_open(server))
        await _closed(other_reader)  # so much time has passed
        assert len(server.connections) == 1
        world.go_on.set()
        assert await reader.read(1) != b""
        writer.close()
        other.close()


async def _deaf(server: RemotingServer, requests: int) -> asyncio.StreamWriter:
    """A client that reads nothing, and has asked for large answers."""
    _, writer = await asyncio.open_connection(*_open(server), limit=1 << 10)
    writer.transport.pause_reading()
    writer.write(b"".join(encode(RemotingCommand(LARGE, opaque=i)) for i in range(requests)))
    return writer


@pytest.mark.parametrize(
    "limits",
    [replace(ROOMY, unsent_bytes=LARGE_BYTES, unsent_s=3_600), replace(ROOMY, unsent_s=0.05)],
    ids=["by bytes", "by time"],
)
async def test_who_reads_no_answers_is_closed(world: World, limits: ConnectionLimits) -> None:
    async with world.serving(ServerLimits(connection=limits)) as server:
        writer = await _deaf(server, 16)
        await until(lambda: len(world.seen) == 16)
        world.go_on.set()
        await until(lambda: not server.connections)
        writer.transport.abort()


async def test_who_reads_no_answers_is_not_read_and_delays_no_other_connection(world: World) -> None:
    limits = ServerLimits(connection=replace(ROOMY, unsent_bytes=1 << 30))
    async with world.serving(limits) as server:
        world.go_on.set()
        executor = next(one for one in world.dispatch.executors if one.name == "large")
        writer = await _deaf(server, 200)
        await until(lambda: len(world.seen) > 0 and world.dispatch.under_way == 0)
        other = await connect(server.address, timeout_s=5)
        for _ in range(100):
            assert (await other.invoke(RemotingCommand(ECHO), 5)).code == 0
        assert len(world.seen) - 100 + executor.refused < 200, "the others are not read"
        other.close("the test is over")
        writer.transport.abort()


async def test_answers_that_are_not_read_take_so_much_memory_together(world: World) -> None:
    limits = ServerLimits(unsent_bytes=16 * LARGE_BYTES)
    async with world.serving(limits) as server:
        large, small = await _deaf(server, 24), await _deaf(server, 12)
        await until(lambda: len(world.seen) == 36)
        world.go_on.set()
        await until(lambda: world.dispatch.under_way == 0)
        assert server.limits_hit["unsent answers"] == 1
        assert len(server.connections) == 1
        for writer in (large, small):
            writer.transport.abort()
        await until(lambda: not server.connections)
        assert not server._unsent and server._unsent_bytes == 0, "nothing is kept for who has gone"


async def test_large_frames_are_read_as_memory_allows(world: World) -> None:
    """Two whose frames do not fit together: the second one is read when the first one is through."""
    limits = ServerLimits(incomplete_bytes=1 << 20)
    frame = encode(RemotingCommand(ECHO, body=bytes(900 << 10)))
    async with world.serving(limits) as server:
        first = await asyncio.open_connection(*_open(server))
        first[1].write(frame[:100_000])
        await until(lambda: server.incomplete_bytes > 0)
        second = await asyncio.open_connection(*_open(server))
        second[1].write(frame)
        await until(lambda: server.waiting_for_memory == 1)
        assert world.seen == []
        first[1].write(frame[100_000:])
        await until(lambda: len(world.seen) == 2)
        assert server.incomplete_bytes == server.waiting_for_memory == 0
        for _, writer in (first, second):
            writer.transport.abort()


async def test_who_leaves_gives_its_memory_back(world: World) -> None:
    limits = ServerLimits(incomplete_bytes=1 << 20)
    frame = encode(RemotingCommand(ECHO, body=bytes(900 << 10)))
    async with world.serving(limits) as server:
        writers = []
        for _ in range(3):
            _, writer = await asyncio.open_connection(*_open(server))
            writer.write(frame[:100_000])
            writers.append(writer)
        await until(lambda: server.waiting_for_memory == 2)
        for writer in writers[:2]:
            writer.transport.abort()
        await until(lambda: len(server.connections) == 1 and server.waiting_for_memory == 0)
        writers[2].write(frame[100_000:])
        await until(lambda: world.seen)
        assert server.incomplete_bytes == 0
        writers[2].transport.abort()


async def test_complete_requests_of_an_address_that_wait_for_a_master_are_bounded_in_bytes() -> None:
    """The memory for incomplete frames is free again once they are complete."""
    may, held = asyncio.Event(), list[int]()

    async def without_master(_: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        held.append(len(request.body))
        await may.wait()
        return request.answer(0)

    dispatch = Dispatch(max_request_bytes=16 << 20)
    dispatch.register([ECHO], without_master, Executor("sends", running=4_096, waiting=0))
    server = RemotingServer(dispatch, limits=ServerLimits(incomplete_bytes=4 << 20))
    await server.start("127.0.0.1:0")
    try:
        connection = await connect(server.address, timeout_s=5)
        request = RemotingCommand(ECHO, body=bytes(1 << 20))
        calls = [asyncio.ensure_future(connection.invoke(replace(request), 30)) for _ in range(32)]
        await until(lambda: len(held) + sum(call.done() for call in calls) == 32)
        assert sum(held) == 12 << 20
        assert {call.result().code for call in calls if call.done()} == {ResponseCode.SYSTEM_BUSY}
    finally:
        may.set()
        await server.stop()


async def test_the_oldest_idle_connection_makes_room(world: World) -> None:
    async with world.serving(ServerLimits(connections=2)) as server:
        busy = await connect(server.address, timeout_s=5)
        waiting = asyncio.ensure_future(busy.invoke(RemotingCommand(WAIT), 20))
        await until(lambda: world.seen)
        idle = await connect(server.address, timeout_s=5)
        assert (await idle.invoke(RemotingCommand(ECHO), 5)).code == 0
        newest = await connect(server.address, timeout_s=5)
        assert (await newest.invoke(RemotingCommand(ECHO), 5)).code == 0
        await until(lambda: idle.is_closed)
        world.go_on.set()
        assert (await waiting).code == 0


async def test_an_address_that_has_too_many_loses_the_one_of_its_own_that_was_silent_for_longest(
    world: World,
) -> None:
    async def echo(local_address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        streams = await asyncio.open_connection(*_open(server), local_addr=(local_address, 0))
        await say(*streams)
        return streams

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = len(world.seen)
        writer.write(encode(RemotingCommand(ECHO)))
        await until(lambda: len(world.seen) > seen)
        await until(lambda: all(one.is_idle for one in server.connections))

    async with world.serving(ServerLimits(connections=4, per_address=2)) as server:
        stranger = await echo("127.0.0.2")
        first, second = [await echo("127.0.0.1") for _ in range(2)]
        await say(*first)
        third = await echo("127.0.0.1")
        peers = {_peer(streams[1]) for streams in (stranger, first, third)}
        await until(lambda: {one.peer for one in server.connections} == peers)
        # With room for nobody more, the one that was silent for longest of all.
        fourth, fifth = await echo("127.0.0.3"), await echo("127.0.0.3")
        peers = {_peer(streams[1]) for streams in (first, third, fourth, fifth)}
        await until(lambda: {one.peer for one in server.connections} == peers)
        for _, writer in (stranger, first, second, third, fourth, fifth):
            writer.transport.abort()


async def test_where_all_are_busy_a_new_connection_is_closed(world: World) -> None:
    async with world.serving(ServerLimits(per_address=1)) as server:
        busy = await connect(server.address, timeout_s=5)
        waiting = asyncio.ensure_future(busy.invoke(RemotingCommand(WAIT), 20))
        await until(lambda: world.seen)
        reader, writer = await asyncio.open_connection(*_open(server))
        assert await _closed(reader) == b""
        writer.close()
        assert server.limits_hit["connections"] == 1
        world.go_on.set()
        assert (await waiting).code == 0


async def test_a_server_that_stops_answers_what_is_under_way(world: World) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        waiting = asyncio.ensure_future(connection.invoke(RemotingCommand(WAIT), 20))
        await until(lambda: world.seen)
        stopping = asyncio.ensure_future(server.stop(grace_s=20))
        world.go_on.set()
        assert (await waiting).code == 0
        await stopping
        await until(lambda: connection.is_closed)


async def test_who_is_owed_an_answer_sees_a_reset_and_others_an_orderly_end(world: World) -> None:
    """RocketMQ's Java client 4.9 waits its whole time for an answer that was under way at an orderly end."""
    async with world.serving() as server:
        idle, _ = await asyncio.open_connection(*_open(server))
        busy, to_busy = await asyncio.open_connection(*_open(server))
        to_busy.write(encode(RemotingCommand(WAIT)))
        await until(lambda: world.seen and len(server.connections) == 2)
        await server.stop(grace_s=0)
        assert await idle.read() == b""
        with pytest.raises(ConnectionResetError):
            await busy.read()


async def test_a_request_that_comes_while_the_server_stops_ends_with_a_reset(world: World) -> None:
    async with world.serving() as server:
        reader, writer = await asyncio.open_connection(*_open(server))
        first = await connect(server.address, timeout_s=5)
        waiting = asyncio.ensure_future(first.invoke(RemotingCommand(WAIT), 20))
        await until(lambda: world.seen and len(server.connections) == 2)
        stopping = asyncio.ensure_future(server.stop(grace_s=20))
        await until(lambda: server.is_stopping)
        writer.write(encode(RemotingCommand(ECHO)))
        await until(lambda: any(not one.is_idle for one in server.connections if one.peer == _peer(writer)))
        world.go_on.set()
        assert (await waiting).code == 0
        await stopping
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert [one.code for one in world.seen] == [WAIT]


def _peer(writer: asyncio.StreamWriter) -> str:
    host, port = writer.get_extra_info("sockname")[:2]
    return f"{host}:{port}"


def _contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that trusts it."""
    files = TlsWorld(tmp_path).files("n0")
    assert files.certificate is not None and files.key is not None
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(files.certificate, files.key)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.load_verify_locations(files.ca)
    asking.check_hostname = False
    return serving, asking


async def test_tls_and_plain_text_share_the_port(world: World, tmp_path: Path) -> None:
    serving, asking = _contexts(tmp_path)
    async with world.serving(tls=serving) as server:
        for tls in (None, asking):
            connection = await connect(server.address, timeout_s=5, tls=tls)
            assert (await connection.invoke(RemotingCommand(ECHO), 5)).code == 0


async def test_where_tls_is_enforced_plain_text_gets_no_answer(world: World, tmp_path: Path) -> None:
    serving, asking = _contexts(tmp_path)
    async with world.serving(tls=serving, mode=TlsMode.ENFORCING) as server:
        plain = await connect(server.address, timeout_s=5)
        with pytest.raises(AnswerMissing):
            await plain.invoke(RemotingCommand(ECHO), 5)
        secure = await connect(server.address, timeout_s=5, tls=asking)
        assert (await secure.invoke(RemotingCommand(ECHO), 5)).code == 0
    assert [command.code for command in world.seen] == [ECHO]


async def test_a_client_that_hangs_up_before_its_first_byte_leaves_nothing(
    world: World, tmp_path: Path
) -> None:
    async with world.serving(tls=_contexts(tmp_path)[0]) as server:
        _, writer = await asyncio.open_connection(*_open(server))
        await until(lambda: server.connections)
        writer.transport.abort()
        await until(lambda: not server.connections)


async def test_a_mistake_of_a_hook_is_answered_logged_and_costs_no_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.serving() as server:
        connection = await connect(server.address, timeout_s=5)
        for code in (ECHO, REFUSE, 99):
            answer = await connection.invoke(RemotingCommand(code, {"breaks the hook": "1"}), 5)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "mistake" not in (answer.remark or "")
        assert (await connection.invoke(RemotingCommand(ECHO), 5)).code == 0
    assert "a hook failed" in caplog.text


class _Counting:
    """A ConnectionUser that counts requests by turns of the event loop."""

    def __init__(self, is_refused: bool = False) -> None:
        self.of_turn = [0]
        self._dispatch = Dispatch() if is_refused else None  # supports no code

    def requested(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        self.of_turn[-1] += 1
        if self._dispatch is not None:
            self._dispatch.answer(connection, request)

    def connected(self, connection: RemotingConnection) -> None: ...

    unsent = connected

    def closed(self, connection: RemotingConnection, reason: str) -> None: ...


class _Transport(asyncio.Transport):
    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None: ...


@pytest.mark.parametrize(
    ("is_refused", "size", "of_one"), [(False, 1, 32), (True, 1, 1), (False, 6000, 9), (False, 100_000, 1)]
)
async def test_connections_that_send_at_once_share_the_turns(
    is_refused: bool, size: int, of_one: int
) -> None:
    """They would all be processed in one turn of the event loop. Four connections that sent without waiting
    filled the turns of a master with refusals, and it lost its leadership."""
    user = _Counting(is_refused)
    fields = {"f": "x" * size}
    commands = b"".join(encode(RemotingCommand(ECHO, fields, opaque=i)) for i in range(100))
    connections = [RemotingConnection(user, user.requested, ROOMY, FairQueue(1 << 20)) for _ in range(20)]
    for one in connections:
        one.connection_made(_Transport())
        one.data_received(commands)  # as in one turn of the event loop
    while sum(user.of_turn) < 20 * 100:
        assert len(user.of_turn) < 1000, user.of_turn
        user.of_turn.append(0)
        await asyncio.sleep(0)
    assert max(user.of_turn) <= MAX_WOKEN * of_one
    for one in connections:
        one.close("the test is over")


@pytest.mark.parametrize("other", ["10.0.0.2", "2001:db8:0:2::1"])
async def test_frames_of_one_address_are_read_before_all_connections_of_another(other: str) -> None:
    """An IPv6 address is a network of 64 bits: a client usually has all of its addresses."""
    flood = [f"2001:db8:0:1::{n:x}" for n in range(1, 201)]
    hosts: list[str] = []
    user = _Counting()

    def requested(connection: RemotingConnection, request: RemotingCommand) -> None:
        hosts.append(connection.host)

    connections = []
    for host in [*flood, other]:
        one = RemotingConnection(user, requested, ROOMY, FairQueue(1 << 20))
        one.connection_made(_Transport({"peername": (host, 1)}))
        one.data_received(encode(RemotingCommand(ECHO)))
        connections.append(one)
    while other not in hosts:
        await asyncio.sleep(0)
    assert len(hosts) <= 3 * MAX_WOKEN
    for one in connections:
        one.close("the test is over")
