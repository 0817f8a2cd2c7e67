"""The tables that the checks are written on, made of the lines of the traces.

All SQL here and in the checks keeps to what Spark and DuckDB both understand, is grouped by run, and never
  uses
NOT IN (NULL), COUNT(DISTINCT) over large sets, or a window frame that ends UNBOUNDED FOLLOWING (quadratic
  in Spark).

ops      one operation: invoke and completion joined. inv, ret: ns; ret is NULL unless ok.
sends    one message or entry that was sent: log, pos (queue offset, or index), lidx (index in the ledger).
reads    one operation that read a log or asked for its ends.
dlv      one delivered message: log, pos, lidx. rdlv: the same, with its rank among the known positions of
         the log. looked_up: what was found by key instead.
seen     what clients and files show to stand somewhere: acknowledged sends, deliveries, dumps.
placed   one message in one log: how often sent and with what outcome, where it was seen, by whom.
known    one position of a log: which message, and its rank.
nodes    events of nodes, `ord` ordering those of one node over its incarnations; `ledger` is never NULL.
"""

from __future__ import annotations

from chaos.checker.engine import Engine
from chaos.trace.schema import READS

_LOG = (
    "CASE WHEN {t}topic IS NOT NULL AND {t}q IS NOT NULL "
    "THEN 'q:' || {t}topic || '/' || CAST({t}q AS STRING) "
    "WHEN {t}ledger IS NOT NULL THEN 'ledger:' || {t}ledger END"
)


def log_of(table: str = "") -> str:
    """SQL for the name of the log that a row is about (schema.log_name)."""
    return _LOG.format(t=f"{table}." if table else "")


def pos_of(table: str = "") -> str:
    """SQL for the position in that log."""
    t = f"{table}." if table else ""
    return f"CASE WHEN {t}topic IS NOT NULL AND {t}q IS NOT NULL THEN {t}qoff ELSE {t}lidx END"


_ONCE = (
    "proc f ledger topic q mid digest key tag filter grp consumer epoch from_off stale delay_ms",
    "node term code lidx qoff next_off max_off min_off end_claim src inc",
)

_OPS = f"""
SELECT run, op,
  count(*) FILTER (WHERE type = 'invoke') AS invokes,
  count(*) FILTER (WHERE type <> 'invoke') AS completions,
  min(seq) AS seq,
  min(mono) FILTER (WHERE type = 'invoke') AS inv,
  min(mono) FILTER (WHERE type <> 'invoke') AS completed,
  min(mono) FILTER (WHERE type = 'ok') AS ret,
  coalesce(max(type) FILTER (WHERE type <> 'invoke'), 'info') AS outcome,
  max(off) FILTER (WHERE type = 'invoke') AS off_asked,
  max(off) FILTER (WHERE type = 'ok') AS off_answered,
  max(retry_no) AS retry_no,
  {", ".join(f"max({name}) AS {name}" for line in _ONCE for name in line.split())}
FROM events WHERE ev = 'op' GROUP BY run, op
"""

_SENDS = f"""
SELECT o.run, o.op, CAST(0 AS BIGINT) AS i, o.proc, o.f, o.topic, o.q, o.ledger, {log_of("o")} AS log,
  o.mid, o.digest, o.key, o.tag, o.inv, o.ret, o.outcome, o.node, o.term, {pos_of("o")} AS pos, o.lidx,
  coalesce(o.retry_no, 0) AS retry_no, o.src, o.inc, o.seq
FROM ops o WHERE o.f IN ('send', 'append', 'txn_commit') AND o.mid IS NOT NULL
UNION ALL
SELECT o.run, o.op, m.i, o.proc, o.f, coalesce(m.topic, o.topic), coalesce(m.q, o.q),
  coalesce(m.ledger, o.ledger),
  CASE WHEN coalesce(m.topic, o.topic) IS NOT NULL AND coalesce(m.q, o.q) IS NOT NULL
    THEN 'q:' || coalesce(m.topic, o.topic) || '/' || CAST(coalesce(m.q, o.q) AS STRING)
    ELSE 'ledger:' || coalesce(m.ledger, o.ledger) END,
  m.mid, m.digest, m.key, m.tag, o.inv, o.ret, o.outcome, o.node, o.term,
  CASE WHEN coalesce(m.topic, o.topic) IS NOT NULL THEN o.qoff + m.i ELSE o.lidx + m.i END, o.lidx + m.i,
  coalesce(m.retry_no, o.retry_no, 0), o.src, o.inc, o.seq
FROM events m JOIN ops o ON o.run = m.run AND o.op = m.op WHERE m.ev = 'item'
"""

