"""What a slave lacks keeps it from being master, and what a master has stored is told as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.ha.transfers import encode_report
from dledger import NotLeader, TlsFiles
from dledger.infra.transport.tls import ClientTls
from tests.broker_adapter.classic_node.classic_pair import FILE_SIZE, classic_pair
from tests.broker_adapter.classic_node.test_classic_node import messages
from tests.broker_adapter.classic_node.test_role_changes import ASYNC, SLAVE
from tests.broker_adapter.ha.memory_log import MemoryLog
from tests.broker_adapter.ha.pair import QUICK, following, plain, wire
from tests.broker_adapter.sending import send_to
from tests.node.local import until
from tests.tls.world import TlsWorld


async def test_a_slave_that_has_not_heard_of_a_master_stays_slave(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        await pair.start("n2", **SLAVE)
        node = pair.node("n2")
        with pytest.raises(BrokerError, match="missing data is unknown") as caught:
            await node.change_role(True, force=False)
        assert caught.value.status is Status.ROLE_CHANGE_BLOCKED
        assert not node.roles.leads and node.replication.is_following
        await node.change_role(True, force=True)
        assert node.roles.leads


async def test_a_slave_that_lacks_what_its_master_had_stays_slave(tmp_path: Path) -> None:
    async with classic_pair(tmp_path) as pair:
        await pair.start("n1", **ASYNC)
        master = await pair.writable("n1")
        await send_to(master, "t", messages("a"), queue_id=0)
        await send_to(master, "t", messages("b" * 200_000), queue_id=0)
        end = pair.node("n1").log.end_offset
        async with wire(pair.ha["n1"]) as between:
            between.cut_after = lambda number: 20_000
            await pair.start("n2", **SLAVE, ha_master=between.address)
            node = pair.node("n2")
            await until(lambda: node.replication.lacking() > 0)
        await until(lambda: not node.replication.follows)
        lacking = end - node.log.end_offset
        assert lacking > 200_000
        with pytest.raises(BrokerError, match=f"it lacks {lacking} bytes") as caught:
            await node.change_role(True, force=False)
        assert caught.value.status is Status.ROLE_CHANGE_BLOCKED and not node.roles.leads


async def test_a_master_that_leaves_takes_nothing_more_while_its_slaves_catch_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it stored and answered meanwhile would be lost with it."""
    async with classic_pair(tmp_path) as pair:
        await pair.start("n1", **ASYNC)
        await pair.writable("n1")
        node, taken = pair.node("n1"), []

        async def drain(within_s: float) -> int:
            event = node.roles.current
            assert event is not None
            with pytest.raises(NotLeader):
                node.appends.append_batch([1], lambda places: [b"x"], expected=(event.term, event.role_epoch))
            taken.append(node.roles.leads)
            return 0

        monkeypatch.setattr(node.replication, "drain", drain)
        await node.change_role(False, force=False)
        await node.change_role(True, force=True)
        await pair.writable("n1")
        await pair.stop("n1")
        assert taken == [False, True], "by `role slave`, and by a stop"


async def test_what_is_short_of_a_slave_is_told_by_its_name(tmp_path: Path) -> None:
    async with classic_pair(tmp_path, "n1") as pair:
        master = await pair.writable("n1")
        node = pair.node("n1")
        await send_to(master, "t", messages("a"), queue_id=0)
        end = node.log.end_offset
        assert await node.replication.acknowledged(end, 60_000) is Status.SLAVE_NOT_AVAILABLE
        async with plain(node.replication.address) as (_, writer):
            writer.write(encode_report(1))
            await until(lambda: len(node.replication.shown()["slaves"]) == 1)
            assert await node.replication.acknowledged(end, 1) is Status.FLUSH_SLAVE_TIMEOUT
            # The log may have grown: a new master writes the version of its rules.
            await until(lambda: node.replication.shown()["slaves"][0]["lag_bytes"] == node.log.end_offset - 1)
            writer.write(encode_report(end))
            assert await node.replication.acknowledged(end, 60_000) is None
        await node.change_role(False, force=True)
        assert await node.replication.acknowledged(end, 60_000) is Status.SLAVE_NOT_AVAILABLE


async def test_a_slave_that_becomes_master_waits_for_slaves_if_masters_do(tmp_path: Path) -> None:
    """Two copies are promised after a change of masters, too."""
    async with classic_pair(tmp_path) as pair:
        await pair.start("n2", **{**SLAVE, "waits_for_slaves": True})
        await pair.node("n2").change_role(True, force=True)
        master = await pair.writable("n2")
        sent = await send_to(master, "t", messages("a"), queue_id=0)
        assert sent.put_status is Status.SLAVE_NOT_AVAILABLE


async def test_where_members_show_certificates_slaves_do(tmp_path: Path) -> None:
    world = TlsWorld(tmp_path)
    sections: dict[str, Any] = {
        node_id: world.section(world.files(node_id), client_auth="require") for node_id in ("n1", "n2")
    }
    async with classic_pair(tmp_path, tls_of=sections) as pair:
        await pair.start("n1", **ASYNC)
        master = await pair.writable("n1")
        await send_to(master, "t", messages("a"), queue_id=0)
        options = replace(QUICK, whole_log=True)
        stranger = ClientTls(TlsFiles(world.ca)).stream_context
        member = ClientTls(world.files("n2")).stream_context
        address = pair.node("n1").replication.address
        none, copy = MemoryLog(file_size=FILE_SIZE), MemoryLog(file_size=FILE_SIZE)
        async with following(none, address, options=options, tls=stranger) as client:
            await until(lambda: client.status().problem != "")
        async with following(copy, address, options=options, tls=member):
            await until(lambda: copy.end_offset == pair.node("n1").log.end_offset)
        assert not none.data
