"""Is every acknowledged line in the log: once, at its index, in order? Pure, so that it can be doubted."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

_SHOWN = 5


class Acknowledged(NamedTuple):
    """A line that a client was told is stored. index -1: stored, the position was not told again."""

    line: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    body: bytes


class Found(NamedTuple):
    """An entry that was read back."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    body: bytes


@dataclass(slots=True)
class CheckResult:
    """What is wrong, by kind, with the first few cases in words."""

    entries: int = 0
    sha256: str = ""
    missing: int = 0
    altered: int = 0
    duplicated: int = 0
    foreign: int = 0
    out_of_order: int = 0
    in_doubt_found: int = 0  # lines of unknown fate that turned out to be stored; no fault
    examples: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, int]:
        kinds = {
            "missing": self.missing,
            "altered": self.altered,
            "duplicated": self.duplicated,
            "foreign": self.foreign,
            "out of order": self.out_of_order,
        }
        return {kind: count for kind, count in kinds.items() if count}

    @property
    def ok(self) -> bool:
        return not self.faults

    def note(self, text: str) -> None:
        if len(self.examples) < _SHOWN:
            self.examples.append(text)


def sha256_of(bodies: Iterable[bytes]) -> str:
    """Over the bodies with a newline after each: what `sha256sum` says of a text file with these lines."""
    digest = hashlib.sha256()
    for body in bodies:
        digest.update(body)
        digest.update(b"\n")
    return digest.hexdigest()


def check_log(
    acknowledged: Sequence[Acknowledged], in_doubt: Sequence[bytes], found: Sequence[Found]
) -> CheckResult:
    """Compare a log that held nothing before with what was appended to it, in this order, by one client."""
    result = CheckResult(entries=len(found), sha256=sha256_of(entry.body for entry in found))
    _check_reading_order(found, result)
    rest = {entry.index: entry.body for entry in found}
    _check_places(acknowledged, rest, result)
    _check_forgotten(acknowledged, rest, result)
    _judge_rest(acknowledged, in_doubt, rest, result)
    return result


def _check_reading_order(found: Sequence[Found], result: CheckResult) -> None:
    for before, after in pairwise(found):
        if after.index == before.index:
            result.duplicated += 1
            result.note(f"index {after.index} was read twice")
        elif after.index < before.index:
            result.out_of_order += 1
            result.note(f"index {after.index} was read after {before.index}")


def _check_places(acknowledged: Sequence[Acknowledged], rest: dict[int, bytes], result: CheckResult) -> None:
    """Each line is at the index that its acknowledgement named. Takes what it found out of `rest`."""
    last = -1
    for line, index, body in acknowledged:
        if index < 0:
            continue
        if index <= last:
            result.out_of_order += 1
            result.note(f"line {line} is at index {index}, an earlier line at {last}")
        last = max(last, index)
        if index not in rest:
            result.missing += 1
            result.note(f"line {line} was acknowledged at index {index}, which is not there")
        elif rest.pop(index) != body:
            result.altered += 1
            result.note(f"index {index} does not hold line {line}")


def _check_forgotten(
    acknowledged: Sequence[Acknowledged], rest: dict[int, bytes], result: CheckResult
) -> None:
    """Lines without a known index must be somewhere between their neighbours."""
    if all(a.index >= 0 for a in acknowledged):
        return
    above: list[int] = []  # for each line, the lowest index of a later line
    lowest = max((*rest, *(a.index for a in acknowledged)), default=-1) + 1
    for a in reversed(acknowledged):
        above.append(lowest)
        lowest = a.index if a.index >= 0 else lowest
    last = -1
    for (line, index, body), limit in zip(acknowledged, reversed(above), strict=True):
        if index >= 0:
            last = index
            continue
        place = next((i for i in sorted(rest) if last < i < limit and rest[i] == body), None)
        if place is None:
            result.missing += 1
            result.note(f"line {line} was acknowledged and is not between index {last} and {limit}")
        else:
            last = place
            del rest[place]


def _judge_rest(
    acknowledged: Sequence[Acknowledged],
    in_doubt: Sequence[bytes],
    rest: dict[int, bytes],
    result: CheckResult,
) -> None:
    """Entries that no acknowledgement accounts for."""
    doubtful = Counter(in_doubt)
    known = {a.body for a in acknowledged} if rest else set()
    for index, body in rest.items():
        if doubtful[body] > 0:
            doubtful[body] -= 1
            result.in_doubt_found += 1
        elif body in known or body in doubtful:
            result.duplicated += 1
            result.note(f"index {index} holds a line that was stored already")
        else:
            result.foreign += 1
            result.note(f"index {index} holds {body[:40]!r}, which nobody appended")
