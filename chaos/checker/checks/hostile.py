"""Service under hostile clients: A7-A11, V6. A hostile client is a fault of a kind in `schema.HOSTILE`."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, void
from chaos.checker.checks.sources import SCHEDULING_RECORDED, STARVED, UNRECORDED
from chaos.checker.needs import EVIDENT, WHOLE, Need
from chaos.trace.schema import ENDING, HOSTILE

#: Time after the end of a fault in which the fault may still cause a change of leader; ns.
_GRACE_NS = 10_000_000_000
_DEFAULT_MS = 5_000
#: Number of parts of the window in which successes are counted; limits the number of rows to sort.
_PARTS = 8


def _words(kinds: tuple[str, ...]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)


_IS_HOSTILE = f"f IN ({_words(HOSTILE)})"

#: Runs with hostile clients, and the time in ns within which other clients must be served.
_RUNS = f"""
SELECT b.run, coalesce(max(b.window_ms), {_DEFAULT_MS}) * 1000000 AS span, max(b.most_bytes) AS most
FROM (SELECT run, window_ms, most_bytes FROM events WHERE ev = 'meta' AND e = 'run_begin') b
SEMI JOIN (SELECT run FROM fault WHERE {_IS_HOSTILE} GROUP BY run) h ON h.run = b.run
GROUP BY b.run
"""

#: Intervals in which faults were in force.
_IN_FORCE = f"""
SELECT b.run, b.fault, b.f, b.targets, b.{_IS_HOSTILE} AS is_hostile, b.mono AS since,
  coalesce(min(x.mono), max(r.healed), b.mono) AS until
FROM fault b
LEFT JOIN fault x ON x.run = b.run AND x.fault = b.fault AND x.e = 'end'
JOIN runs r ON r.run = b.run
WHERE b.e = 'begin' GROUP BY b.run, b.fault, b.f, b.targets, b.mono
"""

#: Intervals in which hostile clients are active and no other fault is, or was within the window. `h`, `o`:
#: the number of active hostile clients and other faults from that moment.
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

#: Reads that last as long as their reader or its ownership of a queue. Their deliveries count.
_LASTING = "('get', 'pull', 'drain')"
_OP_NAME = "CASE WHEN grp IS NULL THEN f ELSE f || ' of group ' || grp END"
_OP_TOPIC_NAME = f"{_OP_NAME} || ' to topic ' || topic"
_DLV_NAME = "CASE WHEN grp IS NULL THEN 'reading' ELSE 'messages for group ' || grp END"
_DLV_TOPIC_NAME = "'messages of topic ' || topic || ' for group ' || grp"

#: Successes of well-behaved clients: completed operations, and deliveries to readers and groups. They are
#: examined together and for each topic, because one topic may be starved beside others.
_SUCCESSES = f"""
SELECT run, {_OP_NAME} AS what, ret AS moment FROM ops WHERE ret IS NOT NULL AND f NOT IN {_LASTING}
UNION ALL
SELECT run, {_OP_TOPIC_NAME}, ret FROM ops
WHERE ret IS NOT NULL AND f NOT IN {_LASTING} AND topic IS NOT NULL
UNION ALL SELECT run, {_DLV_NAME}, mono FROM dlv_lines
UNION ALL SELECT run, {_DLV_TOPIC_NAME}, mono FROM dlv_lines WHERE grp IS NOT NULL AND topic IS NOT NULL
"""

#: All kinds of operations, including those that never succeed.
_KINDS = f"""
SELECT run, what FROM (
  SELECT run, CASE WHEN f = 'get' THEN 'reading' ELSE {_OP_NAME} END AS what FROM ops
  WHERE f = 'get' OR f NOT IN {_LASTING}
  UNION ALL SELECT run, {_OP_TOPIC_NAME} FROM ops WHERE f NOT IN {_LASTING} AND topic IS NOT NULL
  UNION ALL SELECT run, {_DLV_NAME} FROM member WHERE e = 'join'
  UNION ALL SELECT run, {_DLV_TOPIC_NAME} FROM member WHERE e = 'join' AND topic IS NOT NULL
) GROUP BY run, what
"""

#: Quiet intervals longer than the window without a success of one kind. The start and the end of a quiet
#: interval count as a success of each kind.
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

#: Acknowledged messages that a group wants, with their first delivery to it.
_WANTED = """
SELECT s.run, s.topic, j.grp, s.ret AS asked, d.given FROM sends s
JOIN (SELECT run, grp, topic, max(filter) AS filter FROM member WHERE e = 'join' GROUP BY run, grp, topic) j
  ON j.run = s.run AND j.topic = s.topic
