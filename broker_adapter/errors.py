"""The broker's numbered errors: what a client of RocketMQ is told, and what exactly was the matter.

Two numbers belong to every error. `ResponseCode` is RocketMQ's: few, and the only ones its clients know; they
decide by it whether to try again. `Status` is this project's, one number for each reason, since a client that
reads 14 cannot tell a full disk from a broker that is not the master. Numbers of `dledger` end below 700.

The tree says what the caller may conclude, as that of `dledger.errors` does::

    BrokerError
    +-- PutRefused          nothing was stored and nothing will be: safe to try again
    |   +-- NotMaster       ... on the master, at `master_address` if that is known
    |   +-- Busy            ... later: a limit was reached, nothing is wrong
    +-- PutIndeterminate    the message may or may not be in the log, now or later
    +-- TopicRefused        the topic has to be created or opened first
    +-- GroupRefused        the group has to be created, or its member has to join (again) first
    +-- IllegalMessage      the message itself is wrong: trying again cannot help
    +-- ReadFailed          a read found nothing to return
    +-- StoredDataDamaged   stored bytes that cannot be what a broker has written
    +-- NameServerRefused   a NameServer did not do what it was asked; nothing has changed there
    |   +-- NameServerBusy  ... later: a limit was reached, nothing is wrong
    +-- NameServerUnavailable  no answer: what was asked for may or may not have been done
    +-- RemotingRefused     a request of the remoting protocol was not taken
    +-- HaRefused           one end of a connection between master and slave refuses the other
    +-- AnswerMissing       it was sent and no answer came: it may or may not have been done
    +-- RemotingFailed      it was answered with an error that has no number here
"""

from __future__ import annotations

from enum import IntEnum

from dledger.platform import NumberedError


class ResponseCode(IntEnum):
    """RocketMQ's response codes, as far as this broker gives them (reference: RocketMQ's ResponseCode).

    10, 11 and 12 (flush and slave time-outs) are for the classic log alone: producers count them as sent, so
    none of them may stand for a message whose fate is unknown. It is stored, with less than was promised.
    """

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    NO_MESSAGE = 208
    POLLING_TIMEOUT = 210


