"""The merge of our tables with those that RocketMQ wrote, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping

from broker_adapter.api import PERM_INHERIT, GroupConfig, QueueOffset, TopicConfig
from broker_adapter.metadata.commands import DeleteGroup, PutGroup, ResetOffsets
from broker_adapter.server.table_merge import OffsetKey, Tables, merge, tables_from


def tables(topic: TopicConfig, groups: tuple[str, ...], offsets: Mapping[OffsetKey, int]) -> Tables:
    return Tables({topic.name: topic}, {name: GroupConfig(name) for name in groups}, offsets, {})


def test_an_offset_in_a_queue_that_is_only_read_any_more_is_taken_over() -> None:
    """A topic is shrunk by its write queues first; consumers then read the others to their end."""
    topic = TopicConfig("t", read_queues=4, write_queues=2)
    base = tables(topic, ("g",), {("g", "t", 3): 1})
    theirs = tables(topic, ("g",), {("g", "t", 3): 9})
    told = [ResetOffsets("g", (QueueOffset("t", 3, 9),), False)]
    assert merge([base], theirs, base) == told
    assert merge((), theirs, base) == told, "as a slave copies it"


def test_a_group_that_rocketmq_deleted_stays_deleted_though_it_had_come_further_before() -> None:
    """RocketMQ keeps the offsets of a group that it deletes."""
    topic = TopicConfig("t", 1, 1)
    base = tables(topic, ("g",), {("g", "t", 0): 1})
    theirs = tables(topic, (), {("g", "t", 0): 2})
    ours = tables(topic, (), {})
    for commands in (
        merge([base], theirs, base),
        merge([base], theirs, ours),
    ):  # we have it; we deleted it, too
        assert not [one for one in commands if isinstance(one, PutGroup)]
    assert any(isinstance(one, DeleteGroup) for one in merge([base], theirs, base))


def test_names_that_look_like_those_of_a_broker_are_taken_over() -> None:
    """The reply topic of a broker has the name of its cluster, which is a topic, too."""
    named = [TopicConfig(name, perm=6 | PERM_INHERIT) for name in ("TBW102", "main", "broker-a")]
    own = [*named, *map(TopicConfig, ("main_REPLY_TOPIC", "BenchmarkTest", "rmq_sys_wheel_timer"))]
    users = ("billing_REPLY_TOPIC", "TBW102_REPLY_TOPIC", "_REPLY_TOPIC")
    groups = ("CID_SYS_billing", "CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER")
    found = tables_from(
        [*own, *map(TopicConfig, users)],
        map(GroupConfig, groups),
        {group: [QueueOffset("billing_REPLY_TOPIC", 0, 1)] for group in groups},
        {},
    )
    assert tuple(found.topics) == users
    assert tuple(found.groups) == ("CID_SYS_billing",)
    assert list(found.offsets) == [("CID_SYS_billing", "billing_REPLY_TOPIC", 0)]
