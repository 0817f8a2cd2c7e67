"""Are operations whole, and one after the other? W2, W3: a part of `chaos.checker.completeness`."""

from __future__ import annotations

from chaos.checker.agreement import (
    AGAIN,
    COUNTED,
    JOINED_OTHERWISE,
    NEVER_GIVEN,
    OTHER_HALVES,
    PARTS_OF_OPERATIONS,
    STRAY_RESETS,
    TOLD_BY_OTHERS,
    UNASSIGNED,
    UNDONE,
    UNENDED,
    UNJOINED,
    UNTOLD_RESETS,
)
from chaos.checker.checks.registry import Check, Part, void

_IN_TURN = """
SELECT run, proc, op, f, src, inc, seq, inv, completed, invokes, completions, torn_apart,
  row_number() OVER w AS n,
  lag(completed) OVER w AS before,
  lag(outcome) OVER w AS outcome_before
FROM ops WINDOW w AS (PARTITION BY run, proc ORDER BY inv, op)
"""

CHECKS: tuple[Check, ...] = (
    void(
        "W2",
        "every operation has one invoke, at most one completion after it, and the messages that it says",
        "ops",
        "{what}",
        Part(
            _IN_TURN,
            "invokes <> 1 OR completions > 1 OR completed < inv",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || '): ' || CAST(invokes AS STRING) "
            "|| ' invokes, ' || CAST(completions AS STRING) || ' completions' AS what, src, inc, seq",
        ),
        Part(
            _IN_TURN,
            "torn_apart",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || ') was completed by another writer or "
            "process, or as one of another kind' AS what, src, inc, seq",
        ),
        Part(
            UNENDED,
            "true",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || ') never ended, and its client did "
            "not crash' AS what, src, inc, seq",
        ),
        Part(
            PARTS_OF_OPERATIONS,
            "ev = 'item' AND of_others",
            "op, 'operation ' || CAST(op AS STRING) || ' sends message ' || CAST(mid AS STRING) "
            "|| ', which is for another log' AS what, src, inc, seq",
        ),
        Part(
            COUNTED,
            "n <> there",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || ') says that it has ' "
            "|| CAST(n AS STRING) || ' messages, and ' || CAST(there AS STRING) || ' are there' AS what, "
            "src, inc, seq",
        ),
        Part(
            NEVER_GIVEN,
            "true",
            "mid, consumer || ' was through with message ' || CAST(mid AS STRING) || ', and nothing tells "
            "that it was given to it' AS what, src, inc, seq",
        ),
        Part(
            AGAIN,
            "sent_by IS NULL OR retry_no < 1 OR n > 1 "
            "OR (mid IS NOT NULL AND coalesce(mid <> sent_mid, true))",
            "op, 'operation ' || CAST(op AS STRING) || ' was tried again (' || CAST(retry_no AS STRING) "
            "|| '), and nothing tells that it had begun so, or it is told twice' AS what, src, inc, seq",
        ),
        Part(
            PARTS_OF_OPERATIONS,
            "by_others",
            "op, 'operation ' || CAST(op AS STRING) || ' was begun by ' || begun_by || ', and ' || src "
            "|| ' tells of it (' || ev || ')' AS what, src, inc, seq",
        ),
        Part(
            UNDONE,
            "true",
            "op, 'operation ' || CAST(op AS STRING) || ' (' || f || ') is about message ' "
            "|| CAST(mid AS STRING) || ', and nothing tells that ' || consumer || ' was through with it so' "
            "AS what, src, inc, seq",
        ),
        Part(
            OTHER_HALVES,
            "n <> 1 OR differs",
            "op, 'operation ' || CAST(op AS STRING) || ' ends the transaction of message ' "
            "|| CAST(mid AS STRING) || ', which began otherwise, or never' AS what, src, inc, seq",
        ),
        Part(
            UNJOINED,
            "true",
            "consumer || ' was given messages of ' || grp || ', or left it, and had not joined' AS what, "
            "src, inc, seq",
        ),
        Part(
            TOLD_BY_OTHERS,
            "true",
            "'several writers say that ' || consumer || ' of ' || grp || ' joined' AS what, src, inc, seq",
        ),
        Part(
            UNTOLD_RESETS,
            "true",
            "op, 'operation ' || CAST(op AS STRING) || ' resets ' || grp || ' to ' || CAST(off AS STRING) "
            "|| ', and no line before tells of that' AS what, src, inc, seq",
        ),
        Part(
            STRAY_RESETS,
            "true",
            "grp || ' is said to be reset to ' || CAST(off AS STRING) || ' of ' || log || ', and nobody "
            "asked for that' AS what, src, inc, seq",
        ),
        Part(
            JOINED_OTHERWISE,
            "mode_min < mode_max OR filter_min < filter_max OR start_min < start_max",
            "'the members of ' || grp || ' say of ' || topic || ' that they consume it in several ways' "
            "AS what, src, inc, seq",
            few=True,
        ),
        Part(
            UNASSIGNED,
            "n = 0 OR from_off < off",
            "m_what || ' of ' || consumer || ' is about ' || log || ' in generation ' "
            "|| CAST(epoch AS STRING) || ', in which it was not assigned it so' AS what, src, inc, seq",
        ),
    ),
    void(
        "W3",
        "a process has one operation at a time, and none after one without an answer",
        "ops",
        "process {proc}: operation {op} began before the one before it ended, or after an unknown one",
        Part(
            _IN_TURN,
            "n > 1 AND (before IS NULL OR before > inv OR outcome_before = 'info')",
            "proc, op, src, inc, seq",
        ),
    ),
)
