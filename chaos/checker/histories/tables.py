"""Tables that only histories of other systems need; made where there are such histories.

linearized   one key of a register or store: what the search for an order of its uses found.

Of kafka; `txn` is the number of the operation that a part belongs to, which is atomic:

k_sends      one message that an operation sent; `off` is the offset that it was answered, if any.
k_polls      one message that an operation polled.
k_read       one message that was shown by an operation that ended well.
k_effective  messages of operations that certainly took effect: these ended well, or nobody knows how, but
             something that they sent was read.
k_places     one message at one offset, as operations that took effect and all polls say: a consumer is never
             to be given what may not last, whatever becomes of its operation.
k_offsets    one offset that holds something, and its rank among these: transactions leave holes.
k_values     one message, and the ranks at which it stands.
k_sent, k_polled
             k_sends and k_polls with their ranks and those of what came before.
k_through    operations that polled what others had sent, and sent what others polled.
k_cycles     what is wrong with the order of operations that both send and poll.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from chaos.checker.engine import Cell, Engine, Row
from chaos.checker.histories.cycles import Edge, Through, backwards, components
from chaos.checker.histories.linearize import linearized

#: Edges among transactions that are looked at; more are too many for one process.
MAX_EDGES = 2_000_000
#: Cycles of a run that are told.
_TOLD = 1_000

_ITEMS = """
SELECT o.run, 'ledger:' || o.ledger AS log, r.history AS kind,
  concat(CAST(o.op AS STRING), '|', CAST(o.inv AS STRING), '|',
    coalesce(CAST(o.completed AS STRING), ''), '|', o.outcome, '|', coalesce(o.code, ''), '|',
    coalesce(d.tag, o.tag)) AS item
FROM ops o JOIN runs r ON r.run = o.run AND r.history IN ('register', 'store')
LEFT JOIN dlv_lines d ON d.run = o.run AND d.op = o.op
WHERE o.inv IS NOT NULL AND coalesce(d.tag, o.tag) IS NOT NULL
"""

_K_SENDS = """
SELECT o.run, o.op, o.op - o.op % 1000 AS txn, o.consumer AS proc, coalesce(o.epoch, 0) AS epoch,
  'ledger:' || o.ledger AS log, o.mid, o.outcome, o.lidx AS off, o.inv, o.ret, o.src, o.inc, o.seq
FROM ops o JOIN runs r ON r.run = o.run AND r.history = 'kafka' WHERE o.f = 'append' AND o.mid IS NOT NULL
"""
_K_POLLS = """
SELECT d.run, d.op, d.op - d.op % 1000 AS txn, d.i, d.consumer AS proc, d.epoch, d.attempt AS moved, d.log,
  d.mid, d.pos AS off, o.outcome, o.inv, o.completed, o.ret, d.src, d.inc, d.seq
FROM dlv_lines d JOIN runs r ON r.run = d.run AND r.history = 'kafka'
JOIN ops o ON o.run = d.run AND o.op = d.op
"""
_K_READ = """
SELECT run, log, mid, count(*) AS n FROM k_polls WHERE outcome = 'ok' GROUP BY run, log, mid
"""
_K_EFFECTIVE = """
SELECT s.* FROM k_sends s
LEFT JOIN (SELECT p.run, p.txn, count(*) AS n FROM k_sends p
  SEMI JOIN k_read k ON k.run = p.run AND k.log = p.log AND k.mid = p.mid GROUP BY p.run, p.txn) t
  ON t.run = s.run AND t.txn = s.txn
WHERE s.outcome = 'ok' OR (s.outcome = 'info' AND t.n IS NOT NULL)
"""
_K_PLACES = """
SELECT run, log, off, mid, src, inc, seq FROM k_effective WHERE off IS NOT NULL
UNION ALL
SELECT run, log, off, mid, src, inc, seq FROM k_polls WHERE off IS NOT NULL
"""
_K_OFFSETS = """
SELECT *, row_number() OVER (PARTITION BY run, log ORDER BY off) - 1 AS rank FROM (
  SELECT run, log, off, min(mid) AS mid_min, max(mid) AS mid_max, max(src) AS src, max(inc) AS inc,
    max(seq) AS seq
  FROM k_places GROUP BY run, log, off)
