"""`python -m chaos.spec`: what it prints, its exit codes, and traces of which it says nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.checker.synthetic import Line, Trace, clean_trace
from chaos.spec.__main__ import main
from chaos.spec.reading import read_trace
from chaos.spec.walk import Verdict, walk


def made(folder: Path, change: Callable[[Trace], object] = lambda trace: None) -> Path:
    trace = clean_trace(folder.name, broker=False, seed=3, rounds=6)
    change(trace)
    trace.write(folder)
    return folder


def two_leaders(trace: Trace) -> None:
    lines = trace.files["node:n3", 0]
    leader = next(line for line in trace.all_lines() if line.get("e") == "leader")
    lines.insert(-1, leader | {"src": "node:n3", "inc": 0, "node": "n3", "mono": lines[-1]["mono"]})
    trace.renumber()


def test_it_says_what_each_run_is_and_ends_with_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, empty = made(tmp_path / "good"), made(tmp_path / "bad", two_leaders), tmp_path / "empty"
    (empty / "raw").mkdir(parents=True)
    assert main([str(good)]) == 0
    assert "accepted" in capsys.readouterr().out
    assert main([str(good), str(empty)]) == 2
    assert "no node has told anything" in capsys.readouterr().out
    assert main([str(empty), str(bad), str(good)]) == 1
    told = capsys.readouterr().out
    # The line, why it has no step, and what was possible before it.
    lines = (bad / "raw" / "node-n3.0.jsonl").read_text().splitlines()
    number = max(n for n, line in enumerate(lines, 1) if '"leader"' in line)
    assert f"node-n3.0.jsonl:{number}: " in told
    assert "has a leader already" in told and "n1: " in told and "leaders by term" in told


def test_what_is_no_run_is_a_bad_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 254
    assert "give the directory of a run" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--no-such-option"])
    assert ended.value.code == 254


Change = Callable[[Trace], object]


def a_node_is_missing(trace: Trace) -> None:
    del trace.files["node:n2", 0]


def a_line_is_missing(trace: Trace) -> None:
    del trace.files["node:n2", 0][5]


def a_life_breaks_off(trace: Trace) -> None:
    del trace.files["node:n2", 0][-1]


def a_field_is_no_number(trace: Trace) -> None:
    of(trace, "flush")["lidx"] = "3"


def a_field_is_missing(trace: Trace) -> None:
    del of(trace, "flush")["lidx"]


def the_logs_were_not_empty_in_the_beginning(trace: Trace) -> None:
    of(trace, "recover")["ended"] = 7


def another_version(trace: Trace) -> None:
    of(trace, "flush")["v"] = 2


def of(trace: Trace, what: str) -> Line:
    return next(line for line in trace.files["node:n2", 0] if line.get("e") == what)


HOLES: dict[Change, str] = {
    a_node_is_missing: "2 of 3 nodes",
    a_line_is_missing: "line 5 is missing",
    a_life_breaks_off: "a life of n2",
    a_field_is_no_number: "lidx is no int",
    a_field_is_missing: "no lidx",
    the_logs_were_not_empty_in_the_beginning: "does not begin with an empty log",
    another_version: "schema version 2",
}


@pytest.mark.parametrize("change", HOLES, ids=lambda change: change.__name__)
def test_a_trace_with_holes_is_neither_accepted_nor_refused(tmp_path: Path, change: Change) -> None:
    outcome = walk(read_trace(made(tmp_path / "run", change)))
    assert outcome.verdict is Verdict.UNKNOWN
    assert HOLES[change] in outcome.why


def test_bytes_that_are_no_line_make_it_unknown_and_half_a_last_line_does_not(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    file = run / "raw" / "client-p0.0.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"v":1,')
    assert walk(read_trace(run)).verdict is Verdict.ACCEPTED
    file.write_bytes(whole + b"\xff\xfe\n" + b"{}\n")
    outcome = walk(read_trace(run))
    assert outcome.verdict is Verdict.UNKNOWN and "no JSON object" in outcome.why


def test_a_copy_of_a_file_makes_it_unknown(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    file = run / "raw" / "node-n2.0.jsonl"
    (run / "raw" / "node-n2.9.jsonl").write_bytes(file.read_bytes())
    assert "another file of node:n2" in walk(read_trace(run)).why
