"""What producers write down of delayed messages and transactions, with clients that are made up here."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from chaos.trace.outcomes import ClientError
from chaos.workloads.messages import number_of
from chaos.workloads.released.process import ClientProcess
from chaos.workloads.released.topics import PredictableTopics
from chaos.workloads.released.workload import ReleasedProducer, TransactionOutcomes
from chaos.workloads.spec import LoadSpec
from tests.chaos.workloads.load_world import Lines, World

TOPICS = PredictableTopics.of(2, 3)
NOW_MS = 1_700_000_000_250
COUNT = 200


class MadeUpClient:
    """Stands for ClientProcess. Of what is asked, `fails` does every `fails_at`th time. Asks about all halves
    that it was given, once, when `asks` is set."""

    def __init__(self, fails: str = "", fails_at: int = 5) -> None:
        self.asked: Counter[str] = Counter()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.asks = asyncio.Event()
        self.all_decided = asyncio.Event()
        self._fails, self._fails_at = fails, fails_at
        self._halves: list[dict[str, Any]] = []

    async def request(self, do: str, **fields: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.asked[do] += 1
        self.told.append((do, fields))
        if do == self._fails and self.asked[do] % self._fails_at == 0:
            raise ClientError("Error", 14, "no connection")
        if do == "half":
            self._halves.append({"handle": len(self._halves), "body": fields["body"]})
            return {"handle": len(self._halves) - 1}
        if do == "checks":
            await self.asks.wait()
            asked, self._halves = self._halves, []
            if not asked:
                self.all_decided.set()
            return {"messages": asked}
        return {"offset": 7, "message_id": "id", "recall_handle": "handle"}


async def sent(world: World, client: MadeUpClient) -> ReleasedProducer:
    """A producer that has sent all its messages."""
    made = cast("ClientProcess", client)
    transactions = TransactionOutcomes(world.setting.tally)
    about = (made, "p0", Random(2), TOPICS, transactions)
    producer = ReleasedProducer(world.setting, *about, wall_ns=lambda: NOW_MS * 1_000_000)
    step = producer.worker()
    for _ in range(COUNT):
        await step()
    return producer


def ops(lines: Lines, f: str, what: str = "invoke") -> Lines:
    return [line for line in lines if line["ev"] == "op" and line["f"] == f and line["type"] == what]


async def test_a_delayed_message_is_due_at_a_whole_second_and_stands_nowhere_yet(tmp_path: Path) -> None:
    world = World(tmp_path, LoadSpec(max_bytes=20, delayed=1.0))
    client = MadeUpClient(fails="recall")
    await sent(world, client)
    lines = world.lines()
    due = [fields["due_ms"] for do, fields in client.told if do == "send"]
    waits = [line["delay_ms"] for line in ops(lines, "send")]
    assert waits == [at - NOW_MS - 1 for at in due] and {at % 1000 for at in due} == {0}
    assert min(waits) > 1_000 and max(waits) < 5_000 and len(set(waits)) > 1
    answers = ops(lines, "send", "ok")
    assert len(answers) == COUNT and not [line for line in answers if "qoff" in line]
    recalls = [line["mid"] for line in ops(lines, "recall")]
    assert 10 < len(recalls) < 90 and set(recalls) < {line["mid"] for line in ops(lines, "send")}
    assert len(ops(lines, "recall", "info")) == len(recalls) // 5
    assert len(ops(lines, "recall", "ok")) == len(recalls) - len(recalls) // 5


@pytest.mark.parametrize("fails", ["", "end"])
async def test_a_transaction_is_committed_or_rolled_back_and_told_of_once(tmp_path: Path, fails: str) -> None:
    """Also if the broker asks about one of which nobody knows how it ended; it is answered the same again."""
    world = World(tmp_path, LoadSpec(max_bytes=20, transactional=1.0))
    client = MadeUpClient(fails=fails)
    producer = await sent(world, client)
    answering = asyncio.create_task(producer.answer_checks())
    client.asks.set()
    await client.all_decided.wait()
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    lines = world.lines()
    begun = [line["mid"] for line in ops(lines, "txn_begin")]
    committed = [line["mid"] for line in ops(lines, "txn_commit")]
    rolled_back = [line["mid"] for line in ops(lines, "txn_rollback")]
    assert sorted(committed + rolled_back) == sorted(begun) and len(begun) == COUNT
    assert min(len(committed), len(rolled_back), client.asked["forget"]) > 20
    left = client.asked["end"] // 5 if fails else 0
    assert len(ops(lines, "txn_commit", "info") + ops(lines, "txn_rollback", "info")) == left
    assert not ops(lines, "txn_commit", "fail") and client.asked["decide"] == COUNT
    bodies = [number_of(b64decode(fields["body"])) for do, fields in client.told if do == "half"]
    for do, fields in client.told:
        if do in ("end", "decide"):
            assert fields["commit"] == (bodies[fields["handle"]] in committed)


async def test_of_a_half_that_is_in_doubt_the_broker_may_ask(tmp_path: Path) -> None:
    world = World(tmp_path, LoadSpec(max_bytes=20, transactional=1.0))
    client = MadeUpClient(fails="half", fails_at=1)
    producer = await sent(world, client)
    body = next(fields["body"] for do, fields in client.told if do == "half")
    client._halves = [{"handle": 0, "body": body}]
    answering = asyncio.create_task(producer.answer_checks())
    client.asks.set()
    await client.all_decided.wait()
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    lines = world.lines()
    assert len(ops(lines, "txn_begin", "info")) == COUNT
    ends = ops(lines, "txn_commit", "ok") + ops(lines, "txn_rollback", "ok")
    assert len(ends) == 1
