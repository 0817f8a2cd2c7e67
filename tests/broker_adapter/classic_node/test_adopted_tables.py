"""What another broker has written into the tables stays known, whenever this one ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.metadata.commands import NO_GENERATION, CommitOffsets, DeleteTopic, PutGroup, PutTopic
from broker_adapter.metadata.state import MetadataState
from broker_adapter.pop.state import DeliveryState
from broker_adapter.server import classic_tables
from broker_adapter.server.classic_tables import TableWriter, adopt_tables
from broker_adapter.server.log_host import BrokerParts
from broker_adapter.server.program import BrokerProgram
from dledger.platform import OsDisk
from dledger.store.disk import Buffer
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.classic_node.test_classic_node import messages
from tests.broker_adapter.classic_node.test_role_changes import ASYNC
from tests.node.local import until


async def another_broker_was_here(pair: ClassicPair) -> None:
    """It has made a topic, and a group has come further; the log is as it was."""
    await pair.start("n1", **ASYNC)
    master = await pair.writable("n1")
    await master.broker.put_topic(TopicConfig("t", 1, 1))
    await master.broker.put_group(GroupConfig("g"))
    await master.broker.send("t", messages("a", "b"), queue_id=0)
    await master.files.wait_applied()
    await pair.stop("n1")
    config = pair.folder / "n1/config"
    topics = json.loads((config / "topics.json").read_bytes())
    topics["topicConfigTable"]["new"] = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    (config / "topics.json").write_text(json.dumps(topics))
    offsets = json.loads((config / "consumerOffset.json").read_bytes())
    offsets["offsetTable"]["t@g"] = {"0": 2}
    (config / "consumerOffset.json").write_text(json.dumps(offsets))


async def started(pair: ClassicPair) -> BrokerProgram:
    await pair.start("n1", **ASYNC)
    master = await pair.writable("n1")
    assert "new" in master.metadata.topics
    assert await master.broker.offset("g", "t", 0) == 2
    return master


async def test_what_was_taken_over_outlives_this_broker_though_the_log_has_nothing_of_it(
    tmp_path: Path,
) -> None:
    async with classic_pair(tmp_path) as pair:
        await another_broker_was_here(pair)
        for _ in range(3):
            await started(pair)
            await pair.stop("n1")


async def test_what_was_taken_over_gets_into_a_checkpoint_without_messages(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        await another_broker_was_here(pair)
        master = await started(pair)
        await until(lambda: master.dispatcher.is_durable)


async def test_tables_are_taken_over_again_until_a_checkpoint_has_them(tmp_path: Path) -> None:
    """A process may end before: its next start finds the older checkpoint."""
    metadata = MetadataState()
    metadata.adopt(PutTopic(TopicConfig("new", 1, 1)))
    for is_durable in (False, True):
        parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
        writer = TableWriter(
            tmp_path, cast(BrokerParts, parts), applied, lambda is_durable=is_durable: is_durable
        )
        writer.start()
        await writer.stop()
        known = MetadataState()
        adopt_tables(tmp_path, known, DeliveryState(), False)
        assert ("new" in known.topics) is not is_durable


async def applied() -> int:
    return 0


class _Ended(Exception):
    """The process has ended."""


class EndingDisk(OsDisk):
    """The process ends before this call that changes files, counted from 1 on."""

    def __init__(self, number: int) -> None:
        self.left = number

    def _count(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise _Ended

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._count()
        return super().pwritev(handle, buffers, offset)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._count()
        super().sync_directory(path)


def changed(metadata: MetadataState, life: int) -> None:
    metadata.adopt(PutTopic(TopicConfig(f"t{life}", 1, 1)))
    metadata.adopt(PutGroup(GroupConfig("g")))
    metadata.adopt(CommitOffsets("g", NO_GENERATION, (QueueOffset(f"t{life}", 0, life),)))
    if life:
        metadata.adopt(DeleteTopic(f"t{life - 1}"))


def test_tables_of_our_own_are_never_taken_over_wherever_a_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log knows better: a topic that was deleted since would be there again."""
    number, is_done = 0, False
    while not is_done:
        number += 1
        folder, metadata = tmp_path / f"{number}", MetadataState()
        parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
        is_done = True
        for life in range(4):  # of which all but the first and the last end early
            changed(metadata, life)
            disk = EndingDisk(number if life in (1, 2) else 1 << 40)
            monkeypatch.setattr(classic_tables, "OsDisk", lambda disk=disk: disk)
            writer = TableWriter(folder, cast(BrokerParts, parts), applied)
            try:
                writer._write_changed()
            except _Ended:
                is_done = False
            known = MetadataState()
            assert not adopt_tables(folder, known, DeliveryState(), False), (number, life)
    assert number > 20
