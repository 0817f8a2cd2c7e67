"""Guarantees of a classic master and its slave: D1-D7.

Classic brokers elect no master. When a master is permanently lost, the harness promotes its slave
(`taken_over`). The old log is read from the files of the lost master (`left`), the new log from the files of
its successor.
"""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, warning
from chaos.checker.needs import DRAINED, EVIDENT, WHOLE, Need

_TAKE_OVERS = """
SELECT m.run, m.node, m.member, m.ended, m.mono, r.bound, r.broker_role FROM meta m
JOIN runs r ON r.run = m.run WHERE m.e = 'taken_over'
"""

#: Messages that the lost master had acknowledged and its successor lacks. `behind`: in the lost log, the
#: message follows the position at which the log of the successor ended.
_LOST_MESSAGES = f"""
SELECT s.run, s.mid, s.log, t.node, t.member, t.ended, t.broker_role, l.off, s.src, s.inc, s.seq,
  coalesce(l.off >= t.ended, false) AS behind
FROM sends s JOIN ({_TAKE_OVERS}) t ON t.run = s.run AND s.ret <= t.mono + t.bound
LEFT JOIN (SELECT run, node, mid, max(off) AS off FROM left_records WHERE mid IS NOT NULL
  GROUP BY run, node, mid) l ON l.run = s.run AND l.mid = s.mid AND l.node = t.member
ANTI JOIN dump d ON d.run = s.run AND d.mid = s.mid AND d.node = t.node
WHERE s.said = 'ok'
"""

#: Records before the end of the successor's log at its promotion that only one of the two logs has.
_DIFFERENT_RECORDS = f"""
SELECT t.run, t.node AS who, t.member AS other, d.off, d.src, d.inc, d.seq FROM ({_TAKE_OVERS}) t
JOIN dump d ON d.run = t.run AND d.node = t.node AND d.off < t.ended
ANTI JOIN left_records l
  ON l.run = d.run AND l.node = t.member AND l.off = d.off AND l.chain_key = d.chain_key
UNION ALL
SELECT t.run, t.member, t.node, l.off, l.src, l.inc, l.seq FROM ({_TAKE_OVERS}) t
JOIN left_records l ON l.run = t.run AND l.node = t.member AND l.off < t.ended
ANTI JOIN dump d ON d.run = l.run AND d.node = t.node AND d.off = l.off AND d.chain_key = l.chain_key
"""

#: Messages in each log of classic records, with the previous queue offset. No log restarts its offsets.
_OFFSET_SEQUENCE = """
SELECT *, lag(qoff) OVER (PARTITION BY run, who, log ORDER BY off) AS before FROM (
  SELECT run, node AS who, log, off, qoff, src, inc, seq FROM dump WHERE off IS NOT NULL AND qoff IS NOT NULL
  UNION ALL
  SELECT run, node || ' before', log, off, qoff, src, inc, seq FROM left_records WHERE qoff IS NOT NULL
)
"""

#: Acknowledged messages by position and by number of earlier promotions.
_ACKNOWLEDGED_POSITIONS = f"""
SELECT run, log, pos, life, min(mid) AS mid, max(mid) AS mid_other FROM (
  SELECT s.run, s.log, s.pos, s.mid, count(t.mono) AS life FROM sends s
  JOIN runs r ON r.run = s.run AND r.store = 'classic'
  LEFT JOIN ({_TAKE_OVERS}) t ON t.run = s.run AND t.mono < s.ret
  WHERE s.said = 'ok' AND s.pos IS NOT NULL GROUP BY s.run, s.log, s.pos, s.mid
) GROUP BY run, log, pos, life
"""

#: Record numbers, with the lowest and the highest `chain_key` of the nodes. These differ if this record or an
#: earlier one differs.
_RECORD_HISTORIES = """
SELECT d.run, d.lidx, min(d.node) AS node, max(d.node) AS node_other, min(d.chain_key) AS chain_min,
  max(d.chain_key) AS chain_max FROM dump d
JOIN runs r ON r.run = d.run AND r.store = 'classic' GROUP BY d.run, d.lidx
"""

