"""The permissions that each call of RocketMQ 5 (gRPC) requires. Calls that are not in the table are rejected.

The permissions of remoting requests are in `broker_adapter.endpoints.v4.requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from broker_adapter.endpoints.access.accounts import Account, Right
from broker_adapter.endpoints.names import group_of, topic_of
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.messages.methods import METHODS, TELEMETRY
from broker_adapter.v2 import definition_pb2 as pb


class RequiredRight(NamedTuple):
    """A required right: any of `rights` for a topic or group."""

    is_group: bool
    name: str
    rights: Right


_EITHER = Right.PUB | Right.SUB
#: Maps (request, namespace of the call) to the required rights. Raises Rejected for invalid names.
RequiredRights = Callable[[Any, str], Iterator[RequiredRight]]


def _topic(topic: pb.Resource, namespace: str, rights: Right) -> RequiredRight:
    return RequiredRight(False, topic_of(topic, namespace), rights)


def _group(group: pb.Resource, namespace: str) -> RequiredRight:
    return RequiredRight(True, group_of(group, namespace), Right.SUB)


def _any_of_topic(request: Any, namespace: str) -> Iterator[RequiredRight]:
    yield _topic(request.topic, namespace, _EITHER)


def _to_send(request: Any, namespace: str) -> Iterator[RequiredRight]:
    for message in request.messages:
        yield _topic(message.topic, namespace, Right.PUB)


def _to_end_a_send(request: Any, namespace: str) -> Iterator[RequiredRight]:
    yield _topic(request.topic, namespace, Right.PUB)


def _to_consume(request: Any, namespace: str) -> Iterator[RequiredRight]:
    yield _group(request.group, namespace)
    yield _topic(request.topic, namespace, Right.SUB)


def _to_consume_queue(request: Any, namespace: str) -> Iterator[RequiredRight]:
    yield _group(request.group, namespace)
    yield _topic(request.message_queue.topic, namespace, Right.SUB)


def _to_look_at_queue(request: Any, namespace: str) -> Iterator[RequiredRight]:
    yield _topic(request.message_queue.topic, namespace, Right.SUB)


def _group_if_named(request: Any, namespace: str) -> Iterator[RequiredRight]:
    if request.group.name:
        yield _group(request.group, namespace)


def _heartbeat(request: Any, namespace: str) -> Iterator[RequiredRight]:
    if request.client_type != pb.ClientType.PRODUCER:
        yield from _group_if_named(request, namespace)


def _telemetry(command: Any, namespace: str) -> Iterator[RequiredRight]:
    if command.WhichOneof("command") != "settings":
        return
    settings = command.settings
    for topic in settings.publishing.topics:
        yield _topic(topic, namespace, Right.PUB)
    yield from _group_if_named(settings.subscription, namespace)
    for entry in settings.subscription.subscriptions:
        yield _topic(entry.topic, namespace, Right.SUB)


NEEDS: Final[Mapping[str, RequiredRights]] = {
    TELEMETRY: _telemetry,
    "QueryRoute": _any_of_topic,
    "Heartbeat": _heartbeat,
    "NotifyClientTermination": _group_if_named,
    "SendMessage": _to_send,
    "EndTransaction": _to_end_a_send,
    "RecallMessage": _to_end_a_send,
    "QueryAssignment": _to_consume,
    "ReceiveMessage": _to_consume_queue,
    "AckMessage": _to_consume,
    "ChangeInvisibleDuration": _to_consume,
    "ForwardMessageToDeadLetterQueue": _to_consume,
    "PullMessage": _to_consume_queue,
    "UpdateOffset": _to_consume_queue,
    "GetOffset": _to_consume_queue,
    "QueryOffset": _to_look_at_queue,
    "SyncLiteSubscription": _to_consume,
}
assert NEEDS.keys() == {TELEMETRY, *METHODS}


def check(account: Account, method: str, request: Any, namespace: str) -> None:
    """Check a call's permissions.

    Raises Rejected (FORBIDDEN), or the error that the call itself reports for an invalid name.
    """
    if account.admin:
        return
    if problem := missing(account, NEEDS[method](request, namespace)):
        raise Rejected(Code.FORBIDDEN, problem)


def missing(account: Account, needs: Iterable[RequiredRight]) -> str:
    """Return a description of the first right that the account lacks, or "" if it has all rights."""
    for need in needs:
        right = account.group_right(need.name) if need.is_group else account.topic_right(need.name)
        if not right & need.rights:
            wanted = " or ".join(one.name or "" for one in need.rights)
            what = "group" if need.is_group else "topic"
            return f"account {account.access_key} may not {wanted} in {what} {need.name}"
    return ""
