"""The broker's store, transactions, and delayed messages: B1-B6, B8-B10."""

from __future__ import annotations

from chaos.checker.checks.cluster_time import least_ns
from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.checks.sources import STARTED_LATE, STARVED, UNITS
from chaos.checker.needs import DRAINED, EVIDENT, NODES, WHOLE, Need

#: Permitted delay of a delayed message, and the time after a fault that does not count; ns.
LATE_NS, RECOVERY_NS = 30_000_000_000, 10_000_000_000

_UNITS_BY_POSITION = """
SELECT run, log, qoff, min(lidx) AS lidx_min, max(lidx) AS lidx_max, min(size) AS size_min,
  max(size) AS size_max,
  min(tag_hash) AS tag_min, max(tag_hash) AS tag_max
FROM cq GROUP BY run, log, qoff
"""

#: ConsumeQueues that extend beyond the last message of their queue in the log of the same node. Where entries
#: were removed or replaced by an image, only if the log still has a message of the queue.
_UNITS_BEYOND = f"""
SELECT c.run, c.node, c.log, c.high AS qoff, coalesce(d.last, -1) AS last FROM cq_ends c
SEMI JOIN (SELECT run, node FROM dump_ends GROUP BY run, node) e ON e.run = c.run AND e.node = c.node
LEFT JOIN (SELECT run, node, log, max(qoff) AS last FROM dump WHERE qoff IS NOT NULL
  GROUP BY run, node, log) d
  ON d.run = c.run AND d.node = c.node AND d.log = c.log
LEFT JOIN ({STARTED_LATE}) x ON x.run = c.run AND x.node = c.node
WHERE c.high > coalesce(d.last, -1) AND (d.last IS NOT NULL OR x.run IS NULL)
"""

#: Longest tag, in characters, whose hash is computed here.
_TAG_LENGTH = 64
_POWERS = ", ".join(f"({n}, {31**n % 2**32})" for n in range(_TAG_LENGTH))

#: Units of the first node, with the hash of the tag that was sent: Java's `String.hashCode`, which consumers
#: compare. The check computes it, because the reader of the files uses the product's code.
_TAG_HASHES = f"""
SELECT c.run, c.log, c.qoff, c.node, c.tag_hash, h.tag, h.tag_code, c.src, c.inc, c.seq FROM cq c
JOIN (SELECT run, min(node) AS node FROM dump_ends GROUP BY run) n ON n.run = c.run AND n.node = c.node
JOIN dump d ON d.run = c.run AND d.node = c.node AND d.log = c.log AND d.qoff = c.qoff AND d.sure
JOIN sends s ON s.run = d.run AND s.mid = d.mid
JOIN (
  SELECT run, tag, CASE WHEN code >= 2147483648 THEN code - 4294967296 ELSE code END AS tag_code FROM (
    SELECT t.run, t.tag,
      CAST(sum(ascii(substr(t.tag, CAST(length(t.tag) - p.n AS INT), 1)) * p.power) AS BIGINT)
        % 4294967296 AS code
    FROM (SELECT run, tag FROM sends WHERE tag <> '' GROUP BY run, tag) t
    JOIN (VALUES {_POWERS}) AS p(n, power) ON p.n < length(t.tag)
    WHERE length(t.tag) <= {_TAG_LENGTH}
    GROUP BY t.run, t.tag
    HAVING min(ascii(substr(t.tag, CAST(length(t.tag) - p.n AS INT), 1))) > 0
      AND max(ascii(substr(t.tag, CAST(length(t.tag) - p.n AS INT), 1))) < 128)
) h ON h.run = s.run AND h.tag = s.tag
"""

_MINIMUM_OFFSETS = """
SELECT *, max(CASE WHEN k = 1 THEN min_off END) OVER (PARTITION BY run, log ORDER BY t, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM (
  SELECT r.*, k.k, CASE WHEN k.k = 0 THEN r.inv ELSE r.ret + b.bound END AS t
  FROM reads r JOIN runs b ON b.run = r.run
  CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k WHERE r.min_off IS NOT NULL AND r.outcome = 'ok')
"""

#: Minimum offsets above the first position of a queue, with the first position (`kept`) that no node had
#: purged by then.
_SKIPPED_POSITIONS = """
SELECT * FROM (
  SELECT *, min(pos) OVER (PARTITION BY run, log ORDER BY lidx DESC, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS kept
  FROM (
    SELECT r.run, r.log, coalesce(max(x.lidx), -1) AS lidx, 0 AS k, CAST(NULL AS BIGINT) AS pos, r.op,
      r.min_off, r.src, r.inc, r.seq
    FROM reads r JOIN runs b ON b.run = r.run
    LEFT JOIN purges x ON x.run = r.run AND x.mono <= r.ret + b.bound
    WHERE r.min_off > 0 AND r.outcome = 'ok'
    GROUP BY r.run, r.log, r.op, r.min_off, r.src, r.inc, r.seq
    UNION ALL
    SELECT p.run, p.log, p.lidx_min, 1, p.pos_min, NULL, NULL, NULL, NULL, NULL FROM placed p
    SEMI JOIN (SELECT run, log FROM reads WHERE min_off > 0 AND outcome = 'ok' GROUP BY run, log) r
      ON r.run = p.run AND r.log = p.log
    WHERE p.lidx_min IS NOT NULL
  )
) WHERE k = 0
"""

