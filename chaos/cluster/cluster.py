"""A real cluster of server processes to be hurt: log only, or with brokers and a NameServer.

The nodes reach each other, and the NameServer, over our links; clients reach all of them directly. Everything
is in one directory. Methods that touch processes run in threads: the event loop carries links and load.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from chaos.cluster import classic
from chaos.cluster.copies import Copies
from chaos.cluster.injections import Injections, injection_settings
from chaos.cluster.starts import StartedNodes
from chaos.network.links import HOST, Links
from chaos.syncs.trace import recording_environment
from dledger.cli.local.cluster_plan import CompanionPlan, free_ports, to_toml
from dledger.cli.local.local_cluster import REMOTING_ADDRESS, ClusterError, LocalCluster
from dledger.cli.local.node_process import import_path
from dledger.status.model import NodeStatus

#: `classic`: brokers with a classic log, a master and a slave.
Kind = Literal["log", "broker", "classic"]

T = TypeVar("T")

CLUSTER_FOLDER = "cluster"
NAMESRV = "namesrv"
_POLL_S = 0.05
_NEAR_ENTRIES = 5000
#: Small, so that runs see files end, and many of them fit on a disk: a node reserves two files ahead.
DATA_FILE_SIZE = 4 << 20
_BROKER: Mapping[str, Any] = {
    "units_per_file": 20_000,
    "index_slots": 100_000,
    "index_items": 400_000,
    "remoting": {"listen": REMOTING_ADDRESS},
}

# Outlives us by a moment: when we end without having stopped them, by whatever means, the servers are killed.
# Twice, since one may have been about to write down its pid.
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
class Leadership:
    """A node that leads, as it said itself, and a majority follows it."""

    node_id: str
    term: int


async def started(start: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Have a thread start processes. If this is cancelled, it ends when the thread has: a thread goes on in
    any case, and what it starts after the others were killed would stay behind."""
    starting = asyncio.ensure_future(asyncio.to_thread(start, *arguments, **options))
    try:
        await asyncio.wait([starting])
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        raise
    return starting.result()


def derived_of(store: Path) -> Path:
    """Where the broker on a node keeps its ConsumeQueues and indexes."""
    return store.with_name(f"{store.name}-broker")


class ChaosCluster:
    """`async with await ChaosCluster.create(...) as cluster:` starts it; at the end all is killed."""

    def __init__(
        self, kind: Kind, local: StartedNodes, links: Links, injections: Injections, data_file_size: int
    ) -> None:
        self.kind = kind
        self.local = local
        self.links = links
        self.injections = injections
        self.data_file_size = data_file_size
        self.copies = Copies(local.node_ids)
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    async def create(
        cls,
        run_directory: Path,
        *,
        kind: Kind = "log",
        nodes: int = 3,
        rng: Random,
        settings: Mapping[str, Any] | None = None,
        trace_run: str | None = None,
        fault_injection: bool = False,
        data_file_size: int = DATA_FILE_SIZE,
        broker_settings: Mapping[str, Any] | None = None,
        tls: bool = False,
        double_write: bool = True,
    ) -> Self:
        """Write a new cluster below `run_directory` and open its links. Starts no process. `settings`: of
        every node, over those that the kind needs. `trace_run`: nodes write traces of this name, too.
        `fault_injection`: the nodes' disks and clocks can be made faulty. `broker_settings`: of every broker,
        over the usual ones. `tls`: all ports speak mutual TLS. `double_write`: sends to
        a classic master wait for its slave. ConfigError if there is a cluster already."""
        is_broker, is_classic = kind != "log", kind == "classic"
        companions = [_name_server()] if is_broker else []
        of_broker = merged(_BROKER, broker_settings or {})
        of_node: list[dict[str, Any]] = []
        if is_classic:
            names = [companion.remoting_address for companion, _ in companions]
            of_broker = merged(of_broker, {"store": "classic", "remoting": {"namesrv": names}})
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
        links = Links(local.node_ids, targets, rng)
        await links.start()
        for node_id in local.node_ids:
            _route_through(local, links, node_id)
            if trace_run is not None:
                _have_traced(local, node_id, kind, run_directory, trace_run)
                _have_syncs_recorded(local, node_id, run_directory)
        injections = Injections(local, available=fault_injection)
        if fault_injection:
            for node_id in local.node_ids:
                _inject_faults(local, node_id, injections.folder(node_id))
        return cls(kind, local, links, injections, data_file_size)

    @property
    def node_ids(self) -> list[str]:
        return self.local.node_ids

    @property
    def majority(self) -> int:
        return len(self.node_ids) // 2 + 1

    @property
    def addresses(self) -> list[str]:
        """Of the nodes, for clients of the log: past the links."""
        return self.local.addresses

    @property
    def namesrv(self) -> list[str]:
        """Of the NameServer, for brokers; empty without brokers."""
        return [c.address for c in self.local.plan.companions if c.name == NAMESRV]

    @property
    def remoting_namesrv(self) -> list[str]:
        """Of the NameServer, for clients of the brokers; empty without brokers."""
        return [c.remoting_address for c in self.local.plan.companions if c.name == NAMESRV]

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
        """Start all processes, and wait until every node serves."""
        self._guard = _start_guard(self.local.directory)
        await started(self.local.start)
        await self.wait_healthy()

    async def close(self) -> None:
        """Kill what runs. Returns when nothing is left; safe to call again."""
        # Shielded: whoever is in a hurry may cancel us again, and processes must not stay behind.
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def stop(self) -> dict[str, bool]:
        """Ask all processes to end. name -> True: it did, False: it had to be killed."""
        return await asyncio.to_thread(self.local.stop)

    # -- states

    async def statuses(self) -> dict[str, NodeStatus]:
        """Of the nodes that answer, all asked at once."""
        asked = self.node_ids
        answers = await asyncio.gather(*(asyncio.to_thread(self.local.node_status, n) for n in asked))
        return {node: status for node, status in zip(asked, answers, strict=True) if status is not None}

    async def leadership(self) -> Leadership | None:
        """Who leads now: says so itself, in the highest term that anybody knows, and a majority agrees."""
        seen = await self.statuses()
        if self.kind == "classic":
            # Nobody elects: its term is the time at which it was made master.
            made = classic.master_in(seen)
            return None if made is None else Leadership(made.node_id, made.role_epoch)
        leading = [status for status in seen.values() if status.is_leader]
        if not leading:
            return None
        leader = max(leading, key=lambda status: status.term)
        following = [s for s in seen.values() if (s.leader_id, s.term) == (leader.node_id, leader.term)]
        if len(following) < self.majority:
            return None
        return Leadership(leader.node_id, leader.term)

    async def held_messages(self) -> int | None:
        """How many delayed and half messages the master has; None: there is none that says."""
        seen = await self.statuses()
        leading = [status for status in seen.values() if status.is_leader and status.owner.get("writable")]
        if not leading:
            return None
        master = max(leading, key=lambda status: status.term)
        return int(master.owner["delivery"]["held_messages"])

    async def see_what_is_whole(self) -> None:
        """Nodes that had lost everything have it back once they are done with rejoining: tell `copies`."""
        for node, status in (await self.statuses()).items():
            if node in self.copies.lost and not status.rejoining and not status.needs_image:
                self.copies.whole(node)

    async def wait_leadership(self, within_s: float = 30.0, *, after_term: int = -1) -> Leadership:
        """Wait until somebody leads in a term after this one. ClusterError at the deadline."""
        try:
            async with asyncio.timeout(within_s):
                while (found := await self.leadership()) is None or found.term <= after_term:
                    await asyncio.sleep(_POLL_S)
                return found
        except TimeoutError:
            raise ClusterError(f"nobody leads after {within_s:g} s: {await self._describe()}") from None

    async def wait_healthy(self, within_s: float = 60.0, *, all_run: bool = False) -> Leadership:
        """Wait until all nodes run, follow one leader, remember all, and have committed the same end; with
        brokers, until the master is writable. ClusterError at the deadline; with `all_run` also as soon as a
        node is found down, which nobody is about to start."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    if all_run and (down := sorted(set(self.node_ids) - set(self.local.running()))):
                        raise ClusterError(f"{', '.join(down)} ended: {await self._describe()}")
                    leader, seen = await self.leadership(), await self.statuses()
                    if leader is not None and self._are_healthy(seen, leader.node_id):
                        return leader
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ClusterError(f"not healthy after {within_s:g} s: {await self._describe()}") from None

    async def wait_settled(self, within_s: float = 30.0) -> int | None:
        """Wait until every node's log ends at the same index, committed and applied there; that index. To be
        called without load. None: that is not so at the deadline."""
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
        """The log's directory of each node, in the order of `node_ids`."""
        return [self.local.store_directory(node_id) for node_id in self.node_ids]

    def remove_stores(self) -> None:
        """Remove what nodes have stored, also what those have lost that were wiped; configuration and logs
        stay. After `stop`."""
        for store in self.stores():
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
        # Load goes on meanwhile: behind by what is under way is not behind.
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
    """`over` counts; tables are merged key by key."""
    found = dict(settings)
    for key, value in over.items():
        before = found.get(key)
        found[key] = {**before, **value} if isinstance(before, dict) else value
    return found


