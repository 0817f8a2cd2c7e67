"""Histories of other systems: what their own checkers say, and what no change for the worse may improve."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.histories.models import CHECKS_OF
from chaos.checker.judge import CheckVerdict, RunJudgment, line_of
from chaos.checker.readers.sources import Format, run_directories
from tests.chaos.checker.conftest import WAITS_FOR_SPARK
from tests.chaos.checker.foreign.foreign_cases import CASES, beside, padded, renamed, write_history
from tests.chaos.checker.foreign.test_readers import by_duck, fired
from tests.chaos.checker.runs import convert_cases, histories_for_spark
from tests.conftest import is_long

pytestmark = pytest.mark.xdist_group("spark")

#: What ours says otherwise than their own checkers, and why.
OTHERWISE = {
    "kafka-tail-never-read": "nobody read to the end, so it may only not have been read yet",
    "kafka-sends-against-time": "Jepsen allows it, with all orders of writes of transactions",
    "kafka-ends-what-it-has-not-begun": "a line is missing, and with it perhaps a send",
    "set-failed-add-read": "Jepsen counts it as recovered; but what failed must not have happened",
    "queue-taken-before-it-goes-in": "Jepsen does not compare times",
    "queue-may-be-with-a-reader-who-never-said": "the reader of unknown outcome may have it",
    "queue-failed-enqueue-taken": "Jepsen only asks whether it was tried",
    "queue-not-drained": "it may still be there",
    "queue-ends-a-dequeue-that-had-not-begun": "a line is missing, and with it perhaps an enqueue",
    "queue-ends-an-enqueue-that-had-not-begun": "a line is missing",
    "register-began-with-a-value": "the history does not say what was there in the beginning",
    "register-ends-what-it-has-not-begun": "a line is missing",
    "store-ends-what-it-has-not-begun": "a line is missing",
}
#: Models whose histories can be merged: what is of other keys is independent.
_KEYED = ("kafka", "store")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunJudgment]:
    """By the name of the case: its padded history."""
    converted = convert_cases(tmp_path_factory.mktemp("cases"))
    return {result.run: result for result in by_duck(list(converted.values()))}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_histories_are_judged_as_by_their_own_checkers(name: str, judged: dict[str, RunJudgment]) -> None:
    case, result = CASES[name], judged[name]
    assert (result.verdict, fired(result)) == (CheckVerdict(case.ours), set(case.fires.split())), (
        result.reasons
    )
    assert (case.ours != case.theirs) == (name in OTHERWISE)


def test_every_check_of_histories_is_seen_to_fire() -> None:
    # H36 is a limit on the size, and has a test of its own.
    covered = set().union(*(case.fires.split() for case in CASES.values()), {"H6", "H36"})
    assert {check.id for check in CHECKS if check.id.startswith("H")} <= covered
    assert set().union(*CHECKS_OF.values()) <= {check.id for check in CHECKS}


@pytest.mark.slow
@WAITS_FOR_SPARK
def test_spark_judges_them_alike(
    judged: dict[str, RunJudgment], by_spark: dict[str, RunJudgment], pytestconfig: pytest.Config
) -> None:
    for name in histories_for_spark(judged, everything=is_long(pytestconfig)):
        theirs, ours = judged[name], by_spark[name]
        assert (name, ours.verdict, fired(ours)) == (name, theirs.verdict, fired(theirs))


@pytest.mark.slow
def test_no_padding_makes_a_verdict_better(tmp_path: Path, judged: dict[str, RunJudgment]) -> None:
    rng, files, of = random.Random(5), [], {}
    for name, case in CASES.items():
        for number in range(3):
            history = renamed(padded(case, rng, rounds=6 + 5 * number), rng)
            run = f"{name}-{number}"
            of[run] = name
            files.append(write_history(tmp_path / "in" / run, case.model, history))
    _compare(files, tmp_path, {run: judged[name] for run, name in of.items()})


@pytest.mark.slow
def test_no_other_key_makes_a_verdict_better(tmp_path: Path, judged: dict[str, RunJudgment]) -> None:
    rng, files, of = random.Random(6), [], {}
    for name, case in CASES.items():
        if case.model not in _KEYED:
            continue
        # Where the other one lacks lines or reads, both do.
        others = [one for one, its in CASES.items() if its.model == case.model and "W" not in its.fires]
        for other in rng.sample(others, 3):
            run = f"{name}-and-{other}"
            of[run] = name
            files.append(write_history(tmp_path / "in" / run, case.model, beside(case, CASES[other], rng)))
    _compare(files, tmp_path, {run: judged[name] for run, name in of.items()})


def _compare(files: list[Path], folder: Path, before: dict[str, RunJudgment]) -> None:
    """What was violated still is; what was invalid or unknown is not better."""
    run_dirs = run_directories(files, Format.AUTO, folder / "out")
    for result in by_duck(run_dirs):
        run = next(run for run in before if result.run == run or result.run.startswith(f"{run}-"))
        assert fired(before[run]) <= fired(result), (run, result.reasons)
        order = [CheckVerdict.INVALID, CheckVerdict.UNKNOWN, CheckVerdict.VALID]
        assert order.index(result.verdict) <= order.index(before[run].verdict), (run, result.reasons)


def test_a_completion_without_a_begin_is_named(judged: dict[str, RunJudgment]) -> None:
    for name in (one for one, case in CASES.items() if "W2" in case.fires):
        (found,) = [finding for finding in judged[name].findings if finding.check.id == "W2"]
        assert [str(line_of(row)).rpartition("/")[2].split(":")[0] for row in found.witnesses] == [
            f"{name}.{'log' if CASES[name].model == 'store' else 'jsonl'}"
        ]


def test_every_witness_names_a_line_of_the_history(judged: dict[str, RunJudgment]) -> None:
    without = {"H9", "H36", "W8", "V1", "V3"}
    for name, result in judged.items():
        for finding in result.findings:
            for row in finding.witnesses if finding.check.id not in without else ():
                path, _, line = str(line_of(row)).rpartition(":")
                assert Path(path).stem == name, (name, finding.check.id, row)
                assert 1 <= int(line) <= len(Path(path).read_text().splitlines())
