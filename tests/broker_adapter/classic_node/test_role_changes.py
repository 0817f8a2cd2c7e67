"""Changes of role by hand: what was answered goes along, and whatever fails can be done again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.ha.transfers import encode_report
from broker_adapter.log.classic.node import node as node_module
from broker_adapter.log.classic.node.node import ClassicNode
from broker_adapter.metadata.commands import NO_GENERATION, CommitOffsets, PutGroup, PutTopic
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server.log_host import BrokerParts
from broker_adapter.server.slave_sync import SlaveSync
from broker_adapter.server.table_merge import tables_from
from dledger import ConfigError
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.classic_node.test_classic_node import bodies, messages
from tests.broker_adapter.ha.pair import plain
from tests.broker_adapter.sending import send_to
from tests.node.local import until

ASYNC = {"broker_role": "ASYNC_MASTER", "waits_for_slaves": False}
SLAVE = {"broker_role": "SLAVE", "waits_for_slaves": False}


@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_a_master_has_answered_goes_to_its_slave_before_it_leaves(
    tmp_path: Path, is_stopped: bool
) -> None:
    """An ASYNC_MASTER, in the middle of a burst: by `role slave`, or by a stop."""

    async def run() -> None:
        async with classic_pair(tmp_path, file_size=1 << 22) as pair:
            await pair.start("n1", **ASYNC)
            await pair.start("n2", **SLAVE)
            master = await pair.writable("n1")
            await until(lambda: pair.node("n2").replication.follows)
            sends = (send_to(master, "t", messages(f"{one}" * 50_000), queue_id=0) for one in range(30))
            await asyncio.gather(*sends)
            end = pair.node("n1").log.end_offset
            if is_stopped:
                await pair.stop("n1")
            else:
                await pair.node("n1").change_role(False, force=False)
            await until(lambda: not pair.node("n2").replication.follows)
            await pair.node("n2").change_role(True, force=False)
            assert pair.node("n2").log.end_offset == end
            assert len(await bodies(await pair.writable("n2"), "t", 0)) == 30

    asyncio.run(run())


def test_a_master_whose_slave_lacks_something_stays_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_DRAIN_S", 0.2)

    async def run() -> None:
        async with classic_pair(tmp_path) as pair:
            await pair.start("n1", **ASYNC)
            master = await pair.writable("n1")
            node = pair.node("n1")
            async with plain(node.replication.address) as (_, writer):
                writer.write(encode_report(1))  # and acknowledges nothing
                await until(lambda: len(node.replication.shown()["slaves"]) == 1)
                await send_to(master, "t", messages("a"), queue_id=0)
                with pytest.raises(BrokerError, match="remains master") as caught:
                    await node.change_role(False, force=False)
                assert caught.value.status is Status.ROLE_CHANGE_BLOCKED
                await until(lambda: master.writer.expected == (node.roles.current.term, epoch(node)))
                sent = await send_to(master, "t", messages("b"), queue_id=0)
                assert sent.queue_offset == 1
                await node.change_role(False, force=True)
                assert not node.roles.leads and node.replication.is_following

    def epoch(node: ClassicNode) -> int:
        assert node.roles.current is not None
        return node.roles.current.role_epoch

    asyncio.run(run())


def test_a_slave_that_cannot_become_master_follows_on_and_may_try_again(tmp_path: Path) -> None:
    """Somebody has its HA port."""

    async def run() -> None:
        async with classic_pair(tmp_path) as pair:
            await pair.start("n1", **ASYNC)
            await pair.start("n2", **SLAVE)
            node = pair.node("n2")
            host, _, port = pair.ha["n2"].rpartition(":")
            with socket.socket() as taken:
                taken.bind((host, int(port)))
                taken.listen()
                for _ in range(2):
                    with pytest.raises(ConfigError):
                        await node.change_role(True, force=True)
                    assert not node.roles.leads and node.replication.is_following
            await pair.writable("n1")
            await pair.in_step()
            await node.change_role(True, force=True)
            assert node.roles.leads

    asyncio.run(run())


@pytest.mark.parametrize("is_master", [True, False])
def test_a_role_that_cannot_be_written_is_none_and_may_be_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_master: bool
) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path) as pair:
            await pair.start("n1", **(SLAVE if is_master else ASYNC))
            node = pair.node("n1")

            def fails(*args: object) -> None:
                raise OSError(28, "no space")

            with monkeypatch.context() as patched:
                patched.setattr(node_module, "write_role", fails)
                for _ in range(2):
                    with pytest.raises(BrokerError, match="no space") as caught:
                        await node.change_role(is_master, force=True)
                    assert caught.value.status is Status.LOG_FAILED
                    assert not node.roles.leads
            await node.change_role(is_master, force=True)
            assert node.roles.leads is is_master and node.replication.is_following is not is_master

    asyncio.run(run())


def test_an_empty_slave_begins_where_retention_has_left_its_master(tmp_path: Path) -> None:
    async def run() -> None:
        fatal: list[Exception] = []
        async with classic_pair(tmp_path, file_size=1 << 16) as pair:
            await pair.start("n1", **ASYNC)
            master = await pair.writable("n1")
            for number in range(12):
                await send_to(master, "t", messages(f"{number:02d}" * 10_000), queue_id=0)
            log = pair.node("n1").log
            log.purge_below(log.last_file_offset)
            program = pair.programs["n2"] = pair.program("n2", **SLAVE)
            await program.make_node(on_fatal=fatal.append).start()
            await program.start()
            await pair.in_step()
            assert pair.node("n2").log.begin_offset == log.begin_offset > 0
            assert program.files.bounds("t", 0)[1] == 12
        assert fatal == []

    asyncio.run(run())


def synced(known: Mapping[int, int], told: Mapping[int, int], by_handshake: bool) -> dict[int, int]:
    """Offsets of queues of `t`, where 70 messages are here, after the master has told its own."""
    metadata = MetadataState()
    metadata.adopt(PutTopic(TopicConfig("t", 4, 4)))
    metadata.adopt(PutGroup(GroupConfig("g")))
    metadata.adopt(CommitOffsets("g", NO_GENERATION, offsets(known)))
    node = SimpleNamespace(roles=SimpleNamespace(leads=False))
    parts = cast(BrokerParts, SimpleNamespace(metadata=metadata, delivery_state=DeliveryState()))
    sync = SlaveSync(cast(Any, node), parts, lambda: None, lambda topic, queue_id: 70)
    topics = metadata.topics.values()
    tables = tables_from(topics, [GroupConfig("g")], {"g": offsets(told)}, {})
    sync._adopt(tables, None, not by_handshake)
    group = metadata.group("g")
    assert group is not None
    return {queue_id: offset for (_, queue_id), offset in group.offsets.items()}


def offsets(of: Mapping[int, int]) -> tuple[QueueOffset, ...]:
    return tuple(QueueOffset("t", queue_id, offset) for queue_id, offset in of.items())


@pytest.mark.parametrize(("by_handshake", "fallen"), [(True, 50), (False, 40)])
def test_offsets_of_a_master_stay_within_the_messages_that_are_here(by_handshake: bool, fallen: int) -> None:
    """Beyond them new messages of a slave that is made master would be passed over."""
    found = synced({0: 10, 1: 50, 2: 60}, {0: 100, 1: 40, 2: 65}, by_handshake)
    assert found == {0: 70, 1: fallen, 2: 65}
