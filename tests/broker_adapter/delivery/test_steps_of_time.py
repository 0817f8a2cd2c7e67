"""Cluster time steps while a consumer holds a message that another one waits for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from broker_adapter.delivery.api import AckStatus
from tests.broker_adapter.cluster import brokers, messages
from tests.broker_adapter.sending import send_to
from tests.node.local import until

HOUR_MS = 3_600_000


async def test_a_message_that_a_client_has_across_a_step_has_one_holder(tmp_path: Path) -> None:
    ahead_ms = 0
    options = {"wall_ms": lambda: time.time_ns() // 1_000_000 + ahead_ms}
    async with brokers(tmp_path, 2, options=options) as cluster:
        program = await cluster.master()
        delivery = program.delivery
        await send_to(program, "t", messages("x"), queue_id=0)
        (first,) = await delivery.receive("g", "t", client_id="holder", invisible_ms=HOUR_MS // 2)
        waiting = asyncio.ensure_future(
            delivery.receive("g", "t", client_id="waiter", invisible_ms=HOUR_MS // 2, wait_ms=600_000)
        )
        await until(lambda: delivery.waiting_receives("g", "t") == 1)
        ahead_ms = HOUR_MS
        await until(
            lambda: options["wall_ms"]() - program.node.cluster_time_ms() < HOUR_MS // 2, within_s=20.0
        )
        await send_to(program, "t", messages("y"), queue_id=0)
        assert [(one.queue_offset, one.attempt) for one in await waiting] == [(1, 1)]
        assert await delivery.ack("g", "t", [first.handle]) == [AckStatus.OK]
