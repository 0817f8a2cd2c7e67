"""Properties of a trace that a verdict depends on.

A check is conclusive only for traces with certain properties, its needs. One check of the trace itself (`by`)
decides whether a run meets a need. Every other check lists the needs that must be met for its violations to
count (`Check.needs`), and those that must be met for the absence of violations to count
(`Check.clear_needs`). `chaos.checker.judge` reports a check as unknown if its needs are unmet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Need(StrEnum):
    """A property of the trace of a run. The value is the name of the property in reports."""

    LINES = "all lines"
    ONCE = "no duplicate lines"
    UNDERSTOOD = "readable lines"
    SHAPED = "complete lines"
    OPERATIONS = "complete operations"
    PROCESSES = "sequential processes"
    IDS = "unique message ids"
    CLOCKS = "comparable clocks"
    WRITERS = "all writers"
    LIVES = "all node processes"
    FINAL_READS = "final reads"
    DUMPS = "all node files"
    SOUND_FILES = "undamaged node files"
    FAULTS = "effective faults"
    TAKES = "known outcomes of dequeues"
    SYNCS = "recorded syncs"


@dataclass(frozen=True, slots=True)
class NeedSpec:
    """Decision and evidence of a need.

    `by`: the check that decides it. `evidence`: the lines that show it. `writer`: the writer of these lines.
    `from_prefix`: the need can already be decided while the run is in progress.
    """

    by: str
    evidence: str
    writer: str
    from_prefix: bool = False


_ALL, _CLIENTS, _NEMESIS = "every writer", "clients", "nemesis"
NEEDS: dict[Need, NeedSpec] = {
    Need.LINES: NeedSpec("W1", "`seq` of each writer has no gaps", _ALL, True),
    Need.ONCE: NeedSpec("W10", "`seq` of each writer has no duplicates; no file is a copy", _ALL, True),
    Need.UNDERSTOOD: NeedSpec("W6", "known kinds of lines, values in range, `v`; intact files", _ALL, True),
    Need.SHAPED: NeedSpec("W14", "all lines of a kind have the same fields", _ALL),
    Need.OPERATIONS: NeedSpec(
        "W2",
        "one invoke and at most one completion of each `op`; its `count` of messages; `attempt`, `done`",
        _CLIENTS,
        True,
    ),
    Need.PROCESSES: NeedSpec("W3", "operations of each `proc` do not overlap", _CLIENTS, True),
    Need.IDS: NeedSpec("W4", "each `mid` is in one send", _CLIENTS, True),
    Need.CLOCKS: NeedSpec("W5", "`mono`, `wall`, `boot_id`, `clock_bound_ns`", _ALL, True),
    Need.WRITERS: NeedSpec("W7", "`expect`, and a `trace_end` of each writer", _NEMESIS),
    Need.LIVES: NeedSpec("W13", "`started`, `written`, `pid` of each node process, and its faults", _NEMESIS),
    Need.FINAL_READS: NeedSpec("W8", "`log`, `healed`, `drain_target`, drains", "nemesis, final reader"),
    Need.DUMPS: NeedSpec("W12", "`dumped` and its `count` of each node", "reader of the nodes' files"),
    Need.SOUND_FILES: NeedSpec("W9", "no `dump_hole`", "reader of the nodes' files"),
    Need.FAULTS: NeedSpec("V2", "`planned_faults`, `effective` of each fault", _NEMESIS),
    Need.TAKES: NeedSpec("H0", "outcomes of dequeues", "histories", True),
    Need.SYNCS: NeedSpec("W11", "`watched` of each process of each node (`SYNC_FLUSH`)", "recorder of syncs"),
}

#: The minimum: existing lines contradict each other.
EVIDENT = (Need.ONCE,)
#: No line of any client or node is missing that could explain the contradiction.
WHOLE = (Need.ONCE, Need.LINES, Need.UNDERSTOOD, Need.OPERATIONS, Need.WRITERS)
#: In addition, no process of a node is missing.
NODES = (*WHOLE, Need.LIVES)
#: All lines of one writer, in its order.
NODE_LINES = (Need.ONCE, Need.LINES, Need.UNDERSTOOD)
#: In addition, final reads reached the end of every log.
DRAINED = (*WHOLE, Need.FINAL_READS)


def needs_by_check() -> dict[str, Need]:
    """Return the need that each check of the trace decides, by check id."""
    return {spec.by: need for need, spec in NEEDS.items()}


def joined(*several: Sequence[Need]) -> tuple[Need, ...]:
    """Return the union of the sequences, in the order of `Need`."""
    included = {need for needs in several for need in needs}
    return tuple(need for need in Need if need in included)


def words(needs: Iterable[Need]) -> str:
    """Return the needs as text for a report, each with the check that decides it."""
    return ", ".join(f"{need} ({NEEDS[need].by})" for need in needs)