LEFT JOIN (SELECT run, grp, mid, min(mono) AS given FROM dlv_lines WHERE grp IS NOT NULL
  GROUP BY run, grp, mid) d ON d.run = s.run AND d.grp = j.grp AND d.mid = s.mid
WHERE s.outcome = 'ok' AND s.delay_ms IS NULL AND s.f <> 'txn_commit'
  AND (coalesce(j.filter, '*') = '*' OR instr('||' || j.filter || '||', '||' || s.tag || '||') > 0)
"""

#: Intervals in which a client waits: for the completion of an operation, or, without an end, for an
#: acknowledged message that readers of the log or a group want. `least`: the number of requests that must
#: have waited, unless one waited longer than the window. For a single topic it is higher: one failed request
#: among few is no outage. `windows`: the length of a gap in windows. The messages of a topic may wait for the
#: lock of a consumer that left.
_WAITING = f"""
SELECT run, {_OP_NAME} AS what, inv AS asked, completed, CAST(NULL AS BIGINT) AS given, 1 AS least,
  1 AS windows
FROM ops WHERE completed IS NOT NULL AND f NOT IN {_LASTING}
UNION ALL
SELECT run, {_OP_TOPIC_NAME}, inv, completed, NULL, 3, 1 FROM ops
WHERE completed IS NOT NULL AND f NOT IN {_LASTING} AND topic IS NOT NULL
UNION ALL
SELECT run, 'reading', ret, NULL, NULL, 1, 1 FROM sends WHERE outcome = 'ok'
UNION ALL
SELECT run, 'messages for group ' || grp, asked, NULL, NULL, 1, 1 FROM ({_WANTED}) a
UNION ALL
SELECT run, {_DLV_TOPIC_NAME}, asked, NULL, given, 3, 2 FROM ({_WANTED}) b
"""

#: Gaps longer than the window in which a client waited. A message for a group must have been acknowledged in
#: that time. The time of a group restarts when a member crashes, because its messages are redelivered later.
#: `starved`: how much of the gap a process waited for a processor.
_UNSERVED = f"""
SELECT u.run, u.what, u.span, u.since, u.until, u.n, u.least, u.longest, u.windows,
  e.run IS NOT NULL AS recorded,
  coalesce(sum(CASE WHEN x.run IS NOT NULL THEN least(x.until, u.until) - greatest(x.since, u.since) END), 0)
    AS starved
FROM (
  SELECT g.run, g.what, g.span, g.since, g.until, count(*) AS n, max(w.least) AS least,
    coalesce(max(w.completed - w.asked), 0) AS longest, max(w.windows) AS windows
  FROM (
    SELECT g.run, g.what, g.span, g.until,
      CASE WHEN max(c.mono) > g.since THEN max(c.mono) ELSE g.since END AS since
    FROM ({_GAPS}) g
    LEFT JOIN member c ON c.run = g.run AND c.e = 'crash' AND c.mono < g.until
      AND instr(g.what, 'for group ') > 0 AND substr(g.what, instr(g.what, 'for group ') + 10) = c.grp
    GROUP BY g.run, g.what, g.span, g.since, g.until
  ) g JOIN ({_WAITING}) w ON w.run = g.run AND w.what = g.what AND w.asked < g.until - g.span
    AND CASE WHEN w.completed IS NULL THEN w.asked ELSE w.completed END > g.since
    AND coalesce(w.given >= g.until, true)
  GROUP BY g.run, g.what, g.span, g.since, g.until
) u
LEFT JOIN ({SCHEDULING_RECORDED}) e ON e.run = u.run
LEFT JOIN ({STARVED}) x ON x.run = u.run AND x.since < u.until AND x.until > u.since
GROUP BY u.run, u.what, u.span, u.since, u.until, u.n, u.least, u.longest, u.windows, e.run
"""
_IS_UNSERVED = "until - since > windows * span AND (n >= least OR longest > span)"
_RAN_UNSERVED = "recorded AND until - since - starved > windows * span"

#: Time in which a lack of processor time may still cause a change of leader; ns.
_STARVED_NS = 5_000_000_000

#: Leaders elected while hostile clients were active, or soon after. `others`: faults that explain the
#: election; `starved`: times shortly before in which a process waited for a processor, the harness included,
#: through which nodes communicate. Excludes elections after `settled`, when the harness stops the nodes and
#: leaders hand over.
_LEADERS = f"""
SELECT m.run, m.node, m.term, m.src, m.inc, m.seq, count(k.run) AS others, count(x.run) AS starved,
  count(e.run) > 0 AS recorded
