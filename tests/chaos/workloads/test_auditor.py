"""The auditor's operations: what is asked, and what the answers say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Self

import pytest

from broker_adapter.client import ClientOptions, Message, MessageQueue, TopicRoute
from broker_adapter.errors import TopicRefused
from chaos.trace.schema import Ev
from chaos.workloads import auditor
from chaos.workloads.auditor import GROUP, Auditor
from chaos.workloads.clients import QueueByNumber, queue_of
from chaos.workloads.spec import LoadSpec
from tests.chaos.workloads.load_world import World

QUEUE = queue_of("t", 0)
NAMES = ["a:1"]
ROUNDS = 3
MESSAGE = Message("t", b"x")


class Stub:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


class Consumer(Stub):
    """Stands for `PullConsumer`: one queue of two messages."""

    stored = 0

    def __init__(self, group: str, name_servers: Sequence[str], *, options: ClientOptions) -> None:
        assert (group, name_servers) == (GROUP, NAMES)

    async def max_offset(self, queue: MessageQueue) -> int:
        assert queue == QUEUE
        return 2

    async def min_offset(self, queue: MessageQueue) -> int:
        return 0

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        Consumer.stored = offset

    async def committed(self, queue: MessageQueue) -> int | None:
        return Consumer.stored or None


class Registry(Stub):
    """Stands for `NameServerClient`: there is a master from the second question on."""

    asked = 0
    done = asyncio.Event()

    def __init__(self, addresses: Sequence[str]) -> None:
        assert addresses == NAMES

    async def route(self, topic: str) -> TopicRoute:
        Registry.asked += 1
        if Registry.asked == ROUNDS:
            self.done.set()
        if Registry.asked == 1:
            return TopicRoute({}, ())
        return TopicRoute({}, (), master_terms={"broker-a": 7, "broker-b": 3})


async def test_every_kind_is_asked_and_answers_follow_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "PullConsumer", Consumer)
    monkeypatch.setattr(auditor, "NameServerClient", Registry)
    world, stop = World(tmp_path, LoadSpec()), asyncio.Event()
    running = asyncio.create_task(Auditor(world.setting, NAMES, ["t"], 1, (0, 0)).run(stop))
    await Registry.done.wait()
    stop.set()
    await running
    lines = world.lines()
    answers: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["ev"] == Ev.OP and line["type"] == "ok":
            answers.setdefault(line["f"], []).append(line)
    assert set(answers) == {"route", "max_off", "min_off", "commit_off", "fetch_off"}
    assert [line.get("term") for line in answers["route"]] == [None, 7, 7]
    assert {line["max_off"] for line in answers["max_off"]} == {2}
    assert {line["min_off"] for line in answers["min_off"]} == {0}
    stored = [line["off"] for line in lines if line.get("f") == "commit_off" and line["type"] == "invoke"]
    assert stored == [1, 2]
    assert [line["off"] for line in answers["fetch_off"]] == stored


def test_a_queue_is_named_by_its_number_at_a_node_that_was_not_tried() -> None:
    queues = [MessageQueue("t", f"broker-a-n{node}", q) for node in (1, 2, 3) for q in range(2)]
    stranger = MessageQueue("t", "other", 1)
    chosen = QueueByNumber(1, Random(1))
    found = [chosen([*queues, stranger], MESSAGE, None) for _ in range(3)]
    assert sorted(found) == [queue for queue in queues if queue.queue_id == 1]
    assert chosen(queues, MESSAGE, None) in found, "all were tried: any of them again"
    with pytest.raises(TopicRefused):
        QueueByNumber(2, Random(1))(queues, MESSAGE, None)
