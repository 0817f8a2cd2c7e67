"""The client side of LogService and AdminService for one server. It uses one channel, and converts to and
from types of this project.

gRPC failures are raised as NetworkFailure, and responses with an error code as the error of that code. This
module retries nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio

from dledger.core.membership_change import MembershipChange
from dledger.errors import Code, DLedgerError, Overloaded, Refused, error_for
from dledger.infra.transport.call_limit import TOO_MANY_CALLS
from dledger.infra.transport.channels import CallCount, ChannelSecurity, open_channel
from dledger.infra.transport.cluster_check import OTHER_CLUSTER, cluster_metadata
from dledger.infra.transport.tls_failures import explain, explain_unreachable, is_absent
from dledger.rpc.convert_admin import backup_head_from_pb, change_to_pb, node_status_from_pb, scrub_from_pb
from dledger.rpc.ports import BackupHead, ScrubProgress
from dledger.rpc.request_wire import SessionMark, encode_append_request, serialize_request, wire_ms
from dledger.status.model import NodeStatus
from dledger.v1 import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc

T = TypeVar("T")

_APPEND_STREAM = "/dledger.v1.LogService/AppendStream"
_GOOD = (0, int(Code.SUCCESS))


class NetworkFailure(DLedgerError):
    """Raised if no response arrived, because of a failed connection, a broken stream or a deadline. The
    server may or may not have executed the request."""

    default_code = Code.NETWORK_ERROR
    #: True if the server may be of another kind: it accepted a connection and then closed it, for example.
    may_be_other_port = False


class TlsFailure(NetworkFailure):
    """The connection failed because of TLS. The message names the likely cause."""


class ForeignServer(NetworkFailure):
    """The server belongs to another cluster than the client. It has refused the call before processing it."""

    default_code = Code.UNKNOWN_CLUSTER


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """The response to one batch. `error` is None on success, and only then are the other fields valid."""

    request_id: int
    error: DLedgerError | None
    index: int = -1
    count: int = 0
    term: int = -1
    pos: int = -1
    duplicate: bool = False
    position_forgotten: bool = False


class ReadChunk(NamedTuple):
    """One message of a read: whole entries in their stored encoding, and where to continue."""

    frames: bytes
    next_index: int
    committed_index: int
    ledger_begin_index: int


def _error_of(status: Any) -> DLedgerError | None:
    if status.code in _GOOD:
        return None
    return error_for(
        status.code,
        status.message,
        leader_id=status.leader_id or None,
        leader_address=status.leader_address or None,
    )


def _raise_bad(status: Any) -> None:
    if (error := _error_of(status)) is not None:
        raise error


def _failure(address: str, error: grpc.aio.AioRpcError, security: ChannelSecurity | None) -> DLedgerError:
    details = error.details() or ""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and details.startswith(TOO_MANY_CALLS):
        # The call was not processed: this code is definite.
        return Overloaded(f"{address}: {details}", code=Code.TOO_MANY_CONNECTIONS)
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION and details.startswith(OTHER_CLUSTER):
        return ForeignServer(f"{address}: {details.removeprefix(OTHER_CLUSTER).lstrip(': ')}")
    if (known := explain(address, error.details(), security)) is not None:
        failure: NetworkFailure = TlsFailure(f"{address}: {known.message}", code=known.code)
    else:
        problem = explain_unreachable(details) or f"{error.code().name}: {details}"
        failure = NetworkFailure(f"{address}: {problem}")
    failure.may_be_other_port = error.code() is grpc.StatusCode.UNAVAILABLE and not is_absent(details)
    return failure


async def answer_of(
    address: str,
    call: Callable[[], Awaitable[T]],
    cancelled: Callable[[], bool] | None = None,
    *,
    security: ChannelSecurity | None = None,
) -> T:
    """Await a gRPC operation. Converts a cancelled call, as opposed to a cancelled task, to NetworkFailure.

    gRPC raises CancelledError when this task is cancelled, but also when the call is cancelled or the channel
    is closed. Only the first case is passed on as CancelledError.
    """
    try:
        return await call()
    except grpc.aio.AioRpcError as error:
        raise _failure(address, error, security) from None
    except grpc.aio.UsageError as error:
        raise NetworkFailure(f"{address}: {error}") from None
    except asyncio.InvalidStateError as error:
        raise NetworkFailure(f"{address}: the stream has ended: {error}") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if (task is not None and task.cancelling()) or (cancelled is not None and not cancelled()):
            raise
        raise NetworkFailure(f"{address}: the call was cancelled") from None


async def end_call(call: Any) -> None:
    """Cancel a call and wait for its last event. If the loop were closed before, gRPC would report that event
    as an error."""
    call.cancel()
    await call.code()


class AppendStream:
    """One AppendStream call. One task may send while another receives."""

    def __init__(self, address: str, group: str, call: Any, ended: Callable[[], None]) -> None:
        self.address = address
        self._group = group
        self._call = call
        self._ended: Callable[[], None] | None = ended

    async def send(
        self, request_id: int, bodies: Sequence[bytes], mark: SessionMark | None, timeout_ms: int
    ) -> None:
        """Pass one batch to gRPC. Returns when flow control permits it. Raises NetworkFailure."""
        request = encode_append_request(self._group, request_id, bodies, mark, timeout_ms)
        await answer_of(self.address, lambda: self._call.write(request), self._call.cancelled)

    async def receive(self) -> AppendAnswer:
        """Return the next response. Raises NetworkFailure when the stream ends for any reason."""
        message = await answer_of(self.address, self._call.read, self._call.cancelled)
        if message is grpc.aio.EOF:
            raise NetworkFailure(f"{self.address}: the server ended the stream")
        if message.HasField("status") and (error := _error_of(message.status)) is not None:
            return AppendAnswer(message.request_id, error)
        return AppendAnswer(
            message.request_id,
            None,
            message.index,
            message.count,
            message.term,
            message.pos,
            message.duplicate,
            message.position_forgotten,
        )

    def cancel(self) -> None:
        """Cancel the call immediately; pending sends and receives fail with NetworkFailure."""
        self._call.cancel()

    async def close(self) -> None:
        """End the call and wait until gRPC has released it."""
        ended, self._ended = self._ended, None
        try:
            await end_call(self._call)
        finally:
            if ended is not None:
                ended()


class LogClient:
    """A client of one server. Connects when first used; `close` ends every call with NetworkFailure."""

    def __init__(
        self,
        address: str,
        group: str,
        security: ChannelSecurity | None = None,
        cluster_id: str | None = None,
    ) -> None:
        """`cluster_id`: a server of another cluster refuses all calls except `get_status`."""
        self.address = address
        self._metadata = cluster_metadata(cluster_id)
        self.security = security
        self._group = group
        self._calls = CallCount()
        self._channel = open_channel(address, security)
        self._log: Any = log_pb2_grpc.LogServiceStub(self._channel)
        self._append_stream: Any = self._channel.stream_stream(
            _APPEND_STREAM,
            request_serializer=serialize_request,
            response_deserializer=log_pb2.AppendResponse.FromString,
        )
        self._admin: Any = admin_pb2_grpc.AdminServiceStub(self._channel)

    async def connect(self, timeout: float) -> None:
        """Wait until the channel is connected, at most `timeout` seconds. Raises NetworkFailure.

        This failure is definite: nothing was sent.
        """
        ready = grpc.ChannelConnectivity.READY
        broken = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
        try:
            async with asyncio.timeout(timeout):
                state = self._channel.get_state(try_to_connect=True)
                while state is not ready:
                    if state in broken:
                        raise NetworkFailure(f"{self.address}: cannot connect")
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise NetworkFailure(f"{self.address}: could not connect within {timeout:g} s") from None
        except grpc.aio.UsageError as error:
            raise NetworkFailure(f"{self.address}: {error}") from None

    def open_append_stream(self) -> AppendStream:
        call = self._append_stream(metadata=self._metadata)
        self._calls.acquire()
        return AppendStream(self.address, self._group, call, self._calls.release)

    async def open_session(self, timeout: float) -> int:
        """Open a session and return its id. Raises NetworkFailure, after which the session may be open, and
        coded errors."""
        request = log_pb2.AppendRequest(group=self._group, open_session=True, timeout_ms=wire_ms(timeout))
        answer = await self._unary(lambda: self._call(self._log.Append, request, timeout))
        if answer.HasField("status"):
            _raise_bad(answer.status)
        return int(answer.index)

    async def read(
        self, from_index: int, count: int, *, follow: bool, linearizable: bool, include_internal: bool
    ) -> AsyncGenerator[ReadChunk, None]:
        """Read committed entries in chunks, in order. A `count` of 0 means no limit. Raises NetworkFailure
        or ReadFailed."""
        modes = log_pb2.ReadMode
        call = self._log.ReadStream(
            log_pb2.ReadRequest(
                group=self._group,
                from_index=from_index,
                count=count,
                follow=follow,
                mode=modes.READ_MODE_LINEARIZABLE if linearizable else modes.READ_MODE_LOCAL,
                format=log_pb2.ReadFormat.READ_FORMAT_FRAMES,
                include_internal=include_internal,
            ),
            metadata=self._metadata,
        )
        with self._calls:
            try:
                while (m := await self._answer(call.read, call.cancelled)) is not grpc.aio.EOF:
                    if m.HasField("status"):
                        _raise_bad(m.status)
                    yield ReadChunk(m.frames, m.next_index, m.committed_index, m.ledger_begin_index)
            finally:
                await end_call(call)

    async def read_index(self, timeout: float) -> int:
        """Return the linearizable read index. Raises NetworkFailure and coded errors."""
        request = log_pb2.ReadIndexRequest(group=self._group)
        answer = await self._unary(lambda: self._call(self._log.ReadIndex, request, timeout))
        _raise_bad(answer.status)
        return int(answer.read_index)

    async def get_status(self, timeout: float) -> NodeStatus:
        """Return the status of the server. Raises NetworkFailure and coded errors."""
        request = admin_pb2.GetStatusRequest(group=self._group)
        answer = await self._unary(lambda: self._admin.GetStatus(request, timeout=timeout))
        _raise_bad(answer.status)
        return node_status_from_pb(answer.node)

    async def transfer_leadership(self, to: str, timeout: float) -> tuple[int, str]:
        """Transfer leadership to node `to`. Returns (term, node id) of the new leader. Raises NetworkFailure
        and coded errors."""
        request = admin_pb2.TransferLeadershipRequest(group=self._group, to=to)
        answer = await self._unary(lambda: self._call(self._admin.TransferLeadership, request, timeout))
        _raise_bad(answer.status)
        return int(answer.term), str(answer.leader_id)

    async def change_members(self, change: MembershipChange, timeout: float) -> int:
        """Change the members. Returns the index of the newest change. Raises like transfer_leadership, and
        Refused MEMBER_OUTDATED if the server does not know the request."""
        request = change_to_pb(self._group, change)

        async def call() -> admin_pb2.ChangeMembersResponse:
            try:
                response = await self._call(self._admin.ChangeMembers, request, timeout)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                text = "cannot change members: it runs a release before 0.3, or has a classic log"
                raise Refused(f"{self.address} {text}", code=Code.MEMBER_OUTDATED) from None
            assert isinstance(response, admin_pb2.ChangeMembersResponse)
            return response

        answer = await self._unary(call)
        _raise_bad(answer.status)
        return int(answer.membership_index)

    async def purge(self, before_index: int, before_age_ms: int, timeout: float) -> tuple[int, int]:
        """Request a purge. Returns (the index before which entries are removed, the current start). Raises
        like transfer_leadership."""
        request = admin_pb2.PurgeRequest(
            group=self._group, before_index=before_index, before_age_ms=before_age_ms
        )
        answer = await self._unary(lambda: self._call(self._admin.Purge, request, timeout))
        _raise_bad(answer.status)
        return int(answer.before_index), int(answer.ledger_begin_index)

    async def scrub(self, bytes_per_second: int) -> AsyncGenerator[ScrubProgress, None]:
        """Scrub this server and report progress until it is done. Raises NetworkFailure and coded errors."""
        request = admin_pb2.ScrubRequest(group=self._group, bytes_per_second=bytes_per_second)
        async for message in self._stream(self._admin.Scrub(request, metadata=self._metadata)):
            yield scrub_from_pb(message)

    async def backup(self) -> AsyncGenerator[BackupHead | bytes, None]:
        """Yield a header, then all committed entries as frames. Raises NetworkFailure and coded errors."""
        request = admin_pb2.BackupRequest(group=self._group)
        async for message in self._stream(self._admin.Backup(request, metadata=self._metadata)):
            yield backup_head_from_pb(message.head) if message.HasField("head") else bytes(message.frames)

    async def _stream(self, call: Any) -> AsyncGenerator[Any, None]:
        with self._calls:
            try:
                while (message := await self._answer(call.read, call.cancelled)) is not grpc.aio.EOF:
                    if message.HasField("status"):
                        _raise_bad(message.status)
                    yield message
            finally:
                await end_call(call)

    async def close(self) -> None:
        await self._channel.close()

    async def retire(self) -> None:
        """Close once no call is pending. Used when another channel has replaced this one."""
        try:
            await self._calls.idle()
        finally:
            await self.close()

    def _call(self, method: Any, request: Any, timeout: float) -> Any:
        return method(request, timeout=timeout, metadata=self._metadata)

    async def _unary(self, call: Callable[[], Awaitable[T]]) -> T:
        with self._calls:
            return await self._answer(call)

    async def _answer(
        self, call: Callable[[], Awaitable[T]], cancelled: Callable[[], bool] | None = None
    ) -> T:
        return await answer_of(self.address, call, cancelled, security=self.security)
