"""A cluster of real server processes as the target of faults. The cluster consists either of plain log nodes,
or of brokers and a NameServer.

The nodes reach each other and the NameServer over the harness's links; clients reach every server directly.
All files are in one directory. Methods that start, stop or signal processes run in threads, so that they do
not block the event loop, which also runs the links and the load clients.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from chaos.cluster import classic
from chaos.cluster.copies import Copies
from chaos.cluster.node_configs import INJECTION_FOLDER, NAMESRV, ClusterVariant, NodeSetup
from chaos.cluster.starts import StartedNodes
from chaos.injection.orders import FaultOrders, InjectedEffect, OrderFile, combined, read_counter
from chaos.injection.unsynced import Loss, forget, lose_power
from chaos.network.links import HOST, Links
from chaos.syncs.journal import note_damage, note_undone
from chaos.syncs.trace import journals_folder
from dledger.cli.local import local_members
from dledger.cli.local.cluster_plan import CompanionPlan, NodePlan, free_ports
from dledger.cli.local.local_cluster import REMOTING_ADDRESS, SEND_ADDRESS, ClusterError, LocalCluster
from dledger.status.model import NodeStatus

T = TypeVar("T")

CLUSTER_FOLDER = "cluster"
_POLL_S = 0.05
_NEAR_ENTRIES = 5000
#: Time limit of a change of the members.
_CHANGE_S = 100.0
#: Small, so that a run fills several files, and a disk has space for many: a node preallocates two files.
DATA_FILE_SIZE = 4 << 20
_BROKER: Mapping[str, Any] = {
    "units_per_file": 20_000,
    "index_slots": 100_000,
    "index_items": 400_000,
    "remoting": {"listen": REMOTING_ADDRESS, "send_listen": SEND_ADDRESS},
}

# Kills the servers if the harness ends without stopping them. It kills twice,
# because a server may have been about to write its pid file.
_GUARD = """
trap '' HUP INT TERM
cat >/dev/null
for again in 1 2; do
  for pid in "$1"/*/pid; do
    [ -e "${pid%pid}exit" ] || kill -KILL "$(cat "$pid")" 2>/dev/null
  done
  sleep 1
done
"""


@dataclass(frozen=True, slots=True)
class ObservedLeadership:
    """A node that claims to lead and that a majority follows."""

    node_id: str
    term: int


async def started(start: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Start processes in a thread; if cancelled, wait for the thread first.

    A thread cannot be cancelled. Processes that it started after the others were killed would never be
    stopped.
    """
    starting = asyncio.ensure_future(asyncio.to_thread(start, *arguments, **options))
    try:
        await asyncio.wait([starting])
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        raise
    return starting.result()


def derived_of(store: Path) -> Path:
    """Return the directory with the node's ConsumeQueues and indexes."""
    return store.with_name(f"{store.name}-broker")


class ChaosCluster:
    """A cluster under test. `async with await ChaosCluster.create(...) as cluster:` starts it, and kills all
    processes at the end."""

    def __init__(
        self,
        kind: ClusterVariant,
        local: StartedNodes,
        links: Links,
        injections: Injections,
        data_file_size: int,
        setup: NodeSetup,
    ) -> None:
        self.kind = kind
        self.local = local
        self.links = links
        self.injections = injections
        self.data_file_size = data_file_size
        self.copies = Copies(local.node_ids)
        #: A learner that may be promoted to a cluster of its own, if there is one.
        self.mirror = ""
        #: Receives the fields of events that concern the whole cluster.
        self.record: Callable[[dict[str, Any]], None] = lambda fields: None
        self._setup = setup
        local.on_new = self._set_up_new
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    async def create(
        cls,
        run_directory: Path,
        *,
        kind: ClusterVariant = "log",
        nodes: int = 3,
        rng: Random,
        settings: Mapping[str, Any] | None = None,
        trace_run: str | None = None,
        fault_injection: bool = False,
        data_file_size: int = DATA_FILE_SIZE,
        broker_settings: Mapping[str, Any] | None = None,
        tls: bool = False,
        double_write: bool = True,
        newcomers: int = 0,
    ) -> Self:
        """Write a new cluster below `run_directory` and open its links. Starts no process.

        `settings`: additional keys for every node, which override those that the kind needs. `trace_run`: run
        name under which nodes write traces; their syncs are recorded as well, and of nodes with a classic log
        only these. `fault_injection`: makes disk and clock faults available.
        `broker_settings`: additional keys for every broker, which override the defaults. `tls`: mutual TLS on
        all ports. `double_write`: sends to a classic master wait for its slave. `newcomers`: number of nodes
        that can be added later. Raises ConfigError if the cluster exists.
        """
        is_broker, is_classic = kind != "log", kind == "classic"
        companions = [_name_server()] if is_broker else []
        of_broker = merged(_BROKER, broker_settings or {})
        of_node: list[dict[str, Any]] = []
        if is_classic:
            names = [companion.address for companion, _ in companions]
            of_broker = merged(of_broker, {"store": "classic", "namesrv": names})
            of_node = classic.node_settings(double_write, data_file_size)
        program = {"program": {"factory": "broker_adapter.server.program:broker", "settings": of_broker}}
        local = StartedNodes.create(
            run_directory / CLUSTER_FOLDER,
            nodes=nodes,
            base_port=0,
            data_file_size=data_file_size,
            tls=tls,
            settings={**(program if is_broker else {}), **(settings or {})},
            companions=companions,
            remoting=is_broker,
            of_node=of_node,
            has_log=not is_classic,
        )
        targets = {node.node_id: node.address for node in local.plan.nodes}
        targets.update({c.name: c.address for c in local.plan.companions})
        for node, own in zip(local.plan.nodes, of_node, strict=False):
            targets[f"{node.node_id}{classic.HA}"] = own["classic"]["ha_listen"]
        later = [f"n{nodes + number}" for number in range(1, newcomers + 1)]
        targets.update(dict.fromkeys(later, ""))
        links = Links([*local.node_ids, *later], targets, rng)
        await links.start()
        injections = Injections(local, available=fault_injection)
        setup = NodeSetup(kind, run_directory, links, trace_run, fault_injection)
        cluster = cls(kind, local, links, injections, data_file_size, setup)
        for node_id in local.node_ids:
            cluster.set_up(node_id)
        local.use(local.plan)  # with the environments of the nodes
        return cluster

    def set_up(self, node_id: str) -> None:
        """Change the configuration of a node so that it can be observed and disturbed."""
        folder = self.local.directory / node_id
        self._setup.apply(folder, node_id)
        self.local.environments[node_id] = self._setup.environment(folder, node_id)

    def _set_up_new(self, node: NodePlan) -> None:
        self.links.connect(node.node_id, node.address)
        self.set_up(node.node_id)

    @property
    def node_ids(self) -> list[str]:
        return self.local.node_ids

    def next_node_ids(self, count: int) -> list[str]:
        """Return the ids of the nodes that are added next."""
        return local_members.new_node_ids(self.local, count)

    @property
    def majority(self) -> int:
        return len(self.node_ids) // 2 + 1

    @property
    def addresses(self) -> list[str]:
        """Addresses of the nodes for log clients, bypassing the links."""
        return self.local.addresses

    @property
    def namesrv(self) -> list[str]:
        """Address of the NameServer, bypassing the links. It is empty if there are no brokers."""
        return [c.address for c in self.local.plan.companions if c.name == NAMESRV]

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start all processes and wait until the cluster is healthy."""
        self._guard = _start_guard(self.local.directory)
        await started(self.local.start)
        await self.wait_healthy()

    async def close(self) -> None:
        """Kill all processes and wait for them. May be called repeatedly."""
        # Shielded, because a caller may cancel again, and no process may leak.
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def stop(self) -> dict[str, bool]:
        """Stop all processes. Returns, by name, True if the process stopped on request and False if it was
        killed."""
        return await asyncio.to_thread(self.local.stop)

    # -- changes of the members

    async def change_members(self, change: Callable[..., Any], *arguments: str) -> None:
        """Run one of the functions of `local_members`. Raises the errors of the group."""
        try:
            await started(change, self.local, *arguments, _CHANGE_S, lambda text: None)
        finally:
            self.copies.use(self.node_ids)

    async def add_mirror(self) -> None:
        """Add a learner. Clients that are created later know its address: they ignore a server of another
        cluster than the one that named it."""
        [self.mirror] = self.next_node_ids(1)
        await self.change_members(local_members.add_learner)

    # -- states

    async def statuses(self) -> dict[str, NodeStatus]:
        """Query all nodes concurrently; return the statuses of those that respond."""
        node_ids = self.node_ids
        answers = await asyncio.gather(*(asyncio.to_thread(self.local.status_of, n) for n in node_ids))
        return {node: status for node, status in zip(node_ids, answers, strict=True) if status is not None}

    async def leadership(self) -> ObservedLeadership | None:
        """Return the current leader: the claimant with the highest term, if a majority follows it."""
        seen = await self.statuses()
        if self.kind == "classic":
            # There are no elections: its term is its role epoch.
            made = classic.master_in(seen)
            return None if made is None else ObservedLeadership(made.node_id, made.role_epoch)
        leading = [status for status in seen.values() if status.is_leader]
        if not leading:
            return None
        leader = max(leading, key=lambda status: status.term)
        following = {n for n, s in seen.items() if (s.leader_id, s.term) == (leader.node_id, leader.term)}
        voters = {member.node_id for member in leader.members if member.role == "voter"}
        if 2 * len(following & voters) <= len(voters):
            return None
        return ObservedLeadership(leader.node_id, leader.term)

    async def held_messages(self) -> int | None:
        """Return the master's number of delayed and half messages, or None if no master answers."""
        seen = await self.statuses()
        leading = [status for status in seen.values() if status.is_leader and status.owner.get("writable")]
        if not leading:
            return None
        master = max(leading, key=lambda status: status.term)
        return int(master.owner["delivery"]["held_messages"])

    async def update_recovered_copies(self) -> None:
        """Mark nodes that lost their directory as recovered in `copies` once they have finished rejoining."""
        for node, status in (await self.statuses()).items():
            if node in self.copies.lost and not status.rejoining and not status.needs_image:
                self.copies.mark_recovered(node)

    async def wait_leadership(self, within_s: float = 30.0, *, after_term: int = -1) -> ObservedLeadership:
        """Wait for a leader in a term above `after_term`. Raises ClusterError at the deadline."""
        try:
            async with asyncio.timeout(within_s):
                while (leader := await self.leadership()) is None or leader.term <= after_term:
                    await asyncio.sleep(_POLL_S)
                return leader
        except TimeoutError:
            raise ClusterError(
                f"no leader was elected within {within_s:g} s: {await self._describe()}"
            ) from None

    async def wait_healthy(self, within_s: float = 60.0, *, all_run: bool = False) -> ObservedLeadership:
        """Wait until all nodes run, follow one leader, have complete data and are near its committed index
        and, if there are brokers, the master is writable. Raises ClusterError at the deadline and, with
        `all_run`, as soon as a node is down."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if all_run and (down := sorted(set(self.node_ids) - set(self.local.running()))):
                        raise ClusterError(
                            f"these nodes have ended unexpectedly: {', '.join(down)}: "
                            f"{await self._describe()}"
                        )
                    leader, seen = await self.leadership(), await self.statuses()
                    if leader is not None and self._are_healthy(seen, leader.node_id):
                        return leader
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ClusterError(
                f"the cluster did not become healthy within {within_s:g} s: {await self._describe()}"
            ) from None

    async def wait_settled(self, within_s: float = 30.0) -> int | None:
        """Wait until all logs end at the same index and this index is committed and applied on every node.
        There must be no load. Returns the index, or None at the deadline."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    seen = await self.statuses()
                    ends = {(s.ledger_end_index, s.committed_index, s.applied_index) for s in seen.values()}
                    if len(seen) == len(self.node_ids) and len(ends) == 1 and len(set(next(iter(ends)))) == 1:
                        return next(iter(ends))[0]
                    await asyncio.sleep(_POLL_S)
        return None

    def stores(self) -> list[Path]:
        """Return each node's store directory, in the order of `node_ids`."""
        return [self.local.store_directory(node_id) for node_id in self.node_ids]

    def remove_stores(self) -> None:
        """Remove the stores of all nodes, including those set aside by faults; configuration and logs are
        kept. Call after `stop`."""
        for store in (self.local.directory / node_id / "store" for node_id in self.local.all_node_ids):
            for path in [store, derived_of(store), *store.parent.glob("lost-*"), store.parent / "left"]:
                shutil.rmtree(path, ignore_errors=True)

    def _are_healthy(self, seen: Mapping[str, NodeStatus], leader: str) -> bool:
        if len(seen) < len(self.node_ids):
            return False
        if self.kind == "classic":
            return classic.are_well(seen)
        return all(self._is_healthy(status, seen[leader]) for status in seen.values())

    def _is_healthy(self, status: NodeStatus, leader: NodeStatus) -> bool:
        if status.leader_id != leader.node_id or status.rejoining or status.damaged:
            return False
        # The load continues, so nodes may lag by the entries in flight.
        near = leader.committed_index - status.committed_index < _NEAR_ENTRIES
        if self.kind == "broker" and status.is_leader:
            return near and bool(status.owner.get("writable"))
        return near

    async def _describe(self) -> str:
        nodes = await asyncio.to_thread(self.local.status)
        return "; ".join(f"{n.node_id} {n.state} {n.role} term {n.term} {n.why}".strip() for n in nodes)

    async def _close(self) -> None:
        try:
            await asyncio.to_thread(self._kill_all)
        finally:
            await self.links.close()
            if self._guard is not None:
                guard, self._guard = self._guard, None
                guard.kill()
                await asyncio.to_thread(guard.communicate)

    def _kill_all(self) -> None:
        for name in self.local.running():
            self.local.process(name).kill()


def merged(settings: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings key by key, including tables. `over` takes precedence."""
    result = dict(settings)
    for key, value in over.items():
        before = result.get(key)
        result[key] = {**before, **value} if isinstance(before, dict) else value
    return result


def _name_server() -> tuple[CompanionPlan, dict[str, str]]:
    address, http_address = (f"{HOST}:{port}" for port in free_ports(2))
    config = {"directory": "data", "listen": address, "http_listen": http_address}
    return CompanionPlan(NAMESRV, "broker_adapter.namesrv", address, http_address), config


def _start_guard(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class Injections:
    """Faults injected into disks and clocks of the nodes. Several may be in force on one node: see
    `combined`."""

    def __init__(self, local: LocalCluster, *, available: bool) -> None:
        """Create the record of injected faults. `available`: the disks and clocks of the nodes permit fault
        injection."""
        self._local = local
        self._available = available
        self._orders: dict[str, list[FaultOrders]] = {}

    def folder(self, node: str) -> Path:
        return self._local.folder(node) / INJECTION_FOLDER

    def add(self, node: str, orders: FaultOrders) -> None:
        """Inject faults into a node. Raises ClusterError if the cluster was created without fault
        injection."""
        if not self._available:
            raise ClusterError("this cluster does not support faults of disks and clocks")
        self._orders.setdefault(node, []).append(orders)
        self._save(node)

    def remove(self, node: str, orders: FaultOrders) -> None:
        self._orders[node].remove(orders)
        self._save(node)

    def count(self, nodes: Sequence[str], what: InjectedEffect) -> int:
        """Return how often these nodes applied a fault since the cluster was created."""
        return sum(read_counter(self.folder(node), what) for node in nodes)

    def lose_power(self, node: str, rng: Random) -> Loss:
        """Drop the changes of a killed node that were not durable."""
        if not self._available:
            raise ClusterError("the nodes of this cluster do not record which of their data is durable")
        loss = lose_power(self._local.store_directory(node), self.folder(node), rng)
        note_undone(journals_folder(self._local.directory.parent, node), loss.ranges)
        return loss

    def note_damage(self, node: str, begin: int, end: int) -> None:
        """Record for the sync checker that the log entry in this byte range is about to be damaged."""
        note_damage(journals_folder(self._local.directory.parent, node), begin, end)

    def forget(self, node: str) -> None:
        """Discard the record of a node whose directory no longer exists."""
        forget(self.folder(node))

    def _save(self, node: str) -> None:
        folder = self.folder(node)
        folder.mkdir(exist_ok=True)
        OrderFile(folder).save(combined(self._orders[node]))
