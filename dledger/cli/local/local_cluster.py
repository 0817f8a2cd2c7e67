"""A cluster of real server processes on this machine: creation, start, faults and status.

Used by `dledger cluster`, the process tests and the benchmarks::

    with LocalCluster.create(tmp_path, nodes=3, base_port=0) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        cluster.kill(leader.node_id)
        cluster.wait_for_leader(other_than=leader.node_id)
        cluster.start_node(leader.node_id)

All information about the cluster is in its directory, so any process may open it with `LocalCluster(dir)`.
Methods block; in asyncio, call them in a thread.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dledger.cli.local.cluster_plan import (
    DEFAULT_BASE_PORT,
    DEFAULT_GROUP,
    MAX_NODES,
    PLAN_FILE,
    ClusterPlan,
    CompanionPlan,
    NodePlan,
    load_plan,
    plan_cluster,
    ports_in_use,
    save_plan,
    to_toml,
)
from dledger.cli.local.node_process import NodeProcess, tail_of
from dledger.core.values import FlushMode, MembershipAt
from dledger.errors import Code, ConfigError, DLedgerError, StorageError
from dledger.infra.files.descriptors import PRIVATE_DIRECTORY
from dledger.infra.files.disk import OsDisk
from dledger.node.setup.secret_file import make_secret
from dledger.status.encoding import node_status_from_json
from dledger.status.model import DISK_FULL_HEALTH, NodeStatus
from dledger.store.format.layout import NodePaths
from dledger.store.identity import Identity, first_incarnation, init_directory, load_identity, member_list
from dledger.store.state_files import read_hard_state

if TYPE_CHECKING:
    from dledger.client import TlsFiles

#: Smaller than a server's default, because a trial should not fill the disk of a laptop.
LOCAL_DATA_FILE_SIZE = 64 << 20
TLS_FOLDER = "tls"
SECRET_FILE = "secret"
#: Placeholder in settings of all nodes for the address of the respective node.
REMOTING_ADDRESS = "{remoting_address}"
SEND_ADDRESS = "{send_address}"
CLIENT_NAME = "client"  # in the certificate for users of a local cluster
#: Pause between status requests: initial value, growth factor, maximum.
_POLL_SECONDS, _POLL_FACTOR, _MAX_POLL_SECONDS = 0.02, 1.25, 0.15
_REQUEST_SECONDS = 1.0


T = TypeVar("T")
R = TypeVar("R")


class ClusterError(DLedgerError):
    """Raised if the state of the local cluster does not permit the operation, or if it did not reach a state
    in time."""

    default_code = Code.ILLEGAL_MEMBER_STATE


@dataclass(frozen=True, slots=True)
class LocalNode:
    """The state of one node or additional server, as reported by the operating system and by the node itself.

    Numbers are -1 if the node does not report them.
    """

    node_id: str
    state: str  # running, paused, silent (runs, but does not respond), down
    pid: int | None
    address: str
    http_address: str
    remoting_address: str = ""  # for clients of RocketMQ's remoting protocol; "": unsupported
    role: str = "UNKNOWN"
    term: int = -1
    leader_id: str = ""
    ledger_begin_index: int = -1
    ledger_end_index: int = -1
    committed_index: int = -1
    health: str = ""
    why: str = ""  # why it is down
    last_log_lines: tuple[str, ...] = ()  # of its log, if it is down after a failure
    owner: Mapping[str, Any] = field(default_factory=dict)  # status of the program on the node

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class LocalCluster:
    """The cluster in `directory`. Raises ConfigError if there is none."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).resolve()
        #: Set by a signal handler. Starts and waits then raise KeyboardInterrupt.
        self.is_interrupted = False
        self.use(load_plan(self.directory))

    def use(self, plan: ClusterPlan) -> None:
        """Use another plan, which is in `cluster.json` already."""
        self.plan = plan
        self._processes = {node.node_id: self._process_of(node) for node in self.plan.started}
        self._companions = {
            c.name: NodeProcess(self.directory / c.name, self.directory / c.name / "config.toml", c.module)
            for c in self.plan.companions
        }
        ca = self.directory / TLS_FOLDER / "ca.pem"
        self._https = ssl.create_default_context(cafile=str(ca)) if self.plan.tls else None

    def _process_of(self, node: NodePlan) -> NodeProcess:
        folder = self.directory / node.node_id
        return NodeProcess(folder, folder / "node.toml")

    @classmethod
    def exists(cls, directory: Path | str) -> bool:
        return (Path(directory) / PLAN_FILE).exists()

    @classmethod
    def create(
        cls,
        directory: Path | str,
        *,
        nodes: int = 3,
        base_port: int = DEFAULT_BASE_PORT,
        first_ports: Sequence[int] = (),
        group: str = DEFAULT_GROUP,
        data_file_size: int = LOCAL_DATA_FILE_SIZE,
        flush_mode: FlushMode = FlushMode.SYNC_FLUSH,
        settings: Mapping[str, Any] | None = None,
        tls: bool = False,
        companions: Sequence[tuple[CompanionPlan, Mapping[str, Any]]] = (),
        remoting: bool = False,
        of_node: Sequence[Mapping[str, Any]] = (),
        has_log: bool = True,
    ) -> Self:
        """Write plan, configs and identities into an empty or absent directory. Starts nothing.

        Use base_port 0 to select free ports. `first_ports`: see `plan_cluster`. `settings`: additional keys
        in every node's config. `tls`: use mutual TLS with new certificates; `tls_files` returns the files for
        clients. `companions`: additional servers with their configs, which are started before the nodes and
        stopped after them. `remoting`: each node has a port for the remoting protocol, whose address replaces
        REMOTING_ADDRESS in `settings`. `of_node`: additional settings of the program for each node.
        `has_log`: the nodes have a log of this project, which needs an identity.
        """
        root = Path(directory).resolve()
        if root.exists() and any(root.iterdir()):
            raise ConfigError(
                f"{root} is not empty and does not contain a complete cluster: choose another --dir"
            )
        planned = plan_cluster(
            uuid.uuid4().hex, group, nodes, base_port, tls=tls, remoting=remoting, first_ports=first_ports
        )
        plan = replace(planned, companions=tuple(companion for companion, _ in companions))
        if tls:
            from dledger.cli.local.certificates import make_local  # an optional dependency

        possible = [f"n{number}" for number in range(1, MAX_NODES + 1)]
        root.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        if tls:
            # The authority is not kept, so nodes that are added later get their certificates now.
            make_local(root / TLS_FOLDER, [*possible, *(c.name for c in plan.companions)])
        make_secret(root / SECRET_FILE)
        members = member_list(node.node_id for node in plan.nodes)
        for number, node in enumerate(plan.nodes):
            folder = root / node.node_id
            folder.mkdir(PRIVATE_DIRECTORY)
            own = _with_program_settings(settings or {}, of_node[number]) if of_node else settings or {}
            (folder / "node.toml").write_text(_node_config(plan, node, folder, own))
            if not has_log:
                continue
            init_directory(
                folder / "store",
                Identity(plan.cluster_id, group, node.node_id, data_file_size, flush_mode, members=members),
                incarnation=first_incarnation(),
            )
        for companion, config in companions:
            (root / companion.name).mkdir(PRIVATE_DIRECTORY)
            if tls:
                section = {**_certificates(root, companion.name), "admin_names": [CLIENT_NAME]}
                config = {**config, "tls": {**section, "broker_names": possible}}
            (root / companion.name / "config.toml").write_text(to_toml(config))
        save_plan(root, plan)
        return cls(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- status

    @property
    def node_ids(self) -> list[str]:
        return [node.node_id for node in self.plan.nodes]

    @property
    def addresses(self) -> list[str]:
        """gRPC addresses of all nodes, for clients."""
        return self.plan.addresses

    @property
    def tls_files(self) -> TlsFiles | None:
        """TLS files for clients, or None if the cluster uses plain text."""
        if not self.plan.tls:
            return None
        from dledger.client import TlsFiles  # imports gRPC, which the rest of this module does not need

        folder = self.directory / TLS_FOLDER
        return TlsFiles(folder / "ca.pem", folder / "client.pem", folder / "client.key")

    def http_url(self, node_id: str) -> str:
        return self.url(self.plan.node(node_id).http_address)

    def url(self, http_address: str) -> str:
        return f"{'https' if self.plan.tls else 'http'}://{http_address}"

    def folder(self, node_id: str) -> Path:
        return self.directory / self.plan.node(node_id).node_id

    def store_directory(self, node_id: str) -> Path:
        return self.folder(node_id) / "store"

    def process(self, node_id: str) -> NodeProcess:
        """Return the process of the node or companion with this name."""
        known = self._companions.get(node_id) or self._processes.get(node_id)
        return known or self._processes[self.plan.node(node_id).node_id]

    def running(self) -> list[str]:
        """Return the running nodes, and then the running companions."""
        processes = {**self._processes, **self._companions}
        return [name for name, process in processes.items() if process.is_alive]

    def log_tail(self, node_id: str, lines: int = 20) -> list[str]:
        return tail_of(self.process(node_id).log, lines)

    def node_status(self, node_id: str) -> NodeStatus | None:
        """Return the full status of a node, or None if it does not answer."""
        process = self.process(node_id)
        if not process.is_alive or process.is_paused:
            return None
        return self._request_status(self.plan.node(node_id))

    def status(self) -> list[LocalNode]:
        """Return the status of all nodes. The requests are concurrent, so a slow node delays the result by
        one deadline only."""
        return _in_parallel(self._local_node, self.plan.nodes)

    def companions(self) -> list[LocalNode]:
        """Return the state of the additional servers' processes. Sends no requests to them."""
        return [self._by_process(self._companions[c.name], c.name, c) for c in self.plan.companions]

    def leader(self) -> LocalNode | None:
        """Return the node that claims to lead in the highest term, or None."""
        return max((n for n in self.status() if n.role == "LEADER"), key=lambda n: n.term, default=None)

    def removed(self) -> list[str]:
        """Return the nodes that are no members of the group any more, according to the newest configuration
        that a directory of this cluster has."""
        known: list[MembershipAt] = []
        for node in self.plan.nodes:
            paths = NodePaths(self.store_directory(node.node_id))
            with suppress(StorageError):  # lost, or of another cluster: a classic log has no identity at all
                load_identity(paths.root, cluster_id=self.plan.cluster_id)
                known += read_hard_state(OsDisk(), paths.hard_state).memberships
        newest = max(known, key=lambda one: (one.term, one.index), default=None)
        return [] if newest is None else [n for n in self.node_ids if n not in newest.membership.nodes]

    # -- start and stop

    def start(self, environment: Mapping[str, str] | None = None) -> list[str]:
        """Start all nodes that are down and members, and return their ids. Raises ConfigError if a port is
        in use."""
        with self._exclusive():
            gone = self.removed()
            nodes = [node for node in self.plan.nodes if node.node_id not in gone]
            down = [node for node in nodes if not self.process(node.node_id).is_alive]
            absent = [c for c in self.plan.companions if not self.process(c.name).is_alive]
            servers: list[NodePlan | CompanionPlan] = [*absent, *down]
            addresses = [address for server in servers for address in _addresses_of(server) if address]
            busy = ports_in_use(addresses)
            if busy:
                raise ConfigError(
                    f"these ports are in use by another process: {', '.join(busy)}; stop it, or choose "
                    "another --base-port for a new --dir",
                    code=Code.PORT_IN_USE,
                )
            started = [*(c.name for c in absent), *(node.node_id for node in down)]
            for name in started:
                self.check_interrupted()
                self.process(name).start(environment)
            return started

    def start_node(
        self, node_id: str, environment: Mapping[str, str] | None = None, *, rejoin: bool = False
    ) -> int:
        """Start one node that is down, and return its pid. `rejoin`: start it with `--rejoin`, because its
        directory was lost."""
        if rejoin:
            store = self.store_directory(node_id)
            if store.exists() and any(store.iterdir()):
                raise ClusterError(f"{store} is not empty: move it away first, if its content is not needed")
        with self._exclusive():
            process = self.process(node_id)
            if process.is_alive:
                raise ClusterError(f"{node_id} is already running (pid {process.pid})")
            return process.start(environment, ["--rejoin"] if rejoin else [])

    def start_new(self, node: NodePlan) -> NodeProcess:
        """Start a node that waits to be added, unless it runs. A directory that it has already is kept."""
        with self._exclusive():
            process = self._process_of(node)
            if not process.is_alive:
                process.start(None, ["--join"])
            return process

    def restart_node(self, node_id: str, *, seconds: float = 10.0, rejoin: bool = False) -> int:
        """Stop one node gracefully, if it runs, and start it again."""
        self.stop_node(node_id, seconds=seconds)
        return self.start_node(node_id, rejoin=rejoin)

    def stop(self, *, seconds: float = 10.0) -> dict[str, bool]:
        """Stop all running servers concurrently. Returns, by node id, True if it stopped on request and False
        if it was killed."""
        running = self.running()
        nodes = [name for name in running if name not in self._companions]
        return {**self._stop(nodes, seconds), **self._stop(running[len(nodes) :], seconds)}

    def _stop(self, names: Sequence[str], seconds: float) -> dict[str, bool]:
        ended = _in_parallel(lambda name: self.process(name).stop(seconds), names)
        return dict(zip(names, ended, strict=True))

    def stop_node(self, node_id: str, *, seconds: float = 10.0) -> bool:
        """Stop one node. Returns True if it stopped on request or was down. Returns False if it was
        killed."""
        process = self.process(node_id)
        return process.stop(seconds) if process.is_alive else True

    # -- faults

    def kill(self, node_id: str) -> int:
        """Kill a node with SIGKILL and wait until the process has ended. Returns its pid."""
        pid = self._pid_of_running(node_id)
        self.process(node_id).kill()
        return pid

    def pause(self, node_id: str) -> int:
        return self.send_signal(node_id, signal.SIGSTOP)

    def resume(self, node_id: str) -> int:
        return self.send_signal(node_id, signal.SIGCONT)

    def send_signal(self, node_id: str, number: signal.Signals) -> int:
        """Send a signal without waiting for its effect. Returns the pid."""
        pid = self._pid_of_running(node_id)
        self.process(node_id).send_signal(number)
        return pid

    # -- waiting

    def wait_for_leader(self, seconds: float = 30.0, *, other_than: str | None = None) -> LocalNode:
        """Wait until a node (not `other_than`) leads. Raises ClusterError at the deadline, or if all nodes
        are down."""

        def select_leader(nodes: Sequence[LocalNode]) -> LocalNode | None:
            leading = [n for n in nodes if n.role == "LEADER" and n.node_id != other_than]
            return max(leading, key=lambda n: n.term, default=None)

        return self.wait_until(select_leader, seconds, "a leader")

    def wait_for_all(self, seconds: float = 30.0) -> LocalNode:
        """Wait until all nodes answer and know the same leader, and return it. Raises the same errors as
        wait_for_leader."""

        def select_agreed_leader(nodes: Sequence[LocalNode]) -> LocalNode | None:
            leaders = {n.leader_id for n in nodes}
            if len(leaders) != 1:
                return None
            return next((n for n in nodes if n.role == "LEADER" and n.node_id in leaders), None)

        return self.wait_until(select_agreed_leader, seconds, "a leader that all nodes know")

    def wait_for_answers(self, seconds: float = 30.0) -> Sequence[LocalNode]:
        """Return all nodes once every running one answers, or at the deadline."""

        def answered(nodes: Sequence[LocalNode]) -> Sequence[LocalNode] | None:
            return nodes if all(node.state != "silent" for node in nodes) else None

        answering, nodes = self._poll(answered, seconds)
        return answering or nodes

    def wait_until(
        self, select: Callable[[Sequence[LocalNode]], LocalNode | None], seconds: float, what: str
    ) -> LocalNode:
        """Poll all nodes until `select` returns one of them."""

        def select_or_fail(nodes: Sequence[LocalNode]) -> LocalNode | None:
            if (node := select(nodes)) is not None:
                return node
            missing = f"no {what.removeprefix('a ')}"
            if all(node.state == "down" for node in nodes):
                raise ClusterError(f"{missing}: all nodes are down. {describe_down(nodes)}")
            if all(node.state == "down" or node.health == DISK_FULL_HEALTH for node in nodes):
                where = f"no space for another log file in {self.directory}"
                raise ClusterError(f"{missing}: {where}. {describe(nodes)}", code=Code.DISK_FULL)
            return None

        node, nodes = self._poll(select_or_fail, seconds)
        if node is None:
            raise ClusterError(f"no {what.removeprefix('a ')} after {seconds:g} s. {describe(nodes)}")
        return node

    def check_interrupted(self) -> None:
        """Raise KeyboardInterrupt if `is_interrupted`."""
        if self.is_interrupted:
            raise KeyboardInterrupt

    # -- internal

    def _poll(
        self, select: Callable[[Sequence[LocalNode]], T | None], seconds: float
    ) -> tuple[T | None, Sequence[LocalNode]]:
        """Poll all nodes until `select` returns a result. Returns it, or None at the deadline, with the last
        statuses."""
        deadline = time.monotonic() + seconds
        pause = _POLL_SECONDS
        while True:
            self.check_interrupted()
            nodes = self.status()
            result = select(nodes)
            if result is not None or time.monotonic() > deadline:
                return result, nodes
            time.sleep(pause)
            pause = min(pause * _POLL_FACTOR, _MAX_POLL_SECONDS)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Prevent two commands from starting the same node at the same time."""
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _pid_of_running(self, node_id: str) -> int:
        process = self.process(node_id)
        pid = process.pid
        if pid is None or not process.is_alive:
            raise ClusterError(f"{node_id} is not running: {process.why_down() or 'never started'}")
        return pid

    @staticmethod
    def _by_process(process: NodeProcess, name: str, plan: NodePlan | CompanionPlan) -> LocalNode:
        """Return the state of a server according to the operating system."""
        pid, addresses = process.pid, _addresses_of(plan)
        if not process.is_alive:
            reason = process.why_down() or "never started"
            lines = tuple(process.last_errors()) if reason.startswith("failed") else ()
            return LocalNode(name, "down", pid, *addresses, why=reason, last_log_lines=lines)
        return LocalNode(name, "paused" if process.is_paused else "running", pid, *addresses)

    def _local_node(self, plan: NodePlan) -> LocalNode:
        node = self._by_process(self.process(plan.node_id), plan.node_id, plan)
        if node.state != "running":
            return node
        status = self._request_status(plan)
        if status is None:
            return replace(node, state="silent")
        return replace(
            node,
            role=status.role,
            term=status.term,
            leader_id=status.leader_id,
            ledger_begin_index=status.ledger_begin_index,
            ledger_end_index=status.ledger_end_index,
            committed_index=status.committed_index,
            health=status.health,
            owner=status.owner,
        )

    def _request_status(self, node: NodePlan) -> NodeStatus | None:
        address = node.http_address
        connection = (
            http.client.HTTPConnection(address, timeout=_REQUEST_SECONDS)
            if self._https is None
            else http.client.HTTPSConnection(address, timeout=_REQUEST_SECONDS, context=self._https)
        )
        try:
            connection.request("GET", "/status")
            response = connection.getresponse()
            if response.status != 200:
                return None
            return node_status_from_json(json.loads(response.read()))
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


def _in_parallel(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Run `work` for each item on a thread of its own, and return the results in order.

    Ctrl-C may raise KeyboardInterrupt at any point in here. An executor may then keep one of its locks, and
    its shutdown never ends.
    """
    results: dict[int, R] = {}
    errors: list[BaseException] = []

    def run(number: int, item: T) -> None:
        try:
            results[number] = work(item)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=run, args=one, daemon=True) for one in enumerate(items)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]


