"""Offsets of groups whose commits and resets name no generation: what came before what is told by times."""

from __future__ import annotations

from chaos.checker.checks.consumer import CHANGE_NS

_OP_LOG = "'q:' || {t}.topic || '/' || CAST({t}.q AS STRING)"

#: Where consumers were told to begin (k 0), each beside the highest offset that was certainly stored before
#: it asked for that (k 1), since the last line that tells of a reset. Who is assigned a queue asks a moment
#: before.
ASSIGNED = f"""
SELECT *, max(CASE WHEN k = 1 THEN off END) OVER (PARTITION BY run, grp, log, part ORDER BY known_at, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stored
FROM (
  SELECT *, CASE WHEN k = 1 THEN t + {CHANGE_NS} ELSE t END AS known_at,
    sum(CASE WHEN k = 2 THEN 1 ELSE 0 END) OVER (PARTITION BY run, grp, log ORDER BY t, k DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS part
  FROM (
    SELECT run, grp, log, consumer, epoch, off, CASE e WHEN 'assign' THEN 0 ELSE 2 END AS k, mono AS t, src,
      inc, seq
    FROM member WHERE e IN ('assign', 'reset')
    UNION ALL
    SELECT o.run, o.grp, {_OP_LOG.format(t="o")}, o.consumer, o.epoch, o.off_asked, 1, o.ret + r.bound, o.src,
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

#: What groups were told of their offsets, and between which moments that was found out.
_TOLD = f"""
SELECT run, grp, log, 'consumer ' || consumer || ' was assigned' AS what, off, mono - {CHANGE_NS} AS begun,
  mono AS ended, src, inc, seq
FROM member WHERE e = 'assign' AND off IS NOT NULL
UNION ALL
SELECT run, grp, {_OP_LOG.format(t="f")}, 'an offset was answered', off_answered, inv, ret, src, inc, seq
FROM ops f WHERE f = 'fetch_off' AND outcome = 'ok' AND off_answered IS NOT NULL AND topic IS NOT NULL
  AND q IS NOT NULL
"""

#: What may have stored an offset: commits, and whoever crashed writes no more of them.
_STORED = f"""
SELECT o.run, o.grp, {_OP_LOG.format(t="o")} AS log, o.off_asked AS off, o.inv,
  CASE WHEN o.outcome = 'ok' THEN o.ret END AS ret
FROM ops o WHERE o.f = 'commit_off' AND o.outcome <> 'fail' AND o.topic IS NOT NULL AND o.q IS NOT NULL
UNION ALL
SELECT d.run, d.grp, d.log, d.pos + 1, d.mono, CAST(NULL AS BIGINT) FROM done d
SEMI JOIN member c ON c.run = d.run AND c.grp = d.grp AND c.consumer = d.consumer AND c.e = 'crash'
"""

#: What groups were told after a reset, beside the highest that may have been stored since. Only where the
#: reset before is certain: no other one may have happened in between, and nothing was purged.
AFTER_RESETS = f"""
SELECT t.run, t.grp, t.log, t.what, t.off, t.src, t.inc, t.seq, t.off_reset,
  greatest(t.off_reset, coalesce(max(c.off), t.off_reset)) AS most
FROM (
  SELECT t.run, t.grp, t.log, t.what, t.off, t.ended, t.src, t.inc, t.seq, b.bound,
    max(r.inv) AS reset_inv, max_by(r.op, r.inv) AS reset_op, max_by(r.off, r.inv) AS off_reset
  FROM ({_TOLD}) t JOIN runs b ON b.run = t.run
  JOIN ({_RESETS}) r ON r.run = t.run AND r.grp = t.grp AND r.log = t.log AND r.outcome = 'ok'
    AND r.ret + b.bound < t.begun
  ANTI JOIN (SELECT run FROM milestones WHERE e = 'purge' GROUP BY run) p ON p.run = t.run
  GROUP BY t.run, t.grp, t.log, t.what, t.off, t.ended, t.src, t.inc, t.seq, b.bound
) t
ANTI JOIN ({_RESETS}) x ON x.run = t.run AND x.grp = t.grp AND x.log = t.log AND x.op <> t.reset_op
  AND x.inv <= t.ended + t.bound AND (x.outcome <> 'ok' OR x.ret + t.bound >= t.reset_inv)
LEFT JOIN ({_STORED}) c ON c.run = t.run AND c.grp = t.grp AND c.log = t.log AND c.inv <= t.ended + t.bound
  AND (c.ret IS NULL OR c.ret + t.bound >= t.reset_inv)
GROUP BY t.run, t.grp, t.log, t.what, t.off, t.src, t.inc, t.seq, t.off_reset
"""
