"""A cluster of real processes, for tests that send real signals.

Waiting is always for a condition, with a deadline. Between two looks at it the helper waits for "a process
has ended": nothing here sleeps, and a node that died unasked is noticed at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Any, Final, Self, TypeVar

from dledger.cli.local.cluster_plan import HOST, port_in_use
from dledger.errors import DLedgerError
from dledger.rpc.log_client import LogClient
from dledger.status.model import NodeStatus
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import DecodedEntry, decode_entries
from dledger.store.identity import Identity, init_directory
from tests.process.faulty_node import Faults
from tests.process.forked import Forked, environment, start_process

T = TypeVar("T")

CLUSTER, GROUP = "test-cluster", "test-group"
#: Between two looks at the nodes, each of which costs them: at first, each time longer by so much, at most.
_LOOK_AFTER_S, _LONGER, _LOOK_AFTER_AT_MOST_S = 0.02, 1.25, 0.15
_REPO = Path(__file__).resolve().parents[2]


#: `dledger` itself draws others: a cluster that a test starts by command takes no port from a test.
_PORTS: Final = range(11_000, 20_000)
#: Every fourth port is drawn: a genuine RocketMQ broker also listens on the next one and on the last but one.
_BLOCK, _STEP = 400, 4


@cache
def _own_ports() -> Iterator[int]:
    """The ports of one block, again and again. No other process of tests draws from the block before this one
    ends: a test may stop a node and start it again on its port."""
    for first in range(_PORTS.start, _PORTS.stop - _BLOCK + 1, _BLOCK):
        lock = (Path(gettempdir()) / f"dledger-tests-ports-{first}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _locks.append(lock)
        return cycle(range(first, first + _BLOCK, _STEP))
    raise RuntimeError("all ports for tests are taken by other runs of tests")


_locks: list[IO[str]] = []


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, which no other test draws for a while."""
    ports = (port for port in _own_ports() if not port_in_use(HOST, port))
    return list(islice(ports, count))


def toml_of(values: Mapping[str, Any], table: str = "") -> str:
    """Scalars, lists and tables: JSON's spelling of the first two is TOML's."""
    lines = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    for key, inner in values.items():
        if isinstance(inner, Mapping):
            name = f"{table}.{key}" if table else key
            lines += [f"[{name}]", toml_of(inner, name)]
    return "\n".join(lines)


