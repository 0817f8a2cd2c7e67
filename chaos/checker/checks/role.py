"""Role changes of the broker: S1-S9 and S14."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, warning
from chaos.checker.checks.sources import HISTORY, OFFSETS, STARTED_LATE, STARVED, UNITS
from chaos.checker.needs import EVIDENT, NODE_LINES, NODES, WHOLE, Need

#: Time in which an elected broker becomes master or loses its leadership; ns.
PROMOTION_NS = 10_000_000_000
#: Time after a fault in which the fault may still delay messages to a node; ns.
AFTER_FAULT_NS = 5_000_000_000

#: Time after a broker became master and the faults were healed in which NameServers may still name another
#: master; ns.
ROUTE_NS = 3_000_000_000

_NEVER_MASTER = """
SELECT s.run, s.node, s.term, s.op, s.src, s.inc, s.seq, s.f FROM sends s
JOIN (SELECT run FROM milestones WHERE e = 'master_ready' GROUP BY run) x ON x.run = s.run
ANTI JOIN (SELECT run, node, term FROM milestones WHERE e = 'master_ready') m
  ON m.run = s.run AND m.node = s.node AND m.term = s.term
WHERE s.outcome = 'ok' AND s.term IS NOT NULL AND s.node IS NOT NULL
"""

_MASTERS = """
SELECT run, term, min(node) AS node, max(node) AS node_other, max_by(src, node) AS src,
  max_by(inc, node) AS inc, max_by(seq, node) AS seq
FROM milestones WHERE e = 'master_ready' GROUP BY run, term
"""

#: Masters, each with the longest-standing master among those that were ready earlier.
_REIGNS = """
SELECT *, max(until) OVER w AS until_before, max_by(node, until) OVER w AS node_before FROM (
  SELECT m.run, m.node, m.term, m.mono AS since, m.src, m.inc, m.seq,
    coalesce(min(x.mono), max(z.last_mono)) AS until
  FROM milestones m LEFT JOIN milestones x ON x.run = m.run AND x.node = m.node AND x.inc = m.inc
    AND x.seq > m.seq AND x.e IN ('demoted', 'follower', 'candidate')
  JOIN writers z ON z.run = m.run AND z.src = m.src AND z.inc = m.inc
  WHERE m.e = 'master_ready' GROUP BY m.run, m.node, m.term, m.mono, m.src, m.inc, m.seq)
