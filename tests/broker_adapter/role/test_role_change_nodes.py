"""The handler on three real nodes, with an adapter that is no broker: examples/single_runner.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_adapter.role.role_change import RoleChangeHandler, RoleChangeLimits
from broker_adapter.role.role_status import RoleStep
from dledger import NodeServer, NotLeader
from examples.single_runner import SingleRunner
from tests.node.local import leader_of, running_nodes, until

QUICK = RoleChangeLimits(fitness_period_s=0.05, retry_most_s=0.2)


class Runner(SingleRunner):
    """Runs when it is told to, and notes which leaderships could write."""

    def __init__(self, runs: list[int], leaderships: list[tuple[int, int]]) -> None:
        self.due = asyncio.Semaphore(0)
        self.fails = False
        self._leaderships = leaderships
        super().__init__(runs.append, self._wait_until_due)

    async def _wait_until_due(self) -> None:
        await self.due.acquire()

    async def change_to_master(self, term: int, role_epoch: int) -> None:
        if self.fails:
            raise RuntimeError("never master")
        await super().change_to_master(term, role_epoch)

    def accept_writes(self, term: int, role_epoch: int) -> None:
        assert term not in {led for led, _ in self._leaderships}, "two were writable in one term"
        self._leaderships.append((term, role_epoch))
        super().accept_writes(term, role_epoch)


class Group:
    """Three nodes, each with a runner and a handler."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.leaderships: list[tuple[int, int]] = []
        self.runners = {node: Runner(self.runs, self.leaderships) for node in ("n1", "n2", "n3")}
        self.handlers: dict[str, RoleChangeHandler] = {}
        self.nodes: dict[str, NodeServer] = {}

    def start(self, nodes: list[NodeServer]) -> None:
        for node in nodes:
            name = node.config.node_id
            runner = self.runners[name]
            runner.log = self.nodes[name] = node
            self.handlers[name] = RoleChangeHandler(node, runner, limits=QUICK)
            self.handlers[name].start()

    @property
    def writable(self) -> list[str]:
        return [name for name, handler in self.handlers.items() if handler.status.writable]

    async def run(self, count: int) -> None:
        """So many runs more, on the one that is master."""
        wanted = len(self.runs) + count
        await until(lambda: len(self.writable) == 1)
        [name] = self.writable
        for _ in range(count):
            self.runners[name].due.release()
        await until(lambda: len(self.runs) == wanted)

    async def stop(self, name: str) -> None:
        await self.handlers.pop(name).stop()
        await self.nodes.pop(name).stop()


@asynccontextmanager
async def group(folder: Path) -> AsyncIterator[tuple[Group, list[NodeServer]]]:
    made = Group()
    machines = {name: runner.runs for name, runner in made.runners.items()}
    async with running_nodes(folder, 3, machines=machines, owned=True) as nodes:
        try:
            yield made, nodes
        finally:
            for handler in made.handlers.values():
                await handler.stop()


async def test_the_master_goes_and_another_one_goes_on_where_it_was(tmp_path: Path) -> None:
    async with group(tmp_path) as (made, nodes):
        made.start(nodes)
        await made.run(5)
        [first] = made.writable
        await made.stop(first)
        await made.run(5)
        assert made.runs == list(range(10))
        assert made.writable != [first] and len(made.leaderships) >= 2
        [second] = made.writable
        status = made.handlers[second].status
        assert status.step is RoleStep.MASTER and status.elected_to_writable_ms >= 0
        slaves = [h for n, h in made.handlers.items() if n != second]
        await until(
            lambda: all(h.status.step is RoleStep.SLAVE and h.status.leader_id == second for h in slaves)
        )


async def test_who_was_master_can_append_nothing_more_under_its_old_name(tmp_path: Path) -> None:
    async with group(tmp_path) as (made, nodes):
        made.start(nodes)
        await made.run(1)
        [first] = made.writable
        node, expected = made.nodes[first], made.leaderships[-1]
        other = next(name for name in made.nodes if name != first)
        await made.nodes[first].admin.transfer(other)
        await until(lambda: made.writable == [other])
        with pytest.raises(NotLeader):
            node.append_batch([1], lambda _: [b"x"], expected=expected)
        await made.run(3)
        assert made.runs == [0, 1, 2, 3]


async def test_leadership_moves_on_from_a_node_whose_adapter_always_raises(tmp_path: Path) -> None:
    async with group(tmp_path) as (made, nodes):
        first = leader_of(nodes).config.node_id
        made.runners[first].fails = True
        made.start(nodes)
        await until(lambda: len(made.writable) == 1)
        assert made.writable != [first]
        await made.run(3)
        assert made.runs == [0, 1, 2]
        assert made.handlers[first].status.fit is False
