"""What a run says: that all promises were kept, that one was broken, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from chaos.faults.hostiles import HostileRun
from chaos.faults.nemesis import Done
from chaos.plans.scenario import Scenario
from chaos.quick.trace import QuickReport
from chaos.workloads.tally import Tally


class Verdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    VOID = "void"

    @property
    def exit_code(self) -> int:
        return {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.VOID: 2}[self]


@dataclass(frozen=True, slots=True)
class Phases:
    """Monotonic ns: the load had warmed up, faults were over and the cluster healthy, the load was over.
    `unhealed`: why it did not get healthy."""

    warm: int
    healed: int
    over: int
    unhealed: str = ""


def judge_run(
    scenario: Scenario,
    done: Sequence[Done],
    tally: Tally,
    phases: Phases,
    report: QuickReport,
    hostiles: Sequence[HostileRun] = (),
) -> tuple[Verdict, list[str]]:
    """The verdict, and why it is not `valid`. Broken promises count also when the run is void otherwise."""
    unhealed = [f"the cluster did not heal: {phases.unhealed}"] if phases.unhealed else []
    if unhealed and not report.drained:
        # What could not be read is not lost for that.
        examples = [text for text in report.examples if not text.startswith("lost:")]
        return Verdict.INVALID, [*examples, *unhealed]
    if report.broken or unhealed:
        return Verdict.INVALID, [*report.examples, *unhealed]
    reasons = [] if report.drained else ["not everything was read in the end"]
    for one in done:
        reasons += [f"fault {one.occurrence.number}, {one.name}: {failure}" for failure in one.failures]
        if one.occurrence.step.unseats_leader and one.new_term <= one.old_term:
            reasons.append(f"fault {one.occurrence.number}, {one.name}: the leader was not replaced")
    for hostile in hostiles:
        where = f"hostile client {hostile.occurrence.number}, {hostile.name}"
        reasons += [f"{where}: {failure}" for failure in hostile.failures]
    began = [one.began for one in done] + [one.began for one in hostiles]
    reasons += _silent(scenario, began, tally, phases)
    return (Verdict.VOID if reasons else Verdict.VALID), reasons


def _silent(scenario: Scenario, began: Sequence[int], tally: Tally, phases: Phases) -> list[str]:
    """Parts of the run in which too little was acknowledged. `began`: of faults and hostile clients."""
    first = min(began, default=phases.healed)
    spans = {"before": (0, first), "after": (phases.healed, phases.over)}
    if began:
        spans["during"] = (first, phases.healed)
    found = {name: tally.acknowledged_between(*span) for name, span in spans.items()}
    least = scenario.min_acknowledged
    return [f"{n} acknowledged {name} the faults, not {least}" for name, n in found.items() if n < least]
