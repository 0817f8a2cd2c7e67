"""The real shell, with a check of the invariants after every step of the replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.core.messages import Message
from dledger.errors import DLedgerError, InvalidRequest
from dledger.node.async_shell import AsyncShell
from dledger.replica.rebuild_job import RebuildJob, RebuildResult
from dledger.replica.shell import AppendHandle, AppendOutcome, DiskJob, ResetJob, RoleNotice
from dledger.store.api import EntryDamaged
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import NodeLife


class SimShell(AsyncShell):
    """A shell with checks. Call `observe` before `start`. Findings and exceptions of the replica fail the
    loop of the process."""

    def observe(self, process: NodeLife) -> None:
        self._process = process
        self._sim = process.sim
        self._in_step = False
        self.done = 0  # number of effects of the replica: sends, answers, disk jobs and role changes

    def note(self, what: str, *details: object) -> None:
        self._sim.trace.add(self._sim.clock.now_ms, self._process.node_id, what, *details)

    # -- into the replica

    def _step(self, work: Callable[..., None], *arguments: object, **options: object) -> None:
        super()._step(self._checked, work, arguments, options)

    def _next_tick_ms(self, now_ms: int) -> int:
        return super()._next_tick_ms(now_ms) if self._process.sleeps else now_ms

    def _checked(
        self,
        now_ms: int,
        work: Callable[..., None],
        arguments: tuple[object, ...],
        options: dict[str, object],
    ) -> None:
        assert not self._in_step, "a shell never calls back into its replica"
        self._in_step = True
        try:
            work(now_ms, *arguments, **options)
        finally:
            self._in_step = False
        self._sim.invariants.after_step(self._process)
        self._sim.cluster_time.after_step(self._process)

    def _broken(self, error: Exception) -> None:
        self.give_up()
        self._process.loop.fail(error)

    def receive(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        self.note("<-", peer, message)
        super().receive(peer, message, payload)

    def peer_answered(self, peer: str, message: Message) -> None:
        self.note("<-", peer, message)
        super().peer_answered(peer, message)

    def stream_up(self, peer: str, stream_id: int, incarnation: int) -> None:
        self.note(f"stream {stream_id} up to", peer)
        super().stream_up(peer, stream_id, incarnation)

    def stream_down(self, peer: str, stream_id: int) -> None:
        self.note(f"stream {stream_id} down to", peer)
        super().stream_down(peer, stream_id)

    def leader_stream_lost(self, leader_id: str, stream_id: int) -> None:
        self._sim.counts["leader streams lost"] += 1
        self.note(f"stream {stream_id} lost from", leader_id)
        super().leader_stream_lost(leader_id, stream_id)

    # -- out of the replica

    def send(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        self.done += 1
        self.note("->", peer, message)
        self._sim.invariants.sent(self._process, peer, message)
        super().send(peer, message, payload)

    def submit(self, job: DiskJob) -> None:
        self.done += 1
        self.note("disk", job)
        self._sim.invariants.submitted(self._process, job)
        super().submit(job)
        if isinstance(job, ResetJob):
            self._process.log_is_replaced()

    def rebuild(self, job: RebuildJob) -> None:
        if job.behind >= 0:
            self._sim.counts["rebuilds behind damage that others have purged"] += 1
        super().rebuild(job)

    def _log_read(
        self, job: RebuildJob, reading: asyncio.Future[RebuildResult | EntryDamaged | None]
    ) -> None:
        if not reading.cancelled() and reading.exception() is None:
            self._sim.counts["damages found by a rebuild"] += isinstance(reading.result(), EntryDamaged)
        super()._log_read(job, reading)

    def rebuilt(self) -> None:
        self.note("sessions are rebuilt")
        super().rebuilt()

    def load_push(self, peer: str, stream_id: int, first_index: int, last_index: int, max_bytes: int) -> None:
        self._sim.counts["pushes loaded from disk"] += 1
        super().load_push(peer, stream_id, first_index, last_index, max_bytes)

    def answer_append(self, token: AppendHandle, outcome: AppendOutcome | DLedgerError) -> None:
        self.done += 1
        self.note("append answered:", outcome)
        if isinstance(outcome, AppendOutcome) and outcome.index >= 0:
            self._sim.invariants.acknowledged(self._process, outcome.index + max(outcome.count, 1) - 1)
        super().answer_append(token, outcome)

    def answer_read(self, token: object, outcome: int | DLedgerError) -> None:
        self.done += 1
        self.note("read answered:", outcome)
        super().answer_read(token, outcome)

    def answer_transfer(self, token: object, outcome: DLedgerError | None) -> None:
        self.done += 1
        self.note("transfer answered:", outcome)
        super().answer_transfer(token, outcome)

    def refused(self, peer: str, message: Message, error: InvalidRequest) -> None:
        """Raise a Violation: correct nodes never send messages that are refused."""
        raise Violation("term", f"{self._process.node_id} refused a message from {peer}: {error}")

    def role_changed(self, notice: RoleNotice) -> None:
        self.done += 1
        self.note(
            f"{notice.role.value} term={notice.term} epoch={notice.role_epoch & 0xFFFFFFFF}"
            f" leader={notice.leader_id} ({notice.cause})"
        )
        self._sim.invariants.role_changed(self._process, notice)
        self._sim.roles.append((self._sim.clock.now_ms, self._process.node_id, notice))
        super().role_changed(notice)

    def committed(self, committed_index: int) -> None:
        self.note(f"committed {committed_index}")
        self._sim.invariants.advanced(self._process, committed_index)
        super().committed(committed_index)
        self._process.committed(committed_index)
