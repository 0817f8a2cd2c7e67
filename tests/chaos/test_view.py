"""What the panel of a run shows, as text."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from chaos.cli.run_command import PanelContent, RunView, curve, panel_of, print_result
from chaos.quick.trace import QuickReport
from chaos.run import FaultPeriodRates, ScenarioResult
from chaos.verdict import RunVerdict


def text_of(shown: PanelContent, markup: bool = True) -> str:
    console = Console(file=StringIO(), width=100, force_terminal=False)
    with console.capture() as captured:
        console.print(panel_of(shown), markup=markup)
    return captured.get()


def test_the_panel_tells_phase_fault_leader_rate_latency_and_outcomes() -> None:
    text = text_of(
        PanelContent(
            "faults",
            12.3,
            "n2, term 4",
            ["kill leader (n1)", "delay all (n1,n2,n3)"],
            acknowledged=12_345,
            operations=4_321,
            rates=[0, 500, 1234],
            p50=3.21,
            p99=88.8,
            failed=7,
            in_doubt=9,
            errors=[("NOT_LEADER", 7)],
            read=55,
        )
    )
    for part in (
        "faults, 12 s",
        "kill leader (n1); delay all (n1,n2,n3)",
        "n2, term 4",
        "1,234/s, 12,345 in 4,321 operations",
        " ▃█",
        "p50 3.2 ms, p99 88.8 ms",
        "12,345 ok, 7 failed, 9 in doubt",
        "NOT_LEADER 7",
    ):
        assert part in text, text
    assert "not started" not in text


def test_an_open_loop_that_falls_behind_says_so() -> None:
    assert "3 not started" in text_of(PanelContent("faults", 1.0, shed=3))


def test_the_panel_keeps_its_height_from_the_first_moment_on() -> None:
    early, late = (
        text_of(PanelContent("starting", 0.0)),
        text_of(PanelContent("faults", 9.0, faults=["x"], rates=[1.0])),
    )
    assert early.count("\n") == late.count("\n") and "none in force" in early


@pytest.mark.parametrize("markup", [True, False])
def test_the_panel_needs_no_markup_and_takes_none_from_nodes(markup: bool) -> None:
    plain = text_of(PanelContent("faults", 1.0, leader="x", faults=["kill"], rates=[1.0]), markup)
    assert "[" not in plain
    assert (
        text_of(PanelContent("faults", 1.0, "[/]", faults=["[/]"], errors=[("[/]", 1)]), markup).count("[/]")
        == 3
    )


@pytest.mark.parametrize(
    ("rates", "expected"), [([], ""), ([0, 0], "  "), ([0.01, 100], "▁█"), ([5, 0, 10], "▄ █")]
)
def test_the_curve_shows_even_a_little(rates: list[float], expected: str) -> None:
    assert curve(rates) == expected


async def test_without_a_terminal_there_are_plain_whole_lines() -> None:
    out = StringIO()
    console = Console(file=out, width=40)
    view = RunView(console, "a title that is longer than forty characters are")
    async with view.showing():
        view.watch.enter("warming up")
        view.watch.note("kill leader (n1) started, and this line is longer than the width, too")
    reasons = ["fault 0, kill leader (n1): the leader was not replaced, for a reason"]
    result = ScenarioResult("x", 1, RunVerdict.VOID, reasons, QuickReport(), 1.0, 0.0, 0.0, 0, 0, 0)
    print_result(console, result)
    lines = out.getvalue().splitlines()
    assert len(lines) == 6 and "\x1b" not in out.getvalue()
    assert lines[1].endswith("warming up") and "VOID" in lines[3] and lines[5].endswith("for a reason")


def test_rates_during_the_faults_are_told_one_by_one() -> None:
    during = FaultPeriodRates(sends=600.4, messages=1050.0, read=2100.0)
    result = ScenarioResult(
        "x", 1, RunVerdict.VALID, [], QuickReport(), 1.0, 0.0, 0.0, 0, 0, 0, during=during
    )
    out = StringIO()
    print_result(Console(file=out, width=200), result)
    assert "during the faults 1,050 messages/s acknowledged in 600 sends/s, 2,100/s read" in out.getvalue()
