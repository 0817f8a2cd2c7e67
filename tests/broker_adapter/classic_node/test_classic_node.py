"""A broker on a classic log, as master, as slave, and as the one after the other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.client.instance import ClientInstance
from broker_adapter.errors import BrokerError, ResponseCode, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from dledger import Code, ConfigError
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.cluster import bodies, messages
from tests.broker_adapter.sending import send_to
from tests.node.local import until
from tests.tls.world import TlsWorld


def test_a_master_keeps_its_messages_over_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path, "n1", broker_role="ASYNC_MASTER", waits_for_slaves=False) as pair:
            master = await pair.writable("n1")
            await master.broker.put_topic(TopicConfig("t", 2, 2))
            sent = await send_to(master, "t", messages("a", "b"), queue_id=1)
            assert (sent.queue_offset, sent.put_status) == (0, None)
            assert sent.physical_offsets[1] > sent.physical_offsets[0]
            await until(lambda: master.files.bounds("t", 1) == (0, 2))
            await pair.stop("n1")
            await pair.start("n1")
            master = await pair.writable("n1")
            assert await bodies(master, "t", 1) == [b"a", b"b"]
            assert (await send_to(master, "t", messages("c"), queue_id=1)).queue_offset == 2
            assert sorted(master.metadata.topics) == ["t"]

    asyncio.run(run())


def test_derived_files_that_are_lost_are_made_again_of_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path, "n1", broker_role="ASYNC_MASTER", waits_for_slaves=False) as pair:
            master = await pair.writable("n1")
            for number in range(120):
                await send_to(master, "t", messages(f"{number}" * 300, KEYS=f"k{number}"), queue_id=0)
            assert pair.node("n1").log.end_offset > 0
            await pair.stop("n1")
            (tmp_path / "n1" / "derived_checkpoint").unlink()
            await pair.start("n1")
            master = await pair.writable("n1")
            assert len(await bodies(master, "t", 0)) == 120
            await until(lambda: master.dispatcher.figures().index_pending == 0)
            assert len(await master.broker.query("t", "k7", begin_ms=0, end_ms=1 << 60, max_messages=9)) == 1

    asyncio.run(run())


def test_a_slave_has_the_same_bytes_and_the_same_state(tmp_path: Path) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path, "n1", "n2") as pair:
            master = await pair.writable("n1")
            await until(lambda: pair.node("n2").replication.follows)
            await master.broker.put_topic(TopicConfig("t", 2, 2))
            sent = await send_to(master, "t", messages("a"), queue_id=0)
            assert sent.put_status is None
            await pair.in_step()
            slave = pair.programs["n2"]
            assert await bodies(slave, "t", 0) == [b"a"]
            assert slave.metadata.topics == master.metadata.topics
            logs = [pair.node(node_id).log for node_id in ("n1", "n2")]
            end = logs[0].end_offset
            assert logs[0].read(0, end) == logs[1].read(0, end)

    asyncio.run(run())


def test_without_a_slave_a_sync_master_says_that_there_is_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path, "n1") as pair:
            master = await pair.writable("n1")
            sent = await send_to(master, "t", messages("a"), queue_id=0)
            assert sent.put_status is Status.SLAVE_NOT_AVAILABLE
            (other,) = messages("b")  # by the way that single messages take
            one = await send_to(master, "t", other, message_id="", queue_id=0)
            assert one.put_status is Status.SLAVE_NOT_AVAILABLE
            await until(lambda: master.files.bounds("t", 0) == (0, 2))
            assert await bodies(master, "t", 0) == [b"a", b"b"], "it is stored all the same"

    asyncio.run(run())


def test_a_slave_becomes_master_by_hand_and_lacks_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async def run() -> None:
        async with classic_pair(tmp_path, "n1", "n2") as pair:
            master = await pair.writable("n1")
            await until(lambda: pair.node("n2").replication.follows)
            for number in range(20):
                sent = await send_to(master, "t", messages(f"{number}"), queue_id=0)
                assert sent.put_status is None
            with pytest.raises(BrokerError, match="its master is connected") as caught:
                await pair.node("n2").change_role(True, force=False)
            assert caught.value.status is Status.ROLE_CHANGE_BLOCKED
            await pair.in_step()
            await pair.stop("n1")
            await until(lambda: not pair.node("n2").replication.follows)
            await pair.node("n2").change_role(True, force=False)
            slave = await pair.writable("n2")
            assert await bodies(slave, "t", 0) == [f"{number}".encode() for number in range(20)]
            assert (await send_to(slave, "t", messages("20"), queue_id=0)).queue_offset == 20
            await pair.start("n1", broker_role="SLAVE")
            await pair.node("n1").change_role(False, force=False)
            await pair.in_step()
            assert len(await bodies(pair.programs["n1"], "t", 0)) == 21

    asyncio.run(run())


def test_old_files_go_when_an_operator_asks_and_queues_begin_later(tmp_path: Path) -> None:
    """deleteExpiredCommitLog of mqadmin, of messages that were stored two hours ago."""

    async def run() -> None:
        now = time.localtime()
        settings = {
            "file_size": 1 << 16,
            "file_reserved_hours": 1,
            "delete_when": f"{(now.tm_hour + 12) % 24}",
        }
        role = {"broker_role": "ASYNC_MASTER", "waits_for_slaves": False}
        async with classic_pair(tmp_path, **settings, **role) as pair:
            program = pair.programs["n1"] = pair.program("n1")
            passed_ms = 0
            node = program.make_node(
                wall_ms=lambda: time.time_ns() // 1_000_000 + passed_ms,
                monotonic_ms=lambda: time.monotonic_ns() // 1_000_000 + passed_ms,
            )
            await node.start()
            await program.start()
            master = await pair.writable("n1")
            for number in range(12):
                await send_to(master, "t", messages(f"{number:02d}" * 10_000), queue_id=0)
            await until(lambda: master.dispatcher.figures().checkpoint.end_pos == node.log.end_offset)
            assert node.log.begin_offset == 0
            passed_ms = 2 * 3_600_000
            client = ClientInstance([pair.remoting["n1"]])
            answer = await client.call(
                pair.remoting["n1"], RemotingCommand(RequestCode.DELETE_EXPIRED_COMMITLOG)
            )
            await client.close()
            assert answer.code == ResponseCode.SUCCESS
            await until(lambda: node.log.begin_offset == node.log.last_file_offset > 0)
            await until(lambda: master.files.bounds("t", 0)[0] > 0)
            shown = master.host.shown()["commit_log"]
            assert (shown["begin_offset"], shown["damage"]) == (node.log.begin_offset, "")
            left = await bodies(master, "t", 0)
            assert 0 < len(left) < 12
            await pair.stop("n1")
            await pair.start("n1")
            assert await bodies(await pair.writable("n1"), "t", 0) == left

    asyncio.run(run())


def test_a_damaged_log_is_opened_when_that_is_wanted(tmp_path: Path) -> None:
    async def run() -> None:
        role = {"broker_role": "ASYNC_MASTER", "waits_for_slaves": False}
        async with classic_pair(tmp_path, "n1", **role) as pair:
            master = await pair.writable("n1")
            places = []
            for number in range(5):
                sent = await send_to(master, "t", messages(f"{number}" * 100), queue_id=0)
                places += sent.physical_offsets
            await pair.stop("n1")
            path = tmp_path / "n1" / "commitlog" / f"{0:020d}"
            raw = bytearray(path.read_bytes())
            raw[places[3] + 120] ^= 1
            path.write_bytes(raw)
            with pytest.raises(BrokerError) as caught:
                await pair.program("n1").make_node().start()
            assert caught.value.status is Status.STORE_DAMAGED
            await pair.start("n1", cut_damage=True)
            master = await pair.writable("n1")
            assert master.host.shown()["commit_log"]["damage"]
            assert len(await bodies(master, "t", 0)) == 3


def test_with_tls_a_slave_copies_over_it_and_metrics_tell_of_it(tmp_path: Path) -> None:
    world = TlsWorld(tmp_path)
    sections = {node_id: world.section(world.files(node_id)) for node_id in ("n1", "n2")}

    async def run() -> None:
        async with classic_pair(tmp_path, "n1", "n2", tls_of=sections) as pair:
            master = await pair.writable("n1")
            await until(lambda: pair.node("n2").replication.follows)
            assert (await send_to(master, "t", messages("a"), queue_id=0)).put_status is None
            shown = {family.name for family in master.host.metrics()}
            assert {"broker_ha_slaves", "broker_ha_slave_lag_bytes"} <= shown
            reader, writer = await asyncio.open_connection(*pair.ha["n1"].split(":"))
            writer.write(bytes(8))
            assert await reader.read() == b"", "nobody is served in plain text"
            writer.close()

    asyncio.run(run())


def test_slaves_beyond_this_machine_are_not_served_in_plain_text(tmp_path: Path) -> None:
    async def run() -> None:
        pair = ClassicPair(tmp_path, {"ha_listen": "0.0.0.0:0"})
        with pytest.raises(ConfigError) as caught:
            await pair.start("n1")
        assert caught.value.code is Code.PLAINTEXT_REFUSED and "classic.ha_listen" in str(caught.value)

    asyncio.run(run())
