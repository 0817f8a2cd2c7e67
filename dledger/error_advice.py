"""Advice for every error number of the log: meaning, cause, fix.

The table is the source of docs/reference/troubleshooting.md and of `dledger explain`.
"""

from __future__ import annotations

from typing import NamedTuple

from dledger.errors import Code


class Advice(NamedTuple):
    """What an error means, what causes it, and what to do about it. Markdown; links as from docs/reference.

    `hint`: the fix in half a line, for the command line; only where the message of the error cannot know it.
    `is_given`: False for numbers of DLedger that this version never gives.
    """

    meaning: str
    cause: str
    fix: str
    hint: str = ""
    is_given: bool = True


def _not_given(meaning: str) -> Advice:
    return Advice(
        meaning[0].upper() + meaning[1:], "This version never gives it.", "Nothing.", is_given=False
    )


LOG_ADVICE: dict[Code, Advice] = {
    Code.UNKNOWN: Advice(
        "The number is not known to this version.",
        "A newer server answered, or a peer sent a number beyond the table. Treated as in doubt.",
        "Upgrade the client to the version of the nodes.",
    ),
    Code.SUCCESS: Advice(
        "The request was carried out.",
        "None.",
        "None.",
    ),
    Code.TIMEOUT: Advice(
        "No answer came in time. The append is in doubt.",
        (
            "A majority of the nodes does not run or does not reach each other, disks are slow, or the "
            "time-out is too short."
        ),
        (
            "Look at `dledger status`. Read the log to find out whether the entry is there; inside a "
            "session append again."
        ),
        hint="check with `dledger status` that a majority of the nodes runs",
    ),
    Code.METADATA_ERROR: _not_given("the request names metadata that do not exist."),
    Code.NETWORK_ERROR: Advice(
        "The server was not reached, or the connection broke.",
        (
            "The node is down, the address is wrong, a firewall drops the packets, or one side speaks TLS "
            "and the other does not."
        ),
        (
            'Check `--servers` and `dledger status`. With TLS see "When it does not connect" in '
            "[TLS](../tls.md)."
        ),
        hint="check --servers, and that the nodes run (`dledger status`)",
    ),
    Code.UNSUPPORTED: _not_given("the request is not supported."),
    Code.UNKNOWN_GROUP: Advice(
        "The node serves a log of another name.",
        "`--group`, or `group` in a node's configuration, differs.",
        "Name the group that the message shows, with `--group`.",
        hint="name the group with --group",
    ),
    Code.UNKNOWN_MEMBER: Advice(
        "A node that is no member was named, or sent a message.",
        "`transfer --to` names a wrong id, or a node with an id outside `[members]` reaches this cluster.",
        "Use an id that `dledger status` shows. Correct `node_id` and `[members]` of the sender.",
    ),
    Code.UNEXPECTED_MEMBER: Advice(
        "A message between nodes was meant for another node.",
        (
            "Two ids have exchanged their addresses in `[members]` or `peer_addresses`, or a load balancer "
            "stands between nodes."
        ),
        "Give each id the address of its own node on all nodes. Remove the load balancer.",
    ),
    Code.EXPIRED_TERM: Advice(
        "A message of an older term. The receiver has a newer one.",
        "A deposed leader goes on sending until it learns of the newer term. Normal during a failover.",
        "Nothing. Clients find the new leader automatically.",
    ),
    Code.NOT_LEADER: Advice(
        "The node does not lead. Nothing was written.",
        (
            "The client asked a follower, or the leader has just changed. The answer names the leader if "
            "the node knows it."
        ),
        'Name all nodes in `--servers`. If it lasts, see "No leader" below.',
        hint="name all nodes in --servers, so that the leader can be found",
    ),
    Code.NOT_FOLLOWER: Advice(
        "A transfer was refused by its target, which does not follow this leader.",
        "The target is electing, or follows a newer leader.",
        "Wait until `dledger status` shows one leader, then transfer again.",
    ),
    Code.INCONSISTENT_STATE: Advice(
        "Between nodes: a follower has no entry, or another one, where the leader continues.",
        "Normal when a node comes back: the leader steps back until both logs match.",
        "Nothing.",
    ),
    Code.INCONSISTENT_TERM: _not_given("the terms of two nodes do not fit."),
    Code.INCONSISTENT_INDEX: Advice(
        (
            "A node was asked to truncate committed entries, or two logs have different histories at one "
            "index and term. The node stops."
        ),
        "A directory was copied, edited, or restored beside a running cluster.",
        (
            "Keep copies of all directories. Find the node whose files differ with `dledger inspect`. Bring"
            " that one back with `--rejoin`."
        ),
    ),
    Code.INCONSISTENT_LEADER: Advice(
        "Two leaders claim one term. The node stops.",
        "Two nodes run with one identity, or with directories that are copies of each other.",
        (
            "Stop the copy. Never start a node from a copy of a directory: use `backup` and `restore`, or "
            "`--rejoin`."
        ),
    ),
    Code.INDEX_OUT_OF_RANGE: Advice(
        "A read begins behind the committed end.",
        "The reader is ahead: another cluster, or an index that was never committed.",
        (
            "Read from an index within the range that the message shows. `follow` waits for entries that "
            "are yet to come."
        ),
    ),
    Code.UNEXPECTED_ARGUMENT: Advice(
        "The request is malformed or has a value out of range.",
        "A defect of the client, or of a client in another language.",
        "Correct the request; the message names the field. Sending it again cannot help.",
    ),
    Code.REPEATED_REQUEST: _not_given("the same request is under way."),
    Code.REPEATED_PUSH: _not_given("the same push is under way."),
    Code.DISK_ERROR: Advice(
        "The operating system reported an error for a file of the node. The process ends with code 74.",
        "A failing disk, a directory that was removed or replaced while in use, missing permissions.",
        (
            "Look at the kernel's log. Replace the disk if it fails; correct the permissions; then start "
            "the node. If the directory is lost, use `--rejoin`."
        ),
    ),
    Code.DISK_FULL: Advice(
        "No room beyond `limits.disk_reserve_bytes`. Nothing was written or sent.",
        "The disk of the leader is full, and no other member has room.",
        (
            "Free space, or let entries go: `dledger purge --before-age 1d`. Set `[retention]`. No restart "
            "is needed."
        ),
        hint="free space on the leader's disk",
    ),
    Code.TERM_NOT_READY: _not_given("the term has not begun."),
    Code.FALL_BEHIND_TOO_MUCH: Advice(
        "A transfer was refused: its target is not connected or lags.",
        "The target is catching up.",
        "Wait until the lag in `dledger status` is 0, then transfer again.",
    ),
    Code.TAKE_LEADERSHIP_FAILED: Advice(
        "A transfer was given up. The old leader serves on.",
        (
            "The target did not take over within `timing.transfer_timeout_ms`, refused, or no other member "
            "is connected."
        ),
        "Look at the target's log, then transfer again.",
    ),
    Code.INDEX_LESS_THAN_LOCAL_BEGIN: Advice(
        "The entry was purged.",
        "The reader is older than what `[retention]` keeps.",
        (
            "Read from the begin that the message shows. Keep more with `retention.max_age` or "
            "`retention.max_bytes`."
        ),
    ),
    Code.REQUEST_WITH_EMPTY_BODYS: Advice(
        "An append without a body.",
        "A defect of the client. An empty body is allowed, a batch of none is not.",
        "Append at least one body.",
    ),
    Code.PUSH_REQUEST_IS_FULL: _not_given("too many pushes wait."),
    Code.NEWER_INSTALL_SNAPSHOT_REQUEST_EXIST: _not_given("a newer snapshot is being installed."),
    Code.INTERNAL_ERROR: Advice(
        "Something that must not happen has happened, or the node is stopping. The append is in doubt.",
        "A defect, if the node was not being stopped. A broken invariant stops the node.",
        "Keep the node's log and directory, and report it. Start the node again.",
    ),
    Code.TERM_CHANGED: Advice(
        "The leader lost its office before the append was committed. The append is in doubt.",
        "A failover.",
        (
            "Inside a session the client settles it automatically. Otherwise read the log, then append again"
            " if it is not there."
        ),
    ),
    Code.WAIT_QUORUM_ACK_TIMEOUT: Advice(
        "No majority stored the append in time. The append is in doubt.",
        "A majority of the nodes is down, cut off, or has slow disks.",
        "Look at lags in `dledger status`. Bring nodes back.",
        hint="check with `dledger status` that a majority of the nodes runs",
    ),
    Code.LEADER_PENDING_FULL: Advice(
        "A limit of pending work was reached. Nothing was written.",
        "Clients append faster than a majority stores, or disk space is being prepared.",
        (
            "Try again later, as the client does automatically. Send fewer at once, or raise "
            "`limits.max_pending_bytes`, `limits.max_pending_appends`."
        ),
    ),
    Code.ILLEGAL_MEMBER_STATE: Advice(
        "The object or node is in a state in which it does not do this.",
        (
            "A client that was closed; a transfer to a node that rejoins or has a full disk; a command of "
            "`dledger cluster` for a node that does not run."
        ),
        "Follow the message. Open a new client; choose another node.",
    ),
    Code.LEADER_NOT_READY: _not_given("the leader has not committed in its term."),
    Code.LEADER_TRANSFERRING: Advice(
        "Leadership is being handed over. Nothing was written.",
        "`dledger transfer`, a planned stop, or `preferred_leaders`.",
        "Try again in a moment, as the client does automatically.",
    ),
    Code.LOAD_SNAPSHOT_ERROR: _not_given("a snapshot cannot be loaded."),
    Code.INSTALL_SNAPSHOT_ERROR: _not_given("a snapshot cannot be installed."),
    Code.SESSION_GAP: Advice(
        "A batch of a session came before its predecessor. Nothing was written.",
        "Batches of one session were sent out of order, as after a broken stream.",
        "The client sends them again in order. In a client of your own: keep `seq` dense.",
    ),
    Code.SESSION_EXPIRED: Advice(
        "The session is not known any more. What was unanswered is in doubt.",
        "More than 10,000 younger sessions evicted it, or this is another cluster.",
        "Read the log to find out what is there, then open a new session (`new_session()`).",
    ),
    Code.SESSION_CONFLICT: Advice(
        "Other bodies came under a `seq` that is stored already.",
        "Two programs use one session, or a client reuses numbers.",
        "Give each program a session of its own.",
    ),
    Code.SESSION_WINDOW_FULL: Advice(
        "64 batches of the session are uncommitted. Nothing was written.",
        "The client sends faster than a majority stores.",
        "Wait for answers before you send more, as the client does automatically.",
    ),
    Code.BODY_TOO_LARGE: Advice(
        "One body exceeds `limits.max_body_bytes`. Nothing was written.",
        "The body is larger than 4 MiB + 64 KiB, or than the configured limit.",
        "Split the body, or raise the limit on all nodes.",
    ),
    Code.BATCH_TOO_LARGE: Advice(
        "A batch exceeds `limits.max_batch_bytes` or `limits.max_batch_entries`.",
        "Too many or too large entries in one atomic batch.",
        "Split the batch, or raise the limit on all nodes. A batch must fit into one data file.",
    ),
    Code.TOO_MANY_CONNECTIONS: Advice(
        (
            "Too many streams or calls are open at the node, or a request did not arrive in time. Nothing "
            "was written."
        ),
        (
            "Clients that do not close their streams, too many clients, one address with more than its share "
            "of the streams, or a slow network."
        ),
        (
            "Close what is not used. Raise `limits.max_append_streams`, `limits.max_read_streams` or "
            "`limits.max_calls`. See [limits](../limits.md)."
        ),
    ),
    Code.TOO_MANY_WAITING_READS: Advice(
        "Too many linearizable reads wait for their confirmation.",
        "More than `limits.max_waiting_reads` at once, often without a leader.",
        "Read from another node, read later, or raise the limit.",
    ),
    Code.UNKNOWN_CLUSTER: Advice(
        "A node of another cluster speaks to this one.",
        "`cluster_id` differs, or an address belongs to another cluster.",
        "Correct `cluster_id` or the addresses in `[members]`.",
    ),
    Code.UNSUPPORTED_VERSION: Advice(
        "The peer speaks a protocol version that this node does not.",
        "Nodes of too different versions.",
        "Upgrade the older nodes.",
    ),
    Code.READ_NOT_CONFIRMED: Advice(
        "A linearizable read was not confirmed in time.",
        "There is no leader, or this node does not reach it; its disk hangs; it is rejoining.",
        (
            "Ask another node, as the client does automatically. `local` reads need no confirmation and may "
            "be stale."
        ),
    ),
    Code.MEMBERS_DIFFER: Advice(
        "Two nodes, or a node and its directory, have different lists of members.",
        "A typo in `[members]`, or an attempt to change the members of a running cluster.",
        (
            'Give all nodes the same ids. See "The list of members is wrong" in '
            "[operations](../operations.md#the-bad-days-one-by-one)."
        ),
    ),
    Code.TERM_REFUSED: Advice(
        "A term lies more than 2^32 beyond the node's own. The message changed nothing.",
        "A forged or broken message; nodes that stored such a term with an older version.",
        (
            'Find the sender in the log. See "A term beyond reason" in [operations](../operations.md#the-'
            "bad-days-one-by-one)."
        ),
    ),
    Code.SECRET_REFUSED: Advice(
        "A message between nodes carries no secret of the cluster, or a wrong one.",
        "`cluster_secret_file` is missing or differs on a node, or a stranger speaks as a member.",
        "Copy the same file to all nodes. See [the cluster's secret](../tls.md#the-clusters-secret).",
    ),
    Code.CONFIG_INVALID: Advice(
        "A key or value of a configuration is wrong. The message names it and what is valid.",
        "A typo, a wrong type, or values that exclude each other.",
        "Correct the file. See the [configuration keys](config.md).",
    ),
    Code.NOT_INITIALIZED: Advice(
        "The directory holds no node.",
        "`dledger init` was not run, the path is wrong, or the directory is lost.",
        "New node: `dledger init`. Lost directory: `dledger server --rejoin`, never `init`.",
        hint="run `dledger init` for a new node; never for one that lost its directory",
    ),
    Code.ALREADY_INITIALIZED: Advice(
        "The directory is not empty.",
        "`init`, `--rejoin`, `backup` or `restore` found files there.",
        "Choose an empty directory. Do not empty one whose node has voted.",
        hint="choose an empty directory",
    ),
    Code.DIRECTORY_LOCKED: Advice(
        "Another process uses the directory.",
        "The node runs already, or an old process hangs.",
        "Stop the process that the message names.",
        hint="another server uses this directory: stop it first",
    ),
    Code.FOREIGN_DIRECTORY: Advice(
        (
            "The directory belongs to another cluster, group or node, to another format version, or was "
            "opened by an original DLedger."
        ),
        "A wrong path or id, a newer version of this program, or foreign files beside the log.",
        (
            "Correct `directory`, `cluster_id`, `node_id`. Remove foreign files. Use the version that wrote"
            " the directory."
        ),
    ),
    Code.PORT_IN_USE: Advice(
        "A port that the node needs is taken.",
        "Another process listens there.",
        "Stop that process (`ss -ltnp`), or choose another port.",
    ),
    Code.CERTIFICATE_REFUSED: Advice(
        "A certificate was refused: by its CA, its dates, or its names.",
        "It has expired, is signed by another CA, or does not name the host, the member or an admin.",
        "See what it says: `openssl x509 -in FILE -noout -text`. See [TLS](../tls.md).",
        hint="look at the certificates: `openssl x509 -in FILE -noout -text`",
    ),
    Code.PLAINTEXT_REFUSED: Advice(
        (
            "The node would serve in plain text beyond this machine, or members could not know each other. "
            "It does not start."
        ),
        "No `[tls]`, and no `allow_plaintext`; or no `cluster_secret_file` without mutual TLS.",
        "Add `[tls]`. In a trusted network: `allow_plaintext = true` and a `cluster_secret_file`.",
    ),
    Code.DATA_DAMAGED: Advice(
        "Stored entries cannot be read, or bytes on the way were changed.",
        "A bad sector, a flipped bit, or an editor.",
        (
            "The node repairs them from another member. If it happens again, replace the disk. `dledger "
            "scrub` looks for more."
        ),
        hint="look at it with `dledger inspect`; keep a copy before anything else",
    ),
    Code.FSYNC_FAILED: Advice(
        "fdatasync failed. The process ends with code 74.",
        "The disk or its connection fails.",
        (
            "Replace the disk if it fails, then start the node. The next start reads from the disk, past "
            "the page cache."
        ),
    ),
    Code.STATE_DAMAGED: Advice(
        "The identity, or term and vote, of the node are missing or damaged. It does not start.",
        "A lost or edited file. Without its vote a node could vote twice.",
        "Move the directory away and bring the node back with `--rejoin`. For a backup: take another copy.",
    ),
    Code.APPENDS_BY_OWNER_ONLY: Advice(
        "The log is written by the program on its nodes.",
        "An append of a client to the log of a broker.",
        "Send messages through the broker: `dledger broker produce`.",
    ),
    Code.ROLE_EPOCH_CHANGED: Advice(
        "The node is not in the leadership any more for which the append was meant. Nothing was written.",
        "A failover between the role change of the owner and its append.",
        "The owner (a broker) waits for its next role change. Nothing to do for operators.",
    ),
}
