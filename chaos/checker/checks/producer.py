"""Guarantees of an acknowledgment, and of retention: P1-P7, P9, P10."""

from __future__ import annotations

from chaos.checker.agreement import PARTS_OF_OPERATIONS
from chaos.checker.checks.cluster_time import least_ns
from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.checks.sources import HISTORY, PLACED
from chaos.checker.configurations import LACKS_A_MAJORITY, holders
from chaos.checker.needs import DRAINED, EVIDENT, NODES, WHOLE, Need

#: Nodes that lost their logs, and the period in which they do not count toward a majority (rule 11): until
#: a leader counts entries of its own term, if that term was unknown to all nodes when the node returned.
_UNCOUNTED_NODES = """
SELECT run, node, since,
  least(until, lead(since) OVER (PARTITION BY run, node ORDER BY since)) AS until
FROM (
SELECT w.run, w.node, w.mono AS since, min(l.mono) AS until FROM (
  SELECT w.run, w.node, w.mono, max(o.term) AS heard FROM milestones w JOIN runs r ON r.run = w.run
  JOIN milestones o ON o.run = w.run AND o.node <> w.node AND o.e IN ('term_vote', 'recover')
    AND o.mono + r.bound < w.mono
  WHERE w.e = 'recover' AND w.wiped GROUP BY w.run, w.node, w.mono) w
LEFT JOIN milestones l ON l.run = w.run AND l.e = 'leader' AND l.term > w.heard AND l.mono > w.mono
GROUP BY w.run, w.node, w.mono)
"""

#: Indexes that completed syncs cover on a node that counts toward majorities. A node that lost its log has
#: none for a time.
_COUNTED_SYNCS = f"""
SELECT s.run, s.ledger, s.node, s.mono, s.mono - r.bound AS t, s.seq AS n, s.src, r.nodes, r.bound,
  CASE WHEN x.since IS NULL THEN s.lidx ELSE -1 END AS lidx
FROM disk s JOIN runs r ON r.run = s.run
LEFT JOIN ({_UNCOUNTED_NODES}) x ON x.run = s.run AND x.node = s.node AND x.since + r.bound < s.mono
  AND coalesce(s.mono < x.until - r.bound, true)
WHERE s.e = 'synced'
"""

#: Each change of the index that completed syncs cover on a majority of the nodes, if these do not change.
#: `durable`: that index; `n`: the number of the change.
_MAJORITY = f"""
SELECT run, ledger, mono - bound AS t, lidx AS durable,
  row_number() OVER (PARTITION BY run, ledger ORDER BY mono, src, seq) AS n
FROM (
  SELECT *, row_number() OVER (PARTITION BY run, ledger, mono, src, seq ORDER BY lidx DESC) AS nth FROM (
    SELECT s.run, s.ledger, s.mono, s.src, s.n AS seq, s.nodes, s.bound,
      coalesce(max_by(CASE WHEN s.node = g.node THEN s.lidx END, CASE WHEN s.node = g.node THEN s.n END)
        OVER (PARTITION BY s.run, s.ledger, g.node ORDER BY s.mono, s.src, s.n
          ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW), -1) AS lidx
    FROM ({_COUNTED_SYNCS}) s
    JOIN (SELECT run, node FROM disk WHERE e = 'watched' GROUP BY run, node) g ON g.run = s.run
  )
) WHERE 2 * nth > nodes AND 2 * (nth - 1) <= nodes
"""

#: The first time that a client or node reports an index as stored or committed, with the index up to which a
#: majority was durable at that time. Where the voters change, the commits of leaders are checked instead, and
#: P8 compares the answers of clients with these.
_CLAIMS = f"""
SELECT c.*, r.flush_mode FROM (
  SELECT *, coalesce(max_by(durable, n) OVER (PARTITION BY run, ledger ORDER BY t, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS durable_before
  FROM (
    SELECT run, ledger, t, 0 AS k, n, durable, CAST(NULL AS BIGINT) AS lidx, '' AS what, '' AS src,
      CAST(NULL AS BIGINT) AS inc, CAST(NULL AS BIGINT) AS seq FROM ({_MAJORITY})
    UNION ALL
    SELECT run, coalesce(ledger, ''), ret, 1, NULL, NULL, lidx, 'acknowledged', src, inc, seq FROM sends
    WHERE said = 'ok' AND lidx IS NOT NULL AND ret IS NOT NULL
    UNION ALL
    SELECT run, ledger, min(mono), 1, NULL, NULL, lidx, 'committed', min_by(src, mono), min_by(inc, mono),
      min_by(seq, mono) FROM nodes WHERE e = 'commit' GROUP BY run, ledger, lidx
  )
) c JOIN runs r ON r.run = c.run ANTI JOIN regrouped g ON g.run = c.run WHERE c.k = 1
"""

