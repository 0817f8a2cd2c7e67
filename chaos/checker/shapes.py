"""Does each line of a trace say all that its like say, and nothing that its like never say?

An optional field is in all lines of its kind in a run, or in none. A line that says less than its like
cannot be wrong, and one that says more says what nobody else can confirm.
"""

from __future__ import annotations

from chaos.trace.schema import DEMANDED, ENVELOPE, EVENTS, REQUESTS, Ev, OpType

#: Fields that a line may have or not, whatever its like say: ev, what, operation or "", names. `term_vote`,
#: `vote_synced`, `recover`: without a vote, none was given in that term, and without `wiped` nothing is
#: excused, nor anything let go without `purge_to`. Of an `attempt`, the number of a message if it is about
#: one. Of a send, the delay, and the place that what is delayed has not yet. Of a receive, how long it may
#: keep what it brings. Of answers, what only some of those who ask want to know.
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
    (Ev.OP, OpType.OK, "send", "lidx qoff node term ledger"),  # `HALF_ANSWERED` says more
    (Ev.OP, OpType.OK, "route", "term"),
    (Ev.OP, OpType.OK, "get", "max_off"),
    (Ev.OP, OpType.OK, "max_off", "min_off"),
    (Ev.OP, OpType.OK, "min_off", "max_off"),
    (Ev.OP, OpType.OK, "fetch_off", "epoch"),
)
#: What stands in completions that tell of a failure depends on the failure.
_ALL_MAY_VARY = ((Ev.OP, OpType.FAIL), (Ev.OP, OpType.INFO), (Ev.FAULT, "begin"), (Ev.FAULT, "end"))
#: They are for people, or say how often something was tried.
_FREE = frozenset(("text", "error", "code", "evidence", "params", "git", "config", "aim"))

_NAMES = sorted(
    {name for event in EVENTS.values() for name in event.optional} - _FREE - frozenset(ENVELOPE) - {"op"}
)
_BITS = {name: 1 << bit for bit, name in enumerate(_NAMES)}
assert len(_NAMES) < 63  # of a BIGINT that is not negative


def _column(name: str) -> str:
    return {"group": "grp"}.get(name, name)


#: SQL for the fields that a line has, a bit for each. Says nothing of their values.
THERE = " + ".join(
    f"CASE WHEN {_column(name)} IS NULL THEN 0 ELSE CAST({bit} AS BIGINT) END" for name, bit in _BITS.items()
)

#: Lines of one kind: those of one group, of entries with messages or without, of one operation.
SHAPES = f"""
SELECT run, ev, what, f, grp, of, count(*) AS n, bit_and(there) AS always, bit_or(there) AS ever FROM (
  SELECT run, ev, f, CASE WHEN ev = 'op' THEN type ELSE e END AS what,
    CASE WHEN ev IN ('op', 'dlv', 'done', 'member') THEN grp END AS grp,
    CASE WHEN ev IN ('dump', 'left') AND internal THEN 'internal' WHEN e = 'dumped' THEN ledger
      WHEN e = 'log' THEN ledger END AS of,
    {THERE} AS there
  FROM events WHERE ev NOT IN ('corrupt', 'unknown'))
GROUP BY run, ev, what, f, grp, of
"""


def _mute() -> str:
    """SQL for the bits of fields without which a line is passed over, as if what it is about were not there:
    that may look like guilt, not only like innocence."""
    kinds = (
        ("ev = 'dump'", "ledger chain"),
        ("ev = 'left' AND of IS NULL", "mid topic q qoff"),
        ("ev = 'cq'", "size tag_hash"),
        ("ev = 'op' AND what = 'invoke' AND f <> 'admin'", "ledger topic q mid digest from_off off"),
        ("ev = 'op' AND what = 'ok' AND f IN ('append', 'send_batch')", "lidx term"),
    )
    cases = [f"WHEN {kind} THEN {sum(_BITS[name] for name in names.split())}" for kind, names in kinds]
    return f"CASE {' '.join(cases)} ELSE 0 END"


def _strict() -> str:
    """SQL for the bits of fields that all lines of a kind have, or none."""
    every = sum(_BITS.values())
    cases = [f"WHEN ev = '{ev}' AND what = '{what}' THEN 0" for ev, what in _ALL_MAY_VARY]
    for ev, what, f, names in _VARYING:
        about = f"ev = '{ev}'" + (f" AND what = '{what}'" if what else "") + (f" AND f = '{f}'" if f else "")
        cases.append(f"WHEN {about} THEN {every - sum(_BITS[name] for name in names.split())}")
    return f"CASE {' '.join(cases)} ELSE {every} END"


def _allowed() -> str:
    """SQL for the bits of fields that a line of an operation may have."""
    cases = []
    for f, requests in REQUESTS.items():
        for what, names in zip((OpType.INVOKE, OpType.OK), requests, strict=True):
            bits = sum(_BITS[name] for name in names & _BITS.keys())
            cases.append(f"WHEN ev = 'op' AND what = '{what}' AND f = '{f}' THEN {bits}")
    # What did not end well answers nothing.
    cases.append("WHEN ev = 'op' AND what IN ('fail', 'info') THEN 0")
    return f"CASE {' '.join(cases)} ELSE {sum(_BITS.values())} END"


def _demanded() -> str:
    """SQL for the bits of fields that every line of an operation, and of an end of a fault, must have."""
    cases = [f"WHEN ev = 'fault' AND what = 'end' THEN {_BITS['targets']}"]
    for f, demands in DEMANDED.items():
        for what, names in zip((OpType.INVOKE, OpType.OK), demands, strict=True):
            bits = sum(_BITS[name] for name in names)
            cases.append(f"WHEN ev = 'op' AND what = '{what}' AND f = '{f}' THEN {bits}")
    return f"CASE {' '.join(cases)} ELSE 0 END"


#: Kinds of lines, and the fields that some of them have and others have not. Histories of other systems say
#: what their own writers said.
ODD_SHAPES = f"""
SELECT s.run, s.ev, s.what, s.f, s.n, (s.ever - s.always) & ({_strict()}) AS sometimes,
  (s.ever - s.always) & ({_strict()}) & ({_mute()}) AS mute,
  s.ever - (s.ever & ({_allowed()})) AS foreign_fields,
  ({_demanded()}) - (({_demanded()}) & s.always) AS wanting
FROM shapes s
JOIN runs r ON r.run = s.run AND r.history IS NULL
"""

#: Answers to sends, of which those of one run say the offset or none does, but for messages that are delayed.
#: Of a message that was sent again the answer may not say which node has stored it where.
HALF_ANSWERED = """
SELECT o.run, count(*) AS n, count(o.qoff) AS qoff,
  count(*) FILTER (WHERE (o.lidx IS NULL) <> (o.node IS NULL) OR (o.lidx IS NULL) <> (o.term IS NULL)) AS torn
FROM ops o JOIN runs r ON r.run = o.run AND r.history IS NULL
WHERE o.f = 'send' AND o.outcome = 'ok' AND coalesce(o.delay_ms, 0) = 0 GROUP BY o.run
"""


def names_in(bits: str) -> str:
    """SQL for the names of the fields whose bits stand in this column."""
    return " || ".join(
        f"CASE WHEN ({bits} & {bit}) <> 0 THEN ' {name}' ELSE '' END" for name, bit in _BITS.items()
    )
