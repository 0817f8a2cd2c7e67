"""Histories of other systems: small ones, made by hand, sound and with one defect each, and their
verdicts."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from chaos.checker import main as command
from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Check
from chaos.checker.intake import take_in
from chaos.checker.judge import RunResult, Verdict, judge
from chaos.checker.readers.history import HistoryTrace, Model, ReaderError
from chaos.checker.readers.sources import Format, detect, run_directories
from chaos.checker.tables import make_tables
from chaos.trace.schema import RAW_DIR, OpType, problems
from tests.chaos.checker.conftest import WAITS_FOR_SPARK
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.duck_loader import duck_loader
from tests.chaos.checker.runs import HISTORIES, convert_histories

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
    "queue-perhaps-taken.edn": ("unknown", "H0 H3"),
    "queue-phantom.edn": ("invalid", "H1"),
    "queue-twice.edn": ("valid", "H4"),
    "queue-order.edn": ("valid", "H6"),
    "queue-not-drained.edn": ("unknown", "W8"),
    "kafka-valid.edn": ("valid", ""),
    "kafka-txn-valid.edn": ("valid", ""),
    "kafka-lost.edn": ("invalid", "L6a L6b L10"),
    "kafka-unseen.edn": ("unknown", "W8 L6b"),
    "kafka-divergent.edn": ("invalid", "L1 L2 L6a L6b C4"),
    "kafka-duplicate.edn": ("invalid", "L2 C4"),
    "kafka-aborted.edn": ("invalid", "L5 C2"),
    "kafka-skip.edn": ("invalid", "L11"),
    "kafka-order.edn": ("invalid", "L7"),
    "register-valid.log": ("valid", ""),
    "register-stale.log": ("invalid", "H8"),
    "register-goes-back.log": ("invalid", "H8"),
    "register-empty-again.log": ("invalid", "H8"),
    "register-phantom.log": ("invalid", "H1"),
    "register-failed.log": ("invalid", "H2"),
    "register-not-unique.log": ("unknown", "W4 H8"),
    "list-valid.log": ("valid", ""),
    "list-lost.log": ("invalid", "H9"),
    "list-stale.log": ("invalid", "L7"),
    "list-order.log": ("invalid", "L7 L9"),
    "list-disagree.log": ("invalid", "L1 L2"),
    "list-phantom.log": ("invalid", "L4"),
    "mixed.log": ("unknown", ""),
}


def by_duck(run_dirs: list[Path], checks: Sequence[Check] = CHECKS) -> list[RunResult]:
    engine = DuckEngine()
    engine.load(run_dirs)
    make_tables(engine)
    return judge(engine, checks)


def fired(result: RunResult) -> set[str]:
    return {finding.check.id for finding in result.findings if finding.violations}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    converted = convert_histories(tmp_path_factory.mktemp("histories"))
    return dict(zip(converted, _by_run(by_duck(list(converted.values())), converted), strict=True))


def _by_run(results: list[RunResult], converted: dict[str, Path]) -> list[RunResult]:
    of_run = {result.run: result for result in results}
    return [of_run[run_of(path)] for path in converted.values()]


def run_of(run_dir: Path) -> str:
    line = json.loads((run_dir / RAW_DIR / "admin.0.jsonl").read_text().splitlines()[0])
    return str(line["run"])


def test_every_history_has_an_expected_verdict() -> None:
    assert {path.name for path in HISTORIES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_histories_get_their_verdicts(name: str, judged: dict[str, RunResult]) -> None:
    verdict, checks = EXPECTED[name]
    result = judged[name]
    assert (result.verdict, fired(result)) == (Verdict(verdict), set(checks.split())), result.reasons


def test_every_check_of_histories_is_seen_to_fire() -> None:
    covered = set().union(*(checks.split() for _, checks in EXPECTED.values()))
    assert {check.id for check in CHECKS if check.id.startswith("H")} <= covered


def test_converted_histories_are_traces(tmp_path: Path) -> None:
    for run_dir in convert_histories(tmp_path).values():
        for path in (run_dir / RAW_DIR).iterdir():
            for line in path.read_text().splitlines():
                assert not problems(json.loads(line)), line


@WAITS_FOR_SPARK
def test_spark_judges_histories_alike(judged: dict[str, RunResult], by_spark: dict[str, RunResult]) -> None:
    for name, theirs in judged.items():
        ours = by_spark[theirs.run]
        assert (name, ours.verdict, fired(ours)) == (name, theirs.verdict, fired(theirs))


def test_operations_and_witnesses_lead_back_to_lines(judged: dict[str, RunResult]) -> None:
    (finding,) = [f for f in judged["register-phantom.log"].findings if f.violations]
    # The 12th line of the file invokes the read.
    assert finding.witnesses[0]["op"] == 12_000


def test_nemeses_become_bands(tmp_path: Path) -> None:
    (run_dir,) = run_directories([HISTORIES / "set-valid.edn"], Format.AUTO, tmp_path)
    lines = [json.loads(line) for line in (run_dir / RAW_DIR / "nemesis.0.jsonl").read_text().splitlines()]
    faults = [(line["e"], line["f"]) for line in lines if line["ev"] == "fault"]
    assert faults == [("begin", "start-partition"), ("end", "start-partition")]


def test_what_is_not_certain_must_be_said(tmp_path: Path) -> None:
    path = tmp_path / "something.txt"
    path.write_text("once upon a time\n")
    with pytest.raises(ReaderError, match="say --format"):
        detect(path)
    with pytest.raises(ReaderError, match="holds no line"):
        run_directories([path], Format.PORCUPINE, tmp_path / "out")
    path.write_text('{:type :invoke, :f :juggle, :process 0}\n{:type :ok, :f "juggle", :process 0}\n')
    with pytest.raises(ReaderError, match="no known workload"):
        run_directories([path.rename(tmp_path / "h.edn")], Format.AUTO, tmp_path / "out")


def test_a_history_of_brackets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    path.write_text(100_000 * "[")
    with pytest.raises(ReaderError, match="recursion"):
        run_directories([path], Format.JEPSEN, tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{:type :invoke, :f :add, :process 0, :value 1", "ends within a form"),
        ("{:type :invoke, :f :add, :process 0 :value]", "closes"),
        ("{:type :invoke, :f :add, :process 0, :value}", "a key and no value"),
        ("{:type :later, :f :add, :process 0}", "unknown type"),
        ("42", "no operation with"),
        ("", "no known workload"),
    ],
)
def test_broken_histories_are_refused_with_the_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "h.edn"
    path.write_text(text)
    with pytest.raises(ReaderError, match=said):
        run_directories([path], Format.JEPSEN, tmp_path / "out")


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
    line = (store / "report" / "converted" / "0-20260101T000000" / RAW_DIR / where[0]).read_text()
    assert '"f":"get"' in line.splitlines()[int(where[1]) - 1]


# -- registers against an exhaustive search ----------------------------------------------------------------

#: (process, value or None for a read, value it showed, begin, end); times are distinct.
Use = tuple[str, int | None, int | None, int, int]


def random_register(rng: random.Random) -> list[Use]:
    """A few overlapping uses of a register, whose reads show what they like."""
    uses: list[Use] = []
    stamps = rng.sample(range(100), 10)
    values = [0, *range(1, 4)]
    for n in range(5):
        begin, end = sorted(stamps[2 * n : 2 * n + 2])
        if n < 2 or rng.random() < 0.4:
            uses.append((f"p{n}", n + 1, None, begin, end))
        else:
            uses.append((f"p{n}", None, rng.choice(values[: len(uses) + 1]), begin, end))
    return uses


def explained(uses: list[Use]) -> bool:
    """Whether some order that respects real time explains every read; 0 is the value before all writes."""
    for order in permutations(uses):
        if any(a[4] < b[3] for i, b in enumerate(order) for a in order[i + 1 :]):
            continue
        value = 0
        for _, written, shown, _, _ in order:
            if written is not None:
                value = written
            elif shown != value:
                break
        else:
            return True
    return False


def write_register(folder: Path, run: str, uses: list[Use]) -> Path:
    """The uses as a trace, with writes enough that it says something."""
    events = sorted((stamp, use, k) for use in uses for k, stamp in enumerate(use[3:]))
    with HistoryTrace(folder / run, run, Model.REGISTER) as trace:
        for number, (stamp, (process, written, shown, _, _), k) in enumerate(events, 1):
            trace.tick(stamp * 1_000)
            if k == 0 and written is not None:
                trace.send(number, process, "r", written)
            elif k == 0:
                trace.ask(number, process, "get", "r")
            else:
                if shown:
                    trace.tell(process, "r", shown)
                trace.complete(process, OpType.OK)
        trace.finish(None)
    return folder / run


def test_registers_are_judged_as_by_exhaustive_search(tmp_path: Path) -> None:
    rng = random.Random(11)
    histories = {f"r{n}": random_register(rng) for n in range(1_500)}
    # What is read but never written is another check's business.
    sound = {
        run: uses
        for run, uses in histories.items()
        if {use[2] for use in uses if use[2]} <= {use[1] for use in uses if use[1]}
    }
    checks = [check for check in CHECKS if check.id in {"H1", "H8"}]
    results = by_duck([write_register(tmp_path, run, uses) for run, uses in sound.items()], checks)
    ours = {result.run: not fired(result) for result in results}
    assert ours == {run: explained(uses) for run, uses in sound.items()}
    assert 0.1 < sum(ours.values()) / len(ours) < 0.9


def test_the_same_file_is_taken_in_by_name(tmp_path: Path) -> None:
    dirs = run_directories(
        [HISTORIES / "set-valid.edn", HISTORIES / "set-valid.jsonl"], Format.AUTO, tmp_path
    )
    assert [run_of(path) for path in dirs] == ["set-valid", "set-valid-1"]
    assert not take_in(dirs).troubles
