"""Tables built from the lines of the traces, on which the checks are defined.

All SQL here and in the checks uses only constructs that Spark and DuckDB both support, and is grouped by run.
It never uses NOT IN (NULL), COUNT(DISTINCT) over large sets, or a window frame that ends UNBOUNDED FOLLOWING,
which is quadratic in Spark. Materialized tables have only the columns that checks read. Digests are numbers,
and chains have a numeric key (`chain_key`): Spark aggregates numbers by hashing, but strings by sorting.

Tables whose size grows with the trace:

ops      one operation: invoke and completion joined. inv, ret: ns; ret is NULL unless ok.
sends    one message or entry that was sent: log, pos (queue offset, or index), lidx (index in the ledger).
         A recalled message counts as failed; `said` is the outcome of the send itself.
reads    one operation that read a log or requested its ends.
         Reads of the final phase that started after healing are also in final_reads.
dlv      one delivered message: log, pos, lidx, and the rank of pos among the known positions of the log
         (NULL without one). received: delivered with per-message acknowledgment. Results of look-ups by key
         are in looked_up instead.
seen     messages that clients or files show at a position: acknowledged sends, deliveries, dumps.
placed   one message in one log: number and outcomes of its sends, its positions, its observers.
         read_at: its first delivery. finals: number of final reads that returned it; in histories of other
         systems, of all reads.
known    one position of a log: its message, its rank, and, in runs with a purge, the times at which it and
         everything before it were purged (gone_before).
through  one message that a group has finished, and when it first did.
items    one message of a batch that was sent.
dump, cq, done, nodes, disk, left_records
         lines of these kinds. `ledger` of an event of a node is never NULL.

Tables with few rows:

shapes       one kind of lines: the fields that all such lines have, and the fields that any has.
line_counts  one writer, incarnation and file: its lines by kind. writers: without the files.
lookups      operations that look up messages by key.
final_reads  read operations of the final phase, after healing.
op_counts    one kind of operation and outcome.
runs         one run: its plan, its guarantees, its results. nodes: at the beginning; last_nodes: at the end.
milestones   events of nodes, without the events that occur with every batch.
candidacies  candidacies and leaderships, with the configuration in force on the node (c_voters, ...).
regrouped    runs in which the voters changed.
recoveries   one forced recovery. lost_messages: acknowledged messages that were lost with the majority.
sent_logs    one log: acknowledged sends by outcome, term and time.
read_logs    one log: the position up to which it was read.
histories    op_counts of other systems' histories, with their model.
odd_ops      operations whose lines are not one invoke and at most one completion.
dump_ends    one node's files of one ledger.
cq_ends      one ConsumeQueue of one node.
purges       one index up to which a node purged the log, and when, if files up to there were removed.
kept_logs    one log of a run with a purge: the position at which it starts at the end.
begins       one log of a run with a purge: the position at which it starts after each purge, and since when.
removed      files of one node's log that were removed from its start, according to the recorder of syncs.
recalled     messages with a recall, and its outcome; and the messages of LEFT_BEHIND.
unanswered   messages of `sends` that did not fail and have no position.
unclear      acknowledged messages of `placed` that may be in `doubts`.
moved        messages of `placed` with several positions.
suspects     messages of `placed` that were never sent, failed, or have several contents.
doubts       acknowledged messages that the files of some node lack, or have elsewhere than the answer stated.
spells       one consumer with one assigned queue, from its first message to its last.
holes        one damaged range of entries in the files of a node.
fault, member, meta
             lines of these kinds.
"""

from __future__ import annotations

from collections.abc import Callable

from chaos.checker.configurations import CANDIDACIES, LAST_MEMBERS, REGROUPED
from chaos.checker.engine import Engine
from chaos.checker.histories.tables import make_history_tables
from chaos.checker.left_records import LEFT_BEHIND, LEFT_RECORDS
from chaos.checker.line_counts import LINE_COUNTS, WRITERS
from chaos.checker.recoveries import LOST_MESSAGES, LOST_SENDS, RECOVERIES, not_lost
from chaos.checker.shapes import SHAPES
from chaos.trace.schema import READS

#: Small tables that are selected from large ones. They are materialized to reduce the data moved by joins.
PICKED = frozenset(
    ("items", "odd_ops", "lookups", "final_reads", "recalled", "unanswered", "moved", "unclear")
)

