"""Every line of a stream is accounted for, whatever becomes of its batch."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Sequence

import pytest

from dledger.cli import search_notice
from dledger.cli.append_command import AppendRun
from dledger.cli.line_source import LineBatches
from dledger.client.values import AppendResult
from dledger.errors import Code, DLedgerError, Indeterminate, Overloaded, Refused

from .conftest import Command


class FakeLog:
    """A log that may fail batches by number, and that remembers how many were in flight at once."""

    def __init__(self, failures: dict[int, DLedgerError] | None = None) -> None:
        self.bodies: list[bytes] = []
        self.calls = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._failures = failures or {}

    async def append_many(self, bodies: Sequence[bytes], /) -> list[AppendResult]:
        call = self.calls
        self.calls += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            if call in self._failures:
                raise self._failures[call]
            first = len(self.bodies)
            self.bodies += bodies
            return [AppendResult(first + i, 1, 0) for i in range(len(bodies))]
        finally:
            self.in_flight -= 1


def lines_of(data: bytes, *, entries: int = 10) -> LineBatches:
    return LineBatches(io.BytesIO(data), batch_bytes=1 << 20, batch_entries=entries, max_line_bytes=100)


DATA = b"".join(b"line %d\n" % i for i in range(95))


async def test_all_lines_arrive_in_order() -> None:
    log = FakeLog()
    tally = await AppendRun(log, lines_of(DATA), in_flight=4).run()
    assert log.bodies == DATA.splitlines()
    assert (tally.acknowledged, tally.failed, tally.indeterminate) == (95, 0, 0)
    assert (tally.first_index, tally.last_index) == (0, 94)
    assert tally.bytes == sum(map(len, DATA.splitlines()))
    assert tally.error is None


async def test_several_batches_are_in_flight_but_no_more() -> None:
    log = FakeLog()
    await AppendRun(log, lines_of(DATA), in_flight=4).run()
    assert log.most_in_flight == 4


async def test_an_empty_stream() -> None:
    tally = await AppendRun(FakeLog(), lines_of(b""), in_flight=4).run()
    assert (tally.acknowledged, tally.last_index, tally.error) == (0, -1, None)


async def test_a_refused_batch_is_failed_and_ends_the_reading() -> None:
    log = FakeLog({2: Overloaded("full", code=Code.DISK_FULL)})
    tally = await AppendRun(log, lines_of(DATA), in_flight=1).run()
    assert (tally.acknowledged, tally.failed, tally.indeterminate) == (20, 10, 0)
    assert log.calls == 3
    assert tally.error is not None
    assert tally.error.code is Code.DISK_FULL
    assert tally.error_line == 21


async def test_an_indeterminate_batch_is_counted_as_such() -> None:
    log = FakeLog({1: Indeterminate("no answer"), 2: Refused("gap", code=Code.SESSION_GAP)})
    tally = await AppendRun(log, lines_of(DATA), in_flight=3).run()
    assert (tally.acknowledged, tally.failed, tally.indeterminate) == (10, 10, 10)
    assert isinstance(tally.error, Indeterminate)
    assert tally.error_line == 11


async def test_a_line_over_the_limit_is_named() -> None:
    tally = await AppendRun(FakeLog(), lines_of(b"a\n" + b"x" * 101 + b"\nb\n"), in_flight=2).run()
    assert (tally.acknowledged, tally.failed) == (1, 1)
    assert tally.error is not None
    assert tally.error.code is Code.BODY_TOO_LARGE
    assert "line 2 " in str(tally.error)


async def test_a_failure_does_not_wait_for_a_silent_pipe() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        os.write(write_end, b"one\n")
        batches = LineBatches(pipe, batch_bytes=100, batch_entries=10, max_line_bytes=100)
        tally = await AppendRun(FakeLog({0: Refused("no")}), batches, in_flight=2).run()
        assert tally.failed == 1
        os.close(write_end)


async def test_what_is_in_flight_when_interrupted_is_in_doubt() -> None:
    log = FakeLog()
    log.gate.clear()
    run = AppendRun(log, lines_of(DATA), in_flight=2)
    task = asyncio.create_task(run.run())
    while log.in_flight < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (run.tally.acknowledged, run.tally.indeterminate) == (0, 20)


async def test_progress_is_told() -> None:
    seen: list[int] = []
    run = AppendRun(FakeLog(), lines_of(DATA), in_flight=1, on_progress=lambda t: seen.append(t.acknowledged))
    await run.run()
    assert seen == [*range(10, 95, 10), 95]


def test_an_append_that_finds_no_leader_says_why_while_it_waits(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_notice, "_PAUSE_SECONDS", 0.05)
    result = command("append", "--servers", "127.0.0.1:1", "--timeout", "1.5", stdin=b"a\n", code=1)
    waiting, summary, error, _ = result.stderr.splitlines()
    assert waiting == (
        "still waiting: no leader was found yet; 127.0.0.1:1: connection refused: no server listens there"
    )
    assert summary == "0 lines acknowledged, 1 failed"
    assert error.startswith("error 302 NETWORK_ERROR: no leader was found in time; 127.0.0.1:1: ")