#: Ends of queues that masters reported (k 0), each with the highest end that an earlier answer of the same
#: master shows (k 1). `life`: the number of promotions before. Operations around a promotion, and reports of
#: a slave whose master is dead, are excluded.
_QUEUE_ENDS = f"""
SELECT *, max(CASE WHEN k = 1 THEN ended END) OVER (PARTITION BY run, log, life ORDER BY t, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM (
  SELECT a.run, a.log, a.op, a.ended, a.is_report, a.life, a.src, a.inc, a.seq, k.k,
    CASE WHEN k.k = 0 THEN a.inv ELSE a.ret + a.bound END AS t
  FROM (
    SELECT o.run, o.log, o.op, o.ended, o.is_report, o.inv, o.ret, r.bound, o.src, o.inc, o.seq,
      count(t.mono) FILTER (WHERE t.mono + t.bound < o.inv) AS life
    FROM (
      SELECT run, 'q:' || topic || '/' || CAST(q AS STRING) AS log, op, max_off AS ended, true AS is_report,
        inv, ret, src, inc, seq
      FROM ops WHERE f IN ('max_off', 'min_off') AND outcome = 'ok' AND max_off IS NOT NULL
        AND topic IS NOT NULL AND q IS NOT NULL
      UNION ALL
      SELECT run, log, op, pos + 1, false, inv, ret, src, inc, seq FROM sends
      WHERE said = 'ok' AND pos IS NOT NULL AND ret IS NOT NULL
    ) o
    JOIN runs r ON r.run = o.run AND r.store = 'classic'
    LEFT JOIN ({_TAKE_OVERS}) t ON t.run = o.run
    GROUP BY o.run, o.log, o.op, o.ended, o.is_report, o.inv, o.ret, r.bound, o.src, o.inc, o.seq
    HAVING count(*) FILTER (WHERE t.mono + t.bound >= o.inv AND t.mono - t.bound <= o.ret) = 0
  ) a CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k
)
"""

#: Times at which a master was dead, and a slave may have answered in its place.
_WITHOUT_MASTER = """
SELECT b.run, b.mono AS begun, coalesce(max(x.mono), 9223372036854775807) AS ended FROM fault b
LEFT JOIN fault x ON x.run = b.run AND x.fault = b.fault AND x.e = 'end'
WHERE b.e = 'begin' GROUP BY b.run, b.fault, b.mono
"""

_FALLEN_ENDS = f"""
SELECT e.* FROM ({_QUEUE_ENDS}) e
ANTI JOIN ({_WITHOUT_MASTER}) f ON f.run = e.run AND f.begun <= e.t AND e.t <= f.ended
"""

#: Acknowledged messages, with the number of nodes whose log had been written up to the end of the message.
_COPIES = """
SELECT c.run, c.op, c.mid, min(c.log) AS log, min(c.src) AS src, min(c.inc) AS inc, min(c.seq) AS seq,
  count(*) FILTER (WHERE c.stored >= c.ended) AS copies
FROM (
  SELECT *, max_by(off, CASE WHEN k = 0 THEN nth END) OVER (PARTITION BY run, node ORDER BY t, k, nth
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stored
  FROM (
    SELECT d.run, d.node, 0 AS k, d.mono - r.bound AS t, d.seq AS nth, d.off, CAST(NULL AS BIGINT) AS op,
      CAST(NULL AS BIGINT) AS mid, CAST(NULL AS BIGINT) AS ended, '' AS log, d.src, d.inc, d.seq
    FROM disk d JOIN runs r ON r.run = d.run WHERE d.e = 'stored'
    UNION ALL
    SELECT s.run, n.node, 1, s.ret, 0, CAST(NULL AS BIGINT), s.op, s.mid, f.ended, s.log, s.src, s.inc, s.seq
    FROM sends s JOIN runs r ON r.run = s.run AND r.broker_role = 'SYNC_MASTER'
    JOIN (SELECT run, node FROM disk WHERE e = 'watched' GROUP BY run, node) n ON n.run = s.run
    JOIN (SELECT run, mid, min(off + size) AS ended FROM dump WHERE mid IS NOT NULL GROUP BY run, mid) f
      ON f.run = s.run AND f.mid = s.mid
    WHERE s.said = 'ok' AND s.ret IS NOT NULL
  )
) c WHERE c.k = 1 GROUP BY c.run, c.op, c.mid
"""

