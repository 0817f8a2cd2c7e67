"""How the command behaves where things go wrong: the verdict is told first and stays what it is, nothing of
others is lost, and errors are a line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chaos.checker import main as command
from chaos.checker.intake import inspect_runs
from chaos.trace.parquet import convert
from chaos.trace.schema import RAW_DIR
from tests.chaos.checker.running.test_command import planted, run_command
from tests.chaos.checker.runs import HISTORIES
from tests.chaos.checker.synthetic import clean_trace

pytestmark = pytest.mark.xdist_group("spark")

ROOT = Path(command.__file__).parents[2]
#: The command with the second engine, as a process.
_COMMAND = """
from chaos.checker import main
from tests.chaos.checker.duck_loader import duck_loader
main.spark_loader = duck_loader
main.main()
"""
READER = "client-r0.0.jsonl"


def spawn(*arguments: object, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *map(str, arguments)],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return planted("a_node_votes_twice", tmp_path / "bad")


# -- the verdict ---------------------------------------------------------------------------------------------


def test_the_terminal_says_which_promise_broke_and_shows_the_first_witness(
    monkeypatch: pytest.MonkeyPatch, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, bad) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Run a_node_votes_twice is INVALID: R2, R16, R22 do not hold (")
    assert said[1].startswith("  R2 violated once: ")
    assert re.search(r"^    first: n[123] voted in term 2 for n[123] and for n[123]", said[2])
    assert said[3].startswith("  R16 violated once: ")


def test_of_a_run_that_proves_nothing_the_terminal_gives_all_reasons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean_trace("holes").write(tmp_path / "holes")
    for name in ("client-x1.0.jsonl", "client-x2.0.jsonl"):
        (tmp_path / "holes" / RAW_DIR / name).touch()
    assert run_command(monkeypatch, tmp_path / "holes") == 2
    said = capsys.readouterr().out
    assert "client-x1.0.jsonl is empty" in said
    assert "client-x2.0.jsonl is empty" in said


def test_the_verdict_is_told_before_figures_and_report_are_made(
    monkeypatch: pytest.MonkeyPatch, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def figures(_: object) -> dict[str, object]:
        told.append(capsys.readouterr().out)
        raise OSError("no space")

    def report(*_: object) -> None:
        said = capsys.readouterr()
        assert "cannot compute the measurements of the report: no space" in said.err
        told.append(said.out)
        raise OSError("no space")

    monkeypatch.setattr(command, "measure_runs", figures)
    monkeypatch.setattr(command, "write_report", report)
    assert run_command(monkeypatch, bad) == 1
    assert "INVALID" in told[0]
    assert told[1] == ""


def a_file_in_its_place(out: Path) -> None:
    out.write_text("mine")


def a_file_on_the_way(out: Path) -> None:
    out.mkdir()
    (out / "witnesses").write_text("mine")


def no_such_device(out: Path) -> None:
    out.symlink_to("/proc/nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("obstruct", [a_file_in_its_place, a_file_on_the_way, no_such_device])
def test_a_report_that_cannot_be_written_does_not_change_the_verdict(
    obstruct: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    bad: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    obstruct(out)
    assert run_command(monkeypatch, bad, "--out", out, "--junit", out / "deep" / "junit.xml") == 1
    said = capsys.readouterr()
    assert "INVALID" in said.out
    assert "report:" not in said.out
    assert f"error: cannot write the report to {out}: " in said.err
    assert "Use another location (--out)" in said.err
    assert "Traceback" not in said.err
    if out.is_file():
        assert out.read_text() == "mine"


@pytest.mark.slow
def test_a_full_disk_leaves_the_verdict_and_the_report_of_before(bad: Path, tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk that is full: it is met in the middle of a file."""
    out = tmp_path / "out"
    out.mkdir()
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n{_COMMAND}"
    for code, written in ((_COMMAND, True), (limited, False)):
        done = subprocess.run(
            [sys.executable, "-c", code, bad, "--out", out], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 1, done.stderr
        assert "INVALID" in done.stdout
        assert ("report:" in done.stdout) is written
        assert ("File too large" in done.stderr) is not written
        assert json.loads((out / "results.json").read_text())["verdict"] == "invalid"
        assert (out / "index.html").read_text().endswith("</html>\n")
        assert not list(out.rglob(".writing-*"))


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_whoever_reads_and_has_seen_enough_changes_no_exit_code(as_json: bool, bad: Path) -> None:
    with spawn(bad, *(["--json"] if as_json else [])) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 1
    assert said.startswith("read ") or not said
    assert "error" not in said
    assert (bad / "report" / "index.html").exists()


@pytest.mark.slow
def test_an_output_that_takes_nothing_changes_no_exit_code(bad: Path) -> None:
    with Path("/dev/full").open("wb") as full, spawn(bad, stdout=full.fileno()) as process:
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 1
    assert "the output could not be written" in said
    assert "Traceback" not in said


# -- what is others' -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_in_the_report_directory_is_deleted_that_is_not_of_a_report(
    monkeypatch: pytest.MonkeyPatch, bad: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    mine = [out / "converted" / "mine", out / "witnesses" / "a_node_votes_twice" / "mine.jsonl", out / "mine"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    for code, *arguments in (
        (254, tmp_path / "nowhere"),
        (254, bad, "--checks", "Z9"),
        (1, bad),
        (1, HISTORIES / "set-lost.edn"),
        (254, HISTORIES / "set-lost.edn", "--format", "porcupine"),
    ):
        assert run_command(monkeypatch, *arguments, "--out", out) == code
        assert [path.read_text() for path in mine] == ["mine"] * 3


@pytest.mark.slow
def test_witnesses_of_the_report_before_are_replaced(
    monkeypatch: pytest.MonkeyPatch, bad: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    clean_trace("good").write(tmp_path / "good")
    assert run_command(monkeypatch, bad, "--out", out) == 1
    assert list(out.rglob("R2.jsonl"))
    assert run_command(monkeypatch, tmp_path / "good", "--out", out) == 0
    assert not list(out.rglob("R2.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [("index.html", "<title>my site</title>"), ("results.json", "[]"), ("results.json", "{")],
)
def test_a_page_of_somebody_else_is_not_overwritten(
    name: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    bad: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(text)
    assert run_command(monkeypatch, bad, "--out", out) == 1
    assert f"the existing {name} is not a report of dledger-check" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == [name]
    assert (out / name).read_text() == text


def test_the_report_on_a_history_names_the_file_that_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "history.edn"
    shutil.copy(HISTORIES / "set-lost.edn", source)
    out = tmp_path / "out"
    assert run_command(monkeypatch, source, "--out", out) == 1
    (file,) = json.loads((out / "results.json").read_text())["files"]
    assert file["path"] == str(source)
    assert file["lines"] == source.read_text().count("\n")
    assert str(source) in (out / "index.html").read_text()


def test_what_no_terminal_and_no_xml_takes_is_escaped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = clean_trace("r")
    trace.run = "bell\x07"
    for line in trace.all_lines():
        line["run"] = trace.run
    trace.write(tmp_path / "r")
    assert run_command(monkeypatch, tmp_path / "r", "--junit", tmp_path / "junit.xml") == 0
    assert "bell\\x07" in capsys.readouterr().out
    assert ElementTree.parse(tmp_path / "junit.xml").getroot()[0].attrib["name"] == "bell\\x07"


# -- files that cannot be read -------------------------------------------------------------------------------


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.slow
@pytest.mark.parametrize("make", [a_folder, a_link_to_nowhere, a_link_to_itself, a_pipe])
def test_a_file_that_cannot_be_read_makes_the_run_unknown(
    make: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clean_trace("r").write(tmp_path / "r")
    make(tmp_path / "r" / RAW_DIR / "client-z9.0.jsonl")
    assert run_command(monkeypatch, tmp_path / "r") == 2
    assert f"{RAW_DIR}/client-z9.0.jsonl could not be read: " in capsys.readouterr().out


@pytest.mark.parametrize("name", [".client-z9.0.jsonl", "_client-z9.0.jsonl"])
def test_a_file_that_spark_would_pass_over_in_silence_is_told_of(name: str, tmp_path: Path) -> None:
    clean_trace("r").write(tmp_path / "r")
    shutil.copy(tmp_path / "r" / RAW_DIR / READER, tmp_path / "r" / RAW_DIR / name)
    intake = inspect_runs([tmp_path / "r"])
    assert name not in {file.path.name for file in intake.raw}
    assert "rename it" in intake.troubles[tmp_path / "r"][0]


@pytest.mark.parametrize("left", [0, 3, 100, -9, -1])
def test_a_parquet_file_whose_end_is_missing_is_told_of(
    left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside files that can be read it makes the run unknown; alone there is nothing to check."""
    for name in ("torn", "whole"):
        clean_trace(name, rounds=2).write(tmp_path / name)
        path = convert(tmp_path / name, remove_raw=True).path
    torn = tmp_path / "torn" / "parquet" / "events.parquet"
    torn.write_bytes(torn.read_bytes()[:left])
    (fault,) = inspect_runs([tmp_path / "whole", tmp_path / "torn"]).troubles[tmp_path / "torn"]
    assert fault.startswith("parquet/events.parquet could not be read: it is ")
    assert path.exists()
    assert run_command(monkeypatch, tmp_path / "torn") == 254
    said = capsys.readouterr().err
    assert fault in said
    assert "Traceback" not in said


# -- errors --------------------------------------------------------------------------------------------------


def test_bad_places_for_tables_are_arguments(
    monkeypatch: pytest.MonkeyPatch, bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for name in ("nowhere", "file", "a,b", "a[b]"):
        if name.startswith("a"):
            (tmp_path / name).mkdir()
        assert run_command(monkeypatch, bad, "--work", tmp_path / name) == 254
        said = capsys.readouterr().err
        assert "--work" in said
        assert "Traceback" not in said
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("dledger-check-")]


def test_a_failure_of_the_checker_is_a_line_and_with_debug_a_traceback(
    monkeypatch: pytest.MonkeyPatch, bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(command, "check_loaded", crash)
    for debug in ((), ("--debug",)):
        assert run_command(monkeypatch, bad, "--work", tmp_path, *debug) == 255
        said = capsys.readouterr().err
        assert "error: KeyError: 'oops'" in said
        assert "this is no verdict on the run" in said
        assert ("Traceback" in said) is bool(debug)
    assert not list(tmp_path.glob("dledger-check-*"))


def test_help_for_somebody_who_has_seen_enough(tmp_path: Path) -> None:
    with spawn("--help") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
