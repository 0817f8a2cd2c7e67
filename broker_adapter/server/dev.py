"""A NameServer and a broker with a log of one member, in one process: for tests and laptops.

It is built from the classes of a cluster, so its messages follow the same rules. There is no second member
that could take over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from broker_adapter.config.remoting import SEND_PORT_OFFSET
from broker_adapter.config.settings import parse_settings
from broker_adapter.namesrv.config import NameServerConfig
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.server.advertising import Advertising
from broker_adapter.server.program import BrokerProgram
from dledger import (
    Code,
    DLedgerError,
    FlushMode,
    NodeConfig,
    NodeServer,
    StorageError,
    init_directory,
    parse_config,
)
from dledger.infra.addresses import join_address
from dledger.infra.logs import get_logger
from dledger.infra.transport.listener import BoundPort, bind_port
from dledger.node.setup.secret_file import make_secret

if TYPE_CHECKING:
    from dledger.infra.http.server import HttpServer

_log = get_logger("dev")

_NODE = "n1"
#: Distance of RocketMQ's VIP channel from a port of the remoting protocol.
VIP_OFFSET = -2
#: Size of data files. Smaller than a server's default, because a test should not fill a disk.
_FILE_SIZE = 64 << 20
#: Interval of the checks whether the broker is ready (seconds). Each check costs microseconds.
_READY_CHECK_S = 0.005
#: Maximum time until messages can be sent, which takes about a second (seconds).
_READY_S = 60.0
_SECRET = "secret"


class DevPorts(NamedTuple):
    """The ports of a development broker. Those of the VIP channels and the send-only port follow from
    `broker`."""

    name_server: int = 9876
    broker: int = 10911
    grpc: int = 8081
    page: int = 10980

    @property
    def vip(self) -> int:
        return self.broker + VIP_OFFSET

    @property
    def send_only(self) -> int:
        return self.broker + SEND_PORT_OFFSET

    @property
    def send_only_vip(self) -> int:
        return self.send_only + VIP_OFFSET

    def named(self) -> dict[str, int]:
        derived = {"vip": self.vip, "send_only": self.send_only, "send_only_vip": self.send_only_vip}
        return {**self._asdict(), **derived}

    def all(self) -> list[int]:
        return list(self.named().values())


class DevSettings(NamedTuple):
    """`listen`: host to listen on. `advertise`: host in routes. `requested`: RocketMQ 5 clients get the
    endpoints of their requests instead. `later`: RocketMQ 4 clients get no routes until `PUT /advertise`.
    `fsync` False: acknowledge messages before they are on disk. `stops_with_stdin`: stop when stdin closes.
    """

    directory: Path
    ports: DevPorts = DevPorts()
    listen: str = "127.0.0.1"
    advertise: str = "127.0.0.1"
    requested: bool = False
    later: bool = False
    fsync: bool = True
    log_level: str = "warning"
    stops_with_stdin: bool = False

    def addresses(self) -> dict[str, Any]:
        """Return the addresses for clients, by name."""
        ports = self.ports
        own = {
            "name_server": ports.name_server,
            "grpc": ports.grpc,
            "broker": ports.broker,
            "vip": ports.vip,
            "send_only": ports.send_only,
            "send_only_vip": ports.send_only_vip,
        }
        addresses = {name: join_address(self.advertise, port) for name, port in own.items()}
        return {**addresses, "page": f"http://{join_address(self.advertise, ports.page)}/"}

    def node_config(self) -> NodeConfig:
        ports, directory = self.ports, self.directory
        if not (directory / _SECRET).exists():
            make_secret(directory / _SECRET)
        content: dict[str, Any] = {
            "directory": str(directory / "store"),
            "node_id": _NODE,
            "cluster_id": "dev",
            "members": {_NODE: join_address(self.own_host, ports.grpc)},
            "listen": join_address(self.listen, ports.grpc),
            "http_members": {_NODE: join_address(self.advertise, ports.page)},
            "http_allowed_hosts": ["*"] if self.is_reachable else [],
            "allow_plaintext": self.is_reachable,
            "cluster_secret_file": str(directory / _SECRET),
            "log": {"level": self.log_level},
        }
        return parse_config(content, where="dledger dev")

    def name_server_config(self) -> NameServerConfig:
        return NameServerConfig(
            directory=self.directory / "namesrv",
            listen=join_address(self.listen, self.ports.name_server),
            allow_plaintext=self.is_reachable,
        )

    @property
    def own_host(self) -> str:
        """Return the host at which this process reaches its own ports."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)

    @property
    def is_reachable(self) -> bool:
        """Return True if other machines can connect."""
        return self.listen not in ("127.0.0.1", "::1", "localhost")

    def broker_settings(self) -> dict[str, Any]:
        ports = self.ports
        return {
            "namesrv": [join_address(self.own_host, ports.name_server)],
            "remoting": {
                "listen": join_address(self.listen, ports.broker),
                "vip_listen": join_address(self.listen, ports.vip),
                "advertise": join_address(self.advertise, ports.broker),
            },
            "rocketmq_v2": {
                "advertise": {_NODE: join_address(self.advertise, ports.grpc)},
                "advertise_requested": self.requested,
            },
        }