"""
_K_VALUES = """
SELECT p.run, p.log, p.mid, min(o.rank) AS first, max(o.rank) AS last, min(p.off) AS off_min,
  max(p.off) AS off_max, max(p.src) AS src, max(p.inc) AS inc, max(p.seq) AS seq
FROM k_places p JOIN k_offsets o ON o.run = p.run AND o.log = p.log AND o.off = p.off
GROUP BY p.run, p.log, p.mid
"""
#: -1: nobody knows where it stands, or it stands at several places. What failed is compared with what failed
#: only.
_K_SENT = """
SELECT s.*, coalesce(v.last, -1) AS rank,
  lag(coalesce(v.last, -1)) OVER w AS rank_before, lag(s.txn) OVER w AS txn_before
FROM k_sends s
LEFT JOIN k_values v ON v.run = s.run AND v.log = s.log AND v.mid = s.mid AND v.first = v.last
WINDOW w AS (PARTITION BY s.run, s.proc, s.epoch, s.log, s.outcome = 'fail' ORDER BY s.op)
"""
#: `in_op`: the one before it in the same operation; `ok_before`: the last of the operation before that ended
#: well. Both are NULL if there is none, and -1 if nobody knows where it stands.
_K_POLLED = """
SELECT *, lag(rank) OVER w AS in_op, max_by(rank, CASE WHEN outcome = 'ok' THEN seq END) OVER v AS ok_before,
  max(CASE WHEN outcome = 'ok' THEN op END) OVER v AS op_before
