"""What a verdict needs: the table that `docs/checker.md` shows.

A check says something only of a trace that has what the check rests on. Each need is met or unmet in a run;
which of the two, one check of the trace itself says (`by`), and nobody else. A check names the needs without
which a violation of it is no evidence (`Check.needs`) and those without which the absence of violations is
none (`Check.clear_needs`). The judge turns what such a check found into "unknown" where a need is unmet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Need(StrEnum):
    """A property of the trace of a run. The value names it for people."""

    LINES = "every line"
    ONCE = "lines that stand once"
    UNDERSTOOD = "lines that can be read"
    SHAPED = "lines that say as much as their like"
    OPERATIONS = "whole operations"
    PROCESSES = "processes with one operation at a time"
    IDS = "ids of messages that are unique"
    CLOCKS = "clocks that can be compared"
    WRITERS = "all writers"
    LIVES = "all lives of nodes"
    FINAL_READS = "final reads"
    DUMPS = "all files of nodes"
    SOUND_FILES = "files without damage"
    FAULTS = "faults that took effect"
    TAKES = "answers to all who took"
    SYNCS = "syncs that were seen"


@dataclass(frozen=True, slots=True)
class NeedSpec:
    """`by`: the check that says whether it is met. `evidence`: the lines by which it is seen. `writer`: who
    writes these. `from_prefix`: whether it can be said of a run that still goes on."""

    by: str
    evidence: str
    writer: str
    from_prefix: bool = False


_ALL, _CLIENTS, _NEMESIS = "every writer", "clients", "nemesis"
NEEDS: dict[Need, NeedSpec] = {
    Need.LINES: NeedSpec("W1", "each writer's lines are numbered without a hole (`seq`)", _ALL, True),
    Need.ONCE: NeedSpec("W10", "no writer has a number twice; no file or directory is a copy", _ALL, True),
    Need.UNDERSTOOD: NeedSpec("W6", "kinds of lines, their ranges, `v`; files without garbage", _ALL, True),
    Need.SHAPED: NeedSpec("W14", "which fields the lines of a kind have", _ALL),
    Need.OPERATIONS: NeedSpec(
        "W2",
        "one invoke, at most one completion of each `op`; its `count` of messages; `attempt` and `done` of "
        "what was sent and given",
        _CLIENTS,
        True,
    ),
    Need.PROCESSES: NeedSpec("W3", "operations of each `proc`, one after the other", _CLIENTS, True),
    Need.IDS: NeedSpec("W4", "each `mid` in one send", _CLIENTS, True),
    Need.CLOCKS: NeedSpec("W5", "`mono`, `wall`, `boot_id`, `clock_bound_ns`", _ALL, True),
    Need.WRITERS: NeedSpec("W7", "`expect`, and `trace_end` of each", _NEMESIS),
    Need.LIVES: NeedSpec("W13", "`started`, `written`, `pid` of each life, faults of its time", _NEMESIS),
    Need.FINAL_READS: NeedSpec("W8", "`log`, `healed`, `drain_target`, drains", "nemesis, final reader"),
    Need.DUMPS: NeedSpec("W12", "`dumped` and its `count`, of each node", "reader of the nodes' files"),
    Need.SOUND_FILES: NeedSpec("W9", "no `dump_hole`", "reader of the nodes' files"),
    Need.FAULTS: NeedSpec("V2", "`planned_faults`, `effective` of each fault", _NEMESIS),
    Need.TAKES: NeedSpec("H0", "outcomes of operations that take from a queue", "histories", True),
    Need.SYNCS: NeedSpec("W11", "`watched`: each life of each node, under `SYNC_FLUSH`", "recorder of syncs"),
}

#: Evidence without a need: lines that are there contradict each other.
EVIDENT = (Need.ONCE,)
#: No line is missing that the contradiction could be explained by, whoever would have written it.
WHOLE = (Need.ONCE, Need.LINES, Need.UNDERSTOOD, Need.OPERATIONS, Need.WRITERS)
#: And of no life of a node.
NODES = (*WHOLE, Need.LIVES)
#: What one writer said, in the order in which it said it: no line is missing, or is there and means nothing.
NODE_LINES = (Need.ONCE, Need.LINES, Need.UNDERSTOOD)
#: And everything was read in the end.
DRAINED = (*WHOLE, Need.FINAL_READS)


def needs_by_check() -> dict[str, Need]:
    """Which need each check of the trace itself decides."""
    return {spec.by: need for need, spec in NEEDS.items()}


def joined(*several: Sequence[Need]) -> tuple[Need, ...]:
    """All of them, each once, in the order of `Need`."""
    wanted = {need for needs in several for need in needs}
    return tuple(need for need in Need if need in wanted)


def words(needs: Iterable[Need]) -> str:
    """Needs for people: each with the check that decides it."""
    return ", ".join(f"{need} ({NEEDS[need].by})" for need in needs)
