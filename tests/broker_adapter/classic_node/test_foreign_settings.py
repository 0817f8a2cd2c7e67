"""Settings in RocketMQ's tables that this broker does not know: it neither refuses nor loses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.endpoints.v4.admin_bodies import changed_topic
from broker_adapter.store.checkpoint import FILE_NAME as CHECKPOINT

from .classic_pair import classic_pair
from .test_incarnations import left, master, rewrite

_LITE = {"message.type": "LITE", "lite.topic.expiration": "60"}
_TOPIC = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1, "attributes": _LITE}


def table(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "config" / name).read_bytes())
    return found


@pytest.mark.parametrize("is_rebuilt", [False, True])
async def test_a_topic_of_a_type_that_is_not_known_here_is_taken_with_its_attributes(
    tmp_path: Path, is_rebuilt: bool
) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        rewrite(root, "topics.json", lambda found: found["topicConfigTable"].update(new=_TOPIC))
        for _ in range(2):
            if is_rebuilt:
                (root / CHECKPOINT).unlink()
            program = await master(pair)
            assert sorted(program.metadata.topics) == ["new", "t"]
            assert dict(program.metadata.topics["new"].attributes) == _LITE
            await program.broker.put_topic(TopicConfig("t", 2, 2))
            assert table(root, "topics.json")["topicConfigTable"]["new"]["attributes"] == _LITE
            await pair.stop("n1")


def test_a_change_keeps_a_type_that_is_not_known_here_unless_it_names_one() -> None:
    lite = TopicConfig("t", 1, 1, attributes=tuple(sorted(_LITE.items())))
    assert changed_topic({"topic": "t", "readQueueNums": "3"}, lite) == lite._replace(read_queues=3)
    named = changed_topic({"topic": "t", "attributes": "+message.type=FIFO"}, lite)
    assert named.message_type == "FIFO" and dict(named.attributes) == {"lite.topic.expiration": "60"}


async def test_settings_that_are_not_known_here_stay_in_the_tables(tmp_path: Path) -> None:
    """As long as their topic or group does: one of the same name begins without them."""
    unknown = {
        "brokerId": 1,
        "consumeTimeoutMinute": 45,
        "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}},
        "groupSysFlag": 1,
        "notifyConsumerIdsChangedEnable": False,
        "subscriptionDataSet": [{"topic": "t", "subString": "*"}],
        "whichBrokerWhenConsumeSlowly": 2,
    }
    forbidden = {"g": {"t": 2}}

    def change(found: dict[str, Any]) -> None:
        found["subscriptionGroupTable"]["g"].update(unknown)
        found["forbiddenTable"] = forbidden

    async with classic_pair(tmp_path) as pair:
        await left(pair)
        root = tmp_path / "n1"
        rewrite(root, "subscriptionGroup.json", change)
        rewrite(root, "topics.json", lambda found: found["topicConfigTable"]["t"].update(topicFilterType="M"))
        for life in range(2):
            broker = (await master(pair)).broker
            await broker.put_group(GroupConfig("g", retry_max_times=life))
            await broker.put_topic(TopicConfig("t", 2 + life, 2 + life))
            groups = table(root, "subscriptionGroup.json")
            entry = groups["subscriptionGroupTable"]["g"]
            assert groups["forbiddenTable"] == forbidden and entry["retryMaxTimes"] == life
            assert {name: entry[name] for name in unknown} == unknown
            assert table(root, "topics.json")["topicConfigTable"]["t"]["topicFilterType"] == "M"
            if not life:
                await pair.stop("n1")
        await broker.delete_group("g")
        await broker.put_group(GroupConfig("g"))
        entry = table(root, "subscriptionGroup.json")["subscriptionGroupTable"]["g"]
        assert entry["whichBrokerWhenConsumeSlowly"] == 1 and "groupRetryPolicy" not in entry
