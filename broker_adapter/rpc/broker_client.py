"""A client's side of BrokerService: one broker, one channel, the values of `broker_adapter.api` in and out.

Answers with a status come out as the error of that status. A broker that was not reached is `NotConnected`,
a definite failure; one that was and does not answer is `NoAnswer`, which says nothing of what it did. Nothing
is retried here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from broker_adapter.api import (
    Assignment,
    BrokerInfo,
    GroupConfig,
    OutgoingMessage,
    PullResult,
    QueueOffset,
    QueueStats,
    SendResult,
    TopicConfig,
)
from broker_adapter.errors import IllegalMessage, PutRefused, Status
from broker_adapter.rpc.convert import (
    assignment_from_pb,
    error_from_pb,
    group_from_pb,
    group_to_pb,
    info_from_pb,
    offsets_from_pb,
    offsets_to_pb,
    pull_result_from_pb,
    stats_from_pb,
    topic_from_pb,
    topic_to_pb,
)
from broker_adapter.rpc.send_stream import NoAnswer, SendStream
from broker_adapter.v1 import broker_pb2 as pb
from broker_adapter.v1 import broker_pb2_grpc
from dledger.platform import ChannelSecurity, NetworkFailure, answer_of, end_call, open_channel

T = TypeVar("T")

#: What a call may take beyond the wait it asks for, in seconds.
_GRACE = 1.0

__all__ = ["BrokerClient", "NoAnswer", "NotConnected"]


class NotConnected(PutRefused):
    """No connection to the broker: nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.NOT_CONNECTED, message)


