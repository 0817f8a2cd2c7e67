"""Tables for histories of other systems, built only if the trace has any.

linearized   one key of a register or store: the result of the search for a linearization.

Kafka, where `txn` is the number of the operation that a part belongs to, and operations are atomic:

k_sends      one message that an operation sent; `off` is its acknowledged offset, if any.
k_polls      one message that an operation polled.
k_read       one message that an ok operation polled.
k_effective  messages of operations that definitely took effect: ok operations, and those with an unknown
             outcome of which a send was read.
k_places     one message at one offset, according to effective operations and all polls: a consumer must not
             receive uncommitted messages, whatever the outcome of its operation.
k_offsets    one offset with a message, and its rank among these, because transactions leave gaps.
k_values     one message, and its ranks.
k_sent, k_polled
             k_sends and k_polls with their ranks and the ranks of their predecessors.
k_through    operations that polled sends of others, and whose sends others polled.
k_cycles     violations of the order of operations that both send and poll.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chaos.checker.engine import Cell, Engine, Row
from chaos.checker.histories.linearize import linearized

#: Maximum number of edges between transactions that one process analyzes.
MAX_EDGES = 2_000_000
#: Maximum number of reported cycles per run.
_MAX_REPORTED = 1_000

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
#: A rank of -1 is unknown or ambiguous. Failed sends are compared only with failed sends.
_K_SENT = """
SELECT s.*, coalesce(v.last, -1) AS rank,
  lag(coalesce(v.last, -1)) OVER w AS rank_before, lag(s.txn) OVER w AS txn_before
FROM k_sends s
LEFT JOIN k_values v ON v.run = s.run AND v.log = s.log AND v.mid = s.mid AND v.first = v.last
WINDOW w AS (PARTITION BY s.run, s.proc, s.epoch, s.log, s.outcome = 'fail' ORDER BY s.op)
"""
#: `in_op`: the previous message in the same operation; `ok_before`: the last message of the previous ok
#: operation. Both are NULL without such a message, and -1 if its rank is unknown.
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

#: Operations that polled messages, with the operations that sent them.
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
#: Operations that send several messages, or send and poll: only these can be in cycles that include the order
#: of messages. Other messages are skipped.
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
    """Build the tables that the histories in `runs` need."""
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


#: run, violation, the operation that shows it, another operation.
_Wrong = tuple[str, str, int, int]


def _cycles(engine: Engine) -> list[_Wrong]:
    violations: list[_Wrong] = []
    through: dict[str, dict[int, RelayTransaction]] = defaultdict(dict)
    for row in engine.rows(f"SELECT * FROM k_through LIMIT {MAX_EDGES + 1}"):
        begin, end = _int(row["begun"]), _maybe(row["ended"])
        component = RelayTransaction(begin, end, _maybe(row["writer_begin"]), _maybe(row["reader_end"]))
        through[str(row["run"])][_int(row["txn"])] = component
    saw, many = _edges(engine, _SAW_THROUGH)
    followed, more = _edges(engine, _FOLLOWED)
    too_many = many | more
    if sum(map(len, through.values())) > MAX_EDGES:
        too_many |= set(through)
    for run, known in through.items():
        cycles = components(saw[run])
        violations += [(run, "cycle", component[0], component[1]) for component in cycles]
        violations += [(run, "backwards", *edge) for edge in backwards(saw[run], known)]
    for run, edges in followed.items():
        violations += [
            (run, "order", component[0], component[1]) for component in components([*edges, *saw[run]])
        ]
    # The edges beyond the limit may contain further cycles.
    violations += [(run, "limit", 0, 0) for run in too_many]
    return violations


def _edges(engine: Engine, sql: str) -> tuple[dict[str, list[Edge]], set[str]]:
    """Return the edges by run, and the runs that may have more edges than were returned."""
    edges: dict[str, list[Edge]] = defaultdict(list)
    rows: Sequence[Row] = engine.rows(f"SELECT * FROM ({sql}) e LIMIT {MAX_EDGES + 1}")
    for row in rows:
        edges[str(row["run"])].append((_int(row["writer"]), _int(row["reader"])))
    return edges, set(edges) if len(rows) > MAX_EDGES else set()


def _as_query(wrong: Iterable[_Wrong]) -> str:
    """Return rows as a query. The text needs no escaping, because the checker itself names the runs of
    histories."""
    by_kind: dict[tuple[str, str], list[_Wrong]] = defaultdict(list)
    for violation in wrong:
        by_kind[violation[0], violation[1]].append(violation)
    reported = [violation for group in by_kind.values() for violation in group[:_MAX_REPORTED]]
    values = [f"('{run}', '{what}', {txn}, {other})" for run, what, txn, other in reported]
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


# Cycles among transactions that send and poll.
#
# A transaction that polled a message depends on the transaction that sent it. If messages become visible only
# after the commit of their transaction, cycles of such dependencies are impossible (G1c in Adya's terms), and
# so are chains that end before they started (G1c-realtime in Elle's terms). Only transactions that both send
# and poll can be inside either, so only those are examined. Pure.

#: From the earlier to the later transaction.
Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RelayTransaction:
    """A transaction that polled sends of others, and whose sends others polled.

    `writer_begin`: the latest start among the transactions that it polled from; `reader_end`: the earliest
    completion among those that polled from it, or None. Stamps.
    """

    begin: int
    end: int | None
    writer_begin: int | None
    reader_end: int | None


def components(edges: Iterable[Edge]) -> list[list[int]]:
    """Return the strongly connected components with more than one node (Tarjan's algorithm, iterative)."""
    after: dict[int, list[int]] = defaultdict(list)
    for first, second in edges:
        after[first].append(second)
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    result = []
    for root in list(after):
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(after.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for second in rest:
                if second not in index:
                    index[second] = low[second] = len(index)
                    stack.append(second)
                    on_stack.add(second)
                    work.append((second, iter(after.get(second, ()))))
                    break
                if second in on_stack:
                    low[node] = min(low[node], index[second])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        result.append(sorted(component))
    return result


def backwards(edges: Sequence[Edge], through: Mapping[int, RelayTransaction]) -> list[Edge]:
    """Return chains that end before they started, as pairs: the transaction that shows this, and the
    transaction of the chain that started last.

    Transactions in a cycle, or after one, are not examined.
    """
    after: dict[int, list[int]] = defaultdict(list)
    missing: dict[int, int] = dict.fromkeys(through, 0)
    for first, later in edges:
        after[first].append(later)
        missing[later] += 1
    begun: dict[int, tuple[int, int]] = {}
    for number, about in through.items():
        writer = about.begin if about.writer_begin is None else about.writer_begin
        begun[number] = max(about.begin, writer), number
    ready = [number for number, count in missing.items() if not count]
    violations = []
    while ready:
        number = ready.pop()
        ends = [end for end in (through[number].end, through[number].reader_end) if end is not None]
        latest, whose = begun[number]
        if ends and min(ends) < latest:
            violations.append((number, whose))
        for later in after[number]:
            begun[later] = max(begun[later], begun[number])
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    return violations
