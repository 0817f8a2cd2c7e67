"""The demo: three nodes, a real file, the leader killed twice on the way, and the proof that nothing is lost.

Nothing is smoothed over: what is printed was measured, and any line that is missing, doubled, altered or out
of order makes the verdict FAILED and the exit code 1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from dledger.cli.demo.demo_faults import Failover, LeaderKiller, Say
from dledger.cli.demo.demo_load import IN_FLIGHT, DemoLoad
from dledger.cli.demo.log_check import CheckResult, Found, check_log, sha256_of
from dledger.cli.exits import error_line
from dledger.cli.local.local_cluster import ClusterError, LocalCluster
from dledger.client import AsyncClient
from dledger.errors import DLedgerError

_APPEND_SECONDS = 30.0


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
            self._say(
                "appending",
                f"{len(load.lines)} lines in {load.batches} batches of {load.batch_lines}, "
                f"{IN_FLIGHT} batches in flight",
            )
            killer = LeaderKiller(self._cluster, load, self._say)
            faults = asyncio.create_task(killer.run())
            started = time.monotonic()
            try:
                await load.run()
                seconds = time.monotonic() - started
                faults_done = await killer.finish(faults)
                self.failovers = killer.failovers
            finally:
                faults.cancel()
        self._tell_load(load, seconds)
        good = await self._verify(load, killer)
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

    async def _verify(self, load: DemoLoad, killer: LeaderKiller) -> bool:
        last = max((a.index for a in load.acknowledged), default=-1)
        try:
            await killer.caught_up(self._cluster.node_ids, last)
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
