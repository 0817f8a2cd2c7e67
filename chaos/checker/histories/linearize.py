"""Decides whether the operations on one key are linearizable, by a search with a limited number of steps.

The algorithm is by Wing and Gong, with the improvements of Lowe ("Testing for linearizability", 2017).
Walk through the events in order of time; linearize an invoked operation next if the state permits it; and
backtrack at the completion of an operation that could not be linearized. A configuration (the set of
linearized operations, and the state) is visited only once. The limit is necessary because the problem is
NP-complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

#: Maximum number of steps per key. A million takes about 2 s.
MAX_STEPS = 2_000_000


class UseKind(StrEnum):
    """Effect of an operation on the value of its key. READ and DIFFERS do not change the value."""

    READ = "read"
    WRITE = "write"
    #: Appends text to the value.
    APPEND = "append"
    #: Replaces the first value with the second.
    CAS = "cas"
    #: A compare-and-set that failed because the value differed.
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Use:
    """One operation on a key.

    `begin`, `end`: stamps; operations with equal stamps are concurrent. `end` is None if the outcome is
    unknown: the operation may take effect at any time after its start, or never. `value`: the value that was
    read, written, appended, or compared with; `new`: the value that a compare-and-set writes. None is the
    value of a key that was never written.
    """

    op: int
    kind: UseKind
    begin: int
    end: int | None
    value: str | None
    new: str | None = None


class Linearizability(StrEnum):
    YES = "linearizable"
    NO = "not linearizable"
    #: The limit was reached.
    PERHAPS = "not decided"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search. For NO, `op` is the operation whose completion no order of operations explains."""

    answer: Linearizability
    op: int | None = None
    steps: int = 0


class _SpecialState:
    """A state of a key other than a known value."""


#: State of a key whose initial value is unknown.
_ANYTHING: Final = _SpecialState()
#: A value that is overwritten before any read, so that its order among such writes is irrelevant.
_UNSEEN: Final = _SpecialState()
_State = str | None | _SpecialState
_CONTRADICTION: Final = object()


def step(state: _State, use: Use) -> Any:
    """Return the state after an operation, or `_CONTRADICTION` if the operation is impossible in this
    state."""
    if use.kind is UseKind.WRITE:
        return use.value
    if use.kind is UseKind.APPEND:
        return state if isinstance(state, _SpecialState) else f"{state or ''}{use.value or ''}"
    if state is _UNSEEN:
        return _CONTRADICTION
    if use.kind is UseKind.DIFFERS:
        return state if state is _ANYTHING or state != use.value else _CONTRADICTION
    if state is not _ANYTHING and state != use.value:
        return _CONTRADICTION
    return use.new if use.kind is UseKind.CAS else use.value


class _Node:
    """One event in the list of those not yet linearized. `end`: the completion of the same operation; None
    if it has none, or if this node is a completion."""

    __slots__ = ("after", "before", "bit", "end", "is_open", "of_read", "twin", "use")

    def __init__(self, use: Use | None) -> None:
        self.use = use
        self.before: _Node | None = None
        self.after: _Node | None = None
        self.end: _Node | None = None
        self.bit = 0
        self.is_open = False
        self.of_read = False
        #: Bit of an equal open operation that started earlier. Only the earlier one is tried first.
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


def linearize(uses: Iterable[Use], *, begins_empty: bool, max_steps: int = MAX_STEPS) -> SearchResult:
    """Search for a linearization of the operations on one key.

    Args:
        uses: all operations that did or may have taken effect, without those that definitely failed.
        begins_empty: the key had no initial value. Otherwise its initial value is unknown.
    """
    kept = [use for use in uses if use.end is not None or use.kind not in (UseKind.READ, UseKind.DIFFERS)]
    begin = None if begins_empty else _ANYTHING
    result = _LinearizationSearch(kept, begin).run(max_steps)
    return (
        result
        if result.answer is not Linearizability.NO
        else replace(result, op=_find_blamed_op(kept, begin, max_steps))
    )


def _find_blamed_op(uses: list[Use], begin: _State, max_steps: int) -> int:
    """Return the operation after whose completion no order explains the history, by bisection over
    prefixes."""
    ends = sorted((use.end, use.op) for use in uses if use.end is not None)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if (
            _LinearizationSearch(_until(uses, ends[middle][0]), begin).run(max_steps).answer
            is Linearizability.NO
        ):
            high = middle
        else:
            low = middle + 1
    return ends[low][1]


def _until(uses: list[Use], now: int) -> list[Use]:
    """Return the part of a history up to a time."""
    return [
        use if use.end is not None and use.end <= now else replace(use, end=None)
        for use in uses
        if use.begin <= now
        and (use.kind not in (UseKind.READ, UseKind.DIFFERS) or (use.end is not None and use.end <= now))
    ]


