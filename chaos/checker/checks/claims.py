"""Reports of a node, checked against independent evidence: P8, R17-R21, S10-S13.

The evidence comes from other nodes, the recorder of syncs (`chaos.syncs`), the files, or a client.
"""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.checks.sources import DURABLE, HISTORY
from chaos.checker.needs import EVIDENT, NODE_LINES, NODES, Need

#: Events that occur only after the end of a node's leadership.
_ENDS = "('follower', 'candidate', 'leader', 'recover')"

#: Leaderships, each with the first event of its node that shows its end.
_REIGNS = f"""
SELECT l.run, l.node, l.term, min(l.mono) AS since, min(x.mono) AS until FROM milestones l
LEFT JOIN milestones x ON x.run = l.run AND x.node = l.node AND x.e IN {_ENDS} AND x.mono > l.mono
WHERE l.e = 'leader' GROUP BY l.run, l.node, l.term
"""

#: Acknowledged sends, with the leadership named in the response.
_ANSWERS = f"""
SELECT s.run, s.op, s.node, s.term, s.inv, s.ret, s.src, s.inc, s.seq, k.since, k.until, r.bound FROM sends s
JOIN runs r ON r.run = s.run
LEFT JOIN ({_REIGNS}) k ON k.run = s.run AND k.node = s.node AND k.term = s.term
WHERE s.said = 'ok' AND s.node IS NOT NULL AND s.term IS NOT NULL
"""

#: Responses that contain a term but no node.
_TERMS_ANSWERED = """
SELECT s.run, s.op, s.term, s.src, s.inc, s.seq FROM sends s
ANTI JOIN (SELECT run, term FROM milestones WHERE e = 'leader' GROUP BY run, term) l
  ON l.run = s.run AND l.term = s.term
WHERE s.said = 'ok' AND s.node IS NULL AND s.term IS NOT NULL
"""

_OF_LEADERSHIP = (
    "('leader', 'elected', 'barrier_committed', 'dispatched', 'role_wait', 'master_ready', 'demoted')"
)

#: Reports of a node about one leadership of its broker.
_LEADERSHIPS = f"""
SELECT run, node, inc, term, min(barrier) AS barrier_min, max(barrier) AS barrier_max,
  min(target) AS target_min, max(target) AS target_max, min(role_epoch) AS epoch_min,
  max(role_epoch) AS epoch_max, max(CASE WHEN e = 'leader' THEN ended END) AS ended, min(src) AS src,
  min(seq) AS seq
FROM milestones WHERE e IN {_OF_LEADERSHIP} GROUP BY run, node, inc, term
"""

#: Barriers that brokers considered committed, with the entry at that index according to nodes and files.
_BARRIERS = """
SELECT m.run, m.node, m.term, m.barrier, m.src, m.inc, m.seq, d.eterm, d.said FROM (
  SELECT run, node, term, barrier, min(src) AS src, min(inc) AS inc, min(seq) AS seq FROM milestones
  WHERE e IN ('barrier_committed', 'dispatched', 'master_ready') AND barrier IS NOT NULL
  GROUP BY run, node, term, barrier) m
JOIN (
  SELECT run, lidx, eterm, 'the files of ' || node AS said FROM dump WHERE sure
  UNION ALL
  SELECT run, lidx, eterm, node FROM nodes WHERE e = 'commit' AND eterm IS NOT NULL
) d ON d.run = m.run AND d.lidx = m.barrier
"""

_EPOCHS = """
SELECT run, node, e, role_epoch, src, inc, seq, max(role_epoch) OVER (PARTITION BY run, node, inc ORDER BY seq
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
FROM milestones WHERE e IN ('leader', 'follower') AND role_epoch IS NOT NULL
"""

