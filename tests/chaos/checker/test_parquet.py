"""Traces as Parquet files are judged as the raw lines that they were made of."""

from __future__ import annotations

import pytest

from chaos.checker.judge import RunResult, Verdict
from tests.chaos.checker.conftest import WAITS_FOR_SPARK
from tests.chaos.checker.runs import AS_PARQUET, PARQUET

pytestmark = pytest.mark.xdist_group("spark")


def counted(result: RunResult) -> list[tuple[str, Verdict, int, int]]:
    return [(f.check.id, f.verdict, f.population, f.violations) for f in result.findings]


@WAITS_FOR_SPARK
def test_parquet_is_judged_as_raw_lines(by_spark: dict[str, RunResult]) -> None:
    """Of either writer: files that lack a column, and those of the product."""
    parquet = {name: by_spark[PARQUET + name] for name in AS_PARQUET}
    assert {name: result.verdict for name, result in parquet.items()} == {
        "clean_True": Verdict.VALID,
        "a_late_read_claims_to_know_the_end": Verdict.INVALID,
        "clean_kinds": Verdict.VALID,
        "a_node_votes_twice": Verdict.INVALID,
    }
    for name, result in parquet.items():
        raw = by_spark[name]
        assert (counted(result), result.reasons) == (counted(raw), raw.reasons)
    assert [f.check.id for f in parquet["a_node_votes_twice"].findings if f.violations] == ["R2", "R16"]
