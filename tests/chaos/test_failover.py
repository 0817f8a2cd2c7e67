"""The leader goes, in each of the ways there are, and appends go on: how long that took is measured."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from chaos.cli import failover_command
from chaos.cli.failover_command import PLOT_FILE, histogram, svg_plot
from chaos.failover import HOWS, FailoverMeasurement, How, Outage, quantile
from dledger.errors import ConfigError


@pytest.mark.process
@pytest.mark.xdist_group("chaos-failover")
@pytest.mark.parametrize("how", HOWS)
async def test_each_way_takes_the_leader_away_and_another_one_answers(tmp_path: Path, how: How) -> None:
    noted: list[Outage] = []
    measurement = FailoverMeasurement(tmp_path / "run", kills=2, how=how, seed=1, note=noted.append)
    outages = await measurement.run()
    assert outages == noted and len(outages) == 2
    for outage in outages:
        assert outage.new_term > outage.old_term >= 0 and outage.duration_ns > 0


def test_a_directory_that_is_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ConfigError, match="not empty"):
        FailoverMeasurement(tmp_path, kills=1, how="kill")


class Measured:
    """What a command is given instead of a cluster."""

    def __init__(self, root: Path, **options: object) -> None:
        root.mkdir(exist_ok=True)

    async def run(self) -> list[Outage]:
        times = [*range(10_000_000, 1_010_000_000, 10_000_000)]
        return [Outage("n1", 1, 2, time) for time in times]


def test_the_command_shows_quantiles_a_plot_and_draws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover_command, "FailoverMeasurement", Measured)
    arguments = ["--kills", "100", "--dir", str(tmp_path / "run")]
    shown = CliRunner().invoke(failover_command.failover, arguments)
    assert shown.exit_code == 0, shown.output
    assert all(word in shown.output for word in ("p50 ms", "p95", "p99", "max", "█"))
    ElementTree.fromstring((tmp_path / "run" / PLOT_FILE).read_text())
    result = CliRunner().invoke(failover_command.failover, [*arguments, "--json"])
    found = json.loads(result.stdout)
    assert (found["p50"], found["p95"], found["p99"], found["max"]) == (500, 950, 990, 1000)


def test_a_fault_without_an_answer_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_command, "FailoverMeasurement", Measured)
    shown = CliRunner().invoke(failover_command.failover, ["--kills", "101", "--dir", str(tmp_path)])
    assert shown.exit_code == 1


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200))
def test_every_time_is_in_one_bar(times: list[int]) -> None:
    bars = histogram(times)
    assert sum(count for _, count in bars) == len(times) and bars[0][0] == min(times)
    assert svg_plot(times, "a < b").count("<rect") == len(bars)


@given(st.lists(st.integers(), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], share: float) -> None:
    found = quantile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9