#: Tables whose size does not grow with the trace.
FEW_ROWS = PICKED - {"items"} | frozenset(
    (
        *(
            "line_counts",
            "shapes",
            "writers",
            "op_counts",
            "runs",
            "milestones",
            "sent_logs",
            "read_logs",
            "histories",
        ),
        *(
            "dump_ends",
            "cq_ends",
            "suspects",
            "doubts",
            "spells",
            "holes",
            "fault",
            "member",
            "meta",
            "removed",
        ),
        *("kept_logs", "begins", "purges", "candidacies", "regrouped", "recoveries", "lost_messages"),
    )
)


_LOG = (
    "CASE WHEN {t}topic IS NOT NULL AND {t}q IS NOT NULL "
    "THEN 'q:' || {t}topic || '/' || CAST({t}q AS STRING) "
    "WHEN {t}ledger IS NOT NULL THEN 'ledger:' || {t}ledger END"
)


def log_of(table: str = "") -> str:
    """Return SQL for the name of the log that a row concerns (schema.log_name)."""
    return _LOG.format(t=f"{table}." if table else "")


def pos_of(table: str = "") -> str:
    """Return SQL for the position in that log."""
    t = f"{table}." if table else ""
    return f"CASE WHEN {t}topic IS NOT NULL AND {t}q IS NOT NULL THEN {t}qoff ELSE {t}lidx END"


_ONCE = (
    "proc f ledger topic q mid digest key tag filter grp consumer epoch from_off stale delay_ms",
    "node term code lidx qoff next_off max_off min_off end_claim src inc",
)

#: Fields of an operation that either of its lines may have.
_EITHER = tuple(name for line in _ONCE for name in line.split())

#: Operations whose lines are not one invoke and at most one completion.
_ODD_OPS = """
SELECT op, run FROM events WHERE ev = 'op' GROUP BY op, run
HAVING op IS NULL OR run IS NULL OR count(*) FILTER (WHERE type = 'invoke') <> 1 OR count(*) > 2
  OR count(*) <> count(type)
"""

#: A join, because an aggregate over strings would sort the rows twice, with all their columns. Only odd
#: operations are aggregated.
_OPS = f"""
SELECT i.run, i.op, CAST(1 AS BIGINT) AS invokes, CASE WHEN c.op IS NULL THEN 0 ELSE 1 END AS completions,
  least(i.seq, c.seq) AS seq, i.mono AS inv, c.mono AS completed,
  CASE WHEN c.type = 'ok' THEN c.mono END AS ret, coalesce(c.type, 'info') AS outcome, i.off AS off_asked,
  CASE WHEN c.type = 'ok' THEN c.off END AS off_answered,
  coalesce(i.src <> c.src OR i.inc <> c.inc OR i.proc <> c.proc OR i.f <> c.f, false) AS torn_apart,
  coalesce(i.topic <> c.topic OR i.q <> c.q OR i.ledger <> c.ledger, false) AS elsewhere,
  {", ".join(f"greatest(i.{name}, c.{name}) AS {name}" for name in _EITHER)}
FROM events i
LEFT JOIN events c ON c.op = i.op AND c.run = i.run AND c.ev = 'op' AND c.type <> 'invoke'
ANTI JOIN odd_ops x ON x.op = i.op AND x.run = i.run
WHERE i.ev = 'op' AND i.type = 'invoke' AND i.op IS NOT NULL AND i.run IS NOT NULL
UNION ALL
SELECT run, op,
  count(*) FILTER (WHERE type = 'invoke') AS invokes,
  count(*) FILTER (WHERE type <> 'invoke') AS completions,
  min(seq) AS seq,
  min(mono) FILTER (WHERE type = 'invoke') AS inv,
  min(mono) FILTER (WHERE type <> 'invoke') AS completed,
  min(mono) FILTER (WHERE type = 'ok') AS ret,
  coalesce(max(type) FILTER (WHERE type <> 'invoke'), 'info') AS outcome,
  max(off) FILTER (WHERE type = 'invoke') AS off_asked,
  max(off) FILTER (WHERE type = 'ok') AS off_answered, false AS torn_apart,
  false AS elsewhere,
  {", ".join(f"max({name}) AS {name}" for name in _EITHER)}
FROM (
  SELECT e.* FROM events e
  SEMI JOIN odd_ops x ON x.op IS NOT DISTINCT FROM e.op AND x.run IS NOT DISTINCT FROM e.run
  WHERE e.ev = 'op'
) GROUP BY op, run
"""