class _LinearizationSearch:
    def __init__(self, uses: list[Use], begin: _State) -> None:
        self._head = _events(uses)
        self._state: _State = begin
        self._left = sum(use.end is not None for use in uses)
        #: Compare-and-set observes values as well, but not completely.
        self._compares = any(use.kind in (UseKind.CAS, UseKind.DIFFERS) for use in uses)
        self._appends = any(use.kind is UseKind.APPEND for use in uses)
        #: Completed operations that are linearized: all below `_base`, and a bit for each of the others.
        self._base, self._done = 0, 0
        self._open = 0
        #: The last operation is a write with an unknown outcome, which can be omitted if another write
        #: follows.
        self._loose = False
        self._seen: set[tuple[object, ...]] = set()
        self._numbers: dict[_State, int] = {}
        self._stack: list[tuple[_Node, _State, int, int, int, bool]] = []

    def run(self, max_steps: int) -> SearchResult:
        node, steps = self._head.after, 0
        while self._left:
            assert node is not None
            if node.use is not None:
                steps += 1
                if steps > max_steps:
                    return SearchResult(Linearizability.PERHAPS, steps=steps)
                node = self._head.after if self._put(node) else node.after
                continue
            # The completion of an operation that is not linearized: backtrack.
            if not self._stack:
                return SearchResult(Linearizability.NO, steps=steps)
            was_seen = self._state is not _UNSEEN
            node = self._backtrack()
            node = self._head.after if was_seen and self._put_unseen(node) else node.after
        return SearchResult(Linearizability.YES, steps=steps)

    def _put(self, node: _Node) -> bool:
        """Linearize an operation next, if the state permits it and no pruning rule excludes it."""
        use = node.use
        assert use is not None
        if node.is_open and node.twin and not self._open & node.twin:
            return False
        if self._loose and use.kind is UseKind.WRITE:
            return False
        state = step(self._state, use)
        if state is _CONTRADICTION or (node.is_open and state == self._state):
            return False
        if use.kind in (UseKind.WRITE, UseKind.APPEND) and not self._can_be_seen(state):
            return self._put_unseen(node)
        return self._enter(node, state)

    def _put_unseen(self, node: _Node) -> bool:
        """Linearize a write whose value is overwritten before any read."""
        use = node.use
        assert use is not None
        if use.kind not in (UseKind.WRITE, UseKind.APPEND) or node.is_open or self._compares:
            return False
        return self._can_be_replaced(node) and self._enter(node, _UNSEEN)

    def _can_be_seen(self, state: _State) -> bool:
        """Return True if a remaining read that starts before the next read completes can return the value,
        or the value after further appends."""
        if self._compares or isinstance(state, _SpecialState):
            return self._compares or state is _ANYTHING
        node, value = self._head.after, state or ""
        while node is not None:
            if node.use is not None:
                if node.use.kind is UseKind.READ:
                    shows = node.use.value or ""
                    if shows == value or (self._appends and shows.startswith(value)):
                        return True
            elif node.of_read:
                return False
            node = node.after
        return False

    def _can_be_replaced(self, put: _Node) -> bool:
        """Return True if a remaining write starts before the next read completes, or if no reads remain."""
        node = self._head.after
        while node is not None:
            if node.use is None:
                if node.of_read:
                    return False
            elif node is not put and node.use.kind is UseKind.WRITE:
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
        self._loose = node.is_open and node.use.kind is UseKind.WRITE
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

    def _backtrack(self) -> _Node:
        node, self._state, self._base, self._done, self._open, self._loose = self._stack.pop()
        if node.end is not None:
            node.end.relink()
            self._left += 1
        node.relink()
        return node


def _events(uses: list[Use]) -> _Node:
    """Return the list of starts and completions in order of time, with a head. A completion has no use."""
    closed = sorted((use for use in uses if use.end is not None), key=lambda use: (use.begin, use.op))
    opened = sorted((use for use in uses if use.end is None), key=lambda use: (use.begin, use.op))
    nodes: list[tuple[int, int, int, _Node]] = []
    for number, use in enumerate(closed):
        begin, end = _Node(use), _Node(None)
        begin.bit, begin.end = number, end
        end.of_read = use.kind is UseKind.READ
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
    """Return the result of the search for one key, as text.

    The result is "yes"; "perhaps" if the limit was reached; "begun" if an order exists only with an initial
    value; or "no". The last two include the number of the operation after whose completion no order
    explains the history from an empty key.

    Args:
        model: `store` if keys are initially empty. items: one text per operation:
        number|begin|end|outcome|code|what, with `what` as JSON: the kind and its
            values. `end` is empty for a pending operation.
    """
    uses = list(_uses(items or ()))
    result = linearize(uses, begins_empty=True)
    if result.answer is Linearizability.NO and model != "store":
        with_initial = linearize(uses, begins_empty=False)
        if with_initial.answer is Linearizability.YES:
            return f"begun {result.op}"
        result = with_initial
    if result.answer is Linearizability.NO:
        return f"no {result.op}"
    return "yes" if result.answer is Linearizability.YES else "perhaps"


def _uses(items: Iterable[str]) -> Iterator[Use]:
    for item in items:
        op, begin, end, outcome, code, what = item.split("|", 5)
        kind, value, *new = json.loads(what)
        ended = int(end) if end and outcome != "info" else None
        if outcome == "fail":
            # A failed operation had no effect, but a failed comparison is information about the value.
            if kind == UseKind.CAS and code == UseKind.DIFFERS and ended is not None:
                yield Use(int(op), UseKind.DIFFERS, int(begin), ended, value)
            continue
        if kind == UseKind.READ and outcome != "ok":
            continue
        yield Use(int(op), UseKind(kind), int(begin), ended, value, new[0] if new else None)
