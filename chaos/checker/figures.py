"""Figures of a run that no verdict hangs on: A1-A4, and what the charts of the report show."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from chaos.checker.engine import Engine, Row

BINS = 200


@dataclass(slots=True)
class Figures:
    """Of one run; all times in ns, `events` and `acks` by their clock."""

    begin: int = 0
    end: int = 0
    #: A1: one row a fault: fault, f, targets, begun, ended, waited (until something that
    #: was sent after it was acknowledged).
    faults: list[Row] = field(default_factory=list)
    #: A2: one row a promotion: node, term, waited (from elected to master_ready).
    promotions: list[Row] = field(default_factory=list)
    #: A3: latency of acknowledged sends: n, p50, p95, p99, longest.
    latency: Row = field(default_factory=dict)
    #: Changes of role: node, e, term, mono.
    roles: list[Row] = field(default_factory=list)
    #: Acknowledged sends in each of `BINS` equal parts of the run.
    acks: list[int] = field(default_factory=lambda: [0] * BINS)


_ROLES = """
SELECT run, node, e, term, mono FROM milestones
WHERE e IN ('leader', 'follower', 'candidate', 'master_ready', 'demoted', 'recover') ORDER BY run, mono
"""
_FAULTS = """
SELECT f.run, f.fault, f.f, f.targets, f.begun, f.ended, min(s.ret) - f.begun AS waited FROM (
  SELECT run, fault, max(f) AS f, max(targets) AS targets, min(mono) AS begun, max(mono) AS ended FROM fault
  GROUP BY run, fault) f
LEFT JOIN sends s ON s.run = f.run AND s.inv >= f.begun
GROUP BY f.run, f.fault, f.f, f.targets, f.begun, f.ended ORDER BY f.run, f.begun
"""
_PROMOTIONS = """
SELECT a.run, a.node, a.term, min(b.mono) - min(a.mono) AS waited FROM milestones a
JOIN milestones b ON b.run = a.run AND b.node = a.node AND b.term = a.term AND b.e = 'master_ready'
WHERE a.e = 'elected' GROUP BY a.run, a.node, a.term ORDER BY a.run, a.term
"""
#: To the microsecond: so many different latencies there are not.
_LATENCY = """
SELECT run, max(n) AS n, min(CASE WHEN 100 * upto >= 50 * n THEN took END) AS p50,
  min(CASE WHEN 100 * upto >= 95 * n THEN took END) AS p95,
  min(CASE WHEN 100 * upto >= 99 * n THEN took END) AS p99, max(took) AS longest
FROM (
  SELECT run, took, sum(k) OVER (PARTITION BY run ORDER BY took ROWS BETWEEN UNBOUNDED PRECEDING
    AND CURRENT ROW)
    AS upto, sum(k) OVER (PARTITION BY run) AS n
  FROM (SELECT run, ret - inv - (ret - inv) % 1000 AS took, count(*) AS k FROM sends WHERE outcome = 'ok'
    GROUP BY run, ret - inv - (ret - inv) % 1000)
)
GROUP BY run
"""
_ACKS = f"""
SELECT s.run, b.begun, b.ended, CAST(floor((s.ret - b.begun) * {BINS - 1} / (b.ended - b.begun + 1)) AS
  BIGINT) AS bin,
  count(*) AS n
FROM sends s JOIN (SELECT run, min(inv) AS begun, max(completed) AS ended FROM ops GROUP BY run) b ON b.run
  = s.run
WHERE s.outcome = 'ok' GROUP BY s.run, b.begun, b.ended,
  CAST(floor((s.ret - b.begun) * {BINS - 1} / (b.ended - b.begun + 1)) AS BIGINT)
"""


_QUERIES = {"roles": _ROLES, "faults": _FAULTS, "promotions": _PROMOTIONS, "latency": _LATENCY, "acks": _ACKS}


def take_figures(engine: Engine) -> dict[str, Figures]:
    """run -> its figures."""
    found: dict[str, Figures] = defaultdict(Figures)
    answers = {answer.name: answer.rows for answer in engine.all_rows(_QUERIES)}
    for row in answers["roles"]:
        found[str(row["run"])].roles.append(row)
    for row in answers["faults"]:
        found[str(row["run"])].faults.append(row)
    for row in answers["promotions"]:
        found[str(row["run"])].promotions.append(row)
    for row in answers["latency"]:
        found[str(row["run"])].latency = row
    for row in answers["acks"]:
        figures = found[str(row["run"])]
        figures.begin, figures.end = int(row["begun"] or 0), int(row["ended"] or 0)
        figures.acks[int(row["bin"] or 0)] += int(row["n"] or 0)
    return dict(found)
