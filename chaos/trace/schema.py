"""Schema of traces: the kinds of lines and their fields. Pure, without dependencies.

A trace is a directory `<run>/raw/` with one JSONL file per writer and incarnation (`file_name`). Each line
is one flat JSON object: the envelope (`ENVELOPE`) and the fields of its event (`EVENTS`). Values are 64-bit
integers, strings or booleans, never floats, lists or nested objects; a field without a value is omitted.
The Nth line of a file has seq N - 1, so (src, inc, seq) identifies file and line.

Conventions that the checks rely on:

- `mono` is CLOCK_MONOTONIC in ns. An invoke is stamped and written before the request is sent, a completion
  after the answer arrived, so intervals can only be too long. `wall` (ns) is informative.
- An operation is `fail` only if it definitely had no effect. The default is `info`.
- A process (`proc`) has one operation at a time and is never used again after an `info`.
- The harness assigns `mid`, which is unique in a run. Retries within one operation are separate lines
  (`attempt`), which do not excuse duplicates: only refused requests are retried, or, in a session, requests
  that are stored once.
- Events of nodes are written in the critical section that makes the change. Evidence of a guarantee (vote,
  ack, flush) is in the file before its effect is visible outside of the node.
- A log is named `ledger:<ledger>` (positions: `lidx`) or `q:<topic>/<q>` (positions: `qoff`). Operations on a
  queue also have `ledger`, so that their `lidx` can be compared.
- `epoch`, of a member that is assigned queues and of its reads, counts the assignments of its group. Older
  traces also have it in commits, resets and fetched offsets, where no check uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

VERSION = 1
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
RAW_DIR = "raw"
#: Name of the only log of a run.
LEDGER = "log"
SUFFIX = ".jsonl"


class Ev(StrEnum):
    """Kind of a line."""

    OP = "op"
    #: One message of a batch, written before the invoke of its operation.
    ITEM = "item"
    #: An automatic retry within one operation.
    ATTEMPT = "attempt"
    #: One entry or message that an operation delivered to a client.
    DLV = "dlv"
    #: The result of processing a delivered message.
    DONE = "done"
    #: A consumer joins, is assigned queues, crashes.
    MEMBER = "member"
    RAFT = "raft"
    STORE = "store"
    ROLE = "role"
    FAULT = "fault"
    META = "meta"
    #: One entry of a node's ledger, read from its files after the run.
    DUMP = "dump"
    #: One record of the log of a lost classic master, read from its files after the run.
    LEFT = "left"
    #: One unit of a node's ConsumeQueue, read from its files after the run.
    CQ = "cq"
    #: A call to the operating system and its result, recorded independently of the product (`chaos.syncs`).
    DISK = "disk"


class OpType(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Kind(StrEnum):
    INT = "int"
    STR = "str"
    BOOL = "bool"


def _words(*lines: str) -> tuple[str, ...]:
    return tuple(" ".join(lines).split())


_INT = _words(
    # Envelope.
    "v inc seq mono wall "
    # Operations and messages. attempt: 0 for the first delivery. retry_no: of an `attempt`.
    "op i count mid delay_ms retry_no attempt epoch q qoff lidx from_off next_off max_off "
    "min_off off "
    # Nodes. last: last index of a range that starts at lidx. ended: last index present (-1 if none).
    "term eterm last ended committed reput target barrier last_index last_term cand_last_index "
    "cand_last_term role_epoch size tag_hash uid "
    # Faults and the run.
    "fault seed nodes planned_faults max_attempts clock_bound_ns window_ms most_bytes pid since "
    # Retention.
    "keep_ms keep_bytes purge_to"
)
_STR = _words(
    "run src host ev e type proc f "
    "topic ledger digest key tag filter group consumer mode code error node "
    "store broker_role vote candidate chain targets params evidence aim git config flush_mode boot_id "
    "member text voters outgoing learners uids"
)
_BOOL = _words("indexed end_claim stale from_start effective internal is_committed wiped")

#: Every field and the type of its values. A name has the same type in all lines.
FIELDS: dict[str, Kind] = {
    **dict.fromkeys(_INT, Kind.INT),
    **dict.fromkeys(_STR, Kind.STR),
    **dict.fromkeys(_BOOL, Kind.BOOL),
}
#: Fields of every line.
ENVELOPE = ("v", "run", "src", "inc", "seq", "host", "mono", "wall", "ev")


@dataclass(frozen=True, slots=True)
class Event:
    """Fields of one kind of line, in addition to the envelope."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


