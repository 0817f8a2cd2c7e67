"""The demo tells the truth: its verdict is OK only when everything is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dledger.cli.demo import demo as demo_module
from dledger.cli.demo.demo_input import default_input, read_lines
from dledger.cli.demo.demo_load import IN_FLIGHT, MIN_LINES, Ack, DemoLoad
from dledger.cli.demo.log_check import Found
from dledger.client import AppendResult
from dledger.errors import DLedgerError, Indeterminate, Refused

from .conftest import Command

LINES = [b"line %d" % i for i in range(600)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(b"\n".join(LINES))
    return path


@pytest.mark.process
@pytest.mark.xdist_group("cli-demo")
def test_two_dead_leaders_and_nothing_lost(command: Command, text: Path, tmp_path: Path) -> None:
    shown = command("demo", "--input", str(text), "--dir", str(tmp_path / "d")).stdout
    assert shown.count("\nSIGKILL ") == 2
    assert shown.count("\nfailover ") == 2
    assert shown.count("every acknowledged line once, at its index, in order") == 3
    assert "OK         600 lines on 3 nodes, each once and in order, through 2 killed leaders" in shown
    assert (tmp_path / "d" / "cluster.json").exists()


def lose(found: list[Found]) -> list[Found]:
    return found[:100] + found[101:]


def repeat(found: list[Found]) -> list[Found]:
    return [*found, Found(found[-1].index + 1, found[5].body)]


def alter(found: list[Found]) -> list[Found]:
    return [*found[:7], Found(found[7].index, b"other"), *found[8:]]


@pytest.mark.process
@pytest.mark.xdist_group("cli-demo")
def test_a_spoiled_log_is_a_failure(
    command: Command, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node's log is spoiled in another way before the demo sees it."""
    read_node = demo_module.read_node
    spoilers: Iterator[Callable[[list[Found]], list[Found]]] = iter((lose, repeat, alter))

    async def read_spoiled(address: str) -> list[Found]:
        return next(spoilers)(await read_node(address))

    monkeypatch.setattr(demo_module, "read_node", read_spoiled)
    shown = command("demo", "--input", str(text), "--dir", str(tmp_path / "d"), code=1).stdout
    for fault in ("1 missing", "1 duplicated", "1 altered"):
        assert f"FAILED: {fault}" in shown
    assert "\nFAILED     see above" in shown
    assert "\nOK " not in shown


def test_an_input_too_short_is_a_usage_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("one\ntwo\n")
    assert f"needs {MIN_LINES} or more" in command("demo", "--input", str(tmp_path / "short"), code=2).stderr


def test_the_default_input_is_long_enough() -> None:
    assert sum(len(read_lines(path)) for path in default_input()) >= 10_000


def test_lines_are_split_as_append_splits_them(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\n\nb\r\nlast")
    assert read_lines(tmp_path / "text") == [b"a", b"", b"b\r", b"last"]


# -- the load, without a cluster


class FakeLog:
    def __init__(self, fail_at: int = -1, error: DLedgerError | None = None) -> None:
        self.bodies: list[bytes] = []
        self.calls = 0
        self._fail_at = fail_at
        self._error = error

    async def append_many(self, bodies: Sequence[bytes], /) -> list[AppendResult]:
        call, self.calls = self.calls, self.calls + 1
        await asyncio.sleep(0)
        if self._error is not None and call >= self._fail_at:
            raise self._error
        first = len(self.bodies)
        self.bodies += bodies
        return [AppendResult(first + i, 1, 0) for i in range(len(bodies))]


async def test_the_load_appends_every_line_once_in_order() -> None:
    log = FakeLog()
    load = DemoLoad(log, LINES)
    await load.run()
    assert log.bodies == LINES
    assert [(a.line, a.body) for a in load.acknowledged] == list(enumerate(LINES, start=1))
    assert load.acks[-1].lines == len(LINES)
    assert await load.until_acknowledged(load.batches)
    assert await load.until_acknowledged_after(1) is None


async def test_a_gate_holds_the_load_back() -> None:
    load = DemoLoad(FakeLog(), LINES)
    gate = load.gate(IN_FLIGHT)
    running = asyncio.create_task(load.run())
    assert await load.until_acknowledged(IN_FLIGHT)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(load.acks) == IN_FLIGHT
    gate.open()
    await running
    assert len(load.acknowledged) == len(LINES)


@pytest.mark.parametrize(
    ("error", "failed", "in_doubt"), [(Refused("no"), True, False), (Indeterminate("?"), False, True)]
)
async def test_a_failure_ends_the_load_and_opens_the_gates(
    error: DLedgerError, failed: bool, in_doubt: bool
) -> None:
    load = DemoLoad(FakeLog(10, error), LINES)
    load.gate(50)
    await load.run()
    assert load.error is error
    assert (load.failed > 0, len(load.in_doubt) > 0) == (failed, in_doubt)
    assert len(load.acknowledged) == 10 * load.batch_lines
    assert not await load.until_acknowledged(11)


def test_the_silence_is_the_longest_gap_around_the_kill() -> None:
    load = DemoLoad(FakeLog(), LINES)
    # 10.0 was answered before the kill at 10.05; 10.06 was on its way; 11.0 came from the successor.
    load.acks = [Ack(at, term, 0) for at, term in [(9.0, 1), (10.0, 1), (10.06, 1), (11.0, 1), (11.1, 2)]]
    assert load.longest_silence(10.05, 11.1) == pytest.approx(0.94)
    load.acks = [Ack(10.0, 1, 0), Ack(10.5, 2, 0)]
    assert load.longest_silence(10.2, 10.5) == pytest.approx(0.5)
