"""The demo of the broker tells the truth: its verdict is OK only when everything is there, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from broker_adapter.cli.demo import broker_demo
from broker_adapter.cli.demo.demo_check import Queue, Stored
from broker_adapter.cli.demo.demo_load import BrokerLoad
from broker_adapter.client import SendReceipt
from broker_adapter.errors import BrokerError, Busy, PutIndeterminate, Status

from .conftest import BrokerCommand

LINES = [b"line %d" % i for i in range(600)]
QUEUES: list[Queue] = [("a", 0), ("a", 1), ("b", 0)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(b"\n".join(LINES))
    return path


@pytest.mark.process
@pytest.mark.xdist_group("broker-cli-demo")
def test_two_dead_masters_and_nothing_lost(command: BrokerCommand, text: Path, tmp_path: Path) -> None:
    shown = command("demo", "--input", str(text), "--dir", str(tmp_path / "d")).stdout
    assert shown.count("\nSIGKILL ") == 2
    assert shown.count("\nfailover ") == 2
    assert shown.count("every acknowledged line at its offset, in order") == 3
    assert "none ever went back" in shown
    assert "deliveries: every message, in order" in shown
    assert "OK         600 lines in 12 queues on 3 nodes and at the group, none lost, in order" in shown


def lose(found: list[Stored]) -> None:
    del found[7]


def alter(found: list[Stored]) -> None:
    found[3] = found[3]._replace(body=b"other")


def exchange(found: list[Stored]) -> None:
    found[4], found[5] = found[5]._replace(offset=4), found[4]._replace(offset=5)


@pytest.mark.process
@pytest.mark.xdist_group("broker-cli-demo")
def test_spoiled_queues_are_a_failure(
    command: BrokerCommand, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node's queues are spoiled in another way before the demo sees them."""
    read_node = broker_demo.read_node
    spoilers: Iterator[Callable[[list[Stored]], None]] = iter((lose, alter, exchange))

    async def read_spoiled(address: str, queues: Sequence[Queue]) -> dict[Queue, list[Stored]]:
        found = await read_node(address, queues)
        next(spoilers)(found[queues[2]])
        return found

    monkeypatch.setattr(broker_demo, "read_node", read_spoiled)
    shown = command("demo", "--input", str(text), "--dir", str(tmp_path / "d"), code=1).stdout
    for fault in ("1 missing", "1 altered", "2 altered"):
        assert f"FAILED: {fault}" in shown
    assert "the queues of the nodes differ" in shown
    assert "\nFAILED     see above" in shown
    assert "\nOK " not in shown


# -- the load, without a cluster


class FakeBroker:
    """Answers at once, in the order of calls; fails from call number `fail_at` on."""

    def __init__(self, fail_at: int = -1, error: BrokerError | None = None) -> None:
        self.sent: dict[Queue, list[tuple[str, bytes]]] = {}
        self.calls = 0
        self._fail_at = fail_at
        self._error = error

    async def send(
        self, topic: str, body: bytes, *, tag: str | None, keys: str, queue_id: int | None
    ) -> SendReceipt:
        call, self.calls = self.calls, self.calls + 1
        assert queue_id is not None
        queue = self.sent.setdefault((topic, queue_id), [])
        if self._error is not None and call >= self._fail_at:
            raise self._error
        queue.append((keys, body))
        offset = len(queue) - 1
        await asyncio.sleep(0)
        return SendReceipt(topic, "b", queue_id, offset, "", "")


async def test_the_load_sends_every_line_once_to_its_queue_in_order() -> None:
    broker = FakeBroker()
    load = BrokerLoad(broker, LINES, QUEUES)
    await load.run()
    assert [one.line for one in load.acknowledged] == list(range(1, 601))
    for number, queue in enumerate(QUEUES):
        lines = [n for n in range(1, 601) if n % 3 == number]
        assert broker.sent[queue] == [(str(n), LINES[n - 1]) for n in lines]
    assert await load.until_acknowledged(load.batches)
    assert await load.until_served_again(float("inf"), 1) is None
    assert await load.until_served_again(0.0, 1) is not None


async def test_a_gate_holds_the_load_back() -> None:
    load = BrokerLoad(FakeBroker(), LINES, QUEUES)
    gate = load.gate(load.in_flight)
    running = asyncio.create_task(load.run())
    assert await load.until_acknowledged(load.in_flight)
    for _ in range(100):
        await asyncio.sleep(0)
    assert load.acknowledged_lines == load.in_flight * load.batch_lines
    gate.open()
    await running
    assert load.acknowledged_lines == len(LINES)


@pytest.mark.parametrize(
    ("error", "failed", "in_doubt"),
    [
        (Busy(Status.DISK_FULL, "full"), True, False),
        (PutIndeterminate(Status.OUTCOME_UNKNOWN, "?"), False, True),
    ],
)
async def test_a_failure_ends_the_load_and_opens_the_gates(
    error: BrokerError, failed: bool, in_doubt: bool
) -> None:
    load = BrokerLoad(FakeBroker(30, error), LINES, QUEUES)
    load.gate(150)
    await load.run()
    assert load.error is error and load.has_failed
    assert (load.failed > 0, len(load.in_doubt) > 0) == (failed, in_doubt)
    assert load.acknowledged_lines == 30
    assert not await load.until_acknowledged(load.batches)