def _event(required: str, optional: str = "") -> Event:
    return Event(tuple(required.split()), tuple(optional.split()))


#: Operations. `send`, `append`: one message each; `send_batch`: its messages are `item` lines, and its
#: answer has the first position. `get`, `pull`, `drain`: reads (drain: in the final phase). `max_off`,
#: `min_off`: the ends of a log. `commit_off` stores a consumer offset (`off`), `fetch_off` returns it,
#: `reset_off` sets it, also backwards. `lookup` finds messages by key. `route` queries a NameServer; its
#: completion has the master's term. `receive`, `ack`, `change_invisible`: of groups with per-message
#: acknowledgment. Their members own no queues and have no epoch, and an attempt above 0 means that the
#: message was not acknowledged in time, or was returned. `ack` has the `mid` of its message; ok: the
#: message is never redelivered to the group. `delay_ms` of a receive: the messages are invisible to other
#: members for this time, unless they are returned or the member leaves. `delay_ms` of a send: the message
#: is delivered this long after the invoke, and has no known position until then. `recall` withdraws such a
#: message; ok: it is never delivered. `txn_begin` sends a half message, which is delivered if a
#: `txn_commit` of the same `mid` takes effect, and never after a `txn_rollback`. A transaction has at most
#: one of the two.
SENDS = ("send", "append", "send_batch")
READS = ("get", "pull", "drain")
OPERATIONS = (
    *SENDS,
    *READS,
    *("max_off", "min_off", "commit_off", "fetch_off", "lookup", "route", "subscribe", "assign", "seek"),
    *("txn_begin", "txn_commit", "txn_rollback", "admin"),
    *("receive", "ack", "change_invisible", "recall", "reset_off"),
)
#: Kinds of faults that may end a process in the middle of a line. After an error of its disk, a node ends
#: without a signal.
CUTTING = (
    *("kill", "wipe", "take_over", "crash", "power_loss", "write_error", "sync_error"),
    *("replace", "lose_majority", "promote_mirror"),
)
#: Kinds of faults that end a process.
ENDING = (*CUTTING, "term", "remove")
#: Kinds of faults that are hostile clients. Other clients are entitled to normal service, so these faults
#: explain neither a change of leader nor the end of a process.
HOSTILE = (
    *(
        "connection_floods",
        "handshake_floods",
        "exhausted_descriptors",
        "half_requests",
        "garbage",
        "unread_streams",
    ),
    *("expensive_filters", "telemetry_floods", "topic_floods", "repeated_calls"),
    *("abandoned_groups", "dying_clients"),
    *("forged_peers", "forged_registrations", "registration_floods"),
)

_COMPLETION = "node term code lidx qoff next_off max_off min_off epoch end_claim error ledger topic q"


def _request(invoke: str, ok: str) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(invoke.split()), frozenset(ok.split())


