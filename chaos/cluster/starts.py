"""Records the node processes that were started, and counts the lines that each wrote to the trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from chaos.trace.schema import RAW_DIR
from dledger.cli.local.local_cluster import LocalCluster


class ProcessLife(NamedTuple):
    """One process of a node."""

    node_id: str
    pid: int


class StartedNodes(LocalCluster):
    """A cluster that records the processes it starts. `lives`: processes of nodes, oldest first."""

    def __init__(self, directory: Path | str) -> None:
        super().__init__(directory)
        self.lives: list[ProcessLife] = []

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
