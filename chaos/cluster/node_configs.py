"""Changes the configuration of a node so that the harness can observe and disturb it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chaos.cluster import classic
from chaos.network.links import Links
from chaos.syncs.trace import recording_environment
from dledger.cli.local.cluster_plan import to_toml
from dledger.cli.local.node_process import import_path

#: `classic`: brokers with a classic log, one master and one slave.
ClusterVariant = Literal["log", "broker", "classic"]
NAMESRV = "namesrv"
#: Folder in a node's folder with the orders for its disk and clock.
INJECTION_FOLDER = "injection"
_INJECTION = "chaos.injection.node:program"


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """What the harness does to all nodes of a cluster.

    `trace_run`: run name under which nodes write traces. `can_inject`: their disks and clocks permit faults.
    """

    kind: ClusterVariant
    run_directory: Path
    links: Links
    trace_run: str | None
    can_inject: bool

    def apply(self, folder: Path, node_id: str) -> None:
        """Change the configuration in `folder`, which may be a copy of that of another node."""
        path = folder / "node.toml"
        config = tomllib.loads(path.read_text())
        program = config.get("program", {})
        if program.get("factory") == _INJECTION:  # of the other node
            program = {name: value for name, value in program["settings"].items() if name != "folder"}
        program = self._route(config, program, node_id)
        if self.trace_run is not None and self.kind != "classic":  # its nodes write no trace
            program["factory"] = f"chaos.cluster.traced_node:{self.kind}"
            program["settings"] |= {
                "trace_directory": str(self.run_directory.resolve()),
                "trace_run": self.trace_run,
            }
        if self.can_inject:
            program = {
                "factory": _INJECTION,
                "settings": {"folder": str(folder / INJECTION_FOLDER), **program},
            }
        if program.get("factory"):
            config["program"] = program
        path.write_text(to_toml(config))

    def environment(self, folder: Path, node_id: str) -> dict[str, str]:
        """Return the environment in which the writes and syncs of a node are recorded, independently of its
        reports."""
        if self.trace_run is None:
            return {}
        store, path = folder / "store", import_path()["PYTHONPATH"]
        return recording_environment(self.run_directory, node_id, store, path)

    def _route(self, config: dict[str, Any], program: dict[str, Any], node_id: str) -> dict[str, Any]:
        """Let the node reach the others through its links. Returns its program."""
        addresses = self.links.addresses_of(node_id)
        settings = dict(program.get("settings", {}))
        for target in [name for name in addresses if name.endswith(classic.HA)]:
            settings["classic"]["ha_master"] = addresses.pop(target)
            addresses.pop(NAMESRV)
        if NAMESRV in addresses:
            settings["namesrv"] = [addresses.pop(NAMESRV)]
        config["peer_addresses"] = {n: address for n, address in addresses.items() if n in config["members"]}
        if later := {n: address for n, address in addresses.items() if n not in config["members"]}:
            settings["later_links"] = later
        return {**program, "settings": settings}
