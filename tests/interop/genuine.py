"""Processes of the genuine RocketMQ on the JVM, and its mqadmin.

`make interop` fetches the jars; the variable ROCKETMQ_LIB names another folder with them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

DID_NOT_RUN = "GENUINE ROCKETMQ DID NOT RUN"
_FETCHED = Path(__file__).resolve().parents[2] / "build/interop"
LIB = Path(os.environ.get("ROCKETMQ_LIB") or _FETCHED / "lib")
#: The Java client of RocketMQ 4.9 alone.
CLIENT_49 = Path(os.environ.get("ROCKETMQ_CLIENT_49") or _FETCHED / "client49")
#: The Java client of RocketMQ 5, which speaks gRPC; `make clients-java` fetches it.
CLIENT_GRPC = Path(os.environ.get("ROCKETMQ_CLIENT_GRPC") or _FETCHED.with_name("clients") / "java/lib")
#: Of RocketMQ 5.5; `make bench-rocketmq` fetches it.
PROXY = Path(os.environ.get("ROCKETMQ_PROXY") or _FETCHED / "proxy")
GO_CLIENT = Path(os.environ.get("ROCKETMQ_CLIENT_GO") or _FETCHED / "go/client")
NODE_MODULES = Path(os.environ.get("ROCKETMQ_CLIENT_NODE") or _FETCHED / "node/node_modules")
_PACKAGE = "org.apache.rocketmq"
_OPTIONS = [
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang")),
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Xms128m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=1g",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dtls.server.mode=disabled",
    "-Dtls.test.mode.enable=false",
]
_STOP_S = 30
_ADMIN_S = 120
_CLIENT_S = 300
_WITHIN_S = 60
_PAUSE_S = 0.1
#: What a client says of itself, among what its libraries print.
_SAID = "@ "


def missing() -> str:
    """What of RocketMQ is not there, and how to get it; "" if its brokers can run."""
    if not shutil.which("java"):
        return "there is no `java` on PATH"
    if not any(LIB.glob("rocketmq-broker-*.jar")):
        return f"no jars in {LIB} (`make interop` fetches them)"
    return ""


def require() -> None:
    """Skips the test that calls it, loudly, if RocketMQ is not there."""
    reason = missing()
    if not reason and not any(CLIENT_49.glob("rocketmq-client-*.jar")):
        reason = f"no jars in {CLIENT_49} (`make interop` fetches them)"
    if reason:
        pytest.skip(f"{DID_NOT_RUN}: {reason}")


def java(home: Path, path: str, main: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a JVM with its logs in `home`. `path`: its classes."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    command = ["java", *_OPTIONS, f"-Duser.home={home}", "-cp", path, main, *arguments]
    return command, {**os.environ, "ROCKETMQ_HOME": str(home)}


def _command(home: Path, main: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    return java(home, f"{LIB}/*", f"{_PACKAGE}.{main}", *arguments)


@contextmanager
def running(home: Path, main: str, settings: Mapping[str, object]) -> Iterator[subprocess.Popen[bytes]]:
    """A server with these settings, until the end of the block. Its log is in `home`/logs."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "server.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command, environment = _command(home, main, "-c", str(path))
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=home)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def broker(home: Path, name_servers: str, port: int, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
    """A classic broker of the cluster `main`; slaves need brokerId and brokerRole."""
    store = home / "store"
    common = {
        "brokerClusterName": "main",
        "brokerName": "java-a",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": name_servers,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 16 << 20,
        "brokerRole": "ASYNC_MASTER",
        "brokerId": 0,
    }
    with running(home, "broker.BrokerStartup", {**common, **settings}) as process:
        yield process


@contextmanager
def name_server(home: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    with running(home, "namesrv.NamesrvStartup", {"listenPort": port}) as process:
        yield process


def _is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def proxy(
    home: Path, name_servers: str, cluster: str, port: int, remoting_port: int
) -> Iterator[tuple[str, int]]:
    """RocketMQ's proxy in cluster mode: the address at which it speaks gRPC, and its process."""
    home.mkdir(parents=True, exist_ok=True)
    settings = {
        "rocketMQClusterName": cluster,
        "proxyClusterName": cluster,
        "heartbeatSyncerTopicClusterName": cluster,
        "proxyMode": "CLUSTER",
        "namesrvAddr": name_servers,
        "localServeAddr": "127.0.0.1",
        "grpcServerPort": port,
        "remotingListenPort": remoting_port,
    }
    path = home / "rmq-proxy.json"
    path.write_text(json.dumps(settings))
    command, environment = java(home, f"{PROXY}/*", f"{_PACKAGE}.proxy.ProxyStartup", "-pc", str(path))
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=home)
    try:
        deadline = time.monotonic() + _ADMIN_S
        while not _is_open(port):
            printed = (home / "output").read_text()[-3000:]
            assert process.poll() is None and time.monotonic() < deadline, printed
            threading.Event().wait(_PAUSE_S)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


def mqadmin(home: Path, name_servers: str, *arguments: str, account: str = "") -> str:
    """What the command prints. AssertionError if it fails; it says so on stdout only, so words count.
    `account`: access key and secret with a colon; "": nothing is signed."""
    command, environment = _command(home, "tools.command.MQAdminStartup", *arguments, "-n", name_servers)
    key, _, secret = account.partition(":")
    (home / "conf" / "tools.yml").write_text(f"accessKey: {key}\nsecretKey: {secret}\n" if account else "")
    done = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, timeout=_ADMIN_S, check=False
    )
    printed = "\n".join(
        line for line in done.stdout.splitlines() if "|-" not in line and "JoranConf" not in line
    )
    assert done.returncode == 0 and "Exception" not in printed, printed + done.stderr
    return printed


