"""A whole cluster that was stopped for a night: times that clients name are those of their clocks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from broker_adapter.client import Admin, ConsumeFromWhere, MessageExt, MessageQueue, PushConsumer
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.server.program import BrokerProgram
from tests.broker_adapter.classic_node.classic_pair import classic_pair
from tests.broker_adapter.classic_node.test_system_queues import ALONE
from tests.broker_adapter.client.scripted import route_body_of, serving
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.v4.asker import LISTEN, asking
from tests.broker_adapter.v4.stores import STORES
from tests.node.local import until

NIGHT_MS = 8 * 3_600_000
MINUTE_MS = 60_000
#: A clock of one machine is followed over more than a minute once it has been steady for so long.
STEADY_MS = 30_000
#: When the other delayed message is due, after the night.
LATER_MS = {"replicated": 20_000, "classic": STEADY_MS + 20_000}
QUEUE = MessageQueue("t", "a", 0)


class Clocks:
    """Those of the machine, some hours later after a stop."""

    def __init__(self) -> None:
        self.slept_ms = 0
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.slept_ms + self.ahead_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.ahead_ms


class Night:
    """A cluster that `begins` in the evening, and whose nodes are all stopped until the night `is_over`."""

    def __init__(self, clocks: Clocks, store: str, folder: Path, stack: AsyncExitStack) -> None:
        self.clocks = clocks
        self._store = store
        self._folder = folder
        self._stack = stack

    async def begins(self) -> BrokerProgram:
        if self._store == "replicated":
            options = {"wall_ms": self.clocks.wall_ms}
            self._cluster = await self._stack.enter_async_context(
                brokers(self._folder, 3, LISTEN, options=options)
            )
            return await self._cluster.master()
        self._pair = await self._stack.enter_async_context(classic_pair(self._folder))
        return await self._start_classic()

    async def _start_classic(self) -> BrokerProgram:
        program = self._pair.programs["n1"] = self._pair.program("n1", **ALONE)
        node = program.make_node(wall_ms=self.clocks.wall_ms, monotonic_ms=self.clocks.monotonic_ms)
        await node.start()
        await program.start()
        return await self._pair.writable("n1")

    async def is_over(self) -> BrokerProgram:
        if self._store == "replicated":
            await self._cluster.stop()
            self.clocks.slept_ms += NIGHT_MS
            await self._cluster.start()
            return await self._cluster.master()
        await self._pair.stop()
        self.clocks.slept_ms += NIGHT_MS
        program = await self._start_classic()
        self.clocks.ahead_ms += STEADY_MS
        return program


@asynccontextmanager
async def named(program: BrokerProgram) -> AsyncIterator[str]:
    """Address of a NameServer that knows the master alone."""

    def routes(request: RemotingCommand) -> RemotingCommand:
        return request.answer(0, body=route_body_of({"a": program.remoting.address}, queues=1))

    async with serving(routes) as (server,):
        yield server.server.address


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
async def test_after_a_night_times_are_found_and_dates_of_delays_are_kept(store: str, tmp_path: Path) -> None:
    clocks = Clocks()
    async with AsyncExitStack() as stack:
        night = Night(clocks, store, tmp_path, stack)
        program = await night.begins()
        async with asking(program.remoting.address) as asker:
            fields = {"topic": "t", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, b"", **fields)
            await asker.send("t", b"evening", 0, KEYS="k")
            evening_ms = clocks.wall_ms()
            dates = {
                b"night": evening_ms + NIGHT_MS // 2,
                b"after": evening_ms + NIGHT_MS + LATER_MS[store],
            }
            for body, date_ms in dates.items():
                await asker.send("t", body, 0, KEYS="k", TIMER_DELIVER_MS=str(date_ms))
            await asker.send("t", b"level", 0, KEYS="k", DELAY="18")  # two hours
        program = await night.is_over()
        just_now_ms = clocks.wall_ms() - MINUTE_MS
        await until(lambda: program.files.bounds("t", 0)[1] == 3)  # the dates that have passed
        async with asking(program.remoting.address) as asker:
            await asker.send("t", b"morning", 0, KEYS="k")
        morning_ms = clocks.wall_ms()
        names = await stack.enter_async_context(named(program))
        admin = await stack.enter_async_context(Admin(names))
        got: list[MessageExt] = []
        consumer = PushConsumer(
            "g",
            names,
            got.extend,
            consume_from=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
            consume_timestamp_ms=just_now_ms,
        )
        consumer.subscribe("t")
        await stack.enter_async_context(consumer)
        await until(lambda: len(got) == 4)
        stored_ms = {message.body: message.store_timestamp for message in got}
        assert stored_ms.keys() == {b"night", b"level", b"morning", b"after"}
        assert all(
            abs(stored_ms[body] - morning_ms) <= MINUTE_MS for body in (b"night", b"level", b"morning")
        )
        assert stored_ms[b"after"] >= dates[b"after"]
        assert await admin.search_offset(QUEUE, just_now_ms) == 1
        assert await admin.search_offset(QUEUE, just_now_ms, is_upper=True) == 0
        found = await admin.query("t", "k", begin_ms=just_now_ms, end_ms=clocks.wall_ms() + MINUTE_MS)
        assert {message.body for message in found} == stored_ms.keys()
