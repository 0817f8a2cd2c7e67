"""What a program that owns a node in its process may do with it, beside serving it: see `OwnerFace`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter

from dledger.errors import Code, DLedgerError, Indeterminate, NotLeader
from dledger.node.applier import Applier
from dledger.node.async_shell import AsyncShell, monotonic_ms
from dledger.node.config import NodeConfig
from dledger.node.metrics import NodeMetrics
from dledger.node.owned_append import Fill
from dledger.node.readable import ReadableLog
from dledger.node.replica import Replica
from dledger.node.role_events import RoleEvents, RoleListener
from dledger.node.shell import AppendOutcome


class _OwnedAppend:
    """One batch of the owner, until it is answered (dledger.rpc.ports.AppendToken)."""

    __slots__ = ("_metrics", "_open", "_started", "future")

    def __init__(self, open_appends: set[_OwnedAppend], metrics: NodeMetrics) -> None:
        self._open = open_appends
        self._metrics = metrics
        self._started = perf_counter()
        self.future: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()

    def answer(self, outcome: AppendOutcome | DLedgerError) -> None:
        self._open.discard(self)
        if self.future.done():  # whoever waited has cancelled it
            return
        if isinstance(outcome, DLedgerError):
            self.future.set_exception(outcome)
        else:
            self._metrics.append_latency.observe(perf_counter() - self._started)
            self.future.set_result(outcome)


class OwnerFace:
    """The half of NodeServer that is for the program around it. On the node's event loop, and after `start`
    except where it says otherwise."""

    config: NodeConfig
    metrics: NodeMetrics
    _replica: Replica
    _shell: AsyncShell
    _readable: ReadableLog
    _applier: Applier
    _stopping: bool

    def __init__(self) -> None:
        self._role_events = RoleEvents()
        self._open_appends: set[_OwnedAppend] = set()

    # -- appending ----------------------------------------------------------------------------------------

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout_ms: int = 0
    ) -> asyncio.Future[AppendOutcome]:
        """Append a batch with bodies of `sizes` bytes, all of it or none.

        The batch is judged, then `fill` is called once with the places of its bodies and gives the bodies,
        which are copied before this returns. `expected` is the (term, role_epoch) of the leadership that the
        caller believes in. `fill` must not append. `timeout_ms` 0: as the configuration says.

        Raised, with nothing changed: NotLeader (ROLE_EPOCH_CHANGED if this node leads, but not as expected),
        Overloaded (LEADER_PENDING_FULL, DISK_FULL), InvalidRequest, all before `fill` is called; ValueError
        if the bodies are not of `sizes`; whatever `fill` raises.

        The future ends once it is known what became of the batch: the outcome, when it is committed;
        Indeterminate (WAIT_QUORUM_ACK_TIMEOUT, TERM_CHANGED, or INTERNAL_ERROR as the node stops): it may be,
        now or later; NotLeader: it was not stored, and never will be. Cancelling it takes nothing back.
        """
        if self._stopping:
            raise NotLeader("this node is stopping")
        limits = self.config.limits
        timeout_ms = min(timeout_ms or limits.append_timeout_ms, limits.max_append_timeout_ms)
        token = _OwnedAppend(self._open_appends, self.metrics)
        self._shell.append_batch(token, sizes, fill, expected, timeout_ms)
        self._open_appends.add(token)
        return token.future

    def _leave_appends_open(self) -> None:
        """The node stops: nobody is left waiting."""
        error = Indeterminate("the node is stopping", code=Code.INTERNAL_ERROR)
        for token in list(self._open_appends):
            token.answer(error)

    # -- roles --------------------------------------------------------------------------------------------

    def on_role(self, listener: RoleListener) -> None:
        """Call `listener` with every change of role, term or leader from now on, in order; and at once with
        the last one, if there was any. Also before `start`. What it raises is logged."""
        self._role_events.listen(listener)

    @property
    def term(self) -> int:
        return self._replica.core.term

    @property
    def role_epoch(self) -> int:
        return self._replica.core.role_epoch

    @property
    def leader_id(self) -> str | None:
        return self._replica.core.leader_id

    # -- positions ----------------------------------------------------------------------------------------

    @property
    def committed_index(self) -> int:
        """Highest index that this node knows to be committed; -1: none."""
        return self._replica.core.committed_index

    @property
    def committed_pos(self) -> int:
        """Position in bytes after the entry at committed_index."""
        return self._replica.committed_pos

    @property
    def applied_index(self) -> int:
        """Highest index that the state machine has applied; without one, that could be read here."""
        return self._applier.applied_index

    def cluster_time_ms(self) -> int:
        """The time that the log agrees on, in ms since the Unix epoch, as this node reckons it."""
        return self._replica.admission.state.clock.read(monotonic_ms(), self._replica.wall_ms())

    async def wait_committed(self, index: int, timeout_ms: int = 5000) -> None:
        """Until all up to `index` is committed, and stored on this node, so that it can be read here.
        ReadFailed after `timeout_ms` or when the node stops; Overloaded."""
        await self._readable.wait(index, timeout_ms)
