"""Tables of the configurations in force. Quorums come from them; in traces of earlier releases, which have
none, from the number of nodes of the run."""

from __future__ import annotations

_STATE = ("voters", "outgoing", "learners", "uids")


def is_in(names: str, node: str) -> str:
    """Return an SQL condition: `node` is one of the comma-separated names."""
    return f"instr(',' || {names} || ',', ',' || {node} || ',') > 0"


def is_machine(uids: str, node: str, uid: str) -> str:
    """Return an SQL condition: a machine of this uid is the member of this name. True if its trace has no
    uids."""
    name = f"{node} || ':' || CAST({uid} AS STRING)"
    return f"coalesce({is_in(uids, name)}, true)"


def size_of(names: str) -> str:
    """Return SQL for the number of comma-separated names."""
    return f"(CASE WHEN {names} = '' THEN 0 ELSE length({names}) - length(replace({names}, ',', '')) + 1 END)"


def in_force(window: str) -> str:
    """Return SQL for the columns of the newest configuration of a node, with the prefix `c_`."""
    newest = "CASE WHEN e = 'configuration' THEN seq END"
    return ", ".join(f"max_by({name}, {newest}) OVER {window} AS c_{name}" for name in _STATE)


#: Candidacies and leaderships, each with the configuration that was in force on the node.
CANDIDACIES = f"""
SELECT run, node, e, term, uid, ended, mono, src, inc, seq, c_voters, c_outgoing, c_uids FROM (
  SELECT *, {in_force("w")} FROM milestones WHERE e IN ('configuration', 'candidate', 'leader')
  WINDOW w AS (PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) WHERE e <> 'configuration'
"""

#: Runs in which the voters changed.
REGROUPED = """
SELECT run FROM milestones WHERE e = 'configuration' GROUP BY run
HAVING min(voters || '/' || outgoing) < max(voters || '/' || outgoing)
"""

#: The number of members at the end of runs whose members changed: those of the last committed configuration.
LAST_MEMBERS = f"""
SELECT c.run, max_by({size_of("c.voters")} + {size_of("c.learners")}, c.lidx) AS members FROM milestones c
SEMI JOIN (SELECT run, lidx, eterm FROM milestones WHERE e = 'configuration_committed') d
  ON d.run = c.run AND d.lidx = c.lidx AND d.eterm = c.eterm
WHERE c.e = 'configuration' GROUP BY c.run
"""

#: Periods of a node id, with the uid of its machine; by the start of each. A machine that was added may count
#: before it has learned its uid (-1 until then): its directory is part of the configuration.
_MACHINES = """
SELECT run, node, mono AS since, lead(mono) OVER (PARTITION BY run, node ORDER BY mono, seq) AS until,
  min_by(CASE WHEN uid >= 0 THEN uid END, CASE WHEN uid >= 0 THEN mono END) OVER (
    PARTITION BY run, node ORDER BY mono, seq ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS uid
FROM milestones WHERE e IN ('recover', 'term_vote') AND uid IS NOT NULL
"""

#: Commits of leaders in runs whose voters changed, with the configuration that was in force on the leader.
_LEADER_COMMITS = f"""
SELECT c.* FROM (
  SELECT run, node, ledger, e, term, lidx, mono, src, inc, seq, {in_force("w")} FROM nodes n
  SEMI JOIN regrouped g ON g.run = n.run
  WHERE e IN ('configuration', 'commit')
  WINDOW w AS (PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) c
SEMI JOIN candidacies l ON l.run = c.run AND l.node = c.node AND l.term = c.term AND l.e = 'leader'
WHERE c.e = 'commit' AND c.c_voters IS NOT NULL
"""


def holders(held: str) -> str:
    """Return a query for `_LEADER_COMMITS` with the number of voters, and of outgoing voters, that had the
    entry by then.

    `held`: query for run, ledger, node, t, n, lidx: from time t on, the node has the log up to lidx; n orders
    the rows of a node. A machine that was replaced does not count.
    """
    return f"""
SELECT run, node, lidx, term, c_voters, c_outgoing, src, inc, seq,
  {size_of("c_voters")} AS voters, {size_of("c_outgoing")} AS outgoing,
  count(*) FILTER (WHERE has_it AND {is_in("c_voters", "member")}) AS held,
  count(*) FILTER (WHERE has_it AND {is_in("c_outgoing", "member")}) AS held_outgoing
FROM (
  SELECT x.*, coalesce(x.has >= x.lidx, false) AND {is_machine("x.c_uids", "x.member", "m.uid")} AS has_it
  FROM (
    SELECT *, max_by(CASE WHEN k = 0 THEN lidx END, CASE WHEN k = 0 THEN n END) OVER (
      PARTITION BY run, ledger, member ORDER BY t, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS has
    FROM (
      SELECT run, ledger, node AS member, 0 AS k, t, n, lidx, CAST(NULL AS BIGINT) AS term, '' AS node,
        '' AS c_voters, '' AS c_outgoing, '' AS c_uids, '' AS src, CAST(NULL AS BIGINT) AS inc,
        CAST(NULL AS BIGINT) AS seq
      FROM ({held}) h
      UNION ALL
      SELECT c.run, c.ledger, g.node, 1, c.mono, NULL, c.lidx, c.term, c.node, c.c_voters, c.c_outgoing,
        c.c_uids, c.src, c.inc, c.seq
      FROM ({_LEADER_COMMITS}) c
      JOIN (SELECT run, node FROM milestones GROUP BY run, node) g ON g.run = c.run
        AND ({is_in("c.c_voters", "g.node")} OR {is_in("c.c_outgoing", "g.node")})
    )
  ) x
  LEFT JOIN ({_MACHINES}) m ON m.run = x.run AND m.node = x.member AND m.since <= x.t
    AND coalesce(x.t < m.until, true)
  WHERE x.k = 1
) GROUP BY run, node, lidx, term, c_voters, c_outgoing, src, inc, seq
"""


#: A row of `holders` is a violation.
LACKS_A_MAJORITY = "2 * held <= voters OR (outgoing > 0 AND 2 * held_outgoing <= outgoing)"