def _addresses_of(plan: NodePlan | CompanionPlan) -> tuple[str, str, str]:
    """Return the addresses of a server, of its status pages, and for RocketMQ's remoting protocol."""
    return plan.address, plan.http_address, plan.remoting_address if isinstance(plan, NodePlan) else ""


def describe(nodes: Sequence[LocalNode]) -> str:
    return "; ".join(f"{n.node_id}: {n.why if n.state == 'down' else _describe_running(n)}" for n in nodes)


def _describe_running(node: LocalNode) -> str:
    if node.state != "running":
        return node.state
    health = f", {node.health}" if node.health not in ("", "ok") else ""
    return f"{node.state}, {node.role}, term {node.term}{health}"


def describe_down(nodes: Sequence[LocalNode]) -> str:
    return "; ".join(f"{n.node_id}: {' | '.join((n.why, *n.last_log_lines))}" for n in nodes)


def _with_program_settings(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    program = settings["program"]
    return {**settings, "program": {**program, "settings": {**program["settings"], **own}}}


def _node_config(plan: ClusterPlan, node: NodePlan, folder: Path, settings: Mapping[str, Any]) -> str:
    values: dict[str, Any] = {
        "node_id": node.node_id,
        "cluster_id": plan.cluster_id,
        "group": plan.group,
        "directory": str(folder / "store"),
        "http_listen": node.http_address,
        "cluster_secret_file": str(folder.parent / SECRET_FILE),
        "members": {n.node_id: n.address for n in plan.nodes},
        "http_members": {n.node_id: n.http_address for n in plan.nodes},
    }
    if plan.tls:
        values["tls"] = {**_certificates(folder.parent, node.node_id), "admin_names": [CLIENT_NAME]}
    return (
        to_toml({**values, **settings})
        .replace(REMOTING_ADDRESS, node.remoting_address)
        .replace(SEND_ADDRESS, node.send_address)
    )


def _certificates(root: Path, name: str) -> dict[str, str]:
    folder = root / TLS_FOLDER
    paths = {"certificate": f"{name}.pem", "key": f"{name}.key", "ca": "ca.pem"}
    return {key: str(folder / file) for key, file in paths.items()}