_SENDS = f"""
SELECT o.run, o.op, CAST(0 AS BIGINT) AS i, o.proc, o.f, o.topic, o.q, o.ledger, {log_of("o")} AS log,
  o.mid, o.digest, o.key, o.tag, o.inv, o.ret, o.delay_ms, o.completed,
  CASE WHEN o.outcome = 'ok' AND c.outcome = 'ok' THEN 'fail'
    WHEN o.outcome = 'ok' AND c.outcome = 'info' THEN 'info' ELSE o.outcome END AS outcome,
  o.outcome AS said, o.node, o.term, {pos_of("o")} AS pos, o.lidx, o.src, o.inc, o.seq
FROM ops o LEFT JOIN recalled c ON c.mid = o.mid AND c.run = o.run
WHERE o.f IN ('send', 'append', 'txn_commit') AND o.mid IS NOT NULL
UNION ALL
SELECT o.run, o.op, m.i, o.proc, o.f, coalesce(m.topic, o.topic), coalesce(m.q, o.q),
  coalesce(m.ledger, o.ledger),
  CASE WHEN coalesce(m.topic, o.topic) IS NOT NULL AND coalesce(m.q, o.q) IS NOT NULL
    THEN 'q:' || coalesce(m.topic, o.topic) || '/' || CAST(coalesce(m.q, o.q) AS STRING)
    ELSE 'ledger:' || coalesce(m.ledger, o.ledger) END,
  m.mid, m.digest, m.key, m.tag, o.inv, o.ret, coalesce(m.delay_ms, o.delay_ms), o.completed,
  CASE WHEN o.outcome = 'ok' AND x.mid IS NOT NULL THEN 'info' ELSE o.outcome END, o.outcome, o.node, o.term,
  CASE WHEN coalesce(m.topic, o.topic) IS NOT NULL THEN o.qoff + m.i ELSE o.lidx + m.i END, o.lidx + m.i,
  o.src, o.inc, o.seq
FROM items m JOIN ops o ON o.op = m.op AND o.run = m.run
LEFT JOIN lost_messages x ON x.mid = m.mid AND x.run = m.run
"""

_SEEN = """
SELECT run, log, pos, mid, digest FROM sends WHERE outcome = 'ok' AND pos IS NOT NULL
UNION ALL
SELECT run, log, pos, mid, digest FROM dlv_lines WHERE pos IS NOT NULL
UNION ALL
SELECT run, log, pos, mid, digest FROM dump WHERE mid IS NOT NULL AND sure AND pos IS NOT NULL
"""

#: `nodes`: a bit for each node whose files have the message; `lidx_min`, `lidx_max`: in answers and files;
#: `seen_min`, `seen_max`: its contents at all observers.
_PLACED = """
SELECT run, log, mid,
  sum(sent) AS sent, sum(oks) AS oks, sum(fails) AS fails,
  min(inv) AS inv, min(ret) AS ret, min(read_at) AS read_at, min(sent_digest) AS sent_digest,
  min(digest) AS digest_min, max(digest) AS digest_max,
  sum(acked) AS acked, sum(reads) AS reads, sum(finals) AS finals, sum(dumps) AS dumps,
  min(pos) AS pos_min, max(pos) AS pos_max,
  min(CASE WHEN reads > 0 THEN pos END) AS read_min, max(CASE WHEN reads > 0 THEN pos END) AS read_max,
  bit_or(bit) AS nodes, min(lidx) AS lidx_min, max(lidx) AS lidx_max,
  min(CASE WHEN pos IS NOT NULL THEN digest END) AS seen_min,
  max(CASE WHEN pos IS NOT NULL THEN digest END) AS seen_max
FROM (
  SELECT run, log, mid, CASE WHEN log IS NOT NULL THEN 1 ELSE 0 END AS sent,
    CASE WHEN log IS NOT NULL AND outcome = 'ok' THEN 1 ELSE 0 END AS oks,
    CASE WHEN log IS NOT NULL AND outcome = 'fail' THEN 1 ELSE 0 END AS fails, inv,
    ret, CAST(NULL AS BIGINT) AS read_at, digest AS sent_digest, digest,
    CASE WHEN outcome = 'ok' AND pos IS NOT NULL THEN 1 ELSE 0 END AS acked,
    0 AS reads, 0 AS finals, 0 AS dumps, CASE WHEN outcome = 'ok' THEN pos END AS pos,
    CASE WHEN outcome = 'ok' THEN lidx END AS lidx, CAST(0 AS BIGINT) AS bit
  FROM sends WHERE log IS NOT NULL OR (outcome = 'ok' AND pos IS NOT NULL)
  UNION ALL
  SELECT v.run, v.log, v.mid, 0, 0, 0, CAST(NULL AS BIGINT), CAST(NULL AS BIGINT),
    v.mono, CAST(NULL AS BIGINT), v.digest, 0, 1,
    CASE WHEN f.op IS NOT NULL OR h.run IS NOT NULL THEN 1 ELSE 0 END, 0, v.pos, CAST(NULL AS BIGINT),
    CAST(0 AS BIGINT)
  FROM dlv_lines v LEFT JOIN final_reads f ON f.op = v.op AND f.run = v.run
  LEFT JOIN (SELECT run FROM runs WHERE history IS NOT NULL) h ON h.run = v.run
  WHERE v.pos IS NOT NULL
  UNION ALL
  SELECT d.run, d.log, d.mid, 0, 0, 0, CAST(NULL AS BIGINT), CAST(NULL AS BIGINT),
    CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), d.digest, 0, 0, 0, 1, d.pos, d.lidx,
    coalesce(e.bit, CAST(0 AS BIGINT))
  FROM dump d
  LEFT JOIN dump_ends e ON e.run = d.run AND e.ledger = coalesce(d.ledger, '') AND e.node = d.node
  WHERE d.mid IS NOT NULL AND d.sure AND d.pos IS NOT NULL
) GROUP BY run, log, mid
"""

