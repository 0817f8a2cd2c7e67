"""Raft's safety properties, checked against the events of the nodes: R1, R2, R4-R16, R22-R25."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, warning
from chaos.checker.checks.sources import DURABLE, HISTORY, STARVED
from chaos.checker.configurations import size_of
from chaos.checker.needs import DRAINED, EVIDENT, NODE_LINES, NODES, Need
from chaos.checker.recoveries import not_lost

#: A machine with its uid, unless it has been a member since the log began.
_MACHINE = "node || CASE WHEN coalesce(uid, 0) = 0 THEN '' ELSE ' (uid ' || CAST(uid AS STRING) || ')' END"

_LEADERS = f"""
SELECT run, term, min(node) AS node, max(node) AS node_other, max_by(src, node) AS src,
  max_by(inc, node) AS inc, max_by(seq, node) AS seq
FROM (SELECT run, term, {_MACHINE} AS node, src, inc, seq FROM milestones WHERE e = 'leader')
GROUP BY run, term
"""

#: Votes per node and term. A vote that a node gave itself before it was wiped is ignored: it can no longer
#: elect the node, and if no other node has seen that term, the next process of the node may vote in it.
_VOTES = """
SELECT v.run, v.node, v.term, min(v.candidate) AS candidate, max(v.candidate) AS candidate_other FROM (
  SELECT run, node, uid, term, candidate, mono FROM milestones WHERE e = 'vote'
  UNION ALL
  SELECT run, node, uid, term, vote, mono FROM milestones WHERE e IN ('term_vote', 'recover') AND vote <> ''
) v ANTI JOIN milestones w ON w.run = v.run AND w.node = v.node AND w.e = 'recover' AND w.wiped
  AND v.candidate = v.node AND v.mono < w.mono
GROUP BY v.run, v.node, v.uid, v.term
"""

_CHAINS = """
SELECT run, ledger, lidx, eterm, min(chain_key) AS key_min, max(chain_key) AS key_max, min(chain) AS chain,
  max(chain) AS chain_other
