"""A change of a topic or group is in RocketMQ's tables before it is answered.

So a broker of RocketMQ that starts on the directory of a killed one knows the topic of each acknowledged
message, and no deleted topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.log.classic.tables import groups_of, offsets_of, table_at, topics_of
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.classic_node.test_classic_node import messages
from tests.broker_adapter.classic_node.test_role_changes import ASYNC
from tests.broker_adapter.sending import send_to


def has_topic(directory: Path, name: str) -> bool:
    return name in topics_of(table_at(directory / "topics.json"))


def has_group(directory: Path, name: str) -> bool:
    return name in groups_of(table_at(directory / "subscriptionGroup.json"))


def offset_groups(directory: Path) -> Iterable[str]:
    return offsets_of(table_at(directory / "consumerOffset.json"))


async def test_changes_of_topics_and_groups_are_in_the_tables_when_they_are_answered(tmp_path: Path) -> None:
    config = tmp_path / "n1/config"
    async with classic_pair(tmp_path) as pair:
        await pair.start("n1", **ASYNC)
        program = await pair.writable("n1")
        broker = program.broker
        await broker.put_topic(TopicConfig("created", 1, 1))
        assert has_topic(config, "created")
        await send_to(program, "by-use", messages("a"), queue_id=0)
        assert has_topic(config, "by-use")
        await broker.put_group(GroupConfig("readers"))
        assert has_group(config, "readers")
        await send_to(program, "created", messages("b"), queue_id=0)
        await broker.commit_offsets("by-commit", [QueueOffset("created", 0, 1)])
        assert has_group(config, "by-commit")
        await broker.put_group(GroupConfig("readers", retry_max_times=7))
        assert groups_of(table_at(config / "subscriptionGroup.json"))["readers"].retry_max_times == 7
        await broker.delete_group("by-commit")
        assert not has_group(config, "by-commit")
        assert "by-commit" not in offset_groups(config), "a group of that name would start there"
        await broker.delete_topic("created")
        assert not has_topic(config, "created")


async def test_a_change_is_answered_though_the_tables_cannot_be_written(tmp_path: Path) -> None:
    """The log has it, and RocketMQ answers then as well."""
    async with classic_pair(tmp_path) as pair:
        await pair.start("n1", **ASYNC)
        broker = (await pair.writable("n1")).broker
        path = tmp_path / "n1/config/topics.json"
        path.unlink(missing_ok=True)
        path.mkdir()
        await broker.put_topic(TopicConfig("created", 1, 1))
        assert [one.name for one in broker.topics()] == ["created"]
        path.rmdir()
        await broker.put_topic(TopicConfig("later", 1, 1))
        assert has_topic(path.parent, "created")
