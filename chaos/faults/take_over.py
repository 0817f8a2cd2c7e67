"""A master with a classic log is lost, and somebody makes its slave the master."""

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

#: A slave that may follow does so within (seconds).
_FOLLOWS_S = 12.0
LEFT = "left"
_DIVERGED = Status.HA_DIVERGED.name


class TakeOver:
    """SIGKILL to the master, whose log is set aside; the other node becomes master, whatever it lacks. At the
    end the old one is started again, and if the new one refuses it, as it may have what is lost, once more
    without its directory."""

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
            return Effect(False, {"error": f"{new} does not notice that its master is gone"})
        # Before it, for the new master answers at once: the old one, dead by now, has given all its answers.
        told_at = time.monotonic_ns()
        await change_role(self._local.plan.node(new).remoting_address, to_master=True, force=True)
        is_master = await until(lambda: self._is_master(new))
        ended, lacking = status.ledger_end_pos, lacking_bytes(status)
        told: dict[str, int | str] = {
            "e": "taken_over",
            "node": new,
            "member": old,
            "ended": ended,
            "size": lacking,
        }
        return Effect(happened and is_master, {**pid_facts({old: pid}), "lacking": lacking}, told, told_at)

    async def end(self) -> Effect:
        old = self.targets[0]
        pid = await started(self._local.start_node, old)
        is_there = await all_answer(self._local, self.targets)
        await until(lambda: self._follows(old) or self._is_refused(old), _FOLLOWS_S)
        refused = not await asyncio.to_thread(self._follows, old)
        if refused:
            await asyncio.to_thread(self._local.stop_node, old)
            await asyncio.to_thread(self._lose_directory, old)
            pid = await started(self._local.start_node, old)
            is_there = await until(lambda: self._follows(old))
        return Effect(is_there, {**pid_facts({old: pid}), "refused": int(refused)})

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
    """Where the store of a master that was lost is kept."""
    return folder / LEFT
