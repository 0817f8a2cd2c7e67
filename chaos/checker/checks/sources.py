"""Queries that several checks share: one pass over the rows counts the violations of all these checks."""

from __future__ import annotations

#: Messages in their logs, with the position up to which their log was read, the position up to which it had
#: to be read, and the purge limit when the last final read of the log ended. `kept`: the position at which
#: the log starts at the end; NULL if nothing was removed.
PLACED = """
SELECT p.*, b.bound, b.start, r.drained, t.target, coalesce(x.purged, -1) AS purged, e.pos AS kept
FROM placed p LEFT JOIN kept_logs e ON e.run = p.run AND e.log = p.log
LEFT JOIN (SELECT run, log, max(read_min) AS bound, min(read_min) AS start FROM placed WHERE reads > 0
  GROUP BY run, log) b ON b.run = p.run AND b.log = p.log
LEFT JOIN runs r ON r.run = p.run
LEFT JOIN (SELECT run, log, max(off) AS target FROM meta WHERE e = 'drain_target' GROUP BY run, log) t
  ON t.run = p.run AND t.log = p.log
LEFT JOIN (
  SELECT q.run, q.log, max(x.lidx) AS purged FROM (
    SELECT o.run, o.log, max(coalesce(o.ret, o.inv)) AS t FROM reads o
    SEMI JOIN final_reads f ON f.op = o.op AND f.run = o.run GROUP BY o.run, o.log) q
  JOIN runs r ON r.run = q.run
  JOIN purges x ON x.run = q.run AND x.mono <= q.t + r.bound GROUP BY q.run, q.log) x
  ON x.run = p.run AND x.log = p.log
"""

#: Deliveries, each with its predecessor in the same read and its predecessor at the same consumer. Both
#: windows share one sort, because a read belongs to one consumer. Deliveries with per-message acknowledgment
#: have no position to continue from and do not count. `may_begin`: everything before the message had been
#: purged.
DELIVERIES = """
SELECT d.*, lag(d.pos) OVER w AS in_read, lag(rank) OVER w AS rank_in_read,
  s.mid IS NOT NULL AS suspect, s.sent, s.oks, s.fails, s.sent_digest, r.max_attempts,
  e.pos AS kept, coalesce(gone_before <= d.mono + r.bound, false) AS may_begin
FROM (
  SELECT *, lag(pos) OVER v AS before, lag(rank) OVER v AS rank_before, lag(op) OVER v AS op_before FROM (
    SELECT *, attempt = 0 AND rank IS NOT NULL AND NOT received AS counts FROM dlv)
  WINDOW v AS (PARTITION BY run, log, grp, consumer, epoch, counts ORDER BY inc, seq)
) d
LEFT JOIN suspects s ON s.run = d.run AND s.log = d.log AND s.mid = d.mid
LEFT JOIN runs r ON r.run = d.run
LEFT JOIN kept_logs e ON e.run = d.run AND e.log = d.log
WINDOW w AS (PARTITION BY d.run, d.log, d.grp, d.consumer, d.epoch, d.counts, d.op ORDER BY d.i)
"""

