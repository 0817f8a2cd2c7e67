"""The report's page in a real browser, and what its plots are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from chaos.checker.checks import CHECKS
from chaos.checker.intake import inspect_runs
from chaos.checker.judge import broken, judge
from chaos.checker.reporting.chart import draw
from chaos.checker.reporting.figures import BINS, Measurements, measure_runs
from chaos.checker.reporting.report import as_json, write_report
from chaos.checker.tables import make_tables
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.mutations.base import MUTATIONS
from tests.chaos.checker.synthetic import Trace, clean_trace
from tests.status.browser import headless_chromium, needs_browser


def broken_run() -> Trace:
    """Leaders that are killed and isolated, a vote given twice, and a message that comes twice."""
    trace = clean_trace("broken", seed=3)
    for mutation in MUTATIONS:
        if mutation.name in ("a_node_votes_twice", "a_message_is_given_twice"):
            mutation.change(trace)
    return trace


def report_on(trace: Trace, folder: Path) -> tuple[Path, Measurements]:
    """The page, and what its plots are made of."""
    trace.write(folder / "run")
    engine = DuckEngine()
    engine.load([folder / "run"])
    make_tables(engine)
    figures = measure_runs(engine)
    results = judge(engine, CHECKS)
    report = as_json(results, figures, inspect_runs([folder / "run"]), seconds=1.0)
    page = write_report(folder / "report", results, figures, report)
    return page, figures[trace.run]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    folder = tmp_path_factory.mktemp("page")
    path, _ = report_on(broken_run(), folder)
    with headless_chromium(folder / "profile") as driver:
        driver.get(path.as_uri())
        yield driver


def texts(page: WebDriver, selector: str) -> list[str]:
    return [element.text for element in page.find_elements(By.CSS_SELECTOR, selector)]


def find_one(page: WebDriver, selector: str) -> str:
    (text,) = texts(page, selector)
    return text


@needs_browser
@pytest.mark.browser
@pytest.mark.xdist_group("browser")
class TestInABrowser:
    def test_the_verdict_comes_first_and_says_what_is_broken(self, page: WebDriver) -> None:
        heading = find_one(page, "section > h2")
        assert heading.startswith("invalid")
        assert "R2" in heading
        assert "acknowledged sends" in find_one(page, ".box")

    def test_witnesses_name_file_and_line(self, page: WebDriver) -> None:
        shown = texts(page, "section > ul.witnesses > li")
        assert any("voted in term 2" in text for text in shown)
        assert any(re.search(r" client-c1\.0\.jsonl:\d+$", text) for text in shown), shown

    def test_all_checks_are_in_the_tables_and_the_rest_is_folded_away(self, page: WebDriver) -> None:
        rows = page.find_elements(By.CSS_SELECTOR, "table.checks tr td:first-child")
        assert sorted(str(row.get_property("textContent")) for row in rows) == sorted(c.id for c in CHECKS)
        folded = page.find_element(By.CSS_SELECTOR, "table.checks + details")
        assert not folded.find_element(By.CSS_SELECTOR, "table").is_displayed()
        folded.find_element(By.CSS_SELECTOR, "summary").click()
        assert "not in this trace" in folded.text

    def test_warnings_are_told_apart_from_broken_promises(self, page: WebDriver) -> None:
        summaries = texts(page, "section > details > summary")
        assert any(text.startswith("C4, warning") for text in summaries), summaries

    def test_the_plots_are_drawn(self, page: WebDriver) -> None:
        plots = page.find_element(By.CSS_SELECTOR, "svg.plots")
        assert plots.size["height"] > 200
        assert len(plots.find_elements(By.CSS_SELECTOR, "rect.band")) == 2
        labels = texts(page, "svg.plots text.label")
        assert labels == ["n1", "n2", "n3", "master", "committed", "rate", "latency"]
        assert len(plots.find_elements(By.CSS_SELECTOR, "rect.master_ready")) >= 3
        assert len(plots.find_elements(By.CSS_SELECTOR, "rect.down")) == 1
        for selector in ("polyline.curve.ok", "polyline.curve.node0", "rect.dot.ok", "line.tick"):
            assert plots.find_elements(By.CSS_SELECTOR, selector), selector
        frames = plots.find_elements(By.CSS_SELECTOR, "rect.frame")
        lowest = max(frame.rect["y"] + frame.rect["height"] for frame in frames)
        assert lowest <= plots.rect["y"] + plots.rect["height"], "a plot does not fit"

    def test_masters_and_faults_are_there_in_words(self, page: WebDriver) -> None:
        rows = page.find_elements(By.CSS_SELECTOR, "table.words tr")
        said = " ".join(str(row.get_property("textContent")) for row in rows)
        assert "is master or leader (term 2)" in said and "fault: kill" in said and "fault: isolate" in said

    @pytest.mark.parametrize("width", [390, 1200])
    def test_the_page_is_no_wider_than_the_window(self, page: WebDriver, width: int) -> None:
        page.set_window_size(width, 900)
        wide = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert wide[0] <= wide[1]
        smallest = page.find_element(By.CSS_SELECTOR, "svg.plots text.time")
        assert smallest.size["height"] > 7, "legible"

    def test_the_timeline_marks_what_was_broken(self, page: WebDriver) -> None:
        plots = page.find_element(By.CSS_SELECTOR, "svg.plots")
        marks = plots.find_elements(By.CSS_SELECTOR, "line.violation")
        said = [
            str(mark.find_element(By.CSS_SELECTOR, "title").get_property("textContent")) for mark in marks
        ]
        assert any(text.startswith("R16: ") for text in said), said
        assert any("R16" in text for text in texts(page, "svg.plots text.violated"))
        lowest = max(mark.rect["y"] + mark.rect["height"] for mark in marks)
        assert lowest <= plots.rect["y"] + plots.rect["height"], "a mark does not fit"

    def test_the_time_to_recover_is_told_for_every_fault(self, page: WebDriver) -> None:
        rows = texts(page, "table.recovery tr")
        assert [row.split()[1] for row in rows[1:]] == ["kill", "isolate"]
        assert all(row.endswith("ms") for row in rows[1:])

    def test_it_needs_nothing_else_and_complains_of_nothing(self, page: WebDriver) -> None:
        loaded = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert [name for name in loaded if not name.startswith("data:")] == []
        said = page.get_log("browser")  # type: ignore[attr-defined]
        # Of the page that a browser begins with it says so itself on a slow machine.
        assert [one for one in said if not one["message"].startswith("chrome://")] == []

    def test_it_can_be_read_by_day_and_by_night(self, page: WebDriver) -> None:
        for mode, least, most in (("light", 0, 100), ("dark", 150, 256)):
            scheme = {"name": "prefers-color-scheme", "value": mode}
            page.execute_cdp_cmd(  # type: ignore[attr-defined]
                "Emulation.setEmulatedMedia", {"features": [scheme]}
            )
            for selector in ("body", ".box", "table.checks td"):
                colour = page.find_element(By.CSS_SELECTOR, selector).value_of_css_property("color")
                red = int(re.findall(r"\d+", colour)[0])
                assert least <= red < most, (mode, selector, colour)


def test_what_the_plots_show_adds_up(tmp_path: Path) -> None:
    trace = broken_run()
    _, figures = report_on(trace, tmp_path)
    ends = [line for line in trace.all_lines() if line["ev"] == "op" and line.get("f") == "send"]
    for outcome in ("ok", "fail", "info"):
        wanted = sum(line["type"] == outcome for line in ends)
        assert sum(figures.ended[outcome]) == wanted
        assert sum(n for how, _, _, n in figures.spread if how == outcome) == wanted
    assert {part for _, part, _, _ in figures.spread} <= set(range(BINS))
    assert set(figures.committed) == {"n1", "n2", "n3"}
    for parts in figures.committed.values():
        assert list(parts.values()) == sorted(parts.values())
    assert [row["f"] for row in figures.faults] == ["kill", "isolate"]
    assert all(row["silence"] is not None and row["silence"] > 0 for row in figures.faults)


def test_a_broken_promise_is_marked_at_the_time_of_its_line(tmp_path: Path) -> None:
    """The time is that of the line that the witness names, which the trace says."""
    trace = broken_run()
    trace.write(tmp_path / "run")
    engine = DuckEngine()
    engine.load([tmp_path / "run"])
    make_tables(engine)
    (result,) = judge(engine, CHECKS)
    times = {(line["src"], line["inc"], line["seq"]): line["mono"] for line in trace.all_lines()}
    witnesses = [row for finding in broken(result) for row in finding.witnesses if row.get("src")]
    assert witnesses
    assert [row["mono"] for row in witnesses] == [
        times[row["src"], row["inc"], row["seq"]] for row in witnesses
    ]
    assert measure_runs(engine)["broken"].begin <= min(int(row["mono"] or 0) for row in witnesses)


def test_a_lost_message_is_marked_at_its_acknowledgement(tmp_path: Path) -> None:
    """Of what is missing there is no line."""
    (mutation,) = [m for m in MUTATIONS if m.name == "an_acknowledged_message_is_read_by_nobody"]
    trace = clean_trace("lost", broker=mutation.broker, seed=3)
    mutation.change(trace)
    trace.write(tmp_path / "run")
    engine = DuckEngine()
    engine.load([tmp_path / "run"])
    make_tables(engine)
    (result,) = judge(engine, CHECKS)
    (witness,) = [row for f in broken(result) if f.check.id == "L6b" for row in f.witnesses]
    ops = {
        line["op"]: line for line in trace.all_lines() if line.get("mid") == witness["mid"] and "op" in line
    }
    acknowledged = [
        line["mono"] for line in trace.all_lines() if line.get("op") in ops and line.get("type") == "ok"
    ]
    assert witness["mono"] in acknowledged


def test_a_good_run_has_no_marks(tmp_path: Path) -> None:
    page, _ = report_on(clean_trace("good"), tmp_path)
    assert "<line class=violation" not in page.read_text()


def test_a_run_without_operations_has_no_plots() -> None:
    assert draw(Measurements()) == ""


def test_masterships_that_overlap_have_lanes_of_their_own() -> None:
    def role(node: str, event: str, term: int, second: int) -> dict[str, object]:
        return {"node": node, "e": event, "term": term, "mono": second * 10**9}

    # n9 is isolated from 10 s to 90 s and does not know that n1 is master from 20 s on.
    roles = [
        role("n9", "master_ready", 1, 0),
        role("n1", "master_ready", 2, 20),
        role("n1", "demoted", 2, 40),
        role("n2", "master_ready", 3, 50),
        role("n2", "master_ready", 4, 70),
        role("n9", "demoted", 4, 90),
    ]
    drawn = draw(Measurements(begin=0, end=100 * 10**9, roles=roles))
    lane = drawn.partition(">master</text>")[2]
    pattern = r'class="master_ready" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)".*?<title>(.*?)</title>'
    bars = [(title, float(x), y, float(width)) for x, y, width, title in re.findall(pattern, lane)]
    assert [title for title, *_ in bars] == ["n9, term 1", "n1, term 2", "n2, term 3", "n2, term 4"]
    first, *others = bars
    assert first[3] == pytest.approx(0.9 * (first[3] + others[-1][1] + others[-1][3] - first[1] - first[3]))
    assert {y for _, _, y, _ in others} == {others[0][2]} != {first[2]}
    for (_, x, _, width), (_, following, _, _) in pairwise(others):
        assert x + width <= following + 0.1
