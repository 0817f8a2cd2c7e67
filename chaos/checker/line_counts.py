"""Tables of the writers of a trace, and of their lines by kind."""

from __future__ import annotations

from chaos.trace.schema import EVENTS, OPERATIONS, Ev


def column_of(field: str) -> str:
    """Return the column of a field of the trace."""
    return {"group": "grp"}.get(field, field)


_KINDS = ", ".join(f"'{kind}'" for kind in Ev)


def _lacking() -> str:
    """Return an SQL condition that is true if the line is of no kind in the schema or lacks a required field.
    A check would ignore a line without the field."""
    events: dict[Ev, list[str]] = {}
    for (ev, name), event in EVENTS.items():
        missing = " OR ".join(f"{column_of(field)} IS NULL" for field in event.required)
        column = "type" if ev is Ev.OP else "e"
        events.setdefault(ev, []).append(f"WHEN {column} = '{name}' THEN {missing}" if name else missing)
    whens = [
        f"WHEN ev = '{ev}' THEN "
        + (f"CASE {' '.join(cases)} ELSE true END" if cases[0].startswith("WHEN") else f"({cases[0]})")
        for ev, cases in events.items()
    ]
    return f"CASE {' '.join(whens)} ELSE false END"


#: The line concerns a node other than its writer's.
_BY_ANOTHER = """CASE WHEN ev IN ('raft', 'store', 'role') THEN src LIKE 'node:%' AND src <> 'node:' || node
  WHEN ev IN ('dump', 'cq', 'left') THEN src LIKE 'dump:%' AND src <> 'dump:' || node
  WHEN ev = 'disk' THEN src LIKE 'disk:%' AND src <> 'disk:' || node ELSE false END"""

#: Lines by writer, incarnation and file, with their kinds.
LINE_COUNTS = f"""
SELECT run, src, inc, file, coalesce(ev = 'corrupt', false) AS corrupt, count(*) AS n, min(seq) AS first,
  max(seq) AS last, min(mono) AS first_mono, max(mono) AS last_mono,
  min(CASE WHEN mono >= 0 AND wall >= 0 THEN wall - mono END) AS ahead,
  sum(CASE WHEN seq >= 0 AND seq <= 1073741824 THEN seq END) AS numbers,
  count(*) FILTER (WHERE v IS NULL OR v <> 1) AS other_version,
  count(*) FILTER (WHERE v = 1 AND (ev IS NULL OR ev NOT IN ({_KINDS}) OR src IS NULL OR inc IS NULL
    OR seq IS NULL OR mono IS NULL OR host IS NULL OR wall IS NULL OR {_lacking()} OR {_BY_ANOTHER}
    OR (ev = 'op' AND f NOT IN ({", ".join(f"'{name}'" for name in OPERATIONS)}))
    OR (e IN ('log', 'drain_target') AND ((topic IS NULL) <> (q IS NULL)
      OR (ledger IS NULL) = (topic IS NULL)))
    OR (ev = 'op' AND type = 'invoke' AND (topic IS NULL) <> (q IS NULL)
      AND f IN ('get', 'drain', 'max_off', 'min_off', 'commit_off', 'fetch_off', 'reset_off'))
    OR (e = 'run_begin' AND flush_mode NOT IN ('SYNC_FLUSH', 'ASYNC_FLUSH'))
    OR (ev IN ('dump', 'left') AND (mid IS NOT NULL) = coalesce(internal, false))))
    AS misfits,
  count(*) FILTER (WHERE ev = 'meta' AND e = 'trace_end') AS ends,
  count(*) FILTER (WHERE ev = 'meta' AND e = 'run_begin') AS begins,
  count(*) FILTER (WHERE ev = 'meta' AND e = 'writer_begin') AS opens,
  count(*) FILTER (WHERE ev IN ('raft', 'store', 'role')) AS of_node,
  count(*) FILTER (WHERE ev = 'dump') AS dump, count(*) FILTER (WHERE ev = 'cq') AS cq,
  count(*) FILTER (WHERE ev = 'dump' AND qoff IS NOT NULL AND mid IS NOT NULL) AS queued,
  count(*) FILTER (WHERE ev = 'raft') AS raft, count(*) FILTER (WHERE e = 'commit') AS commits,
  count(*) FILTER (WHERE e = 'ack') AS acks, count(*) FILTER (WHERE e IN ('flush', 'install',
    'append')) AS flushes,
  count(*) FILTER (WHERE ev = 'disk' AND e = 'watched') AS watched,
  count(*) FILTER (WHERE e = 'apply') AS applied,
  count(*) FILTER (WHERE e = 'append' AND chain IS NOT NULL) AS chains
FROM events GROUP BY run, src, inc, file, coalesce(ev = 'corrupt', false)
"""

WRITERS = """
SELECT run, src, inc, sum(n) AS n, min(first) AS first, max(last) AS last, min(first_mono) AS first_mono,
  max(last_mono) AS last_mono, min(ahead) AS ahead,
  CAST(sum(numbers) AS BIGINT) AS numbers, sum(ends) AS ends, sum(begins) AS begins, sum(opens) AS opens,
  sum(of_node) AS of_node
FROM line_counts WHERE NOT corrupt AND run IS NOT NULL GROUP BY run, src, inc
"""
