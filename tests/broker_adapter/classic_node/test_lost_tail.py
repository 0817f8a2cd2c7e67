"""A master that has lost power comes back without its last messages, which its slave and consumers have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, ResponseCode, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.message import decode_all
from tests.broker_adapter.classic_node.classic_pair import ClassicPair, classic_pair
from tests.broker_adapter.classic_node.test_classic_node import bodies, messages
from tests.broker_adapter.classic_node.test_role_changes import ASYNC, SLAVE
from tests.broker_adapter.sending import send_to
from tests.broker_adapter.v4.asker import Asker, asking
from tests.node.local import until


def lose_power(directory: Path, end: int) -> None:
    """Of a log in one file: what was behind this offset was not on the disk yet."""
    path = directory / "commitlog" / f"{0:020d}"
    content = path.read_bytes()
    path.write_bytes(content[:end] + bytes(len(content) - end))
    for name in ("checkpoint", "derived_checkpoint"):
        (directory / name).unlink()
    (directory / "abort").touch()


@asynccontextmanager
async def slave_ahead(folder: Path) -> AsyncIterator[ClassicPair]:
    """Both have `a`; the slave alone has `lost`, in whose place its master has `new` since."""
    async with classic_pair(folder, flush="ASYNC_FLUSH") as pair:
        await pair.start("n1", **ASYNC)
        await pair.start("n2", **SLAVE)
        master = await pair.writable("n1")
        await until(lambda: pair.node("n2").replication.follows)
        await master.broker.put_topic(TopicConfig("t", 1, 1))
        await send_to(master, "t", messages("a"), queue_id=0)
        end = pair.node("n1").log.end_offset
        await send_to(master, "t", messages("lost"), queue_id=0)
        await pair.in_step()
        await pair.stop("n1")
        lose_power(folder / "n1", end)
        await pair.start("n1", **ASYNC)
        master = await pair.writable("n1")
        slave = pair.node("n2").replication
        await until(lambda: "834" in str(slave.shown()["problem"]))
        sent = await send_to(master, "t", messages("new"), queue_id=0)
        assert (sent.queue_offset, sent.put_status) == (1, None)
        await until(lambda: master.files.bounds("t", 0)[1] == 2)  # visible
        yield pair


async def pull(asker: Asker, offset: int) -> RemotingCommand:
    return await asker.ask(
        RequestCode.PULL_MESSAGE,
        consumerGroup="g",
        topic="t",
        queueId=0,
        queueOffset=offset,
        maxMsgNums=32,
        sysFlag=4,
        subscription="*",
    )


async def test_who_reads_at_a_slave_that_is_ahead_gets_what_its_master_has(tmp_path: Path) -> None:
    """Else one offset would be that of two messages, and one of them would be passed over."""
    async with slave_ahead(tmp_path) as pair, asking(pair.remoting["n2"]) as asker:
        assert await bodies(pair.programs["n2"], "t", 0) == [b"a", b"lost"]
        answer = await pull(asker, 0)
        assert answer.code == ResponseCode.SUCCESS
        assert [message.body for message in decode_all(answer.body)] == [b"a", b"new"]
        asked = await asker.ask(RequestCode.GET_MAX_OFFSET, topic="t", queueId=0)
        assert asked.fields["offset"] == "2"


async def test_a_slave_that_is_ahead_answers_nothing_while_its_master_is_away(tmp_path: Path) -> None:
    async with slave_ahead(tmp_path) as pair, asking(pair.remoting["n2"]) as asker:
        await pair.stop("n1")
        answer = await pull(asker, 1)
        assert answer.code != ResponseCode.SUCCESS and not answer.body


async def test_a_slave_that_is_ahead_is_made_master_by_force_alone(tmp_path: Path) -> None:
    """What its master has stored and answered since would be lost, and nobody would have been told."""
    async with slave_ahead(tmp_path) as pair:
        node = pair.node("n2")
        for _ in range(2):
            with pytest.raises(BrokerError, match="its master has a different log") as caught:
                await node.change_role(True, force=False)
            assert caught.value.status is Status.ROLE_CHANGE_BLOCKED and not node.roles.leads
            if "n1" in pair.programs:
                await pair.stop("n1")
        await node.change_role(True, force=True)
        async with asking(pair.remoting["n2"]) as asker:
            await pair.writable("n2")
            assert [message.body for message in decode_all((await pull(asker, 1)).body)] == [b"lost"]
