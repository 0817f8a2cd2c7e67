"""Programs that own the simulated nodes: like a broker, they number their entries while appending.

Each process of a node has an owner. The owner learns of role changes late, waits for the barrier of a new
leader, continues after the last number in the committed log, and assigns numbers inside `fill`. The committed
log must therefore contain all numbers, once and in order. `OwnedLog` checks that, and the positions and times
passed to `fill`.
"""

from __future__ import annotations

from collections import deque
from random import Random

from dledger.core.values import Role
from dledger.errors import DLedgerError
from dledger.replica.owned_append import Assigned
from dledger.replica.shell import AppendOutcome, RoleNotice
from dledger.testing.checks.oracle import ClientAppend
from dledger.testing.checks.owned_log import OWNED_MARK
from dledger.testing.world import NodeLife

_RETRY_MS = 10


def _body(number: int, index: int, pos: int, stamp_ms: int, tag: bytes) -> bytes:
    """Return a body whose length does not depend on the number, because sizes are passed before numbers are
    known."""
    return b"%s%010d:%010d:%012d:%015d:%s" % (OWNED_MARK, number, index, pos, stamp_ms, tag)


class NumberingOwner:
    """The owner of one process of a node."""

    def __init__(self, process: NodeLife, rng: Random) -> None:
        self._process = process
        self._sim = process.sim
        self._rng = rng
        self._notices: deque[RoleNotice] = deque()  # not processed yet
        self._leads: tuple[int, int] | None = None  # (term, role_epoch) known to the owner
        self._barrier = -1
        self._next: int | None = None  # next number; None until it is recovered from the log
        self._made = 0
        self._unanswered = 0

    def start(self) -> None:
        self._process.after(self._rng.randint(0, self._sim.profile.think_max_ms), self._work)

    def role_changed(self, notice: RoleNotice) -> None:
        self._notices.append(notice)
        self._process.after(self._rng.choice((0, 0, 5, 60, 800)), self._process_notice)

    def died(self) -> None:
        pass

    def _process_notice(self) -> None:
        notice = self._notices.popleft()
        self._next = None
        leads = notice.role is Role.LEADER
        self._leads = (notice.term, notice.role_epoch) if leads else None
        self._barrier = notice.barrier_index

    def _work(self) -> None:
        log = self._sim.owned
        if log.is_stopped:
            return
        committed = self._process.replica.core.committed_index
        if self._leads is not None and self._next is None and committed >= self._barrier:
            self._next = log.numbers_upto(committed)
        if self._leads is None or self._next is None or self._unanswered >= self._sim.profile.window:
            self._process.after(_RETRY_MS, self._work)
            return
        self._append(self._leads)
        self._process.after(self._rng.randint(0, self._sim.profile.think_max_ms), self._work)

    def _append(self, expected: tuple[int, int]) -> None:
        sim, rng, profile = self._sim, self._rng, self._sim.profile
        count = rng.randint(1, profile.max_batch)
        max_bytes = 2000 if rng.random() < 0.05 else profile.body_max_bytes  # sometimes more than the limit
        tags = [self._tag() + b"x" * rng.randint(0, max_bytes) for _ in range(count)]
        append = ClientAppend([], None)

        def fill(assigned: Assigned) -> list[bytes]:
            assert self._next is not None
            first, self._next = self._next, self._next + len(tags)
            append.bodies = [
                _body(first + i, assigned.first_index + i, pos, assigned.stamp_ms, tag)
                for i, (tag, pos) in enumerate(zip(tags, assigned.positions, strict=True))
            ]
            sim.oracle.begin(append)
            return append.bodies

        def answered(answer: AppendOutcome | DLedgerError) -> None:
            self._unanswered -= 1
            if isinstance(answer, AppendOutcome):
                sim.counts["owners: acknowledged"] += 1
                sim.owned.completed += 1
            else:
                sim.counts[f"owners: {answer.code.name}"] += 1
            sim.oracle.answered(append, answer)

        sizes = [len(_body(0, 0, 0, 0, tag)) for tag in tags]
        try:
            self._process.append_batch(sizes, fill, expected, answered, profile.request_timeout_ms)
        except DLedgerError as error:
            sim.counts[f"owners: refused with {error.code.name}"] += 1
        else:
            self._unanswered += 1

    def _tag(self) -> bytes:
        self._made += 1
        return b"%s:%d:%d:" % (self._process.node_id.encode(), self._process.incarnation, self._made)
