"""The numbered errors of the replicated log. `Code` has one row for each.

Numbers 200-508 keep DLedger's meaning (DLedgerResponseCode). Numbers from 600 upward belong to this project.

The class of an error tells the caller of an append whether the entry may be stored::

    DLedgerError
    +-- Refused             nothing was written and nothing will be: safe to retry
    |   +-- NotLeader       ... on the node named by `leader_id` / `leader_address`
    |   +-- Overloaded      ... later: a limit was reached
    +-- Indeterminate       the entry may or may not be in the log, now or later
    +-- InvalidRequest      the request itself is wrong: a retry cannot help
    +-- ReadFailed          a read found nothing to return, or could not be confirmed
    +-- StorageError        the node's own files: damage, lock, identity, disk
    +-- ConfigError         a configuration key or value
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Self


class NumberedError(Exception):
    """An error with a documented number, of this package or of a program that owns a node."""

    number: int


class DLedgerError(NumberedError):
    """Base of every error of this package. `code` is the number on the wire; `str()` is for humans."""

    default_code: ClassVar[int] = 500  # INTERNAL_ERROR

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        leader_id: str | None = None,
        leader_address: str | None = None,
    ) -> None:
        self.code = Code(self.default_code) if code is None else code
        self.number = int(self.code)
        self.message = message
        self.leader_id = leader_id
        self.leader_address = leader_address
        super().__init__(f"{int(self.code)} {self.code.name}: {message}")


class Refused(DLedgerError):
    """Nothing was written and nothing will be: a definite failure, safe to retry."""


class NotLeader(Refused):
    """The node does not lead; `leader_id` and `leader_address` name the presumed leader, if any."""

    default_code = 404  # NOT_LEADER


class Overloaded(Refused):
    """A limit was reached (pending bytes, connections, a full disk): retry later."""

    default_code = 503  # LEADER_PENDING_FULL


class Indeterminate(DLedgerError):
    """The entry may or may not be in the log, now or later. Counts neither as failed nor as lost."""

    default_code = 502  # WAIT_QUORUM_ACK_TIMEOUT


class SessionExpired(Indeterminate):
    """The session is unknown to the log. Its unanswered appends may or may not be stored."""

    default_code = 601  # SESSION_EXPIRED


class InvalidRequest(DLedgerError):
    """The request itself is wrong; a retry cannot help."""

    default_code = 411  # UNEXPECTED_ARGUMENT


class ReadFailed(DLedgerError):
    """A read found no entry in the readable range, or could not be confirmed in time."""

    default_code = 410  # INDEX_OUT_OF_RANGE


class StorageError(DLedgerError):
    """A problem with the node's own files: damage, lock, identity, a failing or full disk."""

    default_code = 414  # DISK_ERROR


class ConfigError(DLedgerError):
    """A wrong configuration key or value; the message names it and valid values."""

    default_code = 630  # CONFIG_INVALID


