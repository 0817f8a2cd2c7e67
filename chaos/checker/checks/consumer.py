"""Guarantees to consumers: C1-C12."""

from __future__ import annotations

from chaos.checker.checks.cluster_time import least_ns
from chaos.checker.checks.registry import Check, Part, hard, warning
from chaos.checker.checks.sources import DELIVERIES
from chaos.checker.needs import DRAINED, EVIDENT, NODES, WHOLE, Need

#: Time in which two consumers may read a queue during a rebalance: the old one learns of the change with its
#: next heartbeat, or when its lease expires; ns.
CHANGE_NS = 5_000_000_000

#: Groups with their topics and modes.
_GROUPS = """
SELECT run, grp, topic, max(mode) AS mode, max(coalesce(filter, '*')) AS filter,
  min(CASE WHEN from_start THEN 1 ELSE 0 END) AS from_start
FROM member WHERE e = 'join' GROUP BY run, grp, topic
"""

#: Consumers that stayed until the end. A group without any is entitled only to messages below its last
#: position: its stored offset, or, in an orderly group, the last message it processed.
_REMAINING_CONSUMERS = """
SELECT j.run, j.grp FROM (SELECT DISTINCT run, grp, consumer FROM member WHERE e = 'join') j
ANTI JOIN (SELECT run, grp, consumer FROM member WHERE e IN ('leave', 'crash')) l
  ON l.run = j.run AND l.grp = j.grp AND l.consumer = j.consumer
"""

#: Positions that were purged, with the first time that an orderly group had processed, or any group had
#: stored, a position beyond. A group that passes a position before its purge skips an existing message.
_PASSED_POSITIONS = f"""
SELECT k.run, w.grp, k.log, k.pos, min(w.mono + r.bound) AS beyond FROM known k
JOIN runs r ON r.run = k.run
JOIN (
  SELECT t.run, t.grp, t.log, t.pos, t.mono FROM through t
  SEMI JOIN (SELECT run, grp FROM ({_GROUPS}) WHERE mode IN ('orderly', 'fifo')) o
    ON o.run = t.run AND o.grp = t.grp
  UNION ALL
  SELECT run, grp, 'q:' || topic || '/' || CAST(q AS STRING), off_asked - 1, ret FROM ops
  WHERE f = 'commit_off' AND outcome = 'ok'
) w ON w.run = k.run AND w.log = k.log AND w.pos >= k.pos
WHERE k.gone IS NOT NULL GROUP BY k.run, w.grp, k.log, k.pos
"""

_UNPROCESSED = f"""
SELECT s.run, g.grp, s.log, s.mid, s.src, s.inc, s.seq FROM sends s
JOIN ({_GROUPS}) g ON g.run = s.run AND g.topic = s.topic AND g.from_start = 1
LEFT JOIN (SELECT run, grp, count(*) AS n FROM ({_REMAINING_CONSUMERS}) GROUP BY run, grp) stayed
  ON stayed.run = s.run AND stayed.grp = g.grp
LEFT JOIN (SELECT run, grp, log, max(pos) AS pos FROM through GROUP BY run, grp, log) went
  ON went.run = s.run AND went.grp = g.grp AND went.log = s.log
LEFT JOIN (SELECT run, grp, 'q:' || topic || '/' || CAST(q AS STRING) AS log, max(off_asked) AS off
  FROM ops WHERE f = 'commit_off' AND outcome = 'ok' GROUP BY run, grp, topic, q) stored
  ON stored.run = s.run AND stored.grp = g.grp AND stored.log = s.log
ANTI JOIN through t ON t.run = s.run AND t.grp = g.grp AND t.mid = s.mid
LEFT JOIN known k ON k.run = s.run AND k.log = s.log AND k.pos = s.pos AND k.gone IS NOT NULL
LEFT JOIN ({_PASSED_POSITIONS}) b ON b.run = s.run AND b.grp = g.grp AND b.log = s.log AND b.pos = s.pos
WHERE s.outcome = 'ok' AND coalesce(b.beyond < k.gone, k.gone IS NULL)
  AND (g.filter = '*' OR instr('||' || g.filter || '||', '||' || s.tag || '||') > 0)
  AND (stayed.n > 0 OR s.pos < stored.off OR (g.mode = 'orderly' AND s.pos < went.pos))
"""

