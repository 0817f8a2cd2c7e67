"""A part of RocketMQ's own integration tests, compared with the table in docs/rocketmq-tests.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from . import genuine
from .suite import page, run
from .suite.reasons import REASONS

#: Classes that take less than half a minute each and cover different requests.
QUICK = (
    "client.consumer.filter.SqlFilterIT",
    "client.consumer.tag.MulTagSubIT",
    "client.producer.async.AsyncSendExceptionIT",
    "client.producer.oneway.OneWaySendIT",
    "client.producer.querymsg.QueryMsgByIdIT",
    "client.producer.querymsg.QueryMsgByKeyIT",
)


@pytest.mark.xdist_group("interop")
@pytest.mark.process
@pytest.mark.long
def test_quick_classes_pass_as_in_the_table(tmp_path: Path) -> None:
    reason = run.missing()
    if reason:
        pytest.skip(f"{genuine.DID_NOT_RUN}: {reason}")
    table = page.committed(page.PAGE.read_text())["replicated"]
    results = run.run(tmp_path, QUICK, "replicated", len(QUICK), lambda result: None)
    by_class = page.counts(results)
    errors = [f"{one.name}.{one.test}: {one.error}" for one in results if one.status in {"failed", "late"}]
    assert set(by_class) == set(QUICK), errors
    assert not [name for name in QUICK if page.worse(table[name].numbers, by_class[name])], errors


def test_the_table_states_a_reason_for_every_class_that_does_not_pass() -> None:
    for store, by_class in page.committed(page.PAGE.read_text()).items():
        for name, cell in by_class.items():
            incomplete = cell.numbers["failed"] + cell.numbers["cannot"] > 0
            assert not incomplete or name in REASONS, (store, name)


def test_a_table_is_read_as_it_was_written() -> None:
    cells = [
        page.Cell(Counter(passed=2, failed=1, cannot=3, ignored=4), "2026-01-02, commit `0123abcd`"),
        page.Cell(Counter(passed=10), "2026-01-01, commit `abcd0123` with changes"),
        page.Cell(Counter(passed=11), "2026-01-02, commit `0123abcd`"),
    ]
    results = {
        "replicated": {"a.FirstIT": cells[0]},
        "classic": {"a.FirstIT": cells[1], "b.SecondIT": cells[2]},
    }
    text = page.replace_table(page.PAGE.read_text(), page.render(results))
    assert page.committed(text) == results


def test_a_class_with_fewer_passed_or_more_failed_tests_is_worse() -> None:
    table = Counter(passed=3, failed=1)
    assert not page.worse(table, Counter(passed=4))
    assert page.worse(table, Counter(passed=2, ignored=2))
    assert page.worse(table, Counter(passed=3, failed=2))
