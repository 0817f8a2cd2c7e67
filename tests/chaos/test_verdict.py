"""When a run is valid, when a promise is broken, and when it says nothing."""

from __future__ import annotations

import pytest

from chaos.faults.nemesis import FaultRun
from chaos.plans.scenario import FaultStep, Occurrence, Scenario
from chaos.quick.trace import BROKEN, QuickReport
from chaos.trace.schema import OpType
from chaos.verdict import Phases, RunVerdict, judge_run
from chaos.workloads.tally import LoadTally

SECOND = 1_000_000_000
PHASES = Phases(warm=1 * SECOND, healed=7 * SECOND, over=9 * SECOND)
STEP = FaultStep(kind="kill", target="leader")
SCENARIO = Scenario(name="x", title="x", fault=(STEP,), min_acknowledged=2)


def fault(**changes: object) -> FaultRun:
    done = FaultRun(Occurrence(0, 2.0, STEP), began=3 * SECOND, targets=["n1"], ended=5 * SECOND)
    done.old_term, done.new_term = 1, 2
    for name, value in changes.items():
        setattr(done, name, value)
    return done


def load(*, without: int = -1) -> LoadTally:
    """Two messages acknowledged in each second from 1 to 8, but in this one."""
    tally = LoadTally()
    for second in range(1, 9):
        if second != without:
            tally.ok(second * SECOND, second * SECOND + SECOND // 2, 2)
    return tally


def good(**changes: int) -> QuickReport:
    report = QuickReport(acknowledged=16, drained=True)
    for name, value in changes.items():
        setattr(report, name, value)
    return report


def test_a_good_run() -> None:
    assert judge_run(SCENARIO, [fault()], load(), PHASES, good()) == (RunVerdict.VALID, [])


def test_a_client_that_never_closes_is_a_finding() -> None:
    tally = load()
    tally.unclosed.append("client p0 had not closed after 90 s")
    assert judge_run(SCENARIO, [fault()], tally, PHASES, good()) == (RunVerdict.INVALID, tally.unclosed)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_promise_counts_whatever_else_went_wrong(kind: str) -> None:
    report = good()
    report.note(kind, "message 7")
    broken = fault(failures=["had no effect"])
    verdict, reasons = judge_run(SCENARIO, [broken], LoadTally(), PHASES, report)
    assert verdict is RunVerdict.INVALID and reasons == [f"{kind}: message 7"]
    assert verdict.exit_code == 1


def test_a_cluster_that_does_not_heal_has_broken_a_promise() -> None:
    sick = Phases(PHASES.warm, PHASES.healed, PHASES.over, "n1 ended")
    verdict, reasons = judge_run(SCENARIO, [fault()], load(), sick, good())
    assert verdict is RunVerdict.INVALID and reasons == ["the cluster did not heal: n1 ended"]
    unread = good()
    unread.drained = False
    unread.note("lost", "message 7")
    unread.note("phantom", "message 8")
    reasons = judge_run(SCENARIO, [fault()], load(), sick, unread)[1]
    assert reasons == ["phantom: message 8", "the cluster did not heal: n1 ended"], "unread is not lost"


def test_a_fault_that_did_not_happen_makes_it_void() -> None:
    verdict, reasons = judge_run(
        SCENARIO, [fault(failures=["did not start: pid.n1=0"])], load(), PHASES, good()
    )
    assert verdict is RunVerdict.VOID and "did not start" in reasons[0] and verdict.exit_code == 2


def test_a_leader_that_stayed_makes_it_void() -> None:
    verdict, reasons = judge_run(SCENARIO, [fault(new_term=-1)], load(), PHASES, good())
    assert verdict is RunVerdict.VOID and "was not replaced" in reasons[0]


def test_an_incomplete_drain_makes_it_void() -> None:
    report = good()
    report.drained = False
    assert judge_run(SCENARIO, [fault()], load(), PHASES, report)[0] is RunVerdict.VOID


@pytest.mark.parametrize(
    ("tally", "part"), [(LoadTally(), "before"), (LoadTally(), "during"), (LoadTally(), "after")]
)
def test_silence_makes_it_void(tally: LoadTally, part: str) -> None:
    verdict, reasons = judge_run(SCENARIO, [fault()], tally, PHASES, good())
    assert verdict is RunVerdict.VOID
    assert f"0 operations acknowledged {part} the faults; 2 are required" in reasons


def test_silences_and_quantiles_of_a_load() -> None:
    tally = load(without=4)
    assert tally.acknowledged == 14 and tally.acknowledged_between(2 * SECOND, 3 * SECOND) == 2
    longest = tally.longest_silence
    assert longest is not None and longest.until - longest.since == 2 * SECOND
    assert tally.longest_silence_ms(longest.since, longest.since) == 2_000
    assert tally.longest_silence_ms(longest.until + 1, longest.until + 1) < 2_000
    assert tally.latency_ms(0.5) == 500
    tally.not_ok(OpType.INFO, "TIMEOUT", 3)
    assert tally.outcomes[OpType.INFO] == 3 and tally.errors["TIMEOUT"] == 1
