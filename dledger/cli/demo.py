"""The demo: three nodes, a real file, the leader killed twice on the way, and the proof that nothing is lost.

Nothing is smoothed over: what is printed was measured, and any line that is missing, doubled, altered or out
of order makes the verdict FAILED and the exit code 1.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dledger.cli.demo_load import IN_FLIGHT, DemoLoad
from dledger.cli.exits import error_line
from dledger.cli.local_cluster import ClusterError, LocalCluster, LocalNode
from dledger.cli.log_check import CheckResult, Found, check_log, sha256_of
from dledger.client import AsyncClient
from dledger.errors import DLedgerError

_APPEND_SECONDS = 30.0
_CATCH_UP_SECONDS = 30.0

Say = Callable[[str, str], None]


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


class Demo:
    """One run on a cluster that holds nothing yet. `say(what, text)` gets a line of the story."""

    def __init__(self, cluster: LocalCluster, lines: Sequence[bytes], say: Say) -> None:
        self._cluster = cluster
        self._lines = lines
        self._say = say
        self.failovers: list[Failover] = []

    async def run(self) -> bool:
        """True: every line was acknowledged and is on every node, once, at its index, in order."""
        await self._start()
        async with AsyncClient(self._cluster.addresses, timeout=_APPEND_SECONDS) as client:
            load = DemoLoad(client, self._lines)
            faults = asyncio.create_task(self._faults(load))
            started = time.monotonic()
            try:
                await load.run()
                seconds = time.monotonic() - started
                faults_done = await self._finish_faults(faults, load)
            finally:
                faults.cancel()
        self._tell_load(load, seconds)
        good = await self._verify(load)
        return good and faults_done and load.error is None and len(load.acknowledged) == len(self._lines)

    async def _start(self) -> None:
        began = time.monotonic()
        await asyncio.to_thread(self._cluster.start)
        leader = await asyncio.to_thread(self._cluster.wait_for_leader)
        for node_id in self._cluster.node_ids:
            plan = self._cluster.plan.node(node_id)
            pid = self._cluster.process(node_id).pid
            self._say("started", f"{node_id}, pid {pid}, {plan.address}, status http://{plan.http_address}")
        seconds = time.monotonic() - began
        self._say("leader", f"{leader.node_id} in term {leader.term}, {seconds:.1f} s after the start")

    # -- the faults

    async def _faults(self, load: DemoLoad) -> None:
        try:
            await self._kill_twice(load)
        finally:
            load.open_gates()  # whatever went wrong here, the load must come to its end

    async def _kill_twice(self, load: DemoLoad) -> None:
        """At a third and at two thirds of the way. The first victim is back before the second falls."""
        first, second = load.batches // 3, 2 * load.batches // 3
        # Lines must be left to append after each kill, however fast the machine is.
        after_first = load.gate(first + IN_FLIGHT)
        before_second = load.gate(second)
        after_second = load.gate(second + IN_FLIGHT)
        self._say(
            "appending",
            f"{len(load.lines)} lines in {load.batches} batches of {load.batch_lines}, "
            f"{IN_FLIGHT} batches in flight",
        )
        if not await load.until_acknowledged(first):
            return
        killed = await self._kill_leader(load, after_first.open)
        if killed is None:
            return
        await self._bring_back(killed)
        before_second.open()
        if not await load.until_acknowledged(second + IN_FLIGHT // 2):
            return
        killed = await self._kill_leader(load, after_second.open)
        if killed is not None:
            await self._bring_back(killed)

    async def _kill_leader(self, load: DemoLoad, killed: Callable[[], None]) -> str | None:
        """The id of the leader that was killed; None: no later leader has acknowledged anything."""
        leader = await asyncio.to_thread(self._cluster.wait_for_leader)
        at = time.monotonic()
        pid = self._cluster.send_signal(leader.node_id, signal.SIGKILL)
        acknowledged = len(load.acknowledged)
        killed()
        self._say(
            "SIGKILL",
            f"{leader.node_id}, pid {pid}, leader of term {leader.term}, "
            f"with {acknowledged} lines acknowledged",
        )
        after = await load.until_acknowledged_after(leader.term)
        if after is None:
            return None
        silence_ms = load.longest_silence(at, after.at) * 1000
        new = await asyncio.to_thread(self._cluster.wait_for_leader, other_than=leader.node_id)
        self.failovers.append(
            Failover(leader.node_id, pid, leader.term, acknowledged, silence_ms, new.node_id, after.term)
        )
        self._say(
            "failover",
            f"{new.node_id} leads in term {after.term}; {silence_ms:.0f} ms from the last acknowledgement "
            "before to the next one",
        )
        return leader.node_id

    async def _bring_back(self, node_id: str) -> None:
        began = time.monotonic()
        pid = await asyncio.to_thread(self._cluster.start_node, node_id)
        goal = max(node.committed_index for node in await asyncio.to_thread(self._cluster.status))
        await self._caught_up([node_id], goal)
        seconds = time.monotonic() - began
        self._say("restarted", f"{node_id}, pid {pid}, caught up to index {goal} after {seconds:.1f} s")

    async def _caught_up(self, node_ids: Sequence[str], index: int) -> None:
        def all_there(nodes: Sequence[LocalNode]) -> LocalNode | None:
            asked = [node for node in nodes if node.node_id in node_ids]
            return asked[0] if all(node.committed_index >= index for node in asked) else None

        what = f"{', '.join(node_ids)} at index {index}"
        await asyncio.to_thread(self._cluster.wait_until, all_there, _CATCH_UP_SECONDS, what)

    async def _finish_faults(self, faults: asyncio.Task[None], load: DemoLoad) -> bool:
        """Whether both leaders were killed and came back."""
        try:
            await faults
        except ClusterError as error:
            self._say("PROBLEM", error_line(error))
            return False
        if len(self.failovers) < 2 and load.error is None:
            self._say("PROBLEM", "the leader was not killed twice before the lines ran out")
        return len(self.failovers) == 2

    # -- the proof

    def _tell_load(self, load: DemoLoad, seconds: float) -> None:
        last = max((a.index for a in load.acknowledged), default=-1)
        rate = len(load.acknowledged) / max(seconds, 1e-6)
        self._say(
            "appended",
            f"{len(load.acknowledged)} lines acknowledged in {seconds:.1f} s ({rate:.0f} lines/s, "
            f"failovers included), last index {last}",
        )
        if load.error is not None:
            self._say("PROBLEM", error_line(load.error))
            left = len(load.lines) - len(load.acknowledged) - load.failed - len(load.in_doubt)
            self._say("PROBLEM", f"{load.failed} failed, {len(load.in_doubt)} in doubt, {left} never sent")

    async def _verify(self, load: DemoLoad) -> bool:
        last = max((a.index for a in load.acknowledged), default=-1)
        try:
            await self._caught_up(self._cluster.node_ids, last)
        except ClusterError as error:
            # Read them all the same: what is missing is to be shown, not hidden.
            self._say("PROBLEM", error_line(error))
        self._say("input", f"{len(self._lines)} lines, sha256 {sha256_of(self._lines)[:16]}")
        good = True
        for node_id in self._cluster.node_ids:
            good &= await self._verify_node(node_id, load)
        return good

    async def _verify_node(self, node_id: str, load: DemoLoad) -> bool:
        address = self._cluster.plan.node(node_id).address
        try:
            found = await read_node(address)
        except DLedgerError as error:
            self._say(node_id, f"FAILED: cannot be read: {error_line(error)}")
            return False
        result = await asyncio.to_thread(check_log, load.acknowledged, load.in_doubt, found)
        self._say(node_id, describe_check(result))
        for example in result.examples:
            self._say("", example)
        return result.ok


async def read_node(address: str) -> list[Found]:
    """Everything that one node itself knows to be committed, from its own disk."""
    async with AsyncClient([address], session=False) as client:
        chunks = client.read_chunks(mode="local", server=address)
        return [Found(entry.index, entry.body) async for chunk in chunks for entry in chunk]


def describe_check(result: CheckResult) -> str:
    text = f"{result.entries} lines, sha256 {result.sha256[:16]}"
    if result.ok:
        text += ": every acknowledged line once, at its index, in order"
        if result.in_doubt_found:
            text += f" ({result.in_doubt_found} lines in doubt turned out to be stored)"
        return text
    faults = ", ".join(f"{count} {kind}" for kind, count in result.faults.items())
    return f"{text}: FAILED: {faults}"
