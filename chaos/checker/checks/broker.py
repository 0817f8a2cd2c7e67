"""The broker's store: B1-B6."""

from __future__ import annotations

from chaos.checker.registry import DRAINED, WHOLE, Check, hard

CHECKS: tuple[Check, ...] = (
    hard(
        "B1",
        "ConsumeQueues of all nodes agree with each other and with the log",
        "cq",
        "{log} at {qoff}: {what}",
        """SELECT run, log, qoff, 'units of different nodes differ' AS what FROM cq
        GROUP BY run, log, qoff
        HAVING min(lidx) < max(lidx) OR min(size) < max(size) OR min(tag_hash) < max(tag_hash)
        UNION ALL
        SELECT c.run, c.log, c.qoff, c.node || ' points at index ' || CAST(c.lidx AS STRING)
          || ', the message is at index ' || CAST(d.lidx AS STRING)
        FROM cq c JOIN dump d ON d.run = c.run AND d.node = c.node AND d.log = c.log AND d.qoff = c.qoff
        WHERE d.sure AND d.lidx <> c.lidx""",
    ),
    hard(
        "B2",
        "the least offset of a queue never falls, and rises only when something is purged",
        "min_offs",
        "{log}: operation {op} was answered {min_off} after {before}",
        """SELECT run, log, op, min_off, before, src, inc, seq FROM (
          SELECT *, max(CASE WHEN k = 1 THEN min_off END) OVER (PARTITION BY run, log ORDER BY t, k
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM (
            SELECT r.*, k.k, CASE WHEN k.k = 0 THEN inv ELSE ret END AS t FROM reads r
            CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k WHERE r.f = 'min_off' AND r.outcome = 'ok')
        ) WHERE k = 0 AND min_off < before""",
    ),
    hard(
        "B3",
        "a look-up by key gives exactly the messages with this key",
        "lookups",
        "operation {op} for key {key}: message {mid} {what}",
        """SELECT d.run, d.op, o.key, d.mid, 'has another key' AS what, d.src, d.inc, d.seq FROM looked_up d
        JOIN ops o ON o.run = d.run AND o.op = d.op
        JOIN sends s ON s.run = d.run AND s.mid = d.mid WHERE s.key IS NULL OR s.key <> o.key
        UNION ALL
        SELECT o.run, o.op, o.key, s.mid, 'is missing', o.src, o.inc, o.seq FROM ops o
        JOIN sends s ON s.run = o.run AND s.key = o.key AND s.topic = o.topic AND s.outcome = 'ok' AND s.ret
          < o.inv
        ANTI JOIN looked_up d ON d.run = o.run AND d.op = o.op AND d.mid = s.mid
        WHERE o.f = 'lookup' AND o.outcome = 'ok' AND o.end_claim""",
        needs=WHOLE,
    ),
    hard(
        "B4",
        "of a transaction only what was committed is delivered, and all of that",
        "transactions",
        "message {mid} {what}; the line is that of operation {op}",
        """SELECT d.run, d.mid, d.op, CASE WHEN t.rolled > 0 THEN 'was delivered, and had been rolled back'
            ELSE 'was delivered, and nobody had committed it' END AS what, d.src, d.inc, d.seq FROM dlv d
        JOIN (SELECT run, mid, sum(CASE WHEN f = 'txn_commit' AND outcome <> 'fail' THEN 1 ELSE 0 END) AS
          kept,
            sum(CASE WHEN f = 'txn_rollback' AND outcome = 'ok' THEN 1 ELSE 0 END) AS rolled
          FROM ops WHERE f IN ('txn_begin', 'txn_commit', 'txn_rollback') GROUP BY run, mid) t
          ON t.run = d.run AND t.mid = d.mid WHERE t.kept = 0
        UNION ALL
        SELECT o.run, o.mid, o.op, 'was committed, and never delivered', o.src, o.inc, o.seq FROM ops o
        JOIN runs r ON r.run = o.run AND r.drained IS NOT NULL
        ANTI JOIN dlv d ON d.run = o.run AND d.mid = o.mid WHERE o.f = 'txn_commit' AND o.outcome = 'ok'""",
        needs=DRAINED,
    ),
    hard(
        "B5",
        "a delayed message is not delivered before its time",
        "delayed reads",
        "message {mid}, to be delayed by {delay_ms} ms, was delivered {waited} ns after its send began",
        # Cluster time may run faster than ours by a thousandth.
        """SELECT * FROM (
          SELECT o.run, o.mid, o.delay_ms, min(d.mono) - o.inv AS waited, max(r.bound) AS bound,
            min(o.src) AS src, min(o.inc) AS inc, min(o.seq) AS seq
          FROM ops o JOIN dlv d ON d.run = o.run AND d.mid = o.mid JOIN runs r ON r.run = o.run
          WHERE o.f = 'send' AND o.delay_ms > 0 GROUP BY o.run, o.mid, o.delay_ms, o.inv
        ) WHERE waited + bound < delay_ms * 999000""",
    ),
    hard(
        "B6",
        "only what was purged is gone from the beginning of the files",
        "dump",
        "{node}: its files begin at index {low}, purged was up to {purged}",
        """SELECT * FROM (
          SELECT d.run, d.node, d.low, coalesce(max(p.lidx), -1) AS purged FROM (
            SELECT run, node, min(lidx) AS low FROM dump GROUP BY run, node) d
          LEFT JOIN nodes p ON p.run = d.run AND p.e IN ('purge', 'install')
          GROUP BY d.run, d.node, d.low
        ) WHERE low > purged + 1""",
        needs=WHOLE,
    ),
)
