"""A NameServer process: creates its parts, and starts and stops them in order."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import TYPE_CHECKING

from broker_adapter.errors import StoredDataDamaged
from broker_adapter.namesrv.callers import Callers
from broker_adapter.namesrv.config import NameServerConfig
from broker_adapter.namesrv.kv_config import FILE_NAME, KvConfig
from broker_adapter.namesrv.name_server import NameServer
from broker_adapter.namesrv.remoting_service import NameServerRemoting
from broker_adapter.namesrv.values import ClusterInfo
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.remoting.server import RemotingServer
from dledger import Code, ConfigError, DLedgerError, StorageError, TlsFiles
from dledger.infra.files.descriptors import PRIVATE_DIRECTORY, raise_limit
from dledger.infra.files.disk import Disk, OsDisk
from dledger.infra.files.watching import FileWatch
from dledger.infra.logs import configure_logging, get_logger
from dledger.infra.loops.service_manager import ServiceManager
from dledger.infra.loops.signals import STOP_SIGNALS, stop_signal
from dledger.infra.loops.watchdog import LoopWatchdog
from dledger.infra.transport.listener import TlsMode
from dledger.infra.transport.tls import ServerTls

if TYPE_CHECKING:
    from dledger.infra.http.server import HttpServer

_log = get_logger("namesrv")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2

_LOCK_NAME = "lock"
_GRACE_S = 0.5
#: The watchdog ends a process whose event loop is blocked for this time.
_LOOP_STALL_S = 20.0


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


class NameServerProcess:
    """Call `start` once and `stop` once, on the same event loop."""

    def __init__(self, config: NameServerConfig, *, disk: Disk | None = None) -> None:
        """`disk` replaces the file system of the machine."""
        self.config = config
        self._disk = disk or OsDisk()
        # A single thread serializes the writes of settings and also checks the certificates.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="namesrv")
        self._lock: int | None = None
        self._tls: ServerTls | None = None
        self._http: HttpServer | None = None
        self._remoting: RemotingServer | None = None
        self._processors: NameServerRemoting | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._files: FileWatch | None = None
        self._started_ms = monotonic_ms()

    async def start(self) -> None:
        """Read the settings and start serving.

        Raises ConfigError (PORT_IN_USE, CONFIG_INVALID, PLAINTEXT_REFUSED), StorageError (DIRECTORY_LOCKED,
        DISK_ERROR) or StoredDataDamaged if the settings file is invalid. After an error, all acquired
        resources are released.
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
            self._remoting = self._serve_remoting()
            await self._remoting.start(config.listen)
            if config.http_listen:
                from broker_adapter.namesrv.http import start_http  # its libraries are large

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
            self._files = FileWatch(self._threads, [self._tls.reload])
            self._files.start()
        _log.info(
            "serving",
            address=self.address,
            http=self.http_address or None,
            settings=len(kv),
        )

    def _serve_remoting(self) -> RemotingServer:
        tls, dispatch = self.config.tls, Dispatch()
        self._processors = service = NameServerRemoting(
            self.name_server,
            self.info,
            self._shown_settings,
            self._callers(),
            single=self.config.routes == "single",
        )
        service.register_with(dispatch)
        return RemotingServer(
            dispatch,
            tls=self._tls.remoting_context() if self._tls else None,
            mode=TlsMode(tls.remoting_mode) if tls else None,
            events=[service],
        )

    def _shown_settings(self) -> dict[str, str]:
        """Return the settings under RocketMQ's names."""
        return {
            "listenPort": self.address.rpartition(":")[2],
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
            _log.warning("tls.broker_names is empty: no broker can register")
        return Callers(tls.broker_names, tls.admin_names)

    @property
    def address(self) -> str:
        """host:port with the bound port."""
        return self._remoting.address if self._remoting else ""

    @property
    def http_address(self) -> str:
        """host:port of the status page, "" if disabled."""
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
        )

    async def stop(self) -> None:
        """Disconnect brokers and clients, and release the port and the directory.

        Takes up to about half a second.
        """
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        if self._files is not None:
            await self._files.stop()
        if self._http is not None:
            await self._http.stop()
        if self._remoting is not None:
            await self._remoting.stop(_GRACE_S)
        await asyncio.to_thread(self._threads.shutdown)
        if self._lock is not None:
            self._disk.close(self._lock)
            self._lock = None
        if self._timers:  # it has served
            _log.info("stopped")

    def _open(self) -> KvConfig:
        directory = self.config.directory
        try:
            directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            self._lock = self._disk.open(directory / _LOCK_NAME, create=True)
            if not self._disk.lock(self._lock):
                raise StorageError(f"{directory} is in use by another NameServer", code=Code.DIRECTORY_LOCKED)
            return KvConfig(directory / FILE_NAME, self._disk, self.config.kv_limits())
        except OSError as error:
            raise StorageError(f"cannot use {directory}: {error.strerror or error}") from error

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self.config.expiry.scan_ms / 1000)
            late = self.name_server.scan()
            if late and self._processors is not None:
                self._processors.close_expired(late)


def run_name_server(config: NameServerConfig) -> int:
    """Run until SIGTERM or SIGINT. Return an exit code. Errors are logged to stderr with instructions."""
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
    asked = stop_signal()
    watchdog = LoopWatchdog(_LOOP_STALL_S)
    watchdog.watch(loop, STOP_SIGNALS)
    await process.start()
    service_manager = ServiceManager.from_environment()
    service_manager.ready()
    _log.info("stopping", signal=(await asked).name)
    service_manager.stopping()
    await process.stop()
    watchdog.stop()
    service_manager.close()
    return EXIT_OK


def _version() -> str:
    try:
        return metadata.version("dledger")
    except metadata.PackageNotFoundError:
        return ""
