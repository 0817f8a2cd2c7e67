"""What the end of an operation lets us conclude: the one place that decides between fail and info.

`fail` is said only of what certainly did not happen. The tables name every code that says so, by number and
not by the classes of the clients, so that a mistake in those does not hide itself; all others are `info`.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_adapter.errors import BrokerError, Status
from chaos.trace.schema import READS, OpType
from dledger.errors import Code, DLedgerError


class Verdict(NamedTuple):
    outcome: OpType  # FAIL or INFO
    code: str  # number and name, of the log (200 and up) or of the broker (700 and up); "" for other errors
    text: str


#: Operations that change nothing: when they fail, nothing has happened.
READ_ONLY = frozenset({*READS, "max_off", "min_off", "fetch_off", "lookup", "route", "assign", "seek"})

#: Answers of the log to an append that was not stored and will not be.
LOG_FAILS = frozenset(
    {
        Code.UNKNOWN_GROUP,
        Code.UNKNOWN_MEMBER,
        Code.UNEXPECTED_MEMBER,
        Code.NOT_LEADER,
        Code.LEADER_NOT_READY,
        Code.LEADER_TRANSFERRING,
        Code.LEADER_PENDING_FULL,
        Code.UNEXPECTED_ARGUMENT,
        Code.REQUEST_WITH_EMPTY_BODYS,
        Code.DISK_FULL,
        Code.BODY_TOO_LARGE,
        Code.BATCH_TOO_LARGE,
        Code.TOO_MANY_CONNECTIONS,
        Code.UNKNOWN_CLUSTER,
        Code.UNSUPPORTED_VERSION,
        Code.APPENDS_BY_OWNER_ONLY,
        Code.ROLE_EPOCH_CHANGED,
        Code.CERTIFICATE_REFUSED,
        Code.PLAINTEXT_REFUSED,
    }
)
#: Answers of the broker to a message that was not stored and will not be.
BROKER_FAILS = frozenset(
    {
        Status.NOT_MASTER,
        Status.SHUTTING_DOWN,
        Status.TOO_MANY_PENDING_BYTES,
        Status.DISK_FULL,
        Status.TOO_MANY_CALLS,
        Status.NOT_CONNECTED,
        Status.TOPIC_UNKNOWN,
        Status.TOPIC_NOT_WRITABLE,
        Status.TOPIC_NAME_INVALID,
        Status.TOPIC_NAME_TOO_LONG,
        Status.PROPERTIES_INVALID,
        Status.PROPERTIES_TOO_LONG,
        Status.BODY_TOO_LARGE,
        Status.FIELD_OUT_OF_RANGE,
        Status.REQUEST_MALFORMED,
        Status.QUEUE_UNKNOWN,
        Status.TOPIC_RESERVED,
    }
)

_MAX_TEXT = 200


def judge(error: BaseException, f: str) -> Verdict:
    """The verdict on an operation `f` that ended with `error`. Cancelled ones and whatever nobody thought of
    are info, unless `f` changes nothing."""
    code, certain = "", False
    if isinstance(error, DLedgerError):
        code, certain = f"{error.code} {error.code.name}", error.code in LOG_FAILS
    elif isinstance(error, BrokerError):
        code, certain = f"{error.status} {error.status.name}", error.status in BROKER_FAILS
    outcome = OpType.FAIL if certain or f in READ_ONLY else OpType.INFO
    return Verdict(outcome, code, f"{type(error).__name__}: {error}"[:_MAX_TEXT])
