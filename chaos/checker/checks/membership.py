"""Changes of the members, checked against the configurations that nodes report, and forced recoveries: R3,
R26-R33, L15."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, warning
from chaos.checker.configurations import LACKS_A_MAJORITY, in_force, is_in, is_machine, size_of
from chaos.checker.needs import EVIDENT, NODE_LINES, NODES, WHOLE, Need

_COUNTS = is_machine("l.c_uids", "v.voter", "v.uid")

#: Leaderships with the votes of the voters in force. Without configurations in the trace, all nodes vote.
_ELECTED = f"""
SELECT l.run, l.node, l.term, min(l.src) AS src, min(l.inc) AS inc, min(l.seq) AS seq,
  coalesce({size_of("l.c_voters")}, max(r.nodes)) AS voters,
  coalesce({size_of("l.c_outgoing")}, 0) AS outgoing,
  count(v.voter) FILTER (WHERE coalesce({is_in("l.c_voters", "v.voter")}, true) AND {_COUNTS}) AS held,
  count(v.voter) FILTER (WHERE {is_in("l.c_outgoing", "v.voter")} AND {_COUNTS}) AS held_outgoing
FROM candidacies l JOIN runs r ON r.run = l.run
LEFT JOIN (SELECT DISTINCT run, term, candidate, node AS voter, uid FROM milestones WHERE e = 'vote') v
  ON v.run = l.run AND v.term = l.term AND v.candidate = l.node
