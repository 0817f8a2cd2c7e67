"""A step of a sequence: one request, or one act of an operator. Steps refer to earlier steps by number.

Names are logical (`T0`, `G1`): each play replaces them by fresh ones, so that plays do not see each other.
A step whose reference is missing observes nothing, so that any subset of a sequence can be played.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

#: The kind of a step that stops and starts all brokers.
RESTART: Final = "restart"


class Step(NamedTuple):
    """`args`: JSON values, whose meaning depends on the kind; see `session.ACTIONS`."""

    number: int
    kind: str
    args: dict[str, Any]


def to_text(steps: Iterable[Step]) -> str:
    """One line a step; `from_text` reads it back."""
    return "\n".join(f"{step.number} {step.kind} {json.dumps(step.args)}" for step in steps)


def from_text(text: str) -> list[Step]:
    steps = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            number, kind, args = line.strip().split(" ", 2)
            steps.append(Step(int(number), kind, json.loads(args)))
    return steps


def without(steps: Sequence[Step], dropped: set[int]) -> list[Step]:
    return [step for step in steps if step.number not in dropped]
