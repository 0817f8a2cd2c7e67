"""The numbered errors of the replicated log, and what each lets a caller conclude.

Numbers 200-508 keep DLedger's meaning (DLedgerResponseCode). Numbers from 600 on are ours.

The tree says what an append's caller may conclude, which matters more than the reason::

    DLedgerError
    +-- Refused             nothing was written and nothing will be: safe to try again
    |   +-- NotLeader       ... on the node named by `leader_id` / `leader_address`
    |   +-- Overloaded      ... later: a limit was reached, nothing is wrong
    +-- Indeterminate       the entry may or may not be in the log, now or later
    +-- InvalidRequest      the request itself is wrong: trying again cannot help
    +-- ReadFailed          a read found nothing to return, or could not be confirmed
    +-- StorageError        the node's own files: damage, lock, identity, disk
    +-- ConfigError         a configuration key or value
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Response codes on the wire. 200-508 as in DLedger; 600 and above are this project's."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    NEWER_INSTALL_SNAPSHOT_REQUEST_EXIST = 422
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506
    LOAD_SNAPSHOT_ERROR = 507
    INSTALL_SNAPSHOT_ERROR = 508
    # -- ours: sessions
    SESSION_GAP = 600
    SESSION_EXPIRED = 601
    SESSION_CONFLICT = 602
    SESSION_WINDOW_FULL = 603
    # -- ours: limits and handshake
    BODY_TOO_LARGE = 610
    BATCH_TOO_LARGE = 611
    TOO_MANY_CONNECTIONS = 612
    TOO_MANY_WAITING_READS = 613
    UNKNOWN_CLUSTER = 620
    UNSUPPORTED_VERSION = 621
    READ_NOT_CONFIRMED = 622
    MEMBERS_DIFFER = 623
    TERM_REFUSED = 624
    SECRET_REFUSED = 625
    # -- ours: a node's own directory and configuration
    CONFIG_INVALID = 630
    NOT_INITIALIZED = 631
    ALREADY_INITIALIZED = 632
    DIRECTORY_LOCKED = 633
    FOREIGN_DIRECTORY = 634
    PORT_IN_USE = 635
    CERTIFICATE_REFUSED = 636
    PLAINTEXT_REFUSED = 637
    DATA_DAMAGED = 640
    FSYNC_FAILED = 641
    STATE_DAMAGED = 642
    # -- ours: programs that own a node
    APPENDS_BY_OWNER_ONLY = 650
    ROLE_EPOCH_CHANGED = 651


class NumberedError(Exception):
    """An error that people can look up: of this package, or of a program that owns a node."""

    number: int


class DLedgerError(NumberedError):
    """Base of every error of this package. `code` is the number on the wire, `str()` is for people."""

    default_code = Code.INTERNAL_ERROR

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        leader_id: str | None = None,
        leader_address: str | None = None,
    ) -> None:
        self.code = self.default_code if code is None else code
        self.number = int(self.code)
        self.message = message
        self.leader_id = leader_id
        self.leader_address = leader_address
        super().__init__(f"{int(self.code)} {self.code.name}: {message}")


class Refused(DLedgerError):
    """Nothing was written and nothing will be: a definite failure, safe to try again."""


class NotLeader(Refused):
    """The node does not lead; `leader_id` and `leader_address` name the one it believes leads, if any."""

    default_code = Code.NOT_LEADER


class Overloaded(Refused):
    """A limit was reached (pending bytes, connections, a full disk): try again later."""

    default_code = Code.LEADER_PENDING_FULL


class Indeterminate(DLedgerError):
    """The entry may or may not be in the log, now or later. Never counted as failed, never as lost."""

    default_code = Code.WAIT_QUORUM_ACK_TIMEOUT


class SessionExpired(Indeterminate):
    """The session is unknown to the log. Whether its unanswered appends were stored cannot be told."""

    default_code = Code.SESSION_EXPIRED


class InvalidRequest(DLedgerError):
    """The request itself is wrong; sending it again cannot help."""

    default_code = Code.UNEXPECTED_ARGUMENT


class ReadFailed(DLedgerError):
    """A read that found nothing in range, or whose leadership could not be confirmed."""

    default_code = Code.INDEX_OUT_OF_RANGE


class StorageError(DLedgerError):
    """The node's own files: damage, lock, identity, a failing or full disk."""

    default_code = Code.DISK_ERROR


class ConfigError(DLedgerError):
    """A configuration key or value; the message names it and says what is valid."""

    default_code = Code.CONFIG_INVALID


_CLASS_OF_CODE: dict[Code, type[DLedgerError]] = {
    Code.NOT_LEADER: NotLeader,
    Code.INCONSISTENT_LEADER: NotLeader,
    Code.LEADER_NOT_READY: NotLeader,
    Code.LEADER_TRANSFERRING: NotLeader,
    Code.ROLE_EPOCH_CHANGED: NotLeader,
    Code.LEADER_PENDING_FULL: Overloaded,
    Code.TOO_MANY_CONNECTIONS: Overloaded,
    Code.TOO_MANY_WAITING_READS: Overloaded,
    Code.DISK_FULL: Overloaded,
    Code.SESSION_GAP: Refused,
    Code.SESSION_WINDOW_FULL: Refused,
    Code.NOT_FOLLOWER: Refused,
    Code.INCONSISTENT_STATE: Refused,
    Code.FALL_BEHIND_TOO_MUCH: Refused,
    Code.ILLEGAL_MEMBER_STATE: Refused,
    Code.TAKE_LEADERSHIP_FAILED: Refused,
    Code.SESSION_EXPIRED: SessionExpired,
    Code.TIMEOUT: Indeterminate,
    Code.NETWORK_ERROR: Indeterminate,
    Code.INTERNAL_ERROR: Indeterminate,
    Code.EXPIRED_TERM: Indeterminate,
    Code.TERM_CHANGED: Indeterminate,
    Code.WAIT_QUORUM_ACK_TIMEOUT: Indeterminate,
    Code.UNKNOWN: Indeterminate,
    Code.INDEX_OUT_OF_RANGE: ReadFailed,
    Code.INDEX_LESS_THAN_LOCAL_BEGIN: ReadFailed,
    Code.READ_NOT_CONFIRMED: ReadFailed,
    Code.DISK_ERROR: StorageError,
    Code.DATA_DAMAGED: StorageError,
    Code.FSYNC_FAILED: StorageError,
    Code.STATE_DAMAGED: StorageError,
    Code.NOT_INITIALIZED: StorageError,
    Code.ALREADY_INITIALIZED: StorageError,
    Code.DIRECTORY_LOCKED: StorageError,
    Code.FOREIGN_DIRECTORY: StorageError,
    Code.CONFIG_INVALID: ConfigError,
    Code.MEMBERS_DIFFER: ConfigError,
    Code.PORT_IN_USE: ConfigError,
    Code.PLAINTEXT_REFUSED: ConfigError,
}


def error_for(
    code: int, message: str, *, leader_id: str | None = None, leader_address: str | None = None
) -> DLedgerError:
    """Build the exception for a code off the wire. Numbers of a newer peer become Indeterminate/UNKNOWN."""
    try:
        known = Code(code)
    except ValueError:
        return Indeterminate(f"unknown code {code}: {message}", code=Code.UNKNOWN)
    cls = _CLASS_OF_CODE.get(known, InvalidRequest)
    return cls(message, code=known, leader_id=leader_id, leader_address=leader_address)