_ANSWERED = "node term lidx qoff count ledger topic q"
_ABOUT = "mid digest key tag ledger topic q"
_READER = "ledger topic q from_off stale"
_READ_ANSWER = "count next_off max_off end_claim node term"
_OFFSET = "group consumer epoch topic q node"
#: Fields that the invoke of an operation, and its `ok`, may have in addition to the fields of all operations.
#: Operations not listed here occur only in other systems' histories, whose writers determine their fields.
REQUESTS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "send": _request(f"{_ABOUT} delay_ms node", _ANSWERED),
    "append": _request(f"{_ABOUT} node", _ANSWERED),
    "send_batch": _request("count ledger topic q node", _ANSWERED),
    "get": _request(_READER, _READ_ANSWER),
    "pull": _request(f"{_READER} group consumer epoch", _READ_ANSWER),
    "drain": _request(_READER, _READ_ANSWER),
    "max_off": _request("ledger topic q stale node", "max_off min_off node term"),
    "min_off": _request("ledger topic q stale node", "min_off max_off node term"),
    "commit_off": _request(f"{_OFFSET} off", "node term off epoch"),
    "fetch_off": _request(_OFFSET, "node term off epoch"),
    "reset_off": _request(f"{_OFFSET} off", "node term epoch"),
    "lookup": _request("topic key node", "count end_claim node term"),
    "route": _request("topic node", "node term"),
    "receive": _request("group consumer topic q delay_ms node", "count node term"),
    "ack": _request("group consumer topic q mid node", "node term"),
    "change_invisible": _request("group consumer topic q mid delay_ms node", "node term"),
    "recall": _request("topic q mid node", "topic q node term"),
    "txn_begin": _request(_ABOUT, _ANSWERED),
    "txn_commit": _request(_ABOUT, _ANSWERED),
    "txn_rollback": _request(_ABOUT, _ANSWERED),
}
#: Fields that the invoke of an operation, and its `ok`, must have. Without them, the line does not identify
#: the object of the operation.
DEMANDED: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "send": _request("mid digest topic q", ""),
    "append": _request("mid digest ledger", "lidx term"),
    "send_batch": _request("count", ""),
    "get": _request("from_off", "next_off"),
    "pull": _request("group consumer from_off topic q", ""),
    "drain": _request("from_off", "next_off"),
    "max_off": _request("", "max_off"),
    "min_off": _request("", "min_off"),
    "commit_off": _request("group topic q off", ""),
    "fetch_off": _request("group topic q", "off"),
    "reset_off": _request("group topic q off", ""),
    "lookup": _request("topic key", "end_claim"),
    "route": _request("topic", ""),
    "receive": _request("group consumer", ""),
    "ack": _request("group consumer mid", ""),
    "change_invisible": _request("group consumer mid", ""),
    "recall": _request("mid topic q", ""),
    "txn_begin": _request("mid digest topic q", ""),
    "txn_commit": _request("mid digest topic q", ""),
    "txn_rollback": _request("mid", ""),
}

