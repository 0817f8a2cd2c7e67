"""A run that goes on is watched: what is broken is seen while it grows, and what is only not yet written is
no alarm."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.checker import main as command
from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Severity
from chaos.checker.judge import CheckVerdict, RunJudgment, judge
from chaos.checker.main import ASSUMED, MONOTONE, WATCHED, FollowResult, follow
from chaos.checker.needs import NEEDS
from chaos.checker.tables import make_tables
from chaos.trace.schema import RAW_DIR
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.duck_loader import duck_loader
from tests.chaos.checker.mutations.base import MUTATIONS
from tests.chaos.checker.synthetic import Trace, clean_trace

pytestmark = pytest.mark.xdist_group("spark")


def mutated(name: str) -> Trace:
    (mutation,) = [m for m in MUTATIONS if m.name == name]
    trace = clean_trace("run", broker=mutation.broker, seed=3)
    mutation.change(trace)
    return trace


class GrowingRun:
    """The lines of a trace, written in the order of their stamps: a part in each pause."""

    def __init__(self, trace: Trace, folder: Path, parts: int) -> None:
        self._whole, self._folder = folder / "whole", folder / "run"
        trace.write(self._whole)
        stamped = sorted(
            (int(line["mono"]), src, inc, n)
            for (src, inc), lines in trace.files.items()
            for n, line in enumerate(lines)
        )
        size = -(-len(stamped) // parts)
        self._ends = [stamped[min(len(stamped), (k + 1) * size) - 1][0] for k in range(parts)]
        self._trace = trace
        self.written = 0

    @property
    def run_dir(self) -> Path:
        return self._folder

    def grow(self) -> None:
        """One part more, and half a line of each file that goes on."""
        if self.written == len(self._ends):
            return
        until = self._ends[self.written]
        self.written += 1
        (self._folder / RAW_DIR).mkdir(parents=True, exist_ok=True)
        for path, lines in zip(sorted((self._whole / RAW_DIR).iterdir()), self._by_file(), strict=True):
            texts = path.read_text().splitlines(keepends=True)
            count = sum(int(line["mono"]) <= until for line in lines)
            half = texts[count][:25] if count < len(texts) else ""
            if count:
                (self._folder / RAW_DIR / path.name).write_text("".join(texts[:count]) + half)

    def _by_file(self) -> list[list[dict[str, int | str | bool]]]:
        names = {f"{src.replace(':', '-')}.{inc}": lines for (src, inc), lines in self._trace.files.items()}
        return [names[name] for name in sorted(names, key=lambda name: f"{name}.jsonl")]


def looker(run_dir: Path) -> Callable[[], list[RunJudgment]]:
    def look() -> list[RunJudgment]:
        # The second engine takes whole lines only; the engine of record marks half ones.
        for path in (run_dir / RAW_DIR).iterdir():
            text = path.read_text()
            path.write_text(text[: text.rfind("\n") + 1])
        engine = DuckEngine()
        engine.load([run_dir])
        make_tables(engine)
        return judge(engine, WATCHED)

    return look


def watch(trace: Trace, folder: Path, parts: int = 8) -> tuple[FollowResult, GrowingRun]:
    run = GrowingRun(trace, folder, parts)
    outcome = follow([run.run_dir], looker(run.run_dir), run.grow, patience=3)
    return outcome, run


@pytest.mark.slow
def test_a_broken_promise_ends_the_watch_before_the_run_ends(tmp_path: Path) -> None:
    outcome, run = watch(mutated("a_follower_truncates_what_is_committed"), tmp_path)
    assert outcome.broken is not None
    (result,) = outcome.broken
    assert {f.check.id for f in result.findings if f.verdict is CheckVerdict.INVALID} == {"R5", "R9"}
    assert run.written < 8


@pytest.mark.slow
@pytest.mark.parametrize("broker", [True, False])
def test_a_sound_run_is_watched_to_its_end(broker: bool, tmp_path: Path) -> None:
    outcome, run = watch(clean_trace("run", broker=broker, seed=5), tmp_path)
    assert outcome == FollowResult(None, outcome.looks)
    assert run.written == 8


@pytest.mark.slow
def test_a_run_that_stops_growing_is_over(tmp_path: Path) -> None:
    """A writer that was expected never came: without patience the watch would go on for ever."""
    outcome, run = watch(mutated("a_writer_is_missing"), tmp_path)
    assert outcome.broken is None
    assert run.written == 8


def test_a_run_that_never_begins_is_given_up(tmp_path: Path) -> None:
    pauses: list[int] = []

    def never() -> list[RunJudgment]:
        raise AssertionError("there is nothing to look at")

    assert follow([tmp_path], never, lambda: pauses.append(1), patience=4) == FollowResult(None, 0)
    assert len(pauses) == 4


@pytest.mark.slow
def test_what_is_not_yet_written_is_never_taken_for_broken(tmp_path: Path) -> None:
    """Every writer is cut off somewhere else, as when files are read while they grow."""
    rng = random.Random(4)
    runs = []
    for number in range(60):
        trace = clean_trace(f"r{number}", broker=number % 3 > 0, seed=number)
        for key, lines in trace.files.items():
            trace.files[key] = lines[: rng.randint(0, len(lines))]
        trace.write(tmp_path / trace.run)
        runs.append(tmp_path / trace.run)
    engine = DuckEngine()
    engine.load(runs)
    make_tables(engine)
    for result in judge(engine, WATCHED):
        assert not [(f.check.id, f.witnesses) for f in result.findings if f.verdict is CheckVerdict.INVALID]


def test_what_is_watched_are_hard_checks_whose_needs_can_be_told_of_a_beginning() -> None:
    by_id = {check.id: check for check in CHECKS}
    for id_ in MONOTONE:
        check = by_id[id_]
        assert check.severity is Severity.HARD
        needs = set(check.needs) - ASSUMED
        assert all(NEEDS[need].from_prefix and by_id[NEEDS[need].by] in WATCHED for need in needs), id_


@pytest.mark.slow
def test_the_command_follows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "spark_loader", duck_loader)
    for name, code in (("a_follower_truncates_what_is_committed", 1), ("a_line_is_missing", 2)):
        mutated(name).write(tmp_path / name)
        monkeypatch.setattr(sys, "argv", ["dledger-check", str(tmp_path / name), "--follow"])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == code
