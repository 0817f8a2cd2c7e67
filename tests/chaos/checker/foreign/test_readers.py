"""Histories of other systems: small ones, made by hand, sound and with one defect each, and their
verdicts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.checker import main as command
from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Check
from chaos.checker.intake import inspect_runs
from chaos.checker.judge import CheckVerdict, RunJudgment, judge, line_of
from chaos.checker.readers.history import ReaderError
from chaos.checker.readers.sources import Format, detect, run_directories
from chaos.checker.tables import make_tables
from chaos.trace.schema import RAW_DIR, problems
from tests.chaos.checker.conftest import WAITS_FOR_SPARK
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.duck_loader import duck_loader
from tests.chaos.checker.runs import HISTORIES, convert_histories, histories_for_spark
from tests.conftest import is_long

pytestmark = pytest.mark.xdist_group("spark")

#: File -> the verdict, and the checks that fire. A set, a queue, a log, a register, a list.
EXPECTED = {
    "set-valid.edn": ("valid", ""),
    "set-valid.jsonl": ("valid", ""),
    "set-lost.edn": ("invalid", "H3 H7"),
    "set-phantom.edn": ("invalid", "H1"),
    "set-failed.edn": ("invalid", "H2"),
    "set-twice.edn": ("invalid", "H5"),
    "set-stale.edn": ("valid", "H7"),
    "set-no-last-read.edn": ("unknown", "W8"),
    "queue-valid.edn": ("valid", ""),
    "queue-lost.edn": ("invalid", "H3"),
    "queue-lost.json": ("invalid", "H3"),
    "queue-perhaps-taken.edn": ("unknown", "H0"),
    "queue-phantom.edn": ("invalid", "H1"),
    "queue-twice.edn": ("valid", "H4"),
    "queue-order.edn": ("valid", "H6"),
    "queue-not-drained.edn": ("unknown", "W8"),
    "kafka-valid.edn": ("valid", ""),
    "kafka-txn-valid.edn": ("valid", ""),
    "kafka-lost.edn": ("invalid", "H25 H26 H27"),
    "kafka-unseen.edn": ("unknown", "W8 H26"),
    "kafka-divergent.edn": ("invalid", "H20 H21 H25 H26"),
    "kafka-duplicate.edn": ("invalid", "H21"),
    "kafka-aborted.edn": ("invalid", "H23"),
    "kafka-skip.edn": ("invalid", "H29"),
    "kafka-order.edn": ("invalid", "H35"),
    "register-valid.log": ("valid", ""),
    "register-stale.log": ("invalid", "H8"),
    "register-goes-back.log": ("invalid", "H8"),
    "register-empty-again.log": ("invalid", "H8"),
    "register-phantom.log": ("invalid", "H8"),
    "register-failed.log": ("invalid", "H8"),
    "register-not-unique.log": ("valid", ""),
    "list-valid.log": ("valid", ""),
    "list-lost.log": ("invalid", "H8"),
    "list-stale.log": ("invalid", "H8"),
    "list-order.log": ("invalid", "H8"),
    "list-disagree.log": ("invalid", "H8"),
    "list-phantom.log": ("invalid", "H8"),
    "mixed.log": ("valid", ""),
}


#: The invocation of a send, from which the workload is known.
KAFKA_SEND = "{:type :invoke, :f :send, :value [[:send 7 0]], :process 0}\n"


def by_duck(run_dirs: list[Path], checks: Sequence[Check] = CHECKS) -> list[RunJudgment]:
    engine = DuckEngine()
    engine.load(run_dirs)
    make_tables(engine)
    return judge(engine, checks)


def fired(result: RunJudgment) -> set[str]:
    return {finding.check.id for finding in result.findings if finding.violations}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunJudgment]:
    converted = convert_histories(tmp_path_factory.mktemp("histories"))
    return dict(zip(converted, _by_run(by_duck(list(converted.values())), converted), strict=True))


def _by_run(results: list[RunJudgment], converted: dict[str, Path]) -> list[RunJudgment]:
    of_run = {result.run: result for result in results}
    return [of_run[run_of(path)] for path in converted.values()]


def run_of(run_dir: Path) -> str:
    line = json.loads((run_dir / RAW_DIR / "admin.0.jsonl").read_text().splitlines()[0])
    return str(line["run"])


def test_every_history_has_an_expected_verdict() -> None:
    assert {path.name for path in HISTORIES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_histories_get_their_verdicts(name: str, judged: dict[str, RunJudgment]) -> None:
    verdict, checks = EXPECTED[name]
    result = judged[name]
    assert (result.verdict, fired(result)) == (CheckVerdict(verdict), set(checks.split())), result.reasons


def test_converted_histories_are_traces(tmp_path: Path) -> None:
    for run_dir in convert_histories(tmp_path).values():
        for path in (run_dir / RAW_DIR).iterdir():
            for line in path.read_text().splitlines():
                assert not problems(json.loads(line)), line


@pytest.mark.slow
@WAITS_FOR_SPARK
def test_spark_judges_histories_alike(
    judged: dict[str, RunJudgment], by_spark: dict[str, RunJudgment], pytestconfig: pytest.Config
) -> None:
    for name in histories_for_spark(judged, everything=is_long(pytestconfig)):
        theirs, ours = judged[name], by_spark[judged[name].run]
        assert (name, ours.verdict, fired(ours)) == (name, theirs.verdict, fired(theirs))


def test_operations_and_witnesses_lead_back_to_lines(judged: dict[str, RunJudgment]) -> None:
    (finding,) = [f for f in judged["register-phantom.log"].findings if f.violations]
    # The 12th line of the file invokes the read.
    assert finding.witnesses[0]["op"] == 12_000
    assert str(line_of(finding.witnesses[0])).endswith("register-phantom.log:12")


def test_nemeses_become_bands(tmp_path: Path) -> None:
    (run_dir,) = run_directories([HISTORIES / "set-valid.edn"], Format.AUTO, tmp_path)
    lines = [json.loads(line) for line in (run_dir / RAW_DIR / "nemesis.0.jsonl").read_text().splitlines()]
    faults = [(line["e"], line["f"]) for line in lines if line["ev"] == "fault"]
    assert faults == [("begin", "start-partition"), ("end", "start-partition")]


def test_what_is_not_certain_must_be_said(tmp_path: Path) -> None:
    path = tmp_path / "something.txt"
    path.write_text("once upon a time\n")
    with pytest.raises(ReaderError, match="specify --format"):
        detect(path)
    with pytest.raises(ReaderError, match="contains no line"):
        run_directories([path], Format.PORCUPINE, tmp_path / "out")
    path.write_text('{:type :invoke, :f :juggle, :process 0}\n{:type :ok, :f "juggle", :process 0}\n')
    with pytest.raises(ReaderError, match="unknown workload"):
        run_directories([path.rename(tmp_path / "h.edn")], Format.AUTO, tmp_path / "out")


def test_a_history_of_brackets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    path.write_text(100_000 * "[")
    with pytest.raises(ReaderError, match="recursion"):
        run_directories([path], Format.JEPSEN, tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{:type :invoke, :f :add, :process 0, :value 1", "ends within an unclosed form"),
        ("{:type :invoke, :f :add, :process 0 :value]", r"does not match {"),
        ("{:type :invoke, :f :add, :process 0, :value}", "a key without a value"),
        ("{:type :later, :f :add, :process 0}", "unknown type"),
        ("42", "expected an operation with"),
        ("", "unknown workload"),
        (
            KAFKA_SEND + "{:type :invoke, :f :commit, :process 1}",
            "commit does not belong to the workload kafka",
        ),
        (KAFKA_SEND + "{:type :invoke, :f :txn, :value [[:abort]], :process 1}", "neither a send nor a poll"),
        (
            KAFKA_SEND + "{:type :info, :f :send, :value [[:send 7 1]], :process 0}",
            "differ from those it invoked",
        ),
    ],
)
def test_broken_histories_are_refused_with_the_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "h.edn"
    path.write_text(text)
    with pytest.raises(ReaderError, match=said):
        run_directories([path], Format.JEPSEN, tmp_path / "out")


@pytest.mark.parametrize("value", ["nil", "[]"])
def test_a_poll_may_be_invoked_without_a_value(value: str, tmp_path: Path) -> None:
    text = (HISTORIES / "kafka-valid.edn").read_text()
    path = tmp_path / "h.edn"
    path.write_text(text.replace(":value [[:poll]]", f":value {value}"))
    assert path.read_text() != text
    (result,) = by_duck(run_directories([path], Format.AUTO, tmp_path / "out"))
    assert result.verdict is CheckVerdict.VALID, result.reasons


def test_the_command_reads_histories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "spark_loader", duck_loader)
    store = tmp_path / "store" / "20260101T000000"
    store.mkdir(parents=True)
    (store / "history.edn").write_text((HISTORIES / "set-lost.edn").read_text())
    for code, path, *options in (
        (254, store, "--format", "porcupine"),
        (1, store),
        (0, HISTORIES / "register-valid.log", "--out", tmp_path / "r"),
    ):
        monkeypatch.setattr(sys, "argv", ["dledger-check", str(path), *map(str, options)])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == code
    said = (store / "report" / "witnesses" / "20260101T000000" / "H3.jsonl").read_text()
    where = json.loads(said)["line"].split(":")
    line = Path(where[0]).read_text().splitlines()[int(where[1]) - 1]
    assert ":f :read" in line


def test_the_same_file_is_taken_in_by_name(tmp_path: Path) -> None:
    dirs = run_directories(
        [HISTORIES / "set-valid.edn", HISTORIES / "set-valid.jsonl"], Format.AUTO, tmp_path
    )
    assert [run_of(path) for path in dirs] == ["set-valid", "set-valid-1"]
    assert not inspect_runs(dirs).troubles
