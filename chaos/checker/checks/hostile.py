"""Service beside hostile clients: A7-A11. A hostile client is a fault of a kind in `schema.HOSTILE`."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, void
from chaos.checker.needs import EVIDENT, WHOLE, Need
from chaos.trace.schema import ENDING, HOSTILE

#: A leader may change for a fault that ended so long ago; ns.
_GRACE_NS = 10_000_000_000
_DEFAULT_MS = 5_000
#: Successes are gathered by parts of the window, so that what is sorted does not grow with the load.
_PARTS = 8


def _words(kinds: tuple[str, ...]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)


_IS_HOSTILE = f"f IN ({_words(HOSTILE)})"

#: Runs with hostile clients, and within how long (ns) others are served there.
_RUNS = f"""
SELECT b.run, coalesce(max(b.window_ms), {_DEFAULT_MS}) * 1000000 AS span, max(b.most_bytes) AS most
FROM (SELECT run, window_ms, most_bytes FROM events WHERE ev = 'meta' AND e = 'run_begin') b
SEMI JOIN (SELECT run FROM fault WHERE {_IS_HOSTILE} GROUP BY run) h ON h.run = b.run
GROUP BY b.run
"""

#: When each fault was in force.
_IN_FORCE = f"""
SELECT b.run, b.fault, b.f, b.targets, b.{_IS_HOSTILE} AS is_hostile, b.mono AS since,
  coalesce(min(x.mono), max(r.healed), b.mono) AS until
