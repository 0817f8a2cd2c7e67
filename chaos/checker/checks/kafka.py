"""Jepsen's kafka workload: H20-H36, with Jepsen's names of the anomalies.

Tables: `chaos.checker.histories.tables`. Operations are atomic. Polls of operations that did not complete
with ok count where they do in Jepsen: their results must be safe, but only ok operations count as reads.
"""

from __future__ import annotations

from chaos.checker.checks.registry import Part, hard, void, warning
from chaos.checker.needs import DRAINED, EVIDENT, WHOLE, Need

_POLLS_WITH_SENDS = """
SELECT p.*, s.sent, s.fails, s.sent_inv FROM k_polls p
LEFT JOIN (SELECT run, log, mid, count(*) AS sent, count(*) FILTER (WHERE outcome = 'fail') AS fails,
    min(inv) AS sent_inv FROM k_sends GROUP BY run, log, mid) s
  ON s.run = p.run AND s.log = p.log AND s.mid = p.mid
"""
_OWN_SENDS = """
SELECT p.run, p.log, p.mid, p.op, p.txn, p.src, p.inc, p.seq FROM k_polls p
SEMI JOIN k_sends s ON s.run = p.run AND s.txn = p.txn AND s.log = p.log AND s.mid = p.mid
"""
_LOST = """
SELECT e.run, e.log, e.mid, e.op, v.last, b.bound, e.src, e.inc, e.seq FROM k_effective e
JOIN k_values v ON v.run = e.run AND v.log = e.log AND v.mid = e.mid
JOIN (SELECT k.run, k.log, max(x.first) AS bound FROM k_read k
  JOIN k_values x ON x.run = k.run AND x.log = k.log AND x.mid = k.mid GROUP BY k.run, k.log) b
  ON b.run = e.run AND b.log = e.log
ANTI JOIN k_read r ON r.run = e.run AND r.log = e.log AND r.mid = e.mid
WHERE v.last <= b.bound
"""
_UNSEEN = """
SELECT s.run, s.log, s.mid, s.op, s.src, s.inc, s.seq FROM k_sends s
ANTI JOIN k_read r ON r.run = s.run AND r.log = s.log AND r.mid = s.mid WHERE s.outcome = 'ok'
"""
_CYCLES = """
SELECT c.run, c.what, c.txn, c.other, o.src, o.inc, o.seq FROM k_cycles c
LEFT JOIN ops o ON o.run = c.run AND o.op = c.txn
"""
#: Ranks of sends and reads, with the highest rank among operations that had completed before they started.
#: The rank of a read is the highest that it returned.
_REAL_TIME_ORDER = """
SELECT run, log, op, rank, k, src, inc, seq, max(CASE WHEN k = 1 THEN rank END) OVER w AS rank_before,
  max_by(op, CASE WHEN k = 1 THEN rank END) OVER w AS op_before
FROM (
  SELECT e.run, e.log, e.op, v.last AS rank, 0 AS k, e.inv AS t, e.src, e.inc, e.seq FROM k_effective e
  JOIN k_values v ON v.run = e.run AND v.log = e.log AND v.mid = e.mid
  UNION ALL
  SELECT s.run, s.log, s.op, v.first, 1, s.ret, s.src, s.inc, s.seq FROM k_sends s
  JOIN k_values v ON v.run = s.run AND v.log = s.log AND v.mid = s.mid WHERE s.ret IS NOT NULL
  UNION ALL
  SELECT run, log, op, max(rank), 1, max(ret), max(src), max(inc), max(seq) FROM k_polled
  WHERE ret IS NOT NULL AND rank >= 0 GROUP BY run, log, op
)
WINDOW w AS (PARTITION BY run, log ORDER BY t, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

_POLLED = "log, op, mid, rank, in_op AS before, src, inc, seq"
_POLLED_NEXT = "log, proc, op, mid, rank, ok_before AS before, op_before, src, inc, seq"
#: Both ranks are known.
_IN_OP = "moved = 0 AND rank >= 0 AND in_op >= 0"
_NEXT = "in_op IS NULL AND rank >= 0 AND ok_before >= 0"
_SENT = "log, proc, op, mid, rank, rank_before AS before, src, inc, seq"
_SENDS = "rank >= 0 AND rank_before >= 0"

CHECKS = (
    hard(
        "H20",
        "all observers see the same message at an offset (inconsistent-offsets)",
        "kafka_sends",
        "{log} at offset {off}: messages {mid} and {mid_other}",
        Part(
            "k_offsets", "mid_min < mid_max", "log, off, mid_min AS mid, mid_max AS mid_other, src, inc, seq"
        ),
        needs=EVIDENT,
    ),
    hard(
        "H21",
        "a message has only one offset (duplicate)",
        "kafka_sends",
        "{log}: message {mid} is at offsets {off_min} and {off_max}",
        Part("k_values", "off_min < off_max", "log, mid, off_min, off_max, src, inc, seq"),
        needs=(*EVIDENT, Need.IDS),
    ),
    hard(
        "H22",
        "every polled message had been sent to this key before",
        "kafka_polls",
        "{log}: operation {op} polled {mid}, which {what}",
        Part(
            _POLLS_WITH_SENDS,
            "sent IS NULL OR completed < sent_inv",
            "log, op, mid, CASE WHEN sent IS NULL THEN 'was never sent' ELSE 'was sent only later' END "
            "AS what, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "H23",
        "no poll returns a message whose send failed (G1a)",
        "kafka_polls",
        "{log}: operation {op} polled {mid}, whose send failed",
        Part(_POLLS_WITH_SENDS, "outcome = 'ok' AND fails = sent", "log, op, mid, src, inc, seq"),
        needs=(*EVIDENT, Need.OPERATIONS),
    ),
    hard(
        "H24",
        "no operation polls its own uncommitted sends (precommitted-read)",
        "kafka_polls",
        "{log}: operation {op} polled {mid}, which it sent itself",
        Part(_OWN_SENDS, "true", "log, op, mid, src, inc, seq"),
        needs=EVIDENT,
    ),
    hard(
        "H25",
        "no message is lost below an offset that was read (lost-write)",
        "kafka_polls",
        "{log}: message {mid} of operation {op} was never read, although it is number {last} of this key and "
        "number {bound} was read",
        Part(_LOST, "true", "log, mid, op, last, bound, src, inc, seq"),
        needs=(*WHOLE, Need.IDS),
    ),
    hard(
        "H26",
        "every acknowledged message is read in the end (unseen)",
        "kafka_polls",
        "{log}: message {mid} of operation {op} was acknowledged and never read",
        Part(_UNSEEN, "true", "log, mid, op, src, inc, seq"),
        needs=DRAINED,
    ),
    hard(
        "H27",
        "within an operation, polls of a key skip no message (int-poll-skip)",
        "kafka_polls",
        "{log}: operation {op} polled number {rank} of this key directly after {before}",
        Part("k_polled", f"{_IN_OP} AND rank > in_op + 1", _POLLED),
        needs=EVIDENT,
    ),
    hard(
        "H28",
        "within an operation, polls of a key are monotonic (int-nonmonotonic-poll)",
        "kafka_polls",
        "{log}: operation {op} polled number {rank} of this key directly after {before}",
        Part("k_polled", f"{_IN_OP} AND rank < in_op + 1", _POLLED),
        needs=EVIDENT,
    ),
    hard(
        "H29",
        "a process continues each key where its last ok operation ended (poll-skip)",
        "kafka_polls",
        "{log}: process {proc} polled number {rank} by operation {op}, after {before} by operation "
        "{op_before}",
        Part("k_polled", f"{_NEXT} AND rank > ok_before + 1", _POLLED_NEXT),
        needs=WHOLE,
    ),
    hard(
        "H30",
        "polls of a key by one process are monotonic (nonmonotonic-poll)",
        "kafka_polls",
        "{log}: process {proc} polled number {rank} by operation {op}, after {before} by operation "
        "{op_before}",
        Part("k_polled", f"{_NEXT} AND rank < ok_before + 1", _POLLED_NEXT),
        needs=WHOLE,
    ),
    hard(
        "H31",
        "within an operation, sends to a key are stored in their order (int-nonmonotonic-send)",
        "kafka_sends",
        "{log}: process {proc} got number {rank} of this key for send {op}, after {before}",
        Part("k_sent", f"{_SENDS} AND txn = txn_before AND rank <= rank_before", _SENT),
        needs=(*EVIDENT, Need.IDS),
    ),
    hard(
        "H32",
        "sequential sends of a process to a key are stored in their order (nonmonotonic-send)",
        "kafka_sends",
        "{log}: process {proc} got number {rank} of this key for send {op}, after {before}",
        Part(
            "k_sent",
            f"outcome <> 'fail' AND {_SENDS} AND txn <> txn_before AND rank <= rank_before",
            _SENT,
        ),
        needs=(*WHOLE, Need.IDS),
    ),
    hard(
        "H33",
        "operations do not observe each other in a cycle, or against real time (G1c, G1c-realtime)",
        "kafka_polls kafka_sends",
        "operations {txn} and {other} are in a cycle of polls of each other's sends ({what})",
        Part(_CYCLES, "what = 'cycle' OR what = 'backwards'", "txn, other, what, src, inc, seq", few=True),
        needs=(*EVIDENT, Need.IDS, Need.CLOCKS),
    ),
    warning(
        "H34",
        "all sends of an operation precede, or all follow, the sends of another (G0, G1c, int-send-skip)",
        "kafka_sends",
        "operations {txn} and {other} precede each other, directly or through others ({what})",
        Part(_CYCLES, "what = 'order'", "txn, other, what, src, inc, seq", few=True),
        # The operation of a message between two messages of another operation precedes and follows the other.
        Part(
            "k_sent",
            f"{_SENDS} AND txn = txn_before AND rank > rank_before + 1",
            "txn, op AS other, 'int-send-skip' AS what, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.IDS),
    ),
    hard(
        "H35",
        "a send is stored after everything that was observed before it started",
        "kafka_sends",
        "{log}: send {op} got number {rank} of this key, although operation {op_before} had observed number "
        "{rank_before} before it started",
        Part(
            _REAL_TIME_ORDER,
            "k = 0 AND rank_before > rank",
            "log, op, rank, rank_before, op_before, src, inc, seq",
        ),
        needs=(*EVIDENT, Need.IDS, Need.CLOCKS),
    ),
    void(
        "H36",
        "the search for cycles of operations was complete",
        "kafka_polls kafka_sends",
        "too many operations both send and poll",
        Part(_CYCLES, "what = 'limit'", "txn", few=True),
    ),
)
