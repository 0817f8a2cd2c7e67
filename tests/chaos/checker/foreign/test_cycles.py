"""Circles of transactions, against the trial of all paths; and the limit on how many are looked at."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos.checker.histories import tables as history_tables
from chaos.checker.histories.tables import Edge, RelayTransaction, backwards, components
from chaos.checker.judge import CheckVerdict
from chaos.checker.readers.sources import Format, run_directories
from tests.chaos.checker.foreign.foreign_cases import CASES, padded, write_history
from tests.chaos.checker.foreign.test_readers import by_duck, fired


def reached(edges: list[Edge], start: int) -> set[int]:
    """What can be reached from a vertex by one edge or more."""
    found: set[int] = set()
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for one, other in edges:
            if one == here and other not in found:
                found.add(other)
                waiting.append(other)
    return found


def random_edges(rng: random.Random, count: int, *, forward: bool) -> list[Edge]:
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b and (a < b or not forward)]
    return rng.sample(pairs, rng.randint(0, min(len(pairs), 2 * count)))


def test_components_are_those_that_reach_each_other() -> None:
    rng = random.Random(2)
    for _ in range(500):
        edges = random_edges(rng, rng.randint(2, 9), forward=False)
        of = {vertex: reached(edges, vertex) for edge in edges for vertex in edge}
        expected = {
            frozenset({vertex, *(other for other in of[vertex] if vertex in of[other])})
            for vertex in of
            if vertex in of[vertex]
        }
        assert {frozenset(one) for one in components(edges)} == expected


def test_a_long_chain_is_no_component_and_needs_no_recursion() -> None:
    edges = [(n, n + 1) for n in range(50_000)]
    assert components(edges) == []
    assert [len(one) for one in components([*edges, (50_000, 0)])] == [50_001]


def _through(rng: random.Random) -> RelayTransaction:
    begin = rng.randint(0, 50)
    end = rng.choice([None, begin + rng.randint(0, 30)])
    writer, reader = rng.choice([None, rng.randint(0, 60)]), rng.choice([None, rng.randint(30, 80)])
    return RelayTransaction(begin, end, writer, reader)


def test_chains_that_end_before_they_begin_are_found() -> None:
    rng = random.Random(3)
    some = 0
    for _ in range(500):
        count = rng.randint(1, 8)
        edges = random_edges(rng, count, forward=True)
        through = {n: _through(rng) for n in range(count)}
        expected = set()
        for last, one in through.items():
            before = [n for n in through if n == last or last in reached(edges, n)]
            begun = max(max(through[n].begin, through[n].writer_begin or 0) for n in before)
            ends = [end for end in (one.end, one.reader_end) if end is not None]
            if ends and min(ends) < begun:
                expected.add(last)
        assert {last for last, _ in backwards(edges, through)} == expected
        some += bool(expected)
    assert 100 < some < 500


def test_too_many_transactions_decide_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(history_tables, "MAX_EDGES", 0)
    case = CASES["kafka-holes-of-transactions"]
    files = [write_history(tmp_path / "sound", "kafka", padded(case))]
    case = CASES["kafka-saw-one-before-which-it-sent"]
    files.append(write_history(tmp_path / "many", "kafka", padded(case)))
    few, many = sorted(
        by_duck(run_directories(files, Format.AUTO, tmp_path / "out")), key=lambda result: len(fired(result))
    )
    assert (few.verdict, fired(few)) == (CheckVerdict.VALID, set())
    assert many.verdict is CheckVerdict.UNKNOWN
    assert "H36" in fired(many)
