"""What an error answer to an append means, with and without a session."""

from __future__ import annotations

from enum import Enum, auto

from dledger.errors import Code, DLedgerError, InvalidRequest, Refused, SessionExpired

#: Codes of `Refused` that say nothing against the node as the leader: it may take the batch a little later.
_SAME_LEADER = frozenset(
    {
        Code.LEADER_PENDING_FULL,
        Code.TOO_MANY_CONNECTIONS,
        Code.DISK_FULL,
        Code.SESSION_GAP,
        Code.SESSION_WINDOW_FULL,
    }
)


class Verdict(Enum):
    """What to do with a batch that was answered with an error."""

    RETRY = auto()  # not stored: send it again, once no other batch of this stream can overtake it
    RESEND = auto()  # in a session: leave this stream, send all unanswered batches again, in order
    REJECT = auto()  # not stored, and will not be as it is
    UNDECIDED = auto()  # without a session: it cannot be told whether it was stored
    END = auto()  # the session takes no more appends


def judge(error: DLedgerError, *, in_session: bool) -> Verdict:
    """The verdict on one batch.

    In a session, sending again is always safe, so everything that is not about the batch or the session
    itself is RESEND. Without one, only a definite failure may be sent again.
    """
    if in_session:
        if isinstance(error, SessionExpired) or error.code == Code.SESSION_CONFLICT:
            return Verdict.END
        return Verdict.REJECT if isinstance(error, InvalidRequest) else Verdict.RESEND
    if isinstance(error, Refused):
        return Verdict.RETRY
    return Verdict.REJECT if isinstance(error, InvalidRequest) else Verdict.UNDECIDED


def is_against_the_leader(error: DLedgerError) -> bool:
    """Whether another node should be looked for: all errors but "later, please" and "not like this"."""
    return error.code not in _SAME_LEADER and not isinstance(error, InvalidRequest)
