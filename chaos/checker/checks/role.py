"""Role changes of the broker: S1-S9."""

from __future__ import annotations

from chaos.checker.registry import WHOLE, Check, hard, warning

#: A broker that was elected is master, or has lost its leadership, after so long; ns.
PROMOTION_NS = 10_000_000_000

_QUEUE = "'q:' || topic || '/' || CAST(q AS STRING)"
#: What happened to the consumer offsets of a group: k 0 asked for, 1 stored, 2 reset by hand.
_OFFSETS = f"""
SELECT run, grp, {_QUEUE} AS log, inv AS t, 0 AS k, op, CAST(NULL AS BIGINT) AS off, off_answered, src, inc,
  seq
FROM ops WHERE f = 'fetch_off' AND outcome = 'ok'
UNION ALL
SELECT run, grp, {_QUEUE}, ret, 1, op, off_asked, NULL, src, inc, seq
FROM ops WHERE f = 'commit_off' AND outcome = 'ok'
UNION ALL
SELECT run, grp, log, mono, 2, NULL, NULL, NULL, src, inc, seq FROM member WHERE e = 'reset'
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "S1",
        "a broker becomes master only when its barrier is committed and dispatched, and it still leads",
        "ready",
        "{node} became master of term {term}: barrier {barrier}, committed {committed}, dispatched {reput} "
        "of {target}; its events say committed {committed_before}, dispatched {reput_before}, {role}",
        """SELECT * FROM (
          SELECT run, node, e, term, barrier, committed, reput, target, src, inc, seq,
            max(CASE WHEN e = 'commit' THEN lidx WHEN e = 'recover' THEN n.committed END) OVER w AS
              committed_before,
            max(CASE WHEN e = 'reput' THEN lidx END) OVER w AS reput_before,
            max_by(e, CASE WHEN e IN ('leader', 'follower', 'candidate') THEN seq END) OVER w AS role,
            max_by(term, CASE WHEN e IN ('leader', 'follower', 'candidate') THEN seq END) OVER w AS role_term
          FROM nodes n WHERE e IN ('commit', 'reput', 'recover', 'leader', 'follower', 'candidate',
            'master_ready')
          WINDOW w AS (PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT
            ROW)
        ) WHERE e = 'master_ready' AND (committed < barrier OR reput < target OR reput < barrier
          OR committed_before < barrier OR reput_before < barrier OR role <> 'leader' OR role_term <>
            term)""",
    ),
    hard(
        "S2",
        "nothing is accepted or acknowledged in a term before its master is ready",
        "ready acked_terms",
        "{node} served operation {op} in term {term}, {what}",
        """SELECT s.run, s.node, s.term, s.op, 'in which it was never master' AS what, s.src, s.inc, s.seq
          FROM sends s
        JOIN (SELECT DISTINCT run FROM nodes WHERE e = 'master_ready') x ON x.run = s.run
        ANTI JOIN nodes m ON m.run = s.run AND m.node = s.node AND m.term = s.term AND m.e = 'master_ready'
        WHERE s.outcome = 'ok' AND s.term IS NOT NULL AND s.node IS NOT NULL AND s.f IN ('send', 'send_batch')
        UNION ALL
        SELECT run, node, term, op, 'before it was master', src, inc, seq FROM (
          SELECT run, node, e, term, op, src, inc, seq,
            max(CASE WHEN e = 'master_ready' THEN term END) OVER w AS ready_term,
            max(CASE WHEN e IN ('elected', 'master_ready') THEN term END) OVER w AS role_term
          FROM nodes WHERE e IN ('master_ready', 'elected', 'accept')
          WINDOW w AS (PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT
            ROW)
        ) WHERE e = 'accept' AND role_term IS NOT NULL AND coalesce(ready_term, -1) < term""",
        needs=WHOLE,
    ),
    hard(
        "S3",
        "nobody accepts or acknowledges after it was demoted",
        "demoted",
        "{node} let an {e} go in term {term}, after it was demoted in term {demoted_term}",
        """SELECT * FROM (
          SELECT run, node, e, term, src, inc, seq, max(CASE WHEN e = 'demoted' THEN term END) OVER (
            PARTITION BY run, node, inc ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
            AS demoted_term
          FROM nodes WHERE e IN ('demoted', 'ack', 'accept')
        ) WHERE e <> 'demoted' AND term <= demoted_term""",
    ),
    hard(
        "S4",
        "a term has one master at most",
        "ready",
        "term {term}: {node} and {node_other}",
        """SELECT run, term, min(node) AS node, max(node) AS node_other, max_by(src, node) AS src,
          max_by(inc, node) AS inc, max_by(seq, node) AS seq
        FROM nodes WHERE e = 'master_ready' GROUP BY run, term HAVING min(node) < max(node)""",
    ),
    warning(
        "S4W",
        "one node at a time holds itself for the writable master",
        "ready",
        "{node} was ready in term {term} when {node_before} had not yet said that it was master no more",
        """SELECT run, node, term, node_before, src, inc, seq FROM (
          SELECT *, max(until) OVER w AS until_before, max_by(node, until) OVER w AS node_before FROM (
            SELECT m.run, m.node, m.term, m.mono AS since, m.src, m.inc, m.seq,
              coalesce(min(x.mono), max(z.last_mono)) AS until
            FROM nodes m LEFT JOIN nodes x ON x.run = m.run AND x.node = m.node AND x.inc = m.inc
              AND x.seq > m.seq AND x.e IN ('demoted', 'follower', 'candidate')
            JOIN (SELECT run, node, inc, max(mono) AS last_mono FROM nodes GROUP BY run, node, inc) z
              ON z.run = m.run AND z.node = m.node AND z.inc = m.inc
            WHERE m.e = 'master_ready' GROUP BY m.run, m.node, m.term, m.mono, m.src, m.inc, m.seq)
          WINDOW w AS (PARTITION BY run ORDER BY since, node ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        ) WHERE since < until_before AND node <> node_before""",
    ),
    hard(
        "S5",
        "every stored message has its unit in the ConsumeQueue of the same node",
        "dump cq",
        "{node}: index {lidx} ({log} at {qoff}) is in no ConsumeQueue",
        """SELECT d.run, d.node, d.lidx, d.log, d.qoff FROM dump d
        JOIN (SELECT run, node, log, min(qoff) AS low FROM cq GROUP BY run, node, log) g
          ON g.run = d.run AND g.node = d.node
        ANTI JOIN cq c ON c.run = d.run AND c.node = d.node AND c.log = d.log AND c.qoff = d.qoff
        WHERE d.mid IS NOT NULL AND d.sure AND d.qoff IS NOT NULL AND d.log = g.log AND d.qoff >= g.low""",
        needs=WHOLE,
    ),
    hard(
        "S6",
        "queue offsets go on without reuse or hole over all masters",
        "cq",
        "{node} {log}: offset {qoff} at index {lidx} follows offset {before} at index {lidx_before}",
        """SELECT * FROM (
          SELECT run, node, log, qoff, lidx, lag(qoff) OVER w AS before, lag(lidx) OVER w AS lidx_before
            FROM cq
          WINDOW w AS (PARTITION BY run, node, log ORDER BY lidx, qoff)
        ) WHERE qoff <> before + 1 OR lidx = lidx_before""",
    ),
    warning(
        "S7",
        f"an elected broker is master, or leads no more, within {PROMOTION_NS // 1_000_000_000} s",
        "elected",
        "{node}, elected in term {term}, was still neither after {waited} ns",
        f"""SELECT * FROM (
          SELECT l.run, l.node, l.term, l.src, l.inc, l.seq, coalesce(min(x.mono), max(z.last_mono)) -
            l.mono AS waited
          FROM nodes l
          LEFT JOIN nodes x ON x.run = l.run AND x.node = l.node AND x.inc = l.inc AND x.seq > l.seq
            AND x.e IN ('master_ready', 'demoted', 'follower', 'candidate')
          JOIN (SELECT run, node, inc, max(mono) AS last_mono FROM nodes GROUP BY run, node, inc) z
            ON z.run = l.run AND z.node = l.node AND z.inc = l.inc
          WHERE l.e = 'elected' GROUP BY l.run, l.node, l.term, l.src, l.inc, l.seq, l.mono
        ) WHERE waited > {PROMOTION_NS}""",
    ),
    warning(
        "S8",
        "the routes that a client is given never go back to an earlier master",
        "routes",
        "{proc} was told of the master of term {term}, after that of {before}",
        """SELECT * FROM (
          SELECT run, proc, op, term, src, inc, seq, max(term) OVER (PARTITION BY run, src ORDER BY inv
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM ops WHERE f = 'route' AND outcome = 'ok' AND term IS NOT NULL
        ) WHERE term < before""",
    ),
    hard(
        "S9",
        "a stored consumer offset survives a change of master",
        "fetched",
        "{grp} on {log}: operation {op} was answered {off_answered} after {stored} had been stored",
        f"""SELECT run, grp, log, op, off_answered, stored, src, inc, seq FROM (
          SELECT *, max(CASE WHEN k = 1 THEN off END) OVER (PARTITION BY run, grp, log, part ORDER BY t, k
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS stored
          FROM (
            SELECT *, sum(CASE WHEN k = 2 THEN 1 ELSE 0 END) OVER (PARTITION BY run, grp, log ORDER BY t, k
              ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS part
            FROM ({_OFFSETS})
          )
        ) WHERE k = 0 AND off_answered < stored""",
    ),
)