#: Fields by (ev, what). `what` is the value of `type` for operations, of `e` for other kinds with several
#: events, and "" for kinds with one.
EVENTS: dict[tuple[Ev, str], Event] = {
    (Ev.OP, OpType.INVOKE): _event(
        "op proc f type",
        "ledger topic q mid digest key tag delay_ms count from_off off stale group consumer epoch node",
    ),
    # count: number of messages sent in a batch or returned by a read.
    (Ev.OP, OpType.OK): _event("op proc f type", f"{_COMPLETION} count off"),
    (Ev.OP, OpType.FAIL): _event("op proc f type", _COMPLETION),
    (Ev.OP, OpType.INFO): _event("op proc f type", _COMPLETION),
    (Ev.ITEM, ""): _event("op i mid digest", "ledger topic q key tag delay_ms"),
    # mid: the first message, if the operation is a send. retry_no: 1 for the second attempt. May follow an
    # operation that ended with info, because a session continues to retry it.
    (Ev.ATTEMPT, ""): _event("op retry_no", "mid"),
    # From a queue: topic, q, qoff (and lidx, ledger if known). From a ledger: ledger, lidx.
    # since: the time (ns, as `mono`) when the client had the message. A push consumer may have it before the
    # operation that reports it.
    (Ev.DLV, ""): _event(
        "op i mid digest", "group consumer epoch ledger topic q qoff lidx attempt key tag filter eterm since"
    ),
    # code: ok (processed), retry (to be redelivered), dlq (sent to the dead letter queue).
    (Ev.DONE, ""): _event("mid code group consumer", "op epoch topic q qoff ledger lidx attempt"),
    # A join describes the group's subscription. delay_ms: if queues are locked, the time after a delivery for
    # which no other consumer gets the queue. filter: tags as a||b, * or none. mode: concurrent or orderly in
    # groups whose members own queues; shared or fifo in groups with per-message acknowledgment, where fifo
    # means that the first deliveries of a queue's messages are in order.
    (Ev.MEMBER, "join"): _event("e group consumer topic", "mode filter from_start delay_ms"),
    (Ev.MEMBER, "assign"): _event("e group consumer epoch topic q", "off"),
    (Ev.MEMBER, "reset"): _event("e group topic q off"),
    (Ev.MEMBER, "revoke"): _event("e group consumer epoch topic q"),
    (Ev.MEMBER, "leave"): _event("e group consumer"),
    (Ev.MEMBER, "crash"): _event("e group consumer"),
    # Raft. term is the node's current term. term_vote: both became durable. uid: as which member the node was
    # added; it tells machines apart that had the same node id one after the other. -1: not added yet.
    (Ev.RAFT, "term_vote"): _event("e node term", "vote uid"),
    (Ev.RAFT, "candidate"): _event("e node term", "last_index last_term"),
    (Ev.RAFT, "leader"): _event("e node term ended", "chain role_epoch uid"),
    (Ev.RAFT, "follower"): _event("e node term", "role_epoch"),
    # The voter (node) grants its vote. A candidate's vote for itself is also an event.
    (Ev.RAFT, "vote"): _event(
        "e node term candidate", "last_index last_term cand_last_index cand_last_term uid"
    ),
    # From now on this configuration is in force on the node: at its start, because the node appended entry
    # lidx of term eterm, or because it removed a later configuration (`configuration_undone`). lidx -1: in
    # force from the beginning of the log. Names are separated by commas; uids: name:uid of each member. A
    # joint configuration has outgoing voters; elections and commits then need a majority of both sets.
    (Ev.RAFT, "configuration"): _event("e node lidx eterm voters outgoing learners uids"),
    (Ev.RAFT, "configuration_undone"): _event("e node lidx eterm"),
    (Ev.RAFT, "configuration_committed"): _event("e node term lidx eterm"),
    # committed_index became lidx, the end of a batch; eterm and chain belong to that entry.
    (Ev.RAFT, "commit"): _event("e node term lidx", "ledger eterm chain"),
    # The state machine applied entries lidx to last, or loaded a state image up to lidx.
    (Ev.RAFT, "apply"): _event("e node lidx last", "ledger chain"),
    (Ev.RAFT, "load"): _event("e node lidx"),
    # A server accepts a request, or sends a success response. lidx of an ack: the last index that it
    # acknowledges.
    (Ev.RAFT, "accept"): _event("e node term"),
    (Ev.RAFT, "ack"): _event("e node term lidx"),
    # Store. append: entries lidx..last of one term were written; chain belongs to the last. flush: durable up
    # to lidx.
    (Ev.STORE, "append"): _event("e node lidx last eterm", "ledger chain"),
    (Ev.STORE, "truncate"): _event("e node lidx"),
    (Ev.STORE, "flush"): _event("e node lidx", "ledger"),
    (Ev.STORE, "recover"): _event("e node term ended committed", "vote chain wiped ledger uid"),
    (Ev.STORE, "install"): _event("e node lidx", "chain ledger"),
    (Ev.STORE, "purge"): _event("e node lidx"),
    # ConsumeQueues of this node are built up to entry lidx, inclusive.
    (Ev.STORE, "reput"): _event("e node lidx", "ledger"),
    # Broker role, written in the step that changes it: the start of a role after the change, its end before
    # anything else happens. barrier: index of the no-op of this leadership. reput, target: indexes. term and
    # role_epoch belong to the leadership that ended (`demoted`) or to the role change (`slave`). refused: a
    # write was refused because this broker is not the master.
    (Ev.ROLE, "elected"): _event("e node term", "barrier role_epoch"),
    (Ev.ROLE, "barrier_committed"): _event("e node term committed barrier", "reput target role_epoch"),
    (Ev.ROLE, "dispatched"): _event("e node term reput barrier", "committed target role_epoch"),
    (Ev.ROLE, "role_wait"): _event("e node term", "committed reput target barrier role_epoch text"),
    (Ev.ROLE, "master_ready"): _event("e node term committed reput target barrier", "role_epoch"),
    (Ev.ROLE, "demoted"): _event("e node term", "role_epoch"),
    (Ev.ROLE, "slave"): _event("e node term", "role_epoch"),
    (Ev.ROLE, "refused"): _event("e node term", "code"),
    # effective: the fault took effect, with a proof in `evidence`. targets: comma-separated names of nodes.
    (Ev.FAULT, "begin"): _event("e fault f targets", "effective evidence params aim"),
    (Ev.FAULT, "end"): _event("e fault f", "effective evidence targets"),
    # aim: "leader" if the plan targets leaders. planned_faults: the required number of `begin` lines.
    # flush_mode: SYNC_FLUSH or ASYNC_FLUSH. While hostile clients are active, other clients are served within
    # window_ms, and no server uses more than most_bytes of memory. store: classic, for brokers with a master
    # and a slave; broker_role: SYNC_MASTER, if SEND_OK means that the slave has the message, or ASYNC_MASTER.
    # Entries may be purged that are older than keep_ms or precede the last keep_bytes of the log; without
    # both, none.
    (Ev.META, "run_begin"): _event(
        "e nodes seed planned_faults",
        "git config flush_mode aim max_attempts clock_bound_ns text window_ms most_bytes keep_ms keep_bytes "
        "store broker_role",
    ),
    # The harness found that a server (node: its name) had ended, for the reason in text; and its peak memory
    # in bytes (size). Both are written only in runs with hostile clients.
    (Ev.META, "ended"): _event("e node text"),
    (Ev.META, "memory"): _event("e node size"),
    # A client (node: its name) had not closed after `size` ns.
    (Ev.META, "unclosed"): _event("e node size"),
    # From `since` on, the main thread of a server, or of the harness (node: "harness"), waited for a
    # processor for `size` ns, at least half of the time. At the end, `scheduling` has the total of each
    # process, which shows that such times were recorded.
    (Ev.META, "starved"): _event("e node since size"),
    (Ev.META, "scheduling"): _event("e node pid size"),
    # One line per required writer.
    (Ev.META, "expect"): _event("e member"),
    # The first line of a writer's file. pid: its process.
    (Ev.META, "writer_begin"): _event("e boot_id", "pid"),
    # A log of the run, with or without messages: one line for the ledger, or for each queue of each topic.
    (Ev.META, "log"): _event("e", "ledger topic q"),
    # The harness started a process of a node. Each process has its own file.
    (Ev.META, "started"): _event("e node pid"),
    # Number of complete lines in the file of that process after it ended.
    (Ev.META, "written"): _event("e node pid count"),
    (Ev.META, "healed"): _event("e"),
    (Ev.META, "drain_begin"): _event("e"),
    # The last position of a log that the final reads must reach: off (-1: empty).
    (Ev.META, "drain_target"): _event("e off", "ledger topic q"),
    (Ev.META, "drain_end"): _event("e"),
    # All nodes have committed the same entries, up to index off, and none has entries beyond it.
    (Ev.META, "settled"): _event("e off"),
    # The files of a node were read to their end: count entries of the ledger (ledger: its name) or units of
    # ConsumeQueues (ledger: consumequeue), digest over all committed ones; text lists problems.
    (Ev.META, "dumped"): _event("e node ledger count digest text", "ended"),
    # A classic master (member) was lost, and node was promoted when its log ended at offset `ended`.
    # size: number of bytes that node is known to have lacked; -1: unknown.
    (Ev.META, "taken_over"): _event("e node member ended size"),
    # All other members were lost for good, and node continues alone with its log, as cluster `text`. Its log
    # ended at entry `ended`, and it had recorded a commit up to `committed`. Entries behind its last known
    # commit, which only the lost members had, are lost, and their indexes are used again.
    # last: only of a learner that was promoted. Its log was cut behind this entry.
    (Ev.META, "recovered"): _event("e node committed ended text", "last"),
    # Entries lidx to last of a node's files are damaged and omitted.
    (Ev.META, "dump_hole"): _event("e node ledger lidx last text"),
    # A forbidden line in a node's log: a panic, a failed assertion, or an unhandled exception.
    (Ev.META, "log_error"): _event("e node text"),
    # The last line of a file that its writer closed.
    (Ev.META, "trace_end"): _event("e"),
    # internal: not a message of a client (no-op, session, metadata), and without mid.
    # size, tag_hash: required content of its unit in a ConsumeQueue. indexed: the node's IndexFiles have it
    # under each of its keys; omitted for messages without keys.
    # purge_to: for an entry that releases all entries up to this index.
    # is_committed: up to `settled` or, without that line, up to the commit index that the node had persisted.
    # off: start of the record in a classic log, whose records are numbered by lidx.
    (Ev.DUMP, ""): _event(
        "node lidx eterm",
        "ledger mid digest chain internal is_committed topic q qoff size tag_hash indexed purge_to off",
    ),
    # A record of the log of a lost classic master.
    (Ev.LEFT, ""): _event("node off chain", "mid internal topic q qoff"),
    # lidx: the entry that the unit points to, or -1.
    (Ev.CQ, ""): _event("node topic q qoff lidx", "size tag_hash"),
    # A process of the node started, and its calls on files are recorded.
    (Ev.DISK, "watched"): _event("e node"),
    # From now on, completed syncs cover all entries of this node up to lidx, and no others; -1: none.
    (Ev.DISK, "synced"): _event("e node ledger lidx"),
    # From now on, the classic log of this node is written up to offset off, and no further.
    (Ev.DISK, "stored"): _event("e node off"),
    # The files of the node's log up to entry lidx were removed, with `size` written bytes behind them.
    (Ev.DISK, "removed"): _event("e node ledger lidx size"),
    # From now on, completed syncs cover this term and vote (omitted: no vote).
    (Ev.DISK, "vote_synced"): _event("e node term", "vote"),
}


