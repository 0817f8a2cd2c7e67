"""Names of topics and groups in requests: their namespaces, and what is allowed.

The namespace is that of the Resource, or else that of the call's metadata: some clients leave it out of one
or the other. A topic `t` of a namespace `n` is stored as `n%t`, as RocketMQ does; retry and dead letter
topics keep their prefix in front. Names go back to clients as these have sent them.
"""

from __future__ import annotations

from broker_adapter.errors import BrokerError
from broker_adapter.format.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from broker_adapter.metadata.commands import check_group_name, check_user_topic
from broker_adapter.proxy.messages.rejected import Code, Rejected, status_of
from broker_adapter.proxy.v2 import definition_pb2 as pb

MAX_GROUP_LENGTH = 120
_SEPARATOR = "%"


def topic_of(resource: pb.Resource, namespace: str) -> str:
    """The stored name. Rejected (ILLEGAL_TOPIC)."""
    name = in_namespace(resource.name, resource.resource_namespace or namespace)
    try:
        check_user_topic(name)
    except BrokerError as error:
        raise Rejected(Code.ILLEGAL_TOPIC, error.message) from error
    return name


def group_of(resource: pb.Resource, namespace: str) -> str:
    """The stored name. Rejected (ILLEGAL_CONSUMER_GROUP)."""
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
    if rest.startswith(namespace + _SEPARATOR):  # a name that the client was given in full
        return name
    return f"{prefix}{namespace}{_SEPARATOR}{rest}"


def _without_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