#: Indexes that are reported as committed (k 1), with the highest index that a leader had reported by then: a
#: leader is always the first to commit. Includes indexes in answers to clients. A forced recovery commits all
#: entries of the survivor, and its own.
_REPORTED_COMMITTED = """
SELECT * FROM (
  SELECT *, max(CASE WHEN k = 0 THEN lidx END) OVER (PARTITION BY run, ledger ORDER BY t, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS led
  FROM (
    SELECT n.run, n.node, n.ledger, CASE WHEN l.node IS NULL THEN 1 ELSE 0 END AS k, n.e AS what, n.lidx,
      CASE WHEN l.node IS NULL THEN n.mono ELSE n.mono - r.bound END AS t, n.src, n.inc, n.seq
    FROM nodes n JOIN runs r ON r.run = n.run
    LEFT JOIN (SELECT run, node, term FROM milestones WHERE e = 'leader' GROUP BY run, node, term) l
      ON l.run = n.run AND l.node = n.node AND l.term = n.term
    WHERE n.e = 'commit'
    UNION ALL
    SELECT v.run, v.node, o.ledger, 0, 'recovered', v.ended + 1, v.mono, v.src, v.inc, v.seq FROM recoveries v
    JOIN (SELECT run, min(ledger) AS ledger FROM nodes WHERE e = 'commit' GROUP BY run
      HAVING min(ledger) = max(ledger)) o ON o.run = v.run
    UNION ALL
    SELECT run, node, ledger, 1, e, lidx, mono, src, inc, seq FROM nodes WHERE e = 'reput'
    UNION ALL
    SELECT m.run, m.node, o.ledger, 1, m.e, m.committed, m.mono, m.src, m.inc, m.seq FROM milestones m
    JOIN (SELECT run, min(ledger) AS ledger FROM nodes WHERE e = 'commit' GROUP BY run
      HAVING min(ledger) = max(ledger)) o ON o.run = m.run
    WHERE m.e IN ('recover', 'barrier_committed', 'dispatched', 'role_wait', 'master_ready')
      AND m.committed IS NOT NULL
    UNION ALL
    SELECT m.run, m.node, o.ledger, 1, m.e, m.reput, m.mono, m.src, m.inc, m.seq FROM milestones m
    JOIN (SELECT run, min(ledger) AS ledger FROM nodes WHERE e = 'commit' GROUP BY run
      HAVING min(ledger) = max(ledger)) o ON o.run = m.run
    WHERE m.e IN ('barrier_committed', 'dispatched', 'role_wait', 'master_ready') AND m.reput IS NOT NULL
    UNION ALL
    SELECT s.run, coalesce(s.node, 'a server'), coalesce(s.ledger, o.ledger), 1, 'answer', s.lidx, s.ret,
      s.src, s.inc, s.seq
    FROM sends s
    LEFT JOIN (SELECT run, min(ledger) AS ledger FROM nodes WHERE e = 'commit' GROUP BY run
      HAVING min(ledger) = max(ledger)) o ON o.run = s.run
    WHERE s.said = 'ok' AND s.lidx IS NOT NULL AND s.ret IS NOT NULL
    UNION ALL
    SELECT run, coalesce(node, 'a server'), substr(log, 8), 1, 'answer', greatest(next_off, max_off) - 1, ret,
      src, inc, seq
    FROM reads WHERE outcome = 'ok' AND log LIKE 'ledger:%' AND (next_off > 0 OR max_off > 0)
  )
) WHERE k = 1
"""

#: Indexes that a node reports as durable, or as its end after a start (k 1), with the index that syncs had
#: covered by then. `base`: the index behind which the log restarted, if it did (k -1). A node that gets the
#: state instead of purged entries reports that index as durable, and no entry up to it is in its files.
_REPORTED_DURABLE = """
SELECT s.*, r.flush_mode FROM (
  SELECT *, max_by(lidx, CASE WHEN k = 0 THEN seq END) OVER w AS synced,
    max_by(lidx, CASE WHEN k = -1 THEN t END) OVER w AS base
  FROM (
    SELECT run, node, ledger, e, 0 AS k, lidx, mono AS t, false AS wiped, src, inc, seq
    FROM disk WHERE e = 'synced'
    UNION ALL
    SELECT run, node, ledger, e, 1, lidx, mono, false, src, inc, seq FROM nodes WHERE e = 'flush'
    UNION ALL
    SELECT n.run, n.node, d.ledger, n.e, k.k, CASE WHEN n.e = 'install' THEN n.lidx
        WHEN k.k = -1 THEN -1 ELSE n.ended END, n.mono, coalesce(n.wiped, false), n.src, n.inc, n.seq
    FROM nodes n JOIN (SELECT run, node, ledger FROM disk WHERE e = 'synced' GROUP BY run, node, ledger) d
      ON d.run = n.run AND d.node = n.node
    CROSS JOIN (SELECT 1 AS k UNION ALL SELECT -1 AS k) k
    WHERE (n.ledger = '' OR n.ledger = d.ledger)
      AND ((n.e = 'recover' AND (k.k = 1 OR n.wiped)) OR (n.e = 'install' AND k.k = -1))
  ) WINDOW w AS (PARTITION BY run, node, ledger ORDER BY t, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) s JOIN runs r ON r.run = s.run WHERE s.k = 1
"""

