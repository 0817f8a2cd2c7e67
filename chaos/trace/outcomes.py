"""Classification of failed operations as fail or info.

Only an operation that definitely had no effect is `fail`. The tables list the codes with that meaning. They
list codes instead of exception classes, because a client may raise a wrong class. All other codes are `info`.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_adapter.errors import BrokerError, Status
from chaos.trace.schema import READS, SENDS, OpType
from dledger.errors import Code, DLedgerError


class ClientError(Exception):
    """Error of a released client. `kind`: the name of its class; `code`: RocketMQ's status code, or 0."""

    def __init__(self, kind: str, code: int, text: str) -> None:
        self.kind = kind
        self.code = code
        super().__init__(f"{kind}: {text}")


class Classification(NamedTuple):
    outcome: OpType  # FAIL or INFO
    #: Number and name: of the log (200 and up), the broker (700 and up), or RocketMQ 5 (40000 and up) with
    #: the exception of its client; "" for other errors.
    code: str
    text: str


#: Operations without an effect, which can always fail.
READ_ONLY = frozenset({*READS, "max_off", "min_off", "fetch_off", "lookup", "route", "assign", "seek"})

#: Operations that clients retry until they get a definite answer: an earlier attempt may have taken effect. A
#: transaction may also end later, because the broker checks its state.
REPEATED = frozenset({"commit_off", "reset_off", "admin", "txn_commit", "txn_rollback"})

#: Codes of the log for an append that was not stored and will not be.
LOG_FAILS = frozenset(
    {
        Code.UNKNOWN_GROUP,
        Code.UNKNOWN_MEMBER,
        Code.UNEXPECTED_MEMBER,
        Code.NOT_LEADER,
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
#: Codes of the broker for a message that was not stored and will not be.
BROKER_FAILS = frozenset(
    {
        Status.NOT_MASTER,
        Status.SHUTTING_DOWN,
        Status.TOO_MANY_PENDING_BYTES,
        Status.DISK_FULL,
        Status.TOO_MANY_CALLS,
        Status.NOT_CONNECTED,
        Status.OS_PAGE_CACHE_BUSY,
        Status.TOPIC_UNKNOWN,
        Status.TOPIC_CHANGED,
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
        Status.TOO_MANY_HELD_MESSAGES,
        Status.DELAY_TOO_LONG,
        Status.IMPORT_OUT_OF_ORDER,
    }
)

#: Status codes of RocketMQ 5 for a send refused because of the message itself, so that earlier automatic
#: attempts were refused too. With all other codes, an earlier attempt may have been stored.
CLIENT_SEND_FAILS = frozenset(
    {
        40002,  # ILLEGAL_TOPIC
        40004,  # ILLEGAL_MESSAGE_TAG
        40005,  # ILLEGAL_MESSAGE_KEY
        40006,  # ILLEGAL_MESSAGE_GROUP
        40007,  # ILLEGAL_MESSAGE_PROPERTY_KEY
        40009,  # ILLEGAL_MESSAGE_ID
        40012,  # ILLEGAL_DELIVERY_TIME
        41301,  # MESSAGE_BODY_TOO_LARGE
        41302,  # MESSAGE_BODY_EMPTY
        43101,  # MESSAGE_PROPERTIES_TOO_LARGE
    }
)
#: Status codes for requests that clients send once: HA_NOT_AVAILABLE means that the request had no effect.
#: Not INVALID_RECEIPT_HANDLE: the broker retries an ack automatically, and an earlier attempt may have
#: counted.
CLIENT_FAILS = frozenset({50002})
#: Status codes for a recall, which clients also send once: the message was no longer pending.
CLIENT_RECALL_FAILS = frozenset({*CLIENT_FAILS, 40400})
#: Exceptions about the arguments, which the client raises before it sends anything.
CLIENT_REFUSALS = frozenset({"IllegalArgumentException"})

_MAX_TEXT = 200


def classify(error: BaseException, f: str) -> Classification:
    """Classify an operation `f` that ended with `error`. Cancelled operations and unexpected errors are info,
    unless operations of kind `f` have no effects."""
    code, certain = "", False
    if isinstance(error, DLedgerError):
        code, certain = f"{error.code} {error.code.name}", error.code in LOG_FAILS
    elif isinstance(error, BrokerError):
        code, certain = f"{error.status} {error.status.name}", error.status in BROKER_FAILS
    elif isinstance(error, ClientError):
        certain = error.code in _client_fails(f) or error.kind in CLIENT_REFUSALS
        code = f"{error.code} {error.kind}"
    is_fail = f in READ_ONLY or (certain and f not in REPEATED)
    outcome = OpType.FAIL if is_fail else OpType.INFO
    return Classification(outcome, code, f"{type(error).__name__}: {error}"[:_MAX_TEXT])


def _client_fails(f: str) -> frozenset[int]:
    if f in SENDS or f == "txn_begin":
        return CLIENT_SEND_FAILS
    return CLIENT_RECALL_FAILS if f == "recall" else CLIENT_FAILS
