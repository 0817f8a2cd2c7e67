"""Tables of a forced recovery: the loss of a majority for good, after which a survivor continues alone, or of
all voters, after which a learner is promoted.

A run has at most one. Entries that only the lost members had are lost, and their indexes are used again.
"""

from __future__ import annotations

#: The survivor, the last index of the log with which it continues, and the last one that it must have known
#: to be committed. `is_cut`: it was a learner, whose log was cut there. `told`: the last index that it
#: reported as committed; a learner that was killed may have forgotten it, one that closed its trace has not.
#: `term`: in which it continues, above all terms before. `mono`: everything before it happened in the former
#: cluster, and all lost members had ended.
RECOVERIES = """
SELECT m.run, m.node, m.mono, coalesce(m.last, m.ended) AS ended, m.last IS NOT NULL AS is_cut,
  coalesce(c.lidx, -1) AS told, CASE WHEN m.last IS NULL OR w.ends > 0
    THEN greatest(m.committed, coalesce(c.lidx, -1)) ELSE greatest(m.committed, m.last) END AS committed,
  min(r.term) AS term, m.src, m.inc, m.seq
FROM meta m
LEFT JOIN (
  SELECT v.run, max(CASE WHEN n.e = 'recover' THEN n.committed ELSE n.lidx END) AS lidx FROM meta v
  JOIN nodes n ON n.run = v.run AND n.node = v.node AND n.e IN ('commit', 'install', 'recover')
    AND n.mono < v.mono
  WHERE v.e = 'recovered' GROUP BY v.run) c ON c.run = m.run
LEFT JOIN (
  SELECT v.run, max_by(l.ends, l.last_mono) AS ends FROM meta v
  JOIN line_counts l ON l.run = v.run AND l.src = 'node:' || v.node AND l.last_mono < v.mono
  WHERE v.e = 'recovered' GROUP BY v.run) w ON w.run = m.run
LEFT JOIN milestones r ON r.run = m.run AND r.node = m.node AND r.e = 'recover' AND r.mono >= m.mono
WHERE m.e = 'recovered'
GROUP BY m.run, m.node, m.mono, m.ended, m.last, m.committed, c.lidx, w.ends, m.src, m.inc, m.seq
"""

#: Messages that the former cluster acknowledged behind the last commit that the survivor knew, and that no
#: file has.
LOST_MESSAGES = """
SELECT a.run, a.mid, a.lidx, v.committed, a.src, a.inc, a.seq FROM (
  SELECT run, mid, lidx, term, ret, src, inc, seq FROM ops
  WHERE f = 'append' AND outcome = 'ok' AND mid IS NOT NULL
  UNION ALL
  SELECT o.run, i.mid, o.lidx + i.i, o.term, o.ret, o.src, o.inc, o.seq FROM items i
  JOIN ops o ON o.run = i.run AND o.op = i.op AND o.f = 'send_batch' AND o.outcome = 'ok'
) a
JOIN recoveries v ON v.run = a.run AND coalesce(a.term < v.term, a.ret < v.mono) AND a.lidx > v.committed
ANTI JOIN dump d ON d.run = a.run AND d.mid = a.mid
"""

#: Such messages count as sends with an unknown outcome.
LOST_SENDS = "SELECT run, mid, 'info' FROM lost_messages"


def not_lost(line: str, index: str, term: str = "NULL") -> str:
    """Return a join that omits the lines of the former cluster about entries that are lost. `index`, `term`:
    of the entry; without a term the time of the line decides."""
    return (
        f"ANTI JOIN recoveries lost ON lost.run = {line}.run AND {index} > lost.ended "
        f"AND coalesce({term} < lost.term, {line}.mono < lost.mono)"
    )
