"""Is every acknowledged line where it was said to be, and did the group get all of it in order? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_SHOWN = 5

#: (topic, queue id)
Queue = tuple[str, int]


class Acknowledged(NamedTuple):
    """A line that the producer was told is stored."""

    line: int
    queue: Queue
    offset: int
    body: bytes


class Stored(NamedTuple):
    """A message that was read back: `line` is its key."""

    offset: int
    line: int
    body: bytes


class Delivery(NamedTuple):
    """A message that a member of the group was given."""

    member: str
    queue: Queue
    offset: int
    body: bytes


@dataclass(slots=True)
class Verdict:
    """What is wrong, by kind, with the first few cases in words; and what is told, but is no fault."""

    faults: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    messages: int = 0
    again: int = 0  # stored twice, or delivered twice: at least once is what was promised
    in_doubt_found: int = 0  # lines of unknown fate that turned out to be stored

    @property
    def ok(self) -> bool:
        return not self.faults

    def note(self, kind: str, text: str) -> None:
        self.faults[kind] += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(text)


def name_of(queue: Queue) -> str:
    return f"{queue[0]}-{queue[1]}"


def check_stored(
    acknowledged: Sequence[Acknowledged],
    in_doubt: Mapping[int, Queue],
    found: Mapping[Queue, Sequence[Stored]],
) -> Verdict:
    """Compare queues that held nothing before with what one producer sent to them, in the order of lines.

    A line may be stored again, as the producer sends again what it got no answer to; its first place counts
    for the order. `in_doubt`: lines without an answer, and where they were to go.
    """
    verdict = Verdict(messages=sum(map(len, found.values())))
    by_offset = {(queue, one.offset): one for queue, messages in found.items() for one in messages}
    for line, queue, offset, body in acknowledged:
        one = by_offset.get((queue, offset))
        if one is None:
            verdict.note("missing", f"line {line} was acknowledged at {name_of(queue)} {offset}: not there")
        elif (one.line, one.body) != (line, body):
            verdict.note("altered", f"{name_of(queue)} {offset} holds line {one.line}, not line {line}")
    queue_of = {**{one.line: one.queue for one in acknowledged}, **in_doubt}
    for queue, messages in found.items():
        _check_queue(queue, messages, queue_of, in_doubt, verdict)
    return verdict


def _check_queue(
    queue: Queue,
    messages: Sequence[Stored],
    queue_of: Mapping[int, Queue],
    in_doubt: Mapping[int, Queue],
    verdict: Verdict,
) -> None:
    seen: set[int] = set()
    last = 0
    for expected, one in enumerate(messages):
        where = f"{name_of(queue)} {one.offset}"
        if one.offset != expected:
            verdict.note("out of order", f"{where} was read where {expected} was to come")
        if queue_of.get(one.line) != queue:
            verdict.note("foreign", f"{where} holds line {one.line}, which nobody sent there")
        elif one.line in seen:
            verdict.again += 1
        else:
            seen.add(one.line)
            verdict.in_doubt_found += one.line in in_doubt
            if one.line < last:
                verdict.note("out of order", f"{where} holds line {one.line}, after line {last}")
            last = max(last, one.line)


def check_delivered(found: Mapping[Queue, Sequence[Stored]], deliveries: Sequence[Delivery]) -> Verdict:
    """Each queue in order from its first message to its last, without a gap. What was not committed when a
    queue changed hands comes again, and is counted."""
    verdict = Verdict(messages=len(deliveries))
    following = dict.fromkeys(found, 0)
    for member, queue, offset, body in deliveries:
        where = f"{name_of(queue)} {offset}"
        expected = following.get(queue, 0)
        if offset < expected:
            verdict.again += 1
        elif offset > expected:
            verdict.note("out of order", f"{member} got {where} where {expected} was to come")
        messages = found.get(queue, ())
        if offset >= len(messages) or messages[offset].body != body:
            verdict.note("altered", f"{member} got something as {where} that is not what is stored there")
        following[queue] = max(expected, offset + 1)
    for queue, messages in found.items():
        if (missing := len(messages) - following[queue]) > 0:
            verdict.note("missing", f"the last {missing} messages of {name_of(queue)} were never delivered")
    return verdict


class OffsetWatch:
    """Readings of a group's committed offsets, in the order in which they were read."""

    def __init__(self) -> None:
        self.readings = 0
        self.changed_at = 0.0  # when an offset was last seen to be another one, monotonic seconds
        self.faults: list[str] = []  # what went back, or could not be read
        self.generation = -1
        self.generations = 0
        self.offsets: dict[Queue, int] = {}

    def read(self, at: float, generation: int, offsets: Mapping[Queue, int]) -> None:
        self.readings += 1
        if generation < self.generation:
            self.faults.append(f"generation {self.generation} was followed by {generation}")
        self.generations += generation != self.generation
        self.generation = generation
        for queue, known in self.offsets.items():
            if offsets.get(queue, -1) < known:
                self.faults.append(f"{name_of(queue)}: {known} was followed by {offsets.get(queue)}")
        if self.offsets != offsets:
            self.changed_at = at
        self.offsets = dict(offsets)