def until_registered(home: Path, name_servers: str, address: str) -> str:
    """Until the NameServer knows the broker at that address; the line about it. AssertionError after several
    looks."""
    for _ in range(10):
        with suppress(AssertionError):
            for line in mqadmin(home, name_servers, "clusterList").splitlines():
                if address in line:
                    return line
    raise AssertionError(f"{address} has not registered")


class Client:
    """Runs a program that is told what to do by its arguments, and says each fact as a line of words."""

    def __init__(self, name: str, folder: Path, command: Sequence[str], **environment: str) -> None:
        """`folder`: where it runs, and leaves what it prints else."""
        self.name, self._folder = name, folder
        self._command = list(command)
        self._environment = {**os.environ, **environment}

    @property
    def slug(self) -> str:
        """Its name as part of that of a topic or group."""
        return "".join(character for character in self.name if character.isalnum())

    def run(self, *arguments: str, account: str = "") -> list[str]:
        """What it says, when it has done all."""
        with self.begin(*arguments, account=account) as process:
            return process.finish()

    @contextmanager
    def begin(self, *arguments: str, account: str = "") -> Iterator[ClientProcess]:
        """`account`: access key and secret with a colon; "": nothing is signed."""
        with (
            (self._folder / f"errors-{time.monotonic_ns()}").open("wb") as errors,
            subprocess.Popen(
                [*self._command, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self._folder,
                env={**self._environment, "ROCKETMQ_ACCOUNT": account},
            ) as process,
        ):
            client = ClientProcess(process, self._folder)
            try:
                yield client
            finally:
                process.kill()
                client.end_reading()


def java_program(folder: Path, program: str, lib: Path = LIB) -> list[str]:
    """The command of a program beside this file, compiled into `folder` with these jars."""
    path = f"{folder}:{lib}/*"
    source = Path(__file__).with_name(f"{program}.java")
    subprocess.run(["javac", "-nowarn", "-Xlint:none", "-cp", path, "-d", folder, source], check=True)
    return ["java", *_OPTIONS, f"-Duser.home={folder}", "-cp", path, program]


def java_client(version: str, folder: Path, program: str = "Client") -> Client:
    """A program beside this file, `Client.java`, with a version of RocketMQ's Java client."""
    lib = LIB if version.startswith("5") else CLIENT_49
    return Client(f"Java {version}", folder, java_program(folder, program, lib))


def go_client(folder: Path) -> Client:
    """`go/main.go`, which `make interop` builds. Skips the test, loudly, if it is not there."""
    if not GO_CLIENT.exists():
        pytest.skip(f"{DID_NOT_RUN}: there is no {GO_CLIENT} (`make interop` builds it)")
    return Client("Go 2.1.2", folder, [str(GO_CLIENT)])


def node_client(folder: Path) -> Client:
    """`ons.cjs` with ali-ons, which `make interop` fetches. Skips the test, loudly, if it is not there."""
    if not (NODE_MODULES / "ali-ons").exists() or not shutil.which("node"):
        pytest.skip(f"{DID_NOT_RUN}: there is no `node`, or no {NODE_MODULES} (`make interop` fetches it)")
    program = Path(__file__).with_name("ons.cjs")
    return Client("ali-ons 3.12.0", folder, ["node", str(program)], NODE_PATH=str(NODE_MODULES))


class ClientProcess:
    """Its lines, as they come."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._timer = threading.Timer(_CLIENT_S, process.kill)
        self._timer.daemon = True
        self._timer.start()
        self.lines: list[str] = []
        self._reader: threading.Thread | None = None

    def wait_for(self, begin: str) -> None:
        """Until a line begins so. AssertionError if none does."""
        assert any(line.startswith(begin) for line in self._read()), (begin, self._why())

    def read_beside(self) -> None:
        """Read `lines` on a thread from now on, until it ends: who writes them never waits."""
        self._reader = threading.Thread(target=lambda: list(self._read()), daemon=True)
        self._reader.start()

    def end_reading(self) -> None:
        """Wait for the end of the output that is read beside. It must not be closed before."""
        if self._reader is not None:
            self._reader.join()

    def finish(self) -> list[str]:
        """All lines, when it has ended. AssertionError if it failed, or took too long."""
        if self._reader is None:
            self.read_beside()
        self.end_reading()
        self._timer.cancel()
        assert self._process.wait() == 0, (self.lines[-20:], self._why())
        return self.lines

    def _read(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_SAID):
                self.lines.append(line[len(_SAID) :].rstrip("\n"))
                yield self.lines[-1]

    def _why(self) -> str:
        newest = max(self._folder.glob("errors-*"), key=lambda path: path.stat().st_mtime)
        return newest.read_text()[-3000:]


async def eventually(
    condition: Callable[[], Awaitable[bool]], within_s: float = _WITHIN_S, pause_s: float = _PAUSE_S
) -> None:
    """Brokers of another process do things in their own time."""
    async with asyncio.timeout(within_s):
        while not await condition():
            await pace(pause_s)


async def pace(seconds: float) -> None:
    """For load that comes at a rate; nobody may take it for a state that is reached."""
    turn = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not turn.done():  # it is cancelled in the same iteration of the loop as its time comes
            turn.set_result(None)

    handle = asyncio.get_running_loop().call_later(seconds, end)
    try:
        await turn
    finally:
        handle.cancel()
