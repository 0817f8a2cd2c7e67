"""Uniform fields: every line of a kind must have the same optional fields.

In a run, an optional field is in all lines of a kind or in none. A line that lacks a field cannot be checked
against the others, and a field that only some lines have cannot be confirmed.
"""

from __future__ import annotations

from chaos.trace.schema import DEMANDED, ENVELOPE, EVENTS, REQUESTS, Ev, OpType

#: Exceptions: fields that may vary among lines of a kind: ev, what, operation or "", names. A missing `vote`
#: in `term_vote`, `vote_synced`, `recover` means that no vote was given in that term; a missing `wiped`
#: excuses nothing; a missing `purge_to` releases nothing. `mid` is in the `attempt` of an operation on one
#: message. A send may have a delay; a delayed message has no position yet. A receive may have an
#: invisibility. Answers may have fields that only some clients request.
_VARYING: tuple[tuple[Ev, str, str, str], ...] = (
    (Ev.RAFT, "term_vote", "", "vote"),
    (Ev.DUMP, "", "", "purge_to"),
    (Ev.DISK, "vote_synced", "", "vote"),
    (Ev.STORE, "recover", "", "vote wiped"),
    (Ev.META, "writer_begin", "", "pid"),
    (Ev.ATTEMPT, "", "", "mid"),
    (Ev.OP, OpType.INVOKE, "send", "delay_ms"),
    (Ev.ITEM, "", "", "delay_ms"),
    (Ev.OP, OpType.INVOKE, "receive", "delay_ms"),
    (Ev.OP, OpType.OK, "send", "lidx qoff node term ledger"),  # `HALF_ANSWERED` restricts this
    (Ev.OP, OpType.OK, "send_batch", "lidx node term ledger"),  # likewise
    (Ev.OP, OpType.OK, "route", "term"),
    (Ev.OP, OpType.OK, "get", "max_off"),
    (Ev.OP, OpType.OK, "max_off", "min_off"),
    (Ev.OP, OpType.OK, "min_off", "max_off"),
    (Ev.OP, OpType.OK, "fetch_off", "epoch"),
)
#: Kinds of lines whose fields depend on the failure or fault.
_ALL_MAY_VARY = ((Ev.OP, OpType.FAIL), (Ev.OP, OpType.INFO), (Ev.FAULT, "begin"), (Ev.FAULT, "end"))
#: Fields that no check uses as evidence: texts, and counters of retries.
_FREE = frozenset(("text", "error", "code", "evidence", "params", "git", "config", "aim"))

_NAMES = sorted(
    {name for event in EVENTS.values() for name in event.optional} - _FREE - frozenset(ENVELOPE) - {"op"}
)
_BITS = {name: 1 << bit for bit, name in enumerate(_NAMES)}
assert len(_NAMES) < 63  # the bits must fit into a non-negative BIGINT


def _column(name: str) -> str:
    return {"group": "grp"}.get(name, name)


#: SQL for the fields of a line, one bit each.
_THERE = " + ".join(
    f"CASE WHEN {_column(name)} IS NULL THEN 0 ELSE CAST({bit} AS BIGINT) END" for name, bit in _BITS.items()
)

#: Lines of one kind: of one group, of entries with or without messages, or of one operation.
SHAPES = f"""
SELECT run, ev, what, f, grp, of, count(*) AS n, bit_and(there) AS always, bit_or(there) AS ever FROM (
  SELECT run, ev, f, CASE WHEN ev = 'op' THEN type ELSE e END AS what,
    CASE WHEN ev IN ('op', 'dlv', 'done', 'member') THEN grp END AS grp,
    CASE WHEN ev IN ('dump', 'left') AND internal THEN 'internal' WHEN e = 'dumped' THEN ledger
      WHEN e = 'log' THEN ledger END AS of,
    {_THERE} AS there
  FROM events WHERE ev NOT IN ('corrupt', 'unknown'))
GROUP BY run, ev, what, f, grp, of
"""