WINDOW w AS (PARTITION BY run ORDER BY since, node ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

#: Network faults that may affect nodes other than their targets.
_NETWORK_FAULTS = "('halves', 'bridge', 'ring', 'cut', 'cut_one_way', 'delay', 'loss', 'reset', 'throttle')"

#: Overlapping masters. A paused or isolated node continues until it learns of its successor, because brokers
#: hold no lease.
_OVERLAPPING_REIGNS = f"""
SELECT y.* FROM ({_REIGNS}) y ANTI JOIN (
  SELECT b.run, b.f, b.targets, b.mono AS begun, coalesce(max(x.mono), b.mono) AS ended FROM fault b
  LEFT JOIN fault x ON x.run = b.run AND x.fault = b.fault AND x.e = 'end'
  WHERE b.e = 'begin' GROUP BY b.run, b.fault, b.f, b.targets, b.mono) k
ON k.run = y.run AND k.begun <= y.since AND y.since <= k.ended + {AFTER_FAULT_NS}
  AND (k.f IN {_NETWORK_FAULTS} OR instr(',' || k.targets || ',', ',' || y.node_before || ',') > 0)
WHERE y.since < y.until_before AND y.node <> y.node_before
"""

#: Units of ConsumeQueues, each with its predecessor. `removed`: see `STARTED_LATE`.
_UNIT_SEQUENCE = f"""
SELECT c.run, c.node, c.log, c.qoff, c.lidx, lag(c.qoff) OVER w AS before, lag(c.lidx) OVER w AS lidx_before,
  p.node IS NOT NULL AS removed
FROM cq c
LEFT JOIN ({STARTED_LATE}) p ON p.run = c.run AND p.node = c.node
WINDOW w AS (PARTITION BY c.run, c.node, c.log ORDER BY c.lidx, c.qoff)
"""

_PROMOTIONS = """
SELECT l.run, l.node, l.term, l.src, l.inc, l.seq, coalesce(min(x.mono), max(z.last_mono)) - l.mono AS waited
FROM milestones l
LEFT JOIN milestones x ON x.run = l.run AND x.node = l.node AND x.inc = l.inc AND x.seq > l.seq
  AND x.e IN ('master_ready', 'demoted', 'follower', 'candidate')
JOIN writers z ON z.run = l.run AND z.src = l.src AND z.inc = l.inc
WHERE l.e = 'elected' GROUP BY l.run, l.node, l.term, l.src, l.inc, l.seq, l.mono
"""

_ROUTES = """
SELECT run, proc, op, term, src, inc, seq, max(term) OVER (PARTITION BY run, src ORDER BY inv
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM ops WHERE f = 'route' AND outcome = 'ok' AND term IS NOT NULL
"""

#: The last answer of a NameServer after healing, with the newest master if that had been ready for
#: `ROUTE_NS`, not counting times in which a process waited for a processor, and no broker was elected since.
_LAST_ROUTES = f"""
SELECT y.run, y.proc, y.op, y.term, y.ready, y.node, y.src, y.inc, y.seq FROM (
  SELECT q.run, q.proc, q.op, q.term, m.term AS ready, m.node, q.src, q.inc, q.seq, q.inv,
    m.mono + r.bound AS since
  FROM (
    SELECT o.run, o.proc, o.op, o.term, o.inv, o.ret, o.src, o.inc, o.seq,
      row_number() OVER (PARTITION BY o.run ORDER BY o.inv DESC, o.op DESC) AS nth
    FROM ops o JOIN runs r ON r.run = o.run AND o.inv > r.healed + r.bound
    WHERE o.f = 'route' AND o.outcome = 'ok') q
  JOIN (SELECT run, max(term) AS term, max_by(node, term) AS node, max_by(mono, term) AS mono FROM milestones
    WHERE e = 'master_ready' GROUP BY run) m ON m.run = q.run
  JOIN (SELECT run, max(term) AS term FROM milestones WHERE e IN ('leader', 'elected') GROUP BY run) l
    ON l.run = q.run AND l.term <= m.term
  JOIN runs r ON r.run = q.run
  WHERE q.nth = 1
) y
LEFT JOIN ({STARVED}) x ON x.run = y.run AND x.since < y.inv AND x.until > y.since
GROUP BY y.run, y.proc, y.op, y.term, y.ready, y.node, y.src, y.inc, y.seq, y.inv, y.since
HAVING y.inv - y.since - coalesce(
  sum(CASE WHEN x.run IS NOT NULL THEN least(x.until, y.inv) - greatest(x.since, y.since) END), 0
) > {ROUTE_NS}
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "S1",
        "a broker becomes master only after its barrier is committed and dispatched, while it leads",
        "ready",
        "{node} became master of term {term}: barrier {barrier}, committed {committed}, dispatched {reput} "
        "of {target}; its own events show committed {committed_before}, dispatched {reput_before}, {role}",
        Part(
            HISTORY,
            "e = 'master_ready' AND (committed < barrier OR reput < target OR reput < barrier "
            "OR committed_before < barrier OR reput_before < barrier "
            "OR (raft_role <> 'recover' AND (raft_role <> 'leader' OR raft_term <> term)))",
            "node, e, term, barrier, committed, reput, target, committed_before, reput_before, raft_role "
            "AS role, "
            "raft_term AS role_term, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "S2",
        "nothing is accepted or acknowledged in a term before its master is ready",
        "ready acked_terms",
        "{node} served {op} in term {term}, {what}",
        Part(
            _NEVER_MASTER,
            "f IN ('send', 'send_batch')",
            "node, term, 'operation ' || CAST(op AS STRING) AS op, 'in which it was never master' AS what, "
            "src, inc, seq",
        ),
        Part(
            HISTORY,
            "e = 'accept' AND broker_term IS NOT NULL AND coalesce(ready_term, -1) < term",
            "node, term, 'a request' AS op, 'before it was master' AS what, src, inc, seq",
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "S3",
        "a broker accepts and acknowledges nothing after its demotion",
        "demoted",
        "{node} reported an {e} in term {term} after its demotion in term {demoted_term}",
        Part(
            HISTORY,
            "e IN ('ack', 'accept') AND term <= demoted_term",
            "node, e, term, demoted_term, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "S4",
        "each term has at most one master",
        "ready",
        "term {term}: {node} and {node_other}",
        Part(_MASTERS, "node < node_other", "term, node, node_other, src, inc, seq", few=True),
        needs=EVIDENT,
        clear_needs=NODES,
    ),
    warning(
        "S4W",
        "at most one broker is a writable master at a time, unless a fault affects the old master",
        "ready",
        "{node} was ready in term {term} before {node_before} had reported its demotion",
        Part(
            _OVERLAPPING_REIGNS,
            "true",
            "node, term, node_before, src, inc, seq",
            few=True,
        ),
        needs=(*NODES, Need.FAULTS),
    ),
    hard(
        "S5",
        "every stored message has a unit in the ConsumeQueue of the same node",
        "queued",
        "{node}: index {lidx} ({log} at {qoff}) is in no ConsumeQueue",
        Part(
            UNITS,
            "mid IS NOT NULL AND sure AND lidx > purged AND unit_lidx IS NULL",
            "node, lidx, log, qoff",
        ),
        needs=(*NODES, Need.DUMPS),
    ),
    hard(
        "S6",
        "queue offsets continue across masters without reuse or gap",
        "cq",
        "{node} {log}: offset {qoff} at index {lidx} follows offset {before} at index {lidx_before}",
        Part(
            _UNIT_SEQUENCE,
            "qoff <> before + 1 OR (lidx = lidx_before AND NOT (removed AND lidx < 0))",
            "node, log, qoff, lidx, before, lidx_before",
        ),
        Part(
            _UNIT_SEQUENCE,
            "before IS NULL AND qoff > 0 AND NOT removed",
            "node, log, qoff, lidx, -1 AS before, -1 AS lidx_before",
        ),
        # Units of unreadable entries have no entry to compare with.
        needs=(*NODES, Need.DUMPS, Need.SOUND_FILES),
    ),
    warning(
        "S7",
        f"an elected broker becomes master, or stops leading, within {PROMOTION_NS // 1_000_000_000} s",
        "elected",
        "{node}, elected in term {term}, had done neither after {waited} ns",
        Part(_PROMOTIONS, f"waited > {PROMOTION_NS}", "node, term, waited, src, inc, seq", few=True),
        needs=NODES,
    ),
    warning(
        "S8",
        "the routes that a client receives never return to an earlier master",
        "routes",
        "{proc} received the master of term {term} after the master of term {before}",
        Part(_ROUTES, "term < before", "proc, op, term, before, src, inc, seq"),
        needs=WHOLE,
    ),
    hard(
        "S14",
        "at the end, NameServers name the current master",
        "asked_routes ready",
        "{proc} last received {named}, although {node} had long been master of term {ready}",
        Part(
            _LAST_ROUTES,
            "coalesce(term < ready, true)",
            "proc, op, coalesce('the master of term ' || CAST(term AS STRING), 'no master') AS named, node, "
            "ready, src, inc, seq",
            few=True,
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "S9",
        "a committed consumer offset survives a change of master",
        "fetched",
        "{grp} on {log}: operation {op} returned offset {off_answered} after {stored} had been committed",
        Part(
            OFFSETS,
            "k = 0 AND f = 'fetch_off' AND off_answered < stored",
            "grp, log, op, off_answered, stored, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
)
