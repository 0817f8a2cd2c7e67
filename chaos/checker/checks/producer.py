"""What an acknowledgement promises: P1-P6."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.checks.sources import HISTORY, PLACED
from chaos.checker.needs import DRAINED, EVIDENT, WHOLE, Need

#: Every index when it was first known to be committed, and how many nodes held it then: for each node a row,
#: at which what is durable there is known.
_HOLDERS = """
SELECT c.*, r.nodes FROM (
  SELECT run, lidx, max(term) AS term, min(src) AS src, min(inc) AS inc, min(seq) AS seq,
    count(*) FILTER (WHERE flushed >= lidx) AS held
  FROM (
    SELECT run, e, lidx, term, at_node, src, inc, seq, ledger, mono,
      max(CASE WHEN e = 'flush' THEN lidx END) OVER (PARTITION BY run, ledger, at_node ORDER BY mono, e DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS flushed
    FROM (
      SELECT n.run, 'flush' AS e, CASE WHEN n.e = 'append' THEN n.last ELSE n.lidx END AS lidx, n.term,
        n.node AS at_node, n.src, n.inc, n.seq, n.ledger, n.mono - r.bound AS mono
      FROM nodes n JOIN runs r ON r.run = n.run
      WHERE n.e IN ('flush', 'install', 'append') AND (n.e = 'install'
        OR (n.e = 'flush' AND r.flush_mode = 'sync') OR (n.e = 'append' AND r.flush_mode <> 'sync'))
      UNION ALL
      SELECT f.run, 'commit', f.lidx, f.term, g.node, f.src, f.inc, f.seq, f.ledger, f.mono FROM (
        SELECT run, ledger, lidx, mono, term, src, inc, seq, row_number() OVER (
          PARTITION BY run, ledger, lidx ORDER BY mono) AS nth
        FROM nodes WHERE e = 'commit') f
      JOIN (SELECT run, substr(src, 6) AS node FROM writers WHERE of_node > 0 GROUP BY run, src) g
        ON g.run = f.run
      WHERE f.nth = 1
    )
  ) WHERE e = 'commit' GROUP BY run, ledger, lidx
) c JOIN runs r ON r.run = c.run
"""

_TERMS = """
SELECT *, max(CASE WHEN k = 1 THEN term END) OVER (PARTITION BY run, ledger ORDER BY t, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM (
  SELECT s.run, coalesce(s.ledger, '') AS ledger, s.op, s.term, s.src, s.inc, s.seq, k.k,
    CASE WHEN k.k = 0 THEN s.inv ELSE s.ret END AS t
  FROM sends s CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k
  WHERE s.outcome = 'ok' AND s.term IS NOT NULL)
"""

_BATCHES = """
SELECT s.run, s.op, s.log, count(*) AS n, count(*) FILTER (WHERE p.pos_min IS NOT NULL) AS there,
  min(p.pos_min) AS first, max(p.pos_min) AS last, min(s.src) AS src, min(s.inc) AS inc, min(s.seq) AS seq
FROM sends s LEFT JOIN placed p ON p.run = s.run AND p.log = s.log AND p.mid = s.mid
WHERE s.f = 'send_batch' GROUP BY s.run, s.op, s.log
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "P1",
        "a server acknowledges only what it knows to be committed",
        "acks commits",
        "{node} acknowledged index {lidx} in term {term} when it knew {committed_before} to be committed",
        Part(
            HISTORY,
            "e = 'ack' AND coalesce(commit_before, -1) < lidx",
            "node, e, term, lidx, commit_before AS committed_before, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "P2",
        "what is committed was durable on a majority before",
        "commits flushes",
        "index {lidx} was committed in term {term} when {held} of {nodes} nodes held it",
        Part(_HOLDERS, "2 * held <= nodes", "lidx, term, held, nodes, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "P3",
        "once a term has acknowledged something, no earlier term acknowledges what begins later",
        "acked_terms",
        "{ledger}: operation {op} was acknowledged in term {term}, after term {before}",
        Part(_TERMS, "k = 0 AND before > term", "ledger, op, term, before, src, inc, seq"),
        needs=(*EVIDENT, Need.OPERATIONS, Need.CLOCKS),
    ),
    hard(
        "P4",
        "what an acknowledgement says is what stands in the files",
        "acked dump",
        "message {mid}: the answer said index {lidx}, position {pos}; no file says so",
        Part(
            "doubts", "pos IS NOT NULL AND there > 0 AND same = 0", "mid, lidx, pos, src, inc, seq", few=True
        ),
        needs=(*EVIDENT, Need.IDS),
    ),
    hard(
        "P5",
        "what certainly failed is in no file",
        "dump",
        "{log} at {pos}: message {mid}, whose send had failed",
        Part(PLACED, "fails > 0 AND oks = 0 AND dumps > 0", "log, mid, pos_min AS pos"),
        needs=(*EVIDENT, Need.OPERATIONS, Need.IDS),
    ),
    hard(
        "P6",
        "a batch is there as a whole, in one piece, or not at all",
        "batches",
        "batch of operation {op}: {there} of {n} messages, from {first} to {last}",
        Part(
            _BATCHES,
            "there > 0 AND (there < n OR last - first + 1 <> n)",
            "op, log, n, there, first, last, src, inc, seq",
        ),
        needs=DRAINED,
    ),
)
