"""Changes of the members of a group as faults: nodes are replaced, added and removed, and a group continues
on the log of its only survivor, or of a learner. The changes take place when the fault ends."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chaos.cluster.cluster import ChaosCluster, started
from chaos.faults.faults import Effect, Kill, until
from chaos.network.impairment import Impairment
from chaos.network.topology import isolate
from dledger.cli.local import local_members
from dledger.cli.local.cluster_plan import save_plan, to_toml
from dledger.cli.local.local_cluster import ClusterError
from dledger.store.offline.inspect import OfflineLog

_RECOVERY_S = 60.0
#: Shorter than the time after which a follower that is cut off campaigns.
_LAG_S = 0.25


class ReplaceNodes:
    """Kills its targets with SIGKILL and takes their directories away. At the end, new nodes replace them."""

    kind = "replace"

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str]) -> None:
        self.targets = targets
        self._cluster = cluster
        self._loss = Kill(cluster, targets, wipe=True)

    async def begin(self) -> Effect:
        return await self._loss.begin()

    async def end(self) -> Effect:
        new = self._cluster.next_node_ids(len(self.targets))
        for target in self.targets:
            await self._cluster.change_members(local_members.replace_node, target)
        return await _voters_without(self._cluster, new, self.targets)


class AddNodes:
    """Starts new nodes, one after the other, and makes each a voter."""

    kind = "add"

    def __init__(self, cluster: ChaosCluster, count: int) -> None:
        self.targets: Sequence[str] = cluster.next_node_ids(count)
        self._cluster = cluster

    async def begin(self) -> Effect:
        return Effect(True)

    async def end(self) -> Effect:
        for _ in self.targets:
            await self._cluster.change_members(local_members.add_node)
        return await _voters_without(self._cluster, self.targets, ())


class RemoveNodes:
    """Removes running nodes, one after the other, and stops each. Their directories are kept."""

    kind = "remove"

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str]) -> None:
        self.targets = targets
        self._cluster = cluster

    async def begin(self) -> Effect:
        return Effect(True)

    async def end(self) -> Effect:
        for target in self.targets:
            await self._cluster.change_members(local_members.remove_node, target)
        return await _voters_without(self._cluster, (), self.targets)


async def _voters_without(cluster: ChaosCluster, new: Sequence[str], gone: Sequence[str]) -> Effect:
    """Return the effect of a change: the leader counts the new nodes, and no longer those that are gone."""
    leader = await cluster.wait_leadership()
    status = await asyncio.to_thread(cluster.local.status_of, leader.node_id)
    voters = [member.node_id for member in status.members if member.role == "voter"] if status else []
    happened = set(new) <= set(voters) and not set(gone) & set(voters)
    return Effect(happened, {"voters": " ".join(voters)})


class LoseMajority:
    """Kills all nodes except one, and takes their directories away. Shortly before, the survivor is cut off,
    so that it lacks acknowledged entries. At the end, it is recovered as the only member of a new cluster
    (`dledger recover --force-new-cluster`). Then new nodes are added until the group has its former size."""

    kind = "lose_majority"
    _command: Sequence[str] = ("recover", "--force-new-cluster")

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str]) -> None:
        self.targets = targets
        self._cluster = cluster
        self._local = cluster.local
        self._size = len([node for node in cluster.node_ids if node != cluster.mirror])
        self._lost = targets
        self._loss = Kill(cluster, targets, wipe=True, for_good=True)

    async def begin(self) -> Effect:
        nodes = self._cluster.node_ids
        cut = self._cluster.links.begin(Impairment(cut=True), isolate(nodes, self._survivors))
        await asyncio.sleep(_LAG_S)
        effect = await self._loss.begin()
        self._cluster.links.end(cut)
        return effect

    @property
    def _survivors(self) -> list[str]:
        return [node for node in self._cluster.node_ids if node not in self._lost]

    async def end(self) -> Effect:
        [survivor] = self._survivors
        await asyncio.to_thread(self._stop, survivor)
        recovered = await asyncio.to_thread(self._recover, survivor)
        self._cluster.record({"e": "recovered", "node": survivor, **recovered})
        await asyncio.to_thread(self._keep_only, survivor, recovered["text"])
        await started(self._local.start_node, survivor)
        await self._cluster.wait_leadership(_RECOVERY_S)
        for _ in range(self._size - 1):
            await self._cluster.change_members(local_members.add_node)
        added = [node for node in self._cluster.node_ids if node != survivor]
        effect = await _voters_without(self._cluster, added, self._lost)
        kept = recovered.get("last", recovered["ended"])
        return Effect(effect.happened, {**effect.facts, "ended": recovered["ended"], "kept": kept})

    def _stop(self, survivor: str) -> None:
        self._local.stop_node(survivor)

    def _recover(self, survivor: str) -> dict[str, Any]:
        """Found the new cluster. Returns fields of the trace."""
        report = self._run(survivor)
        return {
            "committed": report["committed_index"],
            "ended": report["end_index"],
            "text": report["cluster_id"],
        }

    def _run(self, survivor: str) -> dict[str, Any]:
        """Run the command with the recorder of syncs, because it writes to the log of the node."""
        config = self._local.process(survivor).config
        # The links of the lost nodes accept connections, as if these nodes ran.
        config.write_text(to_toml({**tomllib.loads(config.read_text()), "peer_addresses": {}}))
        done = subprocess.run(
            [sys.executable, "-m", "dledger", *self._command, "--config", str(config), "--yes", "--json"],
            env={**os.environ, **self._local.environments[survivor]},
            capture_output=True,
            text=True,
            check=False,
            timeout=_RECOVERY_S,
        )
        if done.returncode:
            why = done.stderr.strip() or done.stdout.strip()
            raise ClusterError(f"dledger {' '.join(self._command)} failed: {why}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def _keep_only(self, survivor: str, cluster_id: str) -> None:
        """Edit the survivor's configuration and the plan of the cluster, as an operator does."""
        path = self._local.process(survivor).config
        config = tomllib.loads(path.read_text())
        config |= {
            "cluster_id": cluster_id,
            "members": {survivor: config["members"][survivor]},
            "http_members": {survivor: config["http_members"][survivor]},
        }
        path.write_text(to_toml(config))
        self._cluster.set_up(survivor)
        nodes = (self._local.plan.node(survivor),)
        plan = replace(self._local.plan, cluster_id=cluster_id, nodes=nodes)
        save_plan(self._local.directory, plan)
        self._local.use(plan)
        self._cluster.copies.use([survivor])