WHERE l.e = 'leader' GROUP BY l.run, l.node, l.term, l.c_voters, l.c_outgoing
"""

#: Configurations that leaders appended, each with the one before it, and with the entries that the leader had
#: committed by then.
_CHANGES = f"""
SELECT * FROM (
  SELECT run, node, e, lidx, eterm, voters, outgoing, src, inc, seq, {in_force("w")},
    max_by(lidx, CASE WHEN e = 'configuration' THEN seq END) OVER w AS lidx_before,
    max_by(e, CASE WHEN e IN ('leader', 'follower', 'candidate') THEN seq END) OVER w AS raft_role,
    max_by(term, CASE WHEN e IN ('leader', 'follower', 'candidate') THEN seq END) OVER w AS raft_term,
    max_by(ended, CASE WHEN e = 'leader' THEN seq END) OVER w AS ended_before,
    coalesce(max(CASE WHEN e = 'commit' THEN lidx END) OVER w, -1) AS committed
  FROM nodes n SEMI JOIN regrouped g ON g.run = n.run
  WHERE e IN ('configuration', 'commit', 'leader', 'follower', 'candidate')
  WINDOW w AS (PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) WHERE e = 'configuration' AND raft_role = 'leader' AND raft_term = eterm AND c_voters IS NOT NULL
"""


def _common(one: str, other: str) -> str:
    return f"count(*) FILTER (WHERE {is_in(one, 'g.node')} AND {is_in(other, 'g.node')})"


#: Changes with the number of nodes that each set of voters shares with each set before it.
_STEPS = f"""
SELECT c.run, c.node, c.lidx, c.lidx_before, c.voters, c.outgoing, c.c_voters, c.c_outgoing, c.src, c.inc,
  c.seq, {_common("c.voters", "c.c_voters")} AS shared_vv, {_common("c.voters", "c.c_outgoing")} AS shared_vo,
  {_common("c.outgoing", "c.c_voters")} AS shared_ov, {_common("c.outgoing", "c.c_outgoing")} AS shared_oo
FROM ({_CHANGES}) c JOIN (SELECT run, node FROM milestones GROUP BY run, node) g ON g.run = c.run
GROUP BY c.run, c.node, c.lidx, c.lidx_before, c.voters, c.outgoing, c.c_voters, c.c_outgoing, c.src, c.inc,
  c.seq
"""


def _overlap(one: str, other: str, shared: str) -> str:
    """Return an SQL condition: every majority of one set has a node in every majority of the other.

    Two disjoint majorities exist if the nodes that both must take from the shared ones are at most as many as
    these. The numbers are doubled, because a majority of n nodes has more than n / 2.
    """
    needed = [
        f"greatest(0, {n} - {n} % 2 + 2 - 2 * ({n} - {shared}))" for n in (size_of(one), size_of(other))
    ]
    return f"({size_of(one)} > 0 AND {size_of(other)} > 0 AND {' + '.join(needed)} > 2 * {shared})"


_SHARE_A_MAJORITY = " OR ".join(
    (
        _overlap("voters", "c_voters", "shared_vv"),
        _overlap("voters", "c_outgoing", "shared_vo"),
        _overlap("outgoing", "c_voters", "shared_ov"),
        _overlap("outgoing", "c_outgoing", "shared_oo"),
    )
)

#: Votes of machines for a candidate that knows another machine by this name, which was added later.
_OUTLIVED = f"""
SELECT v.run, v.node, v.uid, v.term, v.candidate, v.src, v.inc, v.seq FROM milestones v
JOIN candidacies c ON c.run = v.run AND c.node = v.candidate AND c.term = v.term AND c.e = 'candidate'
JOIN (SELECT run, node, max(uid) AS uid FROM milestones WHERE uid IS NOT NULL GROUP BY run, node) m
  ON m.run = v.run AND m.node = v.node
WHERE v.e = 'vote' AND v.uid < m.uid AND NOT {is_machine("c.c_uids", "v.node", "v.uid")}
  AND instr(',' || c.c_uids, ',' || v.node || ':') > 0
"""

#: Entries with their configuration, according to all nodes.
_ENTRIES = """
SELECT run, lidx, eterm, min(said) AS said, max(said) AS said_other, max_by(src, said) AS src,
  max_by(inc, said) AS inc, max_by(seq, said) AS seq
FROM (
  SELECT run, lidx, eterm, voters || '/' || outgoing || '/' || learners || '/' || uids AS said, src, inc, seq
  FROM milestones WHERE e = 'configuration' AND lidx >= 0
) GROUP BY run, lidx, eterm
"""

_UNDONE = """
SELECT u.run, u.node, u.lidx, u.eterm, u.src, u.inc, u.seq FROM milestones u
SEMI JOIN milestones c ON c.run = u.run AND c.e = 'configuration_committed' AND c.lidx = u.lidx
  AND c.eterm = u.eterm
WHERE u.e = 'configuration_undone'
"""

#: Forced recoveries of survivors, with the end of the log before the node was stopped and after it was
#: started, according to the node, and with the nodes whose files have another history there.
_SURVIVORS = """
SELECT v.run, v.node, v.ended, v.src, v.inc, v.seq, b.ended AS before, min(r.ended) AS after,
  count(d.node) AS others
FROM recoveries v
JOIN (
  SELECT v.run, max_by(n.chain_key, n.mono) AS chain_key,
    max_by(CASE WHEN n.e = 'append' THEN n.last WHEN n.e = 'truncate' THEN n.lidx - 1
      WHEN n.e = 'install' THEN n.lidx ELSE n.ended END, n.mono) AS ended
  FROM recoveries v JOIN nodes n ON n.run = v.run AND n.node = v.node AND n.mono < v.mono
    AND n.e IN ('append', 'truncate', 'install', 'recover')
  GROUP BY v.run) b ON b.run = v.run
LEFT JOIN milestones r ON r.run = v.run AND r.node = v.node AND r.e = 'recover' AND r.mono >= v.mono
LEFT JOIN dump d ON d.run = v.run AND d.lidx = b.ended AND d.chain_key <> b.chain_key
WHERE NOT v.is_cut GROUP BY v.run, v.node, v.ended, v.src, v.inc, v.seq, b.ended
"""

#: Promotions of learners, with the end of the log after the learner was started, according to the node.
_PROMOTED = """
SELECT v.run, v.node, v.ended, v.committed, v.told, v.src, v.inc, v.seq, min(r.ended) AS after
FROM recoveries v
LEFT JOIN milestones r ON r.run = v.run AND r.node = v.node AND r.e = 'recover' AND r.mono >= v.mono
WHERE v.is_cut GROUP BY v.run, v.node, v.ended, v.committed, v.told, v.src, v.inc, v.seq
"""

#: Starts of nodes with the newest configuration of their log, according to their earlier processes, and with
#: the one that they started with. A start without a log has none.
_RESTARTS = """
SELECT r.run, r.node, r.ended, r.src, r.inc, r.seq, max_by(b.lidx, b.mono) AS before, max(a.lidx) AS after
FROM milestones r
JOIN milestones b ON b.run = r.run AND b.node = r.node AND b.e = 'configuration' AND b.mono < r.mono
JOIN (SELECT run, node, inc, min(seq) AS seq FROM milestones WHERE e NOT IN ('recover', 'configuration')
  GROUP BY run, node, inc) x ON x.run = r.run AND x.node = r.node AND x.inc = r.inc
JOIN milestones a ON a.run = r.run AND a.node = r.node AND a.inc = r.inc AND a.e = 'configuration'
  AND a.seq < x.seq
WHERE r.e = 'recover' AND NOT coalesce(r.wiped, false) GROUP BY r.run, r.node, r.ended, r.src, r.inc, r.seq
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "R3",
        "every leader was elected by a majority of the voters in force, and of the outgoing ones",
        "leaders votes",
        "{node} led term {term} with the votes of {held} of {voters} voters{joint}",
        Part(
            _ELECTED,
            LACKS_A_MAJORITY,
            "node, term, held, voters, outgoing, held_outgoing, CASE WHEN outgoing > 0 THEN ' and of ' "
            "|| CAST(held_outgoing AS STRING) || ' of ' || CAST(outgoing AS STRING) || ' outgoing ones' "
            "ELSE '' END AS joint, src, inc, seq",
            few=True,
        ),
        needs=NODES,
    ),
    hard(
        "R26",
        "the majorities of two consecutive configurations always share a node",
        "configurations",
        "{node} appended the voters {after} at {lidx}, directly after the voters {before} at {lidx_before}",
        Part(
            _STEPS,
            f"NOT ({_SHARE_A_MAJORITY})",
            "node, lidx, lidx_before, voters || CASE WHEN outgoing = '' THEN '' ELSE ' and ' || outgoing END "
            "AS after, c_voters || CASE WHEN c_outgoing = '' THEN '' ELSE ' and ' || c_outgoing END "
            "AS before, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.WRITERS),
        clear_needs=NODES,
    ),
    hard(
        "R27",
        "only a voter of the configuration in force on it becomes leader",
        "configurations leaders",
        "{node} led term {term}; its configuration has the voters {voters}",
        Part(
            "candidacies",
            f"e = 'leader' AND NOT (({is_in('c_voters', 'node')} OR {is_in('c_outgoing', 'node')}) "
            f"AND {is_machine('c_uids', 'node', 'uid')})",
            "node, e, term, c_voters AS voters, c_outgoing, c_uids, uid, src, inc, seq",
            few=True,
        ),
        needs=NODE_LINES,
        clear_needs=NODES,
    ),
    hard(
        "R28",
        "a machine that was replaced votes for no candidate that knows its successor",
        "configurations votes",
        "{node}, a machine that was replaced (uid {uid}), voted in term {term} for {candidate}",
        Part(_OUTLIVED, "true", "node, uid, term, candidate, src, inc, seq", few=True),
        needs=NODE_LINES,
        clear_needs=NODES,
    ),
    hard(
        "R29",
        "an entry has the same configuration on all nodes, and a committed configuration is never undone",
        "configurations",
        "entry {lidx} of term {eterm}: {what}",
        Part(
            _ENTRIES,
            "said < said_other",
            "lidx, eterm, said || ' or ' || said_other AS what, src, inc, seq",
            few=True,
        ),
        Part(
            _UNDONE,
            "true",
            "lidx, eterm, node || ' removed it after its commit' AS what, src, inc, seq",
            few=True,
        ),
        needs=EVIDENT,
        clear_needs=NODES,
    ),
    hard(
        "R30",
        "a leader changes the members only after a commit of its term, and of the configuration before",
        "configurations leaders",
        "{node} appended a configuration at {lidx} when it had committed up to {committed}; its leadership "
        "began after {ended}, and the configuration before is at {lidx_before}",
        Part(
            _CHANGES,
            "committed <= ended_before OR committed < lidx_before",
            "node, lidx, committed, ended_before AS ended, lidx_before, src, inc, seq",
        ),
        needs=NODE_LINES,
        clear_needs=NODES,
    ),
    hard(
        "R32",
        "a node restarts with the newest configuration of its log",
        "configurations recoveries",
        "{node} started with the configuration at {after}; its log, up to {ended}, has one at {before}",
        Part(
            _RESTARTS,
            "after < before AND before <= ended",
            "node, before, after, ended, src, inc, seq",
            few=True,
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "R31",
        "a forced recovery keeps the whole log of the survivor",
        "survived",
        "the log of {node} ended at {before}; the recovery kept {ended}, it started with {after}, and the "
        "files of {others} nodes have another history there",
        Part(
            _SURVIVORS,
            "ended < before OR after <= before OR others > 0",
            "node, before, ended, coalesce(after, -1) AS after, others, src, inc, seq",
        ),
        needs=NODES,
    ),
    hard(
        "R33",
        "a promotion keeps the log up to the last entry known to be committed, and nothing behind it",
        "promoted",
        "{node} must have known a commit up to {committed}, and reported one up to {told}; the promotion "
        "kept {ended}, and the node started with {after}",
        Part(
            _PROMOTED,
            "ended < committed OR ended > told OR after <> ended + 1",
            "node, committed, told, ended, coalesce(after, -1) AS after, src, inc, seq",
        ),
        needs=NODES,
    ),
    warning(
        "L15",
        "a forced recovery loses no acknowledged message",
        "recovered acked",
        "message {mid}, acknowledged at index {lidx}, was lost with the majority; the survivor had committed "
        "up to {committed}",
        Part("lost_messages", "true", "mid, lidx, committed, src, inc, seq", few=True),
        needs=(*WHOLE, Need.DUMPS),
    ),
)
