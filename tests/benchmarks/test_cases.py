"""Selection of the cases of `broker-loads`, and rows that are printed as soon as they are measured."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import click
import pytest
from click.testing import CliRunner

from benchmarks.broker.cases import Case, Selection, options
from benchmarks.common import Row, collect


def selected(*arguments: str) -> list[Case]:
    found: list[Case] = []

    @click.command()
    @options
    def command(selection: Selection) -> None:
        found.extend(case for store in selection.store for case in selection.cases(store))

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found


def test_the_default_has_each_load_of_each_protocol_with_both_logs() -> None:
    loads = [("remoting", "sends", 64), ("remoting", "sends", 1), ("remoting", "batches", 8)]
    loads += [("remoting", "receive", 4), ("grpc", "sends", 64), ("grpc", "sends", 1), ("grpc", "receive", 4)]
    assert selected() == [
        Case(store, *load, size=1024, queues=8, keys=False)
        for store in ("replicated", "classic")
        for load in loads
    ]


def test_options_select_cases_and_can_be_repeated() -> None:
    one_log = ("--store", "classic", "--load", "sends", "--protocol", "grpc", "--in-flight", "1")
    cases = selected(*one_log, "--size", "100", "--queues", "1", "--queues", "8", "--keys", "with")
    assert cases == [Case("classic", "grpc", "sends", 1, 100, queues, keys=True) for queues in (1, 8)]
    assert str(cases[0]) == "classic grpc sends: 1 in flight, 100 B with keys, 1 queue"
    assert len({case.topic for case in selected("--keys", "with", "--keys", "without")}) == 2
    assert not selected("--protocol", "grpc", "--load", "batches")


async def test_each_row_is_printed_before_the_next_one_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed: list[str] = []

    async def measured() -> AsyncGenerator[Row]:
        yield Row("first", "1/s", detail="more")
        printed.append(capsys.readouterr().out)
        raise KeyboardInterrupt

    rows: list[Row] = []
    with pytest.raises(KeyboardInterrupt):
        await collect(measured(), rows)
    assert printed == ["first: 1/s; more\n"]
    assert [row.figure for row in rows] == ["first"]