#: Most messages have one position, which is known at this step.
_KNOWN = """
SELECT k.*, row_number() OVER w - 1 AS rank, lag(k.pos) OVER w AS before, g.gone, g.gone_before FROM (
  SELECT run, log, pos, min(mid) AS mid_min, max(mid) AS mid_max, min(digest_min) AS digest_min,
    max(digest_max) AS digest_max
  FROM (
    SELECT run, log, pos_min AS pos, mid, seen_min AS digest_min, seen_max AS digest_max FROM placed
    WHERE pos_min = pos_max
    UNION ALL
    SELECT s.run, s.log, s.pos, s.mid, s.digest, s.digest FROM seen s
    SEMI JOIN moved m ON m.mid IS NOT DISTINCT FROM s.mid AND m.log IS NOT DISTINCT FROM s.log
      AND m.run IS NOT DISTINCT FROM s.run
  ) GROUP BY run, log, pos
) k
LEFT JOIN (
  SELECT p.run, p.log, p.pos, min(CASE WHEN b.pos > p.pos THEN b.mono END) AS gone, min(b.mono) AS gone_before
  FROM (
    SELECT DISTINCT s.run, s.log, s.pos FROM seen s SEMI JOIN begins b ON b.run = s.run AND b.log = s.log) p
  JOIN begins b ON b.run = p.run AND b.log = p.log AND b.pos >= p.pos GROUP BY p.run, p.log, p.pos
) g ON g.run = k.run AND g.log = k.log AND g.pos = k.pos
WINDOW w AS (PARTITION BY k.run, k.log ORDER BY k.pos)
"""

_DLV = f"""
SELECT d.run, d.op, d.i, d.grp, d.consumer, coalesce(d.epoch, 0) AS epoch, d.ledger, d.topic, d.q, d.lidx,
  {log_of("d")} AS log, {pos_of("d")} AS pos, d.mid, d.digest, coalesce(d.attempt, 0) AS attempt,
  d.filter, d.tag, d.key, d.src, d.inc, d.seq, coalesce(d.since, d.mono) AS mono,
  d.mono AS told
FROM events d {{}} JOIN lookups l ON l.op = d.op AND l.run = d.run
{not_lost("d", "d.lidx", "d.eterm")}
WHERE d.ev = 'dlv'
"""