#: The first delivery of each position to a group (k 0), with the highest position that the group had
#: certainly received before (k 1).
_FIRST_DELIVERIES = f"""
SELECT *, max(CASE WHEN k = 1 THEN pos END) OVER (PARTITION BY run, grp, log ORDER BY t, k, pos
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM (
  SELECT f.run, f.grp, f.log, f.pos, f.mono, k.k, CASE WHEN k.k = 0 THEN f.mono ELSE f.mono + r.bound END AS t
  FROM (SELECT run, grp, log, topic, pos, min(mono) AS mono FROM dlv WHERE grp IS NOT NULL
    GROUP BY run, grp, log, topic, pos) f
  JOIN ({_GROUPS}) g ON g.run = f.run AND g.grp = f.grp AND g.topic = f.topic
    AND g.mode IN ('orderly', 'fifo')
  JOIN runs r ON r.run = f.run CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k
)
"""

_DELIVERY_COUNTS = """
SELECT run, grp, consumer, log, mid, count(*) AS n FROM dlv WHERE grp IS NOT NULL AND attempt = 0
GROUP BY run, grp, consumer, epoch, log, mid
"""

#: Stored offsets, with the time at which everything below them had been processed or purged.
_STORED_OFFSETS = f"""
SELECT c.run, c.grp, c.log, c.op, c.off, c.inv, p.all_at, r.bound, c.src, c.inc, c.seq
FROM (SELECT run, grp, 'q:' || topic || '/' || CAST(q AS STRING) AS log, op, off_asked AS off, inv, src,
  inc, seq
  FROM ops WHERE f = 'commit_off') c
JOIN (
  SELECT run, grp, log, pos, max(at_ns) OVER (
    PARTITION BY run, grp, log ORDER BY pos ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS all_at
  FROM (
    SELECT k.run, g.grp, k.log, k.pos,
      coalesce(t.at_ns, k.gone, 9223372036854775807) AS at_ns FROM known k
    JOIN (SELECT run, grp, log, min(pos) AS low FROM dlv WHERE grp IS NOT NULL AND filter IS NULL
      GROUP BY run, grp, log) g ON g.run = k.run AND g.log = k.log AND g.low <= k.pos
    LEFT JOIN (SELECT run, grp, log, pos, min(mono) AS at_ns FROM through GROUP BY run, grp, log, pos) t
      ON t.run = k.run AND t.grp = g.grp AND t.log = k.log AND t.pos = k.pos
    ANTI JOIN (SELECT * FROM ({_GROUPS}) WHERE filter <> '*') x ON x.run = g.run AND x.grp = g.grp)
) p ON p.run = c.run AND p.grp = c.grp AND p.log = c.log AND p.pos = c.off - 1
JOIN runs r ON r.run = c.run
"""

#: Start positions of consumers (k 1), with the highest offset that was or may have been stored before (k 0),
#: or the start of the queue if messages there were removed.
_START_POSITIONS = """
SELECT run, grp, consumer, log, k, pos, rank, src, inc, seq,
  coalesce(max(CASE WHEN k = 0 THEN pos END) OVER (PARTITION BY run, grp, log
    ORDER BY mono, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS stored
FROM (
  SELECT d.run, d.grp, d.consumer, d.log, 1 AS k, d.pos, d.rank, d.src, d.inc, d.seq, d.first_try AS mono
  FROM spells d
  JOIN (SELECT run, grp, max(CASE WHEN from_start AND coalesce(filter, '*') = '*' THEN 1 ELSE 0 END) AS plain
    FROM member WHERE e = 'join' GROUP BY run, grp) g ON g.run = d.run AND g.grp = d.grp AND g.plain = 1
  ANTI JOIN member m ON m.run = d.run AND m.grp = d.grp AND m.log = d.log AND m.e = 'reset'
  WHERE d.first_try IS NOT NULL
  UNION ALL
  SELECT o.run, o.grp, o.consumer, 'q:' || o.topic || '/' || CAST(o.q AS STRING), 0, o.off_asked,
    o.off_asked, o.src, o.inc, o.seq, o.inv - r.bound
  FROM ops o JOIN runs r ON r.run = o.run WHERE o.f = 'commit_off' AND o.outcome <> 'fail'
  UNION ALL
  SELECT b.run, g.grp, '', b.log, 0, b.pos, b.pos, '', NULL, NULL, b.mono - r.bound FROM begins b
  JOIN runs r ON r.run = b.run
  JOIN (SELECT run, grp, log FROM spells GROUP BY run, grp, log) g ON g.run = b.run AND g.log = b.log
)
"""

