"""Histories of other systems without positions: H0-H9.

The model of the history selects the checks (`chaos.checker.histories.models`). Only histories of Jepsen's
kafka workload have positions: `chaos.checker.checks.kafka`.
"""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard, void, warning
from chaos.checker.needs import EVIDENT, WHOLE, Need

#: Elements that reads returned: one row per element, with the interval of the read.
_ELEMENTS = """
SELECT d.run, d.log, d.mid, d.op, d.i, o.f, o.inv, o.ret, r.history, d.src, d.inc, d.seq FROM dlv d
JOIN runs r ON r.run = d.run AND r.history IS NOT NULL JOIN ops o ON o.run = d.run AND o.op = d.op
WHERE o.outcome = 'ok' OR r.history = 'queue'
"""
#: The same, with the send of the element.
_READS_WITH_SENDS = f"""
SELECT t.*, s.sent, s.fails, s.sent_inv FROM ({_ELEMENTS}) t
LEFT JOIN (SELECT run, log, mid, count(*) AS sent, count(*) FILTER (WHERE outcome = 'fail') AS fails,
    min(inv) AS sent_inv FROM sends GROUP BY run, log, mid) s
  ON s.run = t.run AND s.log = t.log AND s.mid = t.mid
WHERE t.history IN ('set', 'queue')
"""
#: The time from which an element was certainly present: its add was acknowledged, or a read returned it.
_KNOWN_SINCE = f"""
SELECT run, log, mid, min(at_ns) AS at_ns FROM (
  SELECT run, log, mid, ret AS at_ns FROM sends WHERE outcome = 'ok'
  UNION ALL SELECT run, log, mid, ret FROM ({_ELEMENTS}) told
) both_ways GROUP BY run, log, mid
"""
#: Reads of the complete set or queue.
_WHOLE_READS = """
SELECT q.run, q.log, q.op, q.inv, q.src, q.inc, q.seq, r.history FROM reads q
JOIN runs r ON r.run = q.run AND r.history IS NOT NULL WHERE q.outcome = 'ok' AND q.end_claim
"""
_LAST_READS = f"""
SELECT run, log, history, max_by(op, inv) AS op, max(inv) AS inv, max_by(src, inv) AS src,
  max_by(inc, inv) AS inc, max_by(seq, inv) AS seq
FROM ({_WHOLE_READS}) w GROUP BY run, log, history
"""
#: Acknowledged elements of queues that no read returned, with their number in the queue, the number of reads
#: of the queue with an unknown outcome, and whether a read that started after their acknowledgment found the
#: queue empty.
_UNREAD_ELEMENTS = f"""
SELECT s.run, s.log, s.mid, s.src, s.inc, s.seq, coalesce(s.ret < d.inv, false) AS drained,
  count(*) OVER (PARTITION BY s.run, s.log) AS lost, coalesce(a.asked, 0) AS asked
FROM sends s JOIN runs r ON r.run = s.run AND r.history = 'queue'
ANTI JOIN ({_ELEMENTS}) t ON t.run = s.run AND t.log = s.log AND t.mid = s.mid
LEFT JOIN (SELECT run, log, count(*) AS asked FROM reads WHERE outcome = 'info' GROUP BY run, log) a
  ON a.run = s.run AND a.log = s.log
LEFT JOIN (SELECT run, log, max(inv) AS inv FROM reads WHERE end_claim AND outcome <> 'info'
  GROUP BY run, log) d
  ON d.run = s.run AND d.log = s.log
WHERE s.outcome = 'ok'
"""
_NOT_IN_LAST_READ = f"""
SELECT k.run, k.log, k.mid, l.src, l.inc, l.seq FROM ({_KNOWN_SINCE}) k
JOIN ({_LAST_READS}) l ON l.run = k.run AND l.log = k.log AND l.history = 'set' AND k.at_ns < l.inv
ANTI JOIN dlv d ON d.run = k.run AND d.op = l.op AND d.mid = k.mid
"""
_DEQUEUES = f"""
SELECT run, log, mid, count(*) AS n, max(src) AS src, max(inc) AS inc, max(seq) AS seq FROM ({_ELEMENTS}) t
WHERE history = 'queue' GROUP BY run, log, mid
"""
_ELEMENT_COUNTS = f"""
SELECT run, log, op, mid, count(*) AS n, min(src) AS src, min(inc) AS inc, min(seq) AS seq
FROM ({_ELEMENTS}) t WHERE history = 'set' GROUP BY run, log, op, mid
"""
#: Elements of queues in the order of their enqueues, with the latest dequeue of those that had certainly been
#: enqueued before.
_QUEUE_ORDER = f"""
SELECT run, log, mid, k, out_ret, src, inc, seq, max(CASE WHEN k = 1 THEN out_inv END) OVER (
  PARTITION BY run, log ORDER BY t, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS out_inv_before
FROM (
  SELECT s.run, s.log, s.mid, k.k, CASE WHEN k.k = 0 THEN s.inv ELSE s.ret END AS t, o.out_inv, o.out_ret,
    o.src, o.inc, o.seq
  FROM sends s
  JOIN (SELECT run, log, mid, min(inv) AS out_inv, min(ret) AS out_ret, min(src) AS src, min(inc) AS inc,
      min(seq) AS seq FROM ({_ELEMENTS}) t WHERE history = 'queue' GROUP BY run, log, mid) o
    ON o.run = s.run AND o.log = s.log AND o.mid = s.mid
  CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 AS k) k WHERE k.k = 0 OR s.ret IS NOT NULL)
"""
#: Reads of sets: the number of elements known to be present before they started, and of those they returned.
_STALE = f"""
SELECT w.run, w.log, w.op, w.k, coalesce(s.shown, 0) AS shown, w.known, w.src, w.inc, w.seq FROM (
  SELECT *, sum(1 - k) OVER (PARTITION BY run, log ORDER BY t, k DESC
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS known
  FROM (
    SELECT n.run, n.log, CAST(NULL AS BIGINT) AS op, at_ns AS t, 0 AS k, CAST(NULL AS STRING) AS src,
      CAST(NULL AS BIGINT) AS inc, CAST(NULL AS BIGINT) AS seq FROM ({_KNOWN_SINCE}) n
    UNION ALL
    SELECT run, log, op, inv, 1, src, inc, seq FROM ({_WHOLE_READS}) q WHERE history = 'set')
) w LEFT JOIN (
  SELECT t.run, t.op, count(*) AS shown FROM (SELECT DISTINCT run, log, op, inv, mid FROM ({_ELEMENTS}) d) t
  JOIN ({_KNOWN_SINCE}) n ON n.run = t.run AND n.log = t.log AND n.mid = t.mid AND n.at_ns < t.inv
  GROUP BY t.run, t.op) s ON s.run = w.run AND s.op = w.op
"""
#: Keys of registers and stores (`chaos.checker.histories.linearize`), with the operation that no order
#: explains.
_SEARCH_RESULTS = """
SELECT l.run, l.log, l.found, o.op, o.src, o.inc, o.seq FROM linearized l
LEFT JOIN ops o ON o.run = l.run
  AND o.op = CASE WHEN l.found LIKE '% %' THEN CAST(split_part(l.found, ' ', 2) AS BIGINT) END
"""

