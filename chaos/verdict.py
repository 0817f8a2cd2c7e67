"""The verdict of a run: valid, invalid if a guarantee was violated or the cluster did not heal, or void if
the run is inconclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from chaos.faults.hostiles import HostileRun
from chaos.faults.nemesis import FaultRun
from chaos.plans.scenario import Scenario
from chaos.quick.trace import QuickReport
from chaos.workloads.tally import LoadTally


class RunVerdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    VOID = "void"

    @property
    def exit_code(self) -> int:
        return {RunVerdict.VALID: 0, RunVerdict.INVALID: 1, RunVerdict.VOID: 2}[self]


@dataclass(frozen=True, slots=True)
class Phases:
    """The times of a run, in monotonic ns, at which the load had warmed up, the cluster was healthy after the
    faults, and the load ended. `unhealed`: the reason why the cluster did not heal."""

    warm: int
    healed: int
    over: int
    unhealed: str = ""


def judge_run(
    scenario: Scenario,
    done: Sequence[FaultRun],
    tally: LoadTally,
    phases: Phases,
    report: QuickReport,
    hostiles: Sequence[HostileRun] = (),
) -> tuple[RunVerdict, list[str]]:
    """Return the verdict, and the reasons if it is not `valid`. A violated guarantee takes precedence over
    reasons that make a run void."""
    unhealed = [f"the cluster did not heal: {phases.unhealed}"] if phases.unhealed else []
    defects = [*unhealed, *tally.unclosed]
    if unhealed and not report.drained:
        # Data that was not read is not known to be lost.
        examples = [text for text in report.examples if not text.startswith("lost:")]
        return RunVerdict.INVALID, [*examples, *defects]
    if report.broken or defects:
        return RunVerdict.INVALID, [*report.examples, *defects]
    reasons = [] if report.drained else ["not everything was read at the end"]
    for fault in done:
        reasons += [f"fault {fault.occurrence.number}, {fault.name}: {failure}" for failure in fault.failures]
        if fault.occurrence.step.unseats_leader and fault.new_term <= fault.old_term:
            reasons.append(f"fault {fault.occurrence.number}, {fault.name}: the leader was not replaced")
    for hostile in hostiles:
        where = f"hostile client {hostile.occurrence.number}, {hostile.name}"
        reasons += [f"{where}: {failure}" for failure in hostile.failures]
    began = [*(fault.began for fault in done), *(client.began for client in hostiles)]
    reasons += _silent(scenario, began, tally, phases)
    return (RunVerdict.VOID if reasons else RunVerdict.VALID), reasons


def _silent(scenario: Scenario, began: Sequence[int], tally: LoadTally, phases: Phases) -> list[str]:
    """Describe the parts of the run with too few acknowledgments, given the start times of faults and hostile
    clients."""
    first = min(began, default=phases.healed)
    spans = {"before": (0, first), "after": (phases.healed, phases.over)}
    if began:
        spans["during"] = (first, phases.healed)
    counts = {name: tally.acknowledged_between(*span) for name, span in spans.items()}
    least = scenario.min_acknowledged
    return [
        f"{n} operations acknowledged {name} the faults; {least} are required"
        for name, n in counts.items()
        if n < least
    ]
