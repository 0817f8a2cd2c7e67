"""Ownership of queues and offsets of groups: C14-C25.

Commits and resets have no sequence numbers, so the checks order them by time.
"""

from __future__ import annotations

from chaos.checker.checks.cluster_time import least_ns
from chaos.checker.checks.consumer import CHANGE_NS
from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.needs import DRAINED, EVIDENT, WHOLE, Need

#: Time before and after a fault in which an answer may be lost without a trace; ns.
SETTLED_NS = 2_000_000_000

_OP_LOG = "'q:' || {t}.topic || '/' || CAST({t}.q AS STRING)"

#: Acknowledged commits of members of a group.
_COMMITS = f"""
SELECT o.run, o.grp, o.consumer, {_OP_LOG.format(t="o")} AS log, o.op, o.off_asked AS off, o.inv,
  o.ret, o.src, o.inc, o.seq
FROM ops o WHERE o.f = 'commit_off' AND o.outcome = 'ok' AND o.consumer IS NOT NULL
  AND o.topic IS NOT NULL AND o.q IS NOT NULL
"""

#: Offsets that groups received or stored, with the end of the queue: one past the last position that anything
#: in the trace shows.
_OFFSETS = f"""
SELECT o.run, o.grp, o.log, o.what, o.off, o.src, o.inc, o.seq, coalesce(k.last, -1) + 1 AS ended FROM (
  SELECT run, grp, log, 'stored' AS what, off, src, inc, seq FROM ({_COMMITS})
  UNION ALL
  SELECT f.run, f.grp, {_OP_LOG.format(t="f")}, 'answered', f.off_answered, f.src, f.inc, f.seq FROM ops f
  WHERE f.f = 'fetch_off' AND f.outcome = 'ok' AND f.topic IS NOT NULL AND f.q IS NOT NULL
  UNION ALL
  SELECT run, grp, log, 'assigned', off, src, inc, seq FROM member WHERE e = 'assign'
) o
LEFT JOIN (
  SELECT run, log, max(pos) AS last FROM (
    SELECT run, log, max(pos) AS pos FROM known GROUP BY run, log
    UNION ALL SELECT run, log, max(qoff) FROM cq GROUP BY run, log
    UNION ALL SELECT run, log, max(off) FROM meta WHERE e = 'drain_target' GROUP BY run, log
  ) GROUP BY run, log
) k ON k.run = o.run AND k.log = o.log
"""

#: Commits of groups whose assignments are in the trace, with an assignment of the queue to the consumer.
_COMMIT_OWNERS = f"""
SELECT c.*, a.consumer AS owner FROM ({_COMMITS}) c
SEMI JOIN (SELECT run, grp FROM member WHERE e = 'assign' GROUP BY run, grp) g
  ON g.run = c.run AND g.grp = c.grp
LEFT JOIN (SELECT run, grp, consumer, log FROM member WHERE e = 'assign' GROUP BY run, grp, consumer, log) a
  ON a.run = c.run AND a.grp = c.grp AND a.consumer = c.consumer AND a.log = c.log
"""

#: Start offsets of assignments (k 0), each with the highest offset that was certainly stored before the
#: consumer fetched it (k 1), since the last line about a reset. A consumer fetches the offset shortly before
#: the line of its assignment.
_ASSIGNMENT_STARTS = f"""
SELECT *, max(CASE WHEN k = 1 THEN off END) OVER (PARTITION BY run, grp, log, part ORDER BY known_at, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stored
FROM (
  SELECT *, CASE WHEN k = 1 THEN t + {CHANGE_NS} ELSE t END AS known_at,
    sum(CASE WHEN k = 2 THEN 1 ELSE 0 END) OVER (PARTITION BY run, grp, log ORDER BY t, k DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS part
  FROM (
    SELECT run, grp, log, consumer, off, CASE e WHEN 'assign' THEN 0 ELSE 2 END AS k, mono AS t, src,
      inc, seq
    FROM member WHERE e IN ('assign', 'reset')
    UNION ALL
    SELECT o.run, o.grp, {_OP_LOG.format(t="o")}, o.consumer, o.off_asked, 1, o.ret + r.bound, o.src,
      o.inc, o.seq
    FROM ops o JOIN runs r ON r.run = o.run
    WHERE o.f = 'commit_off' AND o.outcome = 'ok' AND o.topic IS NOT NULL AND o.q IS NOT NULL
  )
)
"""

