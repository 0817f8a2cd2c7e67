"""Topic and group names in requests: their namespaces and validity.

The namespace in the Resource takes precedence over the namespace in the metadata of the call, because some
clients send only one of them. A topic `t` in a namespace `n` is stored as `n%t`, as in RocketMQ; retry and
dead-letter topics keep their prefix in front. Responses use the names that the client sent.
"""

from __future__ import annotations

from broker_adapter.endpoints.rejected import Code, Rejected, status_of
from broker_adapter.errors import BrokerError
from broker_adapter.metadata.commands import check_user_topic
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_group_name

MAX_GROUP_LENGTH = 120
_SEPARATOR = "%"


def topic_of(resource: pb.Resource, namespace: str) -> str:
    """Return the stored name. Raises Rejected (ILLEGAL_TOPIC)."""
    name = in_namespace(resource.name, resource.resource_namespace or namespace)
    try:
        check_user_topic(name)
    except BrokerError as error:
        raise Rejected(Code.ILLEGAL_TOPIC, error.message) from error
    return name


def group_of(resource: pb.Resource, namespace: str) -> str:
    """Return the stored name. Raises Rejected (ILLEGAL_CONSUMER_GROUP)."""
    name = in_namespace(resource.name, resource.resource_namespace or namespace)
    try:
        check_group_name(name)
    except BrokerError as error:
        raise Rejected(Code.ILLEGAL_CONSUMER_GROUP, status_of(error).message) from error
    if len(name) > MAX_GROUP_LENGTH:
        text = f"group {name!r} has {len(name)} characters, more than {MAX_GROUP_LENGTH}"
        raise Rejected(Code.ILLEGAL_CONSUMER_GROUP, text)
    return name


def in_namespace(name: str, namespace: str) -> str:
    if not name or not namespace:
        return name
    prefix, rest = _without_prefix(name)
    if rest.startswith(namespace + _SEPARATOR):  # the client has already sent the full name
        return name
    return f"{prefix}{namespace}{_SEPARATOR}{rest}"


def _without_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
