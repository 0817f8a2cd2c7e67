"""What Raft promises, seen from inside the nodes: R1-R16."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, warning
from chaos.checker.checks.sources import DURABLE, HISTORY
from chaos.checker.needs import DRAINED, EVIDENT, NODE_LINES, NODES, Need

_LEADERS = """
SELECT run, term, min(node) AS node, max(node) AS node_other, max_by(src, node) AS src,
  max_by(inc, node) AS inc, max_by(seq, node) AS seq
FROM milestones WHERE e = 'leader' GROUP BY run, term
"""

#: The vote of a node for itself elects nobody any more once it was wiped, and if no other node has heard of
#: the term its next life may vote in it.
_VOTES = """
SELECT v.run, v.node, v.term, min(v.candidate) AS candidate, max(v.candidate) AS candidate_other FROM (
  SELECT run, node, term, candidate, mono FROM milestones WHERE e = 'vote'
  UNION ALL
  SELECT run, node, term, vote, mono FROM milestones WHERE e IN ('term_vote', 'recover') AND vote <> ''
) v ANTI JOIN milestones w ON w.run = v.run AND w.node = v.node AND w.e = 'recover' AND w.wiped
  AND v.candidate = v.node AND v.mono < w.mono
GROUP BY v.run, v.node, v.term
"""

_ELECTED = """
SELECT l.run, l.node, l.term, count(v.voter) AS votes, max(r.nodes) AS nodes, min(l.src) AS src,
  min(l.inc) AS inc, min(l.seq) AS seq
FROM milestones l JOIN runs r ON r.run = l.run
LEFT JOIN (SELECT DISTINCT run, term, candidate, node AS voter FROM milestones WHERE e = 'vote') v
  ON v.run = l.run AND v.term = l.term AND v.candidate = l.node
WHERE l.e = 'leader' GROUP BY l.run, l.node, l.term
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

#: The same by history: it includes the terms.
_TERMS_OF_CHAINS = """
SELECT run, ledger, lidx, chain_key, min(chain) AS chain, min(eterm) AS eterm, max(eterm) AS eterm_other
FROM (
  SELECT run, ledger, last AS lidx, eterm, chain, chain_key FROM nodes
  WHERE e = 'append' AND chain IS NOT NULL
  UNION ALL
  SELECT run, coalesce(ledger, ''), lidx, eterm, chain, chain_key FROM dump WHERE chain IS NOT NULL
) GROUP BY run, ledger, lidx, chain_key
"""

#: Where entries of a term begin in the files of a node, beside how far those of earlier terms reach.
_TERMS_ALONG = """
SELECT *, max(high) OVER (PARTITION BY run, node, ledger ORDER BY eterm
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS high_before
FROM (
  SELECT run, node, coalesce(ledger, '') AS ledger, eterm, min(lidx) AS low, max(lidx) AS high FROM dump
  GROUP BY run, node, coalesce(ledger, ''), eterm)
"""

#: Messages that stand in a log where the leader of a term began it.
_BEGUN_BY_A_MESSAGE = """
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
  SELECT run, '', 'commit', term, NULL, max(lidx), '', 0, 0, 1 FROM nodes WHERE e = 'commit' GROUP BY run,
    term)
"""

#: What nodes, files and readers say of an index that is committed.
_COMMITTED = """
SELECT run, ledger, lidx, min(eterm) AS eterm_min, max(eterm) AS eterm_max, min(chain_key) AS key_min,
  max(chain_key) AS key_max, min(chain) AS chain_min, max(chain) AS chain_max
FROM (
  SELECT run, ledger, CASE WHEN e = 'apply' THEN last ELSE lidx END AS lidx,
    CASE WHEN e = 'commit' THEN eterm END AS eterm, chain, chain_key FROM nodes WHERE e IN ('commit', 'apply')
  UNION ALL
  SELECT run, coalesce(ledger, ''), lidx, eterm, chain, chain_key FROM dump WHERE sure
  UNION ALL
  SELECT run, ledger, lidx, NULL, chain, chain_key FROM milestones WHERE e = 'install'
  UNION ALL
  SELECT run, ledger, lidx, eterm, NULL, NULL FROM events
  WHERE ev = 'dlv' AND eterm IS NOT NULL AND topic IS NULL
) GROUP BY run, ledger, lidx
"""

_SUDDEN = """
SELECT l.run, l.node, l.term, l.src, l.inc, l.seq, l.n, f.begun FROM (
  SELECT *, row_number() OVER (PARTITION BY run ORDER BY term) AS n FROM milestones WHERE e = 'leader') l
LEFT JOIN (SELECT b.run, b.mono AS begun, coalesce(max(x.mono), b.mono) AS ended FROM fault b
    LEFT JOIN fault x ON x.run = b.run AND x.fault = b.fault AND x.e = 'end'
    WHERE b.e = 'begin' GROUP BY b.run, b.mono) f
  ON f.run = l.run AND f.begun <= l.mono AND l.mono <= f.ended + 10000000000
"""