_RESETS = f"""
SELECT o.run, o.grp, {_OP_LOG.format(t="o")} AS log, o.op, o.off_asked AS off, o.inv, o.ret, o.outcome
FROM ops o WHERE o.f = 'reset_off' AND o.outcome <> 'fail' AND o.topic IS NOT NULL AND o.q IS NOT NULL
"""

#: Offsets that groups received, and the interval in which each was read.
_RECEIVED_OFFSETS = f"""
SELECT run, grp, log, 'consumer ' || consumer || ' was assigned' AS what, off, mono - {CHANGE_NS} AS begun,
  mono AS ended, src, inc, seq
FROM member WHERE e = 'assign' AND off IS NOT NULL
UNION ALL
SELECT run, grp, {_OP_LOG.format(t="f")}, 'an offset was answered', off_answered, inv, ret, src, inc, seq
FROM ops f WHERE f = 'fetch_off' AND outcome = 'ok' AND off_answered IS NOT NULL AND topic IS NOT NULL
  AND q IS NOT NULL
"""

#: Events that may have stored an offset. A crashed consumer may have stored offsets without a line.
_POSSIBLY_STORED = f"""
SELECT o.run, o.grp, {_OP_LOG.format(t="o")} AS log, o.off_asked AS off, o.inv,
  CASE WHEN o.outcome = 'ok' THEN o.ret END AS ret
FROM ops o WHERE o.f = 'commit_off' AND o.outcome <> 'fail' AND o.topic IS NOT NULL AND o.q IS NOT NULL
UNION ALL
SELECT d.run, d.grp, d.log, d.pos + 1, d.mono, CAST(NULL AS BIGINT) FROM done d
SEMI JOIN member c ON c.run = d.run AND c.grp = d.grp AND c.consumer = d.consumer AND c.e = 'crash'
"""

#: Offsets that groups received after a reset, with the highest offset that may have been stored since. Only
#: for resets that certainly took effect, without another reset in between and without a purge.
_AFTER_RESETS = f"""
SELECT t.run, t.grp, t.log, t.what, t.off, t.src, t.inc, t.seq, t.off_reset,
  greatest(t.off_reset, coalesce(max(c.off), t.off_reset)) AS most
FROM (
  SELECT t.run, t.grp, t.log, t.what, t.off, t.ended, t.src, t.inc, t.seq, b.bound,
    max(r.inv) AS reset_inv, max_by(r.op, r.inv) AS reset_op, max_by(r.off, r.inv) AS off_reset
  FROM ({_RECEIVED_OFFSETS}) t JOIN runs b ON b.run = t.run
  JOIN ({_RESETS}) r ON r.run = t.run AND r.grp = t.grp AND r.log = t.log AND r.outcome = 'ok'
    AND r.ret + b.bound < t.begun
  ANTI JOIN (SELECT run FROM milestones WHERE e = 'purge' GROUP BY run) p ON p.run = t.run
  GROUP BY t.run, t.grp, t.log, t.what, t.off, t.ended, t.src, t.inc, t.seq, b.bound
) t
ANTI JOIN ({_RESETS}) x ON x.run = t.run AND x.grp = t.grp AND x.log = t.log AND x.op <> t.reset_op
  AND x.inv <= t.ended + t.bound AND (x.outcome <> 'ok' OR x.ret + t.bound >= t.reset_inv)
LEFT JOIN ({_POSSIBLY_STORED}) c ON c.run = t.run AND c.grp = t.grp AND c.log = t.log
  AND c.inv <= t.ended + t.bound AND (c.ret IS NULL OR c.ret + t.bound >= t.reset_inv)
GROUP BY t.run, t.grp, t.log, t.what, t.off, t.src, t.inc, t.seq, t.off_reset
"""

