"""Between the messages of namesrv.proto and our own types."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from broker_adapter.api import BrokerRole, TopicConfig
from broker_adapter.errors import BrokerError, NameServerUnavailable, Status, error_for
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.namesrv.values import (
    NO_TERM,
    BrokerEntry,
    ClusterInfo,
    Registration,
    RegistrationAnswer,
    Route,
    invalid,
)
from broker_adapter.v1 import namesrv_pb2 as pb
from broker_adapter.v1 import shape_pb2 as shapes


def status_of(error: BrokerError) -> pb.NameServerStatus:
    return pb.NameServerStatus(code=int(error.status), message=error.message)


def raise_bad(message: Any) -> None:
    """Raise the error that an answer carries, if any. Numbers of newer servers: NameServerUnavailable."""
    if not message.HasField("status") or not message.status.code:
        return
    try:
        status = Status(message.status.code)
    except ValueError:
        raise NameServerUnavailable(
            Status.NAMESRV_UNREACHABLE, f"unknown code {message.status.code}: {message.status.message}"
        ) from None
    raise error_for(status, message.status.message)


def topic_to_pb(config: TopicConfig) -> pb.TopicQueues:
    return pb.TopicQueues(
        topic=config.name,
        read_queues=config.read_queues,
        write_queues=config.write_queues,
        perm=config.perm,
        sys_flag=config.sys_flag,
        order=config.order,
        message_type=config.message_type,
    )


def topic_from_pb(message: pb.TopicQueues) -> TopicConfig:
    return TopicConfig(
        message.topic,
        message.read_queues,
        message.write_queues,
        message.perm,
        message.sys_flag,
        message.order,
        message.message_type,
    )


def registration_to_pb(given: Registration) -> pb.RegisterBrokerRequest:
    return pb.RegisterBrokerRequest(
        cluster=given.cluster,
        broker_name=given.broker_name,
        node_id=given.node_id,
        broker_id=given.broker_id,
        role=str(given.role),
        address=given.address,
        http_address=given.http_address,
        term=given.term,
        role_epoch=given.role_epoch,
        data_version=given.data_version,
        topics=map(topic_to_pb, given.topics),
        expire_ms=given.expire_ms,
        remoting_address=given.remoting_address,
    )


def registration_from_pb(message: pb.RegisterBrokerRequest) -> Registration:
    """NameServerRefused (NAMESRV_INVALID) for a role that does not exist; no other field is checked."""
    try:
        role = BrokerRole(message.role)
    except ValueError:
        raise invalid(f"role {message.role[:64]!r} is none of {', '.join(BrokerRole)}") from None
    return Registration(
        cluster=message.cluster,
        broker_name=message.broker_name,
        node_id=message.node_id,
        broker_id=message.broker_id,
        role=role,
        address=message.address,
        term=message.term,
        role_epoch=message.role_epoch,
        http_address=message.http_address,
        data_version=message.data_version,
        topics=tuple(map(topic_from_pb, message.topics)),
        expire_ms=message.expire_ms,
        remoting_address=message.remoting_address,
    )


def answer_to_pb(answer: RegistrationAnswer) -> pb.RegisterBrokerResponse:
    return pb.RegisterBrokerResponse(master_address=answer.master_address, master_term=answer.master_term)


def answer_from_pb(message: pb.RegisterBrokerResponse) -> RegistrationAnswer:
    """Raises the error that it carries."""
    raise_bad(message)
    return RegistrationAnswer(message.master_address, message.master_term)


def route_to_pb(route: Route) -> pb.TopicRoute:
    return pb.TopicRoute(
        topic=route.topic,
        brokers=(
            pb.RoutedBroker(
                broker_name=name,
                addresses=(
                    pb.BrokerAddress(broker_id=broker_id, address=address)
                    for broker_id, address in sorted(route.brokers[name].items())
                ),
                queues=topic_to_pb(queues),
                master_term=route.master_terms.get(name, NO_TERM),
            )
            for name, queues in route.queues.items()
        ),
    )


def route_from_pb(message: pb.TopicRoute) -> Route:
    queues: dict[str, TopicConfig] = {}
    brokers: dict[str, dict[int, str]] = {}
    terms: dict[str, int] = {}
    for broker in message.brokers:
        addresses = {found.broker_id: found.address for found in broker.addresses}
        queues[broker.broker_name] = topic_from_pb(broker.queues)
        brokers[broker.broker_name] = addresses
        if MASTER_ID in addresses:
            terms[broker.broker_name] = broker.master_term
    return Route(message.topic, queues, brokers, terms)


def info_to_pb(info: ClusterInfo) -> pb.GetClusterInfoResponse:
    return pb.GetClusterInfoResponse(
        version=info.version,
        pid=info.pid,
        uptime_ms=info.uptime_ms,
        brokers=(pb.BrokerInfo(**entry._asdict()) for entry in info.brokers),
        topics=info.topics,
        sessions=info.sessions,
        watchers=info.watchers,
        config_entries=info.config_entries,
        write_wiped=info.write_wiped,
        limits_hit=info.limits_hit,
        remoting_address=info.remoting_address,
    )


def info_from_pb(message: pb.GetClusterInfoResponse) -> ClusterInfo:
    return ClusterInfo(
        message.version,
        message.pid,
        message.uptime_ms,
        [_entry_from_pb(entry) for entry in message.brokers],
        message.topics,
        message.sessions,
        message.watchers,
        message.config_entries,
        list(message.write_wiped),
        dict(message.limits_hit),
        message.remoting_address,
    )


def _entry_from_pb(message: pb.BrokerInfo) -> BrokerEntry:
    return BrokerEntry._make(getattr(message, name) for name in BrokerEntry._fields)


def registration_request_of(data: bytes, max_topics: int) -> pb.RegisterBrokerRequest | None:
    """None for what is no request. Topics are counted before objects are made of them: 4 MiB hold two million
    empty ones, and they would wait for their turn as 200 MiB. A request with too many comes with just as many
    of them as are one too many, so that it is refused with its number."""
    try:
        shape = shapes.RegistrationShape.FromString(data)
        if len(shape.topics) <= max_topics:
            return pb.RegisterBrokerRequest.FromString(data)
        shape.ClearField("topics")
        request = pb.RegisterBrokerRequest.FromString(shape.SerializeToString())
    except DecodeError:
        return None
    request.topics.extend([pb.TopicQueues()] * (max_topics + 1))
    return request
