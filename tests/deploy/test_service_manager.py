"""Processes notify the service manager: ready, alive, stopping."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dledger.infra.loops.service_manager import ServiceManager
from dledger.store.identity import Identity, init_directory
from tests.deploy.notify_socket import NotifySocket, notify_socket
from tests.node.local import until
from tests.process.cluster import free_ports, toml_of

ROOT = Path(__file__).resolve().parents[2]
_STOP_S = 60
#: Its loop hangs in a call given as argument. The first one also holds the interpreter lock, so that no
#: thread of the process runs.
_HANGS = ("ctypes.PyDLL(None).pause()", "time.sleep(600)")
_STUCK = """
import asyncio, ctypes, sys, time
from dledger.infra.loops.service_manager import ServiceManager

def occupy_the_loop():
    print("stuck", flush=True)
    eval(sys.argv[1])

async def main():
    ServiceManager.from_environment().ready()
    asyncio.get_running_loop().call_soon(occupy_the_loop)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    name = f"dledger-test-{os.getpid()}"
    with notify_socket(str(tmp_path / "notify") if request.param == "path" else f"@{name}") as manager:
        yield manager


async def test_states_and_pings_arrive_in_order(manager: NotifySocket) -> None:
    environment = manager.variables(watchdog_s=0.03)
    service = ServiceManager.from_environment(environment)
    service.ready()
    assert (manager.receive(), manager.receive()) == ("READY=1", "WATCHDOG=1")
    await until(lambda: _waiting(manager) == ["WATCHDOG=1"])  # sent by a later turn of the loop
    service.stopping()
    assert manager.wait_for("STOPPING=1")
    await until(lambda: _waiting(manager) == ["WATCHDOG=1"])  # a long stop is no hang
    service.close()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(environment), "child processes would inherit them"


def _waiting(manager: NotifySocket) -> list[str]:
    try:
        return [manager.receive(0)]
    except BlockingIOError:
        return []


async def test_a_state_that_does_not_fit_into_the_queue_is_sent_later(manager: NotifySocket) -> None:
    service = ServiceManager.from_environment(manager.variables())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        waiting = 0
        address = manager.address.replace("@", "\0")
        with pytest.raises(BlockingIOError):
            while True:
                other.sendto(b"STATUS=busy", address)
                waiting += 1
    service.ready()
    received = [manager.receive(0) for _ in range(waiting)]
    assert "READY=1" not in received
    await until(lambda: "READY=1" in _waiting(manager))
    service.close()


async def test_without_a_usable_socket_nothing_is_sent_and_nothing_fails(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    for environment in (
        {},
        {"NOTIFY_SOCKET": "vsock:2:1"},
        {"NOTIFY_SOCKET": gone, "WATCHDOG_USEC": "1000000"},
    ):
        service = ServiceManager.from_environment(dict(environment))
        service.ready()
        service.stopping()
        service.close()


async def test_two_pings_are_sent_before_the_watchdog_expires(manager: NotifySocket) -> None:
    service = ServiceManager.from_environment(manager.variables(watchdog_s=60))
    service.ready()
    assert service._timer is not None
    assert service._timer.when() - asyncio.get_running_loop().time() < 60 / 2
    service.close()


async def test_the_watchdog_of_another_process_gets_no_pings(manager: NotifySocket) -> None:
    environment = {**manager.variables(watchdog_s=0.03), "WATCHDOG_PID": str(os.getpid() + 1)}
    service = ServiceManager.from_environment(environment)
    service.ready()
    service.stopping()
    service.close()
    assert (manager.receive(), manager.receive()) == ("READY=1", "STOPPING=1")


@contextmanager
def started(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables, "PYTHONPATH": path},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.process
@pytest.mark.parametrize("manager", ["path"], indirect=True)
@pytest.mark.parametrize("call", _HANGS)
def test_a_process_that_hangs_sends_no_pings_and_shows_where(manager: NotifySocket, call: str) -> None:
    with started(["-c", _STUCK, call], manager.variables(watchdog_s=0.3)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        assert [_waiting(manager) for _ in range(3)] == [["READY=1"], ["WATCHDOG=1"], []]
        with pytest.raises(TimeoutError):
            manager.receive(1)
        process.send_signal(signal.SIGABRT)  # as WatchdogSignal of a unit
        _, errors = process.communicate(timeout=_STOP_S)
    assert process.returncode == -signal.SIGABRT
    assert "occupy_the_loop" in errors


def _node(folder: Path) -> list[str]:
    """The second of three members, of which no other runs."""
    members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3), 1)}
    init_directory(folder / "log", Identity("c", "default", "n2"))
    config = {"directory": str(folder / "log"), "node_id": "n2", "cluster_id": "c", "members": members}
    (folder / "node.toml").write_text(toml_of(config))
    return ["-c", _DENY_WRITE_EXECUTE, "dledger.cli", "server", "--config", str(folder / "node.toml")]


def _name_server(folder: Path) -> list[str]:
    module = "broker_adapter.cli.namesrv_command"
    return [
        "-c",
        _DENY_WRITE_EXECUTE,
        module,
        "run",
        "--directory",
        str(folder / "namesrv"),
        "--listen",
        "127.0.0.1:0",
    ]


#: Runs a module like a unit with MemoryDenyWriteExecute=true.
_DENY_WRITE_EXECUTE = """
import ctypes, runpy, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)  # kernels before 6.3: no effect
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("manager", ["path"], indirect=True)
@pytest.mark.parametrize("command", [_node, _name_server], ids=["node", "namesrv"])
def test_a_server_is_ready_without_others_alive_and_stopping(
    manager: NotifySocket, command: object, tmp_path: Path
) -> None:
    assert callable(command)
    with started(command(tmp_path), manager.variables(watchdog_s=0.3)) as process:
        assert manager.receive() == "READY=1", "the first notification"
        manager.wait_for("WATCHDOG=1")
        manager.wait_for("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        _, errors = process.communicate(timeout=_STOP_S)
        assert process.returncode == 0, errors
