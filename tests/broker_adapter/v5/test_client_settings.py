"""What clients are told in answer to their settings."""

from __future__ import annotations

import pytest

from broker_adapter.api import GroupConfig
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.messages.client_settings import SettingsLimits, answered
from broker_adapter.v2 import definition_pb2 as pb
from tests.broker_adapter.v5.world import resource

LIMITS = SettingsLimits(1_000, 20_000)


def producer() -> pb.Settings:
    return pb.Settings(
        client_type=pb.ClientType.PRODUCER,
        publishing=pb.Publishing(topics=[resource("t")], max_body_size=1 << 27),
        user_agent=pb.UA(language=pb.Language.PYTHON, version="5.1.2"),
    )


def consumer() -> pb.Settings:
    subscription = pb.Subscription(
        group=resource("g"), subscriptions=[pb.SubscriptionEntry(topic=resource("t"))]
    )
    return pb.Settings(client_type=pb.ClientType.PUSH_CONSUMER, subscription=subscription)


@pytest.mark.parametrize("language", ["PYTHON", "NODE_JS", "JAVA"])
def test_producers_are_told_their_limits_and_an_exponential_pause(language: str) -> None:
    """Quirk: Node.js ends without the pause, Python sends nothing without a size."""
    made = answered(producer(), LIMITS, None, language)
    assert made.publishing.max_body_size == 1_000 and made.publishing.validate_message_type
    assert made.backoff_policy.max_attempts == 3
    assert made.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert made.publishing.topics == producer().publishing.topics
    assert made.user_agent == producer().user_agent
    assert not made.metric.on


def test_python_consumers_get_a_list_of_pauses() -> None:
    """Quirk: it knows no other, and only whole seconds."""
    policy = answered(consumer(), LIMITS, None, "PYTHON").backoff_policy
    pauses = [pause.ToMilliseconds() for pause in policy.customized_backoff.next]
    assert pauses[0] == 1_000 and pauses[-1] == 3_600_000 and pauses == sorted(pauses)
    assert not any(pause % 1_000 for pause in pauses)


@pytest.mark.parametrize("language", ["NODE_JS", "JAVA", ""])
def test_other_consumers_get_an_exponential_pause(language: str) -> None:
    """Quirk: to Node.js a list is no pause at all."""
    policy = answered(consumer(), LIMITS, None, language).backoff_policy
    assert policy.exponential_backoff.initial.ToMilliseconds() == 1_000
    assert policy.exponential_backoff.multiplier == 2


def test_consumers_are_told_of_their_group() -> None:
    made = answered(consumer(), LIMITS, GroupConfig("g", retry_max_times=3), "JAVA")
    assert made.backoff_policy.max_attempts == 4
    assert made.subscription.group == resource("g") and not made.subscription.fifo
    assert made.subscription.receive_batch_size == 32
    assert made.subscription.long_polling_timeout.ToMilliseconds() == 20_000
    assert made.subscription.lite_subscription_quota > 0 and made.subscription.max_lite_topic_size > 0


def test_consumers_are_told_that_their_group_is_in_order() -> None:
    """Not what they say themselves: settings are echoed by clients, and may be old."""

    class OrderlyGroup(GroupConfig):
        consume_orderly = True

    given = consumer()
    given.subscription.fifo = True
    assert answered(given, LIMITS, OrderlyGroup("g"), "JAVA").subscription.fifo
    assert not answered(given, LIMITS, GroupConfig("g"), "JAVA").subscription.fifo


def test_without_a_limit_of_retries_there_is_the_greatest() -> None:
    made = answered(consumer(), LIMITS, GroupConfig("g", retry_max_times=-1), "JAVA")
    assert made.backoff_policy.max_attempts == (1 << 31) - 1


def test_settings_of_nobody_are_refused() -> None:
    with pytest.raises(Rejected) as caught:
        answered(pb.Settings(), LIMITS, None, "JAVA")
    assert caught.value.code == Code.UNRECOGNIZED_CLIENT_TYPE


def test_the_type_alone_will_do() -> None:
    made = answered(pb.Settings(client_type=pb.ClientType.PRODUCER), LIMITS, None, "JAVA")
    assert made.publishing.max_body_size == 1_000
    made = answered(pb.Settings(client_type=pb.ClientType.SIMPLE_CONSUMER), LIMITS, None, "JAVA")
    assert made.subscription.receive_batch_size == 32