_VIEWS: tuple[tuple[str, str], ...] = (
    (
        "dump",
        f"""SELECT run, node, lidx, eterm, ledger, mid, digest, chain, chain_key, topic, q, qoff,
        {log_of()} AS log, {pos_of()} AS pos, coalesce(internal, false) AS internal, size, tag_hash, indexed,
        purge_to, off,
        coalesce(is_committed, true) AS sure, src,
        inc, seq FROM events WHERE ev = 'dump'""",
    ),
    ("left_records", LEFT_RECORDS),
    (
        "cq",
        f"""SELECT run, node, {log_of()} AS log, topic, q, qoff, lidx, size, tag_hash, src, inc, seq
        FROM events
        WHERE ev = 'cq'""",
    ),
    (
        "done",
        f"""SELECT run, op, mid, code, grp, consumer, coalesce(epoch, 0) AS epoch,
        coalesce(attempt, 0) AS attempt, {log_of()} AS log, {pos_of()} AS pos, topic, q, mono,
        src, inc, seq FROM events WHERE ev = 'done'""",
    ),
    (
        "member",
        f"""SELECT run, e, grp, consumer, coalesce(epoch, 0) AS epoch, topic, q, {log_of()} AS log, off, mode,
        filter, from_start, delay_ms, mono, src, inc, seq FROM events WHERE ev = 'member'""",
    ),
    (
        "nodes",
        """SELECT run, node, coalesce(ledger, '') AS ledger, inc, seq, mono,
        ev, e, term, eterm, lidx, last, ended, committed, reput, target, barrier, role_epoch, vote, candidate,
        chain, chain_key, last_index, last_term, cand_last_index, cand_last_term, wiped, voters, outgoing,
        learners, uids, uid, src
        FROM events WHERE ev IN ('raft', 'store', 'role')""",
    ),
    (
        "disk",
        """SELECT run, node, coalesce(ledger, '') AS ledger, e, lidx, off, size, term,
        coalesce(vote, '') AS vote, mono, src, inc, seq FROM events WHERE ev = 'disk'""",
    ),
    (
        "fault",
        """SELECT run, e, fault, f, targets, effective, mono, src, inc, seq FROM events
        WHERE ev = 'fault'""",
    ),
    (
        "meta",
        f"""SELECT run, e, nodes, seed, planned_faults, flush_mode, aim, max_attempts, clock_bound_ns,
        boot_id, member, off, last, ended, committed, keep_ms, keep_bytes,
        {log_of()} AS log, node, pid, since, count AS n,
        ledger, store, broker_role, size, text, mono, src, inc, seq FROM events WHERE ev = 'meta'""",
    ),
    (
        "holes",
        """SELECT run, node, coalesce(ledger, '') AS ledger, lidx, last, text, src, inc, seq FROM events
        WHERE ev = 'meta' AND e = 'dump_hole'""",
    ),
)

#: Operations by kind and outcome.
_OP_COUNTS = """
SELECT run, f, outcome, coalesce(stale, false) AS stale, term IS NOT NULL AS termed, count(*) AS n,
  count(*) FILTER (WHERE delay_ms > 0) AS delayed, count(mid) AS named
FROM ops GROUP BY run, f, outcome, coalesce(stale, false), term IS NOT NULL
"""

#: Histories of other systems (`chaos.checker.readers`).
_HISTORIES = """
SELECT c.run, r.history, c.f, c.outcome, c.n FROM op_counts c
JOIN runs r ON r.run = c.run WHERE r.history IS NOT NULL
"""

#: Includes runs without a `run_begin`, because checks that join this table must not lose their lines. The
#: clock bound is capped, because a very large one would overflow.
_RUNS = f"""
SELECT w.run, m.nodes, coalesce(g.members, m.nodes) AS last_nodes, m.planned_faults, m.aim,
  coalesce(m.flush_mode, 'SYNC_FLUSH') AS flush_mode,
  coalesce(m.max_attempts, 16) AS max_attempts,
  CAST(least(greatest(coalesce(m.bound, 0), 0), 1000000000000000) AS BIGINT) AS bound,
  m.healed, m.drained, coalesce(m.expected, 0) AS expected, m.history, m.keep_ms, m.keep_bytes,
  m.store, m.broker_role,
  f.first_fault, f.last_fault, CAST(coalesce(f.faults, 0) AS BIGINT) AS faults,
  CAST(coalesce(f.effective, 0) AS BIGINT) AS effective
FROM (SELECT run FROM line_counts WHERE run IS NOT NULL GROUP BY run) w
LEFT JOIN (
  SELECT run, max(nodes) AS nodes, max(planned_faults) AS planned_faults, max(aim) AS aim,
    CASE WHEN max(flush_mode) = 'ASYNC_FLUSH' THEN 'ASYNC_FLUSH' ELSE 'SYNC_FLUSH' END AS flush_mode,
    max(max_attempts) AS max_attempts, max(keep_ms) AS keep_ms, max(keep_bytes) AS keep_bytes,
    max(store) AS store, max(broker_role) AS broker_role,
    max(clock_bound_ns) AS bound, min(CASE WHEN e = 'healed' THEN mono END) AS healed,
    min(CASE WHEN e = 'drain_end' THEN mono END) AS drained, count(*) FILTER (WHERE e = 'expect') AS expected,
    max(CASE WHEN e = 'run_begin' AND text LIKE 'history:%' THEN substr(text, 9) END) AS history
  FROM meta GROUP BY run) m ON m.run = w.run
LEFT JOIN (
  SELECT run, min(first) AS first_fault, max(last) AS last_fault, sum(begins) AS faults,
    sum(CASE WHEN begins = 1 AND began = 1 AND ended = 1 THEN 1 ELSE 0 END) AS effective
  FROM (
    SELECT run, fault, min(mono) AS first, max(mono) AS last, count(*) FILTER (WHERE e = 'begin') AS begins,
      min(CASE WHEN e = 'begin' THEN CASE WHEN effective THEN 1 ELSE 0 END END) AS began,
      min(CASE WHEN e = 'end' THEN CASE WHEN effective THEN 1 ELSE 0 END END) AS ended
    FROM fault GROUP BY run, fault) GROUP BY run) f ON f.run = w.run
LEFT JOIN ({LAST_MEMBERS}) g ON g.run = w.run
"""