#: Votes and leaderships, with the newest term and vote that syncs covered on the node before.
_VOTED = """
SELECT run, node, k, e, term, vote, src, inc, seq, max_by(term, CASE WHEN k = 0 THEN seq END) OVER w
    AS synced_term,
  max_by(vote, CASE WHEN k = 0 THEN seq END) OVER w AS synced_vote
FROM (
  SELECT run, node, mono, 0 AS k, e, term, vote, src, inc, seq FROM disk WHERE e = 'vote_synced'
  UNION ALL
  SELECT run, node, mono, 1, e, term, CASE WHEN e = 'leader' THEN node ELSE candidate END, src, inc, seq
  FROM milestones WHERE e IN ('vote', 'leader')
) WINDOW w AS (PARTITION BY run, node ORDER BY mono, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

#: Starts that know of no vote in their term, beside one that was durable then.
_FORGOTTEN = """
SELECT r.run, r.node, r.term, v.vote, r.src, r.inc, r.seq FROM milestones r
JOIN milestones v ON v.run = r.run AND v.node = r.node AND v.e = 'term_vote' AND v.term = r.term
  AND v.mono < r.mono AND v.vote <> ''
ANTI JOIN milestones w ON w.run = r.run AND w.node = r.node AND w.e = 'recover' AND w.wiped
  AND v.mono < w.mono AND w.mono <= r.mono
WHERE r.e = 'recover' AND coalesce(r.vote, '') = ''
"""

#: Starts that call their log lost, and no fault had taken it from the node.
_LOST = """
SELECT r.run, r.node, r.src, r.inc, r.seq FROM milestones r
ANTI JOIN fault b ON b.run = r.run AND b.e = 'begin' AND b.f = 'wipe' AND b.mono <= r.mono
  AND instr(',' || b.targets || ',', ',' || r.node || ',') > 0
WHERE r.e = 'recover' AND r.wiped
"""

#: Ends of files beside the end of all, where the run waited until all nodes had committed the same.
_SETTLED = """
SELECT d.run, d.ledger, d.node, coalesce(d.sure_high, -1) AS low, m.off AS high FROM dump_ends d
JOIN meta m ON m.run = d.run AND m.e = 'settled'
"""

_TOPS = """
SELECT run, ledger, min(sure_high) AS low, max(sure_high) AS high, min_by(node, sure_high) AS node,
  max_by(node, sure_high) AS node_other
