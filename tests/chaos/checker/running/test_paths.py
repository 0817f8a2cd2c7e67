"""Paths are literal: whatever a run directory is called, it is that directory which is judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from chaos.checker import main as command
from chaos.checker.engines.spark import SparkEngine
from chaos.checker.intake import IntakeError, inspect_runs
from chaos.checker.main import file_troubles
from chaos.checker.paths import file_of
from chaos.checker.tables import make_tables
from chaos.trace.parquet import convert
from chaos.trace.schema import RAW_DIR
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.duck_loader import duck_loader
from tests.chaos.checker.runs import HISTORIES
from tests.chaos.checker.synthetic import clean_trace

pytestmark = pytest.mark.xdist_group("spark")

#: Beside each other: a pattern would find the neighbour.
NAMES = (
    *("run1", "run[1]", "a", "{a,b}", "st*r", "star", "q?m", "qam", "x:y", "file:z", "sp ace", " lead"),
    *("p%20c", "p%zz", "h#sh", "new\nline", "ünï-日本", "back\\slash", "\\[x]", "com,ma", "k=v", "'quo\"te"),
    *("$HOME", "tab\t", "semi;x", "a&b+c", "~", "-n"),
)


def write_runs(folder: Path) -> list[Path]:
    """A directory of each name, whose run is called so, too, and has a line more than the one before."""
    for lines, name in enumerate(NAMES, start=1):
        line = {"v": 1, "run": name, "src": "nemesis", "inc": 0, "ev": "meta", "e": "healed", "mono": 1}
        (folder / name / RAW_DIR).mkdir(parents=True)
        text = "".join(json.dumps(line | {"seq": seq}) + "\n" for seq in range(lines))
        (folder / name / RAW_DIR / "nemesis.0.jsonl").write_text(text)
    return [folder / name for name in NAMES]


#: Of each directory: run and lines.
WRITTEN = {name: (name, lines) for lines, name in enumerate(NAMES, start=1)}


def read_by(engine: SparkEngine | DuckEngine) -> dict[str, tuple[object, object]]:
    """Run directory -> what was read: run and lines."""
    rows = engine.rows("SELECT file, min(run) AS run, count(*) AS n FROM events GROUP BY file")
    return {file_of(str(row["file"])).resolve().parent.parent.name: (row["run"], row["n"]) for row in rows}


def test_spark_reads_the_files_that_are_named_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    """Of lines, and of columns; and not several times."""
    dirs = write_runs(tmp_path)
    engine = SparkEngine(spark, tmp_path / "tables")
    engine.load(inspect_runs(dirs))
    assert read_by(engine) == WRITTEN
    for run_dir in dirs:
        convert(run_dir, remove_raw=True)
    engine = SparkEngine(spark, tmp_path / "tables1")
    engine.load(inspect_runs(dirs))
    assert read_by(engine) == WRITTEN


def test_columns_in_folders_of_values_are_read_with_those_values(spark: SparkSession, tmp_path: Path) -> None:
    """As Spark and DuckDB write them when they are told to partition; beside a run without folders."""
    dirs = write_runs(tmp_path)[:2]
    for run_dir in dirs:
        convert(run_dir, remove_raw=True)
    path, folder = dirs[1] / "parquet" / "events.parquet", tmp_path / "plain"
    path.rename(tmp_path / "events.parquet")
    duckdb.execute(
        f"COPY (FROM '{tmp_path}/events.parquet') TO '{folder}' (FORMAT parquet, PARTITION_BY (ev))"
    )
    folder.rename(path.parent / "parts")
    engine = SparkEngine(spark, tmp_path / "tables")
    engine.load(inspect_runs(dirs))
    found = engine.rows("SELECT run, ev, count(*) AS n FROM events GROUP BY run, ev")
    assert {row["run"]: (row["ev"], row["n"]) for row in found} == {
        "run1": ("meta", 1),
        "run[1]": ("meta", 2),
    }


def test_the_second_engine_reads_the_files_that_are_named(tmp_path: Path) -> None:
    dirs = write_runs(tmp_path)
    engine = DuckEngine()
    engine.load(dirs)
    assert read_by(engine) == WRITTEN
    make_tables(engine)
    assert file_troubles(engine, inspect_runs(dirs)).said == {}


def test_a_converted_trace_is_made_of_its_own_lines(tmp_path: Path) -> None:
    found = {run_dir.name: (run_dir.name, convert(run_dir).lines) for run_dir in write_runs(tmp_path)}
    assert found == WRITTEN


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["run[1]", "{a,b}", "x:y", "q?m", "p%20c", "new\nline", "ünï-日本", "h#sh", "k=v"]
)
def test_the_line_of_a_history_is_found_whatever_its_directory_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = tmp_path / name
    store.mkdir()
    (store / "history.edn").write_text((HISTORIES / "set-lost.edn").read_text())
    monkeypatch.setattr(command, "spark_loader", duck_loader)
    monkeypatch.setattr(sys, "argv", ["dledger-check", str(store)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    (said,) = (store / "report" / "witnesses").rglob("H3.jsonl")
    path, _, line = json.loads(said.read_text())["line"].rpartition(":")
    assert Path(path) == store / "history.edn"
    assert ":f :read" in Path(path).read_text().splitlines()[int(line) - 1]


def test_a_name_that_java_cannot_open_is_refused(tmp_path: Path) -> None:
    """Java knows names that are text only."""
    run_dir = tmp_path / "bytes\udcff"
    clean_trace("r", rounds=1).write(run_dir)
    with pytest.raises(IntakeError, match=r"bytes\\xff is not UTF-8.* rename it"):
        inspect_runs([run_dir])


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("file:///tmp/run%5B1%5D/c.jsonl", "/tmp/run[1]/c.jsonl"),
        ("file:/tmp/a%2520b", "/tmp/a%20b"),
        ("hdfs://host:9000/a/b%20c", "/a/b c"),
        ("/tmp/a%20b?x#y", "/tmp/a%20b?x#y"),
        ("file:///tmp/a;b,ünï", "/tmp/a;b,ünï"),
    ],
)
def test_files_are_told_from_what_engines_call_them(named: str, path: str) -> None:
    assert file_of(named) == Path(path)