def what(event: Mapping[str, object]) -> str:
    """Return the second part of an event's key in `EVENTS`."""
    name = event.get("type") if event.get("ev") == Ev.OP else event.get("e", "")
    return name if isinstance(name, str) else ""


def file_name(src: str, inc: int) -> str:
    """Return the file of a writer and incarnation in `<run>/raw/`. `src`: node:n1, client:p3, nemesis, ..."""
    return f"{src.replace(':', '-').replace('/', '_')}.{inc}{SUFFIX}"


def log_name(event: Mapping[str, object]) -> str | None:
    """Return the log that an operation or message concerns, or None if it does not concern a single log."""
    if "topic" in event and "q" in event:
        return f"q:{event['topic']}/{event['q']}"
    return f"ledger:{event['ledger']}" if "ledger" in event else None


def problems(event: Mapping[str, object]) -> list[str]:
    """Return descriptions of the defects of a line, for tests of writers."""
    defects = [f"no {name}" for name in ENVELOPE if name not in event]
    if event.get("v") != VERSION:
        defects.append(f"schema version {event.get('v')!r} is not {VERSION}")
    if event.get("ev") not in list(Ev):
        return [*defects, f"unknown ev {event.get('ev')!r}"]
    key = (Ev(str(event["ev"])), what(event))
    if key not in EVENTS:
        return [*defects, f"unknown event {key[0]}/{key[1]}"]
    spec = EVENTS[key]
    defects += [f"no {name}" for name in spec.required if name not in event]
    known = {*ENVELOPE, *spec.required, *spec.optional}
    defects += [f"{name} does not belong to {key[0]}/{key[1]}" for name in event if name not in known]
    defects += [
        f"{name} is no {FIELDS[name]}: {value!r}"
        for name, value in event.items()
        if name in FIELDS and not _fits(value, FIELDS[name])
    ]
    if key[0] is Ev.OP and event.get("f") not in OPERATIONS:
        defects.append(f"unknown operation {event.get('f')!r}")
    return defects


def _fits(value: object, kind: Kind) -> bool:
    if kind is Kind.BOOL:
        return isinstance(value, bool)
    if kind is Kind.STR:
        return isinstance(value, str)
    return isinstance(value, int) and not isinstance(value, bool) and INT_MIN <= value <= INT_MAX