class Code(IntEnum):
    """The numbers on the wire, with their documentation.

    Columns: number, exception, meaning, cause, fix, and a hint for the command line where the message of
    the error cannot name the fix. Texts are Markdown with links relative to docs/reference; `dledger
    explain` and docs/reference/troubleshooting.md show them.

    200-508 are DLedger's, without those that this project does not use; 600 and above belong to this project.
    The number of a deleted row is never reused, because clients and logs of older versions know it.
    """

    error: type[DLedgerError]
    meaning: str
    cause: str
    fix: str
    hint: str

    # Defaults are needed because type checkers treat the look-up `Code(404)` as a call of this method.
    def __new__(
        cls,
        number: int,
        error: type[DLedgerError] = DLedgerError,
        meaning: str = "",
        cause: str = "",
        fix: str = "",
        hint: str = "",
    ) -> Self:
        self = int.__new__(cls, number)
        self._value_ = number
        self.error = error
        self.meaning, self.cause, self.fix, self.hint = meaning, cause, fix, hint
        return self

    # fmt: off
    UNKNOWN = (-1, Indeterminate, "The number is not known to this version.",
        "A newer server, or an invalid message of a peer. Clients treat the operation as in doubt.",
        "Upgrade the client to the version of the nodes.")
    SUCCESS = (200, InvalidRequest, "The request succeeded.", "None.", "None.")
    TIMEOUT = (300, Indeterminate, "There was no answer in time. The append is in doubt.",
        "A majority of the nodes is down or disconnected, disks are slow, or the time-out is too short.",
        "Check `dledger status`. Read the log to find out whether the entry is there. In a session, "
        "append it again.",
        "check with `dledger status` that a majority of the nodes runs")
    NETWORK_ERROR = (302, Indeterminate, "The server was not reached, or the connection broke.",
        "The node is down, the address is wrong, a firewall drops the packets, or only one side uses "
        "TLS.",
        'Check `--servers` and `dledger status`. With TLS see "When it does not connect" in '
        "[TLS](../tls.md).",
        "check --servers, and that the nodes run (`dledger status`)")
    UNKNOWN_GROUP = (400, InvalidRequest, "The node serves a log with another name.",
        "`--group`, or `group` in a node's configuration, is wrong.",
        "Name the group that the message shows, with `--group`.", "name the group with --group")
    UNKNOWN_MEMBER = (401, InvalidRequest, "The named or sending node is not a member.",
        "`transfer --to` names a wrong id, or a node with an id outside `[members]` contacts this cluster.",
        "Use an id that `dledger member list` shows. Add the sender with `dledger member add`, or correct "
        "its `node_id`.")
    UNEXPECTED_MEMBER = (402, InvalidRequest, "A message between nodes was meant for another node.",
        "The addresses of two ids are swapped in `[members]` or `peer_addresses`, a load balancer is between "
        "nodes, or a new machine with the node id of a member has not been added yet.",
        "Configure the right address for each id on all nodes. Remove the load balancer. Add the new machine "
        "with `dledger member replace`.")
    EXPIRED_TERM = (403, Indeterminate, "The message has an older term than its receiver.",
        "A deposed leader keeps sending until it learns the newer term. Normal during a failover.",
        "No action is needed. Clients find the new leader automatically.")
    NOT_LEADER = (404, NotLeader, "The node does not lead. Nothing was written.",
        "The client contacted a follower, the leader has just changed, or no majority of the nodes runs. The "
        "answer names the leader if the node knows it, and otherwise why servers did not answer.",
        'List all nodes in `--servers`. If the error persists, see "No leader" in '
        "[operations](../operations.md#failures).",
        "list all nodes in --servers, and check that a majority runs (`dledger status`)")
    NOT_FOLLOWER = (405, Refused, "The target refused a transfer, because it does not follow this leader.",
        "The target is in an election, or follows a newer leader.",
        "Wait until `dledger status` shows one leader, then transfer again.")
    INCONSISTENT_STATE = (406, Refused,
        "Between nodes: the follower lacks the entry before the leader's push, or has a different one.",
        "Normal when a node returns: the leader moves back until both logs match.", "No action is needed.")
    INCONSISTENT_INDEX = (408, InvalidRequest,
        "A leader tried to truncate committed entries, or two logs have different histories at one index "
        "and term. The node stops.",
        "A directory was copied, edited, or restored while its cluster was running.",
        "Keep copies of all directories. Find the node whose files differ with `dledger inspect`. Rejoin "
        "that node with `--rejoin`.")
    INCONSISTENT_LEADER = (409, NotLeader, "There are two leaders in one term. The node stops.",
        "Two nodes have the same identity, or copies of the same directory.",
        "Stop the copy. Never start a node from a copy of a directory: use `backup` and `restore`, or "
        "`--rejoin`.")
    INDEX_OUT_OF_RANGE = (410, ReadFailed, "The read starts after the last committed entry.",
        "The index belongs to another cluster, or was never committed.",
        "Read from an index within the range that the message shows. `follow` waits for future "
        "entries.")
    UNEXPECTED_ARGUMENT = (411, InvalidRequest, "The request is malformed or has a value out of range.",
        "A bug of the client, perhaps one in another language.",
        "Correct the request; the message names the field. A retry cannot help.")
    DISK_ERROR = (414, StorageError,
        "The operating system reported an error for a file of the node. The process ends with code 74.",
        "A failing disk, a directory removed or replaced while in use, missing permissions.",
        "Check the kernel log. Replace a failing disk, or correct the permissions; then start the "
        "node. If the directory is lost, use `--rejoin`.")
    DISK_FULL = (415, Overloaded,
        "The disk has no free space beyond `limits.disk_reserve_bytes`. Nothing was written or sent.",
        "The disk of the leader is full, and no other member has free space.",
        "Free space, or purge entries: `dledger purge --before-age 1d`. Set `[retention]`. No restart is "
        "needed.",
        "free space on the leader's disk")
    FALL_BEHIND_TOO_MUCH = (417, Refused, "A transfer was refused: its target is not connected or lags.",
        "The target is catching up.", "Wait until the lag in `dledger status` is 0, then transfer again.")
    TAKE_LEADERSHIP_FAILED = (418, Refused, "A transfer was aborted. The old leader continues to serve.",
        "The target did not take over within `timing.transfer_timeout_ms`, refused, or no other member is "
        "connected.",
        "Check the target's log, then transfer again.")
    INDEX_LESS_THAN_LOCAL_BEGIN = (419, ReadFailed, "The entry was purged.",
        "The reader is behind the entries that `[retention]` keeps.",
        "Start at the index that the message shows. Keep more with `retention.max_age` or "
        "`retention.max_bytes`.")
    REQUEST_WITH_EMPTY_BODYS = (420, InvalidRequest, "An append without a body.",
        "A bug of the client. An empty body is allowed, an empty batch is not.",
        "Append at least one body.")
    INTERNAL_ERROR = (500, Indeterminate,
        "An internal check failed, or the node is stopping. The append is in doubt.",
        "A bug, unless the node was being stopped. A violated invariant stops the node.",
        "Keep the node's log and directory, and report the bug. Restart the node.")
    TERM_CHANGED = (501, Indeterminate,
        "The leader was deposed before the append was committed. The append is in doubt.", "A failover.",
        "In a session the client retries automatically. Otherwise read the log, then append again "
        "if it is not there.")
    WAIT_QUORUM_ACK_TIMEOUT = (502, Indeterminate,
        "No majority stored the append in time. The append is in doubt.",
        "A majority of the nodes is down, cut off, or has slow disks.",
        "Check the lags in `dledger status`. Restart nodes that are down.",
        "check with `dledger status` that a majority of the nodes runs")
    LEADER_PENDING_FULL = (503, Overloaded, "The limit of pending work was reached. Nothing was written.",
        "Clients append faster than a majority can store, or disk space is being prepared.",
        "Retry later, as the client does automatically. Send less at a time, or raise "
        "`limits.max_pending_bytes`, `limits.max_pending_appends`.")
    ILLEGAL_MEMBER_STATE = (504, Refused,
        "The operation is not possible in the current state of the client or node.",
        "A closed client; a transfer to a node that is rejoining or has a full disk; a command of "
        "`dledger cluster` for a stopped node.",
        "Follow the message. Open a new client; choose another node.")
    LEADER_TRANSFERRING = (506, NotLeader, "A leadership transfer is in progress. Nothing was written.",
        "`dledger transfer`, a planned stop, or `preferred_leaders`.",
        "Retry after a moment, as the client does automatically.")
    # -- sessions
    SESSION_GAP = (600, Refused, "A batch of a session arrived before its predecessor. Nothing was written.",
        "Batches of one session were sent out of order, for example after a broken stream.",
        "The client resends them in order. In a client of your own: number batches without gaps.")
    SESSION_EXPIRED = (601, SessionExpired,
        "The session is no longer known. Unanswered appends are in doubt.",
        "More than 10,000 newer sessions evicted it, or this is another cluster.",
        "Read the log to find out which entries are there, then open a new session (`new_session()`).")
    SESSION_CONFLICT = (602, InvalidRequest, "A `seq` was reused with different bodies.",
        "Two programs use one session, or a client reuses numbers.",
        "Give each program a session of its own.")
    SESSION_WINDOW_FULL = (603, Refused, "64 batches of the session are uncommitted. Nothing was written.",
        "The client sends faster than a majority can store.",
        "Wait for results before sending more, as the client does automatically.")
    # -- limits and handshake
    BODY_TOO_LARGE = (610, InvalidRequest, "One body exceeds `limits.max_body_bytes`. Nothing was written.",
        "The body is larger than 4 MiB + 64 KiB, or than the configured limit.",
        "Split the body, or raise the limit on all nodes.")
    BATCH_TOO_LARGE = (611, InvalidRequest,
        "A batch exceeds `limits.max_batch_bytes` or `limits.max_batch_entries`.",
        "Too many or too large entries in one atomic batch.",
        "Split the batch, or raise the limit on all nodes. A batch must fit into one data file.")
    TOO_MANY_CONNECTIONS = (612, Overloaded,
        "Too many streams or calls are open at the node, or a request did not arrive in time. Nothing was "
        "written.",
        "Too many clients, streams that clients do not close, an address beyond its quota of streams, or a "
        "slow network.",
        "Close unused streams. Raise `limits.max_append_streams`, `limits.max_read_streams` or "
        "`limits.max_calls`. See [limits](../limits.md).")
    TOO_MANY_WAITING_READS = (613, Overloaded, "Too many linearizable reads are waiting for confirmation.",
        "More than `limits.max_waiting_reads` at a time, often without a leader.",
        "Read from another node, read later, or raise the limit.")
    UNKNOWN_CLUSTER = (620, InvalidRequest,
        "A node of another cluster, or a client that is bound to another cluster, contacted this one.",
        "`cluster_id` differs, or an address belongs to another cluster, which may be new: a recovered or "
        "promoted member.",
        "Correct `cluster_id` or the addresses in `[members]`, or those of the client.")
    UNSUPPORTED_VERSION = (621, InvalidRequest,
        "The peer, or the writer of this log, has another protocol or rules version.",
        "Nodes of different releases, or an older release on the directory of a newer one.",
        "Stop all nodes, install the same release on each, and start them.")
    READ_NOT_CONFIRMED = (622, ReadFailed, "A linearizable read was not confirmed in time.",
        "There is no leader, this node cannot reach it, its disk hangs, or it is rejoining.",
        "Use another node, as the client does automatically. `local` reads need no confirmation and may be "
        "stale.")
    MEMBERS_DIFFER = (623, ConfigError,
        "Two nodes have different lists of the first members of the group.",
        "A typo in `[members]`, or a node was initialized that should be added to a group.",
        "Give all first nodes the same ids; start an added node with `--join`. See "
        '"The list of members is wrong" in [operations](../operations.md#failures).')
    TERM_REFUSED = (624, InvalidRequest,
        "A term is more than 2^32 ahead of the node's own. The message was ignored.",
        "A forged or corrupt message, or nodes that stored such a term with an older version.",
        'Find the sender in the log. See "A term is implausibly high" in '
        "[operations](../operations.md#failures).")
    SECRET_REFUSED = (625, InvalidRequest,
        "A message between nodes has no cluster secret, or a wrong one.",
        "`cluster_secret_file` is missing or different on a node, or an outsider impersonates a member.",
        "Copy the same file to all nodes. See [the cluster's secret](../tls.md#the-clusters-secret).")
    AGE_PURGE_PAUSED = (626, Refused, "Purging by age is paused. Nothing was purged.",
        "Cluster time has stepped by more than an hour, so entries may only look old.",
        'Check the clocks of the members. Purge by index, or wait for an hour ("Purging by age pauses" in '
        "[operations](../operations.md#failures)).")
    # -- a node's own directory and configuration
    CONFIG_INVALID = (630, ConfigError,
        "A configuration key or value is wrong. The message names it and valid values.",
        "A typo, a wrong type, or incompatible values.",
        "Correct the file. See the [configuration keys](config.md).")
    NOT_INITIALIZED = (631, StorageError, "The directory does not belong to a node.",
        "The node was never started, the path is wrong, or the directory is lost.",
        "First nodes of a group: `dledger init`. A node that is added to a group: `dledger server --join`. "
        "Lost directory: `dledger server --rejoin`. Never `init` for the last two.")
    ALREADY_INITIALIZED = (632, StorageError, "The directory is not empty.",
        "`init`, `--rejoin`, `backup` or `restore` found files there.",
        "Choose an empty directory. Do not empty the directory of a node that has voted.",
        "choose an empty directory")
    DIRECTORY_LOCKED = (633, StorageError, "Another process uses the directory.",
        "The node is already running, or an old process hangs.", "Stop the process that the message names.",
        "another server uses this directory: stop it first")
    FOREIGN_DIRECTORY = (634, StorageError,
        "The directory belongs to another cluster, group, node or format version, or was opened "
        "by an original DLedger.",
        "A wrong path or id, a newer version of this program, or foreign files in the log directory.",
        "Correct `directory`, `cluster_id`, `node_id`. Remove foreign files. Use the version that wrote "
        "the directory.")
    PORT_IN_USE = (635, ConfigError, "A required port is in use.", "Another process listens there.",
        "Stop that process (`ss -ltnp`), or choose another port.")
    CERTIFICATE_REFUSED = (636, InvalidRequest,
        "A certificate was refused because of its CA, its dates, or its names.",
        "It has expired, has another CA, or does not name the host, the member or an admin.",
        "Inspect it: `openssl x509 -in FILE -noout -text`. See [TLS](../tls.md).",
        "inspect the certificates: `openssl x509 -in FILE -noout -text`")
    PLAINTEXT_REFUSED = (637, ConfigError,
        "The node would use plain text beyond this machine, or members could not authenticate. It "
        "does not start, or does not add the member.",
        "Neither `[tls]` nor `allow_plaintext`, or neither mutual TLS nor `cluster_secret_file`.",
        "Add `[tls]`. In a trusted network: `allow_plaintext = true` and a `cluster_secret_file`.")
    DIRECTORY_REPLACED = (638, StorageError,
        "Another member knows a newer directory of this node, or another first one. The process ends with "
        "code 74.",
        "A volume that was missing while the node rejoined has returned, or `init` or `restore` was run "
        "again for a lost directory.",
        "Use the newest directory (`dledger inspect` shows the number). If it is lost, remove this one "
        'and start the node with `--rejoin`. See "An earlier directory of a node returns" in '
        "[operations](../operations.md#failures).")
    DATA_DAMAGED = (640, StorageError, "Stored entries are unreadable, or bytes were changed in transit.",
        "A bad sector, a flipped bit, or an editor.",
        "The node repairs them from another member. If it recurs, replace the disk. `dledger scrub` "
        "searches for further damage.",
        "first make a copy, then examine it with `dledger inspect`")
    FSYNC_FAILED = (641, StorageError, "fdatasync failed. The process ends with code 74.",
        "The disk or its connection is failing.",
        "Replace a failing disk, then start the node. The next start reads from disk, bypassing the "
        "page cache.")
    STATE_DAMAGED = (642, StorageError,
        "The identity, or term and vote, of the node are missing or damaged. It does not start.",
        "A lost or edited file. Without its vote a node could vote twice.",
        "Move the directory away and rejoin with `--rejoin`. For a backup: use another copy.")
    BACKUP_INCOMPLETE = (643, StorageError, "The directory does not contain a complete backup.",
        "The path is wrong, or the backup was interrupted.",
        "Use another backup. A repeated `dledger backup` into the same directory starts over.")
    BACKUP_DISK_FULL = (644, StorageError, "The disk of a backup is full. No backup was made.",
        "The file system of the target has too little space.",
        "Free space there, or choose another directory, and make the backup again. The broker is not "
        "affected.")
    # -- programs that own a node
    APPENDS_BY_OWNER_ONLY = (650, InvalidRequest,
        "Only the program that runs in the nodes may append to this log.",
        "A client appended to the log of a broker.",
        "Send messages through the broker: `dledger broker produce`.")
    ROLE_EPOCH_CHANGED = (651, NotLeader,
        "The leadership for which the append was meant has ended. Nothing was written.",
        "A failover after the last role change that the owner processed.",
        "The owner (a broker) waits for its next role change. No action is needed.")
    # -- changes of the members
    CHANGE_RUNNING = (660, Refused, "The members cannot be changed at the moment. Nothing was changed.",
        "Another change or a transfer of leadership is under way, or the leader has just been elected.",
        "Try again. `dledger member list` shows a change that is under way.")
    CHANGE_REFUSED = (661, InvalidRequest, "The change of the members is not possible. Nothing was changed.",
        "It would remove the last voter, use the address of another member, or add a node whose directory "
        "was not created with `--join`.",
        "See the message, and `dledger member list`.", "list the members with `dledger member list`")
    LEARNER_NOT_READY = (662, Refused,
        "The new node does not answer, so it was not added; or it has not caught up, so it was not promoted.",
        "It is not running, was added recently, or is slower than the appends.",
        "Start it. Wait until `dledger member list` shows it as ready. `promote --force` promotes it "
        "nevertheless; appends may then wait for it.")
    NO_LIVE_MAJORITY = (663, Refused,
        "After the change, no majority of the voters would be in contact with the leader. Nothing was "
        "changed.",
        "Too many of the remaining members are down.",
        "Start them, or replace them one by one. `--force` makes the change nevertheless.")
    CHANGE_UNKNOWN = (664, Indeterminate,
        "The leader changed before the change of the members was committed. It is in doubt.",
        "A failover during the change.",
        "List the members with `dledger member list`, and repeat the change if it is missing. A change "
        "that is in force already succeeds.")
    MEMBER_REPLACED = (665, StorageError,
        "This machine was replaced, or removed and added again: the group has another member with its node "
        "id. The process ends with code 74.",
        "The old machine of a replaced member was started again.",
        "Leave it off. To use the machine again, remove its directory, start it with `--join`, and add it "
        "with `dledger member add`.")
    MEMBER_OUTDATED = (666, Refused,
        "A member may run a release that cannot change members. Nothing was changed.",
        "The upgrade is not complete, or the member is down since before the leader started.",
        "Upgrade all members. If the named ones are gone for good and ran no older release, repeat the "
        "command with `--force`.")
    RECOVERY_REFUSED = (667, Refused, "The log was not recovered as a new cluster. Nothing was changed.",
        "Another member answers, so the group may still have a majority; or the node needs no recovery.",
        "Start the members that are left. If too few are left, stop them all, and recover the one with the "
        "longest log. See [recovery](../recovery.md).")
    RECOVERY_UNFINISHED = (668, StorageError,
        "The recovery of the directory as a new cluster was interrupted. The node does not start.",
        "The command `dledger recover` or `dledger mirror promote` was killed, or the disk was full.",
        "Run the command that the message names again: it continues.")
    PROMOTION_REFUSED = (669, Refused,
        "The learner was not promoted to a cluster of its own. Nothing was changed.",
        "A member of its group answers; or the directory is not that of a learner that has caught up.",
        "Stop the group, or promote with `--fork`. For the directory of a voter use `dledger recover`. See "
        "[mirrors](../mirror.md).")
    # fmt: on


def error_for(
    code: int, message: str, *, leader_id: str | None = None, leader_address: str | None = None
) -> DLedgerError:
    """Build the exception for a code from the wire. Unknown numbers become Indeterminate/UNKNOWN."""
    try:
        known = Code(code)
    except ValueError:
        return Indeterminate(f"unknown code {code}: {message}", code=Code.UNKNOWN)
    return known.error(message, code=known, leader_id=leader_id, leader_address=leader_address)