#: Resets that took effect, each with the first later delivery of a message that was sent after the answer,
#: and with the number of deliveries of the message at the reset offset until then. Such a message cannot have
#: been read before the reset, so a consumer that receives it has passed the reset. Without another reset in
#: between and without a purge.
_PASSED_RESETS = f"""
SELECT p.run, p.grp, p.log, p.op, p.off, p.mid, p.src, p.inc, p.seq, count(d.run) AS again
FROM (
  SELECT r.run, r.grp, r.log, r.op, r.off, r.inv, r.ret, b.bound, min(d.mono) AS passed,
    min_by(d.mid, d.mono) AS mid, min_by(d.src, d.mono) AS src, min_by(d.inc, d.mono) AS inc,
    min_by(d.seq, d.mono) AS seq
  FROM ({_RESETS}) r JOIN runs b ON b.run = r.run
  JOIN known k ON k.run = r.run AND k.log = r.log AND k.pos = r.off
  JOIN dlv d ON d.run = r.run AND d.grp = r.grp AND d.log = r.log
  JOIN sends s ON s.run = d.run AND s.mid = d.mid AND s.inv > r.ret + b.bound
  ANTI JOIN (SELECT run FROM milestones WHERE e = 'purge' GROUP BY run) g ON g.run = r.run
  ANTI JOIN (SELECT run, grp FROM member WHERE e = 'join' AND coalesce(filter, '*') <> '*'
    GROUP BY run, grp) f ON f.run = r.run AND f.grp = r.grp
  WHERE r.outcome = 'ok' GROUP BY r.run, r.grp, r.log, r.op, r.off, r.inv, r.ret, b.bound
) p
ANTI JOIN ({_RESETS}) x ON x.run = p.run AND x.grp = p.grp AND x.log = p.log AND x.op <> p.op
  AND x.inv <= p.passed + p.bound AND (x.outcome <> 'ok' OR x.ret + p.bound >= p.inv)
LEFT JOIN dlv d ON d.run = p.run AND d.grp = p.grp AND d.log = p.log AND d.pos = p.off
  AND d.mono + p.bound >= p.inv AND d.mono <= p.passed + p.bound
GROUP BY p.run, p.grp, p.log, p.op, p.off, p.mid, p.src, p.inc, p.seq
"""

#: Start offsets of assignments and the first delivered positions. Only for offsets with a message, and for
#: groups without a filter.
_FIRST_POSITIONS = """
SELECT s.run, s.grp, s.consumer, s.log, s.pos, greatest(a.off, coalesce(e.pos, 0)) AS off, s.src, s.inc, s.seq
FROM spells s
JOIN member a ON a.run = s.run AND a.grp = s.grp AND a.consumer = s.consumer AND a.log = s.log
  AND a.epoch = s.epoch AND a.e = 'assign'
JOIN known k ON k.run = a.run AND k.log = a.log AND k.pos = a.off
ANTI JOIN (SELECT run, grp FROM member WHERE e = 'join' AND coalesce(filter, '*') <> '*' GROUP BY run, grp) g
  ON g.run = s.run AND g.grp = s.grp
LEFT JOIN (
  SELECT t.run, t.log, t.first_try, max(b.pos) AS pos FROM spells t JOIN runs r ON r.run = t.run
  JOIN begins b ON b.run = t.run AND b.log = t.log AND b.mono <= t.first_try + r.bound
  GROUP BY t.run, t.log, t.first_try) e ON e.run = s.run AND e.log = s.log AND e.first_try = s.first_try
WHERE s.first_try IS NOT NULL
"""

#: Revocations that members report, with the last delivery of the queue to the member in that epoch.
_REVOCATIONS = """
SELECT m.run, m.grp, m.consumer, m.log, m.mono AS taken_at, s.last, m.src, m.inc, m.seq FROM member m
JOIN spells s ON s.run = m.run AND s.grp = m.grp AND s.consumer = m.consumer AND s.log = m.log
  AND s.epoch = m.epoch AND s.src = m.src AND s.inc = m.inc
WHERE m.e = 'revoke'
"""

