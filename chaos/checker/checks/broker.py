"""The broker's store: B1-B6."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.checks.sources import UNITS
from chaos.checker.needs import DRAINED, EVIDENT, NODES, WHOLE, Need

#: So late a delayed message may be, and so long after a fault it is not counted; ns.
LATE_NS, RECOVERY_NS = 30_000_000_000, 10_000_000_000

_AGREED = """
SELECT run, log, qoff, min(lidx) AS lidx_min, max(lidx) AS lidx_max, min(size) AS size_min,
  max(size) AS size_max,
  min(tag_hash) AS tag_min, max(tag_hash) AS tag_max
FROM cq GROUP BY run, log, qoff
"""

#: Characters of a tag whose hash is computed here.
_TAG_LENGTH = 64
_POWERS = ", ".join(f"({n}, {31**n % 2**32})" for n in range(_TAG_LENGTH))

#: Units of the first node beside the hash of the tag with which the message was sent: Java's hashCode, which
#: filters of consumers compare. It is computed here, because the reader of the files asks the product.
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

_LEAST = """
SELECT *, max(CASE WHEN k = 1 THEN min_off END) OVER (PARTITION BY run, log ORDER BY t, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM (
  SELECT r.*, k.k, CASE WHEN k.k = 0 THEN r.inv ELSE r.ret + b.bound END AS t
  FROM reads r JOIN runs b ON b.run = r.run
  CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k WHERE r.min_off IS NOT NULL AND r.outcome = 'ok')
"""

#: Answers that a log begins later than at its first position, beside the first position (`kept`) that nobody
#: had purged by then.
_PASSED_OVER = """
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

_FOUND = """
SELECT d.run, d.op, o.key, s.key AS sent_key, d.digest, s.digest AS sent_digest, d.mid, d.src, d.inc, d.seq
FROM looked_up d
JOIN ops o ON o.run = d.run AND o.op = d.op
JOIN sends s ON s.run = d.run AND s.mid = d.mid
"""

_TWICE = """
SELECT run, op, mid, min(src) AS src, min(inc) AS inc, max(seq) AS seq FROM looked_up
GROUP BY run, op, mid, log, pos HAVING count(*) > 1
"""

_MISSED = """
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

_UNDELIVERED = """
SELECT o.run, o.mid, o.op, o.src, o.inc, o.seq FROM ops o
JOIN runs r ON r.run = o.run AND r.drained IS NOT NULL
ANTI JOIN dlv d ON d.run = o.run AND d.mid = o.mid WHERE o.f = 'txn_commit' AND o.outcome = 'ok'
"""

_DELAYED = """
SELECT o.run, o.mid, o.delay_ms, min(d.mono) - o.inv AS waited, max(r.bound) AS bound,
  min(o.src) AS src, min(o.inc) AS inc, min(o.seq) AS seq
FROM ops o JOIN dlv d ON d.run = o.run AND d.mid = o.mid JOIN runs r ON r.run = o.run
WHERE o.f = 'send' AND o.delay_ms > 0 GROUP BY o.run, o.mid, o.delay_ms, o.inv
"""

#: Faults, each with how long it was in force.
_FAULTS = """
SELECT b.run, b.fault, b.mono AS begun, coalesce(max(e.mono), max(w.last_mono)) AS ended FROM fault b
JOIN (SELECT run, max(last_mono) AS last_mono FROM writers GROUP BY run) w ON w.run = b.run
LEFT JOIN fault e ON e.run = b.run AND e.fault = b.fault AND e.e = 'end'
WHERE b.e = 'begin' GROUP BY b.run, b.fault, b.mono
"""

#: Delayed messages, when each was given to somebody first, and for how long it was late then, without the
#: time in which something was broken or had been broken a moment before. Only those that somebody had looked
#: for in vain: a group of their topic received, or was given something, when they were late already.
_LATE = f"""
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

_BEGINNINGS = """
SELECT d.run, d.node, d.low, coalesce(p.purged, -1) AS purged FROM (
  SELECT run, node, min(low) AS low FROM dump_ends GROUP BY run, node) d
LEFT JOIN (SELECT run, max(purge_to) AS purged FROM dump_ends GROUP BY run) p ON p.run = d.run
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "B1",
        "ConsumeQueues of all nodes agree with each other, with the log and with the tags that were sent",
        "cq",
        "{log} at {qoff}: {what}",
        Part(
            _AGREED,
            "lidx_min < lidx_max OR size_min < size_max OR tag_min < tag_max",
            "log, qoff, 'units of different nodes differ' AS what",
        ),
        Part(
            UNITS,
            "sure AND lidx <> unit_lidx",
            "log, qoff, node || ' points at index ' || CAST(unit_lidx AS STRING) || ', the message is at "
            "index ' "
            "|| CAST(lidx AS STRING) AS what",
        ),
        Part(
            UNITS,
            "sure AND (size <> unit_size OR tag_hash <> unit_tag_hash)",
            "log, qoff, node || ' says ' || CAST(unit_size AS STRING) || ' bytes and tag ' "
            "|| coalesce(CAST(unit_tag_hash AS STRING), 'none') || ', the message at index ' "
            "|| CAST(lidx AS STRING) || ' has ' || CAST(size AS STRING) || ' and ' "
            "|| coalesce(CAST(tag_hash AS STRING), 'none') AS what",
        ),
        Part(
            _TAG_HASHES,
            "tag_hash <> tag_code",
            "log, qoff, node || ' says tag ' || CAST(tag_hash AS STRING) || ', the tag that was sent is ' "
            "|| tag || ', whose hash is ' || CAST(tag_code AS STRING) AS what, src, inc, seq",
        ),
        # Units of entries that could not be read point nowhere.
        needs=(*EVIDENT, Need.SOUND_FILES, Need.IDS),
        clear_needs=(*WHOLE, Need.DUMPS),
    ),
    hard(
        "B2",
        "the least offset of a queue never falls, and passes over nothing that was not removed",
        "min_offs",
        "{log}: operation {op} was answered {min_off} {what}",
        Part(
            _LEAST,
            "k = 0 AND min_off < before",
            "log, op, min_off, 'after ' || CAST(before AS STRING) AS what, src, inc, seq",
        ),
        Part(
            _PASSED_OVER,
            "min_off > kept",
            "log, op, min_off, 'and what stands at ' || CAST(kept AS STRING) || ' was never removed' AS what,"
            " src, inc, seq",
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "B3",
        "a look-up by key gives exactly the messages with this key",
        "lookups",
        "operation {op} for key {key}: message {mid} {what}",
        Part(
            _FOUND,
            "sent_key IS NULL OR sent_key <> key",
            "op, key, mid, 'has another key' AS what, src, inc, seq",
        ),
        Part(
            _FOUND,
            "digest <> sent_digest",
            "op, key, mid, 'has another content' AS what, src, inc, seq",
        ),
        Part(_MISSED, "true", "op, key, mid, 'is missing' AS what, src, inc, seq"),
        Part(_TWICE, "true", "op, 'that was asked for' AS key, mid, 'stands twice' AS what, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "B4",
        "of a transaction only what was committed is delivered, and all of that",
        "transactions",
        "message {mid} {what}; the line is that of operation {op}",
        Part(
            _UNCOMMITTED,
            "kept = 0",
            "mid, op, CASE WHEN rolled > 0 THEN 'was delivered, and had been rolled back' "
            "ELSE 'was delivered, and nobody had committed it' END AS what, src, inc, seq",
        ),
        Part(
            _UNCOMMITTED,
            "kept > 0 AND before",
            "mid, op, 'was delivered before anybody asked for its commit' AS what, src, inc, seq",
        ),
        Part(
            _UNDELIVERED,
            "true",
            "mid, op, 'was committed, and never delivered' AS what, src, inc, seq",
        ),
        needs=(*DRAINED, Need.CLOCKS),
    ),
    hard(
        "B5",
        "a delayed message is not delivered before its time",
        "delayed reads",
        "message {mid}, to be delayed by {delay_ms} ms, was delivered {waited} ns after its send began",
        # Cluster time may run faster than ours by a thousandth.
        Part(
            _DELAYED,
            "waited + bound < delay_ms * 999000",
            "mid, delay_ms, waited, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.OPERATIONS, Need.CLOCKS),
    ),
    hard(
        "B9",
        f"a delayed message is late by {LATE_NS // 1_000_000_000} s at most, but for the time of faults",
        "delayed reads",
        "message {mid}, to be delayed by {delay_ms} ms, came {late} ns later than that",
        Part(_LATE, f"late > {LATE_NS}", "mid, delay_ms, late, src, inc, seq"),
        # How long something was broken is told by the faults that took effect.
        needs=(*WHOLE, Need.CLOCKS, Need.FAULTS),
    ),
    hard(
        "B6",
        "only what a committed entry lets go is gone from the beginning of the files",
        "dump",
        "{node}: its files begin at index {low}; committed entries let go what is up to {purged}",
        Part(_BEGINNINGS, "low > purged + 1", "node, low, purged", few=True),
        needs=(*NODES, Need.DUMPS, Need.SOUND_FILES),
    ),
    hard(
        "B8",
        "every stored message is in the IndexFiles of the same node, under each of its keys",
        "queued",
        "{node}: message {mid} at index {lidx} is not found by its keys",
        Part(
            UNITS,
            "sure AND lidx > purged AND NOT coalesce(indexed, true)",
            "node, mid, lidx, log, qoff",
        ),
        needs=(*NODES, Need.DUMPS, Need.SOUND_FILES),
    ),
)
