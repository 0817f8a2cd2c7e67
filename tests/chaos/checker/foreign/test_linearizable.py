"""L7 against an exhaustive search: every small random history is judged alike by both.

`python -m tests.chaos.checker.foreign.test_linearizable 100000` compares that many.
"""

from __future__ import annotations

import random
import sys
import tempfile
from itertools import count
from pathlib import Path

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.judge import judge
from chaos.checker.tables import make_tables
from chaos.trace.schema import VERSION
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.synthetic import Line, Trace

pytestmark = pytest.mark.xdist_group("spark")

HISTORIES = 3000
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
    """Is there an order of all operations that keeps real time and that a list could have answered in?

    Tries every order, leaving out those whose beginning is already wrong.
    """

    def goes_on(left: list[Op], length: int) -> bool:
        if not left:
            return True
        soonest_end = min(end for _, _, end, _ in left)
        return any(
            begin <= soonest_end
            and _legal(kind, value, length)
            and goes_on(left[:k] + left[k + 1 :], length + (kind == "append"))
            for k, (kind, begin, _, value) in enumerate(left)
        )

    return goes_on(ops, 0)


def _legal(kind: str, value: int, length: int) -> bool:
    """May a list of this length answer so?"""
    return value <= length if kind == "read" else value == length


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


def compare(draw: random.Random, number: int, folder: Path) -> tuple[set[str], int]:
    """Judge so many histories both ways: those that are judged differently, and how many are linearizable."""
    histories = {f"h{n}": random_history(draw) for n in range(number)}
    merged = Trace("all")
    for run, ops in histories.items():
        for (src, inc), lines in as_trace(run, ops).files.items():
            merged.files.setdefault((src, inc), []).extend(lines)
    merged.write(folder)
    engine = DuckEngine()
    engine.load([folder])
    make_tables(engine)
    (check,) = [check for check in CHECKS if check.id == "L7"]
    found = {result.run: not result.findings[0].violations for result in judge(engine, [check])}
    expected = {run: linearizable(ops) for run, ops in histories.items()}
    return {run for run in expected if found[run] != expected[run]}, sum(expected.values())


def test_as_an_exhaustive_search_would_say(tmp_path: Path) -> None:
    different, good = compare(random.Random(7), HISTORIES, tmp_path)
    assert different == set()
    assert 0.1 < good / HISTORIES < 0.9


def main(total: int, *, batch: int = 5_000) -> int:
    draw, different, good = random.Random(11), 0, 0
    for done in range(0, total, batch):
        with tempfile.TemporaryDirectory() as folder:
            wrong, right = compare(draw, min(batch, total - done), Path(folder))
        different, good = different + len(wrong), good + right
        print(
            f"{min(done + batch, total)} histories, {good} linearizable, {different} judged differently",
            flush=True,
        )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