#: For weaker acknowledgments: the first time that an index is known to be committed, and the number of nodes
#: that reported by then that they had written it.
_WRITERS = """
SELECT c.*, r.nodes FROM (
  SELECT run, lidx, max(term) AS term, min(src) AS src, min(inc) AS inc, min(seq) AS seq,
    count(*) FILTER (WHERE written >= lidx) AS held
  FROM (
    SELECT run, e, lidx, term, at_node, src, inc, seq, ledger, mono,
      max(CASE WHEN e = 'append' THEN lidx END) OVER (PARTITION BY run, ledger, at_node ORDER BY mono, e
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS written
    FROM (
      SELECT n.run, 'append' AS e, CASE WHEN n.e = 'append' THEN n.last ELSE n.lidx END AS lidx, n.term,
        n.node AS at_node, n.src, n.inc, n.seq, n.ledger, n.mono - r.bound AS mono
      FROM nodes n JOIN runs r ON r.run = n.run WHERE n.e IN ('install', 'append')
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
) c JOIN runs r ON r.run = c.run ANTI JOIN regrouped g ON g.run = c.run
"""

_DURABLE_ON = f"SELECT c.*, r.flush_mode FROM ({holders(_COUNTED_SYNCS)}) c JOIN runs r ON r.run = c.run"
_WRITTEN = """
SELECT n.run, n.ledger, n.node, n.mono - r.bound AS t, n.mono AS n,
  CASE WHEN n.e = 'append' THEN n.last ELSE n.lidx END AS lidx
FROM nodes n JOIN runs r ON r.run = n.run WHERE n.e IN ('install', 'append')
"""
_WRITTEN_ON = holders(_WRITTEN)
_HALVES = (
    "CAST(held AS STRING) || ' of ' || CAST(voters AS STRING) || ' voters' || CASE WHEN outgoing > 0 THEN "
    "' and ' || CAST(held_outgoing AS STRING) || ' of ' || CAST(outgoing AS STRING) || ' outgoing ones' "
    "ELSE '' END"
)

_TERMS = """
SELECT *, max(CASE WHEN k = 1 THEN term END) OVER (PARTITION BY run, ledger ORDER BY t, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM (
  SELECT s.run, coalesce(s.ledger, '') AS ledger, s.op, s.term, s.src, s.inc, s.seq, k.k,
    CASE WHEN k.k = 0 THEN s.inv ELSE s.ret + r.bound END AS t
  FROM sends s JOIN runs r ON r.run = s.run CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k
  WHERE s.outcome = 'ok' AND s.term IS NOT NULL)
"""

_BATCHES = """
SELECT c.*, k.gone_before, d.mono + r.bound AS read_by FROM (
SELECT s.run, s.op, s.log, count(*) AS n, count(*) FILTER (WHERE p.pos_min IS NOT NULL) AS there,
  min(p.pos_min) AS first, max(p.pos_min) AS last, max(e.pos) AS kept, min(s.src) AS src,
  min(s.inc) AS inc, min(s.seq) AS seq
FROM sends s LEFT JOIN placed p ON p.run = s.run AND p.log = s.log AND p.mid = s.mid
LEFT JOIN kept_logs e ON e.run = s.run AND e.log = s.log
WHERE s.f = 'send_batch' GROUP BY s.run, s.op, s.log
) c JOIN runs r ON r.run = c.run
LEFT JOIN known k ON k.run = c.run AND k.log = c.log AND k.pos = c.first AND k.gone_before IS NOT NULL
LEFT JOIN (SELECT d.run, d.log, d.pos, min(d.mono) AS mono FROM dlv d
  SEMI JOIN kept_logs e ON e.run = d.run AND e.log = d.log WHERE coalesce(d.filtered, '*') = '*'
  GROUP BY d.run, d.log, d.pos) d ON d.run = c.run AND d.log = c.log AND d.pos = c.first
"""

