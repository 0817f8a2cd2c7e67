"""What the broker does when its role changes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from broker_adapter.role.broker_role import BrokerRoleAdapter


class Service:
    """A MasterService whose first `stop` waits."""

    def __init__(self) -> None:
        self.is_running = False
        self.gate = asyncio.Event()

    def start(self, term: int, role_epoch: int) -> None:
        self.is_running = True

    async def stop(self) -> None:
        await self.gate.wait()
        self.is_running = False


class Writer:
    def close(self) -> None:
        """It takes nothing anyway."""


async def test_a_service_whose_stop_was_cancelled_is_stopped_by_the_next_change() -> None:
    services = [Service(), Service()]
    adapter = BrokerRoleAdapter(
        cast(Any, Writer()), cast(Any, None), services, slave_id=lambda: 1, on_change=lambda: None
    )
    await adapter.change_to_master(1, 1)
    superseded = asyncio.create_task(adapter.change_to_slave(1, 1, None))
    await asyncio.sleep(0)
    superseded.cancel()
    with pytest.raises(asyncio.CancelledError):
        await superseded
    for service in services:
        service.gate.set()
    await adapter.change_to_slave(2, 2, "n2")
    assert not any(service.is_running for service in services)
