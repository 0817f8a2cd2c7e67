"""A NameServer in this process: its parts put together, started in order, stopped in order."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

from broker_adapter.errors import StoredDataDamaged
from broker_adapter.namesrv.callers import Callers
from broker_adapter.namesrv.config import NameServerConfig
from broker_adapter.namesrv.http import start_http
from broker_adapter.namesrv.kv_config import FILE_NAME, KvConfig
from broker_adapter.namesrv.name_server import NameServer
from broker_adapter.namesrv.remoting_service import NameServerRemoting
from broker_adapter.namesrv.rpc_service import SERVICE, NameServerService
from broker_adapter.namesrv.values import ClusterInfo
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.remoting.server import RemotingServer
from dledger import Code, ConfigError, DLedgerError, StorageError, TlsFiles
from dledger.platform import (
    PRIVATE_DIRECTORY,
    Disk,
    GrpcHost,
    HttpServer,
    LoopWatchdog,
    OsDisk,
    ServerTls,
    TlsMode,
    configure_logging,
    get_logger,
    raise_limit,
)

_log = get_logger("namesrv")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2

_LOCK_NAME = "lock"
_GRACE_S = 0.5
_TLS_LOOK_S = 1.0
#: A process whose event loop has not turned for so long ends.
_LOOP_STALL_S = 20.0


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


class NameServerProcess:
    """`start` once, `stop` once; both on the same event loop."""

    def __init__(self, config: NameServerConfig, *, disk: Disk | None = None) -> None:
        """`disk`: other files than those of the machine."""
        self.config = config
        self._disk = disk or OsDisk()
        # One thread: settings are written one after the other, and certificates are looked at in between.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="namesrv")
        self._lock: int | None = None
        self._tls: ServerTls | None = None
        self._http: HttpServer | None = None
        self._grpc: GrpcHost | None = None
        self._remoting: RemotingServer | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._started_ms = monotonic_ms()

    async def start(self) -> None:
        """Read the settings and serve.

        ConfigError (PORT_IN_USE, CONFIG_INVALID, PLAINTEXT_REFUSED), StorageError (DIRECTORY_LOCKED,
        DISK_ERROR) or StoredDataDamaged (the settings' file); nothing is left behind then.
        """
        config, loop = self.config, asyncio.get_running_loop()
        try:
            config.refuse_plaintext()
            if config.tls is not None:
                files = TlsFiles(config.tls.ca, config.tls.certificate, config.tls.key)
                self._tls = ServerTls(files, client_auth=config.tls.client_auth == "require")
            kv = await loop.run_in_executor(self._threads, self._open)
            self.name_server = NameServer(
                kv,
                self._threads,
                now_ms=monotonic_ms,
                unix_ms=unix_ms,
                table_limits=config.table_limits(),
                limits=config.server_limits(),
            )
            self._service = NameServerService(self.name_server, self.info, self._callers())
            self._grpc = GrpcHost(
                {SERVICE: self._service.methods()},
                credentials=self._tls.credentials() if self._tls else None,
            )
            await self._grpc.start(config.listen)
            if config.remoting_listen:
                self._remoting = self._serve_remoting()
                await self._remoting.start(config.remoting_listen)
            if config.http_listen:
                context = self._tls.http_context() if self._tls and config.tls and config.tls.http else None
                self._http = await start_http(
                    self.name_server,
                    self.info,
                    lambda: self.address,
                    unix_ms,
                    config.http_listen,
                    context,
                    config.http_hosts,
                )
        except BaseException:
            await self.stop()
            raise
        self._timers.append(asyncio.create_task(self._scan()))
        if self._tls is not None:
            self._timers.append(asyncio.create_task(self._look_at_certificates(self._tls)))
        _log.info(
            "serving",
            address=self.address,
            remoting=self.remoting_address or None,
            http=self.http_address or None,
            settings=len(kv),
        )

    def _serve_remoting(self) -> RemotingServer:
        tls, dispatch = self.config.tls, Dispatch()
        service = NameServerRemoting(self.name_server, self._shown_settings, self._callers())
        service.register_with(dispatch)
        return RemotingServer(
            dispatch,
            tls=self._tls.remoting_context() if self._tls else None,
            mode=TlsMode(tls.remoting_mode) if tls else None,
            events=[service],
        )

    def _shown_settings(self) -> dict[str, str]:
        """As RocketMQ's NameServer names them."""
        return {
            "listenPort": self.remoting_address.rpartition(":")[2],
            "rocketmqHome": str(self.config.directory),
            "kvConfigPath": str(self.config.directory / FILE_NAME),
            "scanNotActiveBrokerInterval": str(self.config.expiry.scan_ms),
            "version": _version(),
        }

    def _callers(self) -> Callers | None:
        tls = self.config.tls
        if tls is None or tls.client_auth == "none":
            return None
        if not tls.broker_names:
            _log.warning("tls.broker_names is empty: no broker may register here")
        return Callers(tls.broker_names, tls.admin_names)

    @property
    def address(self) -> str:
        """host:port of gRPC, with the port that was really bound."""
        return self._grpc.address if self._grpc else ""

    @property
    def remoting_address(self) -> str:
        """host:port of the remoting protocol; "" if it is not spoken."""
        return self._remoting.address if self._remoting else ""

    @property
    def http_address(self) -> str:
        """host:port of the status page; "" without one."""
        return self._http.address if self._http else ""

    def info(self) -> ClusterInfo:
        server = self.name_server
        return ClusterInfo(
            version=_version(),
            pid=os.getpid(),
            uptime_ms=monotonic_ms() - self._started_ms,
            brokers=server.brokers(),
            topics=len(server.tables.topic_queue_table),
            sessions=len(server.sessions),
            watchers=len(server.watchers),
            config_entries=len(server.kv),
            write_wiped=server.tables.write_wiped(),
            limits_hit=dict(server.limits_hit),
            remoting_address=self.remoting_address,
        )

    async def stop(self) -> None:
        """Let brokers and clients go, and release port and directory. Takes about half a second at most."""
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        if self._http is not None:
            await self._http.stop()
        if self._remoting is not None:
            await self._remoting.stop(_GRACE_S)
        if self._grpc is not None:
            self._service.stop()
            await self._grpc.stop(_GRACE_S)
        await asyncio.to_thread(self._threads.shutdown)
        if self._lock is not None:
            self._disk.close(self._lock)
            self._lock = None
            _log.info("stopped")

    def _open(self) -> KvConfig:
        directory = self.config.directory
        try:
            directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            self._lock = self._disk.open(directory / _LOCK_NAME, create=True)
            if not self._disk.lock(self._lock):
                raise StorageError(f"{directory} is used by another NameServer", code=Code.DIRECTORY_LOCKED)
            return KvConfig(directory / FILE_NAME, self._disk, self.config.kv_limits())
        except OSError as error:
            raise StorageError(f"{directory}: {error.strerror or error}") from error

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self.config.expiry.scan_ms / 1000)
            self.name_server.scan()

    async def _look_at_certificates(self, tls: ServerTls) -> None:
        while True:
            await asyncio.sleep(_TLS_LOOK_S)
            await asyncio.get_running_loop().run_in_executor(self._threads, tls.look)


def run_name_server(config: NameServerConfig) -> int:
    """Run until SIGTERM or SIGINT. Returns an exit code; errors are written to stderr, with what to do."""
    configure_logging(config.log.format, config.log.level, server=config.listen)
    try:
        os.umask(0o077)
        raise_limit()
        return asyncio.run(_serve(NameServerProcess(config)))
    except (DLedgerError, StoredDataDamaged) as error:
        _log.error("cannot start", reason=str(error))
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


async def _serve(process: NameServerProcess) -> int:
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[signal.Signals] = loop.create_future()

    def ask(number: signal.Signals) -> None:
        if not asked.done():
            asked.set_result(number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, ask, number)
    watchdog = LoopWatchdog(_LOOP_STALL_S)
    watchdog.watch(loop, numbers)
    await process.start()
    _log.info("stopping", signal=(await asked).name)
    await process.stop()
    watchdog.stop()
    return EXIT_OK


def _version() -> str:
    try:
        return metadata.version("dledger")
    except metadata.PackageNotFoundError:
        return ""
