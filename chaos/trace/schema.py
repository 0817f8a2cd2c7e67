"""The trace of a run: which lines there are, and which fields each has. Pure; no dependencies.

A trace is a directory `<run>/raw/` with one JSONL file per writer and incarnation (`file_name`). Each line
is one flat JSON object: the envelope (`ENVELOPE`) and the fields of its event (`EVENTS`). Values are 64-bit
integers, strings or booleans, never floats, lists or nested objects; a field that has no value is left out.
The Nth line of a file has seq N - 1, so (src, inc, seq) names file and line.

Conventions, on which the checks rely:

- `mono` is CLOCK_MONOTONIC in ns. An invoke is stamped and written before the request is sent, a completion
  after the answer is there: intervals only grow. `wall` (ns) is for people.
- An operation is `fail` only if it certainly did not happen. Default: `info`.
- A process (`proc`) has one operation at a time and is never used again after an `info`.
- `mid` is given by the harness and unique in a run. Retries inside one operation are lines of their own
  (`attempt`), which excuse nothing: only what was refused is repeated, or, in a session, what is stored once.
- Events of nodes are written in the critical section that makes the change; what is evidence of a promise
  (vote, ack, flush) reaches the file before the effect is visible outside.
- A log is named `ledger:<ledger>` (positions: `lidx`) or `q:<topic>/<q>` (positions: `qoff`). Operations on a
  queue say `ledger` as well, so that their `lidx` can be compared.
- `epoch` of a member that is assigned queues, of its commits, of a reset and of an offset that was
  answered is the generation of the group, one for all members: it grows with every assignment and reset.
  Of protocols without generations only members have one, which counts the assignments of their group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

VERSION = 1
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
RAW_DIR = "raw"
#: Name of the one log that all nodes of a run have.
LEDGER = "log"
SUFFIX = ".jsonl"


class Ev(StrEnum):
    """The kinds of line."""

    OP = "op"
    #: One message of a batch, written before the invoke of its operation.
    ITEM = "item"
    #: A client repeats what one operation sends, automatically.
    ATTEMPT = "attempt"
    #: One entry or message that an operation handed to a client.
    DLV = "dlv"
    #: What a consumer made of a delivered message.
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
    #: One record of the log of a classic master that was lost, read from its files after the run.
    LEFT = "left"
    #: One unit of a node's ConsumeQueue, read from its files after the run.
    CQ = "cq"
    #: What the operating system was asked and has answered, seen below the product (`chaos.syncs`).
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
    # Nodes. last: last index of a range that begins at lidx. ended: last index present (-1: none).
    "term eterm last ended committed reput target barrier last_index last_term cand_last_index "
    "cand_last_term role_epoch size tag_hash "
    # Faults and the run.
    "fault seed nodes planned_faults max_attempts clock_bound_ns window_ms most_bytes pid "
    # Retention.
    "keep_ms keep_bytes purge_to"
)
_STR = _words(
    "run src host ev e type proc f "
    "topic ledger digest key tag filter group consumer mode code error node "
    "store broker_role vote candidate chain targets params evidence aim git config flush_mode boot_id "
    "member text"
)
_BOOL = _words("indexed end_claim stale from_start effective internal is_committed wiped")

#: Every field, and the type of its values. One name has one type wherever it stands.
FIELDS: dict[str, Kind] = {
    **dict.fromkeys(_INT, Kind.INT),
    **dict.fromkeys(_STR, Kind.STR),
    **dict.fromkeys(_BOOL, Kind.BOOL),
}
#: In every line.
ENVELOPE = ("v", "run", "src", "inc", "seq", "host", "mono", "wall", "ev")


@dataclass(frozen=True, slots=True)
class Event:
    """The fields of one kind of line besides the envelope."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


def _event(required: str, optional: str = "") -> Event:
    return Event(tuple(required.split()), tuple(optional.split()))


