"""Protocols between the RoleChangeHandler, its adapter and its node.

An adapter is the part of a program that must be active on only one node of a group at a time, such as a
broker that accepts messages or a scheduler that runs jobs. `examples/single_runner.py` shows an adapter that
is not a broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from dledger import RoleEvent


class BrokerAdapter(Protocol):
    """Becomes master on the leader and slave on every other node.

    The handler calls the adapter on the event loop, one call at a time. It cancels a call when a newer role
    supersedes it. A call that was canceled or raised an exception may leave the adapter in an intermediate
    state, so `change_to_master` and `change_to_slave` must work from any state. Between two terms as leader,
    one `change_to_slave` always completes. A new adapter refuses writes.
    """

    def refuse_writes(self) -> None:
        """Refuse all writes until the next `accept_writes`.

        Called in the same event loop step in which the node reports a change of role, even while another call
        is running. It must be cheap and idempotent, and must not raise exceptions.
        """

    def accept_writes(self, term: int, role_epoch: int) -> None:
        """Accept writes, each of which expects the role `(term, role_epoch)`. No other call enables writes.

        Called after `change_to_master` has returned, in the same event loop step as the check that the role
        is unchanged. A `change_to_master` that is slow or ignores cancellation therefore cannot enable writes
        after the role has changed.
        """

    async def change_to_master(self, term: int, role_epoch: int) -> None:
        """Become master with broker id 0 and start services. Must not enable writes or wait
        for NameServers.
        """

    async def change_to_slave(self, term: int, role_epoch: int, leader_id: str | None) -> None:
        """Become slave, or remain slave under another leader (None if unknown), and stop the services.

        Writes are already refused. (term, role_epoch) identifies the role that made this node a slave.
        """

    async def wait_dispatched(self, index: int) -> None:
        """Wait until the derived state that a master needs covers the log entry at `index`.

        This state comprises ConsumeQueues and metadata; IndexFiles may lag. After TimeoutError or a
        `dledger.DLedgerError`, the handler repeats the call without counting a failure.
        """

    def recover_topic_queue_table(self) -> Awaitable[None] | None:
        """Set the next offset of every queue from the dispatched messages. Run long work on a thread."""

    @property
    def dispatch_behind_bytes(self) -> int:
        """Number of bytes of committed log that are not dispatched yet.

        Read several times per second; must not block.
        """


class RoleSource(Protocol):
    """The part of a node that the handler uses; `dledger.NodeServer` implements it."""

    def on_role(self, listener: Callable[[RoleEvent], None]) -> object:
        """Register `listener` for every change of role, term or leader.

        The node calls it on the event loop, in order, and immediately with the latest event if there is one.
        (role_epoch, term) never decreases.
        """

    @property
    def committed_index(self) -> int: ...
    @property
    def applied_index(self) -> int: ...

    async def wait_committed(self, index: int, timeout: float) -> object:
        """Wait until committed_index >= index.

        Raises a DLedgerError after `timeout` seconds, after which the handler repeats the call.
        """

    def report_fitness(self, *, lag_bytes: int, fit: bool) -> None:
        """Report to the leader how suitable this node is as the target of a leadership transfer."""

    async def hand_over(self) -> bool:
        """Transfer leadership to a peer that is fit and lags less than this node.

        If this node is unfit, any fit peer is accepted. If there is no such peer or the transfer failed,
        returns False or raises a DLedgerError.
        """


class CallTimer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """Monotonic clock and timers, as provided by an event loop."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], object], /) -> CallTimer: ...