#: Subtracted from the life of a lock, because a member checks its lock shortly before it delivers; ns.
_LOCK_SLACK_NS = 500_000_000

#: Assignments of queues shortly after the last delivery to another consumer that had not released the queue
#: and thus still held its lock. If the harness, which runs the members, waited for a processor at the time of
#: the delivery, the check of the lock may have been earlier by that time.
_LOCKED_ASSIGNMENTS = f"""
SELECT a.run, a.grp, a.consumer, a.log, a.src, a.inc, a.seq, s.consumer AS holder,
  a.mono - s.last AS since_ns, max(j.delay_ms) AS locked_ms
FROM member a JOIN runs b ON b.run = a.run
JOIN spells s ON s.run = a.run AND s.grp = a.grp AND s.log = a.log AND s.consumer <> a.consumer
  AND s.last <= a.mono
JOIN member j ON j.run = s.run AND j.grp = s.grp AND j.consumer = s.consumer AND j.topic = s.topic
  AND j.e = 'join' AND s.last + j.delay_ms * 1000000 > a.mono + b.bound + {_LOCK_SLACK_NS}
ANTI JOIN member v ON v.run = s.run AND v.grp = s.grp AND v.log = s.log AND v.consumer = s.consumer
  AND v.epoch = s.epoch AND v.e = 'revoke' AND v.mono <= a.mono
LEFT JOIN (SELECT DISTINCT run, since, mono, size FROM meta WHERE e = 'starved' AND node = 'harness') h
  ON h.run = a.run AND h.since <= s.last AND h.mono >= s.last - {_LOCK_SLACK_NS}
WHERE a.e = 'assign'
GROUP BY a.run, a.grp, a.consumer, a.log, a.src, a.inc, a.seq, a.mono, b.bound, s.consumer, s.last, j.delay_ms
HAVING s.last + j.delay_ms * 1000000 > a.mono + b.bound + {_LOCK_SLACK_NS} + coalesce(max(h.size), 0)
"""

#: Offsets that groups received (k 1), with the highest offset that an earlier request stored or set (k 0).
#: Only for groups that start at the beginning of their queues, in runs without a purge. A crashed consumer
#: may have stored its progress without a line.
_HIGHEST_REQUESTED = f"""
SELECT *, coalesce(max(CASE WHEN k = 0 THEN off END) OVER (PARTITION BY run, grp, log ORDER BY t, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS most
FROM (
  SELECT o.run, o.grp, {_OP_LOG.format(t="o")} AS log, 0 AS k, o.inv - r.bound AS t, o.off_asked AS off,
    '' AS what, o.src, o.inc, o.seq
  FROM ops o JOIN runs r ON r.run = o.run
  WHERE o.f IN ('commit_off', 'reset_off') AND o.outcome <> 'fail' AND o.topic IS NOT NULL AND o.q IS NOT NULL
  UNION ALL
  SELECT d.run, d.grp, d.log, 0, d.mono - r.bound, d.pos + 1, '', d.src, d.inc, d.seq FROM done d
  JOIN runs r ON r.run = d.run
  SEMI JOIN member c ON c.run = d.run AND c.grp = d.grp AND c.consumer = d.consumer AND c.e = 'crash'
  UNION ALL
  SELECT f.run, f.grp, {_OP_LOG.format(t="f")}, 1, f.ret, f.off_answered, 'answered', f.src, f.inc, f.seq
  FROM ops f
  WHERE f.f = 'fetch_off' AND f.outcome = 'ok' AND f.topic IS NOT NULL AND f.q IS NOT NULL
  UNION ALL
  SELECT run, grp, log, 1, mono, off, 'assigned to ' || consumer, src, inc, seq FROM member
  WHERE e = 'assign'
) o
ANTI JOIN (SELECT run FROM milestones WHERE e = 'purge' GROUP BY run) p ON p.run = o.run
ANTI JOIN (SELECT run, grp FROM member WHERE e = 'join' AND NOT coalesce(from_start, false)
  GROUP BY run, grp) j ON j.run = o.run AND j.grp = o.grp
"""

