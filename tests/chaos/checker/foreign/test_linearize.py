"""The search for an order of the uses of one key, against the trial of all orders.

`python -m tests.chaos.checker.foreign.test_linearize 100000` tries so many histories of each kind.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, permutations

import pytest

from chaos.checker.histories.linearize import Linearizability, Use, UseKind, linearize, linearized

#: The kinds of uses that histories of one kind are made of.
KINDS: dict[str, tuple[UseKind, ...]] = {
    "register": (UseKind.READ, UseKind.WRITE),
    "compared": (UseKind.READ, UseKind.WRITE, UseKind.CAS),
    "differing": (UseKind.READ, UseKind.WRITE, UseKind.CAS, UseKind.DIFFERS),
    "appended": (UseKind.READ, UseKind.APPEND),
    "store": (UseKind.READ, UseKind.WRITE, UseKind.APPEND),
}
HISTORIES = 1_500
_MISSING = object()


def random_uses(rng: random.Random, kinds: Sequence[UseKind]) -> list[Use]:
    """A few overlapping uses, with few values, so that values repeat. Reads show what some order left."""
    count = rng.randint(2, 6)
    stamps = rng.choices(range(14), k=2 * count)
    uses: list[Use] = []
    texts = ["a", "b", "ab"] if UseKind.APPEND in kinds else ["a", "b", "c"]
    shown = [None, *texts, "aa", "ba", "aab"] if UseKind.APPEND in kinds else [None, *texts]
    for op in range(count):
        begin, end = sorted(stamps[2 * op : 2 * op + 2])
        kind = rng.choice(kinds)
        value = (
            rng.choice(shown) if kind in (UseKind.READ, UseKind.DIFFERS, UseKind.CAS) else rng.choice(texts)
        )
        new = rng.choice(texts) if kind is UseKind.CAS else None
        uses.append(Use(op, kind, begin, None if rng.random() < 0.2 else end, value, new))
    return uses


def explained(uses: Sequence[Use], *, begins_empty: bool) -> bool:
    """Whether some order of all that ended and some of the others explains every use."""
    closed = [use for use in uses if use.end is not None]
    opened = [use for use in uses if use.end is None]
    begins: list[object] = [None] if begins_empty else [None, *{use.value for use in uses}, "elsewhere"]
    for number in range(len(opened) + 1):
        for chosen in combinations(opened, number):
            for order in permutations([*closed, *chosen]):
                if _in_time(order) and any(_runs(order, begin) for begin in begins):
                    return True
    return False


def _in_time(order: Sequence[Use]) -> bool:
    return not any(
        after.end is not None and after.end < before.begin
        for place, before in enumerate(order)
        for after in order[place + 1 :]
    )


def _runs(order: Sequence[Use], value: object) -> bool:
    for use in order:
        if use.kind is UseKind.WRITE:
            value = use.value
        elif use.kind is UseKind.APPEND:
            value = f"{value or ''}{use.value}"
        elif (use.kind is UseKind.DIFFERS) == (value == use.value):
            return False
        elif use.kind is UseKind.CAS:
            value = use.new
    return True


def compare(seed: int, name: str) -> Linearizability:
    rng = random.Random(seed)
    uses = random_uses(rng, KINDS[name])
    # Of a value that nobody knows it says nothing that it is another one.
    begins_empty = name in ("appended", "store", "differing") or rng.random() < 0.5
    found = linearize(uses, begins_empty=begins_empty).answer
    expected = Linearizability.YES if explained(uses, begins_empty=begins_empty) else Linearizability.NO
    assert found is expected, (seed, name, begins_empty, uses)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_search_finds_what_the_trial_of_all_orders_finds(name: str) -> None:
    answers = Counter(compare(seed, name) for seed in range(HISTORIES))
    # Both answers are frequent, or the test would show little.
    assert 0.1 < answers[Linearizability.YES] / HISTORIES < 0.9, answers


def _orderless(writers: int) -> list[Use]:
    """Writes at the same time, beside comparisons that none of their orders explains."""
    writes = [Use(n, UseKind.WRITE, 0, 1_000, str(n)) for n in range(writers)]
    compared = [Use(100 + n, UseKind.CAS, 0, 1_000, str(n), str(n)) for n in range(writers)]
    return [*writes, *compared, Use(200, UseKind.READ, 1_001, 1_002, "never")]


def test_a_search_that_is_too_long_decides_nothing() -> None:
    found = linearize(_orderless(9), begins_empty=True, max_steps=1_000)
    assert found.answer is Linearizability.PERHAPS
    assert linearize(_orderless(3), begins_empty=True).answer is Linearizability.NO


def test_an_operation_that_no_order_explains_is_named() -> None:
    uses = [
        Use(1, UseKind.WRITE, 1, 2, "a"),
        Use(3, UseKind.WRITE, 3, 4, "b"),
        Use(5, UseKind.READ, 5, 6, "a"),
        Use(7, UseKind.READ, 7, 8, "b"),
    ]
    found = linearize(uses, begins_empty=True)
    assert (found.answer, found.op) == (Linearizability.NO, 5)


def test_ten_thousand_uses_of_one_key_take_few_steps() -> None:
    """Each of them overlaps a few others; many outcomes are unknown."""
    rng = random.Random(1)
    uses, value, at = [], "", 0
    for op in range(10_000):
        at += 10
        begin, end = at - rng.randint(1, 25), at + rng.randint(1, 25)
        if op % 3:
            uses.append(Use(op, UseKind.READ, begin, end, value or None))
        elif op % 30 == 0:
            value = f"{op};"
            uses.append(Use(op, UseKind.WRITE, begin, end, value))
        else:
            value += f"{op};"
            uses.append(Use(op, UseKind.APPEND, begin, None if op % 7 == 0 else end, f"{op};"))
    found = linearize(uses, begins_empty=True)
    assert found.answer is Linearizability.YES
    assert found.steps < 1_000_000


def _item(op: int, begin: int, end: int | None, outcome: str, what: Sequence[object], code: str = "") -> str:
    return f"{op}|{begin}|{'' if end is None else end}|{outcome}|{code}|{json.dumps(what)}"


def test_columns_are_understood() -> None:
    write = _item(1, 1, 2, "ok", ["write", "a|b"])
    assert linearized("store", [write, _item(2, 3, 4, "ok", ["read", "a|b"])]) == "yes"
    assert linearized("store", [write, _item(2, 3, 4, "ok", ["read", None])]) == "no 2"
    assert linearized("register", [_item(2, 3, 4, "ok", ["read", "x"])]) == "begun 2"
    assert linearized("store", [_item(2, 3, 4, "ok", ["read", "x"])]) == "no 2"
    assert linearized("store", [write, _item(2, 3, 4, "fail", ["cas", "a|b", "c"], "differs")]) == "no 2"
    assert linearized("store", [write, _item(2, 3, 4, "fail", ["cas", "a|b", "c"])]) == "yes"
    unknown = _item(2, 3, 4, "info", ["write", "c"])
    for shown in ("a|b", "c"):
        assert linearized("store", [write, unknown, _item(3, 5, 6, "ok", ["read", shown])]) == "yes"
    assert linearized("store", None) == "yes"


if __name__ == "__main__":
    for kind in KINDS:
        print(kind, dict(Counter(compare(seed, kind) for seed in range(int(sys.argv[1])))))
