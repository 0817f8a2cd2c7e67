"""Sends beyond a quota are refused one by one, and concern no other request of their connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import ResponseCode
from broker_adapter.put.message_writer import AppendedBatch, QueuedRecords
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.connection import ConnectionLimits
from broker_adapter.server.program import BrokerProgram
from tests.broker_adapter.cluster import bodies, brokers, in_step
from tests.broker_adapter.v4.asker import Asker, asking, send_fields
from tests.node.local import until

SENDS = 20
#: A send may wait for its turn on a busy machine.
REMOTING = {"listen": "127.0.0.1:0", "send_queue_wait_ms": 60_000}


def hold_messages(program: BrokerProgram, patch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let appends with messages wait for the event."""
    put, may_append = program.writer.put_together, asyncio.Event()

    async def held(queued: Sequence[QueuedRecords], *args: Any, **options: Any) -> AppendedBatch:
        await may_append.wait()
        return await put(queued, *args, **options)

    patch.setattr(program.writer, "put_together", held)
    return may_append


async def ask_others(asker: Asker) -> dict[str, int]:
    """Send one request of each other kind. Return the codes of the responses."""
    beat = {"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []}
    unlock = {"consumerGroup": "g", "clientId": "c", "mqSet": []}
    commit = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 1}
    requests = {
        "heartbeat": asker.ask(RequestCode.HEART_BEAT, json.dumps(beat).encode()),
        "end": asker.ask(RequestCode.END_TRANSACTION, transactionId="none@t", commitOrRollback=8),
        "commit": asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **commit),
        "unlock": asker.ask(RequestCode.UNLOCK_BATCH_MQ, json.dumps(unlock).encode()),
    }
    answers = await asyncio.gather(*requests.values())
    return {name: answer.code for name, answer in zip(requests, answers, strict=True)}


@pytest.mark.parametrize(
    ("limits", "accepted"), [({"max_sends": 16}, 12), ({"max_request_bytes": 64 << 10}, 4)]
)
async def test_sends_beyond_a_quota_are_refused_and_other_requests_of_their_connection_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Mapping[str, int], accepted: int
) -> None:
    monkeypatch.setattr(RemotingRequest, "timeout_s", 30.0)  # instead of 3 s, which a busy machine may need
    settings = {"remoting": {**REMOTING, **limits}}
    async with brokers(tmp_path, 1, settings) as cluster:
        master = await cluster.master()
        async with asking(master.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            may_append = hold_messages(master, monkeypatch)
            texts = [b"%d" % number + bytes(10_000) for number in range(SENDS)]
            sends = [asyncio.create_task(asker.ask(310, text, **send_fields("t", 0))) for text in texts]
            await until(lambda: sum(send.done() for send in sends) == SENDS - accepted)
            assert await ask_others(asker) == {
                "heartbeat": ResponseCode.SUCCESS,
                "end": ResponseCode.SYSTEM_ERROR,  # there is no such transaction
                "commit": ResponseCode.SUCCESS,
                "unlock": ResponseCode.SUCCESS,
            }
            may_append.set()
            codes = [answer.code for answer in await asyncio.gather(*sends)]
        assert codes == [ResponseCode.SUCCESS] * accepted + [ResponseCode.SYSTEM_BUSY] * (SENDS - accepted)
        await in_step(master)
        assert await bodies(master, "t", 0) == [b"first", *texts[:accepted]]


async def test_one_way_sends_beyond_the_quota_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, 1, {"remoting": {**REMOTING, "max_sends": 16}}) as cluster:
        master = await cluster.master()
        dispatch = master.remoting._dispatch
        executor = next(one for one in dispatch.executors if one.name == "sends")
        async with asking(master.remoting.address) as asker:
            await asker.send("t", b"first", 0)
            may_append = hold_messages(master, monkeypatch)
            texts = [b"%d" % number for number in range(SENDS)]
            for text in texts:
                asker.oneway(310, text, **send_fields("t", 0))
            assert (await ask_others(asker))["heartbeat"] == ResponseCode.SUCCESS
            assert (executor.under_way, executor.refused) == (12, SENDS - 12)
            assert dispatch.counts[RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_BUSY] == SENDS - 12
            may_append.set()
            await until(lambda: executor.under_way == 0)
        await in_step(master)
        assert await bodies(master, "t", 0) == [b"first", *texts[:12]]


def test_a_connection_is_read_until_its_address_has_used_its_share_of_the_sends() -> None:
    """A connection that is not read any more serves no heartbeat either."""
    settings = RemotingSettings()
    assert ConnectionLimits().under_way > 3 * settings.max_sends // 4 + settings.max_queries