#: Operations. `send`, `append`: one message each; `send_batch`: its messages are `item` lines, answered
#: with the first position. `get`, `pull`, `drain`: reads (drain: those of the final phase). `max_off`,
#: `min_off`: the ends of a log. `commit_off` stores a consumer offset (`off`), `fetch_off` answers it,
#: `reset_off` sets it, backwards too; the completions of both have the generation (`epoch`). `lookup` finds
#: by key. `route` asks a NameServer; its completion has the master's term. `receive`, `ack`,
#: `change_invisible`: of a group that is given messages one by one, which hands out no queues: its members
#: have no epoch, and an attempt above 0 means that the message was not acknowledged in time, or given back.
#: `ack` says of which message; ok: the group is never given it again. `delay_ms` of a receive: for so long
#: nobody else is given what it brings, unless it is given back, or the member goes. `delay_ms` of a send:
#: its message is to be delivered so long after the invoke, and stands where nobody knows yet. `recall`
#: takes such a message back; ok: it is never delivered. `txn_begin` sends the half of a transaction, which
#: is delivered if a `txn_commit` of the same `mid` counts, and never after a `txn_rollback`: there is one
#: of the two, or none.
SENDS = ("send", "append", "send_batch")
READS = ("get", "pull", "drain")
OPERATIONS = (
    *SENDS,
    *READS,
    *("max_off", "min_off", "commit_off", "fetch_off", "lookup", "route", "subscribe", "assign", "seek"),
    *("txn_begin", "txn_commit", "txn_rollback", "admin"),
    *("receive", "ack", "change_invisible", "recall", "reset_off"),
)
#: Kinds of faults that end a process, perhaps in the middle of a line. After an error of its disk a node
#: ends without a signal.
CUTTING = ("kill", "wipe", "take_over", "crash", "power_loss", "write_error", "sync_error")
#: Kinds of faults that end a process.
ENDING = (*CUTTING, "term")
#: Kinds of faults that are hostile clients. Good ones are owed the same service beside them, so they explain
#: neither a change of leader nor the end of a process.
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
#: What the invoke of an operation may say besides what all do, and what its `ok` may. Operations that are not
#: here are those of other systems' histories, which say what their writers said.
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
#: What the invoke of an operation must say, and what its `ok` must: without it the line says nothing of what
#: the operation is about.
DEMANDED: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "send": _request("mid digest topic q", ""),
    "append": _request("mid digest ledger", "lidx term"),
    "send_batch": _request("count", "lidx term"),
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

