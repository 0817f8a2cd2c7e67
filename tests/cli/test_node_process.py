"""A server process is found again, signalled, and its end explained, whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.cli.local import node_process
from dledger.cli.local.node_process import NodeProcess, ProcessFacts, process_facts, tail_of

pytestmark = pytest.mark.process

_SLEEPER = "import signal; print('up', flush=True); signal.pause()"


class Stand:
    """A process that stands in for a server: `script` runs with the config's path as its argument."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = _SLEEPER
        self.process = NodeProcess(folder, folder / "node.toml")
        monkeypatch.setattr(
            node_process, "server_command", lambda config: [sys.executable, "-c", self.script, str(config)]
        )


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    stand = Stand(tmp_path, monkeypatch)
    yield stand
    if stand.process.is_alive:
        stand.process.kill()


def test_before_the_first_start(stand: Stand) -> None:
    assert stand.process.pid is None
    assert not stand.process.is_alive
    assert stand.process.why_down() == ""
    assert stand.process.last_errors() == []


def test_a_killed_process_says_so_also_to_others(stand: Stand) -> None:
    pid = stand.process.start()
    other = NodeProcess(stand.process.folder, stand.process.config)
    assert other.is_alive
    assert other.pid == pid
    other.kill()
    for process in (other, stand.process):
        assert not process.is_alive
        assert process.why_down() == "killed by SIGKILL"
    assert process_facts(pid) is None


def test_what_a_server_writes_is_for_its_owner_only(stand: Stand) -> None:
    stand.script = "import sys; open(sys.argv[1] + '.trace', 'w')"
    before = os.umask(0o022)
    try:
        stand.process.start()
        assert stand.process.wait(30)
    finally:
        os.umask(before)
    made = [stand.process.log, stand.process.config.with_name("node.toml.trace")]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o600, 0o600]


def test_exit_codes_and_the_log(stand: Stand) -> None:
    stand.script = "import sys; print('fine'); print('error 635 PORT_IN_USE: taken'); sys.exit(7)"
    stand.process.start()
    assert stand.process.wait(10)
    assert stand.process.why_down() == "failed (exit code 7)"
    assert stand.process.last_errors() == ["error 635 PORT_IN_USE: taken"]
    stand.script = "print('nothing wrong')"
    stand.process.start()
    assert stand.process.wait(10)
    assert stand.process.why_down() == "stopped (exit code 0)"


def test_stop_asks_first(stand: Stand) -> None:
    stand.process.start()
    assert stand.process.stop(60)
    assert stand.process.why_down() == "killed by SIGTERM"


def test_a_signal_in_the_moment_of_exec_is_not_lost(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line of the process is empty then."""

    def without_command(pid: int) -> ProcessFacts | None:
        facts = process_facts(pid)
        return None if facts is None else replace(facts, command="")

    monkeypatch.setattr(node_process, "process_facts", without_command)
    stand.process.start()
    assert stand.process.stop(60)
    assert stand.process.why_down() == "killed by SIGTERM"


def test_stop_insists(stand: Stand) -> None:
    stand.script = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\nwhile True: signal.pause()"
    )
    stand.process.start()
    wait_for_log(stand.process, "deaf")
    assert not stand.process.stop(0.05)
    assert stand.process.why_down() == "killed by SIGKILL"


def test_a_paused_process_is_alive_and_can_be_stopped(stand: Stand) -> None:
    stand.process.start()
    stand.process.send_signal(signal.SIGSTOP)
    while not stand.process.is_paused:
        os.sched_yield()
    assert stand.process.is_alive
    assert stand.process.stop(10)
    assert not stand.process.is_alive


def test_a_reused_pid_is_never_touched(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pid of a node that died with the machine now belongs to somebody else."""
    with subprocess.Popen([sys.executable, "-c", _SLEEPER], stdout=subprocess.DEVNULL) as stranger:
        try:
            monkeypatch.setattr(node_process, "_KEEPER_SECONDS", 0.05)
            (stand.process.folder / "pid").write_text(str(stranger.pid))
            assert not stand.process.is_alive
            stand.process.send_signal(signal.SIGKILL)
            assert stranger.poll() is None
            assert "belongs to another process" in stand.process.why_down()
        finally:
            stranger.kill()
    assert "unknown reason" in stand.process.why_down()


def test_a_terminal_signal_does_not_reach_it(stand: Stand) -> None:
    """Ctrl-C goes to the terminal's process group; servers are in a session of their own."""
    pid = stand.process.start()
    assert os.getsid(pid) != os.getsid(0)


def test_tail_reads_only_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {i}\n" for i in range(100_000)))
    assert tail_of(path, 2) == ["line 99998", "line 99999"]
    assert tail_of(tmp_path / "absent", 2) == []


def wait_for_log(process: NodeProcess, text: str) -> None:
    while text not in "".join(tail_of(process.log, 10)):
        assert process.is_alive
        os.sched_yield()
