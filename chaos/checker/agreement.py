"""Queries that compare the lines of a trace that concern the same operation, log or writer."""

from __future__ import annotations

#: Operations that state a number of messages, with the number in the trace.
MESSAGE_COUNTS = """
SELECT e.run, e.op, e.src, e.inc, e.seq, e.f, e.n, CASE WHEN e.type = 'invoke' OR e.f = 'send_batch'
  THEN coalesce(i.n, 0) WHEN e.f IN ('append', 'send') THEN 1 ELSE coalesce(d.n, 0) END AS there
FROM (SELECT run, op, type, f, count AS n, src, inc, seq FROM events
  WHERE ev = 'op' AND type IN ('invoke', 'ok') AND count IS NOT NULL) e
LEFT JOIN (SELECT run, op, src, inc, count(*) AS n FROM items GROUP BY run, op, src, inc) i
  ON i.run = e.run AND i.op = e.op AND i.src = e.src AND i.inc = e.inc
LEFT JOIN (SELECT run, op, src, inc, count(*) AS n FROM events WHERE ev = 'dlv' GROUP BY run, op, src, inc) d
  ON d.run = e.run AND d.op = e.op AND d.src = e.src AND d.inc = e.inc
"""

#: Operations without a completion whose client did not crash. Excludes reads that wait for new messages.
PENDING_OPERATIONS = """
SELECT o.run, o.op, o.f, o.src, o.inc, o.seq FROM ops o
JOIN runs r ON r.run = o.run AND r.history IS NULL
ANTI JOIN (SELECT run, grp, consumer FROM member WHERE e = 'crash') c
  ON c.run = o.run AND c.grp = o.grp AND c.consumer = o.consumer
WHERE o.completions = 0 AND o.f <> 'get'
"""

#: Files of nodes with a duplicated entry, or with a committed entry behind an uncommitted one.
DUMP_ORDER = """
SELECT d.run, d.node, d.n, d.low, d.high, d.sure_high, d.unsure_low, m.off AS settled FROM dump_ends d
LEFT JOIN (SELECT run, max(off) AS off FROM meta WHERE e = 'settled' GROUP BY run) m ON m.run = d.run
"""

#: Entries whose `purge_to` differs among the files of nodes.
PURGE_POINTS = """
SELECT run, lidx, min(coalesce(purge_to, -1)) AS low, max(coalesce(purge_to, -1)) AS high FROM dump
WHERE sure GROUP BY run, coalesce(ledger, ''), lidx
"""

#: Messages that a consumer finished without a line of the same writer about their delivery.
UNDELIVERED = """
SELECT d.run, d.mid, d.grp, d.consumer, d.src, d.inc, d.seq FROM done d
ANTI JOIN dlv_lines l ON l.run = d.run AND l.mid = d.mid AND l.grp = d.grp AND l.consumer = d.consumer
  AND l.epoch = d.epoch AND l.attempt = d.attempt AND l.op = coalesce(d.op, l.op) AND l.src = d.src
  AND l.log = coalesce(d.log, l.log) AND l.pos = coalesce(d.pos, l.pos)
WHERE d.grp IS NOT NULL AND d.consumer IS NOT NULL
"""

#: Retries, with the operation that made the first attempt.
RETRIES = """
SELECT a.run, a.op, a.retry_no, a.mid, o.op AS sent_by, coalesce(o.mid, i.mid) AS sent_mid, a.src, a.inc,
  a.seq, count(*) OVER (PARTITION BY a.run, a.op, a.mid, a.retry_no) AS n
FROM (SELECT run, op, retry_no, mid, src, inc, seq FROM events WHERE ev = 'attempt') a
LEFT JOIN (SELECT run, op, max(mid) AS mid FROM ops GROUP BY run, op) o ON o.run = a.run AND o.op = a.op
LEFT JOIN items i ON i.run = a.run AND i.op = a.op AND i.mid = a.mid
"""

