"""Synthetic traces are lines of the schema, numbered without holes, and the same for the same seed."""

from __future__ import annotations

import pytest

from chaos.checker.synthetic import clean_trace
from chaos.trace.schema import problems

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
