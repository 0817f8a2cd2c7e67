"""The parts of the simulator, each alone, and the ways in which users of it call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.infra.files.disk import CrashKind
from dledger.testing import QUIET, RunOptions, Simulation, Violation, run_seed
from dledger.testing.__main__ import main
from dledger.testing.checks.oracle import ClientAppend, Oracle
from dledger.testing.virtual.clock import VirtualClock
from tests.sim import planted


def test_clock_runs_in_order_of_time_then_of_asking() -> None:
    clock, ran = VirtualClock(), list[str]()
    clock.after(5, lambda: ran.append("late"))
    clock.after(1, lambda: (ran.append("first"), clock.after(0, lambda: ran.append("third")))[0])
    clock.after(1, lambda: ran.append("second"))
    clock.run_until(4)
    assert ran == ["first", "second", "third"] and clock.now_ms == 4
    assert clock.step() and not clock.step()
    assert ran[-1] == "late" and clock.now_ms == 5


class Sum:
    """A state machine of a user."""

    def __init__(self) -> None:
        self.total = 0

    def apply(self, index: int, body: bytes) -> None:
        self.total = (self.total * 31 + index + len(body)) % 1_000_003

    def digest(self) -> object:
        return self.total


class Forgetful(Sum):
    """One that does not depend on the log alone."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Forgetful.made += 1
        self.total = Forgetful.made


@pytest.mark.slow
def test_state_machine_of_a_user() -> None:
    result = run_seed(3, RunOptions(state_machine=Sum))
    assert result.failure is None, result.failure
    result = run_seed(3, RunOptions(state_machine=Forgetful))
    assert result.rule == "state machines equal"


def test_cluster_driven_by_hand() -> None:
    simulation = Simulation(QUIET, seed=7)
    simulation.start()
    simulation.run_until(lambda: simulation.leader() is not None, limit_ms=5_000)
    leader = simulation.leader()
    assert leader is not None
    attempt = simulation.append(leader, b"a", b"b")
    simulation.run_until(lambda: attempt.is_acknowledged, limit_ms=1_000)
    simulation.crash(leader, CrashKind.POWER)
    with pytest.raises(Violation, match="liveness"):
        simulation.run_until(simulation.is_settled, limit_ms=1_000)
    simulation.heal()
    simulation.run_until(simulation.is_settled, limit_ms=5_000)


def test_oracle_tells_lost_and_repeated_and_invented_entries_apart() -> None:
    oracle = Oracle(lambda index: None, max_sessions=100)
    oracle.begin(ClientAppend([b"x"], None))
    with pytest.raises(Violation, match="phantom"):
        oracle._committed_body(b"y", 0)
    oracle._committed_body(b"x", 1)
    with pytest.raises(Violation, match="duplicate"):
        oracle._committed_body(b"x", 2)
    read = oracle.begin_read()
    oracle.seen_index = 5
    late = oracle.begin_read()
    oracle.end_read(read, -1)
    with pytest.raises(Violation, match="linearizable"):
        oracle.end_read(late, 4)


@pytest.mark.slow
def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--seeds", "3", "--first", "20", "--jobs", "1", "--nodes", "3", "--store", "memory"]) == 0
    out = capsys.readouterr().out
    assert "3/3 seeds, 0 failed" in out and "every promise kept" in out and "elections won" in out
    path = tmp_path / "trace.txt"
    assert main(["--first", "20", "--trace", str(path)]) == 0
    assert path.stat().st_size > 10_000


def test_failure_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.commit_by_minority(monkeypatch)
    assert main(["--seeds", "2", "--first", "20", "--jobs", "1", "--nodes", "3"]) == 1
    out = capsys.readouterr().out
    assert "python -m dledger.testing --seeds 1 --first 20 --nodes 3 --trace trace.txt" in out
    assert "2 seeds FAILED: durable on a majority x2" in out