#: The last term that syncs covered, with the term in which the node restarted.
_REPORTED_TERM = """
SELECT * FROM (
  SELECT *, max_by(term, CASE WHEN k = 0 THEN seq END) OVER (PARTITION BY run, node ORDER BY t, k
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS synced
  FROM (
    SELECT run, node, 0 AS k, term, mono AS t, false AS wiped, src, inc, seq FROM disk WHERE e = 'vote_synced'
    UNION ALL
    SELECT run, node, 1, term, mono, coalesce(wiped, false), src, inc, seq FROM milestones WHERE e = 'recover'
  )
) WHERE k = 1
"""

#: Votes that a leader received, each with the end of the leader's log that the voter saw.
_VOTES_RECEIVED = """
SELECT v.run, v.node, v.term, v.candidate, v.cand_last_index, l.ended, v.src, v.inc, v.seq FROM milestones v
JOIN milestones l ON l.run = v.run AND l.e = 'leader' AND l.node = v.candidate AND l.term = v.term
WHERE v.e = 'vote'
"""

#: Votes with an end of the candidate's log that the candidate never reported in that term.
_UNMATCHED_VOTES = """
SELECT v.run, v.node, v.term, v.candidate, v.cand_last_index, v.cand_last_term, v.src, v.inc, v.seq
FROM milestones v
SEMI JOIN (SELECT run, node, term FROM milestones WHERE e = 'candidate' AND last_index IS NOT NULL
  AND last_term IS NOT NULL GROUP BY run, node, term) k
  ON k.run = v.run AND k.node = v.candidate AND k.term = v.term
ANTI JOIN milestones c ON c.run = v.run AND c.e = 'candidate' AND c.node = v.candidate AND c.term = v.term
  AND c.last_index = v.cand_last_index AND c.last_term = v.cand_last_term
WHERE v.e = 'vote' AND v.cand_last_index IS NOT NULL AND v.cand_last_term IS NOT NULL
"""

#: Masters that NameServers named, with the first time that a broker was ready in that term.
_NAMED_MASTERS = """
SELECT o.run, o.proc, o.op, o.term, o.ret, o.src, o.inc, o.seq, m.since, b.bound FROM ops o
JOIN runs b ON b.run = o.run
SEMI JOIN (SELECT run FROM milestones WHERE e = 'master_ready' GROUP BY run) x ON x.run = o.run
LEFT JOIN (SELECT run, term, min(mono) AS since FROM milestones WHERE e IN ('master_ready', 'elected')
  GROUP BY run, term) m ON m.run = o.run AND m.term = o.term
WHERE o.f = 'route' AND o.outcome = 'ok' AND o.term IS NOT NULL
"""

#: Histories that restarted nodes report for the end of their log. Only for indexes with known histories: no
#: history is known for an index that is inside a batch on all other nodes.
_RESTART_HISTORIES = """
SELECT r.run, r.node, r.ended, r.chain, r.src, r.inc, r.seq, count(c.run) AS known,
  count(*) FILTER (WHERE c.chain_key = r.chain_key) AS same
FROM milestones r JOIN (
  SELECT run, last AS lidx, chain_key FROM nodes WHERE e = 'append' AND chain_key IS NOT NULL
  UNION ALL SELECT run, lidx, chain_key FROM dump WHERE chain_key IS NOT NULL
  UNION ALL SELECT run, ended, chain_key FROM milestones WHERE e = 'recover' AND ended = -1
    AND chain_key IS NOT NULL
) c ON c.run = r.run AND c.lidx = r.ended
WHERE r.e = 'recover' AND r.chain IS NOT NULL GROUP BY r.run, r.node, r.ended, r.chain, r.src, r.inc, r.seq
"""

_IS_AHEAD = "lidx > coalesce(led, -1)"