FROM (
  SELECT run, ledger, last AS lidx, eterm, chain, chain_key FROM nodes
  WHERE e = 'append' AND chain IS NOT NULL
  UNION ALL
  SELECT run, coalesce(ledger, ''), lidx, eterm, chain, chain_key FROM dump
  WHERE chain IS NOT NULL
) GROUP BY run, ledger, lidx, eterm
"""

#: Terms per index and history. The history includes the terms, so there can be only one.
_TERMS_OF_CHAINS = """
SELECT run, ledger, lidx, chain_key, min(chain) AS chain, min(eterm) AS eterm, max(eterm) AS eterm_other
FROM (
  SELECT run, ledger, last AS lidx, eterm, chain, chain_key FROM nodes
  WHERE e = 'append' AND chain IS NOT NULL
  UNION ALL
  SELECT run, coalesce(ledger, ''), lidx, eterm, chain, chain_key FROM dump WHERE chain IS NOT NULL
) GROUP BY run, ledger, lidx, chain_key
"""

#: Index range of each term in the files of a node, with the highest index of all earlier terms.
_TERM_RANGES = """
SELECT *, max(high) OVER (PARTITION BY run, node, ledger ORDER BY eterm
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS high_before
FROM (
  SELECT run, node, coalesce(ledger, '') AS ledger, eterm, min(lidx) AS low, max(lidx) AS high FROM dump
  GROUP BY run, node, coalesce(ledger, ''), eterm)
"""

#: Messages at the index at which the leader of a term appends its no-op.
_TERMS_WITHOUT_NO_OP = """
SELECT l.run, l.node, l.term, d.lidx, d.mid, d.node AS holder, d.src, d.inc, d.seq FROM milestones l
JOIN dump d ON d.run = l.run AND d.eterm = l.term AND d.lidx = l.ended + 1 AND d.sure AND d.mid IS NOT NULL
WHERE l.e = 'leader'
"""

_BEFORE_TERMS = """
SELECT run, node, e, term, ended, src, inc, seq, max(CASE WHEN e = 'commit' THEN lidx END) OVER (
  PARTITION BY run ORDER BY term, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS committed_before
FROM (
  SELECT run, node, e, term, ended, CAST(NULL AS BIGINT) AS lidx, src, inc, seq, 0 AS k FROM milestones
    WHERE e = 'leader'
  UNION ALL
  SELECT n.run, '', 'commit', n.term, NULL, max(least(n.lidx, coalesce(v.ended, n.lidx))), '', 0, 0, 1
  FROM nodes n LEFT JOIN recoveries v ON v.run = n.run AND n.term < v.term
  WHERE n.e = 'commit' GROUP BY n.run, n.term)
"""

#: Terms and histories that nodes, files, and readers report for a committed index.
_COMMITTED = f"""
SELECT run, ledger, lidx, min(eterm) AS eterm_min, max(eterm) AS eterm_max, min(chain_key) AS key_min,
  max(chain_key) AS key_max, min(chain) AS chain_min, max(chain) AS chain_max
FROM (
  SELECT run, ledger, CASE WHEN e = 'apply' THEN last ELSE lidx END AS lidx,
    CASE WHEN e = 'commit' THEN eterm END AS eterm, chain, chain_key FROM nodes n
  {not_lost("n", "coalesce(n.last, n.lidx)")} WHERE e IN ('commit', 'apply')
  UNION ALL
  SELECT run, coalesce(ledger, ''), lidx, eterm, chain, chain_key FROM dump WHERE sure
  UNION ALL
  SELECT run, ledger, lidx, NULL, chain, chain_key FROM milestones WHERE e = 'install'
  UNION ALL
  SELECT run, ledger, lidx, eterm, NULL, NULL FROM events d {not_lost("d", "d.lidx", "d.eterm")}
  WHERE ev = 'dlv' AND eterm IS NOT NULL AND topic IS NULL
) GROUP BY run, ledger, lidx
"""

_UNPROVOKED = """
SELECT l.run, l.node, l.term, l.src, l.inc, l.seq, l.n, f.begun FROM (
  SELECT *, row_number() OVER (PARTITION BY run ORDER BY term) AS n FROM milestones WHERE e = 'leader') l
LEFT JOIN (SELECT b.run, b.mono AS begun, coalesce(max(x.mono), b.mono) AS ended FROM fault b
    LEFT JOIN fault x ON x.run = b.run AND x.fault = b.fault AND x.e = 'end'
    WHERE b.e = 'begin' GROUP BY b.run, b.mono) f
  ON f.run = l.run AND f.begun <= l.mono AND l.mono <= f.ended + 10000000000
"""

#: Votes and leaderships, with the newest term and vote that syncs had covered on the node by then. The only
#: voter of a group leads as soon as it votes for itself, and nobody receives that vote: there, the first
#: effects are its commits.
_IS_ALONE = f"coalesce({size_of('l.c_voters')} = 1 AND l.c_outgoing = '', r.nodes = 1, false)"
_VOTED = f"""
SELECT run, node, k, e, term, vote, src, inc, seq, max_by(term, CASE WHEN k = 0 THEN seq END) OVER w
    AS synced_term,
  max_by(vote, CASE WHEN k = 0 THEN seq END) OVER w AS synced_vote
FROM (
  SELECT run, node, mono, 0 AS k, e, term, vote, src, inc, seq FROM disk WHERE e = 'vote_synced'
  UNION ALL
  SELECT run, node, mono, 1, e, term, candidate, src, inc, seq FROM milestones WHERE e = 'vote'
  UNION ALL
  SELECT l.run, l.node, l.mono, 1, l.e, l.term, l.node, l.src, l.inc, l.seq
  FROM candidacies l JOIN runs r ON r.run = l.run WHERE l.e = 'leader' AND NOT {_IS_ALONE}
  UNION ALL
  SELECT n.run, n.node, n.mono, 1, n.e, n.term, n.node, n.src, n.inc, n.seq FROM nodes n
  SEMI JOIN (SELECT l.run, l.node, l.term FROM candidacies l JOIN runs r ON r.run = l.run
    WHERE l.e = 'leader' AND {_IS_ALONE}) a ON a.run = n.run AND a.node = n.node AND a.term = n.term
  WHERE n.e = 'commit'
) WINDOW w AS (PARTITION BY run, node ORDER BY mono, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

#: Starts and durable terms without a vote, although a vote in that term had been durable.
_FORGOTTEN = """
SELECT r.run, r.node, r.term, v.vote, r.src, r.inc, r.seq FROM milestones r
JOIN milestones v ON v.run = r.run AND v.node = r.node AND v.e = 'term_vote' AND v.term = r.term
  AND v.mono < r.mono AND v.vote <> ''
ANTI JOIN milestones w ON w.run = r.run AND w.node = r.node AND w.e = 'recover' AND w.wiped
  AND v.mono < w.mono AND w.mono <= r.mono
WHERE r.e IN ('recover', 'term_vote') AND coalesce(r.vote, '') = ''
"""

#: Starts that report a lost log although no fault had wiped the node.
_LOST = """
SELECT r.run, r.node, r.src, r.inc, r.seq FROM milestones r
ANTI JOIN fault b ON b.run = r.run AND b.e = 'begin' AND b.f = 'wipe' AND b.mono <= r.mono
  AND instr(',' || b.targets || ',', ',' || r.node || ',') > 0
WHERE r.e = 'recover' AND r.wiped
"""

#: Last committed index of each node according to its files, with the last index committed on all nodes at the
#: end of the run.
_SETTLED_ENDS = """
SELECT d.run, d.ledger, d.node, coalesce(d.sure_high, -1) AS low, m.off AS high FROM dump_ends d
JOIN meta m ON m.run = d.run AND m.e = 'settled'
"""

#: Time after a commit within which a node applies the entry, not counting times in which a process waited for
#: a processor; ns. The harness waits longer than this for nodes to apply everything before it stops them.
_APPLY_NS = 20_000_000_000

#: The last process of each node, if it closed its file: the last index that it applied, and the index that it
#: should have applied. That is its commit index, without the last commits, or, on nodes that are in the group
#: at the end, the index at which the log settled, whichever is greater.
_APPLIED = f"""
SELECT l.run, l.node, l.src, l.inc, max(n.applied) AS applied,
  greatest(coalesce(max(CASE WHEN n.mono < l.last_mono - {_APPLY_NS} - coalesce(x.lost, 0)
    THEN n.committed END), -1), coalesce(max(m.off), -1)) AS committed
FROM (
  SELECT w.run, w.src, w.inc, substr(w.src, 6) AS node, w.last_mono, w.ends,
    row_number() OVER (PARTITION BY w.run, w.src ORDER BY w.first_mono DESC, w.inc) AS nth
  FROM writers w WHERE w.of_node > 0) l
JOIN (
  SELECT run, src, inc, mono, CASE WHEN e = 'commit' THEN lidx END AS committed,
    CASE WHEN e = 'apply' THEN last WHEN e IN ('load', 'install') THEN lidx END AS applied
  FROM nodes WHERE e IN ('commit', 'apply', 'load', 'install')) n
  ON n.run = l.run AND n.src = l.src AND n.inc = l.inc
SEMI JOIN (SELECT run FROM nodes WHERE e = 'apply' GROUP BY run) a ON a.run = l.run
LEFT JOIN (SELECT m.run, d.node, max(m.off) AS off FROM meta m
  JOIN dump_ends d ON d.run = m.run WHERE m.e = 'settled' GROUP BY m.run, d.node) m
  ON m.run = l.run AND m.node = l.node
LEFT JOIN (SELECT run, sum(until - since) AS lost FROM ({STARVED}) s GROUP BY run) x ON x.run = l.run
WHERE l.nth = 1 AND l.ends > 0 GROUP BY l.run, l.node, l.src, l.inc
"""

_LOG_ENDS = """
SELECT run, ledger, min(sure_high) AS low, max(sure_high) AS high, min_by(node, sure_high) AS node,
  max_by(node, sure_high) AS node_other
FROM dump_ends GROUP BY run, ledger
"""

#: Terms, votes, and leaderships for which the term has no candidate, or not the one that got the vote.
_WITHOUT_CANDIDATE = """
SELECT m.run, m.node, m.e, m.term, coalesce(m.candidate, '') AS candidate, m.src, m.inc, m.seq FROM (
  SELECT run, node, e, term, src, inc, seq,
    CASE WHEN e = 'vote' THEN candidate WHEN e = 'leader' THEN node ELSE vote END AS candidate
  FROM milestones WHERE e IN ('term_vote', 'vote', 'leader', 'follower', 'recover') AND term > 0) m
ANTI JOIN (SELECT run, node, term FROM milestones WHERE e = 'candidate' GROUP BY run, node, term) c
  ON c.run = m.run AND c.term = m.term AND (coalesce(m.candidate, '') = '' OR c.node = m.candidate)
"""

#: Appends on nodes other than the leader of the entries' term, with the last entry of that term that the
#: leader had appended by then. The entry of a forced recovery has no leader.
_FOLLOWER_APPENDS = """
SELECT * FROM (
  SELECT *, max(CASE WHEN k = 0 THEN last END) OVER (PARTITION BY run, ledger, eterm ORDER BY t, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS sent
  FROM (
    SELECT n.run, n.node, n.ledger, n.eterm, n.lidx, n.last, CASE WHEN l.node IS NULL THEN 1 ELSE 0 END AS k,
      CASE WHEN l.node IS NULL THEN n.mono ELSE n.mono - r.bound END AS t, n.src, n.inc, n.seq
    FROM nodes n JOIN runs r ON r.run = n.run
    LEFT JOIN (SELECT run, node, term FROM milestones WHERE e = 'leader' GROUP BY run, node, term) l
      ON l.run = n.run AND l.node = n.node AND l.term = n.eterm
    WHERE n.e = 'append'
  )
) a ANTI JOIN recoveries v ON v.run = a.run AND a.eterm = v.term AND a.last = v.ended + 1
WHERE k = 1
"""

#: Logs that restart behind an index at which no other node had purged or installed its log by then.
_NEW_BASES = """
SELECT i.run, i.node, i.lidx, i.src, i.inc, i.seq FROM milestones i JOIN runs r ON r.run = i.run
ANTI JOIN milestones p ON p.run = i.run AND p.e IN ('purge', 'install') AND p.lidx = i.lidx
  AND p.node <> i.node AND p.mono - r.bound <= i.mono
WHERE i.e = 'install'
"""

#: Votes of nodes that had lost their logs. `heard`: the highest term that was durable on another node when
#: the voter returned; `committed`: the highest index that was committed at that time.
_VOTES_AFTER_A_LOSS = """
SELECT v.run, v.node, v.term, v.candidate, v.last_index, w.heard, w.flush_mode, c.committed, v.src, v.inc,
  v.seq
FROM (SELECT run, node, term, candidate, last_index, mono, src, inc, seq FROM milestones WHERE e = 'vote'
  UNION ALL
  SELECT run, node, term, vote, NULL, mono, src, inc, seq FROM milestones WHERE e = 'term_vote' AND vote <> ''
) v
JOIN (
  SELECT w.run, w.node, w.mono, r.flush_mode, max(o.term) AS heard FROM milestones w
  JOIN runs r ON r.run = w.run
  JOIN milestones o ON o.run = w.run AND o.node <> w.node AND o.e IN ('term_vote', 'recover')
    AND o.mono + r.bound < w.mono
  WHERE w.e = 'recover' AND w.wiped GROUP BY w.run, w.node, w.mono, r.flush_mode
) w ON w.run = v.run AND w.node = v.node AND w.mono <= v.mono
LEFT JOIN (
  SELECT w.run, w.node, w.mono, max(n.lidx) AS committed FROM milestones w JOIN runs r ON r.run = w.run
  JOIN nodes n ON n.run = w.run AND n.e = 'commit' AND n.mono + r.bound < w.mono
  WHERE w.e = 'recover' AND w.wiped GROUP BY w.run, w.node, w.mono
) c ON c.run = w.run AND c.node = w.node AND c.mono = w.mono
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "R1",
        "each term has at most one leader (election safety)",
        "leaders",
        "term {term}: {node} and {node_other}",
        Part(_LEADERS, "node < node_other", "term, node, node_other, src, inc, seq", few=True),
        needs=EVIDENT,
        clear_needs=NODES,
    ),
    hard(
        "R2",
        "a node votes for at most one candidate per term, across restarts",
        "votes",
        "{node} voted in term {term} for {candidate} and for {candidate_other}",
        Part(_VOTES, "candidate < candidate_other", "node, term, candidate, candidate_other", few=True),
        needs=(*EVIDENT, Need.LIVES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R4",
        "the term of a node never decreases, across restarts",
        "raft",
        "{node} was in term {term} after {before}",
        # The term in memory is briefly ahead of the durable one. It is lost if the process dies before the
        # sync.
        Part(
            DURABLE,
            "e = 'term_vote' AND term < voted_before",
            "node, term, voted_before AS before, src, inc, seq",
        ),
        Part(
            DURABLE,
            "e IN ('leader', 'follower', 'candidate', 'commit') "
            "AND (term < coalesce(term_before, -1) OR term < coalesce(voted_before, -1))",
            "node, term, greatest(coalesce(term_before, -1), coalesce(voted_before, -1)) AS before, src, "
            "inc, seq",
        ),
        needs=(*EVIDENT, Need.LIVES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R5",
        "a leader never removes entries from its log; a follower removes only entries of earlier terms",
        "leaders",
        "{node} truncated at {lidx} as {role} of term {in_term}; its log ended with an entry of term {ended}",
        Part(
            HISTORY,
            # The leader of this term sent that entry, and never removes one.
            "e = 'truncate' AND (raft_role = 'leader' OR end_term_before >= raft_term)",
            "node, e, lidx, raft_role AS role, raft_term AS in_term, end_term_before AS ended, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R6",
        "two entries with the same index and term have the same history on all nodes (log matching)",
        "chains",
        "index {lidx} of term {eterm}: histories {chain} and {chain_other}",
        Part(_CHAINS, "key_min < key_max", "ledger, lidx, eterm, chain, chain_other"),
        Part(
            _TERMS_OF_CHAINS,
            "eterm < eterm_other",
            "ledger, lidx, eterm, chain, 'the same in term ' || CAST(eterm_other AS STRING) AS chain_other",
        ),
        needs=EVIDENT,
        clear_needs=(*NODES, Need.DUMPS),
    ),
    hard(
        "R7",
        "a leader has every entry that was committed in earlier terms (leader completeness)",
        "leaders commits",
        "{node} led term {term} with a log that ended at {ended}; {committed_before} was committed before",
        Part(
            _BEFORE_TERMS,
            "e = 'leader' AND committed_before > ended",
            "node, e, term, ended, committed_before, src, inc, seq",
        ),
        needs=EVIDENT,
        clear_needs=NODES,
    ),
    hard(
        "R8",
        "all nodes have the same entry at a committed index, and terms never decrease along a log",
        "commits",
        "index {lidx}: {what} {one} and {other}",
        Part(
            _COMMITTED,
            "eterm_min < eterm_max",
            "ledger, lidx, 'terms' AS what, CAST(eterm_min AS STRING) AS one, CAST(eterm_max AS STRING) "
            "AS other",
        ),
        Part(
            _COMMITTED,
            "key_min < key_max",
            "ledger, lidx, 'histories' AS what, chain_min AS one, chain_max AS other",
        ),
        Part(
            _TERM_RANGES,
            "low < high_before",
            "ledger, high_before AS lidx, 'below it ' || node || ' has an entry of term' AS what, "
            "CAST(eterm AS STRING) AS one, 'at this index one of an earlier term' AS other",
        ),
        needs=EVIDENT,
        clear_needs=(*NODES, Need.DUMPS),
    ),
    hard(
        "R9",
        "the commit index never decreases or exceeds the log; truncation, purges and images respect it",
        "commits",
        "{node}: {e} at {lidx}; committed {committed_before}, applied {applied_before}, end {end_before}",
        Part(
            HISTORY,
            "(e = 'commit' AND (lidx < committed_before OR lidx > end_before)) "
            "OR (e = 'truncate' AND lidx <= committed_before) "
            # The state image that allows the purge is a committed entry behind the purged ones.
            "OR (e = 'purge' AND (lidx >= committed_before "
            "OR (lidx > applied_before AND applied_by <> 'install'))) "
            "OR (e = 'load' AND (lidx > committed_before "
            "OR (lidx < applied_before AND applied_by <> 'install')))",
            "node, e, lidx, committed_before, applied_before, end_before, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R10",
        "a leader counts replicas only for entries of its own term, and starts the term with a no-op",
        "leaders commits",
        "{node}, leader of term {term}, {what}",
        Part(
            HISTORY,
            "e = 'commit' AND raft_role = 'leader' AND eterm <> term",
            "node, e, term, 'advanced its commit index to ' || CAST(lidx AS STRING) || ', an entry of term ' "
            "|| CAST(eterm AS STRING) AS what, raft_role AS role, src, inc, seq",
        ),
        Part(
            _TERMS_WITHOUT_NO_OP,
            "true",
            "node, term, 'started it at index ' || CAST(lidx AS STRING) || ' with message ' "
            "|| CAST(mid AS STRING) AS what, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R11",
        "no node votes for a candidate whose log is less up to date than its own",
        "votes",
        "{node} ({last_term}, {last_index}) voted in term {term} for {candidate} ({cand_last_term}, "
        "{cand_last_index})",
        Part(
            "milestones",
            "e = 'vote' AND (cand_last_term < last_term "
            "OR (cand_last_term = last_term AND cand_last_index < last_index))",
            "node, term, candidate, last_term, last_index, cand_last_term, cand_last_index, src, inc, seq",
            few=True,
        ),
        needs=EVIDENT,
        clear_needs=NODES,
    ),
    hard(
        "R12",
        "durable entries, terms, and votes survive restarts",
        "recoveries",
        "{node} has {kept}; durable before: {durable}",
        Part(
            DURABLE,
            "e = 'recover' AND NOT coalesce(wiped, false) AND (ended < flushed OR term < voted_before)",
            "node, 'a log that ends at ' || CAST(ended AS STRING) || ', in term ' || CAST(term AS STRING) "
            "AS kept, 'a log up to ' || coalesce(CAST(flushed AS STRING), '-1') || ', and term ' "
            "|| coalesce(CAST(voted_before AS STRING), '0') AS durable, src, inc, seq",
        ),
        Part(
            _FORGOTTEN,
            "true",
            "node, 'no vote in term ' || CAST(term AS STRING) AS kept, 'a vote for ' || vote AS durable, "
            "src, inc, seq",
            few=True,
        ),
        Part(
            _LOST,
            "true",
            "node, 'no log' AS kept, 'a log that no fault had wiped' AS durable, src, inc, seq",
            few=True,
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "R13",
        "entries are applied in order, and only once they are committed",
        "applied",
        "{node} {what}; its commit index was {committed_before}",
        Part(
            HISTORY,
            "e = 'apply' AND (lidx <> applied_before + 1 OR last > coalesce(committed_before, -1))",
            "node, e, 'applied ' || CAST(lidx AS STRING) || ' to ' || CAST(last AS STRING) || ' after ' "
            "|| CAST(applied_before AS STRING) AS what, committed_before, src, inc, seq",
        ),
        Part(
            HISTORY,
            "e = 'reput' AND lidx < reput_before",
            "node, e, 'had dispatched up to ' || CAST(reput_before AS STRING) || ', and then reported ' "
            "|| CAST(lidx AS STRING) AS what, committed_before, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    warning(
        "R14",
        "leaders change only after a fault",
        "leaders",
        "{node} became leader of term {term} without a fault in the 10 s before",
        Part(_UNPROVOKED, "n > 1 AND begun IS NULL", "node, term, src, inc, seq", few=True),
        needs=(*NODES, Need.FAULTS),
    ),
    hard(
        "R15",
        "all nodes have committed the same entries at the end",
        "dump drained",
        "{ledger}: {node} ends at {low}, {node_other} at {high}",
        Part(_LOG_ENDS, "low < high", "ledger, low, high, node, node_other", few=True),
        Part(
            _SETTLED_ENDS, "low < high", "ledger, low, high, node, 'the settled log' AS node_other", few=True
        ),
        needs=(*DRAINED, Need.DUMPS, Need.SOUND_FILES),
    ),
    hard(
        "R16",
        "a node syncs its term and vote before it votes or leads",
        "votes watched",
        "{node} ({e}) for {vote} in term {term}, when completed syncs covered term {synced_term} and "
        "a vote for {synced_vote}",
        # A later term may have become durable before the vote was sent.
        Part(
            _VOTED,
            "k = 1 AND (coalesce(synced_term, -1) < term OR (synced_term = term AND synced_vote <> vote))",
            "node, e, vote, term, coalesce(synced_term, -1) AS synced_term, coalesce(synced_vote, '') AS "
            "synced_vote, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS, Need.SYNCS),
    ),
    hard(
        "R22",
        "every term starts with a candidate; only candidates receive votes and lead",
        "raft leaders",
        "{node} ({e}) in term {term}: {what}",
        Part(
            _WITHOUT_CANDIDATE,
            "true",
            "node, e, term, CASE WHEN candidate = '' THEN 'the term had no candidate' "
            "ELSE candidate || ' was not a candidate' END AS what, src, inc, seq",
            few=True,
        ),
        needs=NODES,
    ),
    hard(
        "R23",
        "a follower appends only entries that the leader of their term has",
        "raft leaders",
        "{node}: {what}",
        Part(
            _FOLLOWER_APPENDS,
            "last > coalesce(sent, -1)",
            "node, lidx, 'appended entries ' || CAST(lidx AS STRING) || ' to ' || CAST(last AS STRING) "
            "|| ' of term ' || CAST(eterm AS STRING) || ', whose leader had appended up to ' "
            "|| CAST(coalesce(sent, -1) AS STRING) AS what, src, inc, seq",
        ),
        Part(
            _NEW_BASES,
            "true",
            "node, lidx, 'its log restarts behind index ' || CAST(lidx AS STRING) "
            "|| ', where no other log starts' AS what, src, inc, seq",
            few=True,
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "R24",
        "a node that lost its log votes only in a new term, and only with all committed entries",
        "votes recoveries",
        "{node} voted in term {term} for {candidate}{ended}; when it returned without its log, term {heard} "
        "was durable on another node, and index {committed} was committed",
        Part(
            _VOTES_AFTER_A_LOSS,
            "term <= heard OR (flush_mode = 'SYNC_FLUSH' AND last_index < committed)",
            "node, term, candidate, coalesce(' with a log that ended at ' || CAST(last_index AS STRING), '') "
            "AS ended, heard, coalesce(committed, -1) AS committed, src, inc, seq",
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "R25",
        "a node applies every entry that it considers committed",
        "applied commits",
        "{node} applied entries up to {applied}; it had long known that {committed} was committed",
        Part(
            _APPLIED,
            "coalesce(applied, -1) < committed",
            "node, coalesce(applied, -1) AS applied, committed, src, inc",
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
)