_OVERLAPS = """
SELECT run, grp, log, consumer, first, last, max(last) OVER (
  PARTITION BY run, grp, log ORDER BY first, consumer
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS last_before
FROM spells
"""

_FILTERED_DELIVERIES = f"""
SELECT d.run, d.grp, d.consumer, d.mid, s.tag, g.filter, d.src, d.inc, d.seq FROM dlv d
JOIN ({_GROUPS}) g ON g.run = d.run AND g.grp = d.grp AND g.topic = d.topic AND g.filter <> '*'
JOIN sends s ON s.run = d.run AND s.mid = d.mid
"""

_DEAD_LETTERS = """
SELECT run, grp, mid, count(*) AS n, min(src) AS src, min(inc) AS inc, min(seq) AS seq
FROM done WHERE code = 'dlq' GROUP BY run, grp, mid
"""

#: Messages sent to the dead letter queue, each with its last attempt.
_LAST_ATTEMPTS = """
SELECT d.run, d.grp, d.mid, d.attempt, r.max_attempts, d.src, d.inc, d.seq FROM done d
JOIN runs r ON r.run = d.run WHERE d.code = 'dlq'
"""

#: Deliveries, with the first time that their group had received the answer to its acknowledgment.
_AFTER_ACK = """
SELECT d.run, d.grp, d.consumer, d.mid, d.log, d.src, d.inc, d.seq,
  least(r.inv, d.mono) AS inv, a.acked, a.op, b.bound FROM dlv d
JOIN ops r ON r.run = d.run AND r.op = d.op AND r.f = 'receive' JOIN runs b ON b.run = d.run
JOIN (SELECT run, grp, mid, min(ret) AS acked, min_by(op, ret) AS op FROM ops
  WHERE f = 'ack' AND outcome = 'ok' GROUP BY run, grp, mid) a
  ON a.run = d.run AND a.grp = d.grp AND a.mid = d.mid
"""

#: Redeliveries, with possible reasons. `held`: time since the receive of the previous delivery, in ns. A push
#: consumer may have received a message before the operation that reports it.
_REDELIVERIES = """
SELECT d.run, d.grp, d.consumer, d.consumer_before, d.mid, d.log, d.attempt, d.src, d.inc, d.seq,
  r.delay_ms, d.mono + b.bound - least(r.inv, d.before) AS held, t.mono AS failed, g.mono AS gone,
  a.inv AS doubted, d.mono
FROM (
  SELECT run, grp, consumer, mid, log, attempt, mono, src, inc, seq, lag(mono) OVER w AS before,
    lag(consumer) OVER w AS consumer_before, lag(op) OVER w AS op_before
  FROM dlv WHERE received WINDOW w AS (PARTITION BY run, grp, mid ORDER BY mono, seq)
) d
JOIN runs b ON b.run = d.run
JOIN ops r ON r.run = d.run AND r.op = d.op_before AND r.delay_ms > 0
LEFT JOIN done t ON t.run = d.run AND t.grp = d.grp AND t.mid = d.mid AND t.code = 'retry'
  AND t.mono >= d.before AND t.mono <= d.mono
LEFT JOIN (SELECT run, grp, consumer, min(mono) AS mono FROM member WHERE e IN ('leave', 'crash')
  GROUP BY run, grp, consumer) g
  ON g.run = d.run AND g.grp = d.grp AND g.consumer = d.consumer_before AND g.mono <= d.mono
LEFT JOIN (SELECT run, grp, mid, min(inv) AS inv FROM ops WHERE f = 'ack' AND outcome <> 'ok'
  GROUP BY run, grp, mid) a ON a.run = d.run AND a.grp = d.grp AND a.mid = d.mid AND a.inv <= d.mono
"""

#: Deliveries (k 1), with the highest index known to be committed before (k 0). Reads of a queue name no log
#: index; only the first delivery of such a message counts, with the index that files and answers show.
_COMMITS_BEFORE = """
SELECT run, k, lidx, mid, src, inc, seq, max(CASE WHEN k = 0 THEN lidx END) OVER (
  PARTITION BY run, ledger ORDER BY t, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS committed_before
FROM (
  SELECT run, ledger, lidx, mono AS t, 0 AS k, CAST(NULL AS BIGINT) AS mid, src, inc, seq FROM nodes
  WHERE e = 'commit'
  UNION ALL
  SELECT d.run, d.ledger, d.lidx, d.mono + r.bound, 1, d.mid, d.src, d.inc, d.seq FROM dlv d
    JOIN runs r ON r.run = d.run
    WHERE d.lidx IS NOT NULL AND d.ledger IS NOT NULL
  UNION ALL
  SELECT p.run, n.ledger, p.lidx_min, p.read_at + r.bound, 1, p.mid, NULL, NULL, NULL FROM placed p
    JOIN runs r ON r.run = p.run
    JOIN (SELECT run, min(ledger) AS ledger FROM nodes WHERE e = 'commit' GROUP BY run
      HAVING min(ledger) = max(ledger)) n ON n.run = p.run
    WHERE p.log LIKE 'q:%' AND p.read_at IS NOT NULL AND p.lidx_min = p.lidx_max)
"""

