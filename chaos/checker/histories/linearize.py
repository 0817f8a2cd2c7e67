"""Whether the uses of one key can be put in an order that explains all of them: a search, with a limit.

The search is that of Wing and Gong with the improvements of Lowe ("Testing for linearizability", 2017): go
through the events in the order of time, put an operation that has begun next if the state allows it, and go
back when one ends that could not be put anywhere. A configuration (which operations are put, and the state)
that has been left once is not entered again. The number of steps is limited: the problem is NP-complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

#: Steps of the search for one key, about 2 s for each million.
MAX_STEPS = 2_000_000


class Kind(StrEnum):
    """What a use does to the value of its key. All but READ and DIFFERS change it."""

    READ = "read"
    WRITE = "write"
    #: The text is put behind the value.
    APPEND = "append"
    #: From the first value to the second.
    CAS = "cas"
    #: A compare-and-set that said that the value was another one.
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Use:
    """One operation on a key. `begin`, `end`: stamps; equal ones are concurrent. `end` is None if nobody
    knows what became of it: it may take effect at any time after `begin`, or never. `value`: what was read,
    written, appended, or compared with; `new` is what a compare-and-set writes. None is the value of a key
    that was never written."""

    op: int
    kind: Kind
    begin: int
    end: int | None
    value: str | None
    new: str | None = None


class Answer(StrEnum):
    YES = "linearizable"
    NO = "not linearizable"
    #: The limit was reached.
    PERHAPS = "not decided"


@dataclass(frozen=True, slots=True)
class Found:
    """`op`: for NO, the operation with whose end the history became one that no order explains."""

    answer: Answer
    op: int | None = None
    steps: int = 0


class _Mark:
    """A value that is no text."""


#: The value of a key of which nobody knows how it began.
_ANYTHING: Final = _Mark()
#: A value that is replaced before anybody looks: in which order it came about says nothing.
_UNSEEN: Final = _Mark()
_State = str | None | _Mark
_CONTRADICTION: Final = object()


def step(state: _State, use: Use) -> Any:
    """The state after a use, or `_CONTRADICTION`, if it cannot have happened in this state."""
    if use.kind is Kind.WRITE:
        return use.value
    if use.kind is Kind.APPEND:
        return state if isinstance(state, _Mark) else f"{state or ''}{use.value or ''}"
    if state is _UNSEEN:
        return _CONTRADICTION
    if use.kind is Kind.DIFFERS:
        return state if state is _ANYTHING or state != use.value else _CONTRADICTION
    if state is not _ANYTHING and state != use.value:
        return _CONTRADICTION
    return use.new if use.kind is Kind.CAS else use.value


class _Node:
    """One event in the list of those that are not put yet. `end`: the node of the same use's end, None if
    it has none, or is one."""

    __slots__ = ("after", "before", "bit", "end", "is_open", "of_read", "twin", "use")

    def __init__(self, use: Use | None) -> None:
        self.use = use
        self.before: _Node | None = None
        self.after: _Node | None = None
        self.end: _Node | None = None
        self.bit = 0
        self.is_open = False
        self.of_read = False
        #: The bit of the same open use that began before this one: which of two is put first says nothing.
        self.twin = 0

    def unlink(self) -> None:
        assert self.before is not None
        self.before.after = self.after
        if self.after is not None:
            self.after.before = self.before

    def relink(self) -> None:
        assert self.before is not None
        self.before.after = self
        if self.after is not None:
            self.after.before = self


def linearize(uses: Iterable[Use], *, begins_empty: bool, max_steps: int = MAX_STEPS) -> Found:
    """Search for an order of the uses of one key.

    Args:
        uses: all operations that did or may have happened; not those that certainly failed.
        begins_empty: the key had no value before; else nobody knows which it had.
    """
    kept = [use for use in uses if use.end is not None or use.kind not in (Kind.READ, Kind.DIFFERS)]
    begin = None if begins_empty else _ANYTHING
    found = _Search(kept, begin).run(max_steps)
    return found if found.answer is not Answer.NO else replace(found, op=_blamed(kept, begin, max_steps))


def _blamed(uses: list[Use], begin: _State, max_steps: int) -> int:
    """The operation at whose end a history became one that no order explains: its beginnings are all
    explained up to there, and none from there on."""
    ends = sorted((use.end, use.op) for use in uses if use.end is not None)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if _Search(_until(uses, ends[middle][0]), begin).run(max_steps).answer is Answer.NO:
            high = middle
        else:
            low = middle + 1
    return ends[low][1]


def _until(uses: list[Use], now: int) -> list[Use]:
    """What was known of a history at a time."""
    return [
        use if use.end is not None and use.end <= now else replace(use, end=None)
        for use in uses
        if use.begin <= now
        and (use.kind not in (Kind.READ, Kind.DIFFERS) or (use.end is not None and use.end <= now))
    ]


class _Search:
    def __init__(self, uses: list[Use], begin: _State) -> None:
        self._head = _events(uses)
        self._state: _State = begin
        self._left = sum(use.end is not None for use in uses)
        #: Comparisons look at values as well, but not at all of a value.
        self._compares = any(use.kind in (Kind.CAS, Kind.DIFFERS) for use in uses)
        self._appends = any(use.kind is Kind.APPEND for use in uses)
        #: Uses with an end that are put: those below `_base`, and of the others a bit for each.
        self._base, self._done = 0, 0
        self._open = 0
        #: The last use is a write of unknown outcome: it can as well be left out if another write follows.
        self._loose = False
        self._seen: set[tuple[object, ...]] = set()
        self._numbers: dict[_State, int] = {}
        self._stack: list[tuple[_Node, _State, int, int, int, bool]] = []

    def run(self, max_steps: int) -> Found:
        node, steps = self._head.after, 0
        while self._left:
            assert node is not None
            if node.use is not None:
                steps += 1
                if steps > max_steps:
                    return Found(Answer.PERHAPS, steps=steps)
                node = self._head.after if self._put(node) else node.after
                continue
            # Something has ended that is not put: what was put last was wrong.
            if not self._stack:
                return Found(Answer.NO, steps=steps)
            was_seen = self._state is not _UNSEEN
            node = self._take_back()
            node = self._head.after if was_seen and self._put_unseen(node) else node.after
        return Found(Answer.YES, steps=steps)

    def _put(self, node: _Node) -> bool:
        """Put a use next, if the state allows it, and nothing says already that this leads nowhere."""
        use = node.use
        assert use is not None
        if node.is_open and node.twin and not self._open & node.twin:
            return False
        if self._loose and use.kind is Kind.WRITE:
            return False
        state = step(self._state, use)
        if state is _CONTRADICTION or (node.is_open and state == self._state):
            return False
        if use.kind in (Kind.WRITE, Kind.APPEND) and not self._can_be_seen(state):
            return self._put_unseen(node)
        return self._enter(node, state)

    def _put_unseen(self, node: _Node) -> bool:
        """The same, when nobody looks before the value is replaced."""
        use = node.use
        assert use is not None
        if use.kind not in (Kind.WRITE, Kind.APPEND) or node.is_open or self._compares:
            return False
        return self._can_be_replaced(node) and self._enter(node, _UNSEEN)

    def _can_be_seen(self, state: _State) -> bool:
        """Whether a read that is not put yet, and begins before the next of them ends, can show what becomes
        of a value by appends."""
        if self._compares or isinstance(state, _Mark):
            return self._compares or state is _ANYTHING
        node, value = self._head.after, state or ""
        while node is not None:
            if node.use is not None:
                if node.use.kind is Kind.READ:
                    shows = node.use.value or ""
                    if shows == value or (self._appends and shows.startswith(value)):
                        return True
            elif node.of_read:
                return False
            node = node.after
        return False

    def _can_be_replaced(self, put: _Node) -> bool:
        """Whether a write that is not put yet begins before the next read ends. Without reads all is one."""
        node = self._head.after
        while node is not None:
            if node.use is None:
                if node.of_read:
                    return False
            elif node is not put and node.use.kind is Kind.WRITE:
                return True
            node = node.after
        return True

    def _enter(self, node: _Node, state: _State) -> bool:
        assert node.use is not None
        before = (node, self._state, self._base, self._done, self._open, self._loose)
        if node.is_open:
            self._open |= node.bit
        else:
            self._done |= 1 << (node.bit - self._base)
            while self._done & 1:
                self._done >>= 1
                self._base += 1
        self._loose = node.is_open and node.use.kind is Kind.WRITE
        number = self._numbers.setdefault(state, len(self._numbers))
        key = (self._base, self._done, self._open, number, self._loose)
        if key in self._seen:
            _, _, self._base, self._done, self._open, self._loose = before
            return False
        self._seen.add(key)
        self._stack.append(before)
        self._state = state
        node.unlink()
        if node.end is not None:
            node.end.unlink()
            self._left -= 1
        return True

    def _take_back(self) -> _Node:
        node, self._state, self._base, self._done, self._open, self._loose = self._stack.pop()
        if node.end is not None:
            node.end.relink()
            self._left += 1
        node.relink()
        return node


def _events(uses: list[Use]) -> _Node:
    """Beginnings and ends in the order of time, behind a head. A node of an end has no use."""
    closed = sorted((use for use in uses if use.end is not None), key=lambda use: (use.begin, use.op))
    opened = sorted((use for use in uses if use.end is None), key=lambda use: (use.begin, use.op))
    nodes: list[tuple[int, int, int, _Node]] = []
    for number, use in enumerate(closed):
        begin, end = _Node(use), _Node(None)
        begin.bit, begin.end = number, end
        end.of_read = use.kind is Kind.READ
        assert use.end is not None
        nodes += [(use.begin, 0, use.op, begin), (use.end, 1, use.op, end)]
    alike: dict[tuple[object, ...], int] = {}
    for number, use in enumerate(opened):
        begin = _Node(use)
        begin.bit, begin.is_open = 1 << number, True
        begin.twin = alike.get((use.kind, use.value, use.new), 0)
        alike[use.kind, use.value, use.new] = begin.bit
        nodes.append((use.begin, 0, use.op, begin))
    nodes.sort(key=lambda node: node[:3])
    head = last = _Node(None)
    for *_, node in nodes:
        last.after, node.before = node, last
        last = node
    return head


# -- as a function of columns ------------------------------------------------------------------------------


def linearized(model: str | None, items: Iterable[str] | None) -> str:
    """What the search finds for one key, as text: "yes"; "perhaps", as there were too many steps; "begun", as
    an order explains all only if the key had a value in the beginning; or "no". The last two with the number
    of the operation with whose end no order from an empty key explained all.

    Args:
        model: `store` if keys begin empty.
        items: one text an operation: number|begin|end|outcome|code|what, with `what` as JSON: the kind and
            its values. `end` is empty where the history tells none.
    """
    uses = list(_uses(items or ()))
    found = linearize(uses, begins_empty=True)
    if found.answer is Answer.NO and model != "store":
        begun = linearize(uses, begins_empty=False)
        if begun.answer is Answer.YES:
            return f"begun {found.op}"
        found = begun
    if found.answer is Answer.NO:
        return f"no {found.op}"
    return "yes" if found.answer is Answer.YES else "perhaps"


def _uses(items: Iterable[str]) -> Iterator[Use]:
    for item in items:
        op, begin, end, outcome, code, what = item.split("|", 5)
        kind, value, *new = json.loads(what)
        ended = int(end) if end and outcome != "info" else None
        if outcome == "fail":
            # What failed did not happen; but that a comparison did is something that it says of the value.
            if kind == Kind.CAS and code == Kind.DIFFERS and ended is not None:
                yield Use(int(op), Kind.DIFFERS, int(begin), ended, value)
            continue
        if kind == Kind.READ and outcome != "ok":
            continue
        yield Use(int(op), Kind(kind), int(begin), ended, value, new[0] if new else None)
