"""Which processes of nodes were ever started, and what of them is in the trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from chaos.trace.schema import RAW_DIR
from dledger.cli.local.local_cluster import LocalCluster


class Life(NamedTuple):
    """One process of a node."""

    node_id: str
    pid: int


class StartedNodes(LocalCluster):
    """A cluster that remembers what it has started. `lives`: the processes of nodes, oldest first."""

    def __init__(self, directory: Path | str) -> None:
        super().__init__(directory)
        self.lives: list[Life] = []

    def start(self, environment: Mapping[str, str] | None = None) -> list[str]:
        names = super().start(environment)
        self.lives += [Life(name, self._pid(name)) for name in names if name in self.node_ids]
        return names

    def start_node(
        self, node_id: str, environment: Mapping[str, str] | None = None, *, rejoin: bool = False
    ) -> int:
        pid = super().start_node(node_id, environment, rejoin=rejoin)
        self.lives.append(Life(node_id, pid))
        return pid

    def _pid(self, node_id: str) -> int:
        pid = self.process(node_id).pid
        assert pid is not None, f"{node_id} was started and has no pid"
        return pid


def written_lines(run_directory: Path) -> Iterator[tuple[Life, int]]:
    """Whose each file of a node in the trace is, and how many whole lines it has. All nodes have ended, and
    their files are sealed. A file whose first line was not written whole is passed over."""
    for path in sorted((run_directory / RAW_DIR).glob("node-*")):
        with path.open("rb") as file:
            first = file.readline()
            if first.endswith(b"\n"):
                begin = json.loads(first)
                count = 1 + sum(line.endswith(b"\n") for line in file)
                yield Life(begin["src"].removeprefix("node:"), begin["pid"]), count
