"""Find the differences between what our brokers and RocketMQ show of the same sequence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .steps import Step

#: A value of a path that one of the two does not show.
ABSENT = "(absent)"


class Difference(NamedTuple):
    """`ours`, `theirs`: the values of one path of the observations of one step. `all_ours`, `all_theirs`: the
    whole observations, for rules that need more. `steps`: the sequence."""

    store: str
    step: Step
    path: str
    ours: Any
    theirs: Any
    all_ours: Mapping[str, Any]
    all_theirs: Mapping[str, Any]
    steps: Sequence[Step]

    @property
    def signature(self) -> tuple[str, str, str]:
        """Equal for differences that probably have one cause, also when other steps were dropped."""
        path = re.sub(r"\[[^]]*\]", "[]", self.path)
        codes = (self.all_ours.get("code"), self.all_theirs.get("code"))
        if self.path.endswith(".code"):
            codes = (self.ours, self.theirs)
        return self.store, self.step.kind, f"{path} {codes[0]}/{codes[1]}"

    def __str__(self) -> str:
        return (
            f"step {self.step.number} {self.step.kind} {self.step.args}\n"
            f"    {self.path}: {self.store} {self.ours!r}, RocketMQ {self.theirs!r}"
        )


Observations = Mapping[int, Mapping[str, Any]]


def _message(path: str) -> str:
    """The part of a path that names a message; "": it does not."""
    end = path.find("].", path.find("message["))
    return path[: end + 1] if "message[" in path else ""


def _messages(observation: Mapping[str, Any]) -> set[str]:
    return {message for path in observation if (message := _message(path))}


def first_failures(failures: Iterable[Difference]) -> list[Difference]:
    """Those of the earliest step of each store: later ones may follow from these."""
    found: dict[str, list[Difference]] = {}
    for one in failures:
        of_store = found.setdefault(one.store, [])
        if not of_store or of_store[0].step.number == one.step.number:
            of_store.append(one)
    return [one for of_store in found.values() for one in of_store]


def differences(
    store: str, steps: Sequence[Step], ours: Observations, theirs: Observations
) -> Iterable[Difference]:
    for step in steps:
        mine, other = ours.get(step.number, {}), theirs.get(step.number, {})
        both = _messages(mine) & _messages(other)
        for path in sorted({*mine, *other}):
            if (message := _message(path)) and message not in both:
                continue  # `bodies` shows that one of the two lacks it
            a, b = mine.get(path, ABSENT), other.get(path, ABSENT)
            if a != b:
                yield Difference(store, step, path, a, b, mine, other, steps)
