"""A fault in which the classic master is lost and its slave is promoted."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from broker_adapter.client import change_role
from broker_adapter.errors import Status
from chaos.cluster.classic import follows, lacking_bytes, master_in
from chaos.cluster.cluster import ChaosCluster, started
from chaos.faults.faults import Effect, all_answer, pid_facts, until

#: Timeout in seconds for a slave to start following its master.
_FOLLOWS_S = 12.0
LEFT = "left"
_DIVERGED = Status.HA_DIVERGED.name


class TakeOver:
    """Kills the master, sets its log aside and promotes the other node, even if it lacks messages.

    At the end the old master restarts as a slave. If the new master refuses it because their logs diverged,
    it restarts again without its directory.
    """

    kind = "take_over"

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str]) -> None:
        self.targets = targets
        self._cluster = cluster
        self._local = cluster.local

    async def begin(self) -> Effect:
        old = self.targets[0]
        new = next(node for node in self._cluster.node_ids if node != old)
        process = self._local.process(old)
        pid = process.pid or 0
        await asyncio.to_thread(process.kill)
        happened = pid > 0 and process.why_down() == "killed by SIGKILL"
        await asyncio.to_thread(self._set_aside, old)
        alone = await until(lambda: self._is_alone(new))
        status = await asyncio.to_thread(self._local.node_status, new)
        if status is None or not alone:
            return Effect(False, {"error": f"{new} still follows its lost master"})
        # Read the clock before the promotion, because the new master may respond immediately after it. All
        # responses of the old master are earlier, because it is dead.
        trace_time_ns = time.monotonic_ns()
        await change_role(self._local.plan.node(new).remoting_address, to_master=True, force=True)
        is_master = await until(lambda: self._is_master(new))
        ended, lacking = status.ledger_end_pos, lacking_bytes(status)
        trace_fields: dict[str, int | str] = {
            "e": "taken_over",
            "node": new,
            "member": old,
            "ended": ended,
            "size": lacking,
        }
        return Effect(
            happened and is_master, {**pid_facts({old: pid}), "lacking": lacking}, trace_fields, trace_time_ns
        )

    async def end(self) -> Effect:
        old = self.targets[0]
        was_down = not await asyncio.to_thread(self._is_alive, old)
        pid = await started(self._local.start_node, old)
        answered = await all_answer(self._local, self.targets)
        await until(lambda: self._follows(old) or self._is_refused(old), _FOLLOWS_S)
        refused = not await asyncio.to_thread(self._follows, old)
        if refused:
            await asyncio.to_thread(self._local.stop_node, old)
            await asyncio.to_thread(self._lose_directory, old)
            pid = await started(self._local.start_node, old)
            answered = await until(lambda: self._follows(old))
        facts = {**pid_facts({old: pid}), "refused": int(refused), "answered": int(answered)}
        return Effect(was_down, facts)

    def _is_alive(self, node: str) -> bool:
        return self._local.process(node).is_alive

    def _set_aside(self, old: str) -> None:
        shutil.copytree(self._local.store_directory(old), left_directory(self._local.folder(old)))

    def _lose_directory(self, old: str) -> None:
        folder = self._local.folder(old)
        self._local.store_directory(old).rename(folder / "lost-1")

    def _is_alone(self, node: str) -> bool:
        status = self._local.node_status(node)
        return status is not None and not follows(status)

    def _is_master(self, node: str) -> bool:
        status = self._local.node_status(node)
        return status is not None and master_in({node: status}) is not None

    def _is_refused(self, node: str) -> bool:
        status = self._local.node_status(node)
        return status is not None and _DIVERGED in str(status.owner.get("ha", {}).get("problem"))

    def _follows(self, node: str) -> bool:
        status = self._local.node_status(node)
        return status is not None and follows(status)


def left_directory(folder: Path) -> Path:
    """Return the directory in which the store of a lost master is kept."""
    return folder / LEFT