class ProcessCluster:
    """`async with ProcessCluster(folder) as cluster:` starts the nodes and kills them at the end."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        *,
        settings: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] | None = None,
        data_file_size: int = 16 << 20,
        fault_injection: bool = False,
        init: bool = True,
        server_options: Sequence[str] = (),
    ) -> None:
        """`settings`: of all nodes, or of the node of an id. `fault_injection`: with disks that `inject` has
        a say in. `init` False: the directories are there.
        `server_options`: start the nodes with `dledger server` and these."""
        self.folder = folder
        self._fault_injection = fault_injection
        self._server_options = server_options
        ports = free_ports(size)
        self.members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(ports, 1)}
        self.processes: dict[str, Forked | asyncio.subprocess.Process] = {}
        self._ends: dict[str, asyncio.Task[int]] = {}
        self._expected_down: set[str] = set()
        self._clients = {node: LogClient(address, GROUP) for node, address in self.members.items()}
        for node in self.members:
            directory = folder / node
            if init:
                init_directory(directory, Identity(CLUSTER, GROUP, node, data_file_size=data_file_size))
            config = {
                "directory": str(directory),
                "node_id": node,
                "cluster_id": CLUSTER,
                "group": GROUP,
                "members": self.members,
                **((settings(node) if callable(settings) else settings) or {}),
            }
            (folder / f"{node}.toml").write_text(toml_of(config))

    @property
    def addresses(self) -> list[str]:
        return list(self.members.values())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node, process in self.processes.items():
            if process.returncode is None:
                self.signal(node, signal.SIGKILL)
        await asyncio.gather(*self._ends.values())
        for client in self._clients.values():
            await client.close()

    # -- processes ----------------------------------------------------------------------------------------

    async def start(self, nodes: Sequence[str] | None = None, *options: str) -> None:
        for node in nodes or self.members:
            with (self.folder / f"{node}.log").open("ab") as log:
                process = await start_process(*self._command(node), *options, output=log)
            self.processes[node] = process
            self._expected_down.discard(node)
            self._ends[node] = asyncio.create_task(process.wait())

    def _command(self, node: str) -> list[str]:
        config = ["--config", str(self.folder / f"{node}.toml")]
        if self._server_options:
            return [sys.executable, "-m", "dledger.cli", "server", *config, *self._server_options]
        if not self._fault_injection:
            return [sys.executable, "-m", "dledger.node", *config]
        faults = ["--faults", str(self._faults_of(node))]
        return [sys.executable, "-m", "tests.process.faulty_node", *config, *faults]

    def _faults_of(self, node: str) -> Path:
        return self.folder / f"{node}.faults"

    def inject(self, *nodes: str, **faults: Any) -> None:
        """From now on the disks of these nodes have these faults (see Faults), and no others."""
        assert self._fault_injection
        for node in nodes:
            Faults(**faults).save(self._faults_of(node))

    def signal(self, node: str, number: signal.Signals) -> None:
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._expected_down.add(node)
        self.processes[node].send_signal(number)

    async def kill(self, *nodes: str) -> None:
        """SIGKILL all of them at once, and wait for their ends."""
        for node in nodes:
            self.signal(node, signal.SIGKILL)
        await asyncio.gather(*(self._ends[node] for node in nodes))

    async def stop(self, node: str, within_s: float = 120.0) -> int:
        """SIGTERM; the exit code."""
        if not self._ends[node].done():
            self.signal(node, signal.SIGTERM)
        return await self.ended(node, within_s)

    def expect_end(self, node: str) -> None:
        """From now on the end of this node is no surprise."""
        self._expected_down.add(node)

    async def ended(self, node: str, within_s: float = 120.0) -> int:
        """The exit code, once the node has ended."""
        async with asyncio.timeout(within_s):
            return await asyncio.shield(self._ends[node])

    def log_of(self, node: str) -> str:
        return (self.folder / f"{node}.log").read_text()

    async def command(self, *arguments: str, code: int | None = 0) -> str:
        """Run a `dledger` command; what it prints. Commands of clients get --servers and --group."""
        clients = arguments[0] in ("append", "read", "status", "purge", "scrub", "backup")
        options = ["--servers", ",".join(self.addresses), "--group", GROUP] if clients else []
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dledger.cli", *arguments, *options),
            cwd=_REPO,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed = (await process.communicate())[0].decode()
        assert code is None or process.returncode == code, (
            f"{arguments}: exit code {process.returncode}\n{printed}"
        )
        return printed

    # -- states -------------------------------------------------------------------------------------------

    async def status(self, node: str) -> NodeStatus | None:
        try:
            return await self._clients[node].get_status(0.5)
        except DLedgerError:
            return None

    async def wait_for(
        self,
        condition: Callable[[dict[str, NodeStatus]], T | None],
        *,
        nodes: Sequence[str] | None = None,
        within_s: float = 120.0,
    ) -> T:
        """The first true result of `condition(statuses of the nodes that answer)`. A condition that looks
        for a node that does not answer just now is not met."""
        seen: dict[str, NodeStatus] = {}
        pause_s = _LOOK_AFTER_S
        try:
            async with asyncio.timeout(within_s):
                while True:
                    asked = list(nodes or self.members)
                    answers = await asyncio.gather(*(self.status(node) for node in asked))
                    seen = {n: s for n, s in zip(asked, answers, strict=True) if s is not None}
                    with suppress(KeyError):
                        if result := condition(seen):
                            return result
                    await self._pause(pause_s)
                    pause_s = min(pause_s * _LONGER, _LOOK_AFTER_AT_MOST_S)
        except TimeoutError:
            raise AssertionError(f"not reached within {within_s} s; last seen: {seen}") from None

    async def leader(self, *, nodes: Sequence[str] | None = None, within_s: float = 120.0) -> str:
        """The node that leads in the highest term known, followed by a majority."""
        need = len(self.members) // 2 + 1

        def agreed(seen: dict[str, NodeStatus]) -> str | None:
            for node, status in seen.items():
                followers = [s for s in seen.values() if s.leader_id == node and s.term == status.term]
                if status.role == "LEADER" and len(followers) >= need:
                    return node
            return None

        return await self.wait_for(agreed, nodes=nodes, within_s=within_s)

    async def settle(self, within_s: float = 120.0) -> int:
        """Until all nodes have committed the same log and have it on their disks. Its last index."""

        def equal(seen: dict[str, NodeStatus]) -> NodeStatus | None:
            # Committed does not mean written everywhere: this node may not be of the majority that has it.
            ends = {
                (s.ledger_end_index, s.ledger_end_term, s.committed_index, s.durable_index)
                for s in seen.values()
            }
            first = next(iter(seen.values()), None)
            if len(seen) < len(self.members) or len(ends) != 1 or first is None:
                return None
            whole = first.durable_index == first.committed_index == first.ledger_end_index
            return first if whole else None

        return (await self.wait_for(equal, within_s=within_s)).ledger_end_index

    async def _pause(self, seconds: float) -> None:
        running: set[asyncio.Future[Any]] = {
            task for node, task in self._ends.items() if node not in self._expected_down
        }
        never = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait(running or {never}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        dead = [n for n, t in self._ends.items() if t in done and n not in self._expected_down]
        assert not dead, f"{dead[0]} ended unasked:\n{self.log_of(dead[0])[-2000:]}"

    # -- afterwards, with all nodes stopped ---------------------------------------------------------------

    def stored_entries(self, node: str) -> list[DecodedEntry]:
        """All entries of a stopped node, opened the way the node would."""
        store = DiskLogStore.open(self.folder / node)
        try:
            entries: list[DecodedEntry] = []
            at = store.base.index + 1
            while at <= store.end_index:
                frames = store.read(at, store.end_index, 1 << 20, whole_batches=False)
                entries += decode_entries(frames.data)
                at = frames.last_index + 1
            return entries
        finally:
            store.close()

    def data_begin(self, node: str) -> int:
        """Where the data stream of a stopped node begins: what is before was purged."""
        return min(int(path.name) for path in (self.folder / node / "data").iterdir())

    def data_bytes(self, node: str, first_pos: int, end_pos: int) -> bytes:
        """The data stream of a stopped node, read from its files without the store."""
        parts = []
        for path in sorted((self.folder / node / "data").iterdir()):
            start = int(path.name)
            content = path.read_bytes()
            low, high = max(first_pos - start, 0), min(end_pos - start, len(content))
            if low < high:
                parts.append(content[low:high])
        return b"".join(parts)
