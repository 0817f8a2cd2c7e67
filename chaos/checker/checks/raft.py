"""What Raft promises, seen from inside the nodes: R1-R15."""

from __future__ import annotations

from chaos.checker.registry import DRAINED, WHOLE, Check, hard, warning

_ROLES = "'leader', 'follower', 'candidate', 'recover'"

CHECKS: tuple[Check, ...] = (
    hard(
        "R1",
        "a term has one leader at most",
        "leaders",
        "term {term}: {node} and {node_other}",
        """SELECT run, term, min(node) AS node, max(node) AS node_other, max_by(src, node) AS src,
          max_by(inc, node) AS inc, max_by(seq, node) AS seq
        FROM nodes WHERE e = 'leader' GROUP BY run, term HAVING min(node) < max(node)""",
    ),
    hard(
        "R2",
        "a node votes for one candidate in a term, also over restarts",
        "votes",
        "{node} voted in term {term} for {candidate} and for {candidate_other}",
        """SELECT run, node, term, min(candidate) AS candidate, max(candidate) AS candidate_other FROM (
          SELECT run, node, term, candidate FROM nodes WHERE e = 'vote'
          UNION ALL SELECT run, node, term, vote FROM nodes WHERE e = 'term_vote' AND vote IS NOT NULL AND
            vote <> ''
        ) GROUP BY run, node, term HAVING min(candidate) < max(candidate)""",
    ),
    hard(
        "R3",
        "a leader was elected by a majority",
        "leaders votes",
        "{node} led term {term} with {votes} of {nodes} votes",
        """SELECT * FROM (
          SELECT l.run, l.node, l.term, count(v.voter) AS votes, max(r.nodes) AS nodes, min(l.src) AS src,
            min(l.inc) AS inc, min(l.seq) AS seq
          FROM nodes l JOIN runs r ON r.run = l.run
          LEFT JOIN (SELECT DISTINCT run, term, candidate, node AS voter FROM nodes WHERE e = 'vote') v
            ON v.run = l.run AND v.term = l.term AND v.candidate = l.node
          WHERE l.e = 'leader' GROUP BY l.run, l.node, l.term
        ) WHERE 2 * votes <= nodes""",
        needs=WHOLE,
    ),
    hard(
        "R4",
        "the term of a node never falls, also over restarts",
        "raft",
        "{node} was in term {term} after {before}",
        """SELECT * FROM (
          SELECT run, node, term, src, inc, seq, max(term) OVER (PARTITION BY run, node ORDER BY ord
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM (SELECT * FROM nodes WHERE e IN ('term_vote', 'leader', 'follower', 'candidate', 'commit')) a
        ) WHERE term < before""",
    ),
    hard(
        "R5",
        "a leader never removes what it has in its log",
        "leaders",
        "{node} truncated at {lidx} while it was leader of term {led}",
        f"""SELECT * FROM (
          SELECT run, node, e, lidx, src, inc, seq,
            max_by(e, CASE WHEN e IN ({_ROLES}) THEN seq END) OVER w AS role,
            max_by(term, CASE WHEN e IN ({_ROLES}) THEN seq END) OVER w AS led
          FROM nodes WHERE e IN ('truncate', {_ROLES})
          WINDOW w AS (PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT
            ROW)
        ) WHERE e = 'truncate' AND role = 'leader'""",
    ),
    hard(
        "R6",
        "entries of the same index and term have the same history, on all nodes",
        "chains",
        "index {lidx} of term {eterm}: histories {chain} and {chain_other}",
        """SELECT run, ledger, lidx, eterm, min(chain) AS chain, max(chain) AS chain_other FROM (
          SELECT run, ledger, last AS lidx, eterm, chain FROM nodes WHERE e = 'append' AND chain IS NOT NULL
          UNION ALL
          SELECT run, coalesce(ledger, ''), lidx, eterm, chain FROM dump WHERE chain IS NOT NULL
        ) GROUP BY run, ledger, lidx, eterm HAVING min(chain) < max(chain)""",
    ),
    hard(
        "R7",
        "a leader holds everything that was committed in terms before its own",
        "leaders commits",
        "{node} led term {term} with a log that ended at {ended}; {committed_before} was committed before",
        """SELECT * FROM (
          SELECT run, node, e, term, ended, src, inc, seq, max(CASE WHEN e = 'commit' THEN lidx END) OVER (
            PARTITION BY run ORDER BY term, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS
              committed_before
          FROM (
            SELECT run, node, e, term, ended, CAST(NULL AS BIGINT) AS lidx, src, inc, seq, 0 AS k FROM nodes
              WHERE e = 'leader'
            UNION ALL
            SELECT run, '', 'commit', term, NULL, max(lidx), '', 0, 0, 1 FROM nodes WHERE e = 'commit'
              GROUP BY run, term)
        ) WHERE e = 'leader' AND committed_before > ended""",
    ),
    hard(
        "R8",
        "at a committed index all nodes have the same entry",
        "commits",
        "index {lidx}: {what} {one} and {other}",
        """SELECT run, ledger, lidx, 'terms' AS what, CAST(min(eterm) AS STRING) AS one,
          CAST(max(eterm) AS STRING) AS other
        FROM (SELECT run, ledger, lidx, eterm FROM nodes WHERE e = 'commit'
          UNION ALL SELECT run, coalesce(ledger, ''), lidx, eterm FROM dump WHERE sure) a
        GROUP BY run, ledger, lidx HAVING min(eterm) < max(eterm)
        UNION ALL
        SELECT run, ledger, lidx, 'histories', min(chain), max(chain)
        FROM (SELECT run, ledger, CASE WHEN e = 'apply' THEN last ELSE lidx END AS lidx, chain FROM nodes
            WHERE e IN ('commit', 'apply') AND chain IS NOT NULL
          UNION ALL SELECT run, coalesce(ledger, ''), lidx, chain FROM dump WHERE sure AND chain IS NOT
            NULL) b
        GROUP BY run, ledger, lidx HAVING min(chain) < max(chain)""",
    ),
    hard(
        "R9",
        "committed indexes never fall, never pass the end of the log, and are never truncated",
        "commits",
        "{node}: {e} at {lidx}; committed {committed_before}, end {end_before}",
        """SELECT * FROM (
          SELECT run, node, e, lidx, src, inc, seq,
            max(CASE WHEN e = 'commit' THEN lidx WHEN e = 'recover' THEN committed END) OVER w AS
              committed_before,
            max_by(CASE WHEN e = 'append' THEN last WHEN e = 'truncate' THEN lidx - 1
                WHEN e = 'recover' THEN ended WHEN e = 'install' THEN lidx END,
              CASE WHEN e <> 'commit' THEN seq END) OVER w AS end_before
          FROM nodes WHERE e IN ('append', 'truncate', 'recover', 'install', 'commit')
          WINDOW w AS (PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1
            PRECEDING)
        ) WHERE (e = 'commit' AND (lidx < committed_before OR lidx > end_before))
          OR (e = 'truncate' AND lidx <= committed_before)""",
    ),
    hard(
        "R10",
        "a leader commits by counting only entries of its own term",
        "leaders commits",
        "{node}, leader of term {term}, moved its commit to index {lidx}, an entry of term {eterm}",
        f"""SELECT * FROM (
          SELECT run, node, e, term, lidx, eterm, src, inc, seq,
            max_by(e, CASE WHEN e IN ({_ROLES}) THEN seq END) OVER (PARTITION BY run, node, inc ORDER BY seq
              ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS role
          FROM nodes WHERE e IN ('commit', {_ROLES})
        ) WHERE e = 'commit' AND role = 'leader' AND eterm <> term""",
    ),
    hard(
        "R11",
        "nobody votes for a candidate whose log is behind its own",
        "votes",
        "{node} ({last_term}, {last_index}) voted in term {term} for {candidate} ({cand_last_term}, "
        "{cand_last_index})",
        """SELECT run, node, term, candidate, last_term, last_index, cand_last_term, cand_last_index, src,
          inc, seq
        FROM nodes WHERE e = 'vote' AND (cand_last_term < last_term
          OR (cand_last_term = last_term AND cand_last_index < last_index))""",
    ),
    hard(
        "R12",
        "what was durable is there after a restart",
        "recoveries",
        "{node} came back with end {ended} in term {term}; durable were {flushed} and term {term_before}",
        """SELECT * FROM (
          SELECT run, node, e, term, ended, wiped, src, inc, seq,
            max(CASE WHEN e = 'flush' THEN lidx END) OVER (PARTITION BY run, node, part ORDER BY ord
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS flushed,
            max(CASE WHEN e = 'term_vote' THEN term END) OVER (PARTITION BY run, node ORDER BY ord
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS term_before
          FROM (
            SELECT *, sum(CASE WHEN e IN ('truncate', 'install') OR wiped THEN 1 ELSE 0 END) OVER (
              PARTITION BY run, node ORDER BY ord ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS part
            FROM nodes WHERE e IN ('flush', 'truncate', 'install', 'recover', 'term_vote'))
        ) WHERE e = 'recover' AND NOT coalesce(wiped, false) AND (ended < flushed OR term < term_before)""",
    ),
    hard(
        "R13",
        "entries are applied one after the other, and only committed ones",
        "applied",
        "{node} applied {lidx} to {last} after {before}; committed was {committed_before}",
        """SELECT * FROM (
          SELECT run, node, e, lidx, last, src, inc, seq,
            max_by(CASE WHEN e = 'apply' THEN last ELSE lidx END,
              CASE WHEN e IN ('apply', 'load', 'install') THEN seq END) OVER w AS before,
            max(CASE WHEN e = 'commit' THEN lidx WHEN e = 'recover' THEN committed END) OVER w AS
              committed_before
          FROM nodes WHERE e IN ('apply', 'load', 'install', 'commit', 'recover')
          WINDOW w AS (PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1
            PRECEDING)
        ) WHERE e = 'apply' AND (lidx <> before + 1 OR last > coalesce(committed_before, -1))""",
    ),
    warning(
        "R14",
        "leaders are elected only when something happened",
        "leaders",
        "{node} became leader of term {term} with no fault in the 10 s before",
        """SELECT l.run, l.node, l.term, l.src, l.inc, l.seq FROM (
          SELECT *, row_number() OVER (PARTITION BY run ORDER BY term) AS n FROM nodes WHERE e = 'leader') l
        LEFT JOIN (SELECT b.run, b.mono AS begun, coalesce(max(x.mono), b.mono) AS ended FROM fault b
            LEFT JOIN fault x ON x.run = b.run AND x.fault = b.fault AND x.e = 'end'
            WHERE b.e = 'begin' GROUP BY b.run, b.mono) f
          ON f.run = l.run AND f.begun <= l.mono AND l.mono <= f.ended + 10000000000
        WHERE l.n > 1 AND f.run IS NULL""",
    ),
    hard(
        "R15",
        "in the end all nodes have committed the same",
        "dump drained",
        "{ledger}: {node} ends at {low}, {node_other} at {high}",
        """SELECT run, ledger, min(top) AS low, max(top) AS high, min_by(node, top) AS node,
          max_by(node, top) AS node_other
        FROM (SELECT run, coalesce(ledger, '') AS ledger, node, max(lidx) AS top FROM dump WHERE sure
          GROUP BY run, coalesce(ledger, ''), node)
        GROUP BY run, ledger HAVING min(top) < max(top)""",
        needs=DRAINED,
    ),
)