FROM dump_ends GROUP BY run, ledger
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "R1",
        "a term has one leader at most",
        "leaders",
        "term {term}: {node} and {node_other}",
        Part(_LEADERS, "node < node_other", "term, node, node_other, src, inc, seq", few=True),
        needs=EVIDENT,
        clear_needs=NODES,
    ),
    hard(
        "R2",
        "a node votes for one candidate in a term, also over restarts",
        "votes",
        "{node} voted in term {term} for {candidate} and for {candidate_other}",
        Part(_VOTES, "candidate < candidate_other", "node, term, candidate, candidate_other", few=True),
        needs=(*EVIDENT, Need.LIVES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R3",
        "a leader was elected by a majority",
        "leaders votes",
        "{node} led term {term} with {votes} of {nodes} votes",
        Part(_ELECTED, "2 * votes <= nodes", "node, term, votes, nodes, src, inc, seq", few=True),
        needs=NODES,
    ),
    hard(
        "R4",
        "the term of a node never falls, also over restarts",
        "raft",
        "{node} was in term {term} after {before}",
        # What a node goes by is ahead of what is durable, for a moment, and may be lost with the process.
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
        "a leader never removes what it has in its log",
        "leaders",
        "{node} truncated at {lidx} while it was leader of term {led}",
        Part(
            HISTORY,
            "e = 'truncate' AND raft_role = 'leader'",
            "node, e, lidx, raft_role AS role, raft_term AS led, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R6",
        "entries of the same index and term have the same history, on all nodes",
        "chains",
        "index {lidx} of term {eterm}: histories {chain} and {chain_other}",
        Part(_CHAINS, "key_min < key_max", "ledger, lidx, eterm, chain, chain_other"),
        Part(
            _TERMS_OF_CHAINS,
            "eterm < eterm_other",
            "ledger, lidx, eterm, chain, 'that of term ' || CAST(eterm_other AS STRING) AS chain_other",
        ),
        needs=EVIDENT,
        clear_needs=(*NODES, Need.DUMPS),
    ),
    hard(
        "R7",
        "a leader holds everything that was committed in terms before its own",
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
        "at a committed index all nodes have the same entry, and terms never fall along a log",
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
            _TERMS_ALONG,
            "low < high_before",
            "ledger, high_before AS lidx, 'below it ' || node || ' has term' AS what, "
            "CAST(eterm AS STRING) AS one, 'here an earlier one' AS other",
        ),
        needs=EVIDENT,
        clear_needs=(*NODES, Need.DUMPS),
    ),
    hard(
        "R9",
        "committed indexes never fall, pass the end of the log or are truncated; no others are purged",
        "commits",
        "{node}: {e} at {lidx}; committed {committed_before}, end {end_before}",
        Part(
            HISTORY,
            "(e = 'commit' AND (lidx < committed_before OR lidx > end_before)) "
            "OR (e = 'truncate' AND lidx <= committed_before) OR (e = 'purge' AND lidx > committed_before)",
            "node, e, lidx, committed_before, end_before, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R10",
        "a leader commits by counting only entries of its own term, which it begins with a no-op",
        "leaders commits",
        "{node}, leader of term {term}, {what}",
        Part(
            HISTORY,
            "e = 'commit' AND raft_role = 'leader' AND eterm <> term",
            "node, e, term, 'moved its commit to index ' || CAST(lidx AS STRING) || ', an entry of term ' "
            "|| CAST(eterm AS STRING) AS what, raft_role AS role, src, inc, seq",
        ),
        Part(
            _BEGUN_BY_A_MESSAGE,
            "true",
            "node, term, 'began it at index ' || CAST(lidx AS STRING) || ' with message ' "
            "|| CAST(mid AS STRING) AS what, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "R11",
        "nobody votes for a candidate whose log is behind its own",
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
        "what was durable is there after a restart",
        "recoveries",
        "{node} came back with {kept}; durable were {durable}",
        Part(
            DURABLE,
            "e = 'recover' AND NOT coalesce(wiped, false) AND (ended < flushed OR term < voted_before)",
            "node, 'end ' || CAST(ended AS STRING) || ' in term ' || CAST(term AS STRING) AS kept, "
            "'end ' || coalesce(CAST(flushed AS STRING), '-1') || ' and term ' "
            "|| coalesce(CAST(voted_before AS STRING), '0') AS durable, src, inc, seq",
        ),
        Part(
            _FORGOTTEN,
            "true",
            "node, 'no vote in term ' || CAST(term AS STRING) AS kept, 'one for ' || vote AS durable, "
            "src, inc, seq",
            few=True,
        ),
        Part(
            _LOST,
            "true",
            "node, 'nothing' AS kept, 'what no fault had taken' AS durable, src, inc, seq",
            few=True,
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "R13",
        "entries are applied one after the other, and only committed ones",
        "applied",
        "{node} {what}; committed was {committed_before}",
        Part(
            HISTORY,
            "e = 'apply' AND (lidx <> applied_before + 1 OR last > coalesce(committed_before, -1))",
            "node, e, 'applied ' || CAST(lidx AS STRING) || ' to ' || CAST(last AS STRING) || ' after ' "
            "|| CAST(applied_before AS STRING) AS what, committed_before, src, inc, seq",
        ),
        Part(
            HISTORY,
            "e = 'reput' AND lidx < reput_before",
            "node, e, 'had built its queues up to ' || CAST(reput_before AS STRING) || ', and then up to ' "
            "|| CAST(lidx AS STRING) AS what, committed_before, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    warning(
        "R14",
        "leaders are elected only when something happened",
        "leaders",
        "{node} became leader of term {term} with no fault in the 10 s before",
        Part(_SUDDEN, "n > 1 AND begun IS NULL", "node, term, src, inc, seq", few=True),
        needs=(*NODES, Need.FAULTS),
    ),
    hard(
        "R15",
        "in the end all nodes have committed the same",
        "dump drained",
        "{ledger}: {node} ends at {low}, {node_other} at {high}",
        Part(_TOPS, "low < high", "ledger, low, high, node, node_other", few=True),
        Part(
            _SETTLED, "low < high", "ledger, low, high, node, 'the log as it settled' AS node_other", few=True
        ),
        needs=(*DRAINED, Need.DUMPS, Need.SOUND_FILES),
    ),
    hard(
        "R16",
        "term and vote were synced before the node voted, or led",
        "votes watched",
        "{node} ({e}) for {vote} in term {term}, when syncs that had returned covered term {synced_term} and "
        "a vote for {synced_vote}",
        # A later term may have become durable before the vote was told.
        Part(
            _VOTED,
            "k = 1 AND (coalesce(synced_term, -1) < term OR (synced_term = term AND synced_vote <> vote))",
            "node, e, vote, term, coalesce(synced_term, -1) AS synced_term, coalesce(synced_vote, '') AS "
            "synced_vote, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS, Need.SYNCS),
    ),
)
