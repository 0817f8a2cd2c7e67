"""Tables of the log of a lost classic master."""

from __future__ import annotations

#: Its records. `log` is the log of the message, as in all tables.
LEFT_RECORDS = """
SELECT run, node, off, chain_key, mid, qoff, src, inc, seq,
  CASE WHEN topic IS NOT NULL AND q IS NOT NULL THEN 'q:' || topic || '/' || CAST(q AS STRING) END AS log
FROM events WHERE ev = 'left'
"""

#: Messages beyond the end of the successor's log, whose survival an ASYNC_MASTER does not guarantee.
LEFT_BEHIND = """
SELECT l.run, l.mid, 'info' FROM left_records l
JOIN meta t ON t.run = l.run AND t.member = l.node AND t.e = 'taken_over' AND l.off >= t.ended
JOIN runs r ON r.run = l.run AND r.broker_role = 'ASYNC_MASTER' WHERE l.mid IS NOT NULL
"""
