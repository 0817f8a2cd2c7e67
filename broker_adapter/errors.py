"""The broker's numbered errors, one row of `Status` for each.

Every error has two numbers. `ResponseCode` is RocketMQ's; RocketMQ clients know only these few numbers, and
use them to decide about retries. `Status` is specific to this project, with one number per reason: response
code 14, for example, cannot distinguish a full disk from a broker that is not the master. Numbers of
`dledger` are below 700.

As in `dledger.errors`, the class determines what a caller may conclude::

    BrokerError
    +-- PutRefused          nothing was stored and nothing will be: safe to retry
    |   +-- NotMaster       ... on the master, at `master_address` if known
    |   +-- Busy            ... later: a limit was reached, nothing is wrong
    +-- PutIndeterminate    the message may or may not be in the log, now or later
    +-- TopicRefused        the topic must be created or opened first
    +-- GroupRefused        the group must be created, or its offsets were reset
    +-- IllegalMessage      the message itself is invalid: a retry cannot help
    +-- ReadFailed          a read found nothing to return
    +-- StoredDataDamaged   stored bytes that no broker writes
    +-- CompressionUnavailable  an optional package for the compression of bodies is not installed
    +-- NameServerRefused   a NameServer refused a request and changed nothing
    |   +-- NameServerBusy  ... later: a limit was reached, nothing is wrong
    +-- NameServerUnavailable  no response: the request may or may not have been executed
    +-- RemotingRefused     a request of the remoting protocol was rejected
    +-- HaRefused           one end of a connection between master and slave rejects the other
    +-- AnswerMissing       sent, but no response: it may or may not have been executed
    +-- RemotingFailed      the response is an error that has no number here
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from dledger.errors import NumberedError


class ResponseCode(IntEnum):
    """The response codes of RocketMQ that this broker sends (source: RocketMQ's ResponseCode).

    10, 11 and 12 (flush and slave timeouts) occur only with the classic log. Producers treat them as sent, so
    they are used only for messages that are stored, with a weaker guarantee than configured.
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
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    NO_MESSAGE = 208
    POLLING_TIMEOUT = 210
    ILLEGAL_OPERATION = 604


class BrokerError(NumberedError):
    """Base class of all errors of the broker. `status` is the reason; `str()` is text for users."""

    def __init__(self, status: Status, message: str) -> None:
        self.status = status
        self.number = int(status)
        self.message = message
        super().__init__(f"{int(status)} {status.name}: {message}")

    @property
    def response_code(self) -> ResponseCode:
        """The code in responses to RocketMQ clients."""
        return self.status.response_code


class PutRefused(BrokerError):
    """Nothing was stored and nothing will be: a definite failure, safe to retry."""


class NotMaster(PutRefused):
    """This broker is not the master. `master_address`: host:port of the master, None if unknown."""

    def __init__(self, message: str, *, master_address: str | None = None) -> None:
        self.master_address = master_address
        super().__init__(Status.NOT_MASTER, message)


class Busy(PutRefused):
    """A limit was reached (pending bytes, a full disk), or the topic is being changed: retry later."""


class PutIndeterminate(BrokerError):
    """The message may or may not be in the log, now or later. It counts neither as stored nor as failed."""


class TopicRefused(BrokerError):
    """The topic does not exist and is not created automatically, or does not permit the operation."""


class GroupRefused(BrokerError):
    """The group does not exist, or its offsets were reset before the commit."""


class IllegalMessage(BrokerError):
    """The message or request itself is invalid; a retry cannot help."""


class ReadFailed(BrokerError):
    """A read found nothing to return: no such message, or an offset outside the queue."""


class StoredDataDamaged(BrokerError):
    """Stored bytes are invalid. The message describes the problem."""


class CompressionUnavailable(BrokerError):
    """The package for the compression of a message body is not installed."""


class NameServerRefused(BrokerError):
    """A NameServer refused a request and changed nothing."""


class NameServerBusy(NameServerRefused):
    """A NameServer has reached a limit: retry later, or at another NameServer."""


class NameServerUnavailable(BrokerError):
    """No NameServer responded conclusively: the request may or may not have been executed."""


class RemotingRefused(BrokerError):
    """A request of the remoting protocol was rejected without being executed."""


class FrameRefused(RemotingRefused):
    """Bytes that are not a frame of the remoting protocol, or a frame that is too large (FRAME_INVALID)."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.FRAME_INVALID, message)


class HaRefused(BrokerError):
    """A master or slave rejects the other and closes the connection. The rejected data is not stored."""


class AnswerMissing(BrokerError):
    """A request received no response: it may or may not have been executed."""


class RemotingFailed(BrokerError):
    """A server responded with an error without a `Status`: the request may or may not have been executed."""


R = ResponseCode


class Status(IntEnum):
    """The reason of an error, with one row for each number.

    Columns: number, response code, exception, meaning, cause, fix, and a hint for the command line, if the
    error's message cannot contain the fix. Texts are Markdown with links relative to docs/reference; `dledger
    explain` and docs/reference/troubleshooting.md contain them. The number of a deleted row is never reused,
    because clients and logs of older versions use it.
    """

    response_code: ResponseCode
    error: type[BrokerError]
    meaning: str
    cause: str
    fix: str
    hint: str

    # All columns except the number have defaults, because type checkers treat the lookup `Status(700)` as a
    # call.
    def __new__(
        cls,
        number: int,
        response_code: ResponseCode = ResponseCode.SYSTEM_ERROR,
        error: type[BrokerError] = BrokerError,
        meaning: str = "",
        cause: str = "",
        fix: str = "",
        hint: str = "",
    ) -> Self:
        self = int.__new__(cls, number)
        self._value_ = number
        self.response_code, self.error = response_code, error
        self.meaning, self.cause, self.fix, self.hint = meaning, cause, fix, hint
        return self

    # fmt: off
    # -- nothing was stored
    NOT_MASTER = (700, R.SERVICE_NOT_AVAILABLE, NotMaster,
        "The broker is not the master, or not writable yet. Nothing was stored.",
        "The master has changed, or no broker has a majority.",
        "Clients find the master automatically. If it persists, check with `dledger broker status` that a "
        "majority of the nodes is running.",
        "check with `dledger broker status` that a majority of the nodes is running")
    SHUTTING_DOWN = (701, R.SERVICE_NOT_AVAILABLE, PutRefused,
        "The broker or the client is being closed. Nothing was stored.",
        "A planned stop, or a producer that was closed.",
        "Send to the next master, as clients do; open a new producer.")
    TOO_MANY_PENDING_BYTES = (702, R.SYSTEM_BUSY, Busy, "Too many bytes are in flight. Nothing was stored.",
        "Producers are faster than the majority of nodes, or do not read responses.",
        "Retry later. Send less concurrently, or raise `limits.max_pending_bytes` of the node.")
    DISK_FULL = (703, R.SERVICE_NOT_AVAILABLE, Busy,
        "The master's disk has no free space beyond the reserve. Nothing was stored.",
        "The disk is full, and no other node has space.",
        "Free space on the master's disk, or lower the retention.", "free space on the master's disk")
    TOO_MANY_CALLS = (704, R.SYSTEM_BUSY, Busy, "Too many calls to the master are in flight.",
        "Clients send requests faster than the master responds.",
        "Retry later. Connect clients to the master, according to the routes.")
    NOT_CONNECTED = (705, R.SERVICE_NOT_AVAILABLE, PutRefused,
        "The broker is unreachable. Nothing was stored.",
        "The nodes are down, the addresses are wrong, or the topic has no route.",
        "Check `--servers` or `--namesrv`, and `dledger broker status`.",
        "check --servers or --namesrv, and that the nodes are running (`dledger broker status`)")
    TOO_MANY_HELD_MESSAGES = (706, R.SYSTEM_BUSY, Busy,
        "Too many pending delayed messages, or too many bytes of half messages. Nothing was stored.",
        "Many messages with long delays, or transactions that are never ended.",
        "Wait until some messages are due, end transactions, or raise `delivery.max_delayed` or "
        "`max_held_bytes`.")
    OS_PAGE_CACHE_BUSY = (707, R.SYSTEM_BUSY, Busy,
        "The master of a classic log waits for its disk. Nothing was stored.",
        "An fdatasync takes longer than `classic.page_cache_busy_ms`.",
        "Retry later. If it persists, check the master's disk: its health shows the duration of a sync.")
    # -- the outcome is unknown
    OUTCOME_UNKNOWN = (710, R.SYSTEM_ERROR, PutIndeterminate,
        "There was no conclusive response. The message is in doubt.",
        "A failover or a broken connection while the message was in flight.",
        "Search for it (`dledger broker query`) before you resend it, or accept duplicates: "
        "`--send-again`.",
        "check `dledger broker status` before you retry: the operation may have succeeded")
    # -- the topic
    TOPIC_UNKNOWN = (720, R.TOPIC_NOT_EXIST, TopicRefused, "The topic does not exist.",
        "A typo; topics are not created automatically (`auto_create_topics`); the topic was deleted or has "
        "expired.",
        "`dledger broker topic list`, `dledger broker topic create`.",
        "see `dledger broker topic list`, or `dledger broker topic create`")
    TOPIC_NOT_WRITABLE = (721, R.NO_PERMISSION, TopicRefused, "The topic is not writable.",
        "Its permission lacks `w`, or it has no writable queue.",
        "`dledger broker topic create NAME --perm rw`.",
        "`dledger broker topic create NAME --perm rw` makes it writable")
    TOPIC_NOT_READABLE = (722, R.NO_PERMISSION, TopicRefused, "The topic is not readable.",
        "Its permission lacks `r`.", "`dledger broker topic create NAME --perm rw`.")
    TOPIC_CHANGED = (723, R.SYSTEM_BUSY, Busy,
        "The topic was shrunk or deleted while the message waited. Nothing was stored.",
        "An administrator changed the topic.", "Retry, as clients do automatically.")
    QUEUES_NOT_EMPTY = (724, R.NO_PERMISSION, TopicRefused,
        "The change would remove queues that hold messages. Consumers would never receive these.",
        "A change that reduces the number of queues.",
        "Stop writing to these queues (reduce only the number of write queues), consume them, and repeat "
        "the change when their messages have expired, or use `--force`.",
        "`--force` removes the queues anyway")
    GROUP_IN_USE = (725, R.SYSTEM_ERROR, GroupRefused, "The group has connected members.",
        "Its members would recreate it with default settings and without offsets.",
        "Stop the members first, or delete with `--force` (Python: `is_forced`).",
        "stop its members first, or pass --force")
    # -- the message or the request
    SEND_ENDED = (729, R.MESSAGE_ILLEGAL, IllegalMessage,
        "An earlier attempt of this send stored the message, which was then recalled or rolled back.",
        "An attempt that was delayed on its way. Usually, nobody waits for the response any more.",
        "None is needed. To send the message again, use a new message object.")
    TOPIC_NAME_INVALID = (730, R.MESSAGE_ILLEGAL, IllegalMessage,
        "The topic name is empty or contains invalid characters.",
        "A name outside of letters, digits, `_`, `-`, `%` and `|`.", "Choose another name.")
    TOPIC_NAME_TOO_LONG = (731, R.MESSAGE_ILLEGAL, IllegalMessage, "The topic name is too long.",
        "More than 127 characters.", "Choose a shorter name.")
    PROPERTIES_INVALID = (732, R.MESSAGE_ILLEGAL, IllegalMessage,
        "A property of the message cannot be stored.",
        "An empty name, or a control character used as separator.",
        "Change the property named in the message.")
    PROPERTIES_TOO_LONG = (733, R.MESSAGE_ILLEGAL, IllegalMessage, "The properties exceed 32 KiB.",
        "Too many or too long properties, including keys.", "Move data to the body.")
    BODY_TOO_LARGE = (734, R.MESSAGE_ILLEGAL, IllegalMessage, "The body exceeds `max_body_bytes`.",
        "More than 4 MiB, or than the configured limit.", "Split the message, or raise the limit.")
    FIELD_OUT_OF_RANGE = (735, R.MESSAGE_ILLEGAL, IllegalMessage,
        "A value of the request is out of range.",
        "An invalid queue, count, time or expression; several brokers where one must be named.",
        "Correct the value named in the message.")
    MESSAGE_ID_INVALID = (736, R.MESSAGE_ILLEGAL, IllegalMessage, "The text is not a message id.",
        "A truncated or invalid id.", "Take the id from a receipt or from `dledger broker consume --json`.")
    REQUEST_MALFORMED = (737, R.REQUEST_CODE_NOT_SUPPORTED, IllegalMessage,
        "The bytes are not a valid request of this protocol.",
        "A client of another version, or corrupt data.",
        "Correct the client.")
    DELAY_TOO_LONG = (738, R.MESSAGE_ILLEGAL, IllegalMessage, "The delay exceeds `delivery.max_delay_ms`.",
        "More than a day, or than the configured limit.", "Use a shorter delay, or raise the limit.")
    CHANGE_NOT_ALLOWED = (739, R.NO_PERMISSION, IllegalMessage,
        "The certificate is not authorized to change topics, groups or offsets.",
        "It contains none of the node's `tls.admin_names`.",
        "Use an admin's certificate, or add its name on all nodes.")
    # -- reads
    OFFSET_BELOW_MINIMUM = (740, R.PULL_OFFSET_MOVED, ReadFailed, "The offset was purged.",
        "The consumer lags behind the retention.",
        "Continue at the minimum in the message: `dledger broker offsets reset GROUP --to-earliest`.")
    OFFSET_ABOVE_MAXIMUM = (741, R.PULL_OFFSET_MOVED, ReadFailed,
        "The offset is beyond the end of the queue.",
        "An offset of another cluster, or a broker whose dispatch lags.",
        "Wait if dispatch lags (`dledger broker status`); otherwise reset the offset.")
    MESSAGE_NOT_FOUND = (742, R.QUERY_NOT_FOUND, ReadFailed, "The message does not exist.",
        "It was never stored or is purged, its topic was deleted, or the index lags.",
        "Check key, id and topic. Check `broker_index_pending`.")
    TOO_MANY_HELD_PULLS = (743, R.SYSTEM_BUSY, ReadFailed,
        "Too many pulls or receives are waiting for messages.",
        "More than `max_held_pulls`.", "Retry later. Use fewer consumers, or raise the limit.")
    NOT_CONFIRMED = (744, R.SYSTEM_BUSY, ReadFailed,
        "The broker cannot currently confirm that it would return the newest data.",
        "No leader is known, or the broker is still rebuilding its queues from the log.",
        "Retry at this broker or another one, as clients do automatically.")
    BEING_REPAIRED = (745, R.SYSTEM_BUSY, ReadFailed, "The message is damaged on this node.",
        "A bad sector or a flipped bit; the node is fetching the message from another node.",
        "Read it from another broker, or retry shortly.")
    GROUP_NOT_ENABLED = (746, R.NO_PERMISSION, ReadFailed, "Consuming is disabled for the group.",
        "`consume_enable` is off.", "`dledger broker group create GROUP` enables it again.")
    HANDLE_INVALID = (747, R.QUERY_NOT_FOUND, ReadFailed,
        "The receipt handle is unreadable, expired, or was replaced by a newer one.",
        "The message was redelivered after its invisible time, or is already acknowledged.",
        "Acknowledge in time, or request a longer invisible time. The message is redelivered.")
    TRANSACTION_UNKNOWN = (748, R.QUERY_NOT_FOUND, ReadFailed, "The transaction no longer exists.",
        "It already ended, or was rolled back after `delivery.max_checks`.",
        "The outcome is final. Respond to checks in time.")
    DELAYED_UNKNOWN = (749, R.ILLEGAL_OPERATION, ReadFailed, "The delayed message no longer exists.",
        "It was delivered or recalled, or the recall handle is not one of this topic.",
        "Nothing can be recalled any more; check the handle if the message was not delivered yet.")
    # -- stored bytes
    RECORD_TRUNCATED = (750, R.SYSTEM_ERROR, StoredDataDamaged, "A stored record is truncated.",
        "Damage, or an entry that is not a message.",
        "See `broker_set_aside_total`. `dledger scrub` checks for damage.")
    RECORD_MAGIC = (751, R.SYSTEM_ERROR, StoredDataDamaged,
        "A stored record lacks the magic number of a message.", "Damage, or an entry that is not a message.",
        "As for 750.")
    RECORD_LENGTHS = (752, R.SYSTEM_ERROR, StoredDataDamaged,
        "The lengths in a stored record are inconsistent.", "Damage, or an entry that is not a message.",
        "As for 750.")
    RECORD_BODY_CRC = (753, R.SYSTEM_ERROR, StoredDataDamaged,
        "The body of a stored record does not match its checksum.", "Damage.", "As for 750.")
    RECORD_TEXT = (754, R.SYSTEM_ERROR, StoredDataDamaged,
        "Topic or properties of a stored record are not valid text.", "Damage, or a writer of another kind.",
        "As for 750.")
    RECORD_FIELD = (755, R.SYSTEM_ERROR, StoredDataDamaged, "A field of a stored record is out of range.",
        "Damage, or a writer of another kind.", "As for 750.")
    UNIT_DAMAGED = (756, R.SYSTEM_ERROR, StoredDataDamaged, "A ConsumeQueue file is damaged.",
        "A bad sector or a manual edit.",
        "Restart the node: it rebuilds the file from the log. Or delete the broker's directory of the "
        "stopped node.")
    INDEX_DAMAGED = (757, R.SYSTEM_ERROR, StoredDataDamaged, "An IndexFile is damaged.",
        "A bad sector or a manual edit.", "As for 756.")
    QUEUE_ORDER = (758, R.SYSTEM_ERROR, StoredDataDamaged,
        "A message does not have the next offset of its queue.",
        "A defect, or a log of an earlier version.",
        "Report it, with the entry. See `broker_set_aside_total`.")
    IMAGE_DAMAGED = (759, R.SYSTEM_ERROR, StoredDataDamaged,
        "The checkpoint of the derived files is damaged.", "A bad sector or a manual edit.",
        "No action is needed: the broker rebuilds the files from the log.")
    # -- consumer groups and their offsets
    GROUP_UNKNOWN = (760, R.SUBSCRIPTION_GROUP_NOT_EXIST, GroupRefused, "The group does not exist.",
        "A typo, a deleted group, or `auto_create_groups` is off.",
        "`dledger broker group list`, `dledger broker group create`.",
        "see `dledger broker group list`, or `dledger broker group create`")
    GENERATION_STALE = (761, R.SYSTEM_ERROR, GroupRefused,
        "The commit had no effect, because its offsets precede a reset.",
        "The offsets of the group were reset.",
        "Continue at the group's offset, as consumers do automatically.")
    QUEUE_UNKNOWN = (765, R.TOPIC_NOT_EXIST, TopicRefused, "The topic has no such queue.",
        "A wrong number, or the topic was shrunk.",
        "`dledger broker topic stats TOPIC` shows the queues.")
    OFFSET_OUT_OF_RANGE = (766, R.MESSAGE_ILLEGAL, IllegalMessage,
        "A committed offset is negative or beyond the end of its queue.",
        "A defect of the consumer, or offsets of another cluster.", "Commit offsets of consumed messages.")
    GROUP_NAME_INVALID = (767, R.MESSAGE_ILLEGAL, IllegalMessage,
        "The group name is empty, too long, or contains invalid characters.", "A typo.",
        "Choose another name.")
    MEMBER_ID_INVALID = (768, R.MESSAGE_ILLEGAL, IllegalMessage,
        "A member id is empty, too long, or not printable ASCII.", "A defect of the client.",
        "Choose another id.")
    TOPIC_RESERVED = (769, R.NO_PERMISSION, TopicRefused, "The topic belongs to the broker itself.",
        "An attempt to send to, change or delete it.", "Choose another topic.")
    # -- limits of metadata
    TOO_MANY_TOPICS = (770, R.SYSTEM_BUSY, Busy, "The maximum number of topics is reached.",
        "The limit is 10,000; 8,000 for automatic creation (`auto_create_up_to`), 1,000 per client address "
        "(`auto_create_per_client`).",
        "Delete unused topics. Let an admin create the topic.")
    TOO_MANY_GROUPS = (771, R.SYSTEM_BUSY, Busy, "The maximum number of groups is reached.", "As for 770.",
        "Delete unused groups: `dledger broker group delete`.")
    TOO_MANY_MEMBERS = (772, R.SYSTEM_BUSY, Busy,
        "A connection has too many groups, or clients hold too many queue locks.",
        "More groups or locks than the limit.",
        "Run fewer consumers, or distribute them over more connections.")
    TOO_MANY_OFFSETS = (774, R.MESSAGE_ILLEGAL, IllegalMessage,
        "Too many offsets in one call, or in all groups together.", "Unused groups keep their offsets.",
        "Delete unused groups. Commit fewer offsets per call.")
    TOO_MANY_PROPOSALS = (775, R.SYSTEM_BUSY, Busy, "Too many metadata changes are in flight.",
        "Many clients create topics or commit concurrently.",
        "Retry later, as clients do automatically.")
    REBALANCING = (776, R.SYSTEM_BUSY, Busy,
        "The master does not yet know the members of the group.",
        "The group was reset, and the master has led for less than a minute.",
        "Repeat the commit after a minute.")
    COMMAND_TOO_LARGE = (777, R.MESSAGE_ILLEGAL, IllegalMessage,
        "A metadata change is too large for one entry.", "Too many topics or offsets in one call.",
        "Split the call.")
    # -- stored metadata
    COMMAND_DAMAGED = (778, R.SYSTEM_ERROR, StoredDataDamaged,
        "A stored metadata change is unreadable. All nodes set it aside.",
        "A defect, or a log of another version.", "Report it, with the entry. See `broker_set_aside_total`.")
    METADATA_DAMAGED = (779, R.SYSTEM_ERROR, StoredDataDamaged, "A stored metadata image is unreadable.",
        "A defect, or an image of another version.", "Report it. Use the version that wrote the image.")
    # -- the NameServer
    NAMESRV_BUSY = (780, R.SYSTEM_BUSY, NameServerBusy,
        "Too many calls of this kind are in flight at the NameServer.", "Clients send requests too fast.",
        "Retry later, or use another NameServer.")
    NAMESRV_LIMIT = (781, R.SYSTEM_BUSY, NameServerBusy,
        "The NameServer accepts no further brokers, nodes or topics.",
        "A limit of its configuration.",
        "Raise the limit (see [configuration](config.md)), or remove unused ones.")
    NAMESRV_STALE_EPOCH = (782, R.SYSTEM_ERROR, NameServerRefused,
        "A registration is older than the current one.", "A delayed message of a former role.",
        "No action is needed: the broker registers with its newest role.")
    NAMESRV_STALE_TERM = (783, R.SYSTEM_ERROR, NameServerRefused,
        "The caller claims to be master in an older term.",
        "A deposed master, or a new log under an old name.",
        "No action is needed: it registers once its term is the newest, or the old one has expired "
        "(`expiry.default_ms`).")
    NAMESRV_CONFLICT = (784, R.SYSTEM_ERROR, NameServerRefused, "Two nodes claim the same identity.",
        "Two logs use the same broker name, or two nodes the same broker id.",
        "Give each log a `name` of its own in `[program.settings]`.")
    NAMESRV_INVALID = (785, R.SYSTEM_ERROR, NameServerRefused, "The request is malformed.",
        "A client of another version, or corrupt data.", "Correct the client.")
    NAMESRV_BROKER_UNKNOWN = (786, R.SYSTEM_ERROR, NameServerRefused, "No such broker is registered.",
        "A typo, or the broker is down.", "`dledger-namesrv cluster` lists all brokers.")
    NAMESRV_CONFIG_UNKNOWN = (787, R.QUERY_NOT_FOUND, NameServerRefused, "The setting does not exist.",
        "A typo.", "`dledger-namesrv kv list NAMESPACE`.")
    NAMESRV_CONFIG_LIMIT = (788, R.SYSTEM_ERROR, NameServerRefused,
        "A setting is too large, or there are too many.", "A limit of the configuration.",
        "Remove settings, or raise the limit.")
    NAMESRV_CONFIG_NOT_STORED = (789, R.SYSTEM_ERROR, NameServerUnavailable,
        "A setting could not be written. Its value after a restart is uncertain.",
        "The NameServer's disk is full or failing.", "Free space, then set it again.")
    NAMESRV_CONFIG_DAMAGED = (790, R.SYSTEM_ERROR, StoredDataDamaged,
        "`kvConfig.json` is unreadable. The NameServer does not start.", "A manual edit or a failing disk.",
        "Restore the file from a backup, or move it away to start without settings.")
    NAMESRV_UNREACHABLE = (791, R.SERVICE_NOT_AVAILABLE, NameServerUnavailable,
        "No NameServer responded. A change may or may not have been made.",
        "They are down, or the addresses are wrong.",
        "Check `--namesrv`, or pass the nodes with `--servers`. Repeat the change.",
        "check --namesrv, and that a NameServer is running there; or pass the nodes with --servers")
    NAMESRV_TERM_REFUSED = (792, R.SYSTEM_ERROR, NameServerRefused,
        "A registration has a term that elections cannot have produced.",
        "A forged registration, or a node with an implausible term.", "See 624.")
    NAMESRV_NOT_ALLOWED = (793, R.NO_PERMISSION, NameServerRefused,
        "The certificate is not authorized for this change.",
        "It contains no name of `tls.broker_names` or `tls.admin_names`.",
        "Use another certificate, or add its name.")
    # -- the remoting protocol
    FRAME_INVALID = (800, R.SYSTEM_ERROR, RemotingRefused,
        "The bytes are not a frame of RocketMQ's remoting protocol, or the frame is too large.",
        "The sender is not a RocketMQ 4.x client, or a message exceeds 16 MiB.",
        "RocketMQ 5 clients (gRPC) use a separate port.")
    EXECUTOR_FULL = (801, R.SYSTEM_BUSY, RemotingRefused, "Too many requests of this kind are in flight.",
        "The load exceeds the executor of these request codes or `remoting.max_request_bytes`.",
        "Clients retry automatically. Check the metric of the executor named in the message.")
    CODE_UNKNOWN = (802, R.REQUEST_CODE_NOT_SUPPORTED, RemotingRefused,
        "This server does not support the request code.",
        "A broker request was sent to a NameServer, or the command is not supported.",
        "docs/namesrv.md lists the request codes of NameServers, docs/remoting.md those of brokers.")
    ANSWER_MISSING = (803, R.SYSTEM_ERROR, AnswerMissing, "A request was sent but got no response in time.",
        "The connection broke, or the server is slow. The request may or may not have been executed.",
        "Retry if that is safe; otherwise check the result first.")
    REQUEST_FAILED = (804, R.SYSTEM_ERROR, RemotingFailed,
        "A RocketMQ server responded with an error that has no number in this project.",
        "See the response code and the remark in the message.",
        "Look up the code in RocketMQ's documentation, and the remark in the server's log.")
    NOT_AUTHENTICATED = (805, R.NO_PERMISSION, RemotingRefused,
        "A request of the remoting protocol was not signed by an account.",
        "The client does not sign, or signs with an unknown access key or a wrong secret.",
        "Configure the client with access key and secret of an account in rocketmq_v2.access_control.")
    NOT_PERMITTED = (806, R.NO_PERMISSION, RemotingRefused,
        "The account is not authorized for this request of the remoting protocol.",
        "It lacks a right for the topic or group, or connects from an address outside its list.",
        "docs/remoting.md lists the rights for each request code; change the accounts file if needed.")
    CLIENT_NOT_CONNECTED = (807, R.SYSTEM_ERROR, RemotingRefused,
        "The recipient of a reply is connected neither to this node nor to the master.",
        "It has ended, or has not yet sent a heartbeat to a node that just started.",
        "Clients try other nodes automatically. If the requester no longer waits, no action is needed.")
    QUEUE_WAIT_TOO_LONG = (808, R.SYSTEM_BUSY, RemotingRefused,
        "A send waited too long in the queue. Nothing was stored.",
        "The node's CPU is overloaded, or the process was paused.",
        "Retry later. Send less concurrently, or raise `remoting.send_queue_wait_ms`.")
    # -- stores of RocketMQ, and imports from them
    STORE_UNREADABLE = (810, R.SYSTEM_ERROR, ReadFailed,
        "The directory is not a readable store of a RocketMQ broker.",
        "A wrong directory, files of different sizes, a DLedger or RocksDB store.",
        "Pass the broker's storePathRootDir. docs/moving-in.md lists the supported stores.")
    STORE_DAMAGED = (811, R.SYSTEM_ERROR, StoredDataDamaged,
        "A RocketMQ store has records or ConsumeQueue units that contradict each other.",
        "Disk damage, or a broker that is still running.",
        "Stop the broker. If only its ConsumeQueues are damaged, move `consumequeue` away. The import then "
        "uses only the CommitLog, as RocketMQ would.")
    STORE_TABLE_DAMAGED = (812, R.SYSTEM_ERROR, StoredDataDamaged,
        "A file in `config` of a RocketMQ store is invalid.",
        "It was edited, or is damaged, and so is its `.bak`.", "Repair the file that the message names.")
    STORE_UNSUPPORTED = (813, R.SYSTEM_ERROR, ReadFailed,
        "A RocketMQ store contains data that cannot be imported.", "The message names the data.",
        "docs/moving-in.md lists the supported data.")
    IMPORT_OUT_OF_ORDER = (814, R.MESSAGE_ILLEGAL, PutRefused,
        "An imported message does not have the next offset of its queue. Nothing was stored.",
        "Another client sends to the queue, or two imports run concurrently.",
        "Stop producers of the imported topics, and repeat the import.")
    QUEUE_NOT_NEW = (815, R.MESSAGE_ILLEGAL, TopicRefused,
        "A queue cannot start at another offset: it has had messages.",
        "The topic was used before the import.", "Import into topics that were never used.")
    IMPORT_DIFFERS = (816, R.SYSTEM_ERROR, StoredDataDamaged, "The imported messages differ from the store.",
        "Another client sent to the topic, or its messages were imported from another store.",
        "The message names the queues. Import into topics that were never used.")
    MASTER_DIFFERS = (817, R.SYSTEM_ERROR, StoredDataDamaged,
        "A mirrored queue differs from the master's queue. Nothing was stored.",
        "The topic was recreated there, the master lost messages, or its retention removed "
        "messages while no mirror was running.",
        "Delete the topic named in the message from the target group, and run the mirror again.")
    TAKEOVER_BLOCKED = (818, R.SYSTEM_ERROR, PutRefused,
        "A mirror cannot take over from its master yet. The master still accepts messages.",
        "The message gives the reason.",
        "See docs/moving-in.md for the reason; run the mirror again.")
    # -- compressed bodies
    BODY_UNREADABLE = (820, R.SYSTEM_ERROR, StoredDataDamaged,
        "The compressed body of a message cannot be decompressed.",
        "The producer compressed it by another method than its flag specifies, it is damaged, or it exceeds "
        "16 MiB after decompression.",
        "Check the producer, and send the message again. Push consumers move it to the dead letters of their "
        "group, pull consumers skip it.")
    COMPRESSION_UNAVAILABLE = (821, R.SYSTEM_ERROR, CompressionUnavailable,
        "A message body is compressed with LZ4 or Zstandard, and the package for it is not installed.",
        "The Python client was installed without the extra `compression`.",
        "Run `pip install 'dledger[compression]'` and restart the client. Its consumers wait at the message.")
    # -- HA: between master and slave
    HA_REPORT_REFUSED = (830, R.SYSTEM_ERROR, HaRefused,
        "A slave reports data that its master never sent, or less data than before.",
        "The sender is not a slave, or the slave followed another master.",
        "Check the address in the message. A slave that is ahead needs its former master.")
    HA_HANDSHAKE_MISSING = (831, R.SYSTEM_ERROR, HaRefused,
        "A master or slave requires the handshake, which the other end does not support.",
        "The other end is a RocketMQ broker, or another program.",
        "Do not require the handshake with RocketMQ brokers: they do not support it.")
    HA_NOT_PROVEN = (832, R.SYSTEM_ERROR, HaRefused,
        "Master or slave does not know the secret of the cluster.", "Their secret files differ.",
        "Copy the secret file from one broker to the other. During a change of the secret it has two lines.")
    HA_IDENTITY = (833, R.SYSTEM_ERROR, HaRefused, "Master and slave do not belong together.",
        "They have different clusters, broker names or file sizes, equal ids, or the wrong role.",
        "The message names the difference. Change the settings of one of them.")
    HA_DIVERGED = (834, R.SYSTEM_ERROR, HaRefused,
        "The slave's log is not a prefix of its master's log. Nothing was copied.",
        "The slave followed another master, or the master lost the end of its log.",
        "Decide which log is correct. If it is the master's, empty the slave's store and restart the slave.",
        "decide which log is correct; empty the slave's store if it is the master's")
    HA_GAP = (835, R.SYSTEM_ERROR, HaRefused,
        "The master has purged the data that the slave needs next, or needs to compare the logs.",
        "The slave was disconnected for longer than the master's retention.",
        "Empty the slave's store and restart the slave.")
    HA_TRANSFER_REFUSED = (836, R.SYSTEM_ERROR, HaRefused,
        "Data from a master does not continue the slave's log, or is not valid replication data.",
        "The address does not belong to a RocketMQ master, or the slave is ahead of its master.",
        "Check the address in the message, and which of the two logs is correct.")
    # -- the classic log
    LOG_FAILED = (840, R.SYSTEM_ERROR, PutIndeterminate,
        "A file of a classic broker's CommitLog could not be written, synced or removed. The newest "
        "messages may not be on disk.",
        "A disk or file system error, given in the message.",
        "The broker stops. Repair the disk and restart the broker: it recovers the log on disk.")
    LOG_OFFSET = (841, R.SYSTEM_ERROR, PutRefused,
        "Data is not for the end of a classic broker's CommitLog. Nothing was stored.",
        "A master and a slave whose logs differ, or a truncation to an offset that is not in the log.",
        "Empty the slave's store directory: it copies its master's log again.")
    # -- the classic log: stored, with less than was promised
    FLUSH_DISK_TIMEOUT = (850, R.FLUSH_DISK_TIMEOUT, PutIndeterminate,
        "The message is in the classic log but was not durable in time. It is in doubt.",
        "The disk is slow or blocked.", "Check the disk. Resend if duplicates are harmless.")
    FLUSH_SLAVE_TIMEOUT = (851, R.FLUSH_SLAVE_TIMEOUT, PutIndeterminate,
        "The message is in the master's classic log, but no slave acknowledged it in time. It is in "
        "doubt: losing the master may lose it.",
        "The slave or the connection to it is slow.",
        "Check the slave with `dledger broker status`. Resend if duplicates are harmless.")
    SLAVE_NOT_AVAILABLE = (852, R.SLAVE_NOT_AVAILABLE, PutIndeterminate,
        "The message is in the master's classic log, but there is no slave to acknowledge it. It "
        "is in doubt: losing the master may lose it.",
        "No slave is connected, or all are too far behind.",
        "Start the slave, or make the master an ASYNC_MASTER.")
    # -- the classic log: roles
    ROLE_CHANGE_BLOCKED = (853, R.SYSTEM_ERROR, PutRefused,
        "The role of a broker with a classic log was not changed.",
        "It lacks data of its master, or its master is connected, or it is master and a slave lacks "
        "data; the message gives the reason and the amount.",
        "Wait until the slave has all data, or stop the master first; `--force` discards the missing data.")
    # fmt: on


def error_for(status: Status, message: str, *, master_address: str | None = None) -> BrokerError:
    """Return the exception for a status."""
    if status is Status.NOT_MASTER:
        return NotMaster(message, master_address=master_address)
    return status.error(status, message)
