"""A process of `dledger dev`, which tests may kill, pause and restart."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from broker_adapter.client import BlockingAdmin
    from dledger.cli.local.local_cluster import LocalCluster

#: More than the limit of `dledger dev` itself, which reports the reason.
_READY_S = 90.0
#: More than a cluster needs, which kills its nodes after 10 s.
_STOP_S = 30.0
#: Options for the ports of a first start, by the names of the printed addresses.
_PORTS = {
    "name_server": "--namesrv-port",
    "broker": "--broker-port",
    "grpc": "--grpc-port",
    "page": "--page-port",
}


class DevProcess:
    """A broker and a NameServer in a process of their own, with free ports::

        with DevProcess(tmp_path) as broker:
            producer = BlockingProducer("p", broker.name_server)

    It keeps its ports and messages when it is restarted. It also ends when this process ends, however that
    happens. Methods block.
    """

    def __init__(self, directory: Path | str, options: Sequence[str] = ()) -> None:
        """`directory`: for messages and the log file. `options`: further options of `dledger dev`."""
        self.directory = Path(directory)
        self.log = self.directory / "dev.log"
        self._options = list(options)
        self._ports: list[str] = ["--port", "0"]
        self._process: subprocess.Popen[bytes] | None = None
        self._topics = itertools.count(1)
        self.addresses: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def name_server(self) -> str:
        """host:port for RocketMQ 4 clients."""
        return str(self.addresses["name_server"])

    @property
    def endpoints(self) -> str:
        """host:port for RocketMQ 5 clients, and for clients of the log."""
        return str(self.addresses["grpc"])

    @property
    def broker(self) -> str:
        """host:port of the broker itself, which clients learn from the NameServer."""
        return str(self.addresses["broker"])

    @property
    def page(self) -> str:
        """URL of the status page."""
        return str(self.addresses["page"])

    def topic(self, prefix: str = "test", queues: int = 4) -> str:
        """Create a topic with a new name, and return the name once the NameServer knows it.

        A broker also creates a topic with its first message, with the default number of queues.
        """
        name = f"{prefix}-{next(self._topics)}-{uuid.uuid4().hex[:8]}"
        with self.admin() as admin:
            admin.create_topic(name, queues=queues)
        return name

    def admin(self) -> BlockingAdmin:
        """Return a client for topics, groups and offsets. Use it in a `with` statement."""
        from broker_adapter.client import BlockingAdmin

        return BlockingAdmin(self.name_server)

    def start(self) -> None:
        """Start the process and wait until messages can be sent.

        Raises RuntimeError, with the end of the log, if it ends or is not ready in 90 s.
        """
        assert self._process is None, "it runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "dledger", "dev", "--json", "--stop-with-stdin"]
        command += ["--dir", str(self.directory / "data"), *self._ports, *self._options]
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        try:
            line = self._first_line(process)
        except BaseException:  # for example Ctrl-C: `with` does not call `__exit__`
            self.stop()
            raise
        if not line:
            self.stop()
            tail = self.log.read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"`{' '.join(command)}` did not start:\n{tail}")
        self.addresses = json.loads(line)
        self._keep_ports()

    def _first_line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Wait for the addresses. Return an empty line if the process ends or is not ready in time."""
        assert process.stdout is not None
        overdue = threading.Timer(_READY_S, self._give_up, [process])
        overdue.daemon = True
        overdue.start()
        try:
            return process.stdout.readline()
        finally:
            overdue.cancel()

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        with self.log.open("a") as log:  # of which the error shows the end
            log.write(f"not ready within {_READY_S:g} s: stopped\n")
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def stop(self) -> None:
        """Stop the process gracefully, if it runs. After thirty seconds it is killed."""
        if self._process is not None:
            self.resume()
            self._end(self._process.terminate)

    def kill(self) -> None:
        """Kill the process with SIGKILL. Clients cannot reach it until `start`."""
        assert self._process is not None, "it does not run"
        self._end(self._process.kill)

    def restart(self) -> None:
        """Stop the process, if it runs, and start it with the same ports and messages."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop all threads of the process (SIGSTOP) until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _keep_ports(self) -> None:
        """Choose the same ports at the next start."""
        self._ports = [
            word
            for name, option in _PORTS.items()
            for word in (option, str(self.addresses[name]).rstrip("/").rpartition(":")[2])
        ]

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)  # nothing if it has ended

    def _end(self, how: Any) -> None:
        process, self._process = self._process, None
        assert process is not None
        how()
        with process:  # closes the pipes
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


class DevCluster(DevProcess):
    """Three nodes, each in a process of its own, for tests of a failover: with brokers and a NameServer, or
    with the option `--log` only the log.

    `kill`, `pause` and `resume` affect the process that supervises the nodes; use the methods for nodes.
    """

    def __init__(self, directory: Path | str, options: Sequence[str] = ()) -> None:
        super().__init__(directory, ["--nodes", "3", *options])

    @property
    def nodes(self) -> LocalCluster:
        """The nodes by id, to kill, pause, resume and start each of them."""
        from dledger.cli.local.local_cluster import LocalCluster

        return LocalCluster(self.directory / "data")

    def stop(self) -> None:
        """Stop the supervising process and all nodes, also those that it left when it was killed."""
        from dledger.cli.local.local_cluster import LocalCluster

        super().stop()
        if LocalCluster.exists(self.directory / "data"):
            self.nodes.stop()

    def leader(self, *, other_than: str | None = None) -> str:
        """Wait until a node (not `other_than`) leads, and return its id."""
        return self.nodes.wait_for_leader(_READY_S, other_than=other_than).node_id

    def kill_leader(self) -> str:
        """Kill the leader with SIGKILL. Return its id, for `start_node`."""
        leader = self.leader()
        self.nodes.kill(leader)
        return leader

    def start_node(self, node_id: str) -> None:
        """Start a killed node, and wait until all running nodes answer."""
        self.nodes.start_node(node_id)
        self.nodes.wait_for_answers(_READY_S)

    def _keep_ports(self) -> None:
        """Do nothing: the directory of a cluster contains its ports."""