def _name_server() -> tuple[CompanionPlan, dict[str, str]]:
    address, http_address, remoting_address = (f"{HOST}:{port}" for port in free_ports(3))
    config = {
        "directory": "data",
        "listen": address,
        "http_listen": http_address,
        "remoting_listen": remoting_address,
    }
    return CompanionPlan(NAMESRV, "broker_adapter.namesrv", address, http_address, remoting_address), config


def _start_guard(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _route_through(local: LocalCluster, links: Links, node_id: str) -> None:
    """Have a node reach the others at the addresses of its links."""
    path = local.process(node_id).config
    config = tomllib.loads(path.read_text())
    addresses = links.addresses_of(node_id)
    for target in [name for name in addresses if name.endswith(classic.HA)]:
        config["program"]["settings"]["classic"]["ha_master"] = addresses.pop(target)
        addresses.pop(NAMESRV)
    if NAMESRV in addresses:
        config["program"]["settings"]["namesrv"] = [addresses.pop(NAMESRV)]
    path.write_text(to_toml({**config, "peer_addresses": addresses}))


def _have_traced(local: LocalCluster, node_id: str, kind: Kind, run_directory: Path, run: str) -> None:
    """Have a node write a trace."""
    path = local.process(node_id).config
    config = tomllib.loads(path.read_text())
    settings = config.get("program", {}).get("settings", {})
    traced = {**settings, "trace_directory": str(run_directory.resolve()), "trace_run": run}
    config["program"] = {"factory": f"chaos.cluster.traced_node:{kind}", "settings": traced}
    path.write_text(to_toml(config))


def _have_syncs_recorded(local: LocalCluster, node_id: str, run_directory: Path) -> None:
    """Have a node's process leave behind what it wrote and synced, whatever it says of it."""
    path = import_path()["PYTHONPATH"]
    store = local.store_directory(node_id)
    local.process(node_id).environment = recording_environment(run_directory, node_id, store, path)


def _inject_faults(local: LocalCluster, node_id: str, folder: Path) -> None:
    """Give a node a disk and a clock that can be made faulty, below whatever runs on it."""
    path = local.process(node_id).config
    path.write_text(to_toml(injection_settings(tomllib.loads(path.read_text()), folder)))
