"""The report directory: results.json, witnesses as JSONL, JUnit XML, and the summary for a terminal."""

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
from chaos.checker.intake import Intake, RawFile, inspect_file
from chaos.checker.judge import CheckVerdict, Finding, RunJudgment, broken, line_of, sentence
from chaos.checker.paths import shown
from chaos.checker.readers.lines import source_of
from chaos.checker.reporting.figures import Measurements
from chaos.checker.reporting.page import MARK, render
from chaos.checker.witness_times import MONO
from chaos.trace.schema import INT_MAX

RESULTS_VERSION = 1
RESULTS, PAGE = "results.json", "index.html"
_WITNESSES = re.compile(r"witnesses/(?!\.\.?/)[\w.-]+/[\w.-]+\.jsonl")


def overall(results: list[RunJudgment]) -> CheckVerdict:
    """Return the verdict on all runs. Invalid takes precedence over unknown, and unknown over valid. If there
    are no runs, the verdict is unknown."""
    verdicts = {result.verdict for result in results}
    for verdict in (CheckVerdict.INVALID, CheckVerdict.UNKNOWN):
        if verdict in verdicts:
            return verdict
    return CheckVerdict.VALID if verdicts else CheckVerdict.UNKNOWN


def verdict_sentence(result: RunJudgment) -> str:
    """Return the verdict of a run as a sentence."""
    counts = result.census
    about = f"{counts['oks']} acknowledged, {counts['faults']} faults, {counts['lines']} lines"
    if result.verdict is CheckVerdict.VALID:
        return f"Run {result.run} is valid: every check that applies holds ({about})."
    if ids := [finding.check.id for finding in broken(result)]:
        verb = "does" if len(ids) == 1 else "do"
        return f"Run {result.run} is INVALID: {', '.join(ids)} {verb} not hold ({about})."
    return f"Run {result.run} is unknown ({about}): {result.reasons[0]}."


def terminal_lines(result: RunJudgment) -> list[str]:
    """Return the verdict of a run for a terminal.

    The text contains the sentence, each violated check with its first witness and, for an unknown run, all
    reasons.
    """
    lines = [plain(verdict_sentence(result))]
    if result.verdict is CheckVerdict.UNKNOWN:
        return lines + [plain(f"  also: {reason}") for reason in result.reasons[1:]]
    for finding in result.findings:
        if finding.verdict is CheckVerdict.INVALID:
            times = "once" if finding.violations == 1 else f"{finding.violations:,} times"
            lines.append(plain(f"  {finding.check.id} violated {times}: {finding.check.title}"))
            for witness in finding.witnesses[:1]:
                location = line_of(witness)
                lines.append(
                    plain(
                        f"    first: {sentence(finding.check, witness)}"
                        + (f" ({location})" if location else "")
                    )
                )
    return lines


def _moment(witness: Row) -> int:
    """Return a sort key by which witnesses without a time are last."""
    mono = witness.get(MONO)
    return mono if isinstance(mono, int) else INT_MAX


def summary_line(results: list[RunJudgment]) -> str:
    """Return a summary of all runs in one line, for logs of continuous integration."""
    parts = []
    for result in results:
        held = sum(f.verdict is CheckVerdict.VALID for f in result.findings)
        absent = sum(f.verdict is CheckVerdict.ABSENT for f in result.findings)
        broken = [
            f.check.id for f in result.findings if f.verdict in (CheckVerdict.INVALID, CheckVerdict.UNKNOWN)
        ]
        summary = f"{result.run}: {result.verdict}, {held} held, {absent} not in the trace"
        parts.append(summary + (f", not held: {' '.join(broken)}" if broken else ""))
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
    results: list[RunJudgment], figures: dict[str, Measurements], intake: Intake, seconds: float
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
                "figures": asdict(figures.get(result.run, Measurements())),
            }
            for result in results
        ],
    }


def _files(intake: Intake) -> Iterator[RawFile]:
    """Return the files that the user named. For a converted history, this is the original file."""
    for run_dir, files in groupby(intake.raw, key=lambda file: file.run_dir):
        source = source_of(run_dir)
        yield from [inspect_file(run_dir, source)] if source else files


class ForeignReportError(Exception):
    """Raised if an existing page or results file is not from dledger-check. The text names the file."""


def write_report(
    out: Path, results: list[RunJudgment], figures: dict[str, Measurements], report: dict[str, Any]
) -> Path:
    """Write the report below `out`, and return the path of the page. `report`: content of `results.json`.

    Replaces a previous report and the witnesses that it lists, and no other file.

    Raises:
        ForeignReportError: `out` contains a page or results that dledger-check did not write.
        OSError: the report cannot be written.
    """
    before = _previous_witnesses(out)
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


def _witness_files(results: list[RunJudgment]) -> Iterator[tuple[str, str]]:
    """Yield the path below the report, and the text, of each file of witnesses."""
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


def _previous_witnesses(out: Path) -> list[str]:
    """Return the witnesses that the existing report lists, or none if there is no report."""
    listed: list[str] = []
    if (out / RESULTS).exists():
        try:
            previous = json.loads((out / RESULTS).read_text(encoding="utf-8"))
            if not {"version", "verdict", "runs"} <= previous.keys():
                raise ForeignReportError(f"the existing {RESULTS} is not a report of dledger-check")
        except (ValueError, AttributeError):
            raise ForeignReportError(f"the existing {RESULTS} is not a report of dledger-check") from None
        listed = [name for name in previous.get("witnesses", ()) if isinstance(name, str)]
    if (out / PAGE).exists():
        with (out / PAGE).open(encoding="utf-8", errors="replace") as page:
            if MARK not in page.read(4096):
                raise ForeignReportError(f"the existing {PAGE} is not a report of dledger-check")
    return listed


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically."""
    made = path.with_name(f".writing-{path.name}")
    try:
        made.write_text(text, encoding="utf-8", errors="backslashreplace")
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def write_junit(path: Path, results: list[RunJudgment]) -> None:
    """Write JUnit XML with a suite per run and a case per check. An unknown check is an error; a check that
    does not apply is skipped."""
    root = ElementTree.Element("testsuites", name="dledger-check")
    for result in results:
        suite = ElementTree.SubElement(root, "testsuite", name=result.run)
        for finding in result.findings:
            case = ElementTree.SubElement(
                suite, "testcase", classname=result.run, name=f"{finding.check.id} {finding.check.title}"
            )
            message = "; ".join(sentence(finding.check, row) for row in finding.witnesses[:3])
            if finding.verdict is CheckVerdict.INVALID:
                ElementTree.SubElement(case, "failure", message=message)
            elif finding.verdict is CheckVerdict.UNKNOWN:
                ElementTree.SubElement(case, "error", message=message)
            elif finding.verdict is CheckVerdict.ABSENT:
                ElementTree.SubElement(case, "skipped", message=CheckVerdict.ABSENT.value)
        run_case = ElementTree.SubElement(
            suite, "testcase", classname=result.run, name="the run proves something"
        )
        broken = any(
            finding.verdict is CheckVerdict.UNKNOWN and finding.check.severity is Severity.VOID
            for finding in result.findings
        )
        if result.verdict is CheckVerdict.UNKNOWN and not broken:
            ElementTree.SubElement(run_case, "error", message="; ".join(result.reasons))
    for element in root.iter():
        # XML allows no control characters, not even escaped.
        element.attrib = {name: plain(value) for name, value in element.attrib.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode"))
