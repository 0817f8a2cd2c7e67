"""What an acknowledgement promises: P1-P6."""

from __future__ import annotations

from chaos.checker.registry import DRAINED, WHOLE, Check, hard

CHECKS: tuple[Check, ...] = (
    hard(
        "P1",
        "a server acknowledges only what it knows to be committed",
        "acks commits",
        "{node} acknowledged index {lidx} in term {term} when it knew {committed_before} to be committed",
        """SELECT * FROM (
          SELECT run, node, e, term, lidx, src, inc, seq, max(CASE WHEN e = 'commit' THEN lidx END) OVER (
            PARTITION BY run, node, inc, ledger ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
            AS committed_before
          FROM nodes WHERE e IN ('commit', 'ack')
        ) WHERE e = 'ack' AND coalesce(committed_before, -1) < lidx""",
        needs=WHOLE,
    ),
    hard(
        "P2",
        "what is committed was durable on a majority before",
        "commits flushes",
        "index {lidx} was committed in term {term} when {held} of {nodes} nodes held it",
        """SELECT c.run, c.lidx, c.term, c.held, r.nodes, c.src, c.inc, c.seq FROM (
          SELECT run, lidx, max(term) AS term, min(src) AS src, min(inc) AS inc, min(seq) AS seq,
            count(*) FILTER (WHERE flushed >= lidx) AS held
          FROM (
            SELECT run, e, lidx, term, at_node, src, inc, seq, ledger, mono,
              max(CASE WHEN e = 'flush' THEN lidx END) OVER (PARTITION BY run, ledger, at_node ORDER BY
                mono, e DESC
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS flushed
            FROM (
              SELECT n.run, CASE WHEN n.e = 'commit' THEN 'commit' ELSE 'flush' END AS e,
                CASE WHEN n.e = 'append' THEN n.last ELSE n.lidx END AS lidx, n.term, n.node AS at_node,
                  n.src,
                n.inc, n.seq, n.ledger, n.mono - r.bound AS mono
              FROM nodes n JOIN runs r ON r.run = n.run
              WHERE (n.e = 'flush' AND r.flush_mode = 'sync') OR n.e = 'install'
                OR (n.e = 'append' AND r.flush_mode <> 'sync')
              UNION ALL
              SELECT f.run, 'commit', f.lidx, f.term, g.node, f.src, f.inc, f.seq, f.ledger, f.mono FROM (
                SELECT run, ledger, lidx, min(mono) AS mono, min_by(term, mono) AS term, min_by(src, mono)
                  AS src,
                  min_by(inc, mono) AS inc, min_by(seq, mono) AS seq
                FROM nodes WHERE e = 'commit' GROUP BY run, ledger, lidx) f
              JOIN (SELECT DISTINCT run, node FROM nodes) g ON g.run = f.run
            )
          ) WHERE e = 'commit' GROUP BY run, ledger, lidx
        ) c JOIN runs r ON r.run = c.run WHERE 2 * c.held <= r.nodes""",
        needs=WHOLE,
    ),
    hard(
        "P3",
        "once a term has acknowledged something, no earlier term acknowledges what begins later",
        "acked_terms",
        "{ledger}: operation {op} was acknowledged in term {term}, after term {before}",
        """SELECT run, ledger, op, term, before, src, inc, seq FROM (
          SELECT *, max(CASE WHEN k = 1 THEN term END) OVER (PARTITION BY run, ledger ORDER BY t, k
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM (
            SELECT s.run, coalesce(s.ledger, '') AS ledger, s.op, s.term, s.src, s.inc, s.seq, k.k,
              CASE WHEN k.k = 0 THEN s.inv ELSE s.ret END AS t
            FROM sends s CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k
            WHERE s.outcome = 'ok' AND s.term IS NOT NULL)
        ) WHERE k = 0 AND before > term""",
    ),
    hard(
        "P4",
        "what an acknowledgement says is what stands in the files",
        "acked dump",
        "message {mid}: the answer said index {lidx}, position {pos}; no file says so",
        """SELECT s.run, s.mid, s.lidx, s.pos, s.src, s.inc, s.seq FROM (
          SELECT s.run, s.op, s.mid, s.lidx, s.pos, s.src, s.inc, s.seq,
            count(*) FILTER (WHERE d.lidx = s.lidx AND d.pos = s.pos) AS same
          FROM sends s JOIN dump d ON d.run = s.run AND d.mid = s.mid AND d.log = s.log
          WHERE s.outcome = 'ok' AND s.lidx IS NOT NULL AND s.pos IS NOT NULL
          GROUP BY s.run, s.op, s.mid, s.lidx, s.pos, s.src, s.inc, s.seq) s
        WHERE s.same = 0""",
    ),
    hard(
        "P5",
        "what certainly failed is in no file",
        "dump",
        "{log} at {pos}: message {mid}, whose send had failed",
        """SELECT run, log, mid, pos_min AS pos FROM placed WHERE fails > 0 AND oks = 0 AND dumps > 0""",
    ),
    hard(
        "P6",
        "a batch is there as a whole, in one piece, or not at all",
        "batches",
        "batch of operation {op}: {there} of {n} messages, from {first} to {last}",
        """SELECT * FROM (
          SELECT s.run, s.op, s.log, count(*) AS n, count(*) FILTER (WHERE p.pos_min IS NOT NULL) AS there,
            min(p.pos_min) AS first, max(p.pos_min) AS last, min(s.src) AS src, min(s.inc) AS inc,
              min(s.seq) AS seq
          FROM sends s LEFT JOIN placed p ON p.run = s.run AND p.log = s.log AND p.mid = s.mid
          WHERE s.f = 'send_batch' GROUP BY s.run, s.op, s.log
        ) WHERE there > 0 AND (there < n OR last - first + 1 <> n)""",
        needs=DRAINED,
    ),
)
