"""BrokerService on a gRPC server: every call of proto/broker_adapter/v1/broker.proto, from a `BrokerApi`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sized
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from broker_adapter.api import BrokerApi, QueueOffset
from broker_adapter.errors import Status, error_for
from broker_adapter.rpc.calls import (
    Context,
    LargeAnswers,
    Places,
    check_count,
    check_least,
    malformed,
    numbered,
    out_of_range,
    stopping,
)
from broker_adapter.rpc.convert import (
    assignment_to_pb,
    group_from_pb,
    group_to_pb,
    info_to_pb,
    offsets_from_pb,
    offsets_to_pb,
    stats_to_pb,
    status_to_pb,
    topic_from_pb,
    topic_to_pb,
)
from broker_adapter.rpc.limits import BrokerLimits
from broker_adapter.rpc.pull_service import PullService
from broker_adapter.rpc.send_service import SendService
from broker_adapter.v1 import broker_pb2 as pb
from dledger import InvalidRequest
from dledger.platform import MAX_PAYLOAD_BYTES, AdminNames, handlers, large_turns

SERVICE_NAME: Final = "dledger.broker.v1.BrokerService"

#: From so many entries on a list takes turns.
_MANY_ENTRIES = 256
#: What a group may commit under if it has no members.
_NO_GENERATION = -1

#: Changes for everybody, which clients that send and consume do not need.
_CHANGES: Final = frozenset(
    {
        pb.PutTopicRequest,
        pb.DeleteTopicRequest,
        pb.PutGroupRequest,
        pb.DeleteGroupRequest,
        pb.ResetOffsetsRequest,
    }
)

#: Of one request: names and numbers; 4,096 offsets of topics with the longest names.
_MOST_BYTES, _MOST_OFFSET_BYTES = 64 << 10, 1 << 20
_WITH_OFFSETS: Final = frozenset({pb.CommitOffsetsRequest, pb.ResetOffsetsRequest})
#: 10,000 pulls may wait, and each keeps its request: 64 tags of 100 bytes.
_MOST_PULL_BYTES = 8 << 10
_parse_pull = handlers.parser(pb.PullRequest, most_bytes=_MOST_PULL_BYTES)

R = TypeVar("R", bound=Message)


class BrokerService:
    """The gRPC face of one broker.

    Add `handler` to a gRPC server, under the name `name` for health and reflection, and call `stop` before
    the server stops.
    """

    name: Final = SERVICE_NAME

    def __init__(
        self, api: BrokerApi, limits: BrokerLimits | None = None, operators: AdminNames | None = None
    ) -> None:
        """`operators`: whose certificates may change topics, groups and offsets; None: nobody shows one."""
        self._api = api
        self._operators = operators
        self._limits = BrokerLimits() if limits is None else limits
        self.sends = SendService(api, self._limits)
        self._large = LargeAnswers(self._limits.max_answer_bytes)
        self.pulls = PullService(api, self._limits, self._large)
        self._calls = Places("calls", self._limits.max_calls)
        self._stopping = False

    async def drain(self, seconds: float) -> None:
        """Before `stop`: no new batches, and so long for those under way."""
        await self.sends.drain(seconds)

    def stop(self) -> None:
        """Refuse new calls and answer those that wait. Repeatable."""
        self._stopping = True
        self.sends.stop()
        self.pulls.stop()

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """All methods of the service, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        return handlers.service(
            SERVICE_NAME,
            {
                "Send": handlers.unary(self.sends.send, pb.SendRequest, self.sends.parse),
                "SendStream": handlers.both_stream(self.sends.send_stream, pb.SendRequest, self.sends.parse),
                "Pull": handlers.unary(self.pulls.pull, pb.PullRequest, _parse_pull),
                "PullStream": handlers.server_stream(self.pulls.pull_stream, pb.PullRequest, _parse_pull),
                "MessageAt": self._unary(self._message_at, pb.MessageAtRequest, pb.MessageAtResponse),
                "Query": self._unary(self._query, pb.QueryRequest, pb.QueryResponse),
                "OffsetByTime": self._unary(
                    self._offset_by_time, pb.OffsetByTimeRequest, pb.OffsetByTimeResponse
                ),
                "GetBroker": self._unary(self._get_broker, pb.GetBrokerRequest, pb.GetBrokerResponse),
                "PutTopic": self._unary(self._put_topic, pb.PutTopicRequest, pb.PutTopicResponse),
                "DeleteTopic": self._unary(self._delete_topic, pb.DeleteTopicRequest, pb.DeleteTopicResponse),
                "ListTopics": self._unary(self._list_topics, pb.ListTopicsRequest, pb.ListTopicsResponse),
                "TopicStats": self._unary(self._topic_stats, pb.TopicStatsRequest, pb.TopicStatsResponse),
                "PutGroup": self._unary(self._put_group, pb.PutGroupRequest, pb.PutGroupResponse),
                "DeleteGroup": self._unary(self._delete_group, pb.DeleteGroupRequest, pb.DeleteGroupResponse),
                "ListGroups": self._unary(self._list_groups, pb.ListGroupsRequest, pb.ListGroupsResponse),
                "CommitOffsets": self._unary(
                    self._commit_offsets, pb.CommitOffsetsRequest, pb.CommitOffsetsResponse
                ),
                "FetchOffsets": self._unary(
                    self._fetch_offsets, pb.FetchOffsetsRequest, pb.FetchOffsetsResponse
                ),
                "ResetOffsets": self._unary(
                    self._reset_offsets, pb.ResetOffsetsRequest, pb.ResetOffsetsResponse
                ),
                "Join": self._unary(self._join, pb.JoinRequest, pb.JoinResponse),
                "Leave": self._unary(self._leave, pb.LeaveRequest, pb.LeaveResponse),
            },
        )

    def _unary(
        self,
        method: Callable[[Any], Awaitable[R]],
        request_type: type[Message],
        response_type: type[R],
    ) -> handlers.Handler:
        """A method that may raise, as one that answers with a number instead."""
        make: Callable[..., R] = response_type

        async def behaviour(request: Message | None, context: Context) -> R:
            try:
                if request is None:
                    raise malformed()
                if self._stopping:
                    raise stopping()
                if request_type in _CHANGES:
                    self._check_operator(context)
                with self._calls.taking():
                    answer = await method(request)
                await self._large.take(answer.ByteSize(), context)
                return answer
            except Exception as error:
                return make(status=status_to_pb(numbered(error, request_type.__name__)))

        most_bytes = _MOST_OFFSET_BYTES if request_type in _WITH_OFFSETS else _MOST_BYTES
        return handlers.unary(behaviour, request_type, handlers.parser(request_type, most_bytes=most_bytes))

    def _check_operator(self, context: Context) -> None:
        """IllegalMessage (CHANGE_NOT_ALLOWED) with a certificate that is no operator's and no member's."""
        if self._operators is None:
            return
        try:
            self._operators.check(context.auth_context())
        except InvalidRequest as error:
            raise error_for(Status.CHANGE_NOT_ALLOWED, error.message) from None

    async def _turn(self, entries: Sized) -> None:
        """A list of thousands takes the event loop milliseconds: one in each turn of it."""
        if len(entries) >= _MANY_ENTRIES:
            await large_turns().turn("")

    # -- reads

    async def _message_at(self, request: pb.MessageAtRequest) -> pb.MessageAtResponse:
        check_least(physical_offset=request.physical_offset)
        return pb.MessageAtResponse(record=await self._api.message_at(request.physical_offset))

    async def _query(self, request: pb.QueryRequest) -> pb.QueryResponse:
        check_least(begin_ms=request.begin_ms, end_ms=request.end_ms)
        limits = self._limits
        records = await self._api.query(
            request.topic,
            request.key,
            begin_ms=request.begin_ms,
            end_ms=request.end_ms,
            max_messages=min(request.max_messages or limits.query_messages, limits.max_query_messages),
        )
        return pb.QueryResponse(records=_as_many_as_fit(records))

    async def _offset_by_time(self, request: pb.OffsetByTimeRequest) -> pb.OffsetByTimeResponse:
        check_least(queue_id=request.queue_id)
        offset = await self._api.offset_by_time(request.topic, request.queue_id, request.timestamp_ms)
        return pb.OffsetByTimeResponse(offset=offset)

    async def _get_broker(self, _: pb.GetBrokerRequest) -> pb.GetBrokerResponse:
        return info_to_pb(self._api.info())

    # -- topics and groups

    async def _put_topic(self, request: pb.PutTopicRequest) -> pb.PutTopicResponse:
        topic = request.topic
        check_least(read_queues=topic.read_queues, write_queues=topic.write_queues, sys_flag=topic.sys_flag)
        if not 0 <= topic.perm <= 7:
            raise out_of_range(f"perm {topic.perm}: 4 for readable, 2 for writable, 6 for both")
        await self._api.put_topic(topic_from_pb(topic))
        return pb.PutTopicResponse()

    async def _delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        await self._api.delete_topic(request.name)
        return pb.DeleteTopicResponse()

    async def _list_topics(self, _: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
        topics = self._api.topics()
        await self._turn(topics)
        return pb.ListTopicsResponse(topics=map(topic_to_pb, topics))

    async def _topic_stats(self, request: pb.TopicStatsRequest) -> pb.TopicStatsResponse:
        queues = await self._api.topic_stats(request.topic)
        await self._turn(queues)
        return pb.TopicStatsResponse(queues=map(stats_to_pb, queues))

    async def _put_group(self, request: pb.PutGroupRequest) -> pb.PutGroupResponse:
        group = request.group
        check_least(retry_queues=group.retry_queues)
        await self._api.put_group(group_from_pb(group))
        return pb.PutGroupResponse()

    async def _delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        await self._api.delete_group(request.name)
        return pb.DeleteGroupResponse()

    async def _list_groups(self, _: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        groups = self._api.groups()
        await self._turn(groups)
        return pb.ListGroupsResponse(groups=map(group_to_pb, groups))

    # -- offsets and members

    async def _commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        if request.generation < _NO_GENERATION:
            raise out_of_range(f"generation {request.generation}: -1 or more")
        await self._api.commit_offsets(request.group, request.generation, self._offsets(request.offsets))
        return pb.CommitOffsetsResponse()

    async def _fetch_offsets(self, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        generation, offsets = await self._api.offsets(request.group)
        await self._turn(offsets)
        return pb.FetchOffsetsResponse(generation=generation, offsets=offsets_to_pb(offsets))

    async def _reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        generation = await self._api.reset_offsets(request.group, self._offsets(request.offsets))
        return pb.ResetOffsetsResponse(generation=generation)

    def _offsets(self, entries: Any) -> list[QueueOffset]:
        check_count("offsets", len(entries), self._limits.max_offsets)
        offsets = offsets_from_pb(entries)
        for _, queue_id, offset in offsets:
            check_least(queue_id=queue_id, offset=offset)
        return offsets

    async def _join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        limits = self._limits
        check_count("topics of a member", len(request.topics), limits.max_topics_of_member)
        if not request.member_id:
            raise out_of_range("a member has an id")
        if not limits.min_lease_ms <= request.lease_ms <= limits.max_lease_ms:
            raise out_of_range(f"lease_ms {request.lease_ms}: {limits.min_lease_ms} to {limits.max_lease_ms}")
        assignment = await self._api.join(
            request.group, request.member_id, list(request.topics), request.lease_ms
        )
        return assignment_to_pb(assignment)

    async def _leave(self, request: pb.LeaveRequest) -> pb.LeaveResponse:
        await self._api.leave(request.group, request.member_id)
        return pb.LeaveResponse()


def _as_many_as_fit(records: Iterable[bytes]) -> list[bytes]:
    """The first records, as many as one answer can hold, and at least one."""
    taken: list[bytes] = []
    size = 0
    for record in records:
        size += len(record)
        if taken and size > MAX_PAYLOAD_BYTES:
            break
        taken.append(record)
    return taken
