"""What the server answers to the settings of a client: its own, with the server's decisions in them."""

from __future__ import annotations

from typing import NamedTuple

from broker_adapter.api import GroupConfig
from broker_adapter.proxy.messages.context import PYTHON
from broker_adapter.proxy.messages.directory import is_orderly
from broker_adapter.proxy.messages.message_out import duration
from broker_adapter.proxy.messages.rejected import Code, Rejected
from broker_adapter.proxy.v2 import definition_pb2 as pb

_PRODUCER_ATTEMPTS = 3
_PRODUCER_FIRST_PAUSE_MS, _PRODUCER_LAST_PAUSE_MS = 10, 1_000
_CONSUMER_FIRST_PAUSE_MS, _CONSUMER_LAST_PAUSE_MS = 1_000, 3_600_000
_FACTOR = 2.0
_RECEIVE_BATCH = 32
#: Lite topics are not served; clients only look at these figures before they ask.
_LITE_SUBSCRIPTIONS, _LITE_TOPIC_LENGTH = 1_200, 64
_MAX_INT = (1 << 31) - 1

_CONSUMERS = frozenset(
    {
        pb.ClientType.PUSH_CONSUMER,
        pb.ClientType.SIMPLE_CONSUMER,
        pb.ClientType.PULL_CONSUMER,
        pb.ClientType.LITE_PUSH_CONSUMER,
        pb.ClientType.LITE_SIMPLE_CONSUMER,
    }
)


class ServerLimits(NamedTuple):
    max_body_bytes: int
    max_polling_ms: int


def is_consumer(client_type: pb.ClientType) -> bool:
    return client_type in _CONSUMERS


def check_client_type(client_type: pb.ClientType) -> None:
    """Rejected (UNRECOGNIZED_CLIENT_TYPE)."""
    if client_type != pb.ClientType.PRODUCER and client_type not in _CONSUMERS:
        raise Rejected(Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {client_type} is not known")


def answered(
    settings: pb.Settings, limits: ServerLimits, group: GroupConfig | None, language: str
) -> pb.Settings:
    """The settings as they hold from now on. `group`: of a consumer, as far as the server knows it.

    Rejected (UNRECOGNIZED_CLIENT_TYPE) for settings of neither a producer nor a consumer.
    """
    made = pb.Settings()
    made.CopyFrom(settings)
    made.metric.Clear()
    made.metric.on = False
    kind = settings.WhichOneof("pub_sub")
    if kind == "publishing" or (kind is None and settings.client_type == pb.ClientType.PRODUCER):
        made.publishing.max_body_size = limits.max_body_bytes
        made.publishing.validate_message_type = True
        _exponential(made, _PRODUCER_ATTEMPTS, _PRODUCER_FIRST_PAUSE_MS, _PRODUCER_LAST_PAUSE_MS)
        return made
    if kind is None and settings.client_type not in _CONSUMERS:
        raise Rejected(Code.UNRECOGNIZED_CLIENT_TYPE, "settings of neither a producer nor a consumer")
    config = group or GroupConfig("")
    subscription = made.subscription
    subscription.fifo = is_orderly(config)
    subscription.receive_batch_size = _RECEIVE_BATCH
    subscription.long_polling_timeout.CopyFrom(duration(limits.max_polling_ms))
    subscription.lite_subscription_quota = _LITE_SUBSCRIPTIONS
    subscription.max_lite_topic_size = _LITE_TOPIC_LENGTH
    attempts = config.retry_max_times + 1 if 0 <= config.retry_max_times < _MAX_INT else _MAX_INT
    if language == PYTHON:
        _listed(made, attempts)  # it knows no other; and some know only the other
    else:
        _exponential(made, attempts, _CONSUMER_FIRST_PAUSE_MS, _CONSUMER_LAST_PAUSE_MS)
    return made


def _exponential(settings: pb.Settings, attempts: int, first_ms: int, last_ms: int) -> None:
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = attempts
    policy.exponential_backoff.initial.CopyFrom(duration(first_ms))
    policy.exponential_backoff.max.CopyFrom(duration(last_ms))
    policy.exponential_backoff.multiplier = _FACTOR


def _listed(settings: pb.Settings, attempts: int) -> None:
    """The same pauses, one by one."""
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = attempts
    pause = _CONSUMER_FIRST_PAUSE_MS
    while pause < _CONSUMER_LAST_PAUSE_MS:
        policy.customized_backoff.next.append(duration(pause))
        pause = int(pause * _FACTOR)
    policy.customized_backoff.next.append(duration(_CONSUMER_LAST_PAUSE_MS))