class Status(IntEnum):
    """Why, one number for each reason. `RESPONSE_CODE` gives what RocketMQ's clients are told."""

    # -- nothing was stored
    NOT_MASTER = 700
    SHUTTING_DOWN = 701
    TOO_MANY_PENDING_BYTES = 702
    DISK_FULL = 703
    TOO_MANY_CALLS = 704
    NOT_CONNECTED = 705  # given by clients: the broker was not reached
    TOO_MANY_HELD_MESSAGES = 706
    OS_PAGE_CACHE_BUSY = 707
    # -- nobody knows yet
    OUTCOME_UNKNOWN = 710
    # -- the topic
    TOPIC_UNKNOWN = 720
    TOPIC_NOT_WRITABLE = 721
    TOPIC_NOT_READABLE = 722
    TOPIC_CHANGED = 723
    # -- the message or the request
    TOPIC_NAME_INVALID = 730
    TOPIC_NAME_TOO_LONG = 731
    PROPERTIES_INVALID = 732
    PROPERTIES_TOO_LONG = 733
    BODY_TOO_LARGE = 734
    FIELD_OUT_OF_RANGE = 735
    MESSAGE_ID_INVALID = 736
    REQUEST_MALFORMED = 737
    CHANGE_NOT_ALLOWED = 739
    DELAY_TOO_LONG = 738
    # -- reads
    OFFSET_BELOW_MINIMUM = 740
    OFFSET_ABOVE_MAXIMUM = 741
    MESSAGE_NOT_FOUND = 742
    TOO_MANY_HELD_PULLS = 743
    NOT_CONFIRMED = 744
    BEING_REPAIRED = 745
    GROUP_NOT_ENABLED = 746
    HANDLE_INVALID = 747
    TRANSACTION_UNKNOWN = 748
    DELAYED_UNKNOWN = 749
    # -- bytes that were stored
    RECORD_TRUNCATED = 750
    RECORD_MAGIC = 751
    RECORD_LENGTHS = 752
    RECORD_BODY_CRC = 753
    RECORD_TEXT = 754
    RECORD_FIELD = 755
    UNIT_DAMAGED = 756
    INDEX_DAMAGED = 757
    # -- metadata: consumer groups and their offsets
    GROUP_UNKNOWN = 760
    GENERATION_STALE = 761
    GENERATION_UNKNOWN = 762
    GROUP_HAS_MEMBERS = 763
    NOT_A_MEMBER = 764
    QUEUE_UNKNOWN = 765
    OFFSET_OUT_OF_RANGE = 766
    GROUP_NAME_INVALID = 767
    MEMBER_ID_INVALID = 768
    TOPIC_RESERVED = 769
    # -- metadata: limits
    TOO_MANY_TOPICS = 770
    TOO_MANY_GROUPS = 771
    TOO_MANY_MEMBERS = 772
    TOO_MANY_SUBSCRIPTIONS = 773
    TOO_MANY_OFFSETS = 774
    TOO_MANY_PROPOSALS = 775
    REBALANCING = 776
    COMMAND_TOO_LARGE = 777
    # -- metadata: bytes that were stored
    COMMAND_DAMAGED = 778
    METADATA_DAMAGED = 779
    # -- the NameServer
    NAMESRV_BUSY = 780
    NAMESRV_LIMIT = 781
    NAMESRV_STALE_EPOCH = 782
    NAMESRV_STALE_TERM = 783
    NAMESRV_CONFLICT = 784
    NAMESRV_INVALID = 785
    NAMESRV_BROKER_UNKNOWN = 786
    NAMESRV_CONFIG_UNKNOWN = 787
    NAMESRV_CONFIG_LIMIT = 788
    NAMESRV_CONFIG_NOT_STORED = 789
    NAMESRV_CONFIG_DAMAGED = 790
    NAMESRV_UNREACHABLE = 791
    NAMESRV_TERM_REFUSED = 792
    NAMESRV_NOT_ALLOWED = 793
    # -- the remoting protocol
    FRAME_INVALID = 800
    EXECUTOR_FULL = 801
    CODE_UNKNOWN = 802
    ANSWER_MISSING = 803  # given by clients: the connection ended, or the time
    REQUEST_FAILED = 804  # given by clients: an error of a server that has no number here
    # -- stores of RocketMQ, and what comes from them
    STORE_UNREADABLE = 810
    STORE_DAMAGED = 811
    STORE_TABLE_DAMAGED = 812
    STORE_UNSUPPORTED = 813
    IMPORT_OUT_OF_ORDER = 814
    QUEUE_NOT_NEW = 815
    IMPORT_DIFFERS = 816
    MASTER_DIFFERS = 817
    TAKEOVER_BLOCKED = 818
    # -- the CommitLog of a classic broker
    LOG_FAILED = 840
    LOG_OFFSET = 841
    # -- the classic log: stored, but not as was promised
    FLUSH_DISK_TIMEOUT = 850
    FLUSH_SLAVE_TIMEOUT = 851
    SLAVE_NOT_AVAILABLE = 852
    # -- the classic log: roles
    ROLE_CHANGE_BLOCKED = 853
    # -- between master and slave (HA)
    HA_REPORT_REFUSED = 830
    HA_HANDSHAKE_MISSING = 831
    HA_NOT_PROVEN = 832
    HA_IDENTITY = 833
    HA_DIVERGED = 834
    HA_GAP = 835
    HA_TRANSFER_REFUSED = 836
    NOT_AUTHENTICATED = 805
    NOT_PERMITTED = 806
    CLIENT_NOT_CONNECTED = 807
    QUEUE_WAIT_TOO_LONG = 808
    QUEUE_ORDER = 758
    IMAGE_DAMAGED = 759


