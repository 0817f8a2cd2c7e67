"""Changes of a trace that may be judged valid: those that break no promise, each with the reason, and,
apart from them, those that the checker is known not to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.checker.generated.changes import Change, Way

_PLACES = (Way.SWAP, Way.DELAY)
_FOR_PEOPLE = frozenset(
    [
        "host",
        "wall",
        "evidence",
        "params",
        "text",
        "config",
        "git",
        "seed",
        "error",
        "code",
        "aim",
        "boot_id",
        "pid",
        "retry_no",
    ]
)
#: Reports of nodes that only add to what others say.
_REPORTS = ("raft/", "store/", "role/")


@dataclass(frozen=True, slots=True)
class Harmless:
    reason: str
    applies: Callable[[Change], bool]


HARMLESS = (
    Harmless(
        "The field is for people: who wrote it where, at what time of day, and why. No promise is about it.",
        lambda c: c.way in (Way.ALTER, Way.OMIT, Way.ADD) and c.field in _FOR_PEOPLE,
    ),
    Harmless(
        "The time lies where the promises leave it open: a step may have happened a moment earlier or later.",
        lambda c: c.field == "mono" or c.way in _PLACES,
    ),
    Harmless(
        "The same report twice reports nothing else.",
        lambda c: (
            c.way is Way.REPEAT and c.kind.startswith((*_REPORTS, "disk/", "meta/", "fault/", "member/"))
        ),
    ),
    Harmless(
        "The line is about the run or the nodes' files as a whole: it says the same whoever writes it.",
        lambda c: c.way is Way.MOVE_NODE and c.kind.startswith(("meta/", "fault/")),
    ),
    Harmless(
        "A node that reports less claims less; what it promised to others is proved by their lines.",
        lambda c: c.way is Way.DROP and c.kind.startswith((*_REPORTS, "disk/vote_synced")),
    ),
    Harmless(
        "A line that only marks a moment for people: what it is about is told by others.",
        lambda c: c.way is Way.DROP and c.kind in ("meta/drain_begin", "meta/settled"),
    ),
)

#: What the checker is known not to see, as docs/checker.md says.
OPEN = (
    Harmless(
        "An optional field is left out, or one is there that other lines of its kind have not: few checks "
        "ask why a line says less than its like.",
        lambda c: c.way in (Way.OMIT, Way.ADD),
    ),
    Harmless(
        "A node's figure of itself that stays within what the others leave open.",
        lambda c: (
            c.way in (Way.ALTER, Way.MOVE_LIFE, Way.MOVE_NODE) and c.kind.startswith((*_REPORTS, "disk/"))
        ),
    ),
    Harmless(
        "Where a read began, what it asked and where it says that it went on to, as long as what it brought "
        "is right; queries by the harness about groups, ends and routes.",
        lambda c: (
            c.way in (Way.ALTER, Way.MOVE_QUEUE)
            and c.kind.startswith("op/")
            and c.kind.split("/")[-1]
            in (
                "get",
                "pull",
                "drain",
                "lookup",
                "max_off",
                "min_off",
                "route",
                "fetch_off",
                "reset_off",
                "commit_off",
            )
        ),
    ),
    Harmless(
        "Members that join, leave, crash, rewind: a crash that nobody tells explains less, another offset "
        "of a rewind explains as much.",
        lambda c: c.kind.startswith("member/") and c.way in (Way.DROP, Way.ALTER, Way.MOVE_QUEUE),
    ),
)


def reason(change: Change) -> str:
    """Why it is harmless; "" if it is not."""
    return next((one.reason for one in HARMLESS if one.applies(change)), "")


def is_open(change: Change) -> bool:
    """Whether it is one of those that the checker is known not to see."""
    return any(one.applies(change) for one in OPEN)