FROM milestones m
SEMI JOIN (SELECT i.run, i.since, i.until + r.span AS until FROM ({_IN_FORCE}) i
  JOIN ({_RUNS}) r ON r.run = i.run WHERE i.is_hostile) h
  ON h.run = m.run AND m.mono >= h.since AND m.mono <= h.until
LEFT JOIN ({_IN_FORCE}) k
  ON k.run = m.run AND NOT k.is_hostile AND k.since <= m.mono AND m.mono <= k.until + {_GRACE_NS}
LEFT JOIN (SELECT run, min(mono) AS mono FROM meta WHERE e = 'settled' GROUP BY run) s ON s.run = m.run
LEFT JOIN ({STARVED}) x ON x.run = m.run AND x.since <= m.mono AND m.mono <= x.until + {_STARVED_NS}
LEFT JOIN ({SCHEDULING_RECORDED}) e ON e.run = m.run
WHERE m.e = 'leader' AND (s.mono IS NULL OR m.mono < s.mono)
GROUP BY m.run, m.node, m.term, m.src, m.inc, m.seq
"""
_RAN_LEADER = "recorded AND starved = 0"

#: Servers that exited. `others`: faults that explain the exit.
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
        "while hostile clients are active, other clients and all groups are served in time",
        "hostiles ops",
        "no success of `{what}` from {since} to {until}, longer than {span} ns, while {n} requests waited",
        Part(_UNSERVED, f"{_IS_UNSERVED} AND {_RAN_UNSERVED}", "what, since, until, span, n"),
        needs=(*WHOLE, Need.CLOCKS),
        clear_needs=(*WHOLE, Need.FAULTS),
    ),
    hard(
        "A8",
        "hostile clients cause no change of leader",
        "hostiles leaders",
        "{node} became leader of term {term}, and only hostile clients can be the cause",
        Part(_LEADERS, f"others = 0 AND {_RAN_LEADER}", "node, term, src, inc, seq", few=True),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "A9",
        "hostile clients terminate no server",
        "hostiles",
        "{node} ended ({text}) without a fault that explains it",
        Part(_ENDED, "others = 0", "node, text, src, inc, seq", few=True),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "A10",
        "while hostile clients are active, no server exceeds its memory limit",
        "memories hostiles",
        "{node} used {size} bytes of memory; the limit is {most}",
        Part(_MEMORY, "size > most", "node, size, most, src, inc, seq", few=True),
        needs=EVIDENT,
    ),
    void(
        "A11",
        "every hostile client had its intended effect",
        "hostiles",
        "hostile client {fault} ({f}) had no effect",
        Part(_EFFECTS, "NOT began OR achieved = 0", "fault, f, src, inc, seq", few=True),
    ),
    void(
        "V6",
        "the machine ran where hostile clients seem to have interrupted service",
        "hostiles",
        "{what}",
        Part(
            _UNSERVED,
            f"{_IS_UNSERVED} AND NOT ({_RAN_UNSERVED})",
            "'no success of `' || what || '` from ' || CAST(since AS STRING) || ' to ' "
            "|| CAST(until AS STRING) || '; starved for ' || CAST(starved AS STRING) || ' ns' "
            f"|| {UNRECORDED} AS what",
        ),
        Part(
            _LEADERS,
            f"others = 0 AND NOT ({_RAN_LEADER})",
            "node || ' became leader of term ' || CAST(term AS STRING) || ', after a process had waited for "
            f"a processor' || {UNRECORDED} AS what, src, inc, seq",
            few=True,
        ),
    ),
)
