"""Reading a raw trace line by line, for the quick check, and what that reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orjson import loads

#: Messages of one client are numbered from its number times this on.
SHARE = 1 << 40
#: Of each kind.
_EXAMPLES = 5
#: Counts of what may not be, the worst first.
BROKEN = ("lost", "duplicated", "reordered", "phantom", "returned", "early")


@dataclass(slots=True)
class QuickReport:
    """Counts, and the first few of each kind in words, the worst kind first. `drained`: the final reading was
    complete, and all readers had come to the end. `consumed`, `redelivered`: by groups; what they were given
    again is no fault, unless they had kept the queue meanwhile, or had acknowledged it: `returned`. `early`:
    delivered before the time that they were delayed to. `purged`: acknowledged, and gone by
    retention. `left_behind`: acknowledged, and gone with a classic master that promised no second copy."""

    acknowledged: int = 0
    failed: int = 0
    in_doubt: int = 0
    in_doubt_stored: int = 0
    read: int = 0
    consumed: int = 0
    redelivered: int = 0
    purged: int = 0
    left_behind: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    phantom: int = 0
    returned: int = 0
    early: int = 0
    drained: bool = False
    torn_lines: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.drained and not self.broken

    @property
    def broken(self) -> int:
        """How often a promise was broken."""
        return sum(getattr(self, kind) for kind in BROKEN)

    def note(self, kind: str, text: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        if getattr(self, kind) <= _EXAMPLES:
            self.examples.append(f"{kind}: {text}")
            self.examples.sort(key=lambda example: BROKEN.index(example.partition(":")[0]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def position_of(event: dict[str, Any]) -> int:
    """-1: it has none."""
    return int(event.get("qoff", event.get("lidx", -1)))


def log_of(event: dict[str, Any]) -> str:
    return f"q:{event['topic']}/{event['q']}" if "topic" in event else f"ledger:{event.get('ledger')}"


def events_of(
    path: Path, kinds: Sequence[str], report: QuickReport | None = None
) -> Iterator[dict[str, Any]]:
    """Those of some kinds in one file. Only the last line may be torn; a line that is none before it is a
    ValueError. What else there is, is not decoded."""
    marks = tuple(f'"ev":"{kind}"'.encode() for kind in kinds)
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                if report is not None:
                    report.torn_lines += 1
                return
            if any(mark in line for mark in marks):
                event = loads(line)
                if event["ev"] in kinds:  # the mark may stand in a text
                    yield event
