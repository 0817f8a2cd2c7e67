"""`python -m tests.broker_adapter.process.soak`: brokers under random faults, in rounds, for many minutes.

Each round is a cluster of its own, checked to the last message at its end. The seed of a round is printed: it
decides which faults come in which order, not when they strike. The first failure ends the run, and leaves
the round's files.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from tests.broker_adapter.process.checker import check
from tests.broker_adapter.process.load import Load
from tests.broker_adapter.process.processes import BrokerProcesses
from tests.broker_adapter.process.test_derived_files import DAMAGES, has_checkpoint

_FAULTS_IN_ROUND = 12
_WITHIN_S = 120.0


class Round:
    """Faults, each of which ends with all processes running."""

    def __init__(self, brokers: BrokerProcesses, load: Load, rng: Random) -> None:
        self._brokers = brokers
        self._load = load
        self._rng = rng
        self.faults: list[Callable[[], Awaitable[None]]] = [
            self.kill_master,
            self.kill_master,
            self.kill_slave,
            self.kill_all,
            self.pause_master,
            self.stop_one,
            self.damage_slave,
            self.kill_name_server,
        ]

    async def kill_master(self) -> None:
        old = await self._brokers.kill_master()
        await self._go_on()
        await self._brokers.nodes.start([old])

    async def kill_slave(self) -> None:
        slave = await self._slave()
        await self._brokers.nodes.kill(slave)
        await self._go_on()
        await self._brokers.nodes.start([slave])

    async def kill_all(self) -> None:
        nodes = self._brokers.nodes
        await nodes.kill(*nodes.members)
        await nodes.start()

    async def pause_master(self) -> None:
        old = await self._brokers.master()
        self._brokers.signal(old, signal.SIGSTOP)
        try:
            await self._brokers.master(other_than=old)
            await self._go_on()
        finally:
            self._brokers.signal(old, signal.SIGCONT)

    async def stop_one(self) -> None:
        nodes = self._brokers.nodes
        node = self._rng.choice(list(nodes.members))
        await nodes.wait_for(lambda seen: seen[node])  # before that a signal just ends it
        assert await nodes.stop(node, within_s=60) == 0
        await self._go_on()
        await nodes.start([node])

    async def damage_slave(self) -> None:
        slave = await self._slave()
        await has_checkpoint(self._brokers, slave)
        await self._brokers.nodes.kill(slave)
        self._rng.choice(DAMAGES)(self._brokers.derived(slave))
        await self._brokers.nodes.start([slave])

    async def kill_name_server(self) -> None:
        servers = self._brokers.name_servers
        address = self._rng.choice(servers.addresses)
        await servers.kill(address)
        await self._go_on()
        await servers.start(address)

    async def _slave(self) -> str:
        return self._rng.choice(self._brokers.slaves(await self._brokers.master(within_s=_WITHIN_S)))

    async def _go_on(self) -> None:
        await self._load.progress(self._rng.choice([10, 100, 500]), within_s=_WITHIN_S)


async def run_round(folder: Path, seed: int) -> int:
    """How many messages were acknowledged, none of which was lost."""
    rng = Random(seed)
    async with BrokerProcesses(folder, name_servers=2) as brokers:
        async with Load(brokers, pause_s=0.005, timeout=_WITHIN_S) as load:
            faults = Round(brokers, load, rng).faults
            await load.progress(300, within_s=_WITHIN_S)
            for _ in range(_FAULTS_IN_ROUND):
                fault = rng.choice(faults)
                print(f"  {fault.__name__}", flush=True)
                await fault()
                await load.progress(rng.choice([10, 100, 500]), within_s=_WITHIN_S)
        await check(brokers, load)
    return len(load.notes.acknowledged)


def main() -> None:
    parser = argparse.ArgumentParser(description="Brokers under random faults, in rounds.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    arguments = parser.parse_args()
    end, seed = time.monotonic() + 60 * arguments.minutes, arguments.seed
    while time.monotonic() < end:
        folder = Path(tempfile.mkdtemp(prefix="soak-broker-"))
        print(f"seed {seed}, in {folder}", flush=True)
        count = asyncio.run(run_round(folder, seed))
        print(f"  {count} messages were acknowledged, and all of them are where they were promised to be")
        shutil.rmtree(folder)
        seed += 1


if __name__ == "__main__":
    main()
