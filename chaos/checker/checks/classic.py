"""What a classic master and its slave promise: D1-D5.

Nobody elects there. When a master is lost for good, somebody makes its slave the master (`taken_over`); what
the old one had is read from its files (`left`), and what the new one has from its own.
"""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, warning
from chaos.checker.needs import DRAINED, EVIDENT, WHOLE, Need

_TAKEN = """
SELECT m.run, m.node, m.member, m.ended, m.mono, r.bound, r.broker_role FROM meta m
JOIN runs r ON r.run = m.run WHERE m.e = 'taken_over'
"""

#: Messages that the lost master had acknowledged and its successor has not, beside whether they stood in the
#: log of the lost one behind what its successor had then.
_LOST = f"""
SELECT s.run, s.mid, s.log, t.node, t.member, t.ended, t.broker_role, l.off, s.src, s.inc, s.seq,
  coalesce(l.off >= t.ended, false) AS behind
FROM sends s JOIN ({_TAKEN}) t ON t.run = s.run AND s.ret <= t.mono + t.bound
LEFT JOIN (SELECT run, node, mid, max(off) AS off FROM left_records WHERE mid IS NOT NULL
  GROUP BY run, node, mid) l ON l.run = s.run AND l.mid = s.mid AND l.node = t.member
ANTI JOIN dump d ON d.run = s.run AND d.mid = s.mid AND d.node = t.node
WHERE s.said = 'ok'
"""

#: Records of the new master up to where its log ended when it became master, and of the lost one up to there,
#: that the other one has not.
_UNLIKE = f"""
SELECT t.run, t.node AS who, t.member AS other, d.off, d.src, d.inc, d.seq FROM ({_TAKEN}) t
JOIN dump d ON d.run = t.run AND d.node = t.node AND d.off < t.ended
ANTI JOIN left_records l
  ON l.run = d.run AND l.node = t.member AND l.off = d.off AND l.chain_key = d.chain_key
UNION ALL
SELECT t.run, t.member, t.node, l.off, l.src, l.inc, l.seq FROM ({_TAKEN}) t
JOIN left_records l ON l.run = t.run AND l.node = t.member AND l.off < t.ended
ANTI JOIN dump d ON d.run = l.run AND d.node = t.node AND d.off = l.off AND d.chain_key = l.chain_key
"""

#: Messages of each log of classic records, each with the queue offset before it. A log begins anew nowhere.
_NUMBERED = """
SELECT *, lag(qoff) OVER (PARTITION BY run, who, log ORDER BY off) AS before FROM (
  SELECT run, node AS who, log, off, qoff, src, inc, seq FROM dump WHERE off IS NOT NULL AND qoff IS NOT NULL
  UNION ALL
  SELECT run, node || ' before', log, off, qoff, src, inc, seq FROM left_records WHERE qoff IS NOT NULL
)
"""

#: Acknowledged messages by place and by how often somebody had been made master before.
_GIVEN = f"""
SELECT run, log, pos, life, min(mid) AS mid, max(mid) AS mid_other FROM (
  SELECT s.run, s.log, s.pos, s.mid, count(t.mono) AS life FROM sends s
  JOIN runs r ON r.run = s.run AND r.store = 'classic'
  LEFT JOIN ({_TAKEN}) t ON t.run = s.run AND t.mono < s.ret
  WHERE s.said = 'ok' AND s.pos IS NOT NULL GROUP BY s.run, s.log, s.pos, s.mid
) GROUP BY run, log, pos, life
"""

#: Numbers of records of which two nodes have different ones, or different ones before.
_DIVERGED = """
SELECT d.run, d.lidx, min(d.node) AS node, max(d.node) AS node_other, min(d.chain_key) AS chain_min,
  max(d.chain_key) AS chain_max FROM dump d
JOIN runs r ON r.run = d.run AND r.store = 'classic' GROUP BY d.run, d.lidx
"""

_FILES = (Need.DUMPS, Need.SOUND_FILES)

CHECKS: tuple[Check, ...] = (
    hard(
        "D1",
        "with synchronous double write, what was acknowledged outlives the master that is lost",
        "taken_over doubled oks",
        "{member} had acknowledged message {mid} of {log}; {node}, which took over, has it not",
        Part(
            _LOST,
            "broker_role = 'SYNC_MASTER'",
            "broker_role, member, node, mid, log, src, inc, seq",
        ),
        needs=(*WHOLE, *_FILES, Need.CLOCKS),
    ),
    hard(
        "D2",
        "without it, only the end of the log is lost that the slave had not acknowledged",
        "taken_over single oks",
        "message {mid} of {log} is lost, and did not stand behind {ended} in the log of {member}",
        Part(
            _LOST,
            "broker_role = 'ASYNC_MASTER' AND NOT behind",
            "broker_role, behind, mid, log, ended, member, src, inc, seq",
        ),
        needs=(*WHOLE, *_FILES, Need.CLOCKS),
    ),
    warning(
        "D2W",
        "what was acknowledged without double write, and is lost with the master",
        "taken_over single oks",
        "message {mid} of {log}, at offset {off} of {member}; {node} took over at {ended}",
        Part(
            _LOST,
            "broker_role = 'ASYNC_MASTER' AND behind",
            "broker_role, behind, mid, log, off, member, node, ended, src, inc, seq",
        ),
        needs=(*WHOLE, *_FILES, Need.CLOCKS),
    ),
    hard(
        "D3",
        "a classic master gives the queue offsets of a queue one after the other, each once",
        "classic oks",
        "{log} at {pos}: {what}",
        Part(
            _GIVEN,
            "mid < mid_other",
            "log, pos, 'acknowledged to message ' || CAST(mid AS STRING) || ' and to message ' || "
            "CAST(mid_other AS STRING) AS what",
        ),
        Part(
            _NUMBERED,
            "qoff <> coalesce(before + 1, qoff)",
            "log, qoff AS pos, 'in the log of ' || who || ' it comes after ' || CAST(before AS STRING) AS "
            "what, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.CLOCKS, Need.IDS),
        clear_needs=(*DRAINED, *_FILES),
    ),
    hard(
        "D4",
        "a slave that takes over has the beginning of its master's log, byte for byte",
        "taken_over dump",
        "the record at offset {off} of {who} is not what {other} has there",
        Part(_UNLIKE, "true", "off, who, other, src, inc, seq"),
        needs=(*WHOLE, *_FILES),
    ),
    hard(
        "D5",
        "the logs of a master and its slave are the same as far as both reach",
        "classic dump",
        "record {lidx} of {node} is not that of {node_other}, or what is before it is not",
        Part(_DIVERGED, "chain_min < chain_max", "lidx, node, node_other"),
        needs=(*EVIDENT, Need.DUMPS),
        clear_needs=(*WHOLE, *_FILES),
    ),
)
