"""Which call needs which permission. All that is not in the table is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from broker_adapter.proxy.access.accounts import Account, Right
from broker_adapter.proxy.messages.methods import METHODS, TELEMETRY
from broker_adapter.proxy.messages.names import group_of, topic_of
from broker_adapter.proxy.messages.rejected import Code, Rejected
from broker_adapter.proxy.v2 import definition_pb2 as pb


class Need(NamedTuple):
    """One of `rights` in a topic, or in a group."""

    is_group: bool
    name: str
    rights: Right


_EITHER = Right.PUB | Right.SUB
#: (request, namespace of the call) -> what it needs. Rejected for names that are none.
Needs = Callable[[Any, str], Iterator[Need]]


def _topic(topic: pb.Resource, namespace: str, rights: Right) -> Need:
    return Need(False, topic_of(topic, namespace), rights)


def _group(group: pb.Resource, namespace: str) -> Need:
    return Need(True, group_of(group, namespace), Right.SUB)


def _any_of_topic(request: Any, namespace: str) -> Iterator[Need]:
    yield _topic(request.topic, namespace, _EITHER)


def _to_send(request: Any, namespace: str) -> Iterator[Need]:
    for message in request.messages:
        yield _topic(message.topic, namespace, Right.PUB)


def _to_end_a_send(request: Any, namespace: str) -> Iterator[Need]:
    yield _topic(request.topic, namespace, Right.PUB)


def _to_consume(request: Any, namespace: str) -> Iterator[Need]:
    yield _group(request.group, namespace)
    yield _topic(request.topic, namespace, Right.SUB)


def _to_consume_queue(request: Any, namespace: str) -> Iterator[Need]:
    yield _group(request.group, namespace)
    yield _topic(request.message_queue.topic, namespace, Right.SUB)


def _to_look_at_queue(request: Any, namespace: str) -> Iterator[Need]:
    yield _topic(request.message_queue.topic, namespace, Right.SUB)


def _group_if_named(request: Any, namespace: str) -> Iterator[Need]:
    if request.group.name:
        yield _group(request.group, namespace)


def _heartbeat(request: Any, namespace: str) -> Iterator[Need]:
    if request.client_type != pb.ClientType.PRODUCER:
        yield from _group_if_named(request, namespace)


def _telemetry(command: Any, namespace: str) -> Iterator[Need]:
    if command.WhichOneof("command") != "settings":
        return
    settings = command.settings
    for topic in settings.publishing.topics:
        yield _topic(topic, namespace, Right.PUB)
    yield from _group_if_named(settings.subscription, namespace)
    for entry in settings.subscription.subscriptions:
        yield _topic(entry.topic, namespace, Right.SUB)


NEEDS: Final[Mapping[str, Needs]] = {
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
    """Rejected (FORBIDDEN) if the account may not; for names that are none, as the call itself would be."""
    if account.admin:
        return
    if problem := missing(account, NEEDS[method](request, namespace)):
        raise Rejected(Code.FORBIDDEN, problem)


def missing(account: Account, needs: Iterable[Need]) -> str:
    """The first of these that the account has not, as a sentence; "" if it has all."""
    for need in needs:
        right = account.group_right(need.name) if need.is_group else account.topic_right(need.name)
        if not right & need.rights:
            wanted = " or ".join(one.name or "" for one in need.rights)
            what = "group" if need.is_group else "topic"
            return f"account {account.access_key} may not {wanted} in {what} {need.name}"
    return ""
