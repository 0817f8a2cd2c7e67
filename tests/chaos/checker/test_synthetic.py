"""Synthetic traces are lines of the schema, numbered without holes, and the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.trace.schema import problems
from tests.chaos.checker.synthetic import clean_trace, write_clean_trace

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize("broker", [True, False])
def test_every_line_is_one_of_the_schema(broker: bool) -> None:
    trace = clean_trace("r", broker=broker)
    assert not [found for line in trace.all_lines() if (found := problems(line))]
    for lines in trace.files.values():
        assert [line["seq"] for line in lines] == list(range(len(lines)))


def test_the_seed_decides() -> None:
    assert clean_trace("r", seed=4).files == clean_trace("r", seed=4).files
    assert clean_trace("r", seed=4).files != clean_trace("r", seed=5).files


def test_leaders_change_and_a_killed_writer_does_not_end() -> None:
    trace = clean_trace("r", faults=2)
    assert sum(line.get("e") == "leader" for line in trace.all_lines()) == 3
    unended = [key for key, lines in trace.files.items() if lines[-1].get("e") != "trace_end"]
    assert unended == [("node:n1", 0)]


def test_a_trace_that_is_written_as_it_is_made_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean_trace("r", rounds=6, producers=3).write(tmp_path / "whole")
    monkeypatch.setattr("tests.chaos.checker.synthetic._MOST_KEPT", 100)
    lines = write_clean_trace(tmp_path / "piecemeal", "r", rounds=6, faults=2, producers=3)
    whole, piecemeal = (
        {path.name: path.read_text() for path in (tmp_path / name / "raw").iterdir()}
        for name in ("whole", "piecemeal")
    )
    assert whole == piecemeal
    assert sum(text.count("\n") for text in whole.values()) == lines