#: Results of look-ups, with the send of the message, and its queue and offset according to answers to
#: producers, reads and files.
_LOOKUP_RESULTS = """
SELECT d.run, d.op, o.key, s.key AS sent_key, d.digest, s.digest AS sent_digest, d.mid, d.src, d.inc, d.seq,
  d.log, d.pos, s.log AS sent_log, p.pos_min, p.pos_max
FROM looked_up d
JOIN ops o ON o.run = d.run AND o.op = d.op
JOIN sends s ON s.run = d.run AND s.mid = d.mid
LEFT JOIN placed p ON p.run = d.run AND p.mid = d.mid AND p.log = d.log
"""

_DUPLICATE_RESULTS = """
SELECT run, op, mid, min(src) AS src, min(inc) AS inc, max(seq) AS seq FROM looked_up
GROUP BY run, op, mid, log, pos HAVING count(*) > 1
"""

_MISSING_RESULTS = """
SELECT o.run, o.op, o.key, s.mid, o.src, o.inc, o.seq FROM ops o
JOIN sends s ON s.run = o.run AND s.key = o.key AND s.topic = o.topic AND s.outcome = 'ok'
JOIN runs r ON r.run = o.run AND s.ret + r.bound < o.inv
LEFT JOIN (
  SELECT q.run, q.op, max(p.lidx) AS lidx FROM ops q JOIN runs b ON b.run = q.run
  JOIN purges p ON p.run = q.run AND p.mono <= q.ret + b.bound WHERE q.f = 'lookup' GROUP BY q.run, q.op
) x ON x.run = o.run AND x.op = o.op
ANTI JOIN looked_up d ON d.run = o.run AND d.op = o.op AND d.mid = s.mid
WHERE o.f = 'lookup' AND o.outcome = 'ok' AND o.end_claim
  AND coalesce(s.lidx > x.lidx, true)
"""

_UNCOMMITTED = """
SELECT d.run, d.mid, d.op, t.kept, t.rolled, d.mono + b.bound < t.asked AS before, d.src, d.inc, d.seq
FROM dlv d JOIN runs b ON b.run = d.run
JOIN (SELECT run, mid, min(CASE WHEN f = 'txn_commit' AND outcome <> 'fail' THEN inv END) AS asked,
    sum(CASE WHEN f = 'txn_commit' AND outcome <> 'fail' THEN 1 ELSE 0 END) AS kept,
    sum(CASE WHEN f = 'txn_rollback' AND outcome = 'ok' THEN 1 ELSE 0 END) AS rolled
  FROM ops WHERE f IN ('txn_begin', 'txn_commit', 'txn_rollback') GROUP BY run, mid) t
  ON t.run = d.run AND t.mid = d.mid
"""

#: Transactions with a commit and a rollback that both succeeded: the first of them ends the transaction.
_ENDED_TWICE = """
SELECT run, mid, op, f, other, src, inc, seq FROM (
  SELECT run, mid, op, f, src, inc, seq, lag(f) OVER w AS other FROM ops
  WHERE f IN ('txn_commit', 'txn_rollback') AND outcome = 'ok'
  WINDOW w AS (PARTITION BY run, mid ORDER BY inv, op)
) WHERE f <> other
"""

_UNDELIVERED = """
SELECT o.run, o.mid, o.op, o.src, o.inc, o.seq FROM ops o
JOIN runs r ON r.run = o.run AND r.drained IS NOT NULL
ANTI JOIN dlv d ON d.run = o.run AND d.mid = o.mid WHERE o.f = 'txn_commit' AND o.outcome = 'ok'
"""

_DELAYS = """
SELECT o.run, o.mid, o.delay_ms, min(d.mono) - o.inv AS waited, max(r.bound) AS bound,
  min(o.src) AS src, min(o.inc) AS inc, min(o.seq) AS seq
FROM ops o JOIN dlv d ON d.run = o.run AND d.mid = o.mid JOIN runs r ON r.run = o.run
WHERE o.f = 'send' AND o.delay_ms > 0 GROUP BY o.run, o.mid, o.delay_ms, o.inv
"""

