"""Who gets which queues: as RocketMQ does it, each queue once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.api import TopicConfig
from broker_adapter.metadata.assignment import assign, averagely


def allocate_message_queue_averagely(current: str, queues: list[int], members: list[str]) -> list[int]:
    """AllocateMessageQueueAveragely.allocate, line by line."""
    index = members.index(current)
    mod = len(queues) % len(members)
    if len(queues) <= len(members):
        average_size = 1
    elif mod > 0 and index < mod:
        average_size = len(queues) // len(members) + 1
    else:
        average_size = len(queues) // len(members)
    start_index = index * average_size if mod > 0 and index < mod else index * average_size + mod
    size = min(average_size, len(queues) - start_index)
    return [queues[(start_index + i) % len(queues)] for i in range(size)]


@given(st.integers(1, 40), st.integers(1, 40))
def test_queues_are_allocated_as_rocketmq_does(queues: int, members: int) -> None:
    ids = [f"{n:02}" for n in range(members)]
    found = averagely(ids, queues)
    for member_id in ids:
        assert list(found[member_id]) == allocate_message_queue_averagely(member_id, list(range(queues)), ids)


names = st.sampled_from(["t", "u", "v", "gone"])


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.frozensets(names), max_size=8),
    st.dictionaries(names.filter(lambda name: name != "gone"), st.integers(1, 12)),
)
def test_every_queue_goes_to_exactly_one_subscriber(
    subscriptions: dict[str, frozenset[str]], queues: dict[str, int]
) -> None:
    topics = {name: TopicConfig(name, count, 1) for name, count in queues.items()}
    found = assign(subscriptions, topics)
    assert found.keys() == subscriptions.keys()
    given_out = sorted(queue for mine in found.values() for queue in mine)
    subscribed = frozenset().union(*subscriptions.values())
    assert given_out == sorted((t, q) for t in subscribed & queues.keys() for q in range(queues[t]))
    for member_id, mine in found.items():
        assert list(mine) == sorted(mine) and {topic for topic, _ in mine} <= subscriptions[member_id]
    for topic in subscribed:
        shares = [
            sum(t == topic for t, _ in found[member_id])
            for member_id in subscriptions
            if topic in subscriptions[member_id]
        ]
        assert max(shares) - min(shares) <= 1


def test_the_order_of_joining_does_not_matter() -> None:
    topics = {"t": TopicConfig("t", 5, 5)}
    one = assign({"b": frozenset("t"), "a": frozenset("t")}, topics)
    assert one == assign({"a": frozenset("t"), "b": frozenset("t")}, topics)
    assert one == {"a": (("t", 0), ("t", 1), ("t", 2)), "b": (("t", 3), ("t", 4))}


@pytest.mark.parametrize(("perm", "expected"), [(6, 2), (4, 2), (2, 0), (0, 0)])
def test_only_queues_that_can_be_read_are_given_out(perm: int, expected: int) -> None:
    topics = {"t": TopicConfig("t", read_queues=2, write_queues=4, perm=perm)}
    assert len(assign({"m": frozenset("t")}, topics)["m"]) == expected
