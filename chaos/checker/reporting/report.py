"""The report directory: results.json, witnesses as JSONL, JUnit XML and a line for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from chaos.checker.checks.registry import Severity
from chaos.checker.command.output import plain
from chaos.checker.engine import Row
from chaos.checker.intake import Intake, RawFile, look_at
from chaos.checker.judge import Finding, RunResult, Verdict, broken, line_of, sentence
from chaos.checker.paths import shown
from chaos.checker.readers.lines import source_of
from chaos.checker.reporting.figures import Figures
from chaos.checker.reporting.page import MARK, render
from chaos.checker.witness_times import MONO
from chaos.trace.schema import INT_MAX

RESULTS_VERSION = 1
RESULTS, PAGE = "results.json", "index.html"
_WITNESSES = re.compile(r"witnesses/(?!\.\.?/)[\w.-]+/[\w.-]+\.jsonl")


def overall(results: list[RunResult]) -> Verdict:
    """Invalid beats unknown beats valid; nothing at all is unknown."""
    verdicts = {result.verdict for result in results}
    for verdict in (Verdict.INVALID, Verdict.UNKNOWN):
        if verdict in verdicts:
            return verdict
    return Verdict.VALID if verdicts else Verdict.UNKNOWN


def verdict_sentence(result: RunResult) -> str:
    """The verdict of a run in one sentence."""
    counts = result.census
    about = f"{counts['oks']} acknowledged, {counts['faults']} faults, {counts['lines']} lines"
    if result.verdict is Verdict.VALID:
        return f"Run {result.run} is valid: every check that applies holds ({about})."
    if ids := [finding.check.id for finding in broken(result)]:
        verb = "does" if len(ids) == 1 else "do"
        return f"Run {result.run} is INVALID: {', '.join(ids)} {verb} not hold ({about})."
    return f"Run {result.run} is unknown: it proves nothing either way ({about}): {result.reasons[0]}."


def in_words(result: RunResult) -> list[str]:
    """The verdict of a run for a terminal: the sentence, and each promise that was broken with its first
    witness; of a run that proves nothing, all reasons."""
    said = [plain(verdict_sentence(result))]
    if result.verdict is Verdict.UNKNOWN:
        return said + [plain(f"  also: {reason}") for reason in result.reasons[1:]]
    for finding in result.findings:
        if finding.verdict is Verdict.INVALID:
            times = "once" if finding.violations == 1 else f"{finding.violations:,} times"
            said.append(plain(f"  {finding.check.id} promises that {finding.check.title}; broken {times}"))
            for witness in finding.witnesses[:1]:
                at = line_of(witness)
                said.append(
                    plain(f"    first: {sentence(finding.check, witness)}" + (f" ({at})" if at else ""))
                )
    return said


def _moment(witness: Row) -> int:
    """For sorting: what has no time comes last."""
    mono = witness.get(MONO)
    return mono if isinstance(mono, int) else INT_MAX


def one_line(results: list[RunResult]) -> str:
    """For logs of continuous integration: the whole in one line."""
    parts = []
    for result in results:
        held = sum(f.verdict is Verdict.VALID for f in result.findings)
        absent = sum(f.verdict is Verdict.ABSENT for f in result.findings)
        broken = [f.check.id for f in result.findings if f.verdict in (Verdict.INVALID, Verdict.UNKNOWN)]
        said = f"{result.run}: {result.verdict}, {held} held, {absent} not in the trace"
        parts.append(said + (f", not so: {' '.join(broken)}" if broken else ""))
    return f"{overall(results)} | " + " | ".join(parts)


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.check.id,
        "title": finding.check.title,
        "severity": finding.check.severity.value,
        "verdict": finding.verdict.value,
        "population": finding.population,
        "violations": finding.violations,
        "seconds": round(finding.seconds, 3),
    }


def as_json(
    results: list[RunResult], figures: dict[str, Figures], intake: Intake, seconds: float
) -> dict[str, Any]:
    return {
        "version": RESULTS_VERSION,
        "verdict": overall(results).value,
        "seconds": round(seconds, 1),
        "files": [
            {"path": shown(file.path), "sha256": file.sha256, "bytes": file.bytes, "lines": file.lines}
            for file in _files(intake)
        ],
        "runs": [
            {
                "run": result.run,
                "verdict": result.verdict.value,
                "sentence": verdict_sentence(result),
                "reasons": result.reasons,
                "census": result.census,
                "checks": [_finding(finding) for finding in result.findings],
                "figures": asdict(figures.get(result.run, Figures())),
            }
            for result in results
        ],
    }


def _files(intake: Intake) -> Iterator[RawFile]:
    """The files that the user named: of a converted history not what it was converted to."""
    for run_dir, files in groupby(intake.raw, key=lambda file: file.run_dir):
        source = source_of(run_dir)
        yield from [look_at(run_dir, source)] if source else files


class NotOurs(Exception):
    """There is something else in the place of the report; the text says what."""


def write_report(
    out: Path, results: list[RunResult], figures: dict[str, Figures], report: dict[str, Any]
) -> Path:
    """Write everything below `out`. The page to look at. `report`: what goes into `results.json`.

    A report of before is replaced, with the witnesses that it lists; nothing else is touched.

    Raises:
        NotOurs: `out` holds a page or results of something else.
        OSError: it cannot be written.
    """
    before = _report_of_before(out)
    witnesses = dict(_witness_files(results))
    out.mkdir(parents=True, exist_ok=True)
    for name, text in witnesses.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        _replace(out / name, text)
    _replace(out / PAGE, render(results, figures, report["seconds"], verdict_sentence))
    _replace(out / RESULTS, json.dumps(report | {"witnesses": [*witnesses]}, indent=1, default=str) + "\n")
    for name in before:
        if name not in witnesses and _WITNESSES.fullmatch(name):
            (out / name).unlink(missing_ok=True)
    return out / PAGE


def _witness_files(results: list[RunResult]) -> Iterator[tuple[str, str]]:
    """Path below the report, and text."""
    for result in results:
        run = re.sub(r"[^\w.-]", "_", result.run)
        folder = "_" if run in (".", "..") else run
        for finding in result.findings:
            if finding.witnesses:
                lines = [
                    {"said": sentence(finding.check, row), "line": line_of(row), **row}
                    for row in finding.witnesses
                ]
                text = "".join(json.dumps(line, default=str) + "\n" for line in lines)
                yield f"witnesses/{folder}/{finding.check.id}.jsonl", text


def _report_of_before(out: Path) -> list[str]:
    """The witnesses that a report lists which is there; none if there is no report."""
    listed: list[str] = []
    if (out / RESULTS).exists():
        try:
            found = json.loads((out / RESULTS).read_text(encoding="utf-8"))
            if not {"version", "verdict", "runs"} <= found.keys():
                raise NotOurs(f"{RESULTS} there is no report of dledger-check")
        except (ValueError, AttributeError):
            raise NotOurs(f"{RESULTS} there is no report of dledger-check") from None
        listed = [name for name in found.get("witnesses", ()) if isinstance(name, str)]
    if (out / PAGE).exists():
        with (out / PAGE).open(encoding="utf-8", errors="replace") as page:
            if MARK not in page.read(4096):
                raise NotOurs(f"{PAGE} there is no report of dledger-check")
    return listed


def _replace(path: Path, text: str) -> None:
    """Write a file whole, or leave what is there."""
    made = path.with_name(f".writing-{path.name}")
    try:
        made.write_text(text, encoding="utf-8", errors="backslashreplace")
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def write_junit(path: Path, results: list[RunResult]) -> None:
    """JUnit XML: a suite a run, a case a check; unknown is an error, absent is skipped."""
    root = ElementTree.Element("testsuites", name="dledger-check")
    for result in results:
        suite = ElementTree.SubElement(root, "testsuite", name=result.run)
        for finding in result.findings:
            case = ElementTree.SubElement(
                suite, "testcase", classname=result.run, name=f"{finding.check.id} {finding.check.title}"
            )
            said = "; ".join(sentence(finding.check, row) for row in finding.witnesses[:3])
            if finding.verdict is Verdict.INVALID:
                ElementTree.SubElement(case, "failure", message=said)
            elif finding.verdict is Verdict.UNKNOWN:
                ElementTree.SubElement(case, "error", message=said)
            elif finding.verdict is Verdict.ABSENT:
                ElementTree.SubElement(case, "skipped", message=Verdict.ABSENT.value)
        run_case = ElementTree.SubElement(
            suite, "testcase", classname=result.run, name="the run proves something"
        )
        broken = any(
            finding.verdict is Verdict.UNKNOWN and finding.check.severity is Severity.VOID
            for finding in result.findings
        )
        if result.verdict is Verdict.UNKNOWN and not broken:
            ElementTree.SubElement(run_case, "error", message="; ".join(result.reasons))
    for element in root.iter():
        # XML knows no control characters, not even escaped.
        element.attrib = {name: plain(value) for name, value in element.attrib.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode"))
