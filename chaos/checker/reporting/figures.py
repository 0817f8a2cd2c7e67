"""Measurements of a run that affect no verdict: A1-A4, and the data of the charts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from chaos.checker.engine import Cell, Engine, Row
from chaos.checker.readers.history import UNTIMED

#: Number of equal intervals of a run in which events are counted for the charts.
BINS = 200
#: Latency buckets per decade, from 1 us.
STEPS_PER_DECADE = 10
OUTCOMES = ("ok", "fail", "info")


@dataclass(slots=True)
class Measurements:
    """Measurements of one run. Times are in ns, by the clock of the run. An interval is one of `BINS` equal
    parts between `begin` and `end`."""

    begin: int = 0
    end: int = 0
    #: A1: one row per fault: fault, f, targets, begun, ended, waited (until a send that started later was
    #: acknowledged), silence (the longest time without an acknowledgment that overlaps the fault).
    faults: list[Row] = field(default_factory=list)
    #: A2: one row per promotion: node, term, waited (from elected to master_ready).
    promotions: list[Row] = field(default_factory=list)
    #: A3: latency of acknowledged sends: n, p50, p95, p99, longest.
    latency: Row = field(default_factory=dict)
    #: Redelivered messages: group, cause, n.
    repeated: list[Row] = field(default_factory=list)
    #: Changes of role: node, e, term, mono.
    roles: list[Row] = field(default_factory=list)
    #: Completed sends by outcome: number per interval.
    ended: dict[str, list[int]] = field(default_factory=lambda: {one: [0] * BINS for one in OUTCOMES})
    #: Their latencies: [outcome, interval, bucket, number].
    spread: list[tuple[str, int, int, int]] = field(default_factory=list)
    #: Node -> interval -> highest commit index that it reported by the end of the interval.
    committed: dict[str, dict[int, int]] = field(default_factory=dict)


_ROLES = """
SELECT run, node, e, term, mono FROM milestones
WHERE e IN ('leader', 'follower', 'candidate', 'master_ready', 'demoted', 'recover') ORDER BY run, mono
"""
_FAULTS = """
SELECT f.run, f.fault, f.f, f.targets, f.begun, f.ended, min(CASE WHEN s.inv >= f.begun THEN s.ret END) -
  f.begun
  AS waited,
  max(CASE WHEN s.ret >= f.begun AND s.before <= f.ended THEN s.ret - s.before END) AS silence
FROM (
  SELECT run, fault, max(f) AS f, max(targets) AS targets, min(mono) AS begun, max(mono) AS ended FROM fault
  GROUP BY run, fault) f
LEFT JOIN (SELECT run, inv, ret, lag(ret) OVER (PARTITION BY run ORDER BY ret) AS before FROM sends
  WHERE ret IS NOT NULL) s ON s.run = f.run
