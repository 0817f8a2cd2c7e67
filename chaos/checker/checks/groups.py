"""Who owns a queue, and how far a group has got: C13-C22.

The `epoch` of an assignment, of a commit and of a reset is the generation of the group, the same for all its
members. Generations are given by the log, so their order needs no clocks.
"""

from __future__ import annotations

from chaos.checker.checks.offsets_in_time import AFTER_RESETS, ASSIGNED
from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.needs import DRAINED, EVIDENT, NODE_LINES, WHOLE, Need

#: So long before and after a fault an answer may be lost in a way that nobody can tell; ns.
SETTLED_NS = 2_000_000_000

_OP_LOG = "'q:' || {t}.topic || '/' || CAST({t}.q AS STRING)"

#: Commits that were acknowledged, to members of a group. `epoch`: NULL by protocols that name none.
_TAKEN = f"""
SELECT o.run, o.grp, o.consumer, o.epoch, {_OP_LOG.format(t="o")} AS log, o.op, o.off_asked AS off, o.inv,
  o.ret, o.src, o.inc, o.seq
FROM ops o WHERE o.f = 'commit_off' AND o.outcome = 'ok' AND o.consumer IS NOT NULL
  AND o.topic IS NOT NULL AND o.q IS NOT NULL
"""

#: Those that name the generation in which their member owns the queue.
_FENCED = f"SELECT * FROM ({_TAKEN}) WHERE epoch >= 0"

#: Who says of a queue that it is his in a generation.
_OWNERS = f"""
SELECT run, grp, log, epoch, min(consumer) AS consumer, max(consumer) AS consumer_other,
  max_by(src, consumer) AS src, max_by(inc, consumer) AS inc, max_by(seq, consumer) AS seq
FROM (
  SELECT run, grp, log, epoch, consumer, src, inc, seq FROM member WHERE e = 'assign'
  UNION ALL
  SELECT run, grp, log, epoch, consumer, src, inc, seq FROM ({_FENCED})
) GROUP BY run, grp, log, epoch
"""

#: Commits, beside the first generation in which their consumer was assigned the queue. Of groups whose
#: assignments are in the trace.
_ENTITLED = f"""
SELECT c.*, a.epoch AS first_epoch FROM ({_TAKEN}) c
SEMI JOIN (SELECT run, grp FROM member WHERE e = 'assign' GROUP BY run, grp) g
  ON g.run = c.run AND g.grp = c.grp
LEFT JOIN (SELECT run, grp, consumer, log, min(epoch) AS epoch FROM member WHERE e = 'assign'
  GROUP BY run, grp, consumer, log) a
  ON a.run = c.run AND a.grp = c.grp AND a.consumer = c.consumer AND a.log = c.log
"""

#: Resets of one queue that were answered, with the generation that each began.
_RESETS = f"""
SELECT o.run, o.grp, {_OP_LOG.format(t="o")} AS log, o.epoch, o.off_asked AS off, o.op, o.ret, o.src, o.inc,
  o.seq
FROM ops o WHERE o.f = 'reset_off' AND o.outcome = 'ok' AND o.epoch IS NOT NULL AND o.topic IS NOT NULL
  AND o.q IS NOT NULL
"""

#: Commits (k 1), each with the newest generation that somebody had been told of before it began (k 0).
_GENERATIONS = f"""
SELECT *, max(CASE WHEN k = 0 THEN epoch END) OVER (PARTITION BY run, grp, log ORDER BY t, k DESC
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS newest
FROM (
  SELECT c.run, c.grp, c.log, c.consumer, c.epoch, c.op, c.inv AS t, 1 AS k, c.src, c.inc, c.seq
  FROM ({_FENCED}) c
  UNION ALL
  SELECT m.run, m.grp, m.log, '', m.epoch, NULL, m.mono + r.bound, 0, '', NULL, NULL FROM member m
  JOIN runs r ON r.run = m.run WHERE m.e = 'assign'
  UNION ALL
  SELECT x.run, x.grp, x.log, '', x.epoch, NULL, x.ret + r.bound, 0, '', NULL, NULL FROM ({_RESETS}) x
  JOIN runs r ON r.run = x.run
)
"""

