"""Queries by which the lines of a trace are compared with each other: do they say the same of an operation, a
log, a writer, and does each say all that its like do?"""

from __future__ import annotations

#: Operations that say of how many messages they were, beside how many of these are there.
COUNTED = """
SELECT e.run, e.op, e.src, e.inc, e.seq, e.f, e.n, CASE WHEN e.type = 'invoke' OR e.f = 'send_batch'
  THEN coalesce(i.n, 0) WHEN e.f IN ('append', 'send') THEN 1 ELSE coalesce(d.n, 0) END AS there
FROM (SELECT run, op, type, f, count AS n, src, inc, seq FROM events
  WHERE ev = 'op' AND type IN ('invoke', 'ok') AND count IS NOT NULL) e
LEFT JOIN (SELECT run, op, src, inc, count(*) AS n FROM items GROUP BY run, op, src, inc) i
  ON i.run = e.run AND i.op = e.op AND i.src = e.src AND i.inc = e.inc
LEFT JOIN (SELECT run, op, src, inc, count(*) AS n FROM events WHERE ev = 'dlv' GROUP BY run, op, src, inc) d
  ON d.run = e.run AND d.op = e.op AND d.src = e.src AND d.inc = e.inc
"""

#: Messages that a consumer was through with, and that were not given to it.
NEVER_GIVEN = """
SELECT d.run, d.mid, d.grp, d.consumer, d.src, d.inc, d.seq FROM done d
ANTI JOIN dlv_lines l ON l.run = d.run AND l.mid = d.mid AND l.grp = d.grp AND l.consumer = d.consumer
  AND l.epoch = d.epoch AND l.attempt = d.attempt AND l.op = coalesce(d.op, l.op)
WHERE d.grp IS NOT NULL AND d.consumer IS NOT NULL
"""

#: What was sent again, beside the operation that had sent it.
AGAIN = """
SELECT a.run, a.op, a.retry_no, a.mid, o.op AS sent_by, coalesce(o.mid, i.mid) AS sent_mid, a.src, a.inc,
  a.seq
FROM (SELECT run, op, retry_no, mid, src, inc, seq FROM events WHERE ev = 'attempt') a
LEFT JOIN (SELECT run, op, max(mid) AS mid FROM ops GROUP BY run, op) o ON o.run = a.run AND o.op = a.op
LEFT JOIN items i ON i.run = a.run AND i.op = a.op AND i.mid = a.mid
"""

#: Fields that each line of its kind has in a run, or none: (kinds of lines, fields).
_ALL_OR_NONE = (
    ("ev = 'dump'", "ledger chain"),
    ("ev = 'cq'", "size tag_hash"),
    ("ev = 'op' AND what = 'invoke' AND f <> 'admin'", "ledger topic q mid digest from_off off"),
    ("ev = 'op' AND what = 'ok' AND f IN ('append', 'send_batch')", "lidx term"),
)
_ALL_OR_NONE_FIELDS = sorted({field for _, fields in _ALL_OR_NONE for field in fields.split()})

#: Lines by kind, and how many of them have each field. A line that says nothing cannot be wrong.
SAID = f"""
SELECT c.* FROM (
  SELECT run, ev, CASE WHEN ev = 'op' THEN type ELSE e END AS what, f, count(*) AS n,
    {", ".join(f"count({field}) AS {field}" for field in _ALL_OR_NONE_FIELDS)}
  FROM events WHERE ev IN ('dump', 'cq', 'op')
  GROUP BY run, ev, CASE WHEN ev = 'op' THEN type ELSE e END, f) c
JOIN runs r ON r.run = c.run AND r.history IS NULL
"""
SILENT = " OR ".join(
    f"({kinds} AND ({' OR '.join(f'({name} > 0 AND {name} < n)' for name in names)}))"
    for kinds, names in ((kinds, fields.split()) for kinds, fields in _ALL_OR_NONE)
)

UNOPENED = """
SELECT w.run, w.src, w.opens FROM writers w JOIN runs r ON r.run = w.run AND r.history IS NULL
"""

#: All logs of nodes that lines name. A run has one; nobody looks at what a line says of another.
LEDGERS = """
SELECT l.run, count(*) AS n, min(l.ledger) AS first, max(l.ledger) AS last FROM (
  SELECT run, ledger FROM events WHERE ledger IS NOT NULL AND ev <> 'meta' GROUP BY run, ledger
  UNION SELECT run, ledger FROM meta WHERE ledger <> 'consumequeue') l
JOIN runs r ON r.run = l.run AND r.history IS NULL GROUP BY l.run
"""