#: Faults and how long each was in force, with the time in which it may still have an effect. Times in which
#: a process waited for a processor have none after their end.
_FAULTS = f"""
SELECT b.run, b.fault, b.mono AS begun, coalesce(max(e.mono), max(w.last_mono)) AS ended FROM fault b
JOIN (SELECT run, max(last_mono) AS last_mono FROM writers GROUP BY run) w ON w.run = b.run
LEFT JOIN fault e ON e.run = b.run AND e.fault = b.fault AND e.e = 'end'
WHERE b.e = 'begin' GROUP BY b.run, b.fault, b.mono
UNION ALL
SELECT run, -1, since, until - {RECOVERY_NS} FROM ({STARVED}) x
"""

#: Delayed messages with their first delivery and their lateness, excluding times in which a fault was in
#: force or had just ended. Includes only messages that a consumer waited for: a group of their topic
#: requested or received messages when they were already late.
_LATENESS = f"""
SELECT m.run, m.mid, m.delay_ms, m.src, m.inc, m.seq, m.first - m.due - coalesce(sum(CASE
    WHEN k.fault IS NOT NULL THEN least(k.ended + {RECOVERY_NS}, m.first) - greatest(k.begun, m.due) END),
    0) AS late
FROM (
  SELECT s.run, s.mid, s.topic, s.delay_ms, s.src, s.inc, s.seq, min(d.mono) AS first,
    s.inv + s.delay_ms * 1000000 + r.bound AS due
  FROM sends s JOIN dlv d ON d.run = s.run AND d.mid = s.mid JOIN runs r ON r.run = s.run
  WHERE s.outcome = 'ok' AND s.delay_ms > 0
  GROUP BY s.run, s.mid, s.topic, s.delay_ms, s.src, s.inc, s.seq, s.inv, r.bound
) m
SEMI JOIN (
  SELECT o.run, j.topic, o.inv AS begun, o.completed AS ended FROM ops o
  JOIN (SELECT run, grp, topic FROM member WHERE e = 'join' GROUP BY run, grp, topic) j
    ON j.run = o.run AND j.grp = o.grp
  WHERE o.f = 'receive' AND o.outcome = 'ok'
  UNION ALL
  SELECT run, topic, mono, mono FROM dlv WHERE grp IS NOT NULL
) x ON x.run = m.run AND x.topic = m.topic AND x.begun > m.due + {LATE_NS} AND x.ended < m.first
LEFT JOIN ({_FAULTS}) k ON k.run = m.run AND k.begun < m.first AND k.ended + {RECOVERY_NS} > m.due
WHERE m.first > m.due + {LATE_NS}
GROUP BY m.run, m.mid, m.delay_ms, m.src, m.inc, m.seq, m.first, m.due
"""

