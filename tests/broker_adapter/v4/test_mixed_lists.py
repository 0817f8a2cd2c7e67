"""Lists with sends of all kinds, as a client of a real broker sees them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import ResponseCode
from broker_adapter.metadata.commands import Command, PutTopic
from broker_adapter.metadata.values import CommandOutcome
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.cluster import bodies, brokers, in_step
from tests.broker_adapter.v4.asker import asking, send_fields
from tests.broker_adapter.v4.test_remoting_sends import batch
from tests.broker_adapter.v4.test_send_quotas import REMOTING, ask_others, hold_messages
from tests.node.local import until


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemotingRequest, "timeout_s", 30.0)  # instead of 3 s, which a busy machine may need


@pytest.mark.parametrize("due", [{"DELAY": "0"}, {"TIMER_DELIVER_MS": "1"}])
async def test_a_send_whose_delay_is_over_is_not_overtaken(tmp_path: Path, due: dict[str, str]) -> None:
    async with brokers(tmp_path, 1, {"remoting": REMOTING}) as cluster:
        master = await cluster.master()
        async with asking(master.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            properties: list[dict[str, str]] = [{}, due, {}, due, {}]
            sends = [
                asker.get(310, b"%d" % number, **send_fields("t", 0, **one))
                for number, one in enumerate(properties)
            ]
            answers = await asyncio.gather(*sends)
        assert [int(answer["queueOffset"]) for answer in answers] == [1, 2, 3, 4, 5]
        await in_step(master)
        assert await bodies(master, "t", 0) == [b"first", b"0", b"1", b"2", b"3", b"4"]


async def test_sends_that_wait_for_their_topic_hold_back_no_others_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of later lists."""
    async with brokers(tmp_path, 1, {"remoting": REMOTING}) as cluster:
        master = await cluster.master()
        creation = master.topic_creation
        propose, may_create = creation._propose, asyncio.Event()

        async def held(command: Command) -> CommandOutcome:
            if isinstance(command, PutTopic):
                await may_create.wait()
            return await propose(command)

        async with asking(master.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            monkeypatch.setattr(creation, "_propose", held)
            waiting: list[asyncio.Task[object]] = []
            for number in range(3):
                for body in (b"a", b"b"):
                    waiting.append(
                        asyncio.create_task(asker.get(310, body + b"%d" % number, **send_fields("new", 0)))
                    )
                    await asker.get(310, body + b"%d" % number, **send_fields("t", 0))
                delayed = send_fields("t", 0, DELAY="18")
                half = send_fields("t", 0, TRAN_MSG="true", PGROUP="p")
                kinds = [delayed, half, send_fields("t", 1)]
                await asyncio.gather(*(asker.get(310, b"x", **fields) for fields in kinds))
            assert not any(send.done() for send in waiting)
            may_create.set()
            await asyncio.gather(*waiting)
        await in_step(master)
        texts = [body + b"%d" % number for number in range(3) for body in (b"a", b"b")]
        assert await bodies(master, "new", 0) == texts
        assert await bodies(master, "t", 0) == [b"first", *texts]


async def test_a_list_that_exceeds_the_bytes_of_an_append_is_cut_and_only_a_message_too_large_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that exceeds them is refused as a whole."""
    limits = {"max_batch_bytes": 128 << 10}
    async with brokers(tmp_path, 1, {"remoting": REMOTING}, limits=limits) as cluster:
        master = await cluster.master()
        async with asking(master.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            may_append = hold_messages(master, monkeypatch)
            texts = [b"%d" % number + bytes(20_000) for number in range(12)]
            sends = [asker.ask(310, text, **send_fields("t", 0)) for text in texts[:10]]
            sends.append(asker.ask(320, batch(*texts[10:]), **send_fields("t", 0)))
            sends.append(asker.ask(310, bytes(110_000), **send_fields("t", 0)))
            pending = asyncio.gather(*sends)
            await ask_others(asker)
            may_append.set()
            *stored, too_large = [answer.code for answer in await pending]
        assert stored == [ResponseCode.SUCCESS] * 11
        assert too_large == ResponseCode.MESSAGE_ILLEGAL
        await in_step(master)
        assert await bodies(master, "t", 0) == [b"first", *texts]


async def test_a_send_that_does_not_want_to_wait_waits_for_its_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1, {"remoting": REMOTING}) as cluster:
        master = await cluster.master()
        async with asking(master.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            may_append = hold_messages(master, monkeypatch)
            sends = [
                asyncio.create_task(asker.get(310, b"x", **send_fields("t", 0, WAIT=wait)))
                for wait in ("false", "true", "false")
            ]
            await until(lambda: len(master.committer._under_way) == 0 and master.committer._round is not None)
            await ask_others(asker)
            assert not any(send.done() for send in sends)
            may_append.set()
            await asyncio.gather(*sends)


async def test_each_message_of_a_list_reports_its_own_missing_slave(tmp_path: Path) -> None:
    """Also those that do not want to wait for one, and batches."""
    async with classic_pair(tmp_path, "n1") as pair:
        master = await pair.writable("n1")
        await master.broker.put_topic(TopicConfig("t", 1, 1))
        fields = [send_fields("t", 0), send_fields("t", 0, WAIT="false"), send_fields("t", 99)]
        async with asking(master.remoting.address) as asker:
            sends = [asker.ask(310, b"x", **one) for one in fields]
            sends.append(asker.ask(320, batch(b"y", b"z"), **send_fields("t", 0)))
            answers = await asyncio.gather(*sends)
        missing = ResponseCode.SLAVE_NOT_AVAILABLE
        assert [one.code for one in answers] == [missing, missing, ResponseCode.MESSAGE_ILLEGAL, missing]
        assert [one.fields.get("queueOffset") for one in answers] == ["0", "1", None, "2"]
        await until(lambda: master.files.bounds("t", 0) == (0, 4))
