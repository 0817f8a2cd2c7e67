"""Protobuf messages to the values of `broker_adapter.api` and back. Nothing is judged here but enums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TypeVar

from broker_adapter.api import (
    Assignment,
    BrokerInfo,
    BrokerRole,
    GroupConfig,
    OutgoingMessage,
    PullResult,
    PullStatus,
    QueueOffset,
    QueueStats,
    SendResult,
    TopicConfig,
    outgoing_messages,
)
from broker_adapter.errors import BrokerError, NotMaster, PutIndeterminate, Status, error_for
from broker_adapter.format.host import Host
from broker_adapter.format.message_id import OffsetIds
from broker_adapter.format.properties import PropertiesText, text_of
from broker_adapter.v1 import broker_pb2 as pb

T = TypeVar("T")

_PULL_CODE = {
    PullStatus.FOUND: pb.PULL_CODE_FOUND,
    PullStatus.NO_NEW_MESSAGE: pb.PULL_CODE_NO_NEW_MESSAGE,
    PullStatus.NO_MATCHED_MESSAGE: pb.PULL_CODE_NO_MATCHED_MESSAGE,
    PullStatus.OFFSET_ILLEGAL: pb.PULL_CODE_OFFSET_ILLEGAL,
}
_PULL_STATUS = {code: status for status, code in _PULL_CODE.items()}
_ROLE_CODE = {
    BrokerRole.SLAVE: pb.BROKER_ROLE_CODE_SLAVE,
    BrokerRole.SYNC_MASTER: pb.BROKER_ROLE_CODE_SYNC_MASTER,
    BrokerRole.ASYNC_MASTER: pb.BROKER_ROLE_CODE_ASYNC_MASTER,
}
_ROLE = {code: role for role, code in _ROLE_CODE.items()}
_KNOWN_STATUS = {int(status): status for status in Status}


def status_to_pb(error: BrokerError) -> pb.BrokerStatus:
    master = error.master_address if isinstance(error, NotMaster) else None
    return pb.BrokerStatus(
        code=int(error.status),
        response_code=int(error.response_code),
        message=error.message,
        master_address=master or "",
    )


def error_from_pb(status: pb.BrokerStatus) -> BrokerError:
    """The error of a status. A number that this version does not know leaves the outcome unknown."""
    known = _KNOWN_STATUS.get(status.code)
    if known is None:
        return PutIndeterminate(Status.OUTCOME_UNKNOWN, f"unknown status {status.code}: {status.message}")
    return error_for(known, status.message, master_address=status.master_address or None)


def messages_to_pb(request: pb.SendRequest, messages: Sequence[OutgoingMessage]) -> None:
    """Put messages into a request, in columns: a message of protobuf for each of ours costs ten times that.
    IllegalMessage for properties that no record holds."""
    bodies, properties, flags, sys_flags, born_timestamps = zip(*messages, strict=True)
    columns = request.columns
    columns.bodies.extend(bodies)
    first = properties[0]
    if len(set(map(id, properties))) == 1:
        columns.properties.append(text_of(first))
    else:
        columns.properties.extend([text_of(one) for one in properties])
    columns.flags.extend(_column(flags))
    columns.sys_flags.extend(_column(sys_flags))
    columns.born_timestamps.extend(_column(born_timestamps))


def _column(values: Sequence[int]) -> Sequence[int]:
    """As short as it can be."""
    first = values[0]
    if values.count(first) < len(values):
        return values
    return (first,) if first else ()


def messages_from_pb(request: pb.SendRequest) -> list[OutgoingMessage]:
    """ValueError if a column is neither as long as the batch nor of one entry or none."""
    if not request.HasField("columns"):
        return [
            OutgoingMessage(m.body, dict(m.properties), m.flag, m.sys_flag, m.born_timestamp)
            for m in request.messages
        ]
    columns = request.columns
    bodies = columns.bodies
    rows = zip(
        bodies,
        _spread("properties", [PropertiesText(text) for text in columns.properties], len(bodies), {}),
        _spread("flags", columns.flags, len(bodies), 0),
        _spread("sys_flags", columns.sys_flags, len(bodies), 0),
        _spread("born_timestamps", columns.born_timestamps, len(bodies), 0),
        strict=False,  # what is the same for all has no end
    )
    return outgoing_messages(rows)


def _spread(what: str, values: Sequence[T], count: int, default: T) -> Iterable[T]:
    """One value for each of `count` messages, at least."""
    if len(values) == count:
        return values
    if len(values) > 1:
        raise ValueError(f"{len(values)} {what} of {count} messages")
    return repeat(values[0] if values else default)


def send_result_to_pb(request_id: int, result: SendResult) -> pb.SendResponse:
    ids = result.offset_ids
    response = pb.SendResponse(
        request_id=request_id,
        queue_id=result.queue_id,
        queue_offset=result.queue_offset,
        physical_offsets=result.physical_offsets,
        term=result.term,
        node_id=result.node_id,
    )
    if result.index >= 0:
        response.index = result.index
    if isinstance(ids, OffsetIds):
        response.store_host = ids.store_host.address + ids.store_host.port.to_bytes(4, "big")
    else:
        response.offset_ids.extend(ids)
    return response


def send_result_from_pb(response: pb.SendResponse) -> SendResult:
    """IllegalMessage (MESSAGE_ID_INVALID) for a store host that is none."""
    physical_offsets = list(response.physical_offsets)
    ids: Sequence[str] = list(response.offset_ids)
    if host := response.store_host:
        ids = OffsetIds(Host(host[:-4], int.from_bytes(host[-4:], "big")), physical_offsets)
    return SendResult(
        response.queue_id,
        response.queue_offset,
        physical_offsets,
        ids,
        response.term,
        response.node_id,
        response.index if response.HasField("index") else -1,
    )


def pull_result_to_pb(result: PullResult) -> pb.PullResponse:
    return pb.PullResponse(
        pull_code=_PULL_CODE[result.status],
        next_offset=result.next_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        records=result.records,
    )


def pull_result_from_pb(response: pb.PullResponse) -> PullResult:
    """PutIndeterminate for a pull code of a newer broker: nothing is known of what it has found."""
    status = _PULL_STATUS.get(response.pull_code)
    if status is None:
        raise PutIndeterminate(Status.OUTCOME_UNKNOWN, f"pull code {response.pull_code} is unknown")
    return PullResult(
        status, response.next_offset, response.min_offset, response.max_offset, list(response.records)
    )


def info_to_pb(info: BrokerInfo) -> pb.GetBrokerResponse:
    return pb.GetBrokerResponse(
        cluster=info.cluster,
        broker_name=info.broker_name,
        broker_id=info.broker_id,
        role=_ROLE_CODE[info.role],
        term=info.term,
        role_epoch=info.role_epoch,
        node_id=info.node_id,
        address=info.address,
        master_address=info.master_address or "",
    )


def info_from_pb(response: pb.GetBrokerResponse) -> BrokerInfo:
    """A role of a newer broker counts as SLAVE: nothing is written to it."""
    return BrokerInfo(
        response.cluster,
        response.broker_name,
        response.broker_id,
        _ROLE.get(response.role, BrokerRole.SLAVE),
        response.term,
        response.role_epoch,
        response.node_id,
        response.address,
        response.master_address or None,
    )


def topic_to_pb(config: TopicConfig) -> pb.TopicSettings:
    return pb.TopicSettings(**config.told())


def topic_from_pb(topic: pb.TopicSettings) -> TopicConfig:
    return TopicConfig(
        topic.name,
        topic.read_queues,
        topic.write_queues,
        topic.perm,
        topic.sys_flag,
        topic.order,
        topic.message_type,
    )


def group_to_pb(config: GroupConfig) -> pb.GroupSettings:
    return pb.GroupSettings(**config.told())


def group_from_pb(group: pb.GroupSettings) -> GroupConfig:
    return GroupConfig(
        group.name,
        group.consume_enable,
        group.consume_from_min_enable,
        group.consume_broadcast_enable,
        group.retry_queues,
        group.retry_max_times,
        group.consume_orderly,
    )


def stats_to_pb(stats: QueueStats) -> pb.QueueStatsEntry:
    return pb.QueueStatsEntry(
        queue_id=stats.queue_id,
        min_offset=stats.min_offset,
        max_offset=stats.max_offset,
        last_update_ms=stats.last_update_ms,
    )


def stats_from_pb(topic: str, entry: pb.QueueStatsEntry) -> QueueStats:
    return QueueStats(topic, entry.queue_id, entry.min_offset, entry.max_offset, entry.last_update_ms)


def offsets_to_pb(offsets: Iterable[QueueOffset]) -> list[pb.QueueOffsetEntry]:
    return [pb.QueueOffsetEntry(topic=o.topic, queue_id=o.queue_id, offset=o.offset) for o in offsets]


def offsets_from_pb(entries: Sequence[pb.QueueOffsetEntry]) -> list[QueueOffset]:
    return [QueueOffset(e.topic, e.queue_id, e.offset) for e in entries]


def assignment_to_pb(assignment: Assignment) -> pb.JoinResponse:
    return pb.JoinResponse(
        generation=assignment.generation,
        queues=[pb.AssignedQueue(topic=topic, queue_id=queue_id) for topic, queue_id in assignment.queues],
        members=assignment.members,
        heartbeat_ms=assignment.heartbeat_ms,
    )


def assignment_from_pb(response: pb.JoinResponse) -> Assignment:
    return Assignment(
        response.generation,
        [(q.topic, q.queue_id) for q in response.queues],
        response.members,
        response.heartbeat_ms,
    )