RESPONSE_CODE: dict[Status, ResponseCode] = {
    Status.NOT_MASTER: ResponseCode.SERVICE_NOT_AVAILABLE,
    Status.SHUTTING_DOWN: ResponseCode.SERVICE_NOT_AVAILABLE,
    Status.TOO_MANY_PENDING_BYTES: ResponseCode.SYSTEM_BUSY,
    Status.DISK_FULL: ResponseCode.SERVICE_NOT_AVAILABLE,
    Status.TOO_MANY_HELD_PULLS: ResponseCode.SYSTEM_BUSY,
    Status.NOT_CONFIRMED: ResponseCode.SYSTEM_BUSY,
    Status.BEING_REPAIRED: ResponseCode.SYSTEM_BUSY,
    Status.GROUP_NOT_ENABLED: ResponseCode.NO_PERMISSION,
    Status.TOO_MANY_CALLS: ResponseCode.SYSTEM_BUSY,
    Status.NOT_CONNECTED: ResponseCode.SERVICE_NOT_AVAILABLE,
    Status.TOO_MANY_HELD_MESSAGES: ResponseCode.SYSTEM_BUSY,
    Status.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    Status.DELAY_TOO_LONG: ResponseCode.MESSAGE_ILLEGAL,
    Status.HANDLE_INVALID: ResponseCode.QUERY_NOT_FOUND,
    Status.TRANSACTION_UNKNOWN: ResponseCode.QUERY_NOT_FOUND,
    Status.DELAYED_UNKNOWN: ResponseCode.QUERY_NOT_FOUND,
    Status.OUTCOME_UNKNOWN: ResponseCode.SYSTEM_ERROR,
    Status.TOPIC_UNKNOWN: ResponseCode.TOPIC_NOT_EXIST,
    Status.TOPIC_NOT_WRITABLE: ResponseCode.NO_PERMISSION,
    Status.TOPIC_NOT_READABLE: ResponseCode.NO_PERMISSION,
    Status.TOPIC_CHANGED: ResponseCode.SYSTEM_BUSY,
    # RocketMQ answers SYSTEM_ERROR to a bad topic name, which producers then send again and again.
    Status.TOPIC_NAME_INVALID: ResponseCode.MESSAGE_ILLEGAL,
    Status.TOPIC_NAME_TOO_LONG: ResponseCode.MESSAGE_ILLEGAL,
    Status.PROPERTIES_INVALID: ResponseCode.MESSAGE_ILLEGAL,
    Status.PROPERTIES_TOO_LONG: ResponseCode.MESSAGE_ILLEGAL,
    Status.BODY_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Status.FIELD_OUT_OF_RANGE: ResponseCode.MESSAGE_ILLEGAL,
    Status.MESSAGE_ID_INVALID: ResponseCode.MESSAGE_ILLEGAL,
    Status.REQUEST_MALFORMED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Status.CHANGE_NOT_ALLOWED: ResponseCode.NO_PERMISSION,
    Status.OFFSET_BELOW_MINIMUM: ResponseCode.PULL_OFFSET_MOVED,
    Status.OFFSET_ABOVE_MAXIMUM: ResponseCode.PULL_OFFSET_MOVED,
    Status.MESSAGE_NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Status.RECORD_TRUNCATED: ResponseCode.SYSTEM_ERROR,
    Status.RECORD_MAGIC: ResponseCode.SYSTEM_ERROR,
    Status.RECORD_LENGTHS: ResponseCode.SYSTEM_ERROR,
    Status.RECORD_BODY_CRC: ResponseCode.SYSTEM_ERROR,
    Status.RECORD_TEXT: ResponseCode.SYSTEM_ERROR,
    Status.RECORD_FIELD: ResponseCode.SYSTEM_ERROR,
    Status.UNIT_DAMAGED: ResponseCode.SYSTEM_ERROR,
    Status.INDEX_DAMAGED: ResponseCode.SYSTEM_ERROR,
    Status.GROUP_UNKNOWN: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    # RocketMQ has no generations, so none of its codes says this one.
    Status.GENERATION_STALE: ResponseCode.SYSTEM_ERROR,
    Status.GENERATION_UNKNOWN: ResponseCode.SYSTEM_ERROR,
    Status.GROUP_HAS_MEMBERS: ResponseCode.NO_PERMISSION,
    Status.NOT_A_MEMBER: ResponseCode.SYSTEM_ERROR,
    Status.QUEUE_UNKNOWN: ResponseCode.TOPIC_NOT_EXIST,
    Status.OFFSET_OUT_OF_RANGE: ResponseCode.MESSAGE_ILLEGAL,
    Status.GROUP_NAME_INVALID: ResponseCode.MESSAGE_ILLEGAL,
    Status.MEMBER_ID_INVALID: ResponseCode.MESSAGE_ILLEGAL,
    Status.TOPIC_RESERVED: ResponseCode.NO_PERMISSION,
    Status.TOO_MANY_TOPICS: ResponseCode.SYSTEM_BUSY,
    Status.TOO_MANY_GROUPS: ResponseCode.SYSTEM_BUSY,
    Status.TOO_MANY_MEMBERS: ResponseCode.SYSTEM_BUSY,
    Status.TOO_MANY_SUBSCRIPTIONS: ResponseCode.MESSAGE_ILLEGAL,
    Status.TOO_MANY_OFFSETS: ResponseCode.MESSAGE_ILLEGAL,
    Status.TOO_MANY_PROPOSALS: ResponseCode.SYSTEM_BUSY,
    Status.REBALANCING: ResponseCode.SYSTEM_BUSY,
    Status.COMMAND_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Status.COMMAND_DAMAGED: ResponseCode.SYSTEM_ERROR,
    Status.METADATA_DAMAGED: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_BUSY: ResponseCode.SYSTEM_BUSY,
    Status.NAMESRV_LIMIT: ResponseCode.SYSTEM_BUSY,
    Status.NAMESRV_STALE_EPOCH: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_STALE_TERM: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_CONFLICT: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_INVALID: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_BROKER_UNKNOWN: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_CONFIG_UNKNOWN: ResponseCode.QUERY_NOT_FOUND,
    Status.NAMESRV_CONFIG_LIMIT: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_CONFIG_NOT_STORED: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_CONFIG_DAMAGED: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_UNREACHABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Status.NAMESRV_TERM_REFUSED: ResponseCode.SYSTEM_ERROR,
    Status.NAMESRV_NOT_ALLOWED: ResponseCode.NO_PERMISSION,
    Status.FRAME_INVALID: ResponseCode.SYSTEM_ERROR,
    Status.EXECUTOR_FULL: ResponseCode.SYSTEM_BUSY,
    Status.QUEUE_WAIT_TOO_LONG: ResponseCode.SYSTEM_BUSY,
    Status.CODE_UNKNOWN: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Status.ANSWER_MISSING: ResponseCode.SYSTEM_ERROR,
    Status.REQUEST_FAILED: ResponseCode.SYSTEM_ERROR,
    Status.STORE_UNREADABLE: ResponseCode.SYSTEM_ERROR,
    Status.STORE_DAMAGED: ResponseCode.SYSTEM_ERROR,
    Status.STORE_TABLE_DAMAGED: ResponseCode.SYSTEM_ERROR,
    Status.STORE_UNSUPPORTED: ResponseCode.SYSTEM_ERROR,
    Status.IMPORT_OUT_OF_ORDER: ResponseCode.MESSAGE_ILLEGAL,
    Status.QUEUE_NOT_NEW: ResponseCode.MESSAGE_ILLEGAL,
    Status.IMPORT_DIFFERS: ResponseCode.SYSTEM_ERROR,
    Status.MASTER_DIFFERS: ResponseCode.SYSTEM_ERROR,
    Status.TAKEOVER_BLOCKED: ResponseCode.SYSTEM_ERROR,
    Status.LOG_FAILED: ResponseCode.SYSTEM_ERROR,
    Status.LOG_OFFSET: ResponseCode.SYSTEM_ERROR,
    Status.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    Status.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    Status.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    Status.ROLE_CHANGE_BLOCKED: ResponseCode.SYSTEM_ERROR,
    Status.HA_REPORT_REFUSED: ResponseCode.SYSTEM_ERROR,
    Status.HA_HANDSHAKE_MISSING: ResponseCode.SYSTEM_ERROR,
    Status.HA_NOT_PROVEN: ResponseCode.SYSTEM_ERROR,
    Status.HA_IDENTITY: ResponseCode.SYSTEM_ERROR,
    Status.HA_DIVERGED: ResponseCode.SYSTEM_ERROR,
    Status.HA_GAP: ResponseCode.SYSTEM_ERROR,
    Status.HA_TRANSFER_REFUSED: ResponseCode.SYSTEM_ERROR,
    Status.NOT_AUTHENTICATED: ResponseCode.NO_PERMISSION,
    Status.NOT_PERMITTED: ResponseCode.NO_PERMISSION,
    Status.CLIENT_NOT_CONNECTED: ResponseCode.SYSTEM_ERROR,
    Status.QUEUE_ORDER: ResponseCode.SYSTEM_ERROR,
    Status.IMAGE_DAMAGED: ResponseCode.SYSTEM_ERROR,
}