def _mute() -> str:
    """Return SQL for the bits of the fields that a check requires: it ignores a line without one of them. The
    object of the line then appears to be absent, which can cause both false and missed violations."""
    kinds = (
        ("ev = 'dump'", "ledger chain"),
        ("ev = 'left' AND of IS NULL", "mid topic q qoff"),
        ("ev = 'cq'", "size tag_hash"),
        ("ev = 'op' AND what = 'invoke' AND f <> 'admin'", "ledger topic q mid digest from_off off"),
        ("ev = 'op' AND what = 'ok' AND f = 'append'", "lidx term"),
    )
    cases = [f"WHEN {kind} THEN {sum(_BITS[name] for name in names.split())}" for kind, names in kinds]
    return f"CASE {' '.join(cases)} ELSE 0 END"


def _strict() -> str:
    """Return SQL for the bits of fields that must be in all lines of a kind or in none."""
    every = sum(_BITS.values())
    cases = [f"WHEN ev = '{ev}' AND what = '{what}' THEN 0" for ev, what in _ALL_MAY_VARY]
    for ev, what, f, names in _VARYING:
        about = f"ev = '{ev}'" + (f" AND what = '{what}'" if what else "") + (f" AND f = '{f}'" if f else "")
        cases.append(f"WHEN {about} THEN {every - sum(_BITS[name] for name in names.split())}")
    return f"CASE {' '.join(cases)} ELSE {every} END"


def _allowed() -> str:
    """Return SQL for the bits of fields that a line of an operation may have."""
    cases = []
    for f, requests in REQUESTS.items():
        for what, names in zip((OpType.INVOKE, OpType.OK), requests, strict=True):
            bits = sum(_BITS[name] for name in names & _BITS.keys())
            cases.append(f"WHEN ev = 'op' AND what = '{what}' AND f = '{f}' THEN {bits}")
    # Failed and unknown operations have no result.
    cases.append("WHEN ev = 'op' AND what IN ('fail', 'info') THEN 0")
    return f"CASE {' '.join(cases)} ELSE {sum(_BITS.values())} END"


def _demanded() -> str:
    """Return SQL for the bits of fields that a line of an operation, or the end of a fault, must have."""
    cases = [f"WHEN ev = 'fault' AND what = 'end' THEN {_BITS['targets']}"]
    for f, demands in DEMANDED.items():
        for what, names in zip((OpType.INVOKE, OpType.OK), demands, strict=True):
            bits = sum(_BITS[name] for name in names)
            cases.append(f"WHEN ev = 'op' AND what = '{what}' AND f = '{f}' THEN {bits}")
    return f"CASE {' '.join(cases)} ELSE 0 END"


#: Kinds of lines with fields that only some lines have. Excludes histories of other systems, whose fields
#: depend on their own writers.
ODD_SHAPES = f"""
SELECT s.run, s.ev, s.what, s.f, s.n, (s.ever - s.always) & ({_strict()}) AS sometimes,
  (s.ever - s.always) & ({_strict()}) & ({_mute()}) AS mute,
  s.ever - (s.ever & ({_allowed()})) AS foreign_fields,
  ({_demanded()}) - (({_demanded()}) & s.always) AS wanting
FROM shapes s
JOIN runs r ON r.run = s.run AND r.history IS NULL
"""

#: Answers to sends. In one run either all answers state the offset or none does, except answers to delayed
#: messages. An answer to a retried message or batch may not state its node and position. A batch is in one
#: place, a queue or the log.
HALF_ANSWERED = """
SELECT o.run, count(*) AS n, count(o.qoff) AS qoff,
  count(*) FILTER (WHERE (o.lidx IS NULL) <> (o.term IS NULL)
    OR (o.f = 'send' OR o.qoff IS NOT NULL) AND (o.lidx IS NULL) <> (o.node IS NULL)
    OR o.f = 'send_batch' AND o.lidx IS NULL AND o.qoff IS NULL) AS torn
FROM ops o JOIN runs r ON r.run = o.run AND r.history IS NULL
WHERE o.f IN ('send', 'send_batch') AND o.outcome = 'ok' AND coalesce(o.delay_ms, 0) = 0 GROUP BY o.run, o.f
"""


def names_in(bits: str) -> str:
    """Return SQL for the names of the fields whose bits are set in this column."""
    return " || ".join(
        f"CASE WHEN ({bits} & {bit}) <> 0 THEN ' {name}' ELSE '' END" for name, bit in _BITS.items()
    )