class BrokerClient:
    """One broker. Connects when first used; `close` ends every call with NoAnswer.

    All calls raise the errors of `broker_adapter.errors`; `timeout` is in seconds.
    """

    def __init__(self, address: str, security: ChannelSecurity | None = None) -> None:
        self.address = address
        self.security = security
        self._channel = open_channel(address, security)
        self._stub: Any = broker_pb2_grpc.BrokerServiceStub(self._channel)
        self._sending: SendStream | None = None
        self._pulls: set[Any] = set()  # calls that wait
        self._closed = False

    # -- messages

    async def send(
        self, topic: str, queue_id: int, messages: Sequence[OutgoingMessage], timeout: float
    ) -> SendResult:
        """Store one batch in one queue (-1: the broker chooses), all or none of it. Goes over one stream.

        Raises NotConnected and what the broker refuses: nothing was stored; PutIndeterminate, NoAnswer among
        them: nobody knows.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._connect(timeout)
                stream = self._sending
                if stream is None or stream.broken:
                    if stream is not None:
                        stream.close()
                    stream = self._sending = SendStream(self.address, self._stub.SendStream())
                return await stream.send(topic, queue_id, messages, max(1, int(timeout * 1000)))
        except TimeoutError:
            raise NoAnswer(f"{self.address}: no answer within {timeout:g} s") from None

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        tags: Sequence[str] = (),
        wait_ms: int = 0,
        group: str = "",
        timeout: float = 3.0,
    ) -> PullResult:
        """Messages from an offset on, waiting `wait_ms` for one; `timeout` comes on top of that."""
        request = _made(
            pb.PullRequest,
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            tags=tags,
            wait_ms=wait_ms,
            group=group,
        )
        seconds = timeout + wait_ms / 1000
        return pull_result_from_pb(await self._ask(self._stub.Pull, request, seconds, waits=True))

    async def pull_stream(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        tags: Sequence[str] = (),
        wait_ms: int = 0,
        group: str = "",
    ) -> AsyncGenerator[PullResult, None]:
        """Messages from an offset on, without end. `wait_ms`: how often an idle queue says so."""
        request = _made(
            pb.PullRequest,
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            tags=tags,
            wait_ms=wait_ms,
            group=group,
        )
        call = self._stub.PullStream(request)
        self._pulls.add(call)
        try:
            while (response := await self._answer(call.read, call.cancelled)) is not grpc.aio.EOF:
                if response.HasField("status"):
                    raise error_from_pb(response.status)
                yield pull_result_from_pb(response)
        finally:
            self._pulls.discard(call)
            await end_call(call)

    async def message_at(self, physical_offset: int, timeout: float) -> bytes:
        request = _made(pb.MessageAtRequest, physical_offset=physical_offset)
        return bytes((await self._ask(self._stub.MessageAt, request, timeout)).record)

    async def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int, timeout: float
    ) -> list[bytes]:
        request = _made(
            pb.QueryRequest,
            topic=topic,
            key=key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_messages=max_messages,
        )
        return list((await self._ask(self._stub.Query, request, timeout)).records)

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, timeout: float) -> int:
        request = _made(pb.OffsetByTimeRequest, topic=topic, queue_id=queue_id, timestamp_ms=timestamp_ms)
        return int((await self._ask(self._stub.OffsetByTime, request, timeout)).offset)

    # -- the broker, topics and groups

    async def info(self, timeout: float) -> BrokerInfo:
        return info_from_pb(await self._ask(self._stub.GetBroker, pb.GetBrokerRequest(), timeout))

    async def put_topic(self, config: TopicConfig, timeout: float) -> None:
        request = pb.PutTopicRequest(topic=_checked(lambda: topic_to_pb(config)))
        await self._ask(self._stub.PutTopic, request, timeout)

    async def delete_topic(self, name: str, timeout: float) -> None:
        await self._ask(self._stub.DeleteTopic, _made(pb.DeleteTopicRequest, name=name), timeout)

    async def topics(self, timeout: float) -> list[TopicConfig]:
        response = await self._ask(self._stub.ListTopics, pb.ListTopicsRequest(), timeout)
        return [topic_from_pb(topic) for topic in response.topics]

    async def topic_stats(self, topic: str, timeout: float) -> list[QueueStats]:
        request = _made(pb.TopicStatsRequest, topic=topic)
        response = await self._ask(self._stub.TopicStats, request, timeout)
        return [stats_from_pb(topic, entry) for entry in response.queues]

    async def put_group(self, config: GroupConfig, timeout: float) -> None:
        request = pb.PutGroupRequest(group=_checked(lambda: group_to_pb(config)))
        await self._ask(self._stub.PutGroup, request, timeout)

    async def delete_group(self, name: str, timeout: float) -> None:
        await self._ask(self._stub.DeleteGroup, _made(pb.DeleteGroupRequest, name=name), timeout)

    async def groups(self, timeout: float) -> list[GroupConfig]:
        response = await self._ask(self._stub.ListGroups, pb.ListGroupsRequest(), timeout)
        return [group_from_pb(group) for group in response.groups]

    # -- offsets and members

    async def commit_offsets(
        self, group: str, generation: int, offsets: Sequence[QueueOffset], timeout: float
    ) -> None:
        entries = _checked(lambda: offsets_to_pb(offsets))
        request = _made(pb.CommitOffsetsRequest, group=group, generation=generation, offsets=entries)
        await self._ask(self._stub.CommitOffsets, request, timeout)

    async def offsets(self, group: str, timeout: float) -> tuple[int, list[QueueOffset]]:
        response = await self._ask(
            self._stub.FetchOffsets, _made(pb.FetchOffsetsRequest, group=group), timeout
        )
        return int(response.generation), offsets_from_pb(response.offsets)

    async def reset_offsets(self, group: str, offsets: Sequence[QueueOffset], timeout: float) -> int:
        entries = _checked(lambda: offsets_to_pb(offsets))
        request = _made(pb.ResetOffsetsRequest, group=group, offsets=entries)
        return int((await self._ask(self._stub.ResetOffsets, request, timeout)).generation)

    async def join(
        self, group: str, member_id: str, topics: Sequence[str], lease_ms: int, timeout: float
    ) -> Assignment:
        request = _made(pb.JoinRequest, group=group, member_id=member_id, topics=topics, lease_ms=lease_ms)
        return assignment_from_pb(await self._ask(self._stub.Join, request, timeout))

    async def leave(self, group: str, member_id: str, timeout: float) -> None:
        request = _made(pb.LeaveRequest, group=group, member_id=member_id)
        await self._ask(self._stub.Leave, request, timeout)

    # -- life

    def break_off(self) -> None:
        """End sends and pulls under way with NoAnswer: another broker is the master now."""
        if self._sending is not None:
            self._sending.close()
            self._sending = None
        for call in list(self._pulls):
            call.cancel()

    async def close(self) -> None:
        self._closed = True
        self.break_off()
        await self._channel.close()

    async def _connect(self, timeout: float) -> None:
        """Wait until the channel is connected. NotConnected: what failed before that was never sent."""
        ready = grpc.ChannelConnectivity.READY
        broken = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
        try:
            async with asyncio.timeout(timeout):
                state = self._channel.get_state(try_to_connect=True)
                while state is not ready:
                    if state in broken:
                        raise NotConnected(f"{self.address}: cannot connect")
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise NotConnected(f"{self.address}: not connected within {timeout:g} s") from None
        except grpc.aio.UsageError as error:
            raise NotConnected(f"{self.address}: {error}") from None

    async def _ask(self, method: Any, request: Any, timeout: float, *, waits: bool = False) -> Any:
        if self._closed:
            raise NotConnected(f"{self.address}: the client is closed")
        call = method(request, timeout=timeout + _GRACE)
        if waits:
            self._pulls.add(call)
        try:
            response = await self._answer(lambda: call, call.cancelled)
        finally:
            self._pulls.discard(call)
        if response.HasField("status"):
            raise error_from_pb(response.status)
        return response

    async def _answer(self, call: Callable[[], Awaitable[T]], cancelled: Callable[[], bool]) -> T:
        try:
            return await answer_of(self.address, call, cancelled, security=self.security)
        except NetworkFailure as failure:
            raise NoAnswer(failure.message) from None


def _checked(make: Callable[[], T]) -> T:
    """What `make` makes. IllegalMessage (FIELD_OUT_OF_RANGE) for values that no field of protobuf holds."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, str(error)) from None


def _made(message_type: type[T], **values: Any) -> T:
    return _checked(lambda: message_type(**values))