class BrokerError(NumberedError):
    """Base of every error of the broker. `status` is the reason, `str()` is for people."""

    def __init__(self, status: Status, message: str) -> None:
        self.status = status
        self.number = int(status)
        self.message = message
        super().__init__(f"{int(status)} {status.name}: {message}")

    @property
    def response_code(self) -> ResponseCode:
        """What a client of RocketMQ is told."""
        return RESPONSE_CODE[self.status]


class PutRefused(BrokerError):
    """Nothing was stored and nothing will be: a definite failure, safe to try again."""


class NotMaster(PutRefused):
    """This broker is not the master; `master_address` (host:port) is what it believes is, None if unknown."""

    def __init__(self, message: str, *, master_address: str | None = None) -> None:
        self.master_address = master_address
        super().__init__(Status.NOT_MASTER, message)


class Busy(PutRefused):
    """A limit was reached (pending bytes, a full disk), or the topic is being changed: try again later."""


class PutIndeterminate(BrokerError):
    """The message may or may not be in the log, now or later. Never counted as failed, never as lost."""


class TopicRefused(BrokerError):
    """The topic does not exist and is not created automatically, or does not permit what was asked for."""


class GroupRefused(BrokerError):
    """The group does not exist, or who asks is not the member, or of the generation, that it must be."""


