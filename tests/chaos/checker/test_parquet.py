"""Traces as Parquet files are judged as the raw lines that they were made of."""

from __future__ import annotations

import pytest

from chaos.checker.judge import CheckVerdict, RunJudgment
from tests.chaos.checker.conftest import WAITS_FOR_SPARK
from tests.chaos.checker.runs import AS_PARQUET, PARQUET

pytestmark = pytest.mark.xdist_group("spark")


def counted(result: RunJudgment) -> list[tuple[str, CheckVerdict, int, int]]:
    return [(f.check.id, f.verdict, f.population, f.violations) for f in result.findings]


@pytest.mark.slow
@WAITS_FOR_SPARK
def test_parquet_is_judged_as_raw_lines(by_spark: dict[str, RunJudgment]) -> None:
    """Of either writer: files that lack a column, and those of the product."""
    parquet = {name: by_spark[PARQUET + name] for name in AS_PARQUET}
    assert {name: result.verdict for name, result in parquet.items()} == {
        "clean_True": CheckVerdict.VALID,
        "a_late_read_claims_to_know_the_end": CheckVerdict.INVALID,
        "clean_kinds": CheckVerdict.VALID,
        "a_node_votes_twice": CheckVerdict.INVALID,
    }
    for name, result in parquet.items():
        raw = by_spark[name]
        assert (counted(result), result.reasons) == (counted(raw), raw.reasons)
    assert [f.check.id for f in parquet["a_node_votes_twice"].findings if f.violations] == [
        "R2",
        "R16",
        "R22",
    ]
