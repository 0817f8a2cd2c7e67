"""What every log promises: L1-L12."""

from __future__ import annotations

from chaos.checker.registry import DRAINED, WHOLE, Check, hard, warning


def linearizable(stale: bool) -> str:
    """Operations that contradict one that ended before they began.

    Every operation gets an interval [lo, hi] of half-steps: the append at position i is 2i + 1; a read that
      saw i
    is after it; one that saw the end e is before the append at e. The log is linearizable exactly if no
      operation y has
    hi(y) < lo(x) for an x that returned before y began: one sort, one running maximum. Stamps that are equal
    count as concurrent, so what begins at a stamp is sorted before what returns at it.
    """
    reads = f"""
      SELECT r.run, r.log, r.inv, r.ret, r.op, r.src, r.inc, r.seq, r.stale,
        CASE WHEN r.f = 'max_off' THEN 2 * r.max_off
          ELSE greatest(coalesce(2 * (d.top + 1), 0), CASE WHEN r.end_claim THEN 2 * coalesce(r.max_off, 0)
            ELSE 0 END)
        END AS lo,
        CASE WHEN r.f = 'max_off' THEN 2 * r.max_off
          WHEN r.end_claim AND r.max_off IS NOT NULL THEN 2 * r.max_off END AS hi
      FROM reads r LEFT JOIN (SELECT run, log, op, max(pos) AS top FROM dlv GROUP BY run, log, op) d
        ON d.run = r.run AND d.op = r.op AND d.log = r.log
      WHERE r.outcome = 'ok' AND r.f <> 'min_off' AND {"r.stale" if stale else "NOT r.stale"}
    """
    appends = """
      SELECT s.run, s.log, s.inv, s.ret, s.op, s.src, s.inc, s.seq, false AS stale,
        2 * coalesce(s.pos, p.pos_min) + 1 AS lo, 2 * coalesce(s.pos, p.pos_max) + 1 AS hi
      FROM sends s JOIN placed p ON p.run = s.run AND p.log = s.log AND p.mid = s.mid
      WHERE s.outcome <> 'fail' AND coalesce(s.pos, p.pos_min) IS NOT NULL
    """
    begins, ends = ("NOT stale", "stale") if stale else ("true", "true")
    return f"""
    SELECT run, log, op, hi, lo_before, op_before, src, inc, seq FROM (
      SELECT *, max(CASE WHEN k = 1 THEN lo END) OVER w AS lo_before,
        max_by(op, CASE WHEN k = 1 THEN lo END) OVER w AS op_before
      FROM (
        SELECT a.*, k.k, CASE WHEN k.k = 0 THEN inv ELSE ret END AS t FROM ({appends} UNION ALL {reads}) a
        CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k
        WHERE (k.k = 0 AND hi IS NOT NULL AND {begins}) OR (k.k = 1 AND ret IS NOT NULL AND {ends})
      ) WINDOW w AS (PARTITION BY run, log ORDER BY t, k, op ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ) WHERE k = 0 AND lo_before > hi
    """