_MILESTONES = """
SELECT * FROM nodes WHERE e NOT IN ('append', 'flush', 'commit', 'apply', 'reput', 'accept', 'ack')
"""

_SENT_LOGS = """
SELECT s.run, s.log, s.ledger, count(*) AS n, count(*) FILTER (WHERE s.outcome = 'ok') AS oks,
  count(*) FILTER (WHERE s.outcome = 'fail') AS fails, count(*) FILTER (WHERE s.outcome = 'info') AS infos,
  count(*) FILTER (WHERE s.f = 'send_batch') AS batched,
  count(*) FILTER (WHERE s.outcome = 'ok' AND s.pos IS NOT NULL) AS placed,
  count(*) FILTER (WHERE s.outcome = 'ok' AND s.term IS NOT NULL) AS termed,
  max(CASE WHEN s.outcome = 'ok' THEN s.pos END) AS top,
  max(CASE WHEN s.outcome = 'ok' THEN s.lidx END) AS top_lidx,
  min(CASE WHEN s.outcome = 'ok' THEN s.term END) AS term_min,
  max(CASE WHEN s.outcome = 'ok' THEN s.term END) AS term_max,
  count(*) FILTER (WHERE s.outcome = 'ok' AND (s.ret < r.first_fault OR r.first_fault IS NULL)) AS before,
  count(*) FILTER (WHERE s.outcome = 'ok' AND s.inv >= r.first_fault AND s.ret <= r.last_fault) AS during,
  count(*) FILTER (WHERE s.outcome = 'ok' AND (s.inv > r.last_fault OR r.last_fault IS NULL)) AS after,
  count(*) FILTER (WHERE s.inv > r.healed) AS n_healed, min(CASE WHEN s.inv > r.healed THEN s.ret
    END) AS ret_healed
FROM sends s LEFT JOIN runs r ON r.run = s.run GROUP BY s.run, s.log, s.ledger
"""

_DLV_RANKED = """
SELECT d.run, d.op, d.i, d.grp, d.consumer, d.epoch, d.ledger, d.topic, d.q, d.lidx, d.log, d.pos, d.mid,
  d.digest,
  d.attempt, d.filter, d.tag, d.src, d.inc, d.seq, d.mono, d.told, k.rank, k.gone_before,
  coalesce(d.filter, g.filter) AS filtered,
  coalesce(g.mode IN ('shared', 'fifo'), false) AS received
FROM dlv_lines d LEFT JOIN known k ON k.pos = d.pos AND k.log = d.log AND k.run = d.run
LEFT JOIN (SELECT run, grp, topic, max(filter) AS filter, max(mode) AS mode FROM member WHERE e = 'join'
  GROUP BY run, grp, topic) g
  ON g.run = d.run AND g.grp = d.grp AND g.topic = d.topic
"""

#: Acknowledged messages of `placed` that some node's files lack, or that are not only at the position that
#: the answer stated.
_UNCLEAR = """
SELECT p.run, p.log, p.mid FROM placed p
JOIN (SELECT run, max(n) AS n FROM (SELECT run, ledger, count(*) AS n FROM dump_ends GROUP BY run, ledger)
  GROUP BY run) r ON r.run = p.run
WHERE (p.oks > 0 OR p.acked > 0) AND NOT coalesce(p.oks = 1 AND p.acked = 1 AND bit_count(p.nodes) >= r.n
  AND p.pos_min = p.pos_max AND p.lidx_min = p.lidx_max, false)
"""