#: Purges, with the time at which the send of the youngest removed message started. A purge may follow a purge
#: of another node: a node that was disconnected or lost its log starts from the same base.
_REMOVALS = f"""
SELECT *, max(CASE WHEN may_go THEN lidx END) OVER (PARTITION BY run, ledger ORDER BY mono, lidx
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS gone_before
FROM (
  SELECT x.*, r.keep_ms, r.keep_bytes, CAST((x.mono - x.youngest) / 1000000 AS BIGINT) AS age_ms,
    coalesce(x.size >= r.keep_bytes, false)
      OR coalesce(x.mono - x.youngest + r.bound >= {least_ns("r.keep_ms")},
        x.youngest IS NULL AND r.keep_ms > 0)
      AS may_go
  FROM (
    SELECT *, max(sent) OVER (PARTITION BY run, ledger ORDER BY lidx, k
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS youngest
    FROM (
      SELECT run, coalesce(ledger, '') AS ledger, lidx, 0 AS k, inv AS sent, CAST(NULL AS STRING) AS node,
        CAST(NULL AS BIGINT) AS size, CAST(NULL AS BIGINT) AS mono, CAST(NULL AS STRING) AS src,
        CAST(NULL AS BIGINT) AS inc, CAST(NULL AS BIGINT) AS seq
      FROM sends WHERE outcome = 'ok' AND lidx IS NOT NULL
      UNION ALL
      SELECT run, ledger, lidx, 1, NULL, node, size, mono, src, inc, seq FROM removed
    )
  ) x JOIN runs r ON r.run = x.run WHERE x.k = 1
)
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "P1",
        "a server acknowledges only entries that it knows to be committed",
        "acks commits",
        "{node} acknowledged index {lidx} in term {term} when its commit index was {committed_before}",
        Part(
            HISTORY,
            "e = 'ack' AND coalesce(commit_before, -1) < lidx",
            "node, e, term, lidx, commit_before AS committed_before, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "P2",
        "acknowledged and committed entries are synced on a majority first",
        "oks watched sync",
        "index {lidx} was {what} when completed syncs covered {durable}",
        Part(
            _CLAIMS,
            "flush_mode = 'SYNC_FLUSH' AND durable_before < lidx",
            "lidx, what, 'a majority up to ' || CAST(durable_before AS STRING) AS durable, durable_before, "
            "src, inc, seq",
        ),
        Part(
            _DURABLE_ON,
            f"flush_mode = 'SYNC_FLUSH' AND ({LACKS_A_MAJORITY})",
            f"lidx, 'committed by ' || node AS what, 'it on ' || {_HALVES} AS durable, src, inc, seq",
        ),
        needs=(*NODES, Need.CLOCKS, Need.SYNCS),
    ),
    hard(
        "P3",
        "after a term has acknowledged a send, no earlier term acknowledges one that starts later",
        "acked_terms",
        "{ledger}: operation {op} was acknowledged in term {term}, after term {before}",
        Part(_TERMS, "k = 0 AND before > term", "ledger, op, term, before, src, inc, seq"),
        needs=(*EVIDENT, Need.OPERATIONS, Need.CLOCKS),
    ),
    hard(
        "P4",
        "the position in an acknowledgment matches the files",
        "acked dump",
        "message {mid}: acknowledged at index {lidx}, position {pos}; no file has it there",
        Part(
            "doubts", "pos IS NOT NULL AND there > 0 AND same = 0", "mid, lidx, pos, src, inc, seq", few=True
        ),
        needs=(*EVIDENT, Need.IDS),
        clear_needs=(*WHOLE, Need.DUMPS),
    ),
    hard(
        "P5",
        "a message whose send definitely failed is in no file",
        "dump",
        "{log} at {pos}: message {mid}, whose send failed",
        Part(PLACED, "fails > 0 AND oks = 0 AND dumps > 0", "log, mid, pos_min AS pos"),
        needs=(*EVIDENT, Need.OPERATIONS, Need.IDS),
        clear_needs=(*WHOLE, Need.DUMPS),
    ),
    hard(
        "P6",
        "a batch is stored completely and contiguously, or not at all",
        "batches",
        "batch of operation {op}: {there} of {n} messages, from {first} to {last}",
        Part(
            _BATCHES,
            # Messages before the first remaining one may have been removed, unless a consumer without a
            # filter had received that one before the removal.
            "there > 0 AND (there < n OR last - first + 1 <> n) "
            "AND (coalesce(first > kept, true) OR read_by < gone_before)",
            "op, log, n, there, first, last, src, inc, seq",
        ),
        needs=DRAINED,
    ),
    hard(
        "P7",
        "with ASYNC_FLUSH, committed entries were written on a majority first",
        "commits flushes async",
        "index {lidx} was committed in term {term} when {written} had written it",
        Part(
            _WRITERS,
            "2 * held <= nodes",
            "lidx, term, CAST(held AS STRING) || ' of ' || CAST(nodes AS STRING) || ' nodes' AS written, "
            "held, nodes, src, inc, seq",
        ),
        Part(_WRITTEN_ON, LACKS_A_MAJORITY, f"lidx, term, {_HALVES} AS written, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "P10",
        "retention removes no entry that is younger or closer to the end than configured",
        "removals oks",
        "{node} removed all entries up to {lidx}, the youngest {age_ms} ms old, with {size} bytes "
        "behind it; configured to keep: {keep_ms} ms or {keep_bytes} bytes",
        Part(
            _REMOVALS,
            "NOT may_go AND lidx > coalesce(gone_before, -1)",
            "node, lidx, size, age_ms, coalesce(CAST(keep_ms AS STRING), 'all') AS keep_ms, "
            "coalesce(CAST(keep_bytes AS STRING), 'all') AS keep_bytes, src, inc, seq",
        ),
        needs=(*NODES, Need.CLOCKS),
        clear_needs=(*NODES, Need.SYNCS),
    ),
    hard(
        "P9",
        "a response concerns the log of its request",
        "ops",
        "operation {op} ({f}) was answered {what}",
        Part("ops", "elsewhere", "op, f, 'for another log than requested' AS what, src, inc, seq"),
        Part(
            PARTS_OF_OPERATIONS,
            "ev = 'dlv' AND of_others",
            "op, f, mid, 'with message ' || CAST(mid AS STRING) || ', which belongs to another log' "
            "AS what, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.OPERATIONS),
    ),
)
