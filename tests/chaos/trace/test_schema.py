"""The table of events is consistent with itself, and `problems` says what is wrong with a line."""

from __future__ import annotations

import pytest

from chaos.trace.schema import ENVELOPE, EVENTS, FIELDS, INT_MAX, VERSION, Ev, file_name, log_name, problems

GOOD: dict[str, object] = {
    "v": VERSION,
    "run": "r1",
    "src": "node:n1",
    "inc": 0,
    "seq": 3,
    "host": "h",
    "mono": 17,
    "wall": 18,
    "ev": "raft",
    "e": "vote",
    "node": "n1",
    "term": 2,
    "candidate": "n2",
}


def test_every_field_of_every_event_has_a_type() -> None:
    used = {name for event in EVENTS.values() for name in (*event.required, *event.optional)}
    assert used | set(ENVELOPE) <= set(FIELDS)
    assert {ev for ev, _ in EVENTS} == set(Ev)


def test_a_good_line_has_no_problems() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"v": VERSION + 1}, "schema version"),
        ({"ev": "gossip"}, "unknown ev"),
        ({"e": "coronation"}, "unknown event"),
        ({"term": INT_MAX + 1}, "term is no int"),
        ({"term": True}, "term is no int"),
        ({"candidate": 2}, "candidate is no str"),
        ({"qoff": 2}, "does not belong"),
        ({"wall": None}, "wall is no int"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, object], said: str) -> None:
    assert any(said in problem for problem in problems(GOOD | change))


def test_missing_fields_are_named() -> None:
    without = {name: value for name, value in GOOD.items() if name not in {"term", "mono"}}
    assert problems(without) == ["no mono", "no term"]


def test_names() -> None:
    assert file_name("client:p3", 2) == "client-p3.2.jsonl"
    assert log_name({"topic": "t", "q": 1, "ledger": "g"}) == "q:t/1"
    assert log_name({"ledger": "g"}) == "ledger:g"
    assert log_name({}) is None