#: Acknowledged messages with the nodes whose files have them, and with the rows that agree with the answer;
#: only messages with a discrepancy.
_DOUBTS = """
SELECT * FROM (
  SELECT s.run, s.op, s.i, s.mid, s.ledger, s.log, s.lidx, s.pos, s.src, s.inc, s.seq, s.n_dumps,
    count(DISTINCT d.node) AS n, count(*) FILTER (WHERE d.log = s.log) AS there,
    count(*) FILTER (WHERE d.log = s.log AND d.lidx = s.lidx AND d.pos = s.pos) AS same
  FROM (
    SELECT s.run, s.op, s.i, s.mid, coalesce(s.ledger, '') AS ledger, s.log, s.lidx, s.pos, s.src, s.inc,
      s.seq, r.n_dumps
    FROM sends s
    JOIN (SELECT run, ledger, count(*) AS n_dumps FROM dump_ends GROUP BY run, ledger) r
      ON r.run = s.run AND r.ledger = coalesce(s.ledger, '')
    SEMI JOIN unclear u ON u.mid IS NOT DISTINCT FROM s.mid AND u.log IS NOT DISTINCT FROM s.log
      AND u.run = s.run
    WHERE s.outcome = 'ok' AND s.lidx IS NOT NULL
  ) s
  LEFT JOIN dump d ON d.mid = s.mid AND d.run = s.run
  GROUP BY s.run, s.op, s.i, s.mid, s.ledger, s.log, s.lidx, s.pos, s.src, s.inc, s.seq, s.n_dumps
) WHERE n < n_dumps OR (there > 0 AND same = 0)
"""

_SPELLS = """
SELECT run, grp, topic, log, consumer, epoch, src, inc, min(mono) AS first, max(mono) AS last,
  min(CASE WHEN attempt = 0 AND rank IS NOT NULL THEN mono END) AS first_try,
  min(CASE WHEN attempt = 0 AND rank IS NOT NULL THEN seq END) AS seq,
  min_by(pos, CASE WHEN attempt = 0 AND rank IS NOT NULL THEN seq END) AS pos,
  min_by(rank, CASE WHEN attempt = 0 AND rank IS NOT NULL THEN seq END) AS rank
FROM dlv WHERE grp IS NOT NULL AND NOT received GROUP BY run, grp, topic, log, consumer, epoch, src, inc
"""

#: A node reports a purge before it removes files, so its own line has the time, and others show the removal.
_PURGES = """
SELECT p.run, p.lidx, min(p.mono) AS mono FROM milestones p
JOIN (SELECT run, max(lidx) AS lidx FROM removed GROUP BY run) x ON x.run = p.run AND p.lidx <= x.lidx
WHERE p.e = 'purge' GROUP BY p.run, p.lidx
"""

#: Starts of logs in runs with a purge: the first message known to be behind all purged ones; without such a
#: message, the log has no start.
_KEPT_LOGS = """
SELECT p.run, p.log,
  coalesce(min(CASE WHEN p.lidx_min > x.lidx THEN p.pos_min END), 9223372036854775807) AS pos
FROM placed p JOIN (SELECT run, max(lidx) AS lidx FROM removed GROUP BY run) x ON x.run = p.run
GROUP BY p.run, p.log
"""

#: Starts of logs after each purge. The first node to purge counts: others may still have the messages.
_BEGINS = """
SELECT x.run, p.log, x.mono,
  coalesce(min(CASE WHEN p.lidx_min > x.lidx THEN p.pos_min END), 9223372036854775807) AS pos
FROM purges x JOIN placed p ON p.run = x.run GROUP BY x.run, p.log, x.mono, x.lidx
"""

#: Messages that a group reported as finished, or, in groups without such reports, received.
_THROUGH = """
SELECT run, grp, log, pos, mid, min(mono) AS mono FROM (
  SELECT run, grp, log, pos, mid, mono FROM done WHERE code IN ('ok', 'dlq')
  UNION ALL
  SELECT d.run, d.grp, d.log, d.pos, d.mid, d.mono FROM dlv_lines d
  ANTI JOIN (SELECT run, grp FROM done GROUP BY run, grp) x ON x.run = d.run AND x.grp = d.grp
  WHERE d.grp IS NOT NULL
) GROUP BY run, grp, log, pos, mid
"""

#: `bit`: one for each node of a run, the same in all ledgers.
_DUMP_ENDS = """
SELECT *,
  CAST(1 AS BIGINT) << CAST((dense_rank() OVER (PARTITION BY run ORDER BY node) - 1) % 62 AS INT) AS bit
FROM (
  SELECT run, coalesce(ledger, '') AS ledger, node, min(lidx) AS low, max(lidx) AS high,
    max(CASE WHEN sure THEN lidx END) AS sure_high, min(CASE WHEN NOT sure THEN lidx END) AS unsure_low,
    max(CASE WHEN sure THEN purge_to END) AS purge_to,
    count(*) AS n
  FROM dump GROUP BY run, coalesce(ledger, ''), node
)
"""


def _at_most_end(name: str) -> str:
    return f"CASE WHEN {name} > v.ended + 1 THEN v.ended + 1 ELSE {name} END AS {name}"