CHECKS: tuple[Check, ...] = (
    hard(
        "L1",
        "a position of a log holds one message, whoever looks",
        "seen",
        "{log} at {pos}: messages {mid} and {mid_other}, or two contents",
        """SELECT run, log, pos, mid_min AS mid, mid_max AS mid_other FROM known
        WHERE mid_min < mid_max OR digest_min < digest_max""",
    ),
    hard(
        "L2",
        "a message that was sent once stands in its log once",
        "seen",
        "{log}: message {mid} stands at {pos_min} and at {pos_max}",
        """SELECT run, log, mid, pos_min, pos_max FROM placed WHERE pos_min < pos_max AND retries = 0""",
    ),
    warning(
        "L2W",
        "no message was stored twice because its sender tried again",
        "seen",
        "{log}: message {mid} stands at {pos_min} and at {pos_max} after {retries} retries",
        """SELECT run, log, mid, pos_min, pos_max, retries FROM placed
        WHERE pos_min < pos_max AND retries > 0""",
    ),
    hard(
        "L3",
        "positions have no holes",
        "seen",
        "{log}: nothing between {before} and {pos}",
        """SELECT run, log, pos, before FROM (
          SELECT run, log, pos, coalesce(lag(pos) OVER (PARTITION BY run, log ORDER BY pos), least_pos - 1)
            AS before
          FROM (SELECT k.run, k.log, k.pos, coalesce(m.low, 0) AS least_pos FROM known k
            LEFT JOIN (SELECT run, log, max(min_off) AS low FROM reads WHERE f = 'min_off' AND outcome = 'ok'
              GROUP BY run, log) m ON m.run = k.run AND m.log = k.log
            WHERE k.log LIKE 'q:%')
        ) WHERE pos > before + 1
        UNION ALL
        SELECT run, node || ' ledger:' || coalesce(ledger, ''), lidx, before FROM (
          SELECT run, node, ledger, lidx, lag(lidx) OVER (PARTITION BY run, node, ledger ORDER BY lidx) AS
            before
          FROM dump) WHERE lidx > before + 1""",
        needs=DRAINED,
    ),
    hard(
        "L4",
        "what was read or stored was sent, to this log, with this content",
        "seen",
        "{log} at {pos}: message {mid} {what}",
        """SELECT run, log, pos_min AS pos, mid, CASE WHEN sent = 0 THEN 'was never sent there'
          ELSE 'has another content than was sent' END AS what FROM placed
        WHERE pos_min IS NOT NULL AND (sent = 0 OR digest_min < digest_max)""",
        needs=WHOLE,
    ),
    hard(
        "L5",
        "what certainly failed was never delivered",
        "reads seen",
        "{log} at {pos}: message {mid}, whose send had failed",
        """SELECT run, log, mid, read_min AS pos FROM placed WHERE fails > 0 AND oks = 0 AND reads > 0""",
    ),
    hard(
        "L6a",
        "readers skipped nothing that others have read beyond",
        "reads seen",
        "{log}: message {mid} at {pos} was never read, though {bound} was",
        """SELECT p.run, p.log, p.mid, p.pos_max AS pos, b.bound FROM placed p
        JOIN (SELECT run, log, max(read_min) AS bound, min(read_min) AS start FROM placed WHERE reads > 0
          GROUP BY run, log) b ON b.run = p.run AND b.log = p.log
        WHERE p.reads = 0 AND p.fails = 0 AND p.sent > 0 AND p.pos_max < b.bound AND p.pos_min >= b.start""",
        needs=WHOLE,
    ),
    hard(
        "L6b",
        "every acknowledged message was read in the end",
        "acked drained",
        "{log}: message {mid} was acknowledged and never read",
        """SELECT p.run, p.log, p.mid FROM placed p JOIN runs r ON r.run = p.run
        WHERE r.drained IS NOT NULL AND p.oks > 0 AND p.reads = 0""",
        needs=DRAINED,
    ),
    hard(
        "L6c",
        "every acknowledged message stands on every node whose files reach so far",
        "acked dump",
        "message {mid}, acknowledged at index {lidx}, stands on {n} of {want} nodes",
        """SELECT s.run, s.mid, s.lidx, coalesce(d.n, 0) AS n, c.want, s.src, s.inc, s.seq FROM (
          SELECT s.run, s.mid, s.lidx, s.src, s.inc, s.seq, s.ledger FROM sends s WHERE s.outcome = 'ok'
            AND s.lidx IS NOT NULL) s
        JOIN (SELECT a.run, a.ledger, a.lidx, count(*) AS want FROM (
            SELECT DISTINCT run, ledger, lidx FROM sends WHERE outcome = 'ok' AND lidx IS NOT NULL) a
          JOIN (SELECT run, ledger, node, min(lidx) AS low, max(lidx) AS high FROM dump GROUP BY run,
            ledger, node) g
            ON g.run = a.run AND g.ledger = a.ledger AND g.low <= a.lidx AND a.lidx <= g.high
          GROUP BY a.run, a.ledger, a.lidx) c ON c.run = s.run AND c.ledger = s.ledger AND c.lidx = s.lidx
        LEFT JOIN (SELECT run, mid, count(*) AS n FROM (SELECT DISTINCT run, mid, node FROM dump
          WHERE mid IS NOT NULL) GROUP BY run, mid) d ON d.run = s.run AND d.mid = s.mid
        WHERE coalesce(d.n, 0) < c.want""",
        needs=WHOLE,
    ),
    hard(
        "L6d",
        "no acknowledged message lies beyond the end of a majority of the nodes",
        "acked dump",
        "index {lidx}, acknowledged, is beyond the end of the files of {n} of {nodes} nodes",
        """SELECT * FROM (
          SELECT a.run, a.lidx, count(*) AS n, max(r.nodes) AS nodes FROM
            (SELECT run, ledger, max(lidx) AS lidx FROM sends WHERE outcome = 'ok' GROUP BY run, ledger) a
          JOIN (SELECT run, ledger, node, max(lidx) AS high FROM dump WHERE sure GROUP BY run, ledger, node) g
            ON g.run = a.run AND g.ledger = a.ledger AND g.high < a.lidx
          JOIN runs r ON r.run = a.run GROUP BY a.run, a.ledger, a.lidx
        ) WHERE 2 * n >= nodes""",
        needs=WHOLE,
    ),
    hard(
        "L7",
        "every log is linearizable: what ended before something began stands before it",
        "acked",
        "{log}: operation {op} contradicts operation {op_before}, which had ended before it began "
        "(half-steps {hi} and {lo_before})",
        linearizable(stale=False),
    ),
    hard(
        "L8",
        "reads that may be late never show the future",
        "stale_reads",
        "{log}: append {op} began after read {op_before} had shown it or what is behind it",
        linearizable(stale=True),
    ),
    hard(
        "L9",
        "what one producer sends one after the other stands in this order",
        "acked",
        "{log}: {proc} got position {pos} for operation {op}, after {before}",
        """SELECT * FROM (
          SELECT run, log, proc, op, pos, src, inc, seq, max(pos) OVER (PARTITION BY run, log, proc ORDER BY
            inv, i
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM sends WHERE outcome = 'ok' AND pos IS NOT NULL
        ) WHERE pos <= before""",
    ),
    hard(
        "L10",
        "the messages of one read follow each other",
        "reads seen",
        "{log}: operation {op} gave position {pos} after {before}",
        """SELECT * FROM (
          SELECT run, log, op, pos, rank, filter, src, inc, seq, lag(pos) OVER w AS before, lag(rank) OVER w
            AS rank_before
          FROM rdlv WHERE attempt = 0 WINDOW w AS (PARTITION BY run, log, op, epoch ORDER BY i)
        ) WHERE rank <= rank_before OR (rank > rank_before + 1 AND coalesce(filter, '*') = '*')""",
    ),
    hard(
        "L11",
        "a consumer goes on where it was, as long as it keeps its queue",
        "group_reads",
        "{grp}/{consumer} on {log}: position {pos} after {before}",
        """SELECT * FROM (
          SELECT run, log, grp, consumer, pos, rank, op, filter, src, inc, seq, lag(pos) OVER w AS before,
            lag(rank) OVER w AS rank_before, lag(op) OVER w AS op_before
          FROM rdlv WHERE grp IS NOT NULL AND attempt = 0
          WINDOW w AS (PARTITION BY run, log, grp, consumer, epoch ORDER BY inc, seq)
        ) WHERE op <> op_before
          AND (rank <= rank_before OR (rank > rank_before + 1 AND coalesce(filter, '*') = '*'))""",
    ),
    warning(
        "L12",
        "reads that may be late saw all that was acknowledged before",
        "stale_reads",
        "{log}: operation {op} claimed the end {hi} when {acked} positions were acknowledged",
        """SELECT run, log, op, hi, acked, src, inc, seq FROM (
          SELECT *, max(CASE WHEN k = 1 THEN hi END) OVER (PARTITION BY run, log ORDER BY t, k
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS acked
          FROM (
            SELECT run, log, ret AS t, 1 AS k, op, pos + 1 AS hi, src, inc, seq FROM sends
              WHERE outcome = 'ok' AND pos IS NOT NULL
            UNION ALL
            SELECT run, log, inv, 0, op, next_off, src, inc, seq FROM reads
              WHERE outcome = 'ok' AND stale AND end_claim AND next_off IS NOT NULL
          )) WHERE k = 0 AND acked > hi""",
    ),
)