FROM (
  SELECT p.*, coalesce(o.rank, x.last, -1) AS rank FROM k_polls p
  LEFT JOIN k_offsets o ON o.run = p.run AND o.log = p.log AND o.off = p.off
  LEFT JOIN k_values x ON x.run = p.run AND x.log = p.log AND x.mid = p.mid
)
WINDOW w AS (PARTITION BY run, op, log ORDER BY i),
  v AS (PARTITION BY run, proc, epoch, log ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

#: Who polled what whom had sent.
_SAW = """
SELECT s.run, s.txn AS writer, p.txn AS reader, s.inv AS writer_begin, p.ret AS reader_end FROM k_sends s
JOIN k_polls p ON p.run = s.run AND p.log = s.log AND p.mid = s.mid AND p.txn <> s.txn
WHERE s.outcome <> 'fail'
"""
_K_THROUGH = f"""
SELECT i.run, i.txn, t.begun, t.ended, i.writer_begin, o.reader_end
FROM (SELECT run, reader AS txn, max(writer_begin) AS writer_begin FROM ({_SAW}) a GROUP BY run, reader) i
JOIN (SELECT run, writer AS txn, min(reader_end) AS reader_end FROM ({_SAW}) b GROUP BY run, writer) o
  ON o.run = i.run AND o.txn = i.txn
JOIN (SELECT run, txn, min(inv) AS begun, max(ret) AS ended FROM k_sends GROUP BY run, txn) t
  ON t.run = i.run AND t.txn = i.txn
"""
_SAW_THROUGH = f"""
SELECT DISTINCT s.run, s.writer, s.reader FROM ({_SAW}) s
SEMI JOIN k_through a ON a.run = s.run AND a.txn = s.writer
SEMI JOIN k_through b ON b.run = s.run AND b.txn = s.reader
"""
#: Operations that send several messages, or send and poll: only these can be in cycles in which a message
#: also comes after the one before it. Other messages are passed over.
_SEVERAL = """
SELECT run, txn FROM (
  SELECT run, txn FROM k_effective UNION ALL
  SELECT p.run, p.txn FROM k_polls p SEMI JOIN k_effective e ON e.run = p.run AND e.txn = p.txn
) GROUP BY run, txn HAVING count(*) > 1
"""
_FOLLOWED = f"""
SELECT DISTINCT run, writer, reader FROM (
  SELECT run, k, txn AS reader,
    max_by(txn, CASE WHEN k = 0 THEN rank END) OVER (PARTITION BY run, log ORDER BY rank, k
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS writer
  FROM (
    SELECT e.run, e.log, e.txn, v.last AS rank, 0 AS k FROM k_effective e
    JOIN k_values v ON v.run = e.run AND v.log = e.log AND v.mid = e.mid
    SEMI JOIN ({_SEVERAL}) m ON m.run = e.run AND m.txn = e.txn
    UNION ALL
    SELECT p.run, p.log, p.txn, p.rank, 1 FROM k_polled p
    SEMI JOIN ({_SEVERAL}) n ON n.run = p.run AND n.txn = p.txn WHERE p.rank >= 0
  )
) WHERE writer IS NOT NULL AND writer <> reader
"""


def make_history_tables(engine: Engine) -> None:
    """Make the tables that the histories in `runs` need."""
    rows = engine.rows("SELECT history FROM runs WHERE history IS NOT NULL GROUP BY history")
    models = {row["history"] for row in rows}
    if models & {"register", "store"}:
        engine.fold("linearized", _ITEMS, linearized)
    if "kafka" in models:
        engine.facts({"k_sends": _K_SENDS, "k_polls": _K_POLLS})
        engine.facts({"k_read": _K_READ})
        engine.facts({"k_effective": _K_EFFECTIVE})
        engine.view("k_places", _K_PLACES)
        engine.facts({"k_offsets": _K_OFFSETS})
        engine.facts({"k_values": _K_VALUES})
        engine.facts({"k_sent": _K_SENT, "k_polled": _K_POLLED, "k_through": _K_THROUGH})
        engine.view("k_cycles", _as_query(_cycles(engine)))


#: run, what is wrong, the operation that shows it, another one.
_Wrong = tuple[str, str, int, int]


def _cycles(engine: Engine) -> list[_Wrong]:
    found: list[_Wrong] = []
    through: dict[str, dict[int, Through]] = defaultdict(dict)
    for row in engine.rows(f"SELECT * FROM k_through LIMIT {MAX_EDGES + 1}"):
        begin, end = _int(row["begun"]), _maybe(row["ended"])
        one = Through(begin, end, _maybe(row["writer_begin"]), _maybe(row["reader_end"]))
        through[str(row["run"])][_int(row["txn"])] = one
    saw, many = _edges(engine, _SAW_THROUGH)
    followed, more = _edges(engine, _FOLLOWED)
    too_many = many | more
    if sum(map(len, through.values())) > MAX_EDGES:
        too_many |= set(through)
    for run, known in through.items():
        cycles = components(saw[run])
        found += [(run, "cycle", one[0], one[1]) for one in cycles]
        found += [(run, "backwards", *edge) for edge in backwards(saw[run], known)]
    for run, edges in followed.items():
        found += [(run, "order", one[0], one[1]) for one in components([*edges, *saw[run]])]
    # What was cut off may hold what was not found.
    found += [(run, "limit", 0, 0) for run in too_many]
    return found


def _edges(engine: Engine, sql: str) -> tuple[dict[str, list[Edge]], set[str]]:
    """By run, and the runs of which there may be more."""
    found: dict[str, list[Edge]] = defaultdict(list)
    rows: Sequence[Row] = engine.rows(f"SELECT * FROM ({sql}) e LIMIT {MAX_EDGES + 1}")
    for row in rows:
        found[str(row["run"])].append((_int(row["writer"]), _int(row["reader"])))
    return found, set(found) if len(rows) > MAX_EDGES else set()


def _as_query(wrong: Iterable[_Wrong]) -> str:
    """Rows as a query. Names of runs that are histories are made by us."""
    by_kind: dict[tuple[str, str], list[_Wrong]] = defaultdict(list)
    for one in wrong:
        by_kind[one[0], one[1]].append(one)
    told = [one for alike in by_kind.values() for one in alike[:_TOLD]]
    values = [f"('{run}', '{what}', {txn}, {other})" for run, what, txn, other in told]
    rows_of = ", ".join(values or ["('', '', 0, 0)"])
    where = "" if values else " WHERE false"
    return (
        "SELECT w.run, w.what, CAST(w.txn AS BIGINT) AS txn, CAST(w.other AS BIGINT) AS other "
        f"FROM (VALUES {rows_of}) AS w(run, what, txn, other){where}"
    )


def _int(cell: Cell) -> int:
    return int(cell or 0)


def _maybe(cell: Cell) -> int | None:
    return None if cell is None else int(cell)