#: Messages of a queue that one receive returned to a FIFO group while other members still held earlier ones.
#: A member holds a message until it is acknowledged, processing fails or the message is returned, the member
#: leaves, or the invisibility expires. A receive whose answer arrived only after that time is no evidence.
#: A push consumer reports messages that it received together one by one, so the times of the lines count.
_CONCURRENT_HOLDERS = f"""
SELECT * FROM (
  SELECT run, grp, consumer, log, op, pos, first, src, inc, seq,
    max(until) OVER (PARTITION BY run, grp, log ORDER BY first, op
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_before
  FROM (
    SELECT d.run, d.grp, d.log, d.op, min(d.consumer) AS consumer, min(d.pos) AS pos, min(d.told) AS first,
      min(d.src) AS src, min(d.inc) AS inc, min(d.seq) AS seq,
      max(least(r.inv + {least_ns("r.delay_ms")}, coalesce(e.inv, 9223372036854775807),
        coalesce(t.mono, 9223372036854775807), coalesce(g.mono, 9223372036854775807)) - b.bound) AS until
    FROM dlv d
    JOIN runs b ON b.run = d.run
    JOIN ({_GROUPS}) m ON m.run = d.run AND m.grp = d.grp AND m.topic = d.topic AND m.mode = 'fifo'
    JOIN ops r ON r.run = d.run AND r.op = d.op AND r.outcome = 'ok' AND r.delay_ms > 0
      AND d.told - r.inv + b.bound < {least_ns("r.delay_ms")}
    LEFT JOIN (SELECT run, grp, mid, min(inv) AS inv FROM ops WHERE f IN ('ack', 'change_invisible')
      GROUP BY run, grp, mid) e ON e.run = d.run AND e.grp = d.grp AND e.mid = d.mid
    LEFT JOIN (SELECT run, grp, mid, min(mono) AS mono FROM done WHERE code <> 'ok'
      GROUP BY run, grp, mid) t ON t.run = d.run AND t.grp = d.grp AND t.mid = d.mid
    LEFT JOIN (SELECT run, grp, consumer, min(mono) AS mono FROM member WHERE e IN ('leave', 'crash')
      GROUP BY run, grp, consumer) g ON g.run = d.run AND g.grp = d.grp AND g.consumer = d.consumer
    GROUP BY d.run, d.grp, d.log, d.op
  )
) WHERE first < until_before
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "C1",
        "every group processes every acknowledged message of its topics, up to its last position",
        "joins acked drained",
        "group {grp} never processed message {mid} of {log}",
        Part(_UNPROCESSED, "true", "grp, log, mid, src, inc, seq"),
        needs=DRAINED,
    ),
    hard(
        "C2",
        "groups receive only messages that were sent and whose send did not fail",
        "group_reads",
        "{grp}/{consumer} received message {mid} at {pos} of {log}, which {what}",
        Part(
            DELIVERIES,
            "grp IS NOT NULL AND suspect AND (sent = 0 OR (fails > 0 AND oks = 0) OR digest <> sent_digest)",
            "grp, consumer, mid, pos, log, src, inc, seq, CASE WHEN sent = 0 THEN 'was never sent there' "
            "WHEN fails > 0 AND oks = 0 THEN 'failed to be sent' ELSE 'had different content' END AS what",
        ),
        needs=WHOLE,
    ),
    hard(
        "C3",
        "an orderly group first receives the messages of each queue in order",
        "orderly group_reads",
        "group {grp} on {log}: position {pos} was first delivered after {before}",
        Part(_FIRST_DELIVERIES, "k = 0 AND pos < before", "grp, log, pos, mono, before"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    warning(
        "C4",
        "no consumer receives a message twice while it owns the queue",
        "group_reads",
        "{grp}/{consumer} received message {mid} of {log} {n} times",
        Part(_DELIVERY_COUNTS, "n > 1", "grp, consumer, log, mid, n"),
        needs=WHOLE,
    ),
    hard(
        "C5",
        "a group stores no offset beyond the messages that it has processed",
        "commits_off group_reads",
        "group {grp} on {log}: operation {op} stored {off} before all messages below it were processed",
        Part(_STORED_OFFSETS, "all_at - bound > inv", "grp, log, op, off, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C6",
        "a consumer that takes over a queue starts at or before the stored offset",
        "assigns group_reads commits_off",
        "{grp}/{consumer} started on {log} at {pos}; the stored offset was {stored}",
        Part(
            _START_POSITIONS,
            "k = 1 AND pos > stored AND rank > 0",
            "grp, consumer, log, k, pos, rank, src, inc, seq, stored",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    warning(
        "C7",
        "a queue has one consumer per group at a time, except during a rebalance",
        "group_reads",
        "group {grp} on {log}: {consumer} and another consumer read concurrently for {beside} ns",
        Part(
            _OVERLAPS,
            f"first < last_before AND least(last, last_before) - first > {CHANGE_NS}",
            "grp, log, consumer, first, last_before, least(last, last_before) - first AS beside",
            few=True,
        ),
        needs=WHOLE,
    ),
    hard(
        "C8",
        "a group with a filter receives only matching messages",
        "group_reads",
        "{grp}/{consumer} received message {mid} with tag {tag}; its filter is {filter}",
        Part(
            _FILTERED_DELIVERIES,
            "instr('||' || filter || '||', '||' || coalesce(tag, '') || '||') = 0",
            "grp, consumer, mid, tag, filter, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.IDS),
    ),
    hard(
        "C9",
        "no message exceeds its maximum attempts, or becomes a dead letter twice or early",
        "group_reads",
        "group {grp}, message {mid}: {what}",
        Part(
            DELIVERIES,
            "grp IS NOT NULL AND attempt > max_attempts",
            "grp, mid, 'attempt ' || CAST(attempt AS STRING) AS what, src, inc, seq",
        ),
        Part(
            _DEAD_LETTERS,
            "n > 1",
            "grp, mid, 'sent to the dead letter queue ' || CAST(n AS STRING) || ' times' AS what, "
            "src, inc, seq",
        ),
        Part(
            _LAST_ATTEMPTS,
            # Attempts start at 0. Some clients count the last attempt before it fails.
            "attempt < max_attempts - 1",
            "grp, mid, 'sent to the dead letter queue after attempt ' || CAST(attempt AS STRING) || ' of ' "
            "|| CAST(max_attempts AS STRING) AS what, src, inc, seq",
        ),
        needs=EVIDENT,
    ),
    hard(
        "C10",
        "no message is delivered before a node has reported it committed",
        "reads commits",
        "message {mid} at index {lidx} was delivered when the highest commit index was {committed_before}",
        Part(
            _COMMITS_BEFORE,
            "k = 1 AND coalesce(committed_before, -1) < lidx",
            "k, lidx, mid, src, inc, seq, committed_before",
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "C11",
        "an acknowledged message is not redelivered to its group",
        "receives acks_ok",
        "{grp}/{consumer} received message {mid} of {log} after operation {op} had acknowledged it",
        Part(_AFTER_ACK, "acked + bound < inv", "grp, consumer, mid, log, op, inv, acked, src, inc, seq"),
        needs=(*EVIDENT, Need.OPERATIONS, Need.CLOCKS),
    ),
    hard(
        "C12",
        "a message is not redelivered while invisible; in FIFO groups, neither are later ones",
        "holds",
        "{grp}/{consumer} received {what}",
        Part(
            _REDELIVERIES,
            f"failed IS NULL AND gone IS NULL AND doubted IS NULL AND held < {least_ns('delay_ms')}",
            "grp, consumer, 'message ' || CAST(mid AS STRING) || ' of ' || log || ', which ' "
            "|| consumer_before || ' held, ' || CAST(held AS STRING) "
            "|| ' ns after the receive of that consumer' AS what, held, delay_ms, failed, gone, doubted, "
            "src, inc, seq",
        ),
        Part(
            _CONCURRENT_HOLDERS,
            "true",
            "grp, consumer, 'position ' || CAST(pos AS STRING) || ' of ' || log "
            "|| ' while another member held earlier messages of this queue' AS what, first, until_before, "
            "src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
)
