"""Changes of a trace that may be judged valid: those that break no promise, each with the reason, and,
apart from them, those that the checker is known not to see.

Each class was asked whether a real defect of the product could look like it. Where it could there is a check,
or the class is among `OPEN`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.checker.generated.changes import Change, Way

_FIELDS = (Way.ALTER, Way.OMIT, Way.ADD)
_PLACES = (Way.SWAP, Way.DELAY)
_MOVES = (Way.MOVE_NODE, Way.MOVE_LIFE)
_FOR_PEOPLE = frozenset(("host", "wall", "evidence", "params", "text", "config", "git", "seed", "error"))
#: What nodes say of themselves.
_REPORTS = ("raft/", "store/", "role/")
#: Reports that only repeat what the node's other lines, or those of others, show.
_SPARE = frozenset(
    (
        *("raft/candidate", "raft/follower", "raft/term_vote", "raft/commit", "raft/apply", "raft/accept"),
        *("raft/ack", "store/flush", "store/reput"),
        *("role/demoted", "role/slave", "role/refused", "role/role_wait"),
    )
)
#: Kinds with a line or two in a run: no other line says what all of them have.
_FEW = (
    "meta/",
    "fault/",
    "member/",
    "attempt",
    *(f"op/{what}/{f}" for what in ("invoke", "ok") for f in ("drain", "max_off", "reset_off", "route")),
)
_QUESTIONS = frozenset(["lookup", "max_off", "min_off", "route", "fetch_off", "reset_off", "commit_off"])


@dataclass(frozen=True, slots=True)
class Harmless:
    reason: str
    applies: Callable[[Change], bool]


HARMLESS = (
    Harmless(
        "The field is for people: who wrote it where, at what time of day, and why. No promise is about it.",
        lambda c: c.way in _FIELDS and (c.field in _FOR_PEOPLE or _is_code_of_a_refusal(c)),
    ),
    Harmless(
        "The time lies where the promises leave it open: a step may have happened a moment earlier or later.",
        lambda c: c.field == "mono" or c.way in _PLACES,
    ),
    Harmless(
        "The same report twice reports nothing else.",
        lambda c: (
            c.way is Way.REPEAT
            and c.kind.startswith((*_REPORTS, "disk/", "meta/", "fault/", "member/", "done"))
        ),
    ),
    Harmless(
        "The line is about the run or the nodes' files as a whole: it says the same whoever writes it.",
        lambda c: c.way is Way.MOVE_NODE and c.kind.startswith(("meta/", "fault/")),
    ),
    Harmless(
        "The node's other lines, or those of others, show it as well.",
        lambda c: c.way in (Way.DROP, *_MOVES) and c.kind in _SPARE,
    ),
    Harmless(
        "A line that only marks a moment for people: what it is about is told by others.",
        lambda c: c.way is Way.DROP and c.kind in ("meta/drain_begin", "meta/settled"),
    ),
    Harmless(
        "When a process had no processor, as the harness measured it: no defect of the product can look "
        "like it, and without a violation it excuses nothing.",
        lambda c: c.kind in ("meta/starved", "meta/scheduling"),
    ),
    Harmless(
        "Left out, it means the strictest: a log that is not lost, all that is promised, nothing excused.",
        lambda c: c.way is Way.OMIT and c.field in ("wiped", "flush_mode", "stale"),
    ),
    Harmless(
        "How often something was tried. A retry inside an operation excuses nothing.",
        lambda c: c.kind == "attempt" and c.field == "retry_no",
    ),
    Harmless(
        "What the plan asked for, or how far clocks may differ (a second at most): only the harness knows, "
        "and no defect of the product can look like it.",
        lambda c: c.way in _FIELDS and c.field in ("aim", "max_attempts", "clock_bound_ns"),
    ),
    Harmless(
        "Which server answered a read or a question: right is what it says, whoever it was.",
        lambda c: c.kind.startswith("op/ok/") and c.field in ("node", "term") and not _is_send(c),
    ),
    Harmless(
        "That a member left, crashed or failed at a message: it would have excused that the message came "
        "again, and nothing has to be excused.",
        lambda c: (
            c.way is Way.DROP
            and (
                c.kind in ("member/crash", "member/leave") or (c.kind == "done" and c.line["code"] == "retry")
            )
        ),
    ),
    Harmless(
        "The second time that a group was through with a message.",
        lambda c: c.way is Way.DROP and c.kind == "done",
    ),
    Harmless(
        "That a group is rewound: the line is about the group and its queue, whoever writes it, and it "
        "stands several times around each rewind. It excuses that the group goes back.",
        lambda c: c.kind == "member/reset" and c.way in (Way.MOVE_NODE, Way.DROP),
    ),
    Harmless(
        "What a client asked. It writes that before it sends the request, so no defect of the product can "
        "look like it; what was answered is right for both questions.",
        lambda c: (
            c.way in (Way.ALTER, Way.MOVE_QUEUE)
            and c.kind.startswith("op/invoke/")
            and (c.kind.split("/")[-1] in _QUESTIONS or c.field in ("from_off", "stale", "epoch", "delay_ms"))
        ),
    ),
    Harmless(
        "Which server is asked: right is what is answered, whoever it is.",
        lambda c: c.kind.startswith("op/invoke/") and c.field == "node",
    ),
    Harmless(
        "Who asks for an offset: the answer is about the group.",
        lambda c: c.kind == "op/invoke/fetch_off" and c.field == "consumer",
    ),
    Harmless(
        "For which group a reader of a log reads: a log has none, and readers write the line themselves.",
        lambda c: c.way is Way.ADD and (c.kind, c.field) == ("dlv", "group") and bool(c.line.get("ledger")),
    ),
    Harmless(
        "The number that tells two processes, or two lines of one read, apart: nothing else has it.",
        lambda c: c.way is not Way.ADD and (c.kind, c.field) in (("meta/writer_begin", "pid"), ("dlv", "i")),
    ),
)

#: What the checker is known not to see, as docs/checks/README.md says.
OPEN = (
    Harmless(
        "An optional field is left out of the one line of its kind in a run, or is in it only.",
        lambda c: c.way in (Way.OMIT, Way.ADD) and (c.kind.startswith(_FEW) or _varies(c)),
    ),
    Harmless(
        "A node's figure of itself that stays within what the others leave open.",
        lambda c: c.way in (Way.ALTER, *_MOVES) and c.kind.startswith((*_REPORTS, "disk/")),
    ),
    Harmless(
        "A node's report of an append, a load or a step to the role of master that nothing follows.",
        lambda c: c.way is Way.DROP and c.kind.startswith((*_REPORTS, "disk/")),
    ),
    Harmless(
        "What a client was answered to questions about groups, ends and routes, as far as the rest leaves "
        "it open.",
        lambda c: (
            c.way in (Way.ALTER, Way.MOVE_QUEUE)
            and c.kind.startswith(("op/ok/", "op/fail/", "op/info/"))
            and (c.kind.split("/")[-1] in _QUESTIONS or c.field in ("from_off", "stale", "epoch", "delay_ms"))
        ),
    ),
    Harmless(
        "The end of an operation whose client crashed later, and of which nobody knows how it ended: without "
        "the line nobody knows either.",
        lambda c: c.way is Way.DROP and c.kind.startswith("op/info/"),
    ),
    Harmless(
        "Tag and key of a transaction are compared with what its readers got: if nobody got it (it was "
        "rolled back), nothing depends on them.",
        lambda c: c.kind == "op/invoke/txn_begin" and c.field in ("tag", "key"),
    ),
    Harmless(
        "Members that join, leave, crash, rewind, and sends tried again: what nobody tells explains less, "
        "another offset of a rewind explains as much.",
        lambda c: (
            (c.kind.startswith("member/") and c.way in (Way.DROP, Way.ALTER, Way.MOVE_QUEUE))
            or (c.kind == "attempt" and c.way is Way.DROP)
        ),
    ),
)


def _is_send(change: Change) -> bool:
    return change.kind.split("/")[-1] in ("send", "append", "send_batch")


def _is_code_of_a_refusal(change: Change) -> bool:
    return change.field == "code" and change.kind.startswith(("op/", "role/refused"))


def _varies(change: Change) -> bool:
    """Each line of this kind has the field or not, whatever the others say (`chaos.checker.shapes`)."""
    return (
        change.kind.startswith(("op/fail", "op/info"))
        or (change.kind in ("raft/term_vote", "disk/vote_synced", "store/recover") and change.field == "vote")
        or (change.kind in ("op/invoke/send", "op/invoke/receive", "item"))
        or (change.kind in ("op/ok/get", "op/ok/min_off") and change.field == "max_off")
        or (change.kind == "op/ok/max_off" and change.field == "min_off")
        or change.field == "wiped"
    )


def reason(change: Change) -> str:
    """Why it is harmless; "" if it is not."""
    return next((one.reason for one in HARMLESS if one.applies(change)), "")


def open_reason(change: Change) -> str:
    """Which of those it is that the checker is known not to see; "" if none."""
    return next((one.reason for one in OPEN if one.applies(change)), "")
