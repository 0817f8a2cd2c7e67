"""What the end of an operation lets us conclude: the one place that decides between fail and info.

`fail` is said only of what certainly did not happen. The tables name every code that says so, by number and
not by the classes of the clients, so that a mistake in those does not hide itself. The tables of the others,
which are `info`, are there so that nobody adds a code without saying what it is.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_adapter.errors import BrokerError, Status
from chaos.trace.schema import READS, SENDS, OpType
from dledger.errors import Code, DLedgerError


class ClientError(Exception):
    """What a client raised. `kind`: the class, as the client names it; `code`: RocketMQ's status code, 0 if
    there is none."""

    def __init__(self, kind: str, code: int, text: str) -> None:
        self.kind = kind
        self.code = code
        super().__init__(f"{kind}: {text}")


class Verdict(NamedTuple):
    outcome: OpType  # FAIL or INFO
    #: Number and name, of the log (200 and up), of the broker (700 and up), or of RocketMQ 5 (40000 and up)
    #: and the exception of its client; "" for other errors.
    code: str
    text: str


#: Operations that change nothing: when they fail, nothing has happened.
READ_ONLY = frozenset({*READS, "max_off", "min_off", "fetch_off", "lookup", "route", "assign", "seek"})

#: Operations that clients repeat automatically until somebody answers for certain: what was refused in the
#: end may have happened in an attempt before. Or happens later: the broker asks how a transaction ends.
REPEATED = frozenset({"commit_off", "reset_off", "admin", "txn_commit", "txn_rollback"})

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

#: Answers of the log after which an append may be there, or that no append gets.
LOG_INFOS = frozenset(
    {
        Code.UNKNOWN,
        Code.TIMEOUT,
        Code.METADATA_ERROR,
        Code.NETWORK_ERROR,
        Code.UNSUPPORTED,
        Code.EXPIRED_TERM,
        Code.NOT_FOLLOWER,
        Code.INCONSISTENT_STATE,
        Code.INCONSISTENT_TERM,
        Code.INCONSISTENT_INDEX,
        Code.INCONSISTENT_LEADER,
        Code.INDEX_OUT_OF_RANGE,
        Code.REPEATED_REQUEST,
        Code.REPEATED_PUSH,
        Code.DISK_ERROR,
        Code.TERM_NOT_READY,
        Code.FALL_BEHIND_TOO_MUCH,
        Code.TAKE_LEADERSHIP_FAILED,
        Code.INDEX_LESS_THAN_LOCAL_BEGIN,
        Code.PUSH_REQUEST_IS_FULL,
        Code.NEWER_INSTALL_SNAPSHOT_REQUEST_EXIST,
        Code.INTERNAL_ERROR,
        Code.TERM_CHANGED,
        Code.WAIT_QUORUM_ACK_TIMEOUT,
        Code.ILLEGAL_MEMBER_STATE,
        Code.LOAD_SNAPSHOT_ERROR,
        Code.INSTALL_SNAPSHOT_ERROR,
        Code.SESSION_GAP,
        Code.SESSION_EXPIRED,
        Code.SESSION_CONFLICT,
        Code.SESSION_WINDOW_FULL,
        Code.TOO_MANY_WAITING_READS,
        Code.READ_NOT_CONFIRMED,
        Code.CONFIG_INVALID,
        Code.NOT_INITIALIZED,
        Code.ALREADY_INITIALIZED,
        Code.DIRECTORY_LOCKED,
        Code.FOREIGN_DIRECTORY,
        Code.PORT_IN_USE,
        Code.DATA_DAMAGED,
        Code.FSYNC_FAILED,
        Code.STATE_DAMAGED,
        Code.MEMBERS_DIFFER,
        Code.TERM_REFUSED,
        Code.SECRET_REFUSED,
    }
)
#: The same of the broker, with messages.
BROKER_INFOS = frozenset(
    {
        Status.STORE_UNREADABLE,
        Status.STORE_DAMAGED,
        Status.STORE_TABLE_DAMAGED,
        Status.STORE_UNSUPPORTED,
        Status.QUEUE_NOT_NEW,
        Status.TAKEOVER_BLOCKED,
        Status.LOG_FAILED,
        Status.HA_REPORT_REFUSED,
        Status.HA_HANDSHAKE_MISSING,
        Status.HA_NOT_PROVEN,
        Status.HA_IDENTITY,
        Status.HA_DIVERGED,
        Status.HA_GAP,
        Status.HA_TRANSFER_REFUSED,
        Status.LOG_OFFSET,
        Status.FLUSH_DISK_TIMEOUT,
        Status.FLUSH_SLAVE_TIMEOUT,
        Status.SLAVE_NOT_AVAILABLE,
        Status.ROLE_CHANGE_BLOCKED,
        Status.IMPORT_DIFFERS,
        Status.MASTER_DIFFERS,
        Status.HANDLE_INVALID,
        Status.TRANSACTION_UNKNOWN,
        Status.DELAYED_UNKNOWN,
        Status.OUTCOME_UNKNOWN,
        Status.TOPIC_NOT_READABLE,
        Status.MESSAGE_ID_INVALID,
        Status.OFFSET_BELOW_MINIMUM,
        Status.OFFSET_ABOVE_MAXIMUM,
        Status.MESSAGE_NOT_FOUND,
        Status.TOO_MANY_HELD_PULLS,
        Status.NOT_CONFIRMED,
        Status.BEING_REPAIRED,
        Status.GROUP_NOT_ENABLED,
        Status.RECORD_TRUNCATED,
        Status.RECORD_MAGIC,
        Status.RECORD_LENGTHS,
        Status.RECORD_BODY_CRC,
        Status.RECORD_TEXT,
        Status.RECORD_FIELD,
        Status.UNIT_DAMAGED,
        Status.INDEX_DAMAGED,
        Status.GROUP_UNKNOWN,
        Status.GENERATION_STALE,
        Status.GENERATION_UNKNOWN,
        Status.GROUP_HAS_MEMBERS,
        Status.NOT_A_MEMBER,
        Status.OFFSET_OUT_OF_RANGE,
        Status.GROUP_NAME_INVALID,
        Status.MEMBER_ID_INVALID,
        Status.TOO_MANY_TOPICS,
        Status.TOO_MANY_GROUPS,
        Status.TOO_MANY_MEMBERS,
        Status.TOO_MANY_SUBSCRIPTIONS,
        Status.TOO_MANY_OFFSETS,
        Status.TOO_MANY_PROPOSALS,
        Status.REBALANCING,
        Status.COMMAND_TOO_LARGE,
        Status.COMMAND_DAMAGED,
        Status.METADATA_DAMAGED,
        Status.NAMESRV_BUSY,
        Status.NAMESRV_LIMIT,
        Status.NAMESRV_STALE_EPOCH,
        Status.NAMESRV_STALE_TERM,
        Status.NAMESRV_CONFLICT,
        Status.NAMESRV_INVALID,
        Status.NAMESRV_BROKER_UNKNOWN,
        Status.NAMESRV_CONFIG_UNKNOWN,
        Status.NAMESRV_CONFIG_LIMIT,
        Status.NAMESRV_CONFIG_NOT_STORED,
        Status.NAMESRV_CONFIG_DAMAGED,
        Status.NAMESRV_UNREACHABLE,
        Status.QUEUE_ORDER,
        Status.IMAGE_DAMAGED,
        Status.CHANGE_NOT_ALLOWED,
        Status.NAMESRV_TERM_REFUSED,
        Status.NAMESRV_NOT_ALLOWED,
        Status.FRAME_INVALID,
        Status.EXECUTOR_FULL,
        Status.QUEUE_WAIT_TOO_LONG,
        Status.CODE_UNKNOWN,
        Status.ANSWER_MISSING,
        Status.REQUEST_FAILED,
        Status.NOT_AUTHENTICATED,
        Status.NOT_PERMITTED,
        Status.CLIENT_NOT_CONNECTED,
    }
)

#: Status codes of RocketMQ 5 for a send that was refused for what the message is: so was every attempt that
#: the client has made automatically before. Of all other codes an earlier attempt may have been stored.
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
#: The same of what the client calls once: HA_NOT_AVAILABLE says that nothing was done. Not
#: INVALID_RECEIPT_HANDLE: the broker repeats an ack automatically, and the first one may have counted.
CLIENT_FAILS = frozenset({50002})
#: The same of a recall, which the broker does not repeat either: there was nothing left to be taken back.
CLIENT_RECALL_FAILS = frozenset({*CLIENT_FAILS, 40400})
#: What the client raises about its own input, before it sends anything.
CLIENT_REFUSALS = frozenset({"IllegalArgumentException"})

_MAX_TEXT = 200


def judge(error: BaseException, f: str) -> Verdict:
    """The verdict on an operation `f` that ended with `error`. Cancelled ones and whatever nobody thought of
    are info, unless `f` changes nothing."""
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
    return Verdict(outcome, code, f"{type(error).__name__}: {error}"[:_MAX_TEXT])


def _client_fails(f: str) -> frozenset[int]:
    if f in SENDS or f == "txn_begin":
        return CLIENT_SEND_FAILS
    return CLIENT_RECALL_FAILS if f == "recall" else CLIENT_FAILS