#: Offsets of groups that somebody was given or that were taken, beside the end of their queue: one behind the
#: last position that anybody has seen.
_OFFSETS_TOLD = f"""
SELECT o.run, o.grp, o.log, o.what, o.off, o.src, o.inc, o.seq, coalesce(k.last, -1) + 1 AS ended FROM (
  SELECT run, grp, log, 'stored' AS what, off, src, inc, seq FROM ({_TAKEN})
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

#: Where consumers were told to begin (k 0), each beside the highest offset that was stored in an earlier
#: generation (k 1), since the last line that tells of a reset. What is acknowledged in a generation was taken
#: before the next one began, and whoever is assigned a queue is told what was stored by then.
_BEGINNINGS = f"""
SELECT *, max(CASE WHEN k = 1 THEN off END) OVER (PARTITION BY run, grp, log, part ORDER BY epoch, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stored
FROM (
  SELECT *, sum(CASE WHEN k = 2 THEN 1 ELSE 0 END) OVER (PARTITION BY run, grp, log ORDER BY t, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS part
  FROM (
    SELECT run, grp, log, consumer, epoch, off, CASE e WHEN 'assign' THEN 0 ELSE 2 END AS k, mono AS t, src,
      inc, seq
    FROM member WHERE e IN ('assign', 'reset')
    UNION ALL
    SELECT run, grp, log, consumer, epoch, off, 1, ret, src, inc, seq FROM ({_FENCED})
  )
)
"""

#: What a group was told of its offset, by the generation in which it was. Who is assigned a queue commits
#: in that generation only afterwards; `until`: what began later was not there when the offset was answered.
_TOLD_IN = f"""
SELECT run, grp, log, epoch, off, 'consumer ' || consumer || ' was assigned' AS what, epoch - 1 AS last_epoch,
  CAST(NULL AS BIGINT) AS until, src, inc, seq
FROM member WHERE e = 'assign' AND off IS NOT NULL
UNION ALL
SELECT f.run, f.grp, {_OP_LOG.format(t="f")}, f.epoch, f.off_answered, 'an offset was answered', f.epoch,
  f.ret + r.bound, f.src, f.inc, f.seq
FROM ops f JOIN runs r ON r.run = f.run
WHERE f.f = 'fetch_off' AND f.outcome = 'ok' AND f.epoch IS NOT NULL AND f.off_answered IS NOT NULL
  AND f.topic IS NOT NULL AND f.q IS NOT NULL
"""

#: The same, beside the last reset before it, and the highest that may have been stored since. A reset of
#: which nobody knows what became may have happened at any time.
_AFTER_RESETS = f"""
SELECT t.run, t.grp, t.log, t.what, t.off, t.src, t.inc, t.seq, r.op, r.off AS off_reset,
  greatest(r.off, coalesce(max(c.off), r.off)) AS most
FROM (
  SELECT t.run, t.grp, t.log, t.what, t.off, t.last_epoch, t.until, t.src, t.inc, t.seq,
    max(r.epoch) AS reset_epoch
  FROM ({_TOLD_IN}) t JOIN ({_RESETS}) r
    ON r.run = t.run AND r.grp = t.grp AND r.log = t.log AND r.epoch <= t.epoch
  GROUP BY t.run, t.grp, t.log, t.what, t.off, t.last_epoch, t.until, t.src, t.inc, t.seq
) t
JOIN ({_RESETS}) r ON r.run = t.run AND r.grp = t.grp AND r.log = t.log AND r.epoch = t.reset_epoch
LEFT JOIN (
  SELECT o.run, o.grp, {_OP_LOG.format(t="o")} AS log, o.epoch, o.off_asked AS off, o.inv FROM ops o
  WHERE o.f = 'commit_off' AND o.outcome <> 'fail'
  UNION ALL
  SELECT o.run, o.grp, {_OP_LOG.format(t="o")}, NULL, o.off_asked, o.inv FROM ops o
  WHERE o.f = 'reset_off' AND (o.outcome = 'info' OR (o.outcome = 'ok' AND o.epoch IS NULL))
) c ON c.run = t.run AND c.grp = t.grp AND c.log = t.log
  AND (c.epoch IS NULL OR (c.epoch >= t.reset_epoch AND c.epoch <= t.last_epoch))
  AND (t.until IS NULL OR c.inv <= t.until)
GROUP BY t.run, t.grp, t.log, t.what, t.off, t.src, t.inc, t.seq, r.op, r.off
"""

#: Offsets of a queue at which its consumers were, or that they tried to store: who is reset to one of these
#: goes on as before.
_OWN_OFFSETS = f"""
SELECT run, grp, log, consumer, off FROM member WHERE e = 'assign' AND off IS NOT NULL
UNION
SELECT o.run, o.grp, {_OP_LOG.format(t="o")}, o.consumer, o.off_asked FROM ops o WHERE o.f = 'commit_off'
"""

#: Commits of a generation at or after a reset, of consumers that were last assigned the queue before it.
_UNHEEDED = f"""
SELECT c.run, c.grp, c.log, c.consumer, c.op, c.off, c.src, c.inc, c.seq, c.assigned, max(r.epoch) AS epoch,
  max_by(r.off, r.epoch) AS off_reset
FROM (
  SELECT c.run, c.grp, c.log, c.consumer, c.epoch, c.op, c.off, c.src, c.inc, c.seq, max(a.epoch) AS assigned
  FROM ({_FENCED}) c
  SEMI JOIN (SELECT run, grp, log FROM ({_RESETS}) GROUP BY run, grp, log) s
    ON s.run = c.run AND s.grp = c.grp AND s.log = c.log
  JOIN member a ON a.run = c.run AND a.grp = c.grp AND a.log = c.log AND a.consumer = c.consumer
    AND a.e = 'assign' AND a.epoch <= c.epoch
  GROUP BY c.run, c.grp, c.log, c.consumer, c.epoch, c.op, c.off, c.src, c.inc, c.seq
) c
JOIN ({_RESETS}) r ON r.run = c.run AND r.grp = c.grp AND r.log = c.log AND r.epoch <= c.epoch
ANTI JOIN (
  SELECT x.run, x.grp, {_OP_LOG.format(t="x")} AS log, w.consumer FROM ops x
  JOIN ({_OWN_OFFSETS}) w ON w.run = x.run AND w.grp = x.grp AND w.off = x.off_asked
    AND w.log = {_OP_LOG.format(t="x")}
  WHERE x.f = 'reset_off' AND x.outcome <> 'fail'
) o ON o.run = c.run AND o.grp = c.grp AND o.log = c.log AND o.consumer = c.consumer
GROUP BY c.run, c.grp, c.log, c.consumer, c.op, c.off, c.src, c.inc, c.seq, c.assigned
"""

#: Where consumers were to begin, and where they began. Only where there is a message at that offset, and of
#: groups that want every message.
_BEGUN = """
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

#: What members say was taken from them, and when they were given something of it last in the same generation.
_TAKEN_AWAY = """
SELECT m.run, m.grp, m.consumer, m.log, m.mono AS taken_at, s.last, m.src, m.inc, m.seq FROM member m
JOIN spells s ON s.run = m.run AND s.grp = m.grp AND s.consumer = m.consumer AND s.log = m.log
  AND s.epoch = m.epoch AND s.src = m.src AND s.inc = m.inc
WHERE m.e = 'revoke'
"""

#: Assignments of a member, each with the newest generation that it had been told of before.
_GENERATIONS_OF_MEMBERS = """
SELECT run, grp, consumer, log, epoch, src, inc, seq, max(epoch) OVER (
  PARTITION BY run, grp, consumer, src, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
  AS before
FROM member WHERE e = 'assign'
"""

#: Offsets that groups were told (k 1), beside the highest that anybody had asked to store, or to set, before
#: (k 0). Of groups that begin at the start of their queues, where nothing was purged. Who crashes writes no
#: more, and may still have stored how far it was.
_STORED_BY_SOMEBODY = f"""
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

#: What groups that receive messages one by one were given, and as which attempt before.
_ATTEMPTS = """
SELECT run, grp, consumer, log, mid, attempt, src, inc, seq, max(attempt) OVER (
  PARTITION BY run, grp, mid ORDER BY mono, seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM dlv WHERE received
"""

#: What members were given as a later attempt than there were others that anything tells of. Nothing tells of
#: an attempt whose answer never arrived, but it kept the message for `delay_ms`, unless its member went
#: (`gone`: those that did since the message was sent).
_UNTRIED = """
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
) WHERE (attempt - others - gone) * delay_ms * 999000 > passed
"""

#: What was received again when the time was over for which somebody else had it, by a receive that began
#: after the one before had shown it (answers overtake each other). The one before had to have ended well.
#: While something is broken, and a moment later, its answer may seem not to have arrived, and then it does
#: not count.
_EXPIRED = f"""
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
        "C13",
        "in a generation of a group a queue has one owner",
        "fenced",
        "group {grp}, generation {epoch}: {log} belonged to {consumer} and to {consumer_other}",
        Part(
            _OWNERS,
            "consumer < consumer_other",
            "grp, log, epoch, consumer, consumer_other, src, inc, seq",
        ),
        needs=EVIDENT,
    ),
    hard(
        "C14",
        "offsets are taken only of the owner of the queue, and only in the group's present generation",
        "assigns commits_off",
        "{grp}/{consumer} stored an offset of {log} by operation {op}, {what}",
        Part(
            _ENTITLED,
            "first_epoch IS NULL OR first_epoch > epoch",
            "grp, consumer, log, op, 'and had not been assigned it' AS what, src, inc, seq",
        ),
        Part(
            _GENERATIONS,
            "k = 1 AND newest > epoch",
            "grp, consumer, log, op, 'in generation ' || CAST(epoch AS STRING) || ' after ' "
            "|| CAST(newest AS STRING) || ' had begun' AS what, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C15",
        "no offset of a group lies beyond the end of the queue",
        "commits_off",
        "group {grp} on {log}: offset {off} was {what}; the queue ends at {ended}",
        Part(_OFFSETS_TOLD, "off > ended", "grp, log, off, what, ended, src, inc, seq"),
        needs=DRAINED,
    ),
    hard(
        "C16",
        "who is assigned a queue is told the offset that was stored before, over all masters",
        "assigns commits_off",
        "{grp}/{consumer} was to begin on {log} at {off} in generation {epoch}; {stored} had been stored",
        Part(
            _BEGINNINGS,
            "k = 0 AND off < stored",
            "grp, consumer, log, off, epoch, stored, src, inc, seq",
        ),
        Part(
            ASSIGNED,
            "k = 0 AND off < stored",
            "grp, consumer, log, off, epoch, stored, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C17",
        "a group whose offset was reset goes on from there",
        "resets",
        "group {grp} on {log} had been reset to {off_reset}: {what}",
        Part(
            _AFTER_RESETS,
            "off > most",
            "grp, log, off_reset, what || ', ' || CAST(off AS STRING) AS what, src, inc, seq",
        ),
        Part(
            _UNHEEDED,
            "assigned < epoch AND off > off_reset",
            "grp, log, off_reset, consumer || ' went on, and stored ' || CAST(off AS STRING) || ' by "
            "operation ' || CAST(op AS STRING) AS what, src, inc, seq",
        ),
        Part(
            AFTER_RESETS,
            "off > most",
            "grp, log, off_reset, what || ', ' || CAST(off AS STRING) AS what, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C18",
        "a consumer that is assigned a queue begins where it was told to",
        "assigns group_reads",
        "{grp}/{consumer} was to begin on {log} at {off}, and began at {pos}",
        Part(_BEGUN, "pos > off", "grp, consumer, log, off, pos, src, inc, seq"),
        needs=WHOLE,
    ),
    hard(
        "C19",
        "a consumer is given nothing of a queue that was taken from it",
        "revokes group_reads",
        "{grp}/{consumer} was given messages of {log} after it had been taken from it",
        Part(_TAKEN_AWAY, "last > taken_at", "grp, consumer, log, src, inc, seq", few=True),
        needs=EVIDENT,
    ),
    hard(
        "C20",
        "a member is never put back into an earlier generation of its group",
        "assigns",
        "{grp}/{consumer} was assigned {log} in generation {epoch}, after generation {before}",
        Part(
            _GENERATIONS_OF_MEMBERS,
            "epoch < before",
            "grp, consumer, log, epoch, before, src, inc, seq",
            few=True,
        ),
        needs=NODE_LINES,
    ),
    hard(
        "C21",
        "how often a message was tried is never forgotten",
        "receives group_reads",
        "{grp}/{consumer} was given message {mid} of {log} as attempt {attempt}, after attempt {before}",
        # Equal: what a client was given may not have been counted, if its answer seemed not to arrive.
        Part(_ATTEMPTS, "attempt < before", "grp, consumer, log, mid, attempt, before, src, inc, seq"),
        needs=(*EVIDENT, Need.CLOCKS),
    ),
    hard(
        "C23",
        "a message that nobody acknowledged in time counts as tried once more, and nothing else counts",
        "receives group_reads",
        "{grp}/{consumer} was given message {mid} of {log} as attempt {attempt}, {what}",
        Part(
            _EXPIRED,
            "attempt <= attempt_before",
            "grp, consumer, mid, log, attempt, 'after the time of attempt ' "
            "|| CAST(attempt_before AS STRING) || ' was over' AS what, src, inc, seq",
        ),
        Part(
            _UNTRIED,
            "true",
            "grp, consumer, mid, log, attempt, 'and its group was given it ' || CAST(others AS STRING) "
            "|| ' times besides' AS what, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "C22",
        "a group is told no offset beyond those that were stored or set",
        "commits_off",
        "group {grp} on {log}: offset {off} was {what}; nobody had asked for more than {most}",
        Part(
            _STORED_BY_SOMEBODY,
            "k = 1 AND off > most",
            "grp, log, off, what, most, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
)
