"""Consistency of each log: L1-L14."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, warning
from chaos.checker.checks.sources import DELIVERIES, PLACED
from chaos.checker.needs import DRAINED, EVIDENT, NODE_LINES, WHOLE, Need


def linearizable(stale: bool) -> str:
    """Return a query for operations, each with the highest `lo` among those that completed before it started.

    Every operation gets an interval [lo, hi] of half-steps. The append at position i is 2i + 1; a read that
    returned i follows it; a read that observed the end e precedes the append at e. The log is linearizable
    if and only if no operation y has hi(y) < lo(x) for an x that completed before y started, which takes one
    sort and one running maximum.

    A delayed message is stored at an unknown time after its send. If the failover of a classic master makes
    an acknowledged send indeterminate, the send has no position: the message was lost, and others may have
    its position. The clocks of writers differ by at most the bound that the run states. Operations that are
    closer than the bound count as concurrent, and so do equal stamps: at one stamp, starts sort before
    completions.
    """
    reads = f"""
      SELECT r.run, r.log, r.inv, r.ret, r.op, r.src, r.inc, r.seq, r.stale,
        CASE WHEN r.f IN ('max_off', 'min_off') THEN 2 * r.max_off
          ELSE greatest(coalesce(2 * (d.top + 1), 0),
            CASE WHEN r.end_claim THEN 2 * coalesce(r.max_off, 0) ELSE 0 END)
        END AS lo,
        CASE WHEN r.f IN ('max_off', 'min_off') THEN 2 * r.max_off
          WHEN r.end_claim AND r.max_off IS NOT NULL THEN 2 * r.max_off END AS hi
      FROM reads r LEFT JOIN (SELECT run, log, op, max(pos) AS top FROM dlv GROUP BY run, log, op) d
        ON d.run = r.run AND d.op = r.op AND d.log = r.log
      WHERE r.outcome = 'ok' AND (r.f <> 'min_off' OR r.max_off IS NOT NULL)
        AND {"r.stale" if stale else "NOT r.stale"}
    """
    appends = """
      SELECT run, log, inv, CASE WHEN delay_ms > 0 THEN NULL ELSE ret END AS ret, op, src, inc, seq,
        false AS stale, 2 * pos + 1 AS lo, 2 * pos + 1 AS hi
      FROM sends WHERE outcome <> 'fail' AND log IS NOT NULL AND pos IS NOT NULL
        AND (outcome = 'ok' OR said <> 'ok')
      UNION ALL
      SELECT s.run, s.log, s.inv, CASE WHEN s.delay_ms > 0 THEN NULL ELSE s.ret END, s.op, s.src, s.inc,
        s.seq, false, 2 * p.pos_min + 1, 2 * p.pos_max + 1
      FROM unanswered s JOIN placed p ON p.run = s.run AND p.log = s.log AND p.mid = s.mid
      WHERE p.pos_min IS NOT NULL
    """
    begins, ends = ("NOT stale", "stale") if stale else ("true", "true")
    return f"""
    SELECT *, max(CASE WHEN k = 1 THEN lo END) OVER w AS lo_before,
      max_by(op, CASE WHEN k = 1 THEN lo END) OVER w AS op_before
    FROM (
      SELECT a.*, k.k, CASE WHEN k.k = 0 THEN a.inv ELSE a.ret + b.bound END AS t
      FROM ({appends} UNION ALL {reads}) a JOIN runs b ON b.run = a.run
      CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k
      WHERE (k.k = 0 AND hi IS NOT NULL AND {begins}) OR (k.k = 1 AND ret IS NOT NULL AND {ends})
    ) WINDOW w AS (PARTITION BY run, log ORDER BY t, k, op ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    """


_CONTRADICTS = ("k = 0 AND lo_before > hi", "log, op, hi, lo_before, op_before, src, inc, seq")

#: Positions, with the limit below which entries of their log may have been removed.
_POSITIONS = """
SELECT k.*, coalesce(k.before, coalesce(m.low, 0) - 1) AS expected, coalesce(e.pos, -1) AS kept FROM known k
LEFT JOIN (SELECT run, log, max(min_off) AS low FROM reads WHERE f = 'min_off' AND outcome = 'ok'
  GROUP BY run, log) m
  ON m.run = k.run AND m.log = k.log
LEFT JOIN kept_logs e ON e.run = k.run AND e.log = k.log
"""

#: Entries of nodes, each with the previous entry that is present or known to be damaged.
_STORED = """
SELECT run, node, ledger, lidx, lag(last) OVER (PARTITION BY run, node, ledger ORDER BY lidx, last) AS before
FROM (SELECT run, node, coalesce(ledger, '') AS ledger, lidx, lidx AS last FROM dump
  UNION ALL SELECT run, node, ledger, lidx, last FROM holes)
"""

#: Acknowledged messages that some node lacks, with the number of nodes whose files extend to that index and
#: are not known to be damaged there.
_INCOMPLETE_COPIES = """
SELECT h.run, h.mid, h.lidx, h.n, h.src, h.inc, h.seq, count(*) AS want FROM doubts h
JOIN dump_ends g ON g.run = h.run AND g.ledger = h.ledger AND g.low <= h.lidx AND h.lidx <= g.high
ANTI JOIN holes x ON x.run = g.run AND x.ledger = g.ledger AND x.node = g.node AND x.lidx <= h.lidx
  AND h.lidx <= x.last
WHERE h.n < h.n_dumps GROUP BY h.run, h.op, h.i, h.mid, h.lidx, h.n, h.src, h.inc, h.seq
"""

_BEYOND_MAJORITY = """
SELECT a.run, a.lidx, count(*) AS n, max(r.last_nodes) AS nodes FROM
  (SELECT run, coalesce(ledger, '') AS ledger, max(top_lidx) AS lidx FROM sent_logs GROUP BY run,
    coalesce(ledger, '')) a
JOIN dump_ends g ON g.run = a.run AND g.ledger = a.ledger AND g.sure_high < a.lidx
JOIN runs r ON r.run = a.run GROUP BY a.run, a.ledger, a.lidx
"""

_PRODUCER_ORDER = """
SELECT run, log, proc, op, pos, src, inc, seq, max(pos) OVER (PARTITION BY run, log, proc ORDER BY inc, seq, i
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM sends WHERE outcome = 'ok' AND pos IS NOT NULL
"""

_STALE_READS = """
SELECT *, max(CASE WHEN k = 1 THEN hi END) OVER (PARTITION BY run, log ORDER BY t, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS acked
FROM (
  SELECT s.run, s.log, s.ret + r.bound AS t, 1 AS k, s.op, s.pos + 1 AS hi, s.src, s.inc, s.seq FROM sends s
    JOIN runs r ON r.run = s.run WHERE s.outcome = 'ok' AND s.pos IS NOT NULL
  UNION ALL
  SELECT run, log, inv, 0, op, next_off, src, inc, seq FROM reads
    WHERE outcome = 'ok' AND stale AND end_claim AND next_off IS NOT NULL
)
"""

#: Messages that reads and look-ups returned with a tag or a key, with the tag and key of their send.
_LABELS = """
SELECT d.run, d.log, d.mid, d.tag, d.key, s.tag AS sent_tag, s.key AS sent_key, d.src, d.inc, d.seq
FROM (
  SELECT run, log, mid, tag, key, src, inc, seq FROM dlv_lines
  UNION ALL SELECT run, log, mid, tag, key, src, inc, seq FROM looked_up
) d JOIN sends s ON s.run = d.run AND s.mid = d.mid
WHERE (d.tag IS NOT NULL AND s.tag IS NOT NULL) OR (d.key IS NOT NULL AND s.key IS NOT NULL)
"""

#: For each read, the messages at known positions in its range, and those that it returned. `until`: the next
#: offset that the read reports, or one past its last message. Excludes groups with filters and queues from
#: which messages had been removed by then: there the broker moves a consumer forward, while the log refuses
#: its readers.
_READ_RANGES = """
SELECT b.run, b.log, b.op, b.from_off, b.until, b.least, b.given, max(b.counted) - min(b.counted) AS there,
  max(k.last) AS last, b.src, b.inc, b.seq
FROM (
  SELECT *, sum(CASE WHEN k = 1 THEN 1 ELSE 0 END) OVER (PARTITION BY run, log ORDER BY pos, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS counted
  FROM (
    SELECT run, log, CAST(NULL AS BIGINT) AS op, pos, 1 AS k, CAST(NULL AS BIGINT) AS from_off,
      CAST(NULL AS BIGINT) AS until, CAST(NULL AS BIGINT) AS least, CAST(NULL AS BIGINT) AS given,
      CAST(NULL AS STRING) AS src, CAST(NULL AS BIGINT) AS inc, CAST(NULL AS BIGINT) AS seq FROM known
    UNION ALL
    SELECT r.run, r.log, r.op, CASE WHEN e.ended = 0 THEN r.from_off
        ELSE greatest(r.from_off, coalesce(r.next_off, d.top + 1)) END, 0,
      r.from_off, coalesce(r.next_off, d.top + 1), d.least, coalesce(d.n, 0), r.src, r.inc, r.seq
    FROM reads r
    JOIN runs h ON h.run = r.run AND h.history IS NULL
    LEFT JOIN (SELECT run, log, op, min(pos) AS least, max(pos) AS top, count(*) AS n FROM (
        SELECT run, log, op, pos FROM dlv GROUP BY run, log, op, pos) GROUP BY run, log, op) d
      ON d.run = r.run AND d.log = r.log AND d.op = r.op
    ANTI JOIN (SELECT run, grp FROM member WHERE e = 'join' AND coalesce(filter, '*') <> '*'
      GROUP BY run, grp) g ON g.run = r.run AND g.grp = r.grp
    LEFT JOIN (
      SELECT q.run, q.op, max(b.pos) AS pos FROM reads q JOIN runs u ON u.run = q.run
      LEFT JOIN (SELECT run, op, max(mono) AS mono FROM dlv GROUP BY run, op) v
        ON v.run = q.run AND v.op = q.op
      JOIN begins b ON b.run = q.run AND b.log = q.log AND b.mono <= coalesce(q.ret, v.mono) + u.bound
      GROUP BY q.run, q.op) p ON p.run = r.run AND p.op = r.op
    CROSS JOIN (SELECT 0 AS ended UNION ALL SELECT 1 AS ended) e
    WHERE r.f IN ('get', 'pull', 'drain') AND r.from_off IS NOT NULL
      AND coalesce(CASE WHEN r.outcome = 'ok' THEN r.next_off END, d.top + 1) IS NOT NULL
      AND (r.log LIKE 'ledger:%' OR r.from_off >= coalesce(p.pos, 0))
  )
) b
LEFT JOIN (SELECT run, log, max(pos) AS last FROM known GROUP BY run, log) k
  ON k.run = b.run AND k.log = b.log
WHERE b.k = 0
GROUP BY b.run, b.log, b.op, b.from_off, b.until, b.least, b.given, b.src, b.inc, b.seq
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "L1",
        "all observers see the same message at a position of a log",
        "seen",
        "{log} at {pos}: messages {mid} and {mid_other}, or two different contents",
        Part(
            _POSITIONS,
            "mid_min < mid_max OR digest_min < digest_max",
            "log, pos, mid_min AS mid, mid_max AS mid_other",
        ),
        needs=EVIDENT,
        clear_needs=DRAINED,
    ),
    hard(
        "L2",
        "a message is stored in its log at most once",
        "seen",
        "{log}: message {mid} is stored at {pos_min} and at {pos_max}",
        Part(PLACED, "pos_min < pos_max", "log, mid, pos_min, pos_max"),
        needs=(*WHOLE, Need.IDS),
        clear_needs=DRAINED,
    ),
    hard(
        "L3",
        "positions have no gaps",
        "seen",
        "{log}: no message between {before} and {pos}",
        Part(
            _POSITIONS, "log LIKE 'q:%' AND pos > expected + 1 AND pos > kept", "log, pos, expected AS before"
        ),
        # Messages that were removed later were present when a reader passed them.
        Part(
            DELIVERIES,
            "log LIKE 'q:%' AND counts AND pos <= kept AND pos > in_read + 1 "
            "AND rank = rank_in_read + 1 AND coalesce(filtered, '*') = '*' AND NOT may_begin",
            "log, op, pos, in_read AS before, filtered, counts, src, inc, seq",
        ),
        Part(
            _STORED,
            "lidx > before + 1",
            "node || ' ledger:' || ledger AS log, node, lidx, lidx AS pos, before",
        ),
        needs=DRAINED,
    ),
    hard(
        "L4",
        "every message that was read or stored had been sent to this log with this content (no phantoms)",
        "seen",
        "{log} at {pos}: message {mid} {what}",
        Part(
            PLACED,
            "pos_min IS NOT NULL AND (sent = 0 OR digest_min < digest_max)",
            "log, pos_min AS pos, mid, CASE WHEN sent = 0 THEN 'was never sent there' "
            "ELSE 'differs from the content that was sent' END AS what",
        ),
        needs=WHOLE,
        clear_needs=DRAINED,
    ),
    hard(
        "L5",
        "a message whose send definitely failed is never delivered (no aborted reads)",
        "reads seen",
        "{log} at {pos}: message {mid} was read, but its send failed",
        Part(PLACED, "fails > 0 AND oks = 0 AND reads > 0", "log, mid, read_min AS pos"),
        needs=(*EVIDENT, Need.OPERATIONS, Need.IDS),
        clear_needs=DRAINED,
    ),
    hard(
        "L6a",
        "no message is skipped below a position that others have read",
        "reads seen",
        "{log}: message {mid} at {pos} was never read, although position {bound} was",
        Part(
            PLACED,
            "reads = 0 AND fails = 0 AND sent > 0 AND pos_max < bound AND pos_min >= start "
            "AND coalesce(lidx_min > purged, pos_min >= kept, true)",
            "log, mid, pos_max AS pos, bound",
        ),
        needs=WHOLE,
        clear_needs=DRAINED,
    ),
    hard(
        "L6b",
        "the final reads return every acknowledged message and every message in the files",
        "acked drained healed",
        "{log}: message {mid} {what}",
        Part(
            PLACED,
            "drained IS NOT NULL AND oks > 0 AND finals = 0 "
            "AND coalesce(lidx_min > purged, pos_min >= kept, true)",
            "log, mid, CASE WHEN reads = 0 THEN 'was acknowledged and never read' "
            "ELSE 'was acknowledged and read, but the final reads lack it' END AS what",
        ),
        Part(
            PLACED,
            "drained IS NOT NULL AND oks = 0 AND fails = 0 AND sent > 0 AND dumps > 0 AND finals = 0 "
            "AND pos_max <= target AND coalesce(lidx_min > purged, pos_min >= kept, true)",
            "log, mid, 'is stored in files, but the final reads lack it' AS what",
        ),
        needs=(*DRAINED, Need.LIVES),
    ),
    hard(
        "L6c",
        "every acknowledged message is stored on every node whose files extend to its index",
        "acked dump",
        "message {mid}, acknowledged at index {lidx}, is stored on {n} of {want} nodes",
        Part(_INCOMPLETE_COPIES, "n < want", "mid, lidx, n, want, src, inc, seq", few=True),
        needs=(*WHOLE, Need.DUMPS),
    ),
    hard(
        "L6d",
        "no acknowledged message lies beyond the end of the log on a majority of the nodes",
        "acked dump",
        "acknowledged index {lidx} is beyond the end of the files of {n} of {nodes} nodes",
        Part(_BEYOND_MAJORITY, "2 * n >= nodes", "lidx, n, nodes", few=True),
        needs=(*WHOLE, Need.DUMPS),
    ),
    hard(
        "L7",
        "every log is linearizable: an operation that completed before another started precedes it",
        "acked",
        "{log}: operation {op} contradicts operation {op_before}, which had completed before it started "
        "(half-steps {hi} and {lo_before})",
        Part(linearizable(stale=False), *_CONTRADICTS),
        needs=(*EVIDENT, Need.OPERATIONS, Need.CLOCKS),
    ),
    hard(
        "L8",
        "reads that may be stale never return later appends",
        "stale_reads",
        "{log}: append {op} started after read {op_before} had observed it or a later position",
        Part(linearizable(stale=True), *_CONTRADICTS),
        needs=(*EVIDENT, Need.OPERATIONS, Need.CLOCKS),
    ),
    hard(
        "L9",
        "sequential sends of one producer are stored in their order",
        "acked",
        "{log}: {proc} got position {pos} for operation {op}, after {before}",
        Part(_PRODUCER_ORDER, "pos <= before", "log, proc, op, pos, before, src, inc, seq"),
        needs=(*EVIDENT, Need.OPERATIONS, Need.PROCESSES, Need.CLOCKS),
    ),
    hard(
        "L10",
        "the messages of one read are consecutive",
        "reads seen",
        "{log}: operation {op} returned position {pos} after {before}",
        Part(
            DELIVERIES,
            "counts AND (rank <= rank_in_read OR (rank > rank_in_read + 1 AND coalesce(filtered, '*') = "
            "'*' AND NOT may_begin))",
            "log, op, pos, rank, filtered AS filter, in_read AS before, rank_in_read AS rank_before, src, "
            "inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
    ),
    hard(
        "L11",
        "a consumer continues from its last position while it owns the queue",
        "group_reads",
        "{grp}/{consumer} on {log}: position {pos} after {before}",
        Part(
            DELIVERIES,
            "counts AND grp IS NOT NULL AND op <> op_before "
            "AND (rank <= rank_before OR (rank > rank_before + 1 AND coalesce(filtered, '*') = '*' "
            "AND NOT may_begin))",
            "log, grp, consumer, pos, rank, op, filtered AS filter, before, rank_before, op_before, src, "
            "inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
    ),
    warning(
        "L12",
        "stale reads observe every send that was acknowledged before they started",
        "stale_reads",
        "{log}: operation {op} reported the end {hi} when {acked} positions were acknowledged",
        Part(_STALE_READS, "k = 0 AND acked > hi", "log, op, hi, acked, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "L13",
        "a message is delivered with the tag and the key with which it was sent",
        "sends reads",
        "{log}: message {mid} was delivered with {said}, but had been sent with {sent}",
        Part(
            _LABELS,
            "tag <> sent_tag",
            "log, mid, 'tag ' || tag AS said, 'tag ' || sent_tag AS sent, src, inc, seq",
        ),
        Part(
            _LABELS,
            "key <> sent_key",
            "log, mid, 'key ' || key AS said, 'key ' || sent_key AS sent, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.IDS),
    ),
    hard(
        "L14",
        "a read returns every message between its start offset and its next offset",
        "reads seen",
        "{log}: operation {op} started at {from_off} and continues at {until}; of {there} messages between "
        "these offsets it returned {given}, from {least}",
        Part(
            _READ_RANGES,
            "there <> given OR least < from_off OR until < from_off",
            "log, op, from_off, until, there, given, least, src, inc, seq",
        ),
        Part(
            _READ_RANGES,
            "log LIKE 'q:%' AND until > coalesce(last, -1) + 1",
            "log, op, from_off, until, there, given, least, src, inc, seq",
        ),
        needs=DRAINED,
    ),
)
