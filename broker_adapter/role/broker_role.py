"""The broker as what the RoleChangeHandler drives: gates, services of the master, registration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from broker_adapter.api import BrokerRole
from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.format.broker_ids import MASTER_ID


class MasterService(Protocol):
    """What runs on the master only: the group coordinator, delivery of scheduled messages, checks of
    transactions and the like. `stop` follows every `start`, also one that raised, and may be repeated."""

    def start(self, term: int, role_epoch: int) -> None: ...

    async def stop(self) -> None: ...


class DispatchPort(Protocol):
    """What of the node and of the dispatcher the role needs."""

    async def wait_applied(self, index: int | None = None, timeout_ms: int = 5000) -> int: ...

    def next_offsets(self) -> Mapping[tuple[str, int], int]: ...

    @property
    def dispatch_behind_bytes(self) -> int: ...


class BrokerRoleAdapter:
    """Implements `broker_adapter.role.adapter.BrokerAdapter`.

    `on_change` is called, on the loop, whenever role or broker id is another: registration is its affair, and
    nothing here waits for it.
    """

    def __init__(
        self,
        writer: MessageWriter,
        dispatch: DispatchPort,
        services: Sequence[MasterService],
        *,
        slave_id: int,
        on_change: Callable[[], None],
    ) -> None:
        self.role = BrokerRole.SLAVE
        self.broker_id = -1  # not known before the first change of role: nobody is told of it
        self.term = -1
        self.role_epoch = -1
        self.leader_id: str | None = None
        self._writer = writer
        self._dispatch = dispatch
        self._services = services
        self._running: list[MasterService] = []
        self._slave_id = slave_id
        self.master_role = BrokerRole.SYNC_MASTER  # of a log with SYNC_FLUSH
        self._on_change = on_change

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

    def refuse_writes(self) -> None:
        self._writer.close()

    def accept_writes(self, term: int, role_epoch: int) -> None:
        self._writer.open_for(term, role_epoch)

    async def change_to_master(self, term: int, role_epoch: int) -> None:
        """Services first, then the role: who sees a master sees all of it."""
        await self._stop_services()
        for service in self._services:
            self._running.append(service)
            service.start(term, role_epoch)
        self._take(self.master_role, MASTER_ID, term, role_epoch)

    async def change_to_slave(self, term: int, role_epoch: int, leader_id: str | None) -> None:
        self._writer.close()
        self.leader_id = leader_id
        self._take(BrokerRole.SLAVE, self._slave_id, term, role_epoch)
        await self._stop_services()

    async def wait_dispatched(self, index: int) -> None:
        await self._dispatch.wait_applied(index)

    async def recover_topic_queue_table(self) -> None:
        next_offsets = await asyncio.to_thread(self._dispatch.next_offsets)
        self._writer.table.recover(next_offsets)

    @property
    def dispatch_behind_bytes(self) -> int:
        return self._dispatch.dispatch_behind_bytes

    def _take(self, role: BrokerRole, broker_id: int, term: int, role_epoch: int) -> None:
        self.role, self.broker_id = role, broker_id
        self.term, self.role_epoch = term, role_epoch
        self._on_change()

    async def _stop_services(self) -> None:
        """Each of them, whatever another one raises; the first exception then goes on. One whose `stop` was
        cancelled is stopped again by the next change of role."""
        failures = []
        while self._running:
            try:
                await self._running[-1].stop()
            except Exception as error:
                failures.append(error)
            self._running.pop()
        if failures:
            raise failures[0]