_FILES = (Need.DUMPS, Need.SOUND_FILES)

CHECKS: tuple[Check, ...] = (
    hard(
        "D1",
        "with synchronous double write, acknowledged messages survive the loss of the master",
        "taken_over doubled oks",
        "{member} had acknowledged message {mid} of {log}; {node}, its successor, lacks it",
        Part(
            _LOST_MESSAGES,
            "broker_role = 'SYNC_MASTER'",
            "broker_role, member, node, mid, log, src, inc, seq",
        ),
        needs=(*WHOLE, *_FILES, Need.CLOCKS),
    ),
    hard(
        "D2",
        "without double write, a failover loses only the unreplicated end of the log",
        "taken_over single oks",
        "message {mid} of {log} is lost, although it was not beyond {ended} in the log of {member}",
        Part(
            _LOST_MESSAGES,
            "broker_role = 'ASYNC_MASTER' AND NOT behind",
            "broker_role, behind, mid, log, ended, member, src, inc, seq",
        ),
        needs=(*WHOLE, *_FILES, Need.CLOCKS),
    ),
    warning(
        "D2W",
        "without double write, a failover loses no acknowledged message",
        "taken_over single oks",
        "message {mid} of {log}, at offset {off} of {member}, is lost; {node} took over at {ended}",
        Part(
            _LOST_MESSAGES,
            "broker_role = 'ASYNC_MASTER' AND behind",
            "broker_role, behind, mid, log, off, member, node, ended, src, inc, seq",
        ),
        needs=(*WHOLE, *_FILES, Need.CLOCKS),
    ),
    hard(
        "D3",
        "a classic master assigns the offsets of a queue consecutively, each once",
        "classic oks",
        "{log} at {pos}: {what}",
        Part(
            _ACKNOWLEDGED_POSITIONS,
            "mid < mid_other",
            "log, pos, 'acknowledged for message ' || CAST(mid AS STRING) || ' and for message ' || "
            "CAST(mid_other AS STRING) AS what",
        ),
        Part(
            _OFFSET_SEQUENCE,
            "qoff <> coalesce(before + 1, qoff)",
            "log, qoff AS pos, 'in the log of ' || who || ' it follows ' || CAST(before AS STRING) AS "
            "what, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.CLOCKS, Need.IDS),
        clear_needs=(*DRAINED, *_FILES),
    ),
    hard(
        "D4",
        "a slave that takes over has a byte-for-byte prefix of its master's log",
        "taken_over dump",
        "{other} has a different record than {who} at offset {off}",
        Part(_DIFFERENT_RECORDS, "true", "off, who, other, src, inc, seq"),
        needs=(*WHOLE, *_FILES),
    ),
    hard(
        "D5",
        "the logs of a master and its slave are identical up to the end of the shorter one",
        "classic dump",
        "{node} and {node_other} differ in record {lidx}, or in a record before it",
        Part(_RECORD_HISTORIES, "chain_min < chain_max", "lidx, node, node_other"),
        needs=(*EVIDENT, Need.DUMPS),
        clear_needs=(*WHOLE, *_FILES),
    ),
    hard(
        "D6",
        "the end of a queue never falls, except at the promotion of a slave",
        "classic oks",
        "{log}: operation {op} returned the end {ended}, after an answer had shown {before}",
        Part(_FALLEN_ENDS, "k = 0 AND is_report AND ended < before", "log, op, ended, before, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "D7",
        "with synchronous double write, acknowledged messages are written on two nodes first",
        "doubled oks",
        "message {mid} of {log} was acknowledged when its record was written on {copies} of 2 nodes",
        Part(_COPIES, "copies < 2", "mid, log, copies, op, src, inc, seq"),
        needs=(*WHOLE, Need.DUMPS, Need.CLOCKS, Need.SYNCS),
    ),
)