class PromoteMirror(LoseMajority):
    """Kills all voters, as LoseMajority kills a majority. The mirror of the cluster, a learner, survives. At
    the end it is stopped, or killed if `kills`, and promoted (`dledger mirror promote`)."""

    kind = "promote_mirror"
    _command = ("mirror", "promote")

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str], *, kills: bool) -> None:
        """`targets`: all nodes."""
        super().__init__(cluster, [target for target in targets if target != cluster.mirror])
        self.targets = targets
        self._kills = kills

    async def begin(self) -> Effect:
        statuses = await self._cluster.statuses()
        known = max((status.committed_index for status in statuses.values()), default=-1)
        # It is killed with a record of its own addition, and refused without one.
        is_stored = await until(lambda: self._stored_commit() >= known)
        effect = await super().begin()
        return Effect(effect.happened and is_stored, {**effect.facts, "kills": int(self._kills)})

    def _stored_commit(self) -> int:
        with OfflineLog(self._local.store_directory(self._cluster.mirror)) as log:
            checkpoint = log.report.checkpoint
        return -1 if checkpoint is None else checkpoint.committed_index

    def _stop(self, survivor: str) -> None:
        if self._kills:
            self._local.kill(survivor)
        else:
            super()._stop(survivor)

    def _recover(self, survivor: str) -> dict[str, Any]:
        stored = self._stored_commit()
        recovered = super()._recover(survivor)
        return recovered | {"committed": stored, "last": recovered["committed"]}
