"""Run directories that are not whole, or that show nothing: no verdict on them may be "valid"."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb

from chaos.checker.intake import PARQUET_DIR
from chaos.trace.parquet import convert
from chaos.trace.schema import INT_MAX, RAW_DIR
from tests.chaos.checker.synthetic import Line, Trace, clean_trace

#: What is wrong shows in a short trace, too.
ROUNDS = 6
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
    (tear, r"client-r0\.0\.jsonl: 1 unreadable lines"),
    (tear_in_the_middle, r"client-r0\.0\.jsonl: 1 unreadable lines"),
    (empty, r"client-p7\.0\.jsonl is empty"),
    (copy, r"\S+/client-r1\.0\.jsonl is a copy of \S+/client-r0\.0\.jsonl"),
    (lose, r"client:p2: expected, but wrote nothing"),
    (beyond_64_bits, r"client-r0\.0\.jsonl: 1 unreadable lines"),
    (fraction, r"client-r0\.0\.jsonl: 1 unreadable lines"),
    (garbage, r"client-r0\.0\.jsonl: 1 unreadable lines"),
    (unknown_kind, r"\S+client-r0\.0\.jsonl: 1 lines of an unknown kind, .*"),
    (no_run, r"client-r0\.0\.jsonl: 1 lines without a run"),
    (other_version, r"\S+client-r0\.0\.jsonl: \d+ lines of another schema version"),
    (two_runs, r"client-r0\.0\.jsonl contains lines of several runs"),
    (foreign_file, r"the directory contains several runs: foreign_file, somebody"),
]


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


def write_bad_traces(folder: Path) -> list[Path]:
    """A run directory for each of `BAD`, named after it; and `tear_the_killed`, which is as good as whole."""
    folders = []
    for mutate, _ in [*BAD, (tear_the_killed, "")]:
        clean_trace(mutate.__name__, rounds=ROUNDS).write(folder / mutate.__name__)
        mutate(folder / mutate.__name__ / RAW_DIR)
        folders.append(folder / mutate.__name__)
    return folders


def write_empty_handed(folder: Path) -> list[Path]:
    """A run directory for each trace that shows nothing."""
    traces = (only_unknown_outcomes(), no_faults(), nothing_but_a_beginning())
    for trace in traces:
        trace.write(folder / trace.run)
    return [folder / trace.run for trace in traces]


def write_twice(folder: Path) -> list[Path]:
    """Two directories of one run, `twice`."""
    for name in ("a", "b"):
        clean_trace("twice", rounds=ROUNDS).write(folder / name)
    return [folder / "a", folder / "b"]


def write_converted_twice(folder: Path) -> list[Path]:
    """Two directories of one run, `converted_twice`: the same rows, in Parquet files of different bytes."""
    first, second = folder / "converted", folder / "anew"
    clean_trace("converted_twice", rounds=ROUNDS).write(first)
    path = convert(first, remove_raw=True).path
    (second / PARQUET_DIR).mkdir(parents=True)
    duckdb.execute(f"COPY (FROM '{path}' ORDER BY mono) TO '{second / PARQUET_DIR / 'other.parquet'}'")
    return [first, second]