#: Deliveries to groups with per-message acknowledgment, with the highest earlier attempt.
_ATTEMPTS = """
SELECT run, grp, consumer, log, mid, attempt, src, inc, seq, max(attempt) OVER (
  PARTITION BY run, grp, mid ORDER BY mono, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM dlv WHERE received
"""

#: Deliveries whose attempt exceeds the number of other attempts that the trace can account for. An attempt
#: whose answer never arrived left no line, but it hid the message for `delay_ms`, unless its member left
#: (`gone`: members that left since the send).
_EXCESS_ATTEMPTS = f"""
SELECT * FROM (
  SELECT d.run, d.grp, d.consumer, d.log, d.mid, d.attempt, d.given - 1 AS others, d.src, d.inc, d.seq,
    d.mono + b.bound - s.inv AS passed, h.delay_ms, count(g.mono) AS gone
  FROM (
    SELECT * FROM (
      SELECT run, grp, consumer, log, mid, attempt, mono, src, inc, seq,
        count(*) OVER (PARTITION BY run, grp, mid) AS given
      FROM dlv WHERE received
    ) WHERE attempt > given - 1
  ) d
  JOIN (SELECT run, mid, min(inv) AS inv FROM sends GROUP BY run, mid) s ON s.run = d.run AND s.mid = d.mid
  JOIN runs b ON b.run = d.run
  JOIN (SELECT run, grp, min(coalesce(delay_ms, 0)) AS delay_ms FROM ops WHERE f = 'receive'
    GROUP BY run, grp) h ON h.run = d.run AND h.grp = d.grp AND h.delay_ms > 0
  LEFT JOIN (SELECT run, grp, mono FROM member WHERE e IN ('leave', 'crash')) g
    ON g.run = d.run AND g.grp = d.grp AND g.mono >= s.inv - b.bound AND g.mono <= d.mono + b.bound
  GROUP BY d.run, d.grp, d.consumer, d.log, d.mid, d.attempt, d.given, d.src, d.inc, d.seq, d.mono, b.bound,
    s.inv, h.delay_ms
) WHERE {least_ns("(attempt - others - gone) * delay_ms")} > passed
"""

