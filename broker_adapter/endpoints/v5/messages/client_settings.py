"""Builds the response to a client's settings, which repeats the settings with the values that the server
determines.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_adapter.api import GroupConfig
from broker_adapter.endpoints.context import PYTHON
from broker_adapter.endpoints.directory import is_orderly
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.messages.message_out import duration
from broker_adapter.v2 import definition_pb2 as pb

_PRODUCER_ATTEMPTS = 3
_PRODUCER_FIRST_PAUSE_MS, _PRODUCER_LAST_PAUSE_MS = 10, 1_000
_CONSUMER_FIRST_PAUSE_MS, _CONSUMER_LAST_PAUSE_MS = 1_000, 3_600_000
_FACTOR = 2.0
_RECEIVE_BATCH = 32
#: Limits of lite topics, which are not supported. Clients check the limits before they send a request.
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


class SettingsLimits(NamedTuple):
    max_body_bytes: int
    max_polling_ms: int


def is_consumer(client_type: pb.ClientType) -> bool:
    return client_type in _CONSUMERS


def check_client_type(client_type: pb.ClientType) -> None:
    """Check a client type. Raises Rejected (UNRECOGNIZED_CLIENT_TYPE)."""
    if client_type != pb.ClientType.PRODUCER and client_type not in _CONSUMERS:
        raise Rejected(Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {client_type} is unknown")


def answered(
    settings: pb.Settings, limits: SettingsLimits, group: GroupConfig | None, language: str
) -> pb.Settings:
    """Return the effective settings. `group`: the group of a consumer, if the server knows it.

    Raises Rejected (UNRECOGNIZED_CLIENT_TYPE) if the settings are neither a producer's nor a consumer's.
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
        raise Rejected(
            Code.UNRECOGNIZED_CLIENT_TYPE, "the settings are neither for a producer nor for a consumer"
        )
    config = group or GroupConfig("")
    subscription = made.subscription
    subscription.fifo = is_orderly(config)
    subscription.receive_batch_size = _RECEIVE_BATCH
    subscription.long_polling_timeout.CopyFrom(duration(limits.max_polling_ms))
    subscription.lite_subscription_quota = _LITE_SUBSCRIPTIONS
    subscription.max_lite_topic_size = _LITE_TOPIC_LENGTH
    attempts = config.retry_max_times + 1 if 0 <= config.retry_max_times < _MAX_INT else _MAX_INT
    if language == PYTHON:
        # Python clients support only this form, and some other clients only the exponential one
        _listed(made, attempts)
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
    """Set the same pauses, expressed as a list."""
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = attempts
    pause = _CONSUMER_FIRST_PAUSE_MS
    while pause < _CONSUMER_LAST_PAUSE_MS:
        policy.customized_backoff.next.append(duration(pause))
        pause = int(pause * _FACTOR)
    policy.customized_backoff.next.append(duration(_CONSUMER_LAST_PAUSE_MS))