_SEEN = """
SELECT run, log, pos, mid, digest, lidx, 'ack' AS how, node FROM sends WHERE outcome = 'ok' AND pos IS NOT
  NULL
UNION ALL
SELECT run, log, pos, mid, digest, lidx, 'read', CAST(NULL AS STRING) FROM dlv WHERE pos IS NOT NULL
UNION ALL
SELECT run, log, pos, mid, digest, lidx, 'dump', node FROM dump
WHERE mid IS NOT NULL AND sure AND pos IS NOT NULL
"""

_PLACED = """
SELECT run, log, mid,
  sum(sent) AS sent, sum(oks) AS oks, sum(fails) AS fails, max(retries) AS retries,
  min(inv) AS inv, min(ret) AS ret, min(sent_digest) AS sent_digest,
  min(digest) AS digest_min, max(digest) AS digest_max,
  sum(acked) AS acked, sum(reads) AS reads, sum(dumps) AS dumps,
  min(pos) AS pos_min, max(pos) AS pos_max,
  min(CASE WHEN reads > 0 THEN pos END) AS read_min, max(CASE WHEN reads > 0 THEN pos END) AS read_max
FROM (
  SELECT run, log, mid, 1 AS sent, CASE WHEN outcome = 'ok' THEN 1 ELSE 0 END AS oks,
    CASE WHEN outcome = 'fail' THEN 1 ELSE 0 END AS fails, retry_no AS retries, inv, ret,
    digest AS sent_digest, digest, 0 AS acked, 0 AS reads, 0 AS dumps, CAST(NULL AS BIGINT) AS pos
  FROM sends WHERE log IS NOT NULL
  UNION ALL
  SELECT run, log, mid, 0, 0, 0, CAST(0 AS BIGINT), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT),
    CAST(NULL AS STRING), digest, CASE WHEN how = 'ack' THEN 1 ELSE 0 END,
    CASE WHEN how = 'read' THEN 1 ELSE 0 END, CASE WHEN how = 'dump' THEN 1 ELSE 0 END, pos
  FROM seen
) GROUP BY run, log, mid
"""

_KNOWN = """
SELECT *, row_number() OVER (PARTITION BY run, log ORDER BY pos) - 1 AS rank FROM (
  SELECT run, log, pos, min(mid) AS mid_min, max(mid) AS mid_max, min(digest) AS digest_min,
    max(digest) AS digest_max, min(lidx) AS lidx_min, max(lidx) AS lidx_max
  FROM seen GROUP BY run, log, pos
)
"""

_DLV = f"""
SELECT d.run, d.op, d.i, d.grp, d.consumer, coalesce(d.epoch, 0) AS epoch, d.ledger, d.topic, d.q, d.lidx,
  {log_of("d")} AS log, {pos_of("d")} AS pos, d.mid, d.digest, coalesce(d.attempt, 0) AS attempt, d.filter,
    d.tag,
  d.src, d.inc, d.seq, d.mono
FROM events d {{}} JOIN (SELECT run, op FROM ops WHERE f = 'lookup') l ON l.run = d.run AND l.op = d.op
WHERE d.ev = 'dlv'
"""