GROUP BY f.run, f.fault, f.f, f.targets, f.begun, f.ended ORDER BY f.run, f.begun
"""
_PROMOTIONS = """
SELECT a.run, a.node, a.term, min(b.mono) - min(a.mono) AS waited FROM milestones a
JOIN milestones b ON b.run = a.run AND b.node = a.node AND b.term = a.term AND b.e = 'master_ready'
WHERE a.e = 'elected' GROUP BY a.run, a.node, a.term ORDER BY a.run, a.term
"""
#: Rounded to microseconds, which bounds the number of different latencies.
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
#: Causes of redeliveries: events since the previous delivery to the group.
_REPEATED = """
SELECT run, grp, cause, count(*) AS n FROM (
  SELECT p.run, p.grp, CASE WHEN p.pos <> p.pos_before THEN 'it is stored twice: its sender had tried again'
      WHEN p.attempt > 0 AND p.received THEN 'it had not been acknowledged, or was given back'
      WHEN p.attempt > 0 THEN 'its consumer had asked for it again'
      WHEN p.consumer <> p.consumer_before AND max(m.mono) IS NOT NULL THEN 'its consumer had left or crashed'
      WHEN p.consumer <> p.consumer_before OR p.epoch <> p.epoch_before THEN 'the queue had been assigned
        anew'
      WHEN max(l.mono) IS NOT NULL THEN 'the leader had changed'
      ELSE 'nothing in the trace explains it' END AS cause
  FROM (
    SELECT run, grp, log, mid, op, i, mono, pos, attempt, received, consumer, epoch,
      lag(mono) OVER w AS mono_before, lag(pos) OVER w AS pos_before, lag(consumer) OVER w AS
        consumer_before, lag(epoch) OVER w AS epoch_before
    FROM dlv WHERE grp IS NOT NULL WINDOW w AS (PARTITION BY run, grp, log, mid ORDER BY mono, seq)
  ) p
  LEFT JOIN (SELECT run, mono FROM milestones WHERE e = 'leader') l
    ON l.run = p.run AND l.mono >= p.mono_before AND l.mono <= p.mono
  LEFT JOIN (SELECT run, grp, consumer, mono FROM member WHERE e IN ('leave', 'crash')) m
    ON m.run = p.run AND m.grp = p.grp AND m.consumer = p.consumer_before AND m.mono <= p.mono
  WHERE p.mono_before IS NOT NULL
  GROUP BY p.run, p.grp, p.log, p.mid, p.op, p.i, p.mono, p.pos, p.pos_before, p.attempt, p.received,
    p.consumer, p.consumer_before, p.epoch, p.epoch_before
) GROUP BY run, grp, cause ORDER BY run, grp, cause
"""
#: Histories of other systems whose times state only an order.
_UNTIMED = f"""
SELECT run FROM events WHERE ev = 'meta' AND e = 'run_begin' AND config = '{UNTIMED}' GROUP BY run
"""
_SPANS = "SELECT run, min(inv) AS begun, max(completed) AS ended FROM ops GROUP BY run"
#: The interval of the run that contains a time.
_PART = f"CAST(floor((%s - b.begun) * {BINS} / (b.ended - b.begun + 1)) AS BIGINT)"
_STEP = f"CAST(floor({STEPS_PER_DECADE} * log10(greatest(s.completed - s.inv, 1000) / 1000)) AS BIGINT)"
_SPREAD = f"""
SELECT run, outcome, part, step, count(*) AS n FROM (
  SELECT s.run, s.said AS outcome, {_PART % "s.completed"} AS part, {_STEP} AS step
  FROM sends s JOIN ({_SPANS}) b ON b.run = s.run WHERE s.completed IS NOT NULL
) GROUP BY run, outcome, part, step
"""
_COMMITTED = f"""
SELECT run, node, part, max(lidx) AS lidx FROM (
  SELECT n.run, n.node, n.lidx, {_PART % "n.mono"} AS part FROM nodes n JOIN ({_SPANS}) b ON b.run = n.run
  WHERE n.e = 'commit'
) WHERE part >= 0 AND part < {BINS} GROUP BY run, node, part ORDER BY run, node, part
"""


_QUERIES = {
    "spans": _SPANS,
    "untimed": _UNTIMED,
    "roles": _ROLES,
    "faults": _FAULTS,
    "promotions": _PROMOTIONS,
    "repeated": _REPEATED,
    "latency": _LATENCY,
    "spread": _SPREAD,
    "committed": _COMMITTED,
}


def measure_runs(engine: Engine) -> dict[str, Measurements]:
    """Return the measurements of each run."""
    by_run: dict[str, Measurements] = defaultdict(Measurements)
    answers = {answer.name: answer.rows for answer in engine.all_rows(_QUERIES)}
    for row in answers["spans"]:
        figures = by_run[str(row["run"])]
        figures.begin, figures.end = _int(row["begun"]), _int(row["ended"])
    for row in answers["roles"]:
        by_run[str(row["run"])].roles.append(row)
    for row in answers["faults"]:
        by_run[str(row["run"])].faults.append(row)
    for row in answers["promotions"]:
        by_run[str(row["run"])].promotions.append(row)
    for row in answers["repeated"]:
        by_run[str(row["run"])].repeated.append(row)
    for row in answers["latency"]:
        by_run[str(row["run"])].latency = row
    for row in answers["spread"]:
        figures, outcome, part = by_run[str(row["run"])], str(row["outcome"]), _int(row["part"])
        figures.spread.append((outcome, part, _int(row["step"]), _int(row["n"])))
        figures.ended[outcome][part] += _int(row["n"])
    for row in answers["committed"]:
        by_part = by_run[str(row["run"])].committed.setdefault(str(row["node"]), {})
        by_part[_int(row["part"])] = _int(row["lidx"])
    for row in answers["untimed"]:
        by_run[str(row["run"])] = Measurements()
    return dict(by_run)


def _int(cell: Cell) -> int:
    return int(cell or 0)
