"""Witnesses say which lines contradict each other, in the terminal, in JSON and on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.checker.intake import inspect_runs
from chaos.checker.judge import RunJudgment, line_of
from chaos.checker.reporting.report import as_json, terminal_lines, write_report
from chaos.trace.schema import RAW_DIR

pytestmark = pytest.mark.xdist_group("spark")

#: What these find is of a whole run (a count, the bound of its clocks), or that something is nowhere at all.
NOWHERE = {"V1", "V2", "V3", "V4", "W5", "W6", "W7", "W8", "W11", "W12", "W13", "W14", "A5", "A7", "V5", "V6"}
#: They find that a writer lacks lines, has too many or does not tell something: its file is named.
OF_FILES = {"W1", "W10", "W13", "W5", "R25"}


def test_every_witness_names_lines_that_are_there(mutated: dict[str, tuple[Path, RunJudgment]]) -> None:
    seen = set()
    for folder, result in mutated.values():
        for finding in result.findings:
            for row in finding.witnesses:
                at = line_of(row)
                if at is None:
                    assert finding.check.id in NOWHERE, (result.run, finding.check.id, row)
                    continue
                seen.add(finding.check.id)
                for place in at.split(", "):
                    name, _, line = place.partition(":")
                    lines = (folder / RAW_DIR / name).read_text().splitlines()
                    assert line or finding.check.id in OF_FILES, (result.run, finding.check.id, row)
                    assert 1 <= int(line or 1) <= len(lines)
    assert len(seen) > 60


def lines_at(folder: Path, at: str | None) -> list[dict[str, object]]:
    places = [place.partition(":") for place in str(at).split(", ")]
    return [
        json.loads((folder / RAW_DIR / name).read_text().splitlines()[int(number) - 1])
        for name, _, number in places
    ]


def test_the_lines_are_those_that_contradict_each_other(mutated: dict[str, tuple[Path, RunJudgment]]) -> None:
    def first(run: str, id_: str) -> list[dict[str, object]]:
        folder, result = mutated[run]
        (finding,) = [finding for finding in result.findings if finding.check.id == id_]
        return lines_at(folder, line_of(finding.witnesses[0]))

    votes = first("a_node_comes_back_with_another_vote", "R2")
    assert {line.get("vote", line.get("candidate")) for line in votes} >= {"n1", "n2"}
    sends = first("an_id_is_used_twice", "W4")
    assert len({line["op"] for line in sends}) == 2 and len({line["mid"] for line in sends}) == 1
    terms = {
        line["eterm"] for line in first("a_reader_is_told_another_term_of_an_entry", "R8") if "eterm" in line
    }
    assert len(terms) == 2


def test_terminal_json_and_page_say_where(
    mutated: dict[str, tuple[Path, RunJudgment]], tmp_path: Path
) -> None:
    folder, result = mutated["a_reader_sees_another_content"]
    (finding,) = [finding for finding in result.findings if finding.check.id == "L1"]
    at = line_of(finding.witnesses[0])
    assert at and ":" in at
    assert any(at in line for line in terminal_lines(result))
    page = write_report(tmp_path / "out", [result], {}, as_json([result], {}, inspect_runs([folder]), 1.0))
    assert at in page.read_text()
    witnesses = tmp_path / "out" / "witnesses" / result.run / "L1.jsonl"
    assert json.loads(witnesses.read_text().splitlines()[0])["line"] == at
