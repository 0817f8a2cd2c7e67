"""What a demo does to its cluster: the leader is killed twice under load, and comes back each time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.cli.exits import error_line
from dledger.cli.local.local_cluster import ClusterError, LocalCluster, LocalNode

_CATCH_UP_SECONDS = 30.0

Say = Callable[[str, str], None]


class Gated(Protocol):
    def open(self) -> None: ...


class Load(Protocol):
    """What is under way while leaders die. Progress is counted in batches."""

    @property
    def batches(self) -> int: ...

    @property
    def in_flight(self) -> int:
        """Batches that may be under way at once."""

    @property
    def acknowledged_lines(self) -> int: ...

    @property
    def has_failed(self) -> bool: ...

    def gate(self, batch: int) -> Gated:
        """Batches from this one on wait until it is opened."""

    def open_gates(self) -> None: ...

    async def until_acknowledged(self, batches: int) -> bool:
        """False: that will not happen any more."""

    async def until_served_again(self, gone: float, term: int) -> float | None:
        """When a successor of the leader of `term`, which was gone at `gone`, first acknowledged something
        (monotonic seconds); None: that will not happen any more."""

    def longest_silence(self, since: float, until: float) -> float:
        """Seconds between two acknowledgements in a row, the first of them the last one before `since`."""


@dataclass(frozen=True, slots=True)
class Failover:
    """One killed leader, and how long no line was acknowledged because of it."""

    node_id: str
    pid: int
    term: int
    acknowledged: int
    silence_ms: float
    new_leader: str
    new_term: int


class LeaderKiller:
    """Kills at a third and at two thirds of the way. The first victim is back before the second falls.

    `describe`: what there is to say of a new leader besides.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        load: Load,
        say: Say,
        *,
        describe: Callable[[LocalNode], str] = lambda node: "",
    ) -> None:
        self._cluster = cluster
        self._load = load
        self._say = say
        self._describe = describe
        self.failovers: list[Failover] = []

    async def run(self) -> None:
        """ClusterError if a node does not come back. Two `failovers` afterwards, or the load has ended."""
        try:
            await self._kill_twice()
        finally:
            self._load.open_gates()  # whatever went wrong here, the load must come to its end

    async def finish(self, faults: asyncio.Task[None]) -> bool:
        """Wait for the task that does `run`. Whether both leaders were killed and came back."""
        try:
            await faults
        except ClusterError as error:
            self._say("PROBLEM", error_line(error))
            return False
        if len(self.failovers) < 2 and not self._load.has_failed:
            self._say("PROBLEM", "the leader was not killed twice before the lines ran out")
        return len(self.failovers) == 2

    async def caught_up(self, node_ids: Sequence[str], index: int) -> None:
        """Wait until these nodes know everything up to `index` to be committed. ClusterError."""

        def all_there(nodes: Sequence[LocalNode]) -> LocalNode | None:
            asked = [node for node in nodes if node.node_id in node_ids]
            return asked[0] if all(node.committed_index >= index for node in asked) else None

        what = f"{', '.join(node_ids)} at index {index}"
        await asyncio.to_thread(self._cluster.wait_until, all_there, _CATCH_UP_SECONDS, what)

    async def _kill_twice(self) -> None:
        load = self._load
        first, second = load.batches // 3, 2 * load.batches // 3
        # Lines must be left to append after each kill, however fast the machine is.
        after_first = load.gate(first + load.in_flight)
        before_second = load.gate(second)
        after_second = load.gate(second + load.in_flight)
        if not await load.until_acknowledged(first):
            return
        killed = await self._kill_leader(after_first)
        if killed is None:
            return
        await self._bring_back(killed)
        before_second.open()
        if not await load.until_acknowledged(second + load.in_flight // 2):
            return
        killed = await self._kill_leader(after_second)
        if killed is not None:
            await self._bring_back(killed)

    async def _kill_leader(self, waiting: Gated) -> str | None:
        """The id of the leader that was killed; None: no later leader has acknowledged anything."""
        leader = await asyncio.to_thread(self._cluster.wait_for_leader)
        at = time.monotonic()
        pid = await asyncio.to_thread(self._cluster.kill, leader.node_id)
        gone = time.monotonic()
        acknowledged = self._load.acknowledged_lines
        waiting.open()
        self._say(
            "SIGKILL",
            f"{leader.node_id}, pid {pid}, leader of term {leader.term}, "
            f"with {acknowledged} lines acknowledged",
        )
        served = await self._load.until_served_again(gone, leader.term)
        if served is None:
            return None
        silence_ms = self._load.longest_silence(at, served) * 1000
        new = await asyncio.to_thread(self._cluster.wait_for_leader, other_than=leader.node_id)
        self.failovers.append(
            Failover(leader.node_id, pid, leader.term, acknowledged, silence_ms, new.node_id, new.term)
        )
        self._say(
            "failover",
            f"{new.node_id} leads in term {new.term}; {silence_ms:.0f} ms from the last acknowledgement "
            f"before to the next one{self._describe(new)}",
        )
        return leader.node_id

    async def _bring_back(self, node_id: str) -> None:
        began = time.monotonic()
        pid = await asyncio.to_thread(self._cluster.start_node, node_id)
        goal = max(node.committed_index for node in await asyncio.to_thread(self._cluster.status))
        await self.caught_up([node_id], goal)
        seconds = time.monotonic() - began
        self._say("restarted", f"{node_id}, pid {pid}, caught up to index {goal} after {seconds:.1f} s")
