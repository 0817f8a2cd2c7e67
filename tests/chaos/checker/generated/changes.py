"""Changes of a trace, drawn from the schema: every way x every kind of line x every field that it has.

A change never uses what the checks look for. It takes a line of a real trace and drops, repeats, swaps,
delays, moves or alters it; numbers of lines and counts of files are then those of a trace
that was written so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from chaos.trace.schema import EVENTS, FIELDS, Ev, Kind, what
from tests.chaos.checker.synthetic import Line, Trace, Value

#: Fields of the envelope that only name the trace.
_NAMES = frozenset(("ev", "e", "type"))
#: A line that is swapped or delayed goes so many lines further at most.
_FURTHEST = 40
_CLOCKS = ("mono", "wall")


class Way(StrEnum):
    """What is done to a line."""

    DROP = "drop"
    REPEAT = "repeat"
    SWAP = "swap"
    DELAY = "delay"
    #: To the file of another writer of its kind; a node's line is then the other node's.
    MOVE_NODE = "move to node"
    #: To another life of its node.
    MOVE_LIFE = "move to life"
    MOVE_QUEUE = "move to queue"
    ALTER = "alter"
    #: One field is left out.
    OMIT = "omit"
    #: A field that the schema allows, and this line has not.
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Change:
    """One change that was made. `line`: as it was; `value`: the new one of `field`, if one was altered or
    added. `other`: the line that it changed places with."""

    way: Way
    kind: str
    field: str
    line: Line
    value: Value | None = None
    other: Line | None = None

    def __str__(self) -> str:
        about = f" {self.field}" if self.field else ""
        to = f" -> {self.value!r}" if self.value is not None else ""
        with_ = f" with {json.dumps(self.other)}" if self.other else ""
        return f"{self.way} {self.kind}{about}{to}{with_}: {json.dumps(self.line)}"


def kind_of(line: Line) -> str:
    """ev/e or ev/type/f: the event kinds of the schema, and operations by what they do."""
    parts = [str(line["ev"]), what(line), str(line.get("f", "")) if line["ev"] == Ev.OP else ""]
    return "/".join(part for part in parts if part)


Target = tuple[Way, str, str]
_Place = tuple[tuple[str, int], int]


class Source:
    """A real trace, from which changed ones are made."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._places: dict[str, list[_Place]] = defaultdict(list)
        self._values: dict[str, list[Value]] = defaultdict(list)
        seen: dict[str, set[Value]] = defaultdict(set)
        self._queues: set[tuple[Value, Value]] = set()
        for key, lines in trace.files.items():
            for index, line in enumerate(lines):
                self._places[kind_of(line)].append((key, index))
                if "q" in line and "topic" in line:
                    self._queues.add((line["topic"], line["q"]))
                for name, value in line.items():
                    if name in FIELDS and value not in seen[name]:
                        seen[name].add(value)
                        self._values[name].append(value)

    def targets(self) -> list[Target]:
        """Each way x kind x field that the trace allows, in a fixed order."""
        return [target for kind in sorted(self._places) for target in self._targets_of(kind)]

    def _targets_of(self, kind: str) -> Iterator[Target]:
        lines = [self._at(place) for place in self._places[kind]]
        yield from ((way, kind, "") for way in (Way.DROP, Way.REPEAT, Way.SWAP, Way.DELAY, Way.MOVE_NODE))
        if any(self._other_lives(place[0]) for place in self._places[kind]):
            yield Way.MOVE_LIFE, kind, ""
        if any("q" in line and "topic" in line for line in lines) and len(self._queues) > 1:
            yield Way.MOVE_QUEUE, kind, ""
        there = {name for line in lines for name in line if name in FIELDS} - _NAMES
        event = EVENTS[Ev(str(lines[0]["ev"])), what(lines[0])]
        for name in sorted(there):
            yield Way.ALTER, kind, name
            yield Way.OMIT, kind, name
        yield from ((Way.ADD, kind, name) for name in sorted(set(event.optional) - there))

    @property
    def trace(self) -> Trace:
        """As it was recorded."""
        return self._trace

    def changed(self, targets: Sequence[Target], random: Random) -> tuple[Trace, list[Change]]:
        """A copy of the trace with these changes. Fewer changes are made than there are targets if
        two of them hit the same line."""
        trace = Trace(self._trace.run)
        for key, lines in self._trace.files.items():
            trace.files[key] = [dict(line) for line in lines]
        taken: dict[int, Line] = {}
        chosen = []
        for target in targets:
            key, index = random.choice([p for p in self._places[target[1]] if self._fits(target, p)])
            line = trace.files[key][index]
            if id(line) not in taken:
                taken[id(line)] = line
                chosen.append((target, key, line))
        changes = []
        # Counts and numbers follow what was dropped and moved, and hide nothing that was altered.
        structural = [one for one in chosen if one[0][0] not in (Way.ALTER, Way.OMIT, Way.ADD)]
        for target, key, line in structural:
            changes.append(self._move(trace, target, key, line, random))
        if structural:
            trace.renumber()
        for target, _, line in chosen:
            if target[0] in (Way.ALTER, Way.OMIT, Way.ADD):
                changes.append(self._alter(target, line, random))
        return trace, changes

    def _fits(self, target: Target, place: _Place) -> bool:
        way, _, field = target
        line = self._at(place)
        match way:
            case Way.ALTER | Way.OMIT:
                return field in line
            case Way.MOVE_LIFE:
                return bool(self._other_lives(place[0]))
            case Way.MOVE_QUEUE:
                return "q" in line and "topic" in line
            case _:
                return True

    def _at(self, place: _Place) -> Line:
        return self._trace.files[place[0]][place[1]]

    def _other_lives(self, key: tuple[str, int]) -> list[tuple[str, int]]:
        return [other for other in self._trace.files if other[0] == key[0] and other != key]

    def _move(self, trace: Trace, target: Target, key: tuple[str, int], line: Line, random: Random) -> Change:
        way, kind, _ = target
        before, file, other = dict(line), trace.files[key], None
        index = next(i for i, one in enumerate(file) if one is line)
        match way:
            case Way.DROP:
                del file[index]
            case Way.REPEAT:
                file.insert(index + 1, dict(line))
            case Way.SWAP | Way.DELAY:
                place = min(index + random.randint(1, _FURTHEST), len(file) - 1)
                other = dict(file[place])
                if way is Way.SWAP:
                    file[index], file[place] = file[place], line
                    file[index] |= {clock: before[clock] for clock in _CLOCKS}
                else:
                    del file[index]
                    file.insert(place, line)
                # Both clocks: it happened at another time.
                line |= {clock: other[clock] for clock in _CLOCKS}
            case Way.MOVE_NODE | Way.MOVE_LIFE:
                alike = [
                    k for k in trace.files if k[0].split(":")[0] == key[0].split(":")[0] and k[0] != key[0]
                ]
                choice = alike if way is Way.MOVE_NODE else self._other_lives(key)
                if choice:
                    self._to_file(trace, random.choice(choice), key, line, index)
            case Way.MOVE_QUEUE:
                queues = sorted(self._queues - {(line["topic"], line["q"])}, key=repr)
                line["topic"], line["q"] = random.choice(queues)
                other = dict(line)
        return Change(way, kind, "", before, None, other)

    @staticmethod
    def _to_file(trace: Trace, to: tuple[str, int], key: tuple[str, int], line: Line, index: int) -> None:
        del trace.files[key][index]
        line["src"], line["inc"] = to
        if line.get("node") == key[0].partition(":")[2]:
            line["node"] = to[0].partition(":")[2]
        later = (i for i, one in enumerate(trace.files[to]) if int(one["mono"]) > int(line["mono"]))
        trace.files[to].insert(next(later, len(trace.files[to])), line)

    def _alter(self, target: Target, line: Line, random: Random) -> Change:
        way, kind, field = target
        before = dict(line)
        if way is Way.OMIT:
            del line[field]
            return Change(way, kind, field, before)
        line[field] = self._another(field, before.get(field), random)
        return Change(way, kind, field, before, line[field])

    def _another(self, field: str, value: Value | None, random: Random) -> Value:
        if FIELDS[field] is Kind.BOOL:
            return not value
        real = [one for one in self._values[field] if one != value]
        if FIELDS[field] is Kind.STR:
            return random.choice([*real[:40], f"{value}x"])
        number = value if isinstance(value, int) else 0
        near = [number + 1, number - 1, number + 7, number * 2 + 1, 0, -1]
        return random.choice([one for one in near if one != value] + random.sample(real, min(6, len(real))))
