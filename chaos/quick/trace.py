"""Line-by-line reader for raw traces, and the report of the quick check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orjson import loads

#: Size of each client's range of message numbers.
SHARE = 1 << 40
#: Maximum number of examples of each kind.
_EXAMPLES = 5
#: Counters of violations, the most severe first.
BROKEN = ("lost", "duplicated", "reordered", "phantom", "returned", "early")


@dataclass(slots=True)
class QuickReport:
    """Counters of the quick check, and examples of violations, the most severe kind first.

    `drained`: the final reads were complete and reached the end. `consumed`, `redelivered`: by groups. A
    redelivery is permitted, unless the member kept the queue in between, or the group had acknowledged the
    message (`returned`). `early`: delivered before the end of the delay. `purged`: acknowledged and removed
    by retention. `left_behind`: acknowledged and lost with a classic master without double write, or with a
    majority of nodes.
    """

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
        """Return the number of violations."""
        return sum(getattr(self, kind) for kind in BROKEN)

    def note(self, kind: str, text: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        if getattr(self, kind) <= _EXAMPLES:
            self.examples.append(f"{kind}: {text}")
            self.examples.sort(key=lambda example: BROKEN.index(example.partition(":")[0]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def position_of(event: dict[str, Any]) -> int:
    """Return the position of a message, or -1 if it is unknown."""
    return int(event.get("qoff", event.get("lidx", -1)))


def log_of(event: dict[str, Any]) -> str:
    return f"q:{event['topic']}/{event['q']}" if "topic" in event else f"ledger:{event.get('ledger')}"


def events_of(
    path: Path, kinds: Sequence[str], report: QuickReport | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events of some kinds in one file. Does not decode the other events.

    Only the last line may be incomplete; any other malformed line raises ValueError.
    """
    marks = tuple(f'"ev":"{kind}"'.encode() for kind in kinds)
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                if report is not None:
                    report.torn_lines += 1
                return
            if any(mark in line for mark in marks):
                event = loads(line)
                if event["ev"] in kinds:  # a text may contain the mark
                    yield event
