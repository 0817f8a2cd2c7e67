"""The report directory: results.json, witnesses as JSONL, JUnit XML and a line for people."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from chaos.checker.checks.registry import Severity
from chaos.checker.intake import Intake
from chaos.checker.judge import Finding, RunResult, Verdict, line_of, sentence
from chaos.checker.reporting.figures import Figures
from chaos.checker.reporting.page import render

RESULTS_VERSION = 1


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
    broken = [f.check.id for f in result.findings if f.verdict is Verdict.INVALID]
    if result.verdict is Verdict.INVALID:
        return f"Run {result.run} is INVALID: {', '.join(broken)} do not hold ({about})."
    return f"Run {result.run} is unknown: it proves nothing either way ({about}): {result.reasons[0]}."


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
            {"path": str(file.path), "sha256": file.sha256, "bytes": file.bytes, "lines": file.lines}
            for file in intake.raw
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


def write_report(
    out: Path, results: list[RunResult], figures: dict[str, Figures], intake: Intake, seconds: float
) -> Path:
    """Write everything below `out`. The page to look at."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(
        json.dumps(as_json(results, figures, intake, seconds), indent=1, default=str) + "\n"
    )
    for result in results:
        folder = out / "witnesses" / re.sub(r"[^\w.-]", "_", result.run)
        for finding in result.findings:
            if finding.witnesses:
                folder.mkdir(parents=True, exist_ok=True)
                lines = [
                    {"said": sentence(finding.check, row), "line": line_of(row), **row}
                    for row in finding.witnesses
                ]
                text = "".join(json.dumps(line, default=str) + "\n" for line in lines)
                (folder / f"{finding.check.id}.jsonl").write_text(text)
    page = out / "index.html"
    page.write_text(render(results, figures, seconds, verdict_sentence))
    return page


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
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
