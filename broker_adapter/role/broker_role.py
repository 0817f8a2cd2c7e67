"""Adapter of the RoleChangeHandler for the broker: write gate, master services, registration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from broker_adapter.api import BrokerRole
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.wire.broker_ids import MASTER_ID


class MasterService(Protocol):
    """A service that runs only on the master, such as group offsets, scheduled delivery or transaction
    checks.

    Every `start` is followed by a `stop`, even if `start` raised an exception. `stop` may be called
    repeatedly.
    """

    def start(self, term: int, role_epoch: int) -> None: ...

    async def stop(self) -> None: ...


class DispatchPort(Protocol):
    """The parts of the node and the dispatcher that a role change needs."""

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int: ...

    def next_offsets(self) -> Mapping[tuple[str, int], int]: ...

    @property
    def dispatch_behind_bytes(self) -> int: ...


class BrokerRoleAdapter:
    """Changes the broker's role. Implements `broker_adapter.role.adapter.BrokerAdapter`.

    `on_change` is called on the event loop when the role or the broker id changes. It starts the registration
    at NameServers, for which the role change does not wait.
    """

    def __init__(
        self,
        writer: MessageWriter,
        dispatch: DispatchPort,
        services: Sequence[MasterService],
        *,
        slave_id: Callable[[], int],
        on_change: Callable[[], None],
        on_writable: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_writable` is called in the event-loop step that enables writes, before any write can arrive."""
        self._on_writable = on_writable
        self.role = BrokerRole.SLAVE
        self.broker_id = -1  # until the first change of role; not registered
        self.term = -1
        self.role_epoch = -1
        self.leader_id: str | None = None
        self._writer = writer
        self._dispatch = dispatch
        self._services = services
        self._running: list[MasterService] = []
        self._slave_id = slave_id
        self.master_role = BrokerRole.SYNC_MASTER  # for a log with SYNC_FLUSH
        self._on_change = on_change

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

    def refuse_writes(self) -> None:
        self._writer.close()

    def accept_writes(self, term: int, role_epoch: int) -> None:
        self._writer.open_for(term, role_epoch)
        self._on_writable()

    async def change_to_master(self, term: int, role_epoch: int) -> None:
        """Start the services before the role changes, so that all services of a published master are
        running.
        """
        await self._stop_services()
        for service in self._services:
            self._running.append(service)
            service.start(term, role_epoch)
        self._set_role(self.master_role, MASTER_ID, term, role_epoch)

    async def change_to_slave(self, term: int, role_epoch: int, leader_id: str | None) -> None:
        self._writer.close()
        self.leader_id = leader_id
        self._set_role(BrokerRole.SLAVE, self._slave_id(), term, role_epoch)
        await self._stop_services()

    async def wait_dispatched(self, index: int) -> None:
        await self._dispatch.wait_applied(index)

    async def recover_topic_queue_table(self) -> None:
        next_offsets = await asyncio.to_thread(self._dispatch.next_offsets)
        self._writer.table.recover(next_offsets)

    @property
    def dispatch_behind_bytes(self) -> int:
        return self._dispatch.dispatch_behind_bytes

    def _set_role(self, role: BrokerRole, broker_id: int, term: int, role_epoch: int) -> None:
        self.role, self.broker_id = role, broker_id
        self.term, self.role_epoch = term, role_epoch
        self._on_change()

    async def _stop_services(self) -> None:
        """Stop every service, even if stopping one raises an exception; then raise the first exception.

        The next change of role repeats a `stop` that was canceled.
        """
        failures = []
        while self._running:
            try:
                await self._running[-1].stop()
            except Exception as error:
                failures.append(error)
            self._running.pop()
        if failures:
            raise failures[0]