#: Lines of an operation written by another writer than its start (`by_others`), or about another log
#: (`of_others`): a message of a batch, or a result of a read or look-up. Excludes converted histories, which
#: have one writer and operations on several logs.
PARTS_OF_OPERATIONS = """
SELECT l.run, l.ev, l.op, l.mid, l.src, l.inc, l.seq, o.f, o.src AS begun_by,
  o.src <> l.src OR o.inc <> l.inc AS by_others,
  coalesce(l.topic <> o.topic OR l.q <> o.q OR l.ledger <> o.ledger, false) AS of_others
FROM (
  SELECT run, ev, op, src, inc, topic, q, ledger, min(seq) AS seq, min_by(mid, seq) AS mid FROM events
  WHERE ev IN ('attempt', 'item', 'dlv') AND op IS NOT NULL GROUP BY run, ev, op, src, inc, topic, q, ledger
) l
JOIN (SELECT run, op, min(src) AS src, min(inc) AS inc, min(f) AS f, min(topic) AS topic, min(q) AS q,
  min(ledger) AS ledger FROM ops GROUP BY run, op) o ON o.run = l.run AND o.op = l.op
JOIN runs r ON r.run = l.run AND r.history IS NULL
"""

#: Acknowledgments of messages that the member had not finished processing, and returns of messages whose
#: processing had not failed.
UNMATCHED_ACKS = """
SELECT o.run, o.op, o.f, o.mid, o.consumer, o.src, o.inc, o.seq FROM ops o
JOIN runs r ON r.run = o.run AND r.history IS NULL
ANTI JOIN done d ON d.run = o.run AND d.grp = o.grp AND d.consumer = o.consumer AND d.mid = o.mid
  AND d.src = o.src AND d.inc = o.inc AND d.seq < o.seq AND (d.code = 'retry') = (o.f = 'change_invisible')
  AND coalesce(d.topic = o.topic AND d.q = o.q, true)
WHERE o.f IN ('ack', 'change_invisible')
"""

#: Ends of transactions, with the number of their starts and whether these have the same message.
TRANSACTION_ENDS = """
SELECT e.run, e.op, e.mid, count(b.op) AS n, e.src, e.inc, e.seq,
  coalesce(max(CASE WHEN b.digest <> e.digest OR b.key <> e.key OR b.tag <> e.tag OR b.topic <> e.topic
    OR b.q <> e.q THEN 1 ELSE 0 END), 0) = 1 AS differs
FROM ops e JOIN runs r ON r.run = e.run AND r.history IS NULL
LEFT JOIN ops b ON b.run = e.run AND b.mid = e.mid AND b.f = 'txn_begin'
WHERE e.f IN ('txn_commit', 'txn_rollback') GROUP BY e.run, e.op, e.mid, e.src, e.inc, e.seq
"""

#: Members of groups that received messages of topics for which they had not joined, or that left without
#: joining. One writer writes all lines of a member.
NON_MEMBERS = """
SELECT d.run, d.grp, d.consumer, d.topic, min(d.src) AS src, min(d.inc) AS inc, min(d.seq) AS seq FROM (
  SELECT run, grp, consumer, topic, src, inc, seq FROM dlv_lines
  WHERE grp IS NOT NULL AND consumer IS NOT NULL AND topic IS NOT NULL
  UNION ALL
  SELECT run, grp, consumer, topic, src, inc, seq FROM member WHERE e <> 'join' AND consumer IS NOT NULL) d
JOIN runs r ON r.run = d.run AND r.history IS NULL
ANTI JOIN member j ON j.run = d.run AND j.grp = d.grp AND j.consumer = d.consumer
  AND j.topic = coalesce(d.topic, j.topic) AND j.e = 'join' AND j.src = d.src
GROUP BY d.run, d.grp, d.consumer, d.topic
"""

#: Members with joins by several writers.
SHARED_MEMBERS = """
SELECT j.run, j.grp, j.consumer, j.src, j.inc, j.seq FROM member j
SEMI JOIN (SELECT run, grp, consumer FROM member WHERE e = 'join' GROUP BY run, grp, consumer
  HAVING min(src) < max(src)) s ON s.run = j.run AND s.grp = j.grp AND s.consumer = j.consumer
WHERE j.e = 'join'
"""

