"""The command line: a real NameServer is started, asked, and stopped by signals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker_adapter.cli.namesrv_command import SERVERS_VARIABLE, cli
from broker_adapter.namesrv.registration import RemotingRegistrationSession
from broker_adapter.namesrv.values import Registration
from tests.broker_adapter.namesrv.helpers import registration
from tests.cli.conftest import heed_interrupts

ROOT = Path(__file__).resolve().parents[3]
NOBODY = "127.0.0.1:1"


def namesrv(*arguments: str, code: int = 0, servers: str = NOBODY) -> Result:
    if servers != NOBODY:
        arguments = (*arguments, "--timeout", "30")  # a machine that is busy is no bug
    result = CliRunner().invoke(cli, arguments, env={SERVERS_VARIABLE: servers})
    assert result.exit_code == code, f"{result.exit_code}\n{result.output}\n{result.exception!r}"
    return result


class Running:
    """A process, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = ""

    def wait_for(self, pattern: str) -> str:
        """Read its log until there is a line like this; its first group."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if (found := re.search(pattern, line)) is not None:
                return found[1]
        raise AssertionError(f"it has ended without {pattern}: {self.log}")

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=30)
        self.log += rest
        return self.process.returncode


@contextmanager
def started(*arguments: str) -> Iterator[Running]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    heed_interrupts()
    with subprocess.Popen(
        [sys.executable, "-m", "broker_adapter.cli.namesrv_command", "run", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


@asynccontextmanager
async def registered(address: str, given: Registration) -> AsyncIterator[None]:
    session = RemotingRegistrationSession(address, beat_s=1_000.0)
    try:
        await session.register(given)
        yield
    finally:
        await session.close()


@pytest.mark.process
@pytest.mark.xdist_group("namesrv-process")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_runs_answers_and_stops_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    with started("--directory", str(tmp_path / "d"), "--listen", "127.0.0.1:0") as server:
        address = server.wait_for(r"event=serving.* address=(\S+)")
        async with registered(address, registration("n1", 0, term=3)):
            await asyncio.to_thread(ask_everything, address)
        assert server.stop(number) == 0
        assert "event=stopped" in server.log and "Traceback" not in server.log


def ask_everything(address: str) -> None:
    namesrv("kv", "put", "ns", "k", "v", servers=address)
    assert namesrv("kv", "get", "ns", "k", servers=address).output == "v\n"
    assert namesrv("kv", "list", servers=address).output == "ns\n"
    assert namesrv("kv", "list", "ns", servers=address).output.split() == ["key", "value", "k", "v"]
    assert namesrv("topics", servers=address).output == "orders\n"
    table = namesrv("route", "orders", servers=address).output
    assert table.splitlines()[1].split() == ["broker-a", "4", "8", "6", "0", "host-broker-a-n1:1"]
    assert "MASTER" in namesrv("cluster", servers=address).output
    body = json.loads(namesrv("cluster", "--json", servers=address).output)
    assert [broker["term"] for broker in body["brokers"]] == [3]
    assert namesrv("wipe", "broker-a", servers=address).output == "broker-a is not writable now (1 topics)\n"
    assert "write permission wiped" in namesrv("cluster", servers=address).output
    namesrv("wipe", "broker-a", "--give-back", servers=address)
    namesrv("status", servers=address)
    both = namesrv("status", "--servers", f"{address},{NOBODY}", code=1).output
    assert "ok" in both and "NAMESRV_UNREACHABLE" in both
    namesrv("kv", "delete", "ns", "k", servers=address)
    assert "no key" in namesrv("kv", "get", "ns", "k", servers=address, code=1).output
    assert "dledger-namesrv topics" in namesrv("route", "x", servers=address, code=1).output


def test_output_that_cannot_be_written_is_one_line() -> None:
    command = [sys.executable, "-m", "broker_adapter.cli.namesrv_command", "status", "--servers", NOBODY]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    [first, *_] = done.stderr.decode().splitlines()
    assert first.startswith("error 414 DISK_ERROR: [Errno 28] No space left on device; free space ")
    assert b"Traceback" not in done.stderr
    assert done.returncode != 0


@pytest.mark.process
@pytest.mark.xdist_group("namesrv-process")
def test_a_killed_server_keeps_its_settings(tmp_path: Path) -> None:
    arguments = ("--directory", str(tmp_path), "--listen", "127.0.0.1:0")
    with started(*arguments) as server:
        address = server.wait_for(r"event=serving.* address=(\S+)")
        namesrv("kv", "put", "ns", "k", "v", servers=address)
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with started(*arguments) as server:
        address = server.wait_for(r"event=serving.* address=(\S+)")
        assert namesrv("kv", "get", "ns", "k", servers=address).output == "v\n"


@pytest.mark.process
@pytest.mark.xdist_group("namesrv-process")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--listen", "0.0.0.0:0"], 2, "637 PLAINTEXT_REFUSED"),
        (["--set", "tls.certificate=a", "--set", "tls.key=b", "--set", "tls.ca=c"], 2, "cannot read"),
    ],
)
def test_what_cannot_start_says_why(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    with started("--directory", str(tmp_path), *arguments) as server:
        server.process.wait(timeout=30)
        _, log = server.process.communicate()
        assert said in log and "Traceback" not in log
        assert server.process.returncode == code


def test_nobody_there_is_an_error_with_a_way_out() -> None:
    for question in (["topics"], ["cluster"], ["route", "x"], ["kv", "get", "a", "b"], ["kv", "list"]):
        assert "check --servers" in namesrv(*question, code=1).output
    for change in (["kv", "put", "a", "b", "c"], ["kv", "delete", "a", "b"], ["wipe", "x"]):
        assert "791 NAMESRV_UNREACHABLE" in namesrv(*change, code=3).output


def test_wrong_options_are_usage_errors() -> None:
    assert "host:port" in namesrv("topics", "--servers", "nowhere", code=2).output
    wrong = namesrv("topics", "--servers", "a:1", "--timeout", "nan", code=2)
    assert "not a number of seconds" in wrong.output
    assert "KEY=VALUE" in namesrv("run", "--set", "x", code=2).output
    assert "directory is missing" in namesrv("run", code=2).output
    assert (
        "did you mean max_topics"
        in namesrv("run", "--directory", "d", "--set", "limits.max_topic=1", code=2).output
    )


@pytest.mark.parametrize(
    "command", [[], ["run"], ["status"], ["route"], ["cluster"], ["topics"], ["wipe"], ["kv"]]
)
def test_every_command_teaches_by_example(command: list[str]) -> None:
    assert "dledger-namesrv " in namesrv(*command, "--help").output.partition("\n\n")[2]
