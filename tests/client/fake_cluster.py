"""Servers that behave as the protocol says and misbehave as a test says. One log, shared by all of them.

Written from the proto files alone. A test scripts a server with `answers` (what becomes of its next batches)
and moves leadership with `FakeCluster.lead`.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import grpc

from dledger.errors import Code
from dledger.infra.transport.channels import new_server
from dledger.v1 import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc

HEADER = struct.Struct(">iiqqqiIIi")


@dataclass
class Stored:
    term: int
    pos: int
    magic: int
    body: bytes

    def frame(self, index: int, *, corrupt: bool = False) -> bytes:
        size = HEADER.size + len(self.body)
        crc = crc32(self.body) ^ corrupt
        header = HEADER.pack(self.magic, size, index, self.term, self.pos, 0, 1, crc, len(self.body))
        return header + self.body


@dataclass
class FakeSession:
    last: int = 0
    results: dict[int, tuple[tuple[bytes, ...], int, int, int]] = field(default_factory=dict)
    forgotten: bool = False


class FakeLog:
    """What a cluster has agreed on."""

    def __init__(self) -> None:
        self.entries: list[Stored] = []
        self.sessions: dict[int, FakeSession] = {}
        self.changed = asyncio.Event()

    def add(self, term: int, body: bytes, magic: int = 1) -> int:
        last = self.entries[-1] if self.entries else None
        pos = last.pos + HEADER.size + len(last.body) if last else 0
        self.entries.append(Stored(term, pos, magic, body))
        self.changed.set()
        self.changed = asyncio.Event()
        return len(self.entries) - 1

    def add_all(self, term: int, bodies: tuple[bytes, ...]) -> int:
        """The index of the first."""
        first = len(self.entries)
        for body in bodies:
            self.add(term, body)
        return first

    @property
    def bodies(self) -> list[bytes]:
        return [e.body for e in self.entries if e.magic == 1]


Script = Callable[[Any, "FakeServer"], Any]
"""Gets the request and its server; the answer, or None to say nothing."""


class StreamBroken(Exception):
    """Raised by a script: the stream ends without an answer."""


def refuse(code: Code, leader_address: str = "") -> Script:
    def script(request: Any, server: FakeServer) -> log_pb2.AppendResponse:
        status = log_pb2.Status(code=int(code), message="as scripted", leader_address=leader_address)
        return log_pb2.AppendResponse(request_id=request.request_id, status=status)

    return script


def swallow(request: Any, server: FakeServer) -> None:
    """Nothing stored, nothing said."""


def store_and_swallow(request: Any, server: FakeServer) -> None:
    server.store(request)


def break_stream(request: Any, server: FakeServer) -> log_pb2.AppendResponse:
    raise StreamBroken


def store_and_break(request: Any, server: FakeServer) -> log_pb2.AppendResponse:
    server.store(request)
    raise StreamBroken


def store(request: Any, server: FakeServer) -> log_pb2.AppendResponse:
    return server.store(request)


class FakeServer(log_pb2_grpc.LogServiceServicer, admin_pb2_grpc.AdminServiceServicer):
    """One node. Its methods are those of the generated servicers."""

    def __init__(self, cluster: FakeCluster, node_id: str) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.address = ""
        self.answers: deque[Script] = deque()
        self.requests: list[Any] = []  # appends, as they came
        self.streams = 0
        self.reads: list[Any] = []
        self.read_error: Code | None = None
        self.break_read_after: int | None = None  # messages
        self.chunk = 100  # entries per message of a read
        self.corrupt_reads = False
        self.rejected_body: bytes | None = None  # a batch that holds it is refused for good
        self.opens = 0
        self.open_answers: deque[Script] = deque()
        self.gate = asyncio.Event()  # a paused node: no answers, no break
        self.gate.set()
        self.said_term: int | None = None  # a deposed leader's idea of its term
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = new_server()
        log_pb2_grpc.add_LogServiceServicer_to_server(self, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def kill(self) -> None:
        assert self._server is not None
        await self._server.stop(None)
        self._server = None

    async def stop(self) -> None:
        self.gate.set()
        if self._server is not None:
            await self.kill()

    # -- appends

    def store(self, request: Any) -> Any:
        """What a leader does."""
        log, term = self.cluster.log, self.cluster.term
        bodies = tuple(request.bodies)
        if not request.HasField("session"):
            return self._stored(request, bodies, log.add_all(term, bodies))
        session = log.sessions.get(request.session.session_id)
        seq = request.session.seq
        if session is None:
            return refuse(Code.SESSION_EXPIRED)(request, self)
        if seq <= session.last:
            known, index, stored_term, pos = session.results[seq]
            if known != bodies:
                return refuse(Code.SESSION_CONFLICT)(request, self)
            forgotten = session.forgotten
            return log_pb2.AppendResponse(
                request_id=request.request_id,
                index=-1 if forgotten else index,
                pos=-1 if forgotten else pos,
                term=stored_term,
                count=len(bodies),
                duplicate=True,
                position_forgotten=forgotten,
            )
        if seq > session.last + 1:
            return refuse(Code.SESSION_GAP)(request, self)
        log.add(term, b"session", magic=2)
        index = log.add_all(term, bodies)
        session.last = seq
        session.results[seq] = (bodies, index, term, log.entries[index].pos)
        return self._stored(request, bodies, index)

    def _stored(self, request: Any, bodies: tuple[bytes, ...], index: int) -> log_pb2.AppendResponse:
        return log_pb2.AppendResponse(
            request_id=request.request_id,
            index=index,
            count=len(bodies),
            term=self.cluster.term,
            pos=self.cluster.log.entries[index].pos,
        )

    def _default(self, request: Any) -> log_pb2.AppendResponse:
        if self.cluster.leader is not self:
            leader = self.cluster.leader
            return refuse(Code.NOT_LEADER, leader.address if leader else "")(request, self)
        if self.rejected_body is not None and self.rejected_body in request.bodies:
            return refuse(Code.BODY_TOO_LARGE)(request, self)
        return self.store(request)

    async def Append(self, request: Any, context: Any) -> log_pb2.AppendResponse:  # noqa: N802
        await self.gate.wait()
        if self.cluster.leader is not self:
            return self._default(request)
        self.opens += 1
        if self.open_answers:
            answer = self.open_answers.popleft()(request, self)
            assert answer is not None
            return answer
        index = self.cluster.log.add(self.cluster.term, b"open", magic=2)
        self.cluster.log.sessions[index] = FakeSession()
        return log_pb2.AppendResponse(request_id=request.request_id, index=index, term=self.cluster.term)

    async def AppendStream(  # noqa: N802
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[log_pb2.AppendResponse]:
        self.streams += 1
        async for request in requests:
            self.requests.append(request)
            await self.gate.wait()
            try:
                script = self.answers.popleft() if self.answers else None
                answer = script(request, self) if script else self._default(request)
            except StreamBroken:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken as scripted")
            if answer is not None:
                yield answer

    # -- reads

    async def ReadStream(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[log_pb2.ReadResponse]:
        self.reads.append(request)
        if self.read_error is not None:
            yield log_pb2.ReadResponse(
                status=log_pb2.Status(code=int(self.read_error), message="as scripted")
            )
            return
        log, sent = self.cluster.log, 0
        at, left = max(request.from_index, 0), request.count or None
        end = len(log.entries)
        while True:
            await self.gate.wait()
            changed = log.changed
            end = len(log.entries) if request.follow else end
            while at < end and left != 0:
                if self.break_read_after is not None and sent >= self.break_read_after:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "broken as scripted")
                stop = min(end, at + self.chunk)
                frames = b"".join(
                    log.entries[i].frame(i, corrupt=self.corrupt_reads) for i in range(at, stop)
                )
                if left is not None:
                    left -= min(left, sum(e.magic == 1 for e in log.entries[at:stop]))
                at = stop
                sent += 1
                yield log_pb2.ReadResponse(frames=frames, next_index=at, committed_index=end - 1)
            if not request.follow or left == 0:
                return
            await changed.wait()

    async def ReadIndex(self, request: Any, context: Any) -> log_pb2.ReadIndexResponse:  # noqa: N802
        await self.gate.wait()
        if self.cluster.leader is not self:
            return log_pb2.ReadIndexResponse(status=log_pb2.Status(code=int(Code.NOT_LEADER), message="no"))
        return log_pb2.ReadIndexResponse(read_index=len(self.cluster.log.entries) - 1)

    # -- admin

    async def GetStatus(self, request: Any, context: Any) -> admin_pb2.GetStatusResponse:  # noqa: N802
        await self.gate.wait()
        cluster = self.cluster
        leads = cluster.leader is self or self.said_term is not None
        return admin_pb2.GetStatusResponse(
            node=admin_pb2.NodeStatus(
                cluster_id=cluster.cluster_id,
                members=cluster.members,
                membership_index=cluster.membership_index,
                node_id=self.node_id,
                address=self.address,
                group=request.group,
                role="LEADER" if leads else "FOLLOWER",
                term=cluster.term if self.said_term is None else self.said_term,
                leader_address=cluster.leader.address if cluster.leader else "",
                committed_index=len(cluster.log.entries) - 1,
            )
        )

    async def TransferLeadership(  # noqa: N802
        self, request: Any, context: Any
    ) -> admin_pb2.TransferLeadershipResponse:
        target = next((s for s in self.cluster.servers if s.node_id == request.to), None)
        if target is None:
            status = log_pb2.Status(code=int(Code.UNKNOWN_MEMBER), message=f"no node {request.to}")
            return admin_pb2.TransferLeadershipResponse(status=status)
        self.cluster.lead(target)
        return admin_pb2.TransferLeadershipResponse(term=self.cluster.term, leader_id=target.node_id)


class FakeCluster:
    """Some servers around one log; at most one of them leads."""

    def __init__(self, size: int) -> None:
        self.log = FakeLog()
        self.term = 1
        self.servers = [FakeServer(self, f"n{i}") for i in range(size)]
        self.leader: FakeServer | None = self.servers[0]
        self.cluster_id = "orders"
        self.members: list[admin_pb2.MemberAddress] = []
        self.membership_index = 0

    def lead(self, server: FakeServer | None) -> None:
        """A new term; None: nobody leads in it."""
        self.term += 1
        self.leader = server

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    async def __aenter__(self) -> FakeCluster:
        for server in self.servers:
            await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            with contextlib.suppress(asyncio.CancelledError):
                await server.stop()