#: Events of nodes, each with the state that earlier events of the same incarnation reported.
#: `end_term_before`: the term of the last entry; -1 if something other than an append last moved the end.
#: `applied_by`: the event that set the last applied index. A log without a state machine reports none but
#: `install`, which says nothing about an applied state.
HISTORY = """
SELECT *, max(CASE WHEN e = 'commit' THEN lidx END) OVER w AS commit_before,
  max(CASE WHEN e IN ('commit', 'install') THEN lidx WHEN e = 'recover' THEN committed END)
    OVER w AS committed_before,
  max(CASE WHEN e = 'reput' THEN lidx END) OVER w AS reput_before,
  max_by(CASE WHEN e = 'append' THEN last WHEN e = 'truncate' THEN lidx - 1
      WHEN e = 'recover' THEN ended WHEN e = 'install' THEN lidx END,
    CASE WHEN e IN ('append', 'truncate', 'recover', 'install') THEN seq END) OVER w AS end_before,
  max_by(CASE WHEN e = 'truncate' THEN 0 ELSE coalesce(chain_key, 0) END,
    CASE WHEN e IN ('append', 'truncate', 'recover', 'install') THEN seq END) OVER w AS chain_before,
  max_by(CASE WHEN e = 'append' THEN eterm ELSE -1 END,
    CASE WHEN e IN ('append', 'truncate', 'recover', 'install') THEN seq END) OVER w AS end_term_before,
  max_by(CASE WHEN e = 'apply' THEN last ELSE lidx END, CASE WHEN e IN ('apply', 'load', 'install')
    THEN seq END) OVER w AS applied_before,
  max_by(e, CASE WHEN e IN ('apply', 'load', 'install') THEN seq END) OVER w AS applied_by,
  max_by(e, CASE WHEN e IN ('leader', 'follower', 'candidate', 'recover') THEN seq END) OVER w AS raft_role,
  max_by(term, CASE WHEN e IN ('leader', 'follower', 'candidate', 'recover') THEN seq END)
    OVER w AS raft_term,
  max(CASE WHEN e = 'master_ready' THEN term END) OVER w AS ready_term,
  max(CASE WHEN e IN ('elected', 'master_ready') THEN term END) OVER w AS broker_term,
  max(CASE WHEN e = 'demoted' THEN term END) OVER w AS demoted_term
FROM nodes WHERE e <> 'flush'
WINDOW w AS (PARTITION BY run, node, inc ORDER BY mono, seq
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

#: Events of nodes about terms and durability. `voted_before`: over all incarnations since the node was wiped;
#: `flushed`: since entries were last removed, by the promotion of a learner (R33), too; `term_before`: in the
#: same incarnation. Incarnation numbers
#: are not ordered, because a wiped node draws a new one. The window with the fewest keys comes first, so that
#: the rows are sorted only once.
DURABLE = """
SELECT *, max(CASE WHEN e = 'flush' THEN lidx END) OVER (PARTITION BY run, node, part ORDER BY mono, seq
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS flushed,
  max(CASE WHEN e IN ('recover', 'leader', 'follower', 'candidate', 'commit') THEN term END) OVER (
    PARTITION BY run, node, inc ORDER BY mono, seq
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS term_before
FROM (
  SELECT *, max(CASE WHEN e = 'term_vote' THEN term END) OVER (
    PARTITION BY run, node, life ORDER BY mono, seq
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS voted_before
  FROM (
    SELECT run, node, inc, seq, mono, e, term, lidx, ended, wiped, src,
      sum(CASE WHEN wiped AND e = 'recover' THEN 1 ELSE 0 END) OVER v AS life,
      sum(CASE WHEN e IN ('truncate', 'install') OR (wiped AND e = 'recover') THEN 1 ELSE 0 END) OVER v
        AS part
    FROM (
      SELECT run, node, inc, seq, mono, e, term, lidx, ended, wiped, src FROM nodes
      WHERE e IN ('flush', 'truncate', 'install', 'recover', 'term_vote', 'leader', 'follower', 'candidate',
        'commit')
      UNION ALL
      SELECT run, node, -1, seq, mono, 'truncate', NULL, ended + 1, NULL, NULL, src FROM recoveries
      WHERE is_cut)
    WINDOW v AS (PARTITION BY run, node ORDER BY mono, seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
  )
)
"""

#: Consumer offsets of groups. k 0: fetched, or about to be stored; 1: stored; 2: reset by an administrator,
#: or lost with a classic master. `stored`: the highest offset that had been stored before, since the last
#: reset.
OFFSETS = """
SELECT *, max(CASE WHEN k = 1 THEN off END) OVER (PARTITION BY run, grp, log, part ORDER BY t, k
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stored
FROM (
  SELECT *, sum(CASE WHEN k = 2 THEN 1 ELSE 0 END) OVER (PARTITION BY run, grp, log ORDER BY t, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS part
  FROM (
    SELECT o.run, o.f, o.grp, 'q:' || o.topic || '/' || CAST(o.q AS STRING) AS log, k.k,
      CASE WHEN k.k = 0 THEN o.inv ELSE o.ret + r.bound END AS t, o.op, o.off_asked AS off,
        o.off_answered, o.src, o.inc, o.seq
    FROM ops o JOIN runs r ON r.run = o.run CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k
    WHERE o.outcome = 'ok' AND (o.f = 'commit_off' OR (o.f = 'fetch_off' AND k.k = 0))
    UNION ALL
    SELECT run, 'reset', grp, log, 2, mono, NULL, NULL, NULL, src, inc, seq FROM member
    WHERE e = 'reset'
    UNION ALL
    SELECT t.run, 'taken_over', o.grp, o.log, 2, t.mono, NULL, NULL, NULL, t.src, t.inc, t.seq
    FROM meta t JOIN (
      SELECT run, grp, 'q:' || topic || '/' || CAST(q AS STRING) AS log FROM ops WHERE f = 'commit_off'
      GROUP BY run, grp, topic, q) o ON o.run = t.run
    WHERE t.e = 'taken_over'
  )
)
"""

#: Stored messages with their units in the ConsumeQueue of the same node. `purged`: index up to which the node
#: never had the log. Removed messages are in neither.
UNITS = """
SELECT d.run, d.node, d.log, d.qoff, d.lidx, d.mid, d.sure, coalesce(p.purged, -1) AS purged,
  c.lidx AS unit_lidx, d.size, d.tag_hash, d.indexed, c.size AS unit_size, c.tag_hash AS unit_tag_hash
FROM dump d
LEFT JOIN cq c ON c.qoff = d.qoff AND c.node = d.node AND c.log = d.log AND c.run = d.run
LEFT JOIN (SELECT run, node, max(lidx) AS purged FROM milestones WHERE e = 'install'
  GROUP BY run, node) p ON p.run = d.run AND p.node = d.node
WHERE d.qoff IS NOT NULL
"""

#: Nodes whose logs no longer start with the first entry: entries were removed, or were never there because
#: the node got a state image instead. The first unit of each of their queues may point to such an entry.
STARTED_LATE = """
SELECT run, node FROM removed GROUP BY run, node
UNION SELECT run, node FROM milestones WHERE e = 'install' GROUP BY run, node
"""

#: Times in which a server or the harness waited for a processor (`starved` in the schema). Several processes
#: are sampled at the same times.
STARVED = """
SELECT run, since, max(mono) AS until FROM meta WHERE e = 'starved' GROUP BY run, since
"""

#: Runs that recorded such times. Without them, a delay proves nothing about the product.
SCHEDULING_RECORDED = "SELECT run FROM meta WHERE e = 'scheduling' GROUP BY run"
#: SQL for a remark in a witness, if the column `recorded` is false.
UNRECORDED = "CASE WHEN recorded THEN '' ELSE ' (the trace does not show whether the machine ran)' END"