#: Redeliveries after the invisibility of the previous delivery expired, by a receive that started after the
#: previous delivery was shown, because answers may overtake each other. The previous receive must have
#: succeeded. Near a fault the broker may have seen its answer fail, and such an attempt does not count.
_AFTER_EXPIRY = f"""
SELECT d.run, d.grp, d.consumer, d.log, d.mid, d.attempt, d.attempt_before, d.src, d.inc, d.seq
FROM (
  SELECT run, grp, consumer, log, mid, op, attempt, mono, src, inc, seq, lag(mono) OVER w AS given,
    lag(op) OVER w AS op_before, lag(attempt) OVER w AS attempt_before
  FROM dlv WHERE received WINDOW w AS (PARTITION BY run, grp, mid ORDER BY mono, seq)
) d
JOIN ops r ON r.run = d.run AND r.op = d.op_before AND r.outcome = 'ok' AND r.delay_ms > 0
  AND d.mono - d.given >= r.delay_ms * 1000000
JOIN ops o ON o.run = d.run AND o.op = d.op AND o.inv >= d.given
ANTI JOIN (
  SELECT b.run, b.mono AS begun, coalesce(max(e.mono), 9223372036854775807 - {SETTLED_NS}) AS ended
  FROM fault b
  LEFT JOIN fault e ON e.run = b.run AND e.fault = b.fault AND e.e = 'end'
  WHERE b.e = 'begin' GROUP BY b.run, b.fault, b.mono
) k ON k.run = d.run AND k.begun <= d.given + {SETTLED_NS} AND d.given <= k.ended + {SETTLED_NS}
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "C14",
        "a group accepts offsets only from consumers that own the queue",
        "assigns commits_off",
        "{grp}/{consumer} stored an offset of {log} by operation {op} without an assignment of the queue",
        Part(_COMMIT_OWNERS, "owner IS NULL", "grp, consumer, log, op, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C15",
        "no offset of a group exceeds the end of its queue",
        "commits_off",
        "group {grp} on {log}: offset {off} was {what}; the queue ends at {ended}",
        Part(_OFFSETS, "off > ended", "grp, log, off, what, ended, src, inc, seq"),
        needs=DRAINED,
    ),
    hard(
        "C16",
        "an assignment starts at the offset that was stored before, across masters",
        "assigns commits_off",
        "{grp}/{consumer} was assigned {log} from offset {off}, although {stored} had been stored",
        Part(_ASSIGNMENT_STARTS, "k = 0 AND off < stored", "grp, consumer, log, off, stored, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C17",
        "after a reset, a group continues from the new offset",
        "resets",
        "group {grp} on {log} was reset to {off_reset}: {what}",
        Part(
            _AFTER_RESETS,
            "off > most",
            "grp, log, off_reset, what || ', ' || CAST(off AS STRING) AS what, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C24",
        "after a reset, a group receives the messages from the new offset again",
        "resets group_reads",
        "group {grp} on {log}: operation {op} reset it to {off}, but message {mid}, sent later, came first",
        Part(_PASSED_RESETS, "again = 0", "grp, log, op, off, mid, again, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C25",
        "no consumer is assigned a queue whose lock another one still holds",
        "assigns group_reads",
        "{grp}/{consumer} was assigned {log} {since_ns} ns after a delivery to {holder}, "
        "which then held the lock for another {locked_ms} ms",
        Part(
            _LOCKED_ASSIGNMENTS,
            "true",
            "grp, consumer, log, since_ns, holder, locked_ms, src, inc, seq",
            few=True,
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C18",
        "a consumer starts an assigned queue at the offset of the assignment",
        "assigns group_reads",
        "{grp}/{consumer} was assigned {log} from offset {off}, but started at {pos}",
        Part(_FIRST_POSITIONS, "pos > off", "grp, consumer, log, off, pos, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C19",
        "a consumer receives nothing from a queue after its revocation",
        "revokes group_reads",
        "{grp}/{consumer} received messages of {log} after the queue had been revoked",
        Part(_REVOCATIONS, "last > taken_at", "grp, consumer, log, src, inc, seq", few=True),
        needs=(*EVIDENT, Need.CLOCKS),
    ),
    hard(
        "C21",
        "the delivery attempt of a message never decreases",
        "receives group_reads",
        "{grp}/{consumer} received message {mid} of {log} as attempt {attempt}, after attempt {before}",
        # Equal attempts are valid: an attempt does not count if the broker saw its answer fail.
        Part(_ATTEMPTS, "attempt < before", "grp, consumer, log, mid, attempt, before, src, inc, seq"),
        needs=(*EVIDENT, Need.CLOCKS),
    ),
    hard(
        "C23",
        "an attempt counts if and only if it was not acknowledged in time",
        "receives group_reads",
        "{grp}/{consumer} received message {mid} of {log} as attempt {attempt}, {what}",
        Part(
            _AFTER_EXPIRY,
            "attempt <= attempt_before",
            "grp, consumer, mid, log, attempt, 'after attempt ' "
            "|| CAST(attempt_before AS STRING) || ' had expired' AS what, src, inc, seq",
        ),
        Part(
            _EXCESS_ATTEMPTS,
            "true",
            "grp, consumer, mid, log, attempt, 'although its group received it only ' "
            "|| CAST(others AS STRING) || ' other times' AS what, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C22",
        "a group receives no offset above those that were stored or set",
        "commits_off",
        "group {grp} on {log}: offset {off} was {what}; the highest requested offset was {most}",
        Part(
            _HIGHEST_REQUESTED,
            "k = 1 AND off > most",
            "grp, log, off, what, most, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
)
