"""The NameServer and the brokers of RocketMQ's integration tests.

The tests start and stop brokers while they run. `Servers.java` sends one line per connection and reads one:

    name_server              ok HOST:PORT
    start BROKER CLUSTER     ok HOST:PORT, of the broker once it accepts messages; it may be running already
    stop BROKER              ok -
    grpc BROKER              ok HOST:PORT, for RocketMQ 5 clients

After a failure the response starts with "error ".
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker_adapter.cli.cluster_command import BROKER_KIND
from dledger.cli.local.certificates import Authority
from dledger.cli.local.local_cluster import LocalCluster, LocalNode

STORES = ("replicated", "classic")
_FILE_SIZE = 16 << 20
_READY_S, _STOP_S = 300, 60
_NODE = "n1"
#: Keep the leader, and the process, on a machine that stalls.
_TIMING = {"election_min_ms": 3_000, "election_max_ms": 4_000, "silence_ms": 0, "loop_stall_ms": 0}
#: RocketMQ's tests wait for transaction checks and set these times to 1 s in the process of the broker.
_DELIVERY = {"check_first_ms": 3_000, "check_again_ms": 1_000}
#: Limits that the tests lower in the configuration of RocketMQ's proxy.
_GRPC = {"min_invisible_ms": 3, "min_polling_ms": 0}


class SuiteServers:
    """Brokers of one node each, by name. The NameServer runs as long as the first broker's cluster."""

    def __init__(self, home: Path, store: str) -> None:
        """`store`: one of `STORES`."""
        self._home, self._store = home, store
        self._clusters: dict[str, LocalCluster] = {}
        self._lock = threading.Lock()
        self._tls = _certificate(home / "tls")
        additions = BROKER_KIND.prepare(0, {})
        ((companion, config),) = additions.companions
        tls = {**self._tls, "remoting_mode": "permissive"}
        # Write-only names would be further brokers in routes, whose number the tests compare.
        self._companion = (companion, {**config, "routes": "single", "tls": tls})
        self.name_server = companion.address

    def answer(self, line: str) -> str:
        """Execute one request and return the response without its line end."""
        try:
            match line.split():
                case ["name_server"]:
                    return f"ok {self.name_server}"
                case ["start", name, cluster]:
                    return f"ok {self._start(name, cluster)}"
                case ["stop", name]:
                    self._clusters[name].stop_node(_NODE, seconds=_STOP_S)
                    return "ok -"
                case ["grpc", name]:
                    return f"ok {self._clusters[name].addresses[0]}"
            return f"error unknown request {line!r}"
        except Exception as error:  # the response reports it
            return f"error {error!r}"

    def stop(self) -> None:
        for cluster in reversed(self._clusters.values()):
            cluster.stop(seconds=_STOP_S)

    def _start(self, name: str, cluster_name: str) -> str:
        with self._lock:
            if name not in self._clusters:
                self._clusters[name] = self._create(name, cluster_name)
            cluster = self._clusters[name]
            cluster.start()
        cluster.wait_until(_writable, _READY_S, f"broker {name} as a writable master")
        return cluster.plan.nodes[0].remoting_address

    def _create(self, name: str, cluster_name: str) -> LocalCluster:
        additions = BROKER_KIND.prepare(0, {"store": self._store, "role": "async"})
        program: Any = additions.settings["program"]
        own: dict[str, Any] = {
            "name": name,
            "cluster": cluster_name,
            "namesrv": [self.name_server],
            "delivery": _DELIVERY,
            "rocketmq_v2": _GRPC,
            "remoting": {**program["settings"]["remoting"], "tls_mode": "permissive"},
        }
        if self._store == "classic":
            own["classic"] = {**additions.of_node[0]["classic"], "file_size": _FILE_SIZE}
        settings = {
            "http_tls": False,
            "timing": _TIMING,
            "tls": self._tls,
            "program": {**program, "settings": {**program["settings"], **own}},
        }
        return LocalCluster.create(
            self._home / name,
            nodes=1,
            base_port=0,
            data_file_size=_FILE_SIZE,
            settings=settings,
            companions=() if self._clusters else [self._companion],
            remoting=True,
            has_log=self._store != "classic",
        )


def _certificate(folder: Path) -> dict[str, str]:
    """Create a certificate for all servers, and return the section that names its files.

    Like RocketMQ's servers in its tests, ours accept both TLS and plain text at each remoting port.
    """
    authority = Authority()
    certificate, key = authority.issue(folder, "server", hosts=["127.0.0.1"])
    files = {"certificate": certificate, "key": key, "ca": authority.save(folder)}
    return {name: str(path) for name, path in files.items()} | {"client_auth": "none"}


def _writable(nodes: object) -> LocalNode | None:
    assert isinstance(nodes, list)
    return next((node for node in nodes if node.owner.get("writable")), None)


@contextmanager
def serving(home: Path, store: str) -> Iterator[int]:
    """Serve requests on a port of the loopback address, which is the value. Stops all servers at the end."""
    servers = SuiteServers(home, store)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().decode().strip()
            self.wfile.write(f"{servers.answer(line)}\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as control:
        threading.Thread(target=control.serve_forever, daemon=True).start()
        try:
            yield control.server_address[1]
        finally:
            control.shutdown()
            servers.stop()
