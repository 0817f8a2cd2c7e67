"""Every line of a stream is accounted for, in order, and memory is bounded."""

from __future__ import annotations

import asyncio
import io

import pytest

from broker_adapter.cli.messages.line_sender import StoredLines
from broker_adapter.cli.messages.produce_command import MAX_LINES, ProduceRun, ProduceTally
from broker_adapter.errors import BrokerError, Busy, PutIndeterminate, Status
from dledger.cli.line_source import LineBatch, LineBatches


def batches(data: bytes, max_line_bytes: int = 100) -> LineBatches:
    return LineBatches(io.BytesIO(data), batch_bytes=1000, batch_entries=50, max_line_bytes=max_line_bytes)


class FakeTopic:
    """One queue. Fails from call number `fail_at` on; answers wait while `held`."""

    def __init__(self, fail_at: int = -1, error: BrokerError | None = None) -> None:
        self.bodies: list[bytes] = []
        self.calls = 0
        self.under_way = 0
        self.most = 0
        self.held = asyncio.Event()
        self.held.set()
        self._fail_at = fail_at
        self._error = error

    async def send(self, body: bytes) -> StoredLines:
        call = self.calls
        self.calls += 1
        if self._error is not None and call >= self._fail_at:
            raise self._error
        offset = len(self.bodies)
        self.bodies.append(body)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.held.wait()
        await asyncio.sleep(0)
        self.under_way -= 1
        return StoredLines(0, offset)


async def test_every_line_is_one_message_in_order() -> None:
    topic = FakeTopic()
    tally = await ProduceRun(topic.send, batches(b"a\n\nb\nlast")).run()
    assert topic.bodies == [b"a", b"", b"b", b"last"]
    assert (tally.acknowledged, tally.failed, tally.indeterminate) == (4, 0, 0)
    assert tally.last_offsets == {0: 3} and tally.bytes == 6 and tally.error is None


async def test_no_more_are_under_way_than_the_limit() -> None:
    topic = FakeTopic()
    topic.held.clear()
    run = asyncio.create_task(ProduceRun(topic.send, batches(b"x\n" * (3 * MAX_LINES))).run())
    while topic.under_way < MAX_LINES:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert topic.under_way == MAX_LINES
    topic.held.set()
    tally = await run
    assert tally.acknowledged == 3 * MAX_LINES
    assert topic.most == MAX_LINES


@pytest.mark.parametrize(
    ("error", "is_doubt"),
    [
        (Busy(Status.DISK_FULL, "full"), False),
        (PutIndeterminate(Status.OUTCOME_UNKNOWN, "?"), True),
    ],
)
async def test_after_a_failure_nothing_more_is_read(error: BrokerError, is_doubt: bool) -> None:
    topic = FakeTopic(3, error)
    tally = await ProduceRun(topic.send, batches(b"x\n" * 100_000)).run()
    assert tally.acknowledged == 3
    assert tally.error is error and tally.error_line == 4
    assert (tally.indeterminate > 0, tally.failed > 0) == (is_doubt, not is_doubt)
    assert tally.acknowledged + tally.failed + tally.indeterminate == topic.calls < 100_000


async def test_a_line_too_long_ends_the_run_behind_what_was_good() -> None:
    topic = FakeTopic()
    tally = await ProduceRun(topic.send, batches(b"ok\n" + b"x" * 30 + b"\nnever\n", 20)).run()
    assert topic.bodies == [b"ok"]
    assert (tally.acknowledged, tally.failed, tally.error_line) == (1, 1, 2)
    assert tally.error is not None and tally.error.status is Status.BODY_TOO_LARGE


async def test_what_was_under_way_at_an_interruption_is_in_doubt() -> None:
    topic = FakeTopic()
    topic.held.clear()
    run = ProduceRun(topic.send, batches(b"x\n" * 5))
    task = asyncio.create_task(run.run())
    while topic.under_way < 5:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (run.tally.acknowledged, run.tally.indeterminate) == (0, 5)


def test_the_first_failure_by_line_is_the_one_that_is_shown() -> None:
    tally = ProduceTally()
    tally.fail(LineBatch(7, [b"x"]), Busy(Status.TOO_MANY_CALLS, "later"), is_indeterminate=False)
    tally.fail(
        LineBatch(3, [b"x", b"y"]), PutIndeterminate(Status.OUTCOME_UNKNOWN, "?"), is_indeterminate=True
    )
    assert tally.error_line == 3 and isinstance(tally.error, PutIndeterminate)
    assert (tally.failed, tally.indeterminate) == (1, 2)
