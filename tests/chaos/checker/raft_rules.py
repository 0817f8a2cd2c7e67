"""The checks of Raft's rules alone, for traces of tests that are about something else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Severity
from chaos.checker.judge import judge, sentence
from chaos.checker.tables import make_tables
from tests.chaos.checker.duck import DuckEngine

_RULES = tuple(
    check
    for check in CHECKS
    if check.severity is Severity.HARD and (check.id.startswith("R") or check.id in ("P1", "P2"))
)


def broken_rules(run_dirs: Sequence[Path]) -> list[str]:
    """What contradicts a rule of Raft in the traces of these runs, in words."""
    engine = DuckEngine()
    engine.load(run_dirs)
    make_tables(engine)
    return [
        f"{result.run}: {finding.check.id}: {sentence(finding.check, row)}"
        for result in judge(engine, _RULES)
        for finding in result.findings
        for row in finding.witnesses
    ]