#: Requested resets, with the earlier lines of the same writer that announce them. Only for groups with any
#: line about a reset.
UNANNOUNCED_RESETS = """
SELECT o.run, o.op, o.grp, o.off_asked AS off, o.src, o.inc, o.seq FROM ops o
JOIN runs r ON r.run = o.run AND r.history IS NULL
SEMI JOIN (SELECT run, grp FROM member WHERE e = 'reset' GROUP BY run, grp) g
  ON g.run = o.run AND g.grp = o.grp
ANTI JOIN member m ON m.run = o.run AND m.grp = o.grp AND m.topic = o.topic AND m.q = o.q
  AND m.off = o.off_asked AND m.e = 'reset' AND m.src = o.src AND m.inc = o.inc AND m.seq < o.seq
WHERE o.f = 'reset_off'
"""

#: Announced resets without a matching operation: its offset must be the requested one, or the one that was
#: assigned or committed in between.
UNREQUESTED_RESETS = """
SELECT m.run, m.grp, m.log, m.off, m.src, m.inc, m.seq FROM member m
JOIN runs r ON r.run = m.run AND r.history IS NULL
SEMI JOIN (SELECT run, grp FROM ops WHERE f = 'reset_off' GROUP BY run, grp) g
  ON g.run = m.run AND g.grp = m.grp
ANTI JOIN ops o ON o.run = m.run AND o.grp = m.grp AND o.topic = m.topic AND o.q = m.q
  AND o.off_asked = m.off AND o.f IN ('reset_off', 'commit_off')
ANTI JOIN member a ON a.run = m.run AND a.grp = m.grp AND a.log = m.log AND a.off = m.off AND a.e = 'assign'
WHERE m.e = 'reset'
"""

#: Groups and topics, with the subscriptions that their members report.
SUBSCRIPTIONS = """
SELECT run, grp, topic, min(src) AS src, min(inc) AS inc, min(seq) AS seq, min(mode) AS mode_min,
  max(mode) AS mode_max, min(filter) AS filter_min, max(filter) AS filter_max,
  min(CASE WHEN from_start THEN 1 ELSE 0 END) AS start_min,
  max(CASE WHEN from_start THEN 1 ELSE 0 END) AS start_max
FROM member WHERE e = 'join' GROUP BY run, grp, topic
"""

#: Reads and revocations of members in an epoch, with the assignment in that epoch.
UNASSIGNED = """
SELECT m.run, m.m_what, m.grp, m.consumer, m.log, m.epoch, m.from_off, count(a.run) AS n,
  max(a.off) AS off, m.src, m.inc, m.seq
FROM (
  SELECT run, 'a read' AS m_what, grp, consumer, log, epoch, from_off, src, inc, seq FROM reads
  WHERE f = 'pull' AND grp IS NOT NULL AND consumer IS NOT NULL
  UNION ALL
  SELECT run, 'a loss', grp, consumer, log, epoch, CAST(NULL AS BIGINT), src, inc, seq FROM member
  WHERE e = 'revoke') m
JOIN runs r ON r.run = m.run AND r.history IS NULL
LEFT JOIN member a ON a.run = m.run AND a.grp = m.grp AND a.consumer = m.consumer AND a.log = m.log
  AND a.epoch = m.epoch AND a.e = 'assign'
GROUP BY m.run, m.m_what, m.grp, m.consumer, m.log, m.epoch, m.from_off, m.src, m.inc, m.seq
"""

#: Masters, with the number of steps to that role that their node reported before.
STEPS = """
SELECT m.run, m.node, m.term, m.src, m.inc, m.seq, count(DISTINCT s.e) AS n FROM milestones m
LEFT JOIN milestones s ON s.run = m.run AND s.node = m.node AND s.inc = m.inc AND s.term = m.term
  AND s.seq < m.seq AND s.e IN ('leader', 'elected', 'barrier_committed', 'dispatched')
WHERE m.e = 'master_ready' GROUP BY m.run, m.node, m.term, m.src, m.inc, m.seq
"""

#: Votes in a term that the node reported as persisted, but never with a vote.
VOTES_KEPT = """
SELECT v.run, v.node, v.term, v.candidate, v.src, v.inc, v.seq FROM milestones v
JOIN (SELECT run, node, inc, term, max(coalesce(vote, '')) AS vote FROM milestones WHERE e = 'term_vote'
  GROUP BY run, node, inc, term) k
  ON k.run = v.run AND k.node = v.node AND k.inc = v.inc AND k.term = v.term AND k.vote = ''
WHERE v.e = 'vote'
"""

WRITER_STARTS = """
SELECT w.run, w.src, w.opens FROM writers w JOIN runs r ON r.run = w.run AND r.history IS NULL
"""

