"""The faulty disks and clocks of a cluster, from the harness's side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from chaos.injection.orders import Did, OrderFile, Orders, combined, read_counter
from chaos.injection.unsynced import Loss, forget, lose_power
from chaos.syncs.journal import note_damage, note_undone
from chaos.syncs.trace import journals_folder
from dledger.cli.local.local_cluster import ClusterError, LocalCluster

_FOLDER = "injection"


class Injections:
    """What is ordered of which node. Several orders may be in force for one: see `combined`."""

    def __init__(self, local: LocalCluster, *, available: bool) -> None:
        """`available`: nodes were made with disks and clocks that can be made faulty."""
        self._local = local
        self._available = available
        self._orders: dict[str, list[Orders]] = {}

    def folder(self, node: str) -> Path:
        return self._local.folder(node) / _FOLDER

    def begin(self, node: str, orders: Orders) -> None:
        """ClusterError if disk and clock of this cluster are those of the machine."""
        if not self._available:
            raise ClusterError("this cluster's disks and clocks cannot be made faulty")
        self._orders.setdefault(node, []).append(orders)
        self._save(node)

    def end(self, node: str, orders: Orders) -> None:
        self._orders[node].remove(orders)
        self._save(node)

    def count(self, nodes: Sequence[str], what: Did) -> int:
        """How often these nodes have done it, since the cluster was made."""
        return sum(read_counter(self.folder(node), what) for node in nodes)

    def lose_power(self, node: str, rng: Random) -> Loss:
        """Take what was not durable from a node that was killed."""
        if not self._available:
            raise ClusterError("this cluster's disks keep no record of what is durable")
        loss = lose_power(self._local.store_directory(node), self.folder(node), rng)
        note_undone(journals_folder(self._local.directory.parent, node), loss.ranges)
        return loss

    def note_damage(self, node: str, begin: int, end: int) -> None:
        """Tell who judges the node's syncs that the entry with these bytes of the log is about to rot."""
        note_damage(journals_folder(self._local.directory.parent, node), begin, end)

    def forget(self, node: str) -> None:
        """The node's directory is gone."""
        forget(self.folder(node))

    def _save(self, node: str) -> None:
        folder = self.folder(node)
        folder.mkdir(exist_ok=True)
        OrderFile(folder).save(combined(self._orders[node]))


def injection_settings(config: dict[str, object], folder: Path) -> dict[str, object]:
    """A node's configuration, with a disk and a clock that can be made faulty below whatever runs on it."""
    program = config.get("program")
    inside = json.loads(json.dumps(program)) if program else {}
    settings = {"folder": str(folder), **inside}
    return {**config, "program": {"factory": "chaos.injection.node:program", "settings": settings}}