class DevBroker:
    """Implements `dledger.Program`: create the node, start it, and then start the program.

    `on_ready` is called once the first message can be sent, with the seconds since the process started.
    """

    def __init__(self, settings: DevSettings, on_ready: Callable[[float], None]) -> None:
        self.settings = settings
        self.config = settings.node_config()
        self._broker = BrokerProgram(self.config, parse_settings(settings.broker_settings()))
        self._on_ready = on_ready
        self._running = AsyncExitStack()
        self._advertising: Advertising | None = None

    def make_node(self) -> NodeServer:
        """Create the node, and its directory if this is the first start."""
        mode = FlushMode.SYNC_FLUSH if self.settings.fsync else FlushMode.ASYNC_FLUSH
        try:
            init_directory(self.config, data_file_size=_FILE_SIZE, flush_mode=mode)
        except StorageError as error:
            if error.code is not Code.ALREADY_INITIALIZED:
                raise
        node = self._broker.make_node()
        assert isinstance(node, NodeServer)
        self._node = node
        if self.settings.later:
            self._advertising = Advertising(self._broker, node)
        return node

    async def start(self) -> None:
        """Start everything. Returns once messages can be sent."""
        if self.settings.stops_with_stdin:
            threading.Thread(target=stop_at_end_of_stdin, name="stdin", daemon=True).start()
        name_server = NameServerProcess(self.settings.name_server_config())
        try:
            await name_server.start()
            self._running.push_async_callback(name_server.stop)
            await self._broker.start()
            self._running.push_async_callback(self._broker.stop)
            await self._until_ready(name_server)
            await self._open_page()
            self._on_ready(_process_age_s())
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        await self._running.aclose()

    async def _until_ready(self, name_server: NameServerProcess) -> None:
        try:
            async with asyncio.timeout(_READY_S):
                while not (
                    self._broker.writer.is_open()
                    and (self.settings.later or name_server.name_server.brokers())
                ):
                    if self._node.status.node_status().no_room:
                        raise DLedgerError(
                            f"the disk of {self.settings.directory} is full: free space there, or choose "
                            "another --dir",
                            code=Code.DISK_FULL,
                        )
                    await asyncio.sleep(_READY_CHECK_S)
        except TimeoutError:
            health = self._node.status.node_status().health
            raise DLedgerError(
                f"no writable master after {_READY_S:g} s; health of the node: {health}. Check the disk of "
                f"{self.settings.directory}, and stop other programs if the machine is busy"
            ) from None

    async def _open_page(self) -> None:
        """Listen on the port of the page. The first connection waits until the page is loaded, because its
        libraries take a fifth of the start and a tenth of the memory."""
        port = await bind_port("status", join_address(self.settings.listen, self.settings.ports.page))
        self._running.callback(port.close)
        loading = asyncio.create_task(self._serve_page(port))
        loading.add_done_callback(_log_failure)
        self._running.push_async_callback(asyncio.wait, (loading,))
        self._running.callback(loading.cancel)

    async def _serve_page(self, port: BoundPort) -> None:
        await port.first_connection()
        start_http = await asyncio.to_thread(_import_start_http)
        advertising, hosts = self._advertising, self.config.http_hosts
        if advertising is None:
            page = await start_http(self._node.status, port, allowed_hosts=hosts)
        else:
            puts = {"/advertise": advertising.put}
            page = await start_http(advertising, port, puts=puts, allowed_hosts=hosts)
        self._running.push_async_callback(page.stop)


def _log_failure(loading: asyncio.Task[None]) -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        _log.error("the status page cannot be served", reason=str(error))


def _import_start_http() -> Callable[..., Awaitable[HttpServer]]:
    from dledger.status.http import start_http

    return start_http


def _process_age_s() -> float:
    """Return the seconds since this process was started, including the imports."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:  # another system than Linux
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def stop_at_end_of_stdin() -> None:
    """Wait until stdin is closed, then stop this process as SIGTERM does."""
    # Not sys.stdin: its lock, held by a thread that reads, would abort the interpreter at exit.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
