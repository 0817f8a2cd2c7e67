"""Completeness of operations and sequential processes: W2, W3. Used by `chaos.checker.completeness`."""

from __future__ import annotations

from chaos.checker.agreement import (
    MESSAGE_COUNTS,
    NON_MEMBERS,
    PARTS_OF_OPERATIONS,
    PENDING_OPERATIONS,
    RETRIES,
    SHARED_MEMBERS,
    SUBSCRIPTIONS,
    TRANSACTION_ENDS,
    UNANNOUNCED_RESETS,
    UNASSIGNED,
    UNDELIVERED,
    UNMATCHED_ACKS,
    UNREQUESTED_RESETS,
)
from chaos.checker.checks.registry import Check, Part, void

_PROCESS_ORDER = """
SELECT run, proc, op, f, src, inc, seq, inv, completed, invokes, completions, torn_apart,
  row_number() OVER w AS n,
  lag(completed) OVER w AS before,
  lag(outcome) OVER w AS outcome_before
FROM ops WINDOW w AS (PARTITION BY run, proc ORDER BY inv, op)
"""

CHECKS: tuple[Check, ...] = (
    void(
        "W2",
        "every operation has one invoke, at most one later completion, and the stated messages",
        "ops",
        "{what}",
        Part(
            _PROCESS_ORDER,
            "invokes <> 1 OR completions > 1 OR completed < inv",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || '): ' || CAST(invokes AS STRING) "
            "|| ' invokes, ' || CAST(completions AS STRING) || ' completions' AS what, src, inc, seq",
        ),
        Part(
            _PROCESS_ORDER,
            "torn_apart",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || ') was completed by another writer or "
            "process, or as a different kind of operation' AS what, src, inc, seq",
        ),
        Part(
            PENDING_OPERATIONS,
            "true",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || ') has no completion, although its "
            "client did not crash' AS what, src, inc, seq",
        ),
        Part(
            PARTS_OF_OPERATIONS,
            "ev = 'item' AND of_others",
            "op, 'operation ' || CAST(op AS STRING) || ' sends message ' || CAST(mid AS STRING) "
            "|| ', which belongs to another log' AS what, src, inc, seq",
        ),
        Part(
            MESSAGE_COUNTS,
            "n <> there",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || ') states ' "
            "|| CAST(n AS STRING) || ' messages, and the trace has ' || CAST(there AS STRING) AS what, "
            "src, inc, seq",
        ),
        Part(
            UNDELIVERED,
            "true",
            "mid, consumer || ' finished message ' || CAST(mid AS STRING) || ', but no line shows its "
            "delivery' AS what, src, inc, seq",
        ),
        Part(
            RETRIES,
            "sent_by IS NULL OR retry_no < 1 OR n > 1 "
            "OR (mid IS NOT NULL AND coalesce(mid <> sent_mid, true))",
            "op, 'operation ' || CAST(op AS STRING) || ' was retried (' || CAST(retry_no AS STRING) "
            "|| '), but its first attempt has no line, or the retry has two' AS what, src, inc, seq",
        ),
        Part(
            PARTS_OF_OPERATIONS,
            "by_others",
            "op, 'operation ' || CAST(op AS STRING) || ' was started by ' || begun_by || ', but ' || src "
            "|| ' wrote a line of it (' || ev || ')' AS what, src, inc, seq",
        ),
        Part(
            UNMATCHED_ACKS,
            "true",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || ') concerns message ' "
            "|| CAST(mid AS STRING) || ', but no line shows that ' || consumer || ' finished it so' "
            "AS what, src, inc, seq",
        ),
        Part(
            TRANSACTION_ENDS,
            "n <> 1 OR differs",
            "op, 'operation ' || CAST(op AS STRING) || ' ends the transaction of message ' "
            "|| CAST(mid AS STRING) || ', which has no matching start' AS what, src, inc, seq",
        ),
        Part(
            NON_MEMBERS,
            "true",
            "consumer || ' received messages of ' || grp || ', or left it, without having joined' AS what, "
            "src, inc, seq",
        ),
        Part(
            SHARED_MEMBERS,
            "true",
            "'several writers report that ' || consumer || ' joined ' || grp AS what, src, inc, seq",
        ),
        Part(
            UNANNOUNCED_RESETS,
            "true",
            "op, 'operation ' || CAST(op AS STRING) || ' resets ' || grp || ' to ' || CAST(off AS STRING) "
            "|| ', but no earlier line announces it' AS what, src, inc, seq",
        ),
        Part(
            UNREQUESTED_RESETS,
            "true",
            "'a reset of ' || grp || ' to ' || CAST(off AS STRING) || ' of ' || log || ' is announced, but "
            "no operation requests it' AS what, src, inc, seq",
        ),
        Part(
            SUBSCRIPTIONS,
            "mode_min < mode_max OR filter_min < filter_max OR start_min < start_max",
            "'the members of ' || grp || ' report different subscriptions to ' || topic "
            "AS what, src, inc, seq",
            few=True,
        ),
        Part(
            UNASSIGNED,
            "n = 0 OR from_off < off",
            "m_what || ' of ' || consumer || ' concerns ' || log || ' in epoch ' "
            "|| CAST(epoch AS STRING) || ', without a matching assignment' AS what, src, inc, seq",
        ),
    ),
    void(
        "W3",
        "a process has one operation at a time, and none after one without a known outcome",
        "ops",
        "process {proc}: operation {op} started before the previous one completed, or after an unknown one",
        Part(
            _PROCESS_ORDER,
            "n > 1 AND (before IS NULL OR before > inv OR outcome_before = 'info')",
            "proc, op, src, inc, seq",
        ),
    ),
)