CHECKS: tuple[Check, ...] = (
    void(
        "H0",
        "no dequeue with an unknown outcome may have removed a missing element",
        "takes",
        "{log}: {mid} is missing, one of {lost}, and {asked} dequeues have no known outcome",
        Part(_UNREAD_ELEMENTS, "drained AND lost <= asked", "log, mid, lost, asked, src, inc, seq"),
    ),
    hard(
        "H1",
        "every element that was read had been added before",
        "unplaced_reads",
        "{log}: operation {op} returned {mid}, which {what}",
        Part(
            _READS_WITH_SENDS,
            "sent IS NULL OR ret < sent_inv",
            "log, op, mid, CASE WHEN sent IS NULL THEN 'was never sent' ELSE 'was sent only later' END "
            "AS what, src, inc, seq",
        ),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    hard(
        "H2",
        "an element whose add definitely failed is never read",
        "unplaced_reads",
        "{log}: operation {op} returned {mid}, whose add failed",
        Part(_READS_WITH_SENDS, "fails = sent", "log, op, mid, src, inc, seq"),
        needs=(*EVIDENT, Need.OPERATIONS),
    ),
    hard(
        "H3",
        "no acknowledged element is lost: the last read returns it, or a dequeue did",
        "last_reads",
        "{log}: {mid} is lost (line of {whose})",
        Part(_NOT_IN_LAST_READ, "true", "log, mid, 'the last read' AS whose, src, inc, seq"),
        Part(_UNREAD_ELEMENTS, "drained AND lost > asked", "log, mid, 'its send' AS whose, src, inc, seq"),
        needs=WHOLE,
        clear_needs=(*WHOLE, Need.TAKES),
    ),
    warning(
        "H4",
        "no element is dequeued twice",
        "takes",
        "{log}: {mid} was dequeued {n} times",
        Part(_DEQUEUES, "n > 1", "log, mid, n, src, inc, seq"),
        needs=WHOLE,
    ),
    hard(
        "H5",
        "a read returns each element once",
        "set_reads",
        "{log}: operation {op} returned {mid} {n} times",
        Part(_ELEMENT_COUNTS, "n > 1", "log, op, mid, n, src, inc, seq"),
        needs=EVIDENT,
    ),
    warning(
        "H6",
        "queues are first-in, first-out",
        "takes",
        "{log}: {mid} was dequeued before an element that was enqueued earlier",
        Part(_QUEUE_ORDER, "k = 0 AND out_inv_before > out_ret", "log, mid, src, inc, seq"),
        needs=WHOLE,
    ),
    warning(
        "H7",
        "a read of a set returns every element known to be present",
        "set_reads",
        "{log}: operation {op} returned {shown} of {known} elements that were present before it started",
        Part(_STALE, "k = 1 AND shown < known", "log, op, shown, known, src, inc, seq"),
        needs=WHOLE,
    ),
    hard(
        "H8",
        "every key is linearizable",
        "register_uses",
        "{log}: no order of the operations explains the results up to the completion of operation {op}",
        Part(_SEARCH_RESULTS, "found LIKE 'no %'", "log, op, src, inc, seq"),
        needs=(*WHOLE, Need.CLOCKS),
    ),
    void(
        "H9",
        "the search for a linearization of every key was conclusive",
        "register_uses",
        "{log}: {what}",
        Part(
            _SEARCH_RESULTS,
            "found = 'perhaps' OR found LIKE 'begun %'",
            "log, CASE WHEN found = 'perhaps' THEN 'too many concurrent operations for the search' "
            "ELSE 'linearizable only with an initial value, which the history does not state: "
            "see operation ' || CAST(op AS STRING) END AS what, src, inc, seq",
        ),
    ),
)
