"""L7 against an exhaustive search: every small random history is judged alike by both."""

from __future__ import annotations

import random
from itertools import count, permutations
from pathlib import Path

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.judge import judge
from chaos.checker.synthetic import Line, Trace
from chaos.checker.tables import make_tables
from chaos.trace.schema import VERSION
from tests.chaos.checker.duck import DuckEngine

pytestmark = pytest.mark.xdist_group("spark")

HISTORIES = 1500
#: (kind, invoked, returned, value). append: at value; read: saw all below; end, max_off: the end is value.
Op = tuple[str, int, int, int]


def random_history(draw: random.Random) -> list[Op]:
    appends = draw.randint(1, 4)
    ops: list[Op] = []
    kinds = [("append", index) for index in range(appends)]
    for _ in range(draw.randint(1, 3)):
        kinds.append((draw.choice(["read", "end", "max_off"]), draw.randint(0, appends)))
    for kind, value in kinds:
        begin = draw.randint(1, 12)
        ops.append((kind, begin, begin + draw.randint(0, 5), value))
    return ops


def linearizable(ops: list[Op]) -> bool:
    """Is there an order of all operations that keeps real time and that a list could have answered in?"""
    return any(_legal(order) and _in_real_time(order) for order in permutations(ops))


def _legal(order: tuple[Op, ...]) -> bool:
    length = 0
    for kind, _, _, value in order:
        if kind == "append":
            if value != length:
                return False
            length += 1
        elif (kind == "read" and value > length) or (kind in {"end", "max_off"} and value != length):
            return False
    return True


def _in_real_time(order: tuple[Op, ...]) -> bool:
    return all(order[j][2] >= order[i][1] for i in range(len(order)) for j in range(i + 1, len(order)))


def as_trace(run: str, ops: list[Op]) -> Trace:
    """Every operation by a client of its own."""
    trace = Trace(run)
    for number, (kind, begin, end, value) in enumerate(ops):
        src = f"client:p{number}"
        seqs = count()
        lines = trace.files.setdefault((src, 0), [])

        def line(mono: int, *, src: str = src, seqs: count[int] = seqs, **fields: int | str | bool) -> Line:
            head: Line = {"v": VERSION, "run": run, "src": src, "inc": 0, "seq": next(seqs), "host": "h"}
            return head | {"mono": mono, "wall": mono} | fields

        f = {"append": "append", "read": "get", "end": "get", "max_off": "max_off"}[kind]
        about: dict[str, int | str | bool] = {"ev": "op", "op": number, "proc": src, "f": f}
        asked: dict[str, int | str | bool] = {"ledger": "g"}
        if kind == "append":
            asked |= {"mid": 100 + value, "digest": str(value)}
        lines.append(line(begin, type="invoke", **about, **asked))
        if kind in {"read", "end"}:
            for index in range(value):
                shown = {"lidx": index, "mid": 100 + index, "digest": str(index), "ledger": "g"}
                lines.append(line(end, ev="dlv", op=number, i=index, **shown))
        answer: dict[str, int | str | bool] = {
            "append": {"lidx": value},
            "read": {"end_claim": False},
            "end": {"end_claim": True, "max_off": value},
            "max_off": {"max_off": value},
        }[kind]
        lines.append(line(end, type="ok", **about, **answer))
    return trace


def test_as_an_exhaustive_search_would_say(tmp_path: Path) -> None:
    draw = random.Random(7)
    histories = {f"h{number}": random_history(draw) for number in range(HISTORIES)}
    merged = Trace("all")
    for run, ops in histories.items():
        for (src, inc), lines in as_trace(run, ops).files.items():
            merged.files.setdefault((src, inc), []).extend(lines)
    merged.write(tmp_path / "all")
    engine = DuckEngine()
    engine.load([tmp_path / "all"])
    make_tables(engine)
    (check,) = [check for check in CHECKS if check.id == "L7"]
    found = {result.run: not result.findings[0].violations for result in judge(engine, [check])}
    expected = {run: linearizable(ops) for run, ops in histories.items()}
    assert {run for run in expected if found[run] != expected[run]} == set()
    assert 0.1 < sum(expected.values()) / HISTORIES < 0.9