FROM fault b
LEFT JOIN fault x ON x.run = b.run AND x.fault = b.fault AND x.e = 'end'
JOIN runs r ON r.run = b.run
WHERE b.e = 'begin' GROUP BY b.run, b.fault, b.f, b.targets, b.mono
"""

#: Times in which hostile clients work and no other fault is in force, or was within the window. `h`, `o`: how
#: many of each from here on.
_QUIET = f"""
SELECT run, span, island, min(moment) AS since, max(moment_next) AS until FROM (
  SELECT run, span, moment, moment_next, quiet,
    sum(CASE WHEN quiet AND NOT coalesce(quiet_before, false) THEN 1 ELSE 0 END)
      OVER (PARTITION BY run ORDER BY moment) AS island
  FROM (
    SELECT run, span, moment, moment_next, quiet,
      lag(quiet) OVER (PARTITION BY run ORDER BY moment) AS quiet_before
    FROM (
      SELECT run, span, moment, lead(moment) OVER w AS moment_next,
        sum(h) OVER w > 0 AND sum(o) OVER w = 0 AS quiet
      FROM (
        SELECT i.run, r.span, i.moment, sum(i.h) AS h, sum(i.o) AS o FROM (
          SELECT run, since AS moment, CASE WHEN is_hostile THEN 1 ELSE 0 END AS h,
            CASE WHEN is_hostile THEN 0 ELSE 1 END AS o FROM ({_IN_FORCE}) a
          UNION ALL
          SELECT b.run, CASE WHEN b.is_hostile THEN b.until ELSE b.until + w.span END,
            CASE WHEN b.is_hostile THEN -1 ELSE 0 END, CASE WHEN b.is_hostile THEN 0 ELSE -1 END
          FROM ({_IN_FORCE}) b JOIN ({_RUNS}) w ON w.run = b.run
        ) i JOIN ({_RUNS}) r ON r.run = i.run GROUP BY i.run, r.span, i.moment
      ) edges WINDOW w AS (PARTITION BY run ORDER BY moment)
    ) segments
  ) marked
) islands WHERE quiet AND moment_next IS NOT NULL GROUP BY run, span, island
HAVING max(moment_next) - min(moment) > span
"""

#: Reads that go on as long as their reader, or as it keeps a queue: what counts of them is what they bring.
_LASTING = "('get', 'pull', 'drain')"
_OP_NAME = "CASE WHEN grp IS NULL THEN f ELSE f || ' of group ' || grp END"
_DLV_NAME = "CASE WHEN grp IS NULL THEN 'reading' ELSE 'messages for group ' || grp END"

#: One success of somebody good: an operation that was answered, a reader or a group that was given a message.
_SUCCESSES = f"""
SELECT run, {_OP_NAME} AS what, ret AS moment FROM ops WHERE ret IS NOT NULL AND f NOT IN {_LASTING}
UNION ALL SELECT run, {_DLV_NAME}, mono FROM dlv_lines
"""

#: Every kind of operation, also those that never succeed.
_KINDS = f"""
SELECT run, what FROM (
  SELECT run, CASE WHEN f = 'get' THEN 'reading' ELSE {_OP_NAME} END AS what FROM ops
  WHERE f = 'get' OR f NOT IN {_LASTING}
  UNION ALL SELECT run, {_DLV_NAME} FROM member WHERE e = 'join'
) GROUP BY run, what
"""

#: Quiet times longer than the window without a success of one kind. Both ends of a quiet time count as one of
#: each kind.
_GAPS = f"""
SELECT run, what, span, before AS since, first AS until FROM (
  SELECT run, what, span, first,
    lag(last) OVER (PARTITION BY run, what, island ORDER BY part, first) AS before
  FROM (
    SELECT q.run, s.what, q.span, q.island,
      CAST(floor((s.moment - q.since) * {_PARTS} / q.span) AS BIGINT) AS part,
      min(s.moment) AS first, max(s.moment) AS last
    FROM (
      {_SUCCESSES}
      UNION ALL
      SELECT n.run, k.what, n.moment FROM ({_KINDS}) k
      JOIN (SELECT run, since AS moment FROM ({_QUIET}) b UNION ALL SELECT run, until FROM ({_QUIET}) e) n
        ON n.run = k.run
    ) s JOIN ({_QUIET}) q ON q.run = s.run AND s.moment >= q.since AND s.moment <= q.until
    GROUP BY q.run, s.what, q.span, q.island,
      CAST(floor((s.moment - q.since) * {_PARTS} / q.span) AS BIGINT)
  ) points
) spaced WHERE first - before > span
"""

#: From when to when somebody waits: for the answer of an operation; for a message that was acknowledged, and
#: that readers of the log or a group want, without end.
_WAITING = f"""
SELECT run, {_OP_NAME} AS what, inv AS asked, completed FROM ops
WHERE completed IS NOT NULL AND f NOT IN {_LASTING}
UNION ALL
SELECT run, 'reading', ret, CAST(NULL AS BIGINT) FROM sends WHERE outcome = 'ok'
UNION ALL
SELECT s.run, 'messages for group ' || j.grp, s.ret, CAST(NULL AS BIGINT) FROM sends s
JOIN (SELECT run, grp, topic, max(filter) AS filter FROM member WHERE e = 'join' GROUP BY run, grp, topic) j
  ON j.run = s.run AND j.topic = s.topic
WHERE s.outcome = 'ok' AND s.delay_ms IS NULL AND s.f <> 'txn_commit'
  AND (coalesce(j.filter, '*') = '*' OR instr('||' || j.filter || '||', '||' || s.tag || '||') > 0)
"""

#: And somebody waited for one, longer than the window. A message for a group has to be acknowledged in that
#: time. What members had that crashed is given to others later, so the time of a group begins anew then.
_UNSERVED = f"""
SELECT g.run, g.what, g.span, g.since, g.until, count(*) AS n FROM (
  SELECT g.run, g.what, g.span, g.until,
    CASE WHEN max(c.mono) > g.since THEN max(c.mono) ELSE g.since END AS since
  FROM ({_GAPS}) g
  LEFT JOIN member c ON c.run = g.run AND {_DLV_NAME.replace("grp", "c.grp")} = g.what AND c.e = 'crash'
    AND c.mono < g.until
  GROUP BY g.run, g.what, g.span, g.since, g.until
) g JOIN ({_WAITING}) w ON w.run = g.run AND w.what = g.what AND w.asked < g.until - g.span
  AND CASE WHEN w.completed IS NULL THEN w.asked ELSE w.completed END > g.since