CHECKS: tuple[Check, ...] = (
    hard(
        "P8",
        "every index that a client receives as stored had been reported as committed by a leader",
        "oks commits",
        "{node} answered that index {lidx} is stored, when leaders had reported commits up to {led}",
        Part(_REPORTED_COMMITTED, f"what = 'answer' AND {_IS_AHEAD}", "node, lidx, led, src, inc, seq"),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "R17",
        "no node considers an index committed before a leader has",
        "leaders commits",
        "{node} ({what}) considered index {lidx} committed, when leaders had reported commits up to {led}",
        Part(
            _REPORTED_COMMITTED, f"what <> 'answer' AND {_IS_AHEAD}", "node, what, lidx, led, src, inc, seq"
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "R18",
        "indexes that a node reports as durable were synced, and synced entries survive a restart",
        "watched sync",
        "{node} ({e}): {said}, when completed syncs covered {synced}",
        Part(
            _REPORTED_DURABLE,
            "flush_mode = 'SYNC_FLUSH' AND e = 'flush' AND lidx > greatest(coalesce(synced, -1), "
            "coalesce(base, -1))",
            "node, e, 'durable up to index ' || CAST(lidx AS STRING) AS said, coalesce(synced, -1) AS "
            "synced, src, inc, seq",
        ),
        Part(
            _REPORTED_DURABLE,
            "flush_mode = 'SYNC_FLUSH' AND e = 'recover' AND NOT wiped AND lidx < synced",
            "node, e, 'its log ends at index ' || CAST(lidx AS STRING) AS said, synced, src, inc, seq",
        ),
        Part(
            _REPORTED_TERM,
            "NOT wiped AND term < synced",
            "node, 'recover' AS e, 'its term is ' || CAST(term AS STRING) AS said, synced, src, inc, seq",
            few=True,
        ),
        needs=(*NODES, Need.CLOCKS, Need.SYNCS),
    ),
    hard(
        "R19",
        "the reported end of a leader's or candidate's log matches its vote requests and its appends",
        "leaders votes",
        "{node}, {e} of term {term}, reports that its log {ended}; {other}",
        Part(
            _VOTES_RECEIVED,
            "cand_last_index <> ended",
            "candidate AS node, 'leader' AS e, term, 'ended at ' || CAST(ended AS STRING) AS ended, "
            "node || ' received ' || CAST(cand_last_index AS STRING) AS other, src, inc, seq",
            few=True,
        ),
        Part(
            _UNMATCHED_VOTES,
            "true",
            "candidate AS node, 'candidate' AS e, term, 'ended elsewhere' AS ended, node || ' received '"
            " || CAST(cand_last_index AS STRING) || ' in term ' || CAST(cand_last_term AS STRING) AS other, "
            "src, inc, seq",
            few=True,
        ),
        Part(
            HISTORY,
            "(e = 'leader' AND ended <> end_before) OR (e = 'candidate' AND last_index <> end_before)",
            "node, e, term, 'ended at ' || CAST(coalesce(ended, last_index) AS STRING) AS ended, "
            "'its own events show ' || CAST(end_before AS STRING) AS other, src, inc, seq",
        ),
        Part(
            HISTORY,
            "e = 'leader' AND ended = end_before AND chain_before <> 0 AND chain_key <> chain_before",
            "node, e, term, 'has the history ' || chain AS ended, 'its own events show another' AS other, "
            "src, inc, seq",
        ),
        # The candidate may have been a process whose file is missing.
        needs=(*NODE_LINES, Need.LIVES, Need.CLOCKS),
    ),
    hard(
        "R20",
        "the role epoch of a node never decreases, and every leadership has a new one",
        "leaders",
        "{node} became {e} in role epoch {role_epoch}, after {before}",
        Part(
            _EPOCHS,
            "role_epoch < before OR (e = 'leader' AND role_epoch = before)",
            "node, e, role_epoch, before, src, inc, seq",
            few=True,
        ),
        needs=(*EVIDENT, Need.CLOCKS),
    ),
    hard(
        "R21",
        "appends are contiguous, and votes, restarts and syncs match the node's log",
        "leaders",
        "{node} ({e}): index {lidx}; its log ended at {ended}",
        Part(
            HISTORY,
            "e = 'append' AND (lidx <> end_before + 1 OR last < lidx)",
            "node, e, lidx, last, end_before AS ended, src, inc, seq",
        ),
        Part(
            HISTORY,
            "e = 'truncate' AND lidx > end_before",
            "node, e, lidx, end_before AS ended, src, inc, seq",
        ),
        Part(
            HISTORY,
            # In a cluster of one, the node leads and appends before its vote is durable and reported.
            "e = 'vote' AND (coalesce(raft_role, '') <> 'leader' OR raft_term <> term) "
            "AND (last_index <> end_before OR (last_term <> end_term_before AND end_term_before >= 0))",
            "node, e, last_index AS lidx, last_index, end_before AS ended, src, inc, seq",
        ),
        Part(
            DURABLE,
            "e = 'flush' AND lidx < flushed",
            "node, e, lidx, flushed AS ended, src, inc, seq",
        ),
        Part(
            _RESTART_HISTORIES,
            "(known > 0 AND same = 0) OR (ended = -1 AND same < known)",
            "node, 'recover, with history ' || chain AS e, ended AS lidx, known, same, ended, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.LIVES, Need.CLOCKS),
        clear_needs=NODES,
    ),
    hard(
        "S10",
        "a send is acknowledged by the leader of the term in the answer, during its leadership",
        "acked_terms leaders",
        "operation {op} was acknowledged by {node} in term {term}, {what}",
        Part(
            _ANSWERS,
            "since IS NULL OR ret + bound < since OR inv > until + bound",
            "op, node, term, CASE WHEN since IS NULL THEN 'in which it was never elected' "
            "WHEN ret + bound < since THEN 'before it was elected' "
            "ELSE 'and started after the leadership had ended' END AS what, src, inc, seq",
        ),
        Part(
            _TERMS_ANSWERED,
            "true",
            "op, 'a server' AS node, term, 'in which no node was elected' AS what, src, inc, seq",
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
    hard(
        "S11",
        "a node accepts and acknowledges only while it leads, in the term of its leadership",
        "leaders acks",
        "{node} reported an {e} in term {term}; its last role was {role}, in term {role_term}",
        Part(
            HISTORY,
            "e IN ('accept', 'ack') AND (coalesce(raft_role, '') <> 'leader' OR raft_term <> term)",
            "node, e, term, coalesce(raft_role, 'none') AS role, raft_term AS role_term, src, inc, seq",
        ),
        needs=(*NODE_LINES, Need.CLOCKS),
    ),
    hard(
        "S12",
        "the barrier with which a broker becomes master was appended during its own leadership",
        "elected",
        "{node} in term {term}: {what}",
        Part(
            _LEADERSHIPS,
            "barrier_min < barrier_max OR target_min < target_max OR epoch_min < epoch_max "
            "OR barrier_min <= ended OR target_min <> barrier_min",
            "node, term, CASE WHEN epoch_min < epoch_max THEN 'role epochs ' || CAST(epoch_min AS STRING) "
            "|| ' and ' || CAST(epoch_max AS STRING) WHEN barrier_min <= ended THEN 'barrier ' "
            "|| CAST(barrier_min AS STRING) || ', and its log had ended at ' || CAST(ended AS STRING) "
            "ELSE 'barriers ' || CAST(least(barrier_min, target_min) AS STRING) || ' and ' "
            "|| CAST(greatest(barrier_max, target_max) AS STRING) END AS what, src, inc, seq",
            few=True,
        ),
        Part(
            _BARRIERS,
            "eterm <> term",
            "node, term, 'barrier ' || CAST(barrier AS STRING) || ' is an entry of term ' "
            "|| CAST(eterm AS STRING) || ' according to ' || said AS what, src, inc, seq",
        ),
        needs=EVIDENT,
    ),
    hard(
        "S13",
        "NameServers name only masters of terms in which a broker was elected",
        "routes elected",
        "{proc} received the master of term {term}, {what}",
        Part(
            _NAMED_MASTERS,
            "since IS NULL OR ret + bound < since",
            "proc, term, CASE WHEN since IS NULL THEN 'in which no broker was elected' "
            "ELSE 'before a broker was elected in it' END AS what, src, inc, seq",
        ),
        needs=(*NODES, Need.CLOCKS),
    ),
)