class IllegalMessage(BrokerError):
    """The message or request itself is wrong; sending it again cannot help."""


class ReadFailed(BrokerError):
    """A read found nothing to return: no such message, or an offset outside the queue."""


class StoredDataDamaged(BrokerError):
    """Bytes that were stored are not what a broker writes; the message says what is wrong with them."""


class NameServerRefused(BrokerError):
    """A NameServer did not do what it was asked, and nothing has changed there."""


class NameServerBusy(NameServerRefused):
    """A NameServer has reached a limit: ask again later, or ask another."""


class NameServerUnavailable(BrokerError):
    """No NameServer has answered, or none for sure: what was asked for may or may not have been done."""


class RemotingRefused(BrokerError):
    """A request of the remoting protocol was not taken: nothing was done for it."""


class FrameRefused(RemotingRefused):
    """Bytes that are no frame of the remoting protocol, or one that is too large (FRAME_INVALID)."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.FRAME_INVALID, message)


class HaRefused(BrokerError):
    """One end of a connection between master and slave refuses the other, which is closed. No byte of the
    log was taken from it."""


class AnswerMissing(BrokerError):
    """A request was sent and no answer came: what was asked for may or may not have been done."""


class RemotingFailed(BrokerError):
    """A server answered with an error of its own kind: what was asked for may or may not have been done."""


def error_for(status: Status, message: str, *, master_address: str | None = None) -> BrokerError:
    """The exception that belongs to a status: which class it is follows from the status alone."""
    if status is Status.NOT_MASTER:
        return NotMaster(message, master_address=master_address)
    return _CLASS_OF_STATUS[status](status, message)


_CLASS_OF_STATUS: dict[Status, type[BrokerError]] = {
    Status.SHUTTING_DOWN: PutRefused,
    Status.TOO_MANY_PENDING_BYTES: Busy,
    Status.DISK_FULL: Busy,
    Status.TOO_MANY_CALLS: Busy,
    Status.NOT_CONNECTED: PutRefused,
    Status.TOO_MANY_HELD_MESSAGES: Busy,
    Status.OS_PAGE_CACHE_BUSY: Busy,
    Status.DELAY_TOO_LONG: IllegalMessage,
    Status.HANDLE_INVALID: ReadFailed,
    Status.TRANSACTION_UNKNOWN: ReadFailed,
    Status.DELAYED_UNKNOWN: ReadFailed,
    Status.OUTCOME_UNKNOWN: PutIndeterminate,
    Status.TOPIC_UNKNOWN: TopicRefused,
    Status.TOPIC_NOT_WRITABLE: TopicRefused,
    Status.TOPIC_NOT_READABLE: TopicRefused,
    Status.TOPIC_CHANGED: Busy,
    Status.TOPIC_NAME_INVALID: IllegalMessage,
    Status.TOPIC_NAME_TOO_LONG: IllegalMessage,
    Status.PROPERTIES_INVALID: IllegalMessage,
    Status.PROPERTIES_TOO_LONG: IllegalMessage,
    Status.BODY_TOO_LARGE: IllegalMessage,
    Status.FIELD_OUT_OF_RANGE: IllegalMessage,
    Status.MESSAGE_ID_INVALID: IllegalMessage,
    Status.REQUEST_MALFORMED: IllegalMessage,
    Status.CHANGE_NOT_ALLOWED: IllegalMessage,
    Status.OFFSET_BELOW_MINIMUM: ReadFailed,
    Status.OFFSET_ABOVE_MAXIMUM: ReadFailed,
    Status.MESSAGE_NOT_FOUND: ReadFailed,
    Status.TOO_MANY_HELD_PULLS: ReadFailed,
    Status.NOT_CONFIRMED: ReadFailed,
    Status.BEING_REPAIRED: ReadFailed,
    Status.GROUP_NOT_ENABLED: ReadFailed,
    Status.RECORD_TRUNCATED: StoredDataDamaged,
    Status.RECORD_MAGIC: StoredDataDamaged,
    Status.RECORD_LENGTHS: StoredDataDamaged,
    Status.RECORD_BODY_CRC: StoredDataDamaged,
    Status.RECORD_TEXT: StoredDataDamaged,
    Status.RECORD_FIELD: StoredDataDamaged,
    Status.UNIT_DAMAGED: StoredDataDamaged,
    Status.INDEX_DAMAGED: StoredDataDamaged,
    Status.GROUP_UNKNOWN: GroupRefused,
    Status.GENERATION_STALE: GroupRefused,
    Status.GENERATION_UNKNOWN: GroupRefused,
    Status.GROUP_HAS_MEMBERS: GroupRefused,
    Status.NOT_A_MEMBER: GroupRefused,
    Status.QUEUE_UNKNOWN: TopicRefused,
    Status.OFFSET_OUT_OF_RANGE: IllegalMessage,
    Status.GROUP_NAME_INVALID: IllegalMessage,
    Status.MEMBER_ID_INVALID: IllegalMessage,
    Status.TOPIC_RESERVED: TopicRefused,
    Status.TOO_MANY_TOPICS: Busy,
    Status.TOO_MANY_GROUPS: Busy,
    Status.TOO_MANY_MEMBERS: Busy,
    Status.TOO_MANY_SUBSCRIPTIONS: IllegalMessage,
    Status.TOO_MANY_OFFSETS: IllegalMessage,
    Status.TOO_MANY_PROPOSALS: Busy,
    Status.REBALANCING: Busy,
    Status.COMMAND_TOO_LARGE: IllegalMessage,
    Status.COMMAND_DAMAGED: StoredDataDamaged,
    Status.METADATA_DAMAGED: StoredDataDamaged,
    Status.NAMESRV_BUSY: NameServerBusy,
    Status.NAMESRV_LIMIT: NameServerBusy,
    Status.NAMESRV_STALE_EPOCH: NameServerRefused,
    Status.NAMESRV_STALE_TERM: NameServerRefused,
    Status.NAMESRV_CONFLICT: NameServerRefused,
    Status.NAMESRV_INVALID: NameServerRefused,
    Status.NAMESRV_BROKER_UNKNOWN: NameServerRefused,
    Status.NAMESRV_CONFIG_UNKNOWN: NameServerRefused,
    Status.NAMESRV_CONFIG_LIMIT: NameServerRefused,
    Status.NAMESRV_CONFIG_NOT_STORED: NameServerUnavailable,
    Status.NAMESRV_CONFIG_DAMAGED: StoredDataDamaged,
    Status.NAMESRV_UNREACHABLE: NameServerUnavailable,
    Status.NAMESRV_TERM_REFUSED: NameServerRefused,
    Status.NAMESRV_NOT_ALLOWED: NameServerRefused,
    Status.FRAME_INVALID: RemotingRefused,
    Status.EXECUTOR_FULL: RemotingRefused,
    Status.QUEUE_WAIT_TOO_LONG: RemotingRefused,
    Status.CODE_UNKNOWN: RemotingRefused,
    Status.ANSWER_MISSING: AnswerMissing,
    Status.REQUEST_FAILED: RemotingFailed,
    Status.STORE_UNREADABLE: ReadFailed,
    Status.STORE_DAMAGED: StoredDataDamaged,
    Status.STORE_TABLE_DAMAGED: StoredDataDamaged,
    Status.STORE_UNSUPPORTED: ReadFailed,
    Status.IMPORT_OUT_OF_ORDER: PutRefused,
    Status.QUEUE_NOT_NEW: TopicRefused,
    Status.IMPORT_DIFFERS: StoredDataDamaged,
    Status.MASTER_DIFFERS: StoredDataDamaged,
    Status.TAKEOVER_BLOCKED: PutRefused,
    Status.LOG_FAILED: PutIndeterminate,
    Status.LOG_OFFSET: PutRefused,
    Status.FLUSH_DISK_TIMEOUT: PutIndeterminate,
    Status.FLUSH_SLAVE_TIMEOUT: PutIndeterminate,
    Status.SLAVE_NOT_AVAILABLE: PutIndeterminate,
    Status.ROLE_CHANGE_BLOCKED: PutRefused,
    Status.HA_REPORT_REFUSED: HaRefused,
    Status.HA_HANDSHAKE_MISSING: HaRefused,
    Status.HA_NOT_PROVEN: HaRefused,
    Status.HA_IDENTITY: HaRefused,
    Status.HA_DIVERGED: HaRefused,
    Status.HA_GAP: HaRefused,
    Status.HA_TRANSFER_REFUSED: HaRefused,
    Status.NOT_AUTHENTICATED: RemotingRefused,
    Status.NOT_PERMITTED: RemotingRefused,
    Status.CLIENT_NOT_CONNECTED: RemotingRefused,
    Status.QUEUE_ORDER: StoredDataDamaged,
    Status.IMAGE_DAMAGED: StoredDataDamaged,
}