#: (ev, what) -> its fields. `what` is the value of `type` for operations, of `e` for everything else that has
#: several events, and "" for kinds that have one.
EVENTS: dict[tuple[Ev, str], Event] = {
    (Ev.OP, OpType.INVOKE): _event(
        "op proc f type",
        "ledger topic q mid digest key tag delay_ms count from_off off stale group consumer epoch node",
    ),
    # count: of messages, that were sent (of a batch) or are handed over (of a read).
    (Ev.OP, OpType.OK): _event("op proc f type", f"{_COMPLETION} count off"),
    (Ev.OP, OpType.FAIL): _event("op proc f type", _COMPLETION),
    (Ev.OP, OpType.INFO): _event("op proc f type", _COMPLETION),
    (Ev.ITEM, ""): _event("op i mid digest", "ledger topic q key tag delay_ms"),
    # mid: of the first message, if it is a send. retry_no: 1 for the second attempt. May come after the end
    # of an operation of which nobody knows what became: a session goes on with it.
    (Ev.ATTEMPT, ""): _event("op retry_no", "mid"),
    # From a queue: topic, q, qoff (and lidx, ledger if known). From a ledger: ledger, lidx.
    (Ev.DLV, ""): _event(
        "op i mid digest", "group consumer epoch ledger topic q qoff lidx attempt key tag filter eterm"
    ),
    # code: ok (processed), retry (to be delivered again), dlq (given up).
    (Ev.DONE, ""): _event("mid code group consumer", "op epoch topic q qoff ledger lidx attempt"),
    # join says what the group consumes and how; filter: tags as a||b, * or none. mode: of groups whose
    # members have queues concurrent or orderly, of such as receive messages one by one shared or, if the
    # messages of a queue come for the first time in their order, fifo.
    (Ev.MEMBER, "join"): _event("e group consumer topic", "mode filter from_start"),
    (Ev.MEMBER, "assign"): _event("e group consumer epoch topic q", "off"),
    (Ev.MEMBER, "reset"): _event("e group topic q off"),
    (Ev.MEMBER, "revoke"): _event("e group consumer epoch topic q"),
    (Ev.MEMBER, "leave"): _event("e group consumer"),
    (Ev.MEMBER, "crash"): _event("e group consumer"),
    # Raft. term is the node's current term. term_vote: both became durable.
    (Ev.RAFT, "term_vote"): _event("e node term", "vote"),
    (Ev.RAFT, "candidate"): _event("e node term", "last_index last_term"),
    (Ev.RAFT, "leader"): _event("e node term ended", "chain role_epoch"),
    (Ev.RAFT, "follower"): _event("e node term", "role_epoch"),
    # The voter (node) grants its vote; a candidate's vote for itself is an event too.
    (Ev.RAFT, "vote"): _event("e node term candidate", "last_index last_term cand_last_index cand_last_term"),
    # committed_index became lidx, the end of a batch; eterm and chain are those of that entry.
    (Ev.RAFT, "commit"): _event("e node term lidx", "ledger eterm chain"),
    # The state machine has applied lidx to last; it has taken over a state up to lidx instead.
    (Ev.RAFT, "apply"): _event("e node lidx last", "ledger chain"),
    (Ev.RAFT, "load"): _event("e node lidx"),
    # A server takes a request, and lets its success answer go. lidx of an ack: the last index that it
    # answers.
    (Ev.RAFT, "accept"): _event("e node term"),
    (Ev.RAFT, "ack"): _event("e node term lidx"),
    # Store. append: entries lidx..last of one term were written; chain is that of the last. flush: durable up
    # to lidx.
    (Ev.STORE, "append"): _event("e node lidx last eterm", "ledger chain"),
    (Ev.STORE, "truncate"): _event("e node lidx"),
    (Ev.STORE, "flush"): _event("e node lidx", "ledger"),
    (Ev.STORE, "recover"): _event("e node term ended committed", "vote chain wiped ledger"),
    (Ev.STORE, "install"): _event("e node lidx", "chain ledger"),
    (Ev.STORE, "purge"): _event("e node lidx"),
    # ConsumeQueues of this node are built up to the end of entry lidx.
    (Ev.STORE, "reput"): _event("e node lidx", "ledger"),
    # Broker role, told in the step that changes it: what begins is told after, what ends is told before
    # anything else happens. barrier: index of the no-op of this leadership. reput, target: indexes. Of
    # `demoted`, term and role_epoch are those of the leadership that has ended, of `slave` those of the role
    # that made it slave. refused: a write, because this broker is not the master.
    (Ev.ROLE, "elected"): _event("e node term", "barrier role_epoch"),
    (Ev.ROLE, "barrier_committed"): _event("e node term committed barrier", "reput target role_epoch"),
    (Ev.ROLE, "dispatched"): _event("e node term reput barrier", "committed target role_epoch"),
    (Ev.ROLE, "role_wait"): _event("e node term", "committed reput target barrier role_epoch text"),
    (Ev.ROLE, "master_ready"): _event("e node term committed reput target barrier", "role_epoch"),
    (Ev.ROLE, "demoted"): _event("e node term", "role_epoch"),
    (Ev.ROLE, "slave"): _event("e node term", "role_epoch"),
    (Ev.ROLE, "refused"): _event("e node term", "code"),
    # effective: proof that it happened, in `evidence`. targets: names of nodes with commas between.
    (Ev.FAULT, "begin"): _event("e fault f targets", "effective evidence params aim"),
    (Ev.FAULT, "end"): _event("e fault f", "effective evidence targets"),
    # aim: "leader" if the plan wants changes of the leader. planned_faults: how many `begin` there must be.
    # flush_mode: SYNC_FLUSH or ASYNC_FLUSH.
    # While hostile clients work, good ones are served within window_ms, and no server takes more than
    # most_bytes of memory. store: classic, of brokers with a master and a slave; broker_role: SYNC_MASTER, if
    # SEND_OK says that the slave has the message, or ASYNC_MASTER. Entries may be removed that are older than
    # keep_ms, or have keep_bytes of the log behind them; without both, none.
    (Ev.META, "run_begin"): _event(
        "e nodes seed planned_faults",
        "git config flush_mode aim max_attempts clock_bound_ns text window_ms most_bytes keep_ms keep_bytes "
        "store broker_role",
    ),
    # A server (node: its name) was found to have ended, for whatever reason (text); it had taken so many
    # bytes of memory at most (size). Both are written of runs with hostile clients.
    (Ev.META, "ended"): _event("e node text"),
    (Ev.META, "memory"): _event("e node size"),
    # One line per writer that there must be.
    (Ev.META, "expect"): _event("e member"),
    # The first line of a writer's file. pid: of its process.
    (Ev.META, "writer_begin"): _event("e boot_id", "pid"),
    # A log that there is, whether or not anything was sent to it: one line for the ledger, or for each queue
    # of each topic that was made.
    (Ev.META, "log"): _event("e", "ledger topic q"),
    # The harness has started the process of a node: a life of it begins, which has a file of its own.
    (Ev.META, "started"): _event("e node pid"),
    # So many whole lines the file of that life had when its process had ended.
    (Ev.META, "written"): _event("e node pid count"),
    (Ev.META, "healed"): _event("e"),
    (Ev.META, "drain_begin"): _event("e"),
    # The last position of a log that the final reads must reach: off (-1: empty).
    (Ev.META, "drain_target"): _event("e off", "ledger topic q"),
    (Ev.META, "drain_end"): _event("e"),
    # All nodes have committed the same, up to index off, and nothing lies behind it.
    (Ev.META, "settled"): _event("e off"),
    # The files of a node were read to their end: count entries of the ledger (ledger: its name) or units of
    # ConsumeQueues (ledger: consumequeue), digest over all that are committed; text says what was not well.
    (Ev.META, "dumped"): _event("e node ledger count digest text", "ended"),
    # A classic master (member) was lost, and node was made master, whose log ended at offset `ended` then.
    # size: so many bytes it was known to lack; -1: nobody knew.
    (Ev.META, "taken_over"): _event("e node member ended size"),
    # Entries lidx to last of a node's files are damaged, and left out.
    (Ev.META, "dump_hole"): _event("e node ledger lidx last text"),
    # A line in a node's log that should not be there: panic, assertion, unhandled exception.
    (Ev.META, "log_error"): _event("e node text"),
    # The last line of a writer's file that ended in peace.
    (Ev.META, "trace_end"): _event("e"),
    # internal: no message of a client (no-op, session, metadata); it has no mid.
    # size, tag_hash: what its unit of a ConsumeQueue must say. indexed: the node's IndexFiles have it under
    # each of its keys; not said of a message without keys.
    # purge_to: of an entry that lets the log begin behind this index.
    # is_committed: up to `settled`, or, without that, up to what the node had noted as committed.
    # off: where the record begins in a classic log, whose records are numbered by lidx.
    (Ev.DUMP, ""): _event(
        "node lidx eterm",
        "ledger mid digest chain internal is_committed topic q qoff size tag_hash indexed purge_to off",
    ),
    # The same of the log that a classic master had when it was lost, by the reader of its files.
    (Ev.LEFT, ""): _event("node off chain", "mid internal topic q qoff"),
    # lidx: of the entry that the unit points to; -1: there is none.
    (Ev.CQ, ""): _event("node topic q qoff lidx", "size tag_hash"),
    # A process of the node began, and what it does to its files is seen.
    (Ev.DISK, "watched"): _event("e node"),
    # From now on syncs that have returned cover all entries of this node up to lidx, and no others; -1: none.
    (Ev.DISK, "synced"): _event("e node ledger lidx"),
    # The files of the node's log up to entry lidx were removed, when it had written size bytes behind them.
    (Ev.DISK, "removed"): _event("e node ledger lidx size"),
    # The same of term and vote (without it: none).
    (Ev.DISK, "vote_synced"): _event("e node term", "vote"),
}