#: All logs of nodes that lines name. A run has one; checks ignore lines about another.
LEDGERS = """
SELECT l.run, count(*) AS n, min(l.ledger) AS first, max(l.ledger) AS last FROM (
  SELECT run, ledger FROM events WHERE ledger IS NOT NULL AND ev <> 'meta' GROUP BY run, ledger
  UNION SELECT run, ledger FROM meta WHERE ledger NOT IN ('consumequeue', 'left')) l
JOIN runs r ON r.run = l.run AND r.history IS NULL GROUP BY l.run
"""

#: Reported ends of logs, with the target of the last reads. Nothing was sent after the target was set.
REPORTED_ENDS = """
SELECT q.run, q.log, q.max_off, t.off, q.src, q.inc, q.seq FROM reads q
JOIN (SELECT run, log, max(off) AS off FROM meta WHERE e = 'drain_target' GROUP BY run, log) t
  ON t.run = q.run AND t.log = q.log
JOIN runs r ON r.run = q.run AND r.history IS NULL
WHERE q.f IN ('max_off', 'min_off') AND q.outcome = 'ok' AND q.max_off IS NOT NULL
"""

#: Nodes of the run, with the counts that the reader of the files reported and those in the trace. `queues`:
#: the nodes run brokers. Nodes that have left the group are not read; the run
#: names the readers of all others.
FILES_READ = """
SELECT n.run, n.node, q.run IS NOT NULL AS queues, l.ended, d.high, l.n AS ledger_told,
  coalesce(d.n, 0) AS ledger_there, c.n AS queues_told, coalesce(u.n, 0) AS queues_there
FROM (
  SELECT run, node FROM (
    SELECT run, substr(member, 6) AS node FROM meta WHERE e = 'expect' AND member LIKE 'dump:%'
    UNION ALL SELECT run, node FROM meta WHERE e = 'dumped' AND node IS NOT NULL
    UNION ALL
    SELECT m.run, coalesce(m.node, substr(m.member, 6)) FROM meta m
    ANTI JOIN (SELECT run FROM meta WHERE e = 'expect' AND member LIKE 'dump:%') x ON x.run = m.run
    WHERE (m.e = 'started' AND m.node IS NOT NULL) OR (m.e = 'expect' AND m.member LIKE 'node:%')
    UNION ALL SELECT run, node FROM dump_ends WHERE node IS NOT NULL
  ) GROUP BY run, node) n
LEFT JOIN (SELECT run FROM meta WHERE e = 'log' AND log LIKE 'q:%' GROUP BY run) q ON q.run = n.run
LEFT JOIN (SELECT run, node, max(n) AS n, max(ended) AS ended FROM meta
  WHERE e = 'dumped' AND ledger NOT IN ('consumequeue', 'left')
  GROUP BY run, node) l ON l.run = n.run AND l.node = n.node
LEFT JOIN (SELECT run, node, max(n) AS n FROM meta WHERE e = 'dumped' AND ledger = 'consumequeue'
  GROUP BY run, node) c ON c.run = n.run AND c.node = n.node
LEFT JOIN (SELECT run, node, sum(n) AS n, max(high) AS high FROM dump_ends GROUP BY run, node) d
  ON d.run = n.run AND d.node = n.node
LEFT JOIN (SELECT run, node, sum(n) AS n FROM cq_ends GROUP BY run, node) u
  ON u.run = n.run AND u.node = n.node
"""

#: Lost masters, with the number of records in their logs that were read and that the trace has.
LEFT_READ = """
SELECT t.run, t.member, t.src, t.inc, t.seq, coalesce(l.n, 0) AS there, max(d.n) AS told FROM meta t
LEFT JOIN (SELECT run, node, count(*) AS n FROM left_records GROUP BY run, node) l
  ON l.run = t.run AND l.node = t.member
LEFT JOIN meta d ON d.run = t.run AND d.node = t.member AND d.e = 'dumped' AND d.ledger = 'left'
WHERE t.e = 'taken_over' GROUP BY t.run, t.member, t.src, t.inc, t.seq, l.n
"""