_FIRST_INDEXES = """
SELECT d.run, d.node, d.low, coalesce(p.purged, -1) AS purged FROM (
  SELECT run, node, min(low) AS low FROM dump_ends GROUP BY run, node) d
LEFT JOIN (SELECT run, max(purge_to) AS purged FROM dump_ends GROUP BY run) p ON p.run = d.run
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "B1",
        "ConsumeQueues of all nodes agree with each other, with the log, and with the tags that were sent",
        "cq",
        "{log} at {qoff}: {what}",
        Part(
            _UNITS_BY_POSITION,
            "lidx_min < lidx_max OR size_min < size_max OR tag_min < tag_max",
            "log, qoff, 'the units of two nodes differ' AS what",
        ),
        Part(
            UNITS,
            "sure AND lidx <> unit_lidx",
            "log, qoff, node || ' points to index ' || CAST(unit_lidx AS STRING) "
            "|| ', but the message is at index ' || CAST(lidx AS STRING) AS what",
        ),
        Part(
            UNITS,
            "sure AND (size <> unit_size OR tag_hash <> unit_tag_hash)",
            "log, qoff, node || ' has ' || CAST(unit_size AS STRING) || ' bytes and tag hash ' "
            "|| coalesce(CAST(unit_tag_hash AS STRING), 'none') || ', but the message at index ' "
            "|| CAST(lidx AS STRING) || ' has ' || CAST(size AS STRING) || ' and ' "
            "|| coalesce(CAST(tag_hash AS STRING), 'none') AS what",
        ),
        Part(
            _TAG_HASHES,
            "tag_hash <> tag_code",
            "log, qoff, node || ' has tag hash ' || CAST(tag_hash AS STRING) || ', but the hash of the tag ' "
            "|| tag || ' that was sent is ' || CAST(tag_code AS STRING) AS what, src, inc, seq",
        ),
        # Units of unreadable entries have no entry to compare with.
        needs=(*EVIDENT, Need.SOUND_FILES, Need.IDS),
        clear_needs=(*WHOLE, Need.DUMPS),
    ),
    hard(
        "B2",
        "the minimum offset of a queue never decreases, and skips only removed messages",
        "min_offs",
        "{log}: operation {op} returned {min_off} {what}",
        Part(
            _MINIMUM_OFFSETS,
            "k = 0 AND min_off < before",
            "log, op, min_off, 'after ' || CAST(before AS STRING) AS what, src, inc, seq",
        ),
        Part(
            _SKIPPED_POSITIONS,
            "min_off > kept",
            "log, op, min_off, 'although position ' || CAST(kept AS STRING) || ' was never removed' AS what,"
            " src, inc, seq",
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "B3",
        "a look-up by key returns exactly the messages with this key",
        "lookups",
        "operation {op} for key {key}: message {mid} {what}",
        Part(
            _LOOKUP_RESULTS,
            "sent_key IS NULL OR sent_key <> key",
            "op, key, mid, 'has a different key' AS what, src, inc, seq",
        ),
        Part(
            _LOOKUP_RESULTS,
            "digest <> sent_digest",
            "op, key, mid, 'has different content' AS what, src, inc, seq",
        ),
        Part(
            _LOOKUP_RESULTS,
            "log <> sent_log",
            "op, key, mid, 'was sent to ' || sent_log || ', not to ' || log AS what, src, inc, seq",
        ),
        Part(
            _LOOKUP_RESULTS,
            "log = sent_log AND (pos < pos_min OR pos > pos_max)",
            "op, key, mid, 'is at ' || CAST(pos_min AS STRING) || ' of ' || log || ', not at ' "
            "|| CAST(pos AS STRING) AS what, src, inc, seq",
        ),
        Part(_MISSING_RESULTS, "true", "op, key, mid, 'is missing' AS what, src, inc, seq"),
        Part(
            _DUPLICATE_RESULTS,
            "true",
            "op, 'of the request' AS key, mid, 'appears twice' AS what, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "B4",
        "a transaction ends once, and its message is delivered if and only if it committed",
        "transactions",
        "message {mid} {what} (line of operation {op})",
        Part(
            _UNCOMMITTED,
            "kept = 0",
            "mid, op, CASE WHEN rolled > 0 THEN 'was delivered although it had been rolled back' "
            "ELSE 'was delivered without a commit' END AS what, src, inc, seq",
        ),
        Part(
            _UNCOMMITTED,
            "kept > 0 AND before",
            "mid, op, 'was delivered before the request to commit it' AS what, src, inc, seq",
        ),
        Part(
            _UNDELIVERED,
            "true",
            "mid, op, 'was committed but never delivered' AS what, src, inc, seq",
        ),
        Part(
            _ENDED_TWICE,
            "true",
            "mid, op, 'got success for ' || f || ' after success for ' || other AS what, src, inc, seq",
        ),
        needs=(*DRAINED, Need.CLOCKS),
    ),
    hard(
        "B5",
        "a delayed message is not delivered before its time",
        "delayed reads",
        "message {mid}, delayed by {delay_ms} ms, was delivered {waited} ns after its send started",
        Part(
            _DELAYS,
            f"waited + bound < {least_ns('delay_ms')}",
            "mid, delay_ms, waited, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.OPERATIONS, Need.CLOCKS),
    ),
    hard(
        "B9",
        f"a delayed message is at most {LATE_NS // 1_000_000_000} s late, not counting faults",
        "delayed reads",
        "message {mid}, delayed by {delay_ms} ms, was delivered {late} ns after its time",
        Part(_LATENESS, f"late > {LATE_NS}", "mid, delay_ms, late, src, inc, seq"),
        # The duration of faults is known only from faults that took effect.
        needs=(*WHOLE, Need.CLOCKS, Need.FAULTS),
    ),
    hard(
        "B6",
        "only files up to the index in a committed purge entry are removed",
        "dump",
        "{node}: its files start at index {low}; committed entries release entries up to {purged}",
        Part(_FIRST_INDEXES, "low > purged + 1", "node, low, purged", few=True),
        needs=(*NODES, Need.DUMPS, Need.SOUND_FILES),
    ),
    hard(
        "B8",
        "every stored message is in the IndexFiles of the same node, under each of its keys",
        "queued",
        "{node}: message {mid} at index {lidx} is missing under one of its keys",
        Part(
            UNITS,
            "sure AND lidx > purged AND NOT coalesce(indexed, true)",
            "node, mid, lidx, log, qoff",
        ),
        needs=(*NODES, Need.DUMPS, Need.SOUND_FILES),
    ),
    hard(
        "B10",
        "no ConsumeQueue extends beyond the last message of its queue in the log",
        "cq dump",
        "{node}: {log} has units up to {qoff}; the last message in the log is at {last}",
        Part(_UNITS_BEYOND, "true", "node, log, qoff, last"),
        needs=(*NODES, Need.DUMPS, Need.SOUND_FILES),
    ),
)
