"""What the RoleChangeHandler drives (the adapter) and what drives it (a node): two small protocols.

An adapter is a state machine's active side: a broker that takes messages, a scheduler that runs jobs,
whatever only one node of a group may do at a time. `examples/single_runner.py` is one that is no broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from dledger import RoleEvent


class BrokerAdapter(Protocol):
    """Implemented by whoever wants to be master on the leader, and slave elsewhere.

    The handler calls on the event loop, and begins no call before the one before it has ended. What it
    cancels was superseded by a newer role. A call that was cancelled or that raised may have left the adapter
    half way: each of `change_to_master` and `change_to_slave` brings it to its role from wherever it is.
    Between two leaderships there is always a `change_to_slave` that returned.

    An adapter begins refusing writes.
    """

    def refuse_writes(self) -> None:
        """From now on nothing is written, whatever else goes on. Called in the very step in which the node
        reports a change of role, even while another call is under way; cheap, idempotent, must not raise."""

    def accept_writes(self, term: int, role_epoch: int) -> None:
        """Writes are accepted from now on, each with `expected = (term, role_epoch)`; nothing else allows
        them. Called once `change_to_master` has returned and the role is still the same, in one step with
        that check, so that a slow or uncancellable `change_to_master` can never open a gate too late."""

    async def change_to_master(self, term: int, role_epoch: int) -> None:
        """Become master, except for writes: services on, broker id 0. Must not wait for any NameServer."""

    async def change_to_slave(self, term: int, role_epoch: int, leader_id: str | None) -> None:
        """Become slave, or stay it under another leader (None: none is known). Writes are refused already;
        services off. (term, role_epoch) is the role that made it slave."""

    async def wait_dispatched(self, index: int) -> None:
        """Until all that is derived from the log and that a master needs covers the entry at `index`:
        ConsumeQueues and metadata, while the IndexFile may lag. TimeoutError or a `dledger.DLedgerError`
        says that it will not wait longer: it is asked again then, and that is no failure."""

    def recover_topic_queue_table(self) -> Awaitable[None] | None:
        """Take the next offset of every queue from what was dispatched. Long work belongs on a thread."""

    @property
    def dispatch_behind_bytes(self) -> int:
        """How far dispatch is behind what is committed here. Asked for several times a second; must not
        block."""


class RoleSource(Protocol):
    """What the handler asks of a node; `dledger.NodeServer` is one."""

    def on_role(self, listener: Callable[[RoleEvent], None]) -> object:
        """`listener` is called on the event loop, in order, for every change of role, term or leader, and at
        once with the last one, if there was any. (role_epoch, term) never falls."""

    @property
    def committed_index(self) -> int: ...
    @property
    def applied_index(self) -> int: ...

    async def wait_committed(self, index: int, timeout_ms: int) -> object:
        """Until committed_index >= index. A DLedgerError after timeout_ms: it is asked again."""

    def report_fitness(self, *, lag_bytes: int, fit: bool) -> None:
        """What the leader, this node or another, is to know before it hands leadership over to this node."""

    async def hand_over(self) -> bool:
        """Give leadership to a peer that is fit and whose lag is less than ours (any, if we are not fit).
        False, or a DLedgerError: there is none, or it failed."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The monotonic clock, as an event loop has it."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer: ...
