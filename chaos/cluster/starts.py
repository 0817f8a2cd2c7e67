"""Records the node processes that were started, and counts the lines that each wrote to the trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from chaos.trace.schema import RAW_DIR
from dledger.cli.local.cluster_plan import NodePlan
from dledger.cli.local.local_cluster import LocalCluster
from dledger.cli.local.node_process import NodeProcess
from dledger.errors import ConfigError
from dledger.status.model import NodeStatus


class ProcessLife(NamedTuple):
    """One process of a node."""

    node_id: str
    pid: int


class StartedNodes(LocalCluster):
    """A cluster that records the processes it starts.

    `lives`: processes of nodes, oldest first. `environments`: added to the environment of each node's
    processes, by node id. `on_new`: called with a node that is about to be started for the first time; it may
    change the node's configuration file.
    """

    def __init__(self, directory: Path | str) -> None:
        self.lives: list[ProcessLife] = []
        self.environments: dict[str, dict[str, str]] = {}
        self.on_new: Callable[[NodePlan], None] = lambda node: None
        super().__init__(directory)

    @property
    def all_node_ids(self) -> list[str]:
        """All nodes that are or were in the cluster, in the order of their first start."""
        return list(dict.fromkeys([*(life.node_id for life in self.lives), *self.node_ids]))

    def status_of(self, node_id: str) -> NodeStatus | None:
        """Return the status of a node, or None if it does not answer or has left the cluster."""
        try:
            return self.node_status(node_id)
        except ConfigError:
            return None

    def pid_of(self, name: str) -> int | None:
        """Return the pid of a server's last process, or None if it has left the cluster."""
        try:
            return self.process(name).pid
        except ConfigError:
            return None

    def _process_of(self, node: NodePlan) -> NodeProcess:
        process = super()._process_of(node)
        process.environment = self.environments.get(node.node_id, {})
        return process

    def start_new(self, node: NodePlan) -> NodeProcess:
        self.on_new(node)
        process = super().start_new(node)
        assert process.pid is not None
        self.lives.append(ProcessLife(node.node_id, process.pid))
        return process

    def start(self, environment: Mapping[str, str] | None = None) -> list[str]:
        names = super().start(environment)
        self.lives += [ProcessLife(name, self._pid(name)) for name in names if name in self.node_ids]
        return names

    def start_node(
        self, node_id: str, environment: Mapping[str, str] | None = None, *, rejoin: bool = False
    ) -> int:
        pid = super().start_node(node_id, environment, rejoin=rejoin)
        self.lives.append(ProcessLife(node_id, pid))
        return pid

    def _pid(self, node_id: str) -> int:
        pid = self.process(node_id).pid
        assert pid is not None, f"{node_id} was started and has no pid"
        return pid


def written_lines(run_directory: Path) -> Iterator[tuple[ProcessLife, int]]:
    """Yield the process behind each node file of the trace, with the number of complete lines.

    All nodes must have ended, and their files must be sealed. Skips files whose first line is incomplete.
    """
    for path in sorted((run_directory / RAW_DIR).glob("node-*")):
        with path.open("rb") as file:
            first = file.readline()
            if first.endswith(b"\n"):
                begin = json.loads(first)
                count = 1 + sum(line.endswith(b"\n") for line in file)
                yield ProcessLife(begin["src"].removeprefix("node:"), begin["pid"]), count