#: Runs with their number of nodes at the end, and the number of nodes whose files were read.
NODES_READ = f"""
SELECT r.run, r.last_nodes AS nodes, count(f.node) AS n FROM runs r
LEFT JOIN ({FILES_READ}) f ON f.run = r.run AND f.ledger_told IS NOT NULL
WHERE r.history IS NULL GROUP BY r.run, r.last_nodes
"""

#: Number of nodes whose syncs were recorded, and of all nodes of the run.
WATCHED = """
SELECT r.run, r.history, r.flush_mode, coalesce(r.nodes, 1) AS nodes, coalesce(w.n, 0) AS watched
FROM runs r
LEFT JOIN (SELECT run, count(DISTINCT node) AS n FROM disk WHERE e = 'watched' GROUP BY run) w
  ON w.run = r.run
"""

#: Number of processes of a node whose syncs were recorded, and number of processes that wrote a trace. Nodes
#: with a classic log write none, so the processes count that the harness started.
WATCHED_LIVES = """
SELECT l.run, l.node, l.lives, coalesce(w.n, 0) AS watched, r.flush_mode
FROM (SELECT run, substr(src, 6) AS node, count(*) AS lives FROM writers WHERE of_node > 0
  GROUP BY run, substr(src, 6)
  UNION ALL
  SELECT m.run, m.node, count(*) FROM meta m JOIN runs c ON c.run = m.run AND c.store = 'classic'
  WHERE m.e = 'started' GROUP BY m.run, m.node) l
LEFT JOIN (SELECT run, node, count(*) AS n FROM disk WHERE e = 'watched' GROUP BY run, node) w
  ON w.run = l.run AND w.node = l.node
JOIN runs r ON r.run = l.run
"""

#: Syncs, with the end of the log that the node reported until a second later, because lines may be delayed.
#: The entry of a forced recovery is written while the node is stopped.
SYNCED_BEYOND = """
SELECT * FROM (
  SELECT run, node, k, mono, lidx, src, inc, seq,
    max_by(ended, told_at) OVER (PARTITION BY run, node ORDER BY t, k
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ended
  FROM (
    SELECT run, node, 0 AS k, mono AS t, mono, mono AS told_at, lidx, CASE WHEN e = 'append' THEN last
      WHEN e = 'recover' THEN ended WHEN e = 'truncate' THEN lidx - 1 ELSE lidx END AS ended, src, inc, seq
    FROM nodes WHERE e IN ('append', 'recover', 'truncate', 'install')
    UNION ALL
    SELECT run, node, 1, mono + 1000000000, mono, CAST(NULL AS BIGINT), lidx, CAST(NULL AS BIGINT), src, inc,
      seq
    FROM disk WHERE e = 'synced')
) s ANTI JOIN recoveries v ON v.run = s.run AND v.node = s.node AND s.lidx = v.ended + 1 AND s.mono <= v.mono
WHERE k = 1
"""

#: Faults, with their effect at the start and at the end.
EFFECTS = """
SELECT b.run, b.fault, b.f, b.targets, b.src, b.inc, b.seq, coalesce(b.effective, false) AS began,
  count(e.run) AS ends, coalesce(min(CASE WHEN e.effective THEN 1 ELSE 0 END), 0) AS ended,
  min(CASE WHEN e.targets <> b.targets THEN e.targets WHEN e.f <> b.f THEN e.f END) AS elsewhere
FROM fault b JOIN runs r ON r.run = b.run AND r.history IS NULL
LEFT JOIN fault e ON e.run = b.run AND e.fault = b.fault AND e.e = 'end'
WHERE b.e = 'begin' GROUP BY b.run, b.fault, b.f, b.targets, b.src, b.inc, b.seq, b.effective
"""

ANNOUNCED_LOGS = """
SELECT r.run, count(m.run) AS n FROM runs r LEFT JOIN meta m ON m.run = r.run AND m.e = 'log'
WHERE r.history IS NULL GROUP BY r.run
"""

#: Queues that clients requested or were assigned, but that no line announces.
UNKNOWN_LOGS = """
SELECT a.run, a.log, a.src, a.inc, a.seq FROM (
  SELECT run, log, src, inc, seq FROM reads
  UNION ALL SELECT run, log, src, inc, seq FROM member) a
JOIN runs r ON r.run = a.run AND r.history IS NULL
ANTI JOIN meta m ON m.run = a.run AND m.e = 'log' AND m.log = a.log
WHERE a.log IS NOT NULL
"""