_VIEWS: tuple[tuple[str, str], ...] = (
    ("dlv", _DLV.format("ANTI")),
    ("looked_up", _DLV.format("SEMI")),
    (
        "dump",
        f"""SELECT run, node, lidx, eterm, ledger, mid, digest, chain, topic, q, qoff, {log_of()} AS log,
        {pos_of()} AS pos, coalesce(internal, false) AS internal, coalesce(is_committed, true) AS sure, src,
        inc, seq FROM events WHERE ev = 'dump'""",
    ),
    (
        "cq",
        f"""SELECT run, node, {log_of()} AS log, topic, q, qoff, lidx, size, tag_hash FROM events
        WHERE ev = 'cq'""",
    ),
    (
        "done",
        f"""SELECT run, op, mid, code, grp, consumer, coalesce(epoch, 0) AS epoch, {log_of()} AS log,
        {pos_of()} AS pos, mono, src, inc, seq FROM events WHERE ev = 'done'""",
    ),
    (
        "member",
        f"""SELECT run, e, grp, consumer, coalesce(epoch, 0) AS epoch, topic, q, {log_of()} AS log, off, mode,
        filter, from_start, mono, src, inc, seq FROM events WHERE ev = 'member'""",
    ),
    (
        "nodes",
        """SELECT run, node, coalesce(ledger, '') AS ledger, inc, seq, inc * 4294967296 + seq AS ord, mono,
          ev, e,
        term, eterm, lidx, last, ended, committed, reput, target, barrier, vote, candidate, chain, op, mid,
        last_index, last_term, cand_last_index, cand_last_term, wiped, src
        FROM events WHERE ev IN ('raft', 'store', 'role')""",
    ),
    (
        "fault",
        """SELECT run, e, fault, f, targets, effective, aim, mono, src, inc, seq FROM events
        WHERE ev = 'fault'""",
    ),
    (
        "meta",
        f"""SELECT run, e, nodes, seed, planned_faults, flush_mode, aim, max_attempts, clock_bound_ns,
          boot_id,
        member, off, {log_of()} AS log, node, text, mono, src, inc, seq FROM events WHERE ev = 'meta'""",
    ),
    (
        "runs",
        """SELECT run, max(nodes) AS nodes, max(planned_faults) AS planned_faults, max(aim) AS aim,
        coalesce(max(flush_mode), 'sync') AS flush_mode, coalesce(max(max_attempts), 16) AS max_attempts,
        coalesce(max(clock_bound_ns), 0) AS bound,
        min(CASE WHEN e = 'healed' THEN mono END) AS healed, min(CASE WHEN e = 'drain_end' THEN mono END) AS
          drained,
        max(CASE WHEN e = 'run_begin' AND text LIKE 'history:%' THEN substr(text, 9) END) AS history,
        count(*) FILTER (WHERE e = 'run_begin') AS begins FROM meta GROUP BY run""",
    ),
)

#: Of other systems' histories (`chaos.checker.readers`): operations, and of which model they are.
_HISTORIES = """
SELECT o.run, r.history, o.f, o.outcome FROM ops o JOIN runs r ON r.run = o.run WHERE r.history IS NOT NULL
"""

_READS = f"""
SELECT run, op, proc, f, {log_of()} AS log, inv, ret, outcome, node, term, from_off, next_off, max_off,
  min_off,
  coalesce(end_claim, false) AS end_claim, coalesce(stale, false) AS stale, grp, consumer,
  coalesce(epoch, 0) AS epoch, src, inc, seq
FROM ops WHERE f IN ({", ".join(f"'{name}'" for name in READS)}, 'max_off', 'min_off')
"""

_RDLV = """
SELECT d.run, d.op, d.i, d.grp, d.consumer, d.epoch, d.log, d.pos, d.mid, d.attempt, d.src, d.inc, d.seq,
  d.mono, coalesce(d.filter, g.filter) AS filter, k.rank
FROM dlv d JOIN known k ON k.run = d.run AND k.log = d.log AND k.pos = d.pos
LEFT JOIN (SELECT run, grp, topic, max(filter) AS filter FROM member WHERE e = 'join'
  GROUP BY run, grp, topic) g
  ON g.run = d.run AND g.grp = d.grp AND g.topic = d.topic
"""


def make_tables(engine: Engine) -> None:
    """Make all tables out of `events`."""
    engine.fact("ops", _OPS)
    for name, sql in _VIEWS:
        engine.view(name, sql)
    engine.view("sends", _SENDS)
    engine.view("reads", _READS)
    engine.view("histories", _HISTORIES)
    engine.view("seen", _SEEN)
    engine.fact("placed", _PLACED)
    engine.fact("known", _KNOWN)
    engine.fact("rdlv", _RDLV)
