"""Use the RoleChangeHandler without a broker: run a job repeatedly on one node of a group, with failover.

Each run is an entry of the log, appended with the expected `(term, role_epoch)`. The log rejects the entry if
the leadership has changed, so runs of a deposed leader do not count. A new leader reads the number of the
next
run from the log.

    node = NodeServer(config, runner.runs, owned=True)
    await node.start()
    handler = RoleChangeHandler(node, runner)
    handler.start()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from dledger import AppendOutcome, AppliedEntry, Assigned, DLedgerError

Job = Callable[[int], None]

_BODY_BYTES = len(b"run %012d" % 0)


class Runs:
    """State machine that counts runs. Implements dledger.StateMachine."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        self.count += len(entries)

    def save(self) -> Iterable[bytes]:
        yield b"%d" % self.count

    def load(self, chunks: Iterable[bytes]) -> None:
        self.count = int(b"".join(chunks) or b"0")


class Log(Protocol):
    """The part of `dledger.NodeServer` that the runner needs."""

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int: ...

    def append_batch(
        self, sizes: Sequence[int], fill: Callable[[Assigned], Sequence[bytes]], *, expected: tuple[int, int]
    ) -> asyncio.Future[AppendOutcome]: ...


class SingleRunner:
    """Implements broker_adapter.role.adapter.BrokerAdapter.

    `job` receives the number of each run once its entry is committed. `next_due` waits for the next run's
    time.
    """

    def __init__(self, job: Job, next_due: Callable[[], Awaitable[None]]) -> None:
        self.runs = Runs()
        self.log: Log | None = None  # the node; set later, because its constructor needs `runs`
        self._job = job
        self._next_due = next_due
        self._next_number = 0
        self._expected: tuple[int, int] | None = None
        self._task: asyncio.Task[None] | None = None

    def refuse_writes(self) -> None:
        self._expected = None

    def accept_writes(self, term: int, role_epoch: int) -> None:
        self._expected = (term, role_epoch)

    async def change_to_master(self, term: int, role_epoch: int) -> None:
        await self._end_task()
        self._task = asyncio.create_task(self._run_repeatedly())

    async def change_to_slave(self, term: int, role_epoch: int, leader_id: str | None) -> None:
        await self._end_task()

    async def wait_dispatched(self, index: int) -> None:
        assert self.log is not None
        await self.log.wait_applied(index)

    def recover_topic_queue_table(self) -> None:
        """Recover the number of the next run, the only state of this program."""
        self._next_number = self.runs.count

    @property
    def dispatch_behind_bytes(self) -> int:
        return 0

    async def _run_repeatedly(self) -> None:
        assert self.log is not None
        while True:
            await self._next_due()
            if self._expected is None:
                continue
            number = self._next_number
            try:
                await self.log.append_batch([_BODY_BYTES], self._build_entry, expected=self._expected)
            except DLedgerError:
                # The append was refused because the leadership has ended, or its outcome is unknown. In the
                # latter case the number may be used although the job does not run.
                continue
            self._job(number)

    def _build_entry(self, assigned: Assigned) -> Sequence[bytes]:
        """Build the entry. The log calls this when it assigns the index, so numbers have no gaps or
        duplicates.
        """
        number = self._next_number
        self._next_number += 1
        return [b"run %012d" % number]

    async def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
