"""The auditor's operations, on brokers in memory: what is asked, and what the answers say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

from broker_adapter.api import TopicConfig
from broker_adapter.client import Producer
from chaos.trace.schema import Ev, problems
from chaos.trace.writer import TraceWriter
from chaos.workloads.auditor import Auditor
from chaos.workloads.spec import LoadSpec, Setting
from tests.broker_adapter.client.helpers import routes_to, until
from tests.broker_adapter.memory_broker import MemoryBrokers


async def test_every_kind_is_asked_and_answers_follow_what_was_stored(tmp_path: Path) -> None:
    writers: list[TraceWriter] = []

    def new_writer(src: str) -> TraceWriter:
        writers.append(TraceWriter(tmp_path, "r", src))
        return writers[-1]

    async with MemoryBrokers() as brokers, routes_to(brokers) as routes, Producer(routes) as producer:
        await brokers.cluster.brokers[0].put_topic(TopicConfig("t", 1, 1))
        await producer.send_many("t", [b"a", b"b"])
        stop = asyncio.Event()
        auditor = Auditor(Setting(LoadSpec(), Random(1), new_writer), routes, ["t"], 1, (0, 0))
        running = asyncio.create_task(auditor.run(stop))
        await until(lambda: writers[0].lines > 1 + 2 * 10)
        stop.set()
        await running
    [writer] = writers
    writer.close()
    lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert not [found for line in lines for found in problems(line)]
    answers: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["ev"] == Ev.OP and line["type"] == "ok":
            answers.setdefault(line["f"], []).append(line)
    assert set(answers) == {"route", "max_off", "min_off", "commit_off", "fetch_off"}
    assert {line["term"] for line in answers["route"]} == {1}
    assert {line["max_off"] for line in answers["max_off"]} == {2}
    assert {line["min_off"] for line in answers["min_off"]} == {0}
    stored = [line["off"] for line in lines if line.get("f") == "commit_off" and line["type"] == "invoke"]
    assert stored == list(range(1, 1 + len(stored)))
    assert [line["off"] for line in answers["fetch_off"]] == stored[: len(answers["fetch_off"])]
