"""What a directory says of the role, and RocketMQ's tables in it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state.commands import SystemOffset
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.log.classic.node.roles import RoleRecord, read_role, write_role
from broker_adapter.log.classic.tables import delays_of, groups_of, offsets_of, table_at, topics_of
from broker_adapter.metadata.commands import NO_GENERATION, CommitOffsets, PutGroup, PutTopic
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server.classic_tables import TableAdoption, TableWriter
from broker_adapter.server.log_host import BrokerParts
from dledger.infra.files.disk import OsDisk


def adopt(folder: Path, metadata: MetadataState, delivery: DeliveryState, *, is_new: bool) -> None:
    adoption = TableAdoption(folder, metadata, delivery)
    adoption.begin(is_new)
    adoption.finish(lambda *queue: 100)


def test_a_role_is_what_was_decided_last(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    assert read_role(OsDisk(), folder, is_master=True) == RoleRecord(True, 0, 0)
    made = RoleRecord(False, 3, 500).changed(True, 400)
    assert made == RoleRecord(True, 4, 501), "no clock that was set back makes an epoch older"
    write_role(OsDisk(), folder, made)
    assert read_role(OsDisk(), folder, is_master=False) == made
    assert made.changed(False, 900) == RoleRecord(False, 4, 900)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"isMaster": 1, "term": 1, "roleEpoch": 1}', "{" * 9999])
def test_a_role_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "role.json").write_text(text)
    with pytest.raises(StoredDataDamaged) as caught:
        read_role(OsDisk(), tmp_path, is_master=True)
    assert caught.value.status is Status.STORE_TABLE_DAMAGED


def filled() -> MetadataState:
    metadata = MetadataState()
    metadata.adopt(PutTopic(TopicConfig("t", 3, 2, message_type="FIFO")))
    metadata.adopt(PutGroup(GroupConfig("g", retry_max_times=7)))
    metadata.adopt(CommitOffsets("g", NO_GENERATION, (QueueOffset("t", 1, 42),)))
    return metadata


async def written(folder: Path, metadata: MetadataState) -> None:
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())

    async def applied() -> int:
        return 0

    writer = TableWriter(folder, cast(BrokerParts, parts), applied)
    writer.start()
    await writer.stop()


async def test_tables_are_rocketmqs_and_give_the_same_again(tmp_path: Path) -> None:
    metadata = filled()
    await written(tmp_path, metadata)
    assert topics_of(table_at(tmp_path / "topics.json")) == dict(metadata.topics)
    assert groups_of(table_at(tmp_path / "subscriptionGroup.json")) == {
        "g": GroupConfig("g", retry_max_times=7)
    }
    assert offsets_of(table_at(tmp_path / "consumerOffset.json")) == {"g": [QueueOffset("t", 1, 42)]}
    again = MetadataState()
    adopt(tmp_path, again, DeliveryState(), is_new=True)
    assert again.topics == metadata.topics
    group = again.group("g")
    assert group is not None and dict(group.offsets) == {("t", 1): 42}


async def test_tables_are_taken_over_if_somebody_else_has_written_them(tmp_path: Path) -> None:
    metadata = filled()
    await written(tmp_path, metadata)
    known = MetadataState()
    adopt(tmp_path, known, DeliveryState(), is_new=False)
    assert not known.topics, "they are what we wrote: the log says as much"
    path = tmp_path / "topics.json"
    table = json.loads(path.read_bytes())
    own = {"perm": 6, "readQueueNums": 18, "writeQueueNums": 18}
    table["topicConfigTable"] |= {"new": own, "SCHEDULE_TOPIC_XXXX": own}
    await asyncio.to_thread(path.write_text, json.dumps(table))
    adopt(tmp_path, known, DeliveryState(), is_new=False)
    assert sorted(known.topics) == ["new"], "t was deleted since, and the others are RocketMQ's own"


def test_nothing_is_adopted_where_there_are_no_tables(tmp_path: Path) -> None:
    metadata = MetadataState()
    adopt(tmp_path / "config", metadata, DeliveryState(), is_new=True)
    assert not metadata.topics and not metadata.groups()


async def test_the_tables_that_are_written_last_are_the_newest(tmp_path: Path) -> None:
    """Also if a thread that was writing older ones goes on when its task is cancelled."""
    delivery, may_go_on, has_started = DeliveryState(), Event(), Event()
    parts = SimpleNamespace(metadata=filled(), delivery_state=delivery)

    async def applied() -> int:
        return 0

    class Slow(TableWriter):
        def _contents(self) -> dict[str, bytes]:
            contents = super()._contents()
            if not has_started.is_set():
                has_started.set()
                may_go_on.wait(60)
            return contents

    writer = Slow(tmp_path, cast(BrokerParts, parts), applied)
    writer.start()
    await asyncio.to_thread(has_started.wait, 60)
    delivery.adopt(
        [SystemOffset("SCHEDULE_TOPIC_XXXX", 2, 7), SystemOffset("RMQ_SYS_TRANS_HALF_TOPIC", 0, 3)]
    )
    asyncio.get_running_loop().call_later(0.1, may_go_on.set)
    await writer.stop()
    assert delays_of(table_at(tmp_path / "delayOffset.json")) == {3: 7}
    offsets = offsets_of(table_at(tmp_path / "consumerOffset.json"))
    assert offsets["CID_RMQ_SYS_TRANS"] == [QueueOffset("RMQ_SYS_TRANS_HALF_TOPIC", 0, 3)]
    again = DeliveryState()
    adopt(tmp_path, MetadataState(), again, is_new=True)
    assert again.system_offsets() == delivery.system_offsets()