GROUP BY g.run, g.what, g.span, g.since, g.until
"""

#: Leaders of times in which hostile clients worked, or had just done so. `others`: faults that explain them.
#: Behind `settled` the harness stops the nodes, and a leader that stops hands over.
_LEADERS = f"""
SELECT m.run, m.node, m.term, m.src, m.inc, m.seq, count(k.run) AS others FROM milestones m
SEMI JOIN (SELECT i.run, i.since, i.until + r.span AS until FROM ({_IN_FORCE}) i
  JOIN ({_RUNS}) r ON r.run = i.run WHERE i.is_hostile) h
  ON h.run = m.run AND m.mono >= h.since AND m.mono <= h.until
LEFT JOIN ({_IN_FORCE}) k
  ON k.run = m.run AND NOT k.is_hostile AND k.since <= m.mono AND m.mono <= k.until + {_GRACE_NS}
LEFT JOIN (SELECT run, min(mono) AS mono FROM meta WHERE e = 'settled' GROUP BY run) s ON s.run = m.run
WHERE m.e = 'leader' AND (s.mono IS NULL OR m.mono < s.mono)
GROUP BY m.run, m.node, m.term, m.src, m.inc, m.seq
"""

#: Servers that ended. `others`: faults that explain it.
_ENDED = f"""
SELECT m.run, m.node, m.text, m.src, m.inc, m.seq, count(k.run) AS others FROM meta m
LEFT JOIN ({_IN_FORCE}) k ON k.run = m.run AND k.f IN ({_words(ENDING)}) AND k.since <= m.mono
  AND m.mono <= k.until AND instr(',' || k.targets || ',', ',' || m.node || ',') > 0
WHERE m.e = 'ended' GROUP BY m.run, m.node, m.text, m.src, m.inc, m.seq
"""

_MEMORY = f"""
SELECT m.run, m.node, m.size, r.most, m.src, m.inc, m.seq FROM (
  SELECT run, node, size, src, inc, seq FROM events WHERE ev = 'meta' AND e = 'memory') m
JOIN ({_RUNS}) r ON r.run = m.run
"""

_EFFECTS = f"""
SELECT b.run, b.fault, b.f, b.src, b.inc, b.seq, coalesce(b.effective, false) AS began,
  max(CASE WHEN coalesce(x.effective, false) THEN 1 ELSE 0 END) AS achieved
FROM fault b LEFT JOIN fault x ON x.run = b.run AND x.fault = b.fault AND x.e = 'end'
WHERE b.e = 'begin' AND b.{_IS_HOSTILE} GROUP BY b.run, b.fault, b.f, b.src, b.inc, b.seq, b.effective
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "A7",
        "beside hostile clients all kinds of operations of good ones, and all groups, are served in time",
        "hostiles ops",
        "no success of `{what}` from {since} to {until}, longer than {span} ns, for {n} that waited",
        Part(_UNSERVED, "n > 0", "what, since, until, span, n"),
        needs=(*WHOLE, Need.CLOCKS),
        clear_needs=(*WHOLE, Need.FAULTS),
    ),
    hard(
        "A8",
        "hostile clients unseat no leader",
        "hostiles leaders",
        "{node} became leader of term {term}, and hostile clients are all that can be the reason",
        Part(_LEADERS, "others = 0", "node, term, src, inc, seq", few=True),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "A9",
        "hostile clients end no server",
        "hostiles",
        "{node} ended ({text}), and no fault explains it",
        Part(_ENDED, "others = 0", "node, text, src, inc, seq", few=True),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "A10",
        "beside hostile clients no server takes more memory than it may",
        "memories hostiles",
        "{node} took {size} bytes of memory, not at most {most}",
        Part(_MEMORY, "size > most", "node, size, most, src, inc, seq", few=True),
        needs=EVIDENT,
    ),
    void(
        "A11",
        "every hostile client achieved what it was there for",
        "hostiles",
        "hostile client {fault} ({f}) achieved nothing",
        Part(_EFFECTS, "NOT began OR achieved = 0", "fault, f, src, inc, seq", few=True),
    ),
)