def what(event: Mapping[str, object]) -> str:
    """The second part of an event's key in `EVENTS`."""
    name = event.get("type") if event.get("ev") == Ev.OP else event.get("e", "")
    return name if isinstance(name, str) else ""


def file_name(src: str, inc: int) -> str:
    """The file of one writer and incarnation, in `<run>/raw/`. `src` is like node:n1, client:p3, nemesis."""
    return f"{src.replace(':', '-').replace('/', '_')}.{inc}{SUFFIX}"


def log_name(event: Mapping[str, object]) -> str | None:
    """The log that an operation or message is about; None if it is about no single one."""
    if "topic" in event and "q" in event:
        return f"q:{event['topic']}/{event['q']}"
    return f"ledger:{event['ledger']}" if "ledger" in event else None


def problems(event: Mapping[str, object]) -> list[str]:
    """What is wrong with a line, in words; empty if nothing is. For tests of writers, not for hot paths."""
    found = [f"no {name}" for name in ENVELOPE if name not in event]
    if event.get("v") != VERSION:
        found.append(f"schema version {event.get('v')!r} is not {VERSION}")
    if event.get("ev") not in list(Ev):
        return [*found, f"unknown ev {event.get('ev')!r}"]
    key = (Ev(str(event["ev"])), what(event))
    if key not in EVENTS:
        return [*found, f"unknown event {key[0]}/{key[1]}"]
    spec = EVENTS[key]
    found += [f"no {name}" for name in spec.required if name not in event]
    known = {*ENVELOPE, *spec.required, *spec.optional}
    found += [f"{name} does not belong to {key[0]}/{key[1]}" for name in event if name not in known]
    found += [
        f"{name} is no {FIELDS[name]}: {value!r}"
        for name, value in event.items()
        if name in FIELDS and not _fits(value, FIELDS[name])
    ]
    if key[0] is Ev.OP and event.get("f") not in OPERATIONS:
        found.append(f"unknown operation {event.get('f')!r}")
    return found


def _fits(value: object, kind: Kind) -> bool:
    if kind is Kind.BOOL:
        return isinstance(value, bool)
    if kind is Kind.STR:
        return isinstance(value, str)
    return isinstance(value, int) and not isinstance(value, bool) and INT_MIN <= value <= INT_MAX