#: The end of a queue that a classic master reported before it was lost is no evidence: the messages there may
#: be lost, and new messages may have their positions. The same is true of what a former cluster reported
#: behind the end of the log with which its survivor continues.
_READS = f"""
SELECT o.run, op, proc, f, {log_of()} AS log, inv, ret, outcome, o.node, o.term,
  {_at_most_end("from_off")}, {_at_most_end("next_off")}, {_at_most_end("max_off")}, min_off,
  coalesce(end_claim, false) AS end_claim, coalesce(stale, false) AS stale, grp, consumer,
  coalesce(epoch, 0) AS epoch, o.src, o.inc, o.seq
FROM ops o
LEFT JOIN recoveries v ON v.run = o.run AND o.completed < v.mono AND o.ledger IS NOT NULL
LEFT JOIN (SELECT run, max(mono) AS taken FROM meta WHERE e = 'taken_over' GROUP BY run) t ON t.run = o.run
WHERE f IN ({", ".join(f"'{name}'" for name in READS)}, 'max_off', 'min_off')
  AND (f <> 'max_off' OR coalesce(o.inv > t.taken, true))
"""

_ON_FACTS = (
    ("writers", WRITERS),
    ("reads", _READS),
    ("dlv_lines", _DLV.format("ANTI")),
    ("looked_up", _DLV.format("SEMI")),
)

#: Materialized tables, in steps. Each step depends only on earlier steps.
_FACTS: tuple[dict[str, str], ...] = (
    {
        "odd_ops": _ODD_OPS,
        "items": """SELECT run, op, src, inc, i, topic, q, ledger, mid, digest, key, tag, delay_ms
          FROM events WHERE ev = 'item'""",
        "line_counts": LINE_COUNTS,
        "milestones": _MILESTONES,
        "shapes": SHAPES,
        "dump_ends": _DUMP_ENDS,
        "removed": """SELECT run, node, ledger, lidx, size, mono, src, inc, seq FROM disk
          WHERE e = 'removed'""",
        "cq_ends": """SELECT run, node, log, min(qoff) AS low, max(qoff) AS high, count(*) AS n FROM cq
          GROUP BY run, node, log""",
    },
    {
        "ops": _OPS,
        "runs": _RUNS,
        "purges": _PURGES,
        "candidacies": CANDIDACIES,
        "regrouped": REGROUPED,
        "recoveries": RECOVERIES,
    },
    {"lost_messages": LOST_MESSAGES},
    {
        "recalled": f"""SELECT run, mid, max(outcome) AS outcome FROM (
          SELECT run, mid, outcome FROM ops WHERE f = 'recall' UNION ALL {LEFT_BEHIND}
          UNION ALL {LOST_SENDS}) GROUP BY run, mid""",
        "op_counts": _OP_COUNTS,
        "lookups": "SELECT run, op FROM ops WHERE f = 'lookup'",
        "final_reads": """SELECT o.run, o.op FROM ops o
          JOIN runs r ON r.run = o.run AND r.history IS NULL AND o.inv + r.bound >= r.healed
          WHERE o.f = 'drain' AND NOT coalesce(o.stale, false)""",
    },
    {"sends": _SENDS},
    {
        "placed": _PLACED,
        "sent_logs": _SENT_LOGS,
        "through": _THROUGH,
        "unanswered": """SELECT run, log, mid, inv, ret, delay_ms, op, src, inc, seq FROM sends
          WHERE outcome <> 'fail' AND pos IS NULL""",
    },
    {
        "unclear": _UNCLEAR,
        "begins": _BEGINS,
        "moved": "SELECT run, log, mid FROM placed WHERE pos_min < pos_max",
        "suspects": """SELECT run, log, mid, sent, oks, fails, sent_digest FROM placed
          WHERE sent = 0 OR (fails > 0 AND oks = 0) OR digest_min < digest_max""",
    },
    {"known": _KNOWN, "doubts": _DOUBTS, "kept_logs": _KEPT_LOGS},
    {"dlv": _DLV_RANKED},
    {
        "spells": _SPELLS,
        "read_logs": """SELECT run, log, max(pos) AS top, count(*) AS n, count(grp) AS grouped FROM dlv
          GROUP BY run, log""",
    },
)


def make_tables(engine: Engine, on_progress: Callable[[int, int], None] | None = None) -> None:
    """Build all tables from `events`. `on_progress` receives the numbers of completed steps and of all
    steps."""
    for name, sql in _VIEWS:
        engine.view(name, sql)
    for step, facts in enumerate(_FACTS, 1):
        engine.facts(facts)
        if "sends" in facts:
            for name, sql in (*_ON_FACTS, ("histories", _HISTORIES), ("seen", _SEEN)):
                engine.view(name, sql)
        if on_progress is not None:
            on_progress(step, len(_FACTS))
    make_history_tables(engine)
