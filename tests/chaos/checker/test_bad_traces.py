"""A trace that is not whole is never called valid, and what is wrong with it is said."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Severity
from chaos.checker.intake import PARQUET_DIR, IntakeError, take_in
from chaos.checker.judge import RunResult, Verdict, sentence
from chaos.checker.synthetic import Line, Trace, clean_trace
from chaos.trace.parquet import convert
from chaos.trace.schema import INT_MAX, RAW_DIR
from tests.chaos.checker.conftest import FEW, CheckRuns

pytestmark = pytest.mark.xdist_group("spark")

KILLED = "node-n1.0.jsonl"
READER = "client-r0.0.jsonl"


def tear(raw: Path) -> None:
    text = (raw / READER).read_text()
    (raw / READER).write_text(text[:-20])


def tear_the_killed(raw: Path) -> None:
    with (raw / KILLED).open("a") as file:
        file.write('{"v":1,"run":"tear_the_ki')


def empty(raw: Path) -> None:
    (raw / "client-p7.0.jsonl").write_text("")


def copy(raw: Path) -> None:
    shutil.copy(raw / READER, raw / "client-r1.0.jsonl")


def lose(raw: Path) -> None:
    (raw / "client-p2.0.jsonl").unlink()


def beyond_64_bits(raw: Path) -> None:
    change(raw, 5, "mono", INT_MAX + 1)


def fraction(raw: Path) -> None:
    change(raw, 5, "mono", 1.5)


def garbage(raw: Path) -> None:
    with (raw / READER).open("ab") as file:
        file.write(b"\xff\xfe\x00 not json\n")


def unknown_kind(raw: Path) -> None:
    change(raw, 5, "ev", "gossip")


def no_run(raw: Path) -> None:
    change(raw, 5, "run", None)


def other_version(raw: Path) -> None:
    for path in raw.iterdir():
        path.write_text(path.read_text().replace('"v":1', '"v":2'))


def two_runs(raw: Path) -> None:
    change(raw, 5, "run", "somebody_else")


def change(raw: Path, line: int, name: str, value: object) -> None:
    lines = (raw / READER).read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | {name: value})
    (raw / READER).write_text("\n".join(lines) + "\n")


def tear_in_the_middle(raw: Path) -> None:
    lines = (raw / READER).read_text().splitlines(keepends=True)
    lines[5] = lines[5][:40] + "\n"
    (raw / READER).write_text("".join(lines))


def foreign_file(raw: Path) -> None:
    """A file of another run lies among ours."""
    text = (raw / READER).read_text().replace('"run":"foreign_file"', '"run":"somebody"')
    (raw / "client-q0.0.jsonl").write_text(text.replace('"src":"client:r0"', '"src":"client:q0"'))


#: What is done to a trace, and what is said of it: one of the reasons, or a witness of a check, word by word.
BAD: list[tuple[Callable[[Path], None], str]] = [
    (tear, r"client-r0\.0\.jsonl: 1 lines could not be read"),
    (tear_in_the_middle, r"client-r0\.0\.jsonl: 1 lines could not be read"),
    (empty, r"client-p7\.0\.jsonl is empty"),
    (copy, r"\S+/client-r1\.0\.jsonl is a copy of \S+/client-r0\.0\.jsonl"),
    (lose, r"client:p2: expected, but wrote nothing"),
    (beyond_64_bits, r"client-r0\.0\.jsonl: 1 lines could not be read"),
    (fraction, r"client-r0\.0\.jsonl: 1 lines could not be read"),
    (garbage, r"client-r0\.0\.jsonl: 1 lines could not be read"),
    (unknown_kind, r"\S+client-r0\.0\.jsonl: 1 lines that are of no kind of the schema, .*"),
    (no_run, r"client-r0\.0\.jsonl: 1 lines name no run"),
    (other_version, r"\S+client-r0\.0\.jsonl: \d+ lines that are of another schema version"),
    (two_runs, r"client-r0\.0\.jsonl holds lines of several runs"),
    (foreign_file, r"the directory holds several runs: foreign_file, somebody"),
]


def told(result: RunResult) -> list[str]:
    """The reasons, and what the checks of the trace itself say."""
    witnesses = [
        sentence(finding.check, row)
        for finding in result.findings
        if finding.check.severity is Severity.VOID
        for row in finding.witnesses
    ]
    return [*result.reasons, *witnesses]


def only_unknown_outcomes() -> Trace:
    trace = clean_trace("only_unknown")
    for line in trace.all_lines():
        if line.get("f") == "send" and line.get("type") == "ok":
            line["type"] = "info"
    return trace


def no_faults() -> Trace:
    return clean_trace("no_faults", faults=0)


def nothing_but_a_beginning() -> Trace:
    lines: list[Line] = [line for line in clean_trace("nothing").all_lines() if line["ev"] == "meta"]
    trace = Trace("nothing")
    for line in lines:
        trace.files.setdefault((str(line["src"]), int(line["inc"])), []).append(line)
    trace.renumber()
    return trace


def converted_and_written_anew(run: str, tmp_path: Path) -> list[Path]:
    """Two run directories with the same rows, in Parquet files of different bytes."""
    first, second = tmp_path / run, tmp_path / f"{run}_anew"
    clean_trace(run).write(first)
    path = convert(first, remove_raw=True).path
    (second / PARQUET_DIR).mkdir(parents=True)
    duckdb.execute(f"COPY (FROM '{path}' ORDER BY mono) TO '{second / PARQUET_DIR / 'other.parquet'}'")
    return [first, second]


#: Who has every line twice seems to have been made master twice.
TWICE_IS_TOO_OFTEN = tuple(check for check in CHECKS if check.id == "S6")


def test_bad_traces_are_never_valid(check_runs: CheckRuns, tmp_path: Path) -> None:
    folders = []
    for mutate, _ in [*BAD, (tear_the_killed, "")]:
        folder = tmp_path / mutate.__name__
        clean_trace(mutate.__name__).write(folder)
        mutate(folder / RAW_DIR)
        folders.append(folder)
    for empty_handed in (only_unknown_outcomes(), no_faults(), nothing_but_a_beginning()):
        empty_handed.write(tmp_path / empty_handed.run)
        folders.append(tmp_path / empty_handed.run)
    for name in ("a", "b"):
        clean_trace("twice").write(tmp_path / name)
    folders += [tmp_path / "a", tmp_path / "b", *converted_and_written_anew("converted_twice", tmp_path)]
    found = check_runs(*folders, checks=FEW + TWICE_IS_TOO_OFTEN)
    for run in ("twice", "converted_twice"):
        fired = [f for f in found[run].findings if f.check in TWICE_IS_TOO_OFTEN and f.violations]
        assert fired and found[run].verdict is Verdict.UNKNOWN, "a copy of a run breaks no promise"
        assert any("is also in" in reason for reason in found[run].reasons)
    for mutate, said in BAD:
        result = found[mutate.__name__]
        assert result.verdict is Verdict.UNKNOWN, (mutate.__name__, result.reasons)
        assert any(re.fullmatch(said, text) for text in told(result)), (mutate.__name__, told(result))
    for run, said in (
        ("only_unknown", r"\d+ of \d+ sends have no known outcome"),
        ("no_faults", "faults planned: 0, that took effect: 0"),
        ("nothing", "L1 had nothing to check, and without it a run proves nothing"),
    ):
        assert found[run].verdict is Verdict.UNKNOWN, found[run].reasons
        assert any(re.fullmatch(said, text) for text in told(found[run])), (run, told(found[run]))
    # Half a line is what a kill may leave.
    assert found["tear_the_killed"].verdict is Verdict.VALID, found["tear_the_killed"].reasons


def test_a_converted_file_that_was_copied_is_a_trouble_of_both_directories(tmp_path: Path) -> None:
    clean_trace("r", rounds=2).write(tmp_path / "r")
    clean_trace("other", rounds=3).write(tmp_path / "other")
    for run in ("r", "other"):
        convert(tmp_path / run, remove_raw=True)
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    dirs = [tmp_path / name for name in ("r", "other", "copy")]
    intake = take_in(dirs)
    assert intake.copied == {dirs[0], dirs[2]} == set(intake.troubles)
    shutil.copy(dirs[1] / "parquet" / "events.parquet", dirs[1] / "parquet" / "again.parquet")
    assert dirs[1] in take_in(dirs[:2]).copied


def test_directories_without_a_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntakeError, match="no directory"):
        take_in([tmp_path / "nowhere"])
    with pytest.raises(IntakeError, match="holds no trace"):
        take_in([tmp_path])
    clean_trace("r", rounds=2).write(tmp_path / "r")
    with pytest.raises(IntakeError, match="named twice"):
        take_in([tmp_path / "r", tmp_path / "r" / "." / ""])
