"""Clean traces of any size, made without a cluster: for the checker's own tests and for measuring it.

What happens in them is what a correct cluster may do: leaders change by kills and isolations, appends whose
answer was lost turn out to be there or not, tails are truncated, consumers crash and messages come again.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import orjson

from chaos.trace.schema import RAW_DIR, VERSION, Ev, OpType, file_name

Value = int | str | bool
Line = dict[str, Value]

LEDGER = "g"
TOPIC = "t"
GROUP = "G"
_NODES = ("n1", "n2", "n3")
_STEP_NS = 1_000
_MOST_KEPT = 50_000


@dataclass(slots=True)
class Trace:
    """The lines of a run, by writer: (src, inc) -> lines in their order."""

    run: str
    files: dict[tuple[str, int], list[Line]] = field(default_factory=dict)

    def renumber(self) -> None:
        """Give every line the seq of its place, and have the lines that tell how many lines there are tell
        it, after lines were added or removed that the trace is to have had, or not, from the beginning."""
        counts: dict[tuple[Value, Value], int] = {}
        for lines in self.files.values():
            for seq, line in enumerate(lines):
                line["seq"] = seq
            for begin in lines:
                if begin.get("e") == "writer_begin" and "pid" in begin:
                    counts["written", begin["pid"]] = len(lines)
        for line in self.all_lines():
            if line["ev"] in (Ev.DUMP, Ev.CQ, Ev.LEFT):
                kinds = {Ev.CQ: "consumequeue", Ev.LEFT: "left"}
                about = kinds.get(Ev(str(line["ev"])), line.get("ledger", LEDGER))
                counts[line.get("node", ""), about] = counts.get((line.get("node", ""), about), 0) + 1
        for line in self.all_lines():
            match line.get("e"):
                case "written":
                    line["count"] = counts.get(("written", line["pid"]), 0)
                case "dumped":
                    line["count"] = counts.get((line["node"], line["ledger"]), 0)

    def all_lines(self) -> Iterator[Line]:
        for lines in self.files.values():
            yield from lines

    def write(self, run_dir: Path) -> None:
        """Append the lines to the files of the run."""
        raw = run_dir / RAW_DIR
        raw.mkdir(parents=True, exist_ok=True)
        for (src, inc), lines in self.files.items():
            with (raw / file_name(src, inc)).open("ab") as file:
                file.writelines(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


@dataclass(frozen=True, slots=True)
class _Entry:
    term: int
    chain: str
    mid: int | None = None
    digest: str = ""
    q: int = -1
    qoff: int = -1


@dataclass(frozen=True, slots=True)
class _Sent:
    """An operation under way."""

    op: int
    mid: int
    digest: str
    proc: str
    src: str
    q: int


def digest_of(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


class Synthetic:
    """A cluster of three that never was. `broker`: producers, queues and a consumer group; else a raw log."""

    def __init__(
        self,
        run: str,
        *,
        seed: int,
        broker: bool,
        producers: int = 4,
        queues: int = 2,
        run_dir: Path | None = None,
    ) -> None:
        self.trace = Trace(run)
        #: How many lines each writer has written, and how many are still in `trace`. With a `run_dir` they go
        #: there before they are many.
        self.written: dict[tuple[str, int], int] = defaultdict(int)
        self._kept = 0
        self._run_dir = run_dir
        self.broker = broker
        self._random = random.Random(seed)
        self._now = 1_000_000_000
        self._inc = dict.fromkeys(_NODES, 0)
        self._pids: dict[tuple[str, int], int] = {}
        self._term = 0
        self._leader = _NODES[0]
        self._log: list[_Entry] = []
        self._queues: list[list[int]] = [[] for _ in range(queues if broker else 0)]
        self._ops = 0
        self._mids = 0
        self._procs = [f"p{i}" for i in range(producers)]
        self._proc_no: dict[str, int] = defaultdict(int)
        self._consumed = [0] * len(self._queues)
        self._epoch = [1] * len(self._queues)
        self._owner = [f"c{q % 2}" for q in range(len(self._queues))]
        self._faults = 0
        #: A node that has an entry that no other has, at this index.
        self._orphan: tuple[str, int] | None = None
        self._seed = seed

    # -- the run ------------------------------------------------------------------------------------------

    def make(self, *, rounds: int, faults: int) -> Trace:
        """Run it: `rounds` times every producer sends once, with `faults` faults of the leader between."""
        self._begin(faults)
        self._elect(_NODES[0])
        at = {(k + 1) * rounds // (faults + 1): ("kill", "isolate")[k % 2] for k in range(faults)}
        for number in range(rounds):
            if number in at:
                self._fail_leader(at[number])
            self._round()
            if self.broker and number == rounds // 2:
                self._crash_consumer()
        self._drain()
        self._dump()
        self._end()
        return self.trace

    def _begin(self, faults: int) -> None:
        admin = "admin"
        self._emit(
            admin,
            Ev.META,
            e="run_begin",
            nodes=3,
            seed=self._seed,
            planned_faults=faults,
            flush_mode="SYNC_FLUSH",
            aim="leader",
            max_attempts=16,
        )
        clients = [f"client:{p}" for p in self._procs] + ["client:r0"]
        clients += ["client:c0", "client:c1"] if self.broker else []
        for member in [f"{kind}:{n}" for kind in ("node", "disk") for n in _NODES] + clients + ["nemesis"]:
            self._emit(admin, Ev.META, e="expect", member=member)
        for q in range(len(self._queues)):
            self._emit(admin, Ev.META, e="log", topic=TOPIC, q=q)
        if not self.broker:
            self._emit(admin, Ev.META, e="log", ledger=LEDGER)
        for member in [admin, *clients, "nemesis"]:
            self._emit(member, Ev.META, e="writer_begin", boot_id="b")
        for node in _NODES:
            self._emit(f"disk:{node}", Ev.META, e="writer_begin", boot_id="b")
            self._disk(node, e="watched")
            self._begin_life(node)
            self._node(node, Ev.STORE, e="recover", term=0, ended=-1, committed=-1)
        for consumer in sorted(set(self._owner)):
            self._emit(
                f"client:{consumer}",
                Ev.MEMBER,
                e="join",
                group=GROUP,
                consumer=consumer,
                topic=TOPIC,
                mode="orderly",
                filter="*",
                from_start=True,
            )
        for q in range(len(self._queues)):
            self._assign(q)

    def _end(self) -> None:
        live = {(f"node:{n}", self._inc[n]) for n in _NODES}
        for (node, inc), pid in self._pids.items():
            src = f"node:{node}"
            count = self.written[src, inc] + ((src, inc) in live)
            self._emit("admin", Ev.META, e="written", node=node, pid=pid, count=count)
        self._emit("admin", Ev.META, e="scheduling", node="harness", pid=1, size=0)
        for src, inc in list(self.written):
            if not src.startswith("node:") or (src, inc) in live:
                self._keep(src, inc, Ev.META, {"e": "trace_end"})
        self._spill()

    def _begin_life(self, node: str) -> None:
        pid = self._pids[node, self._inc[node]] = 100 + len(self._pids)
        self._emit("admin", Ev.META, e="started", node=node, pid=pid)
        self._node(node, Ev.META, e="writer_begin", boot_id="b", pid=pid)

    # -- nodes ---------------------------------------------------------------------------------------------

    def _elect(self, node: str) -> None:
        last = len(self._log) - 1
        old, self._term, self._leader = self._term, self._term + 1, node
        ends = {"last_index": last, "last_term": self._log[last].term if self._log else old}
        theirs = {f"cand_{name}": value for name, value in ends.items()}
        self._node(node, Ev.RAFT, e="candidate", term=self._term)
        for voter in (node, *[n for n in _NODES if n != node]):
            if self._orphan is not None and voter == self._orphan[0]:
                # Its log is longer: it takes the term, and does not vote.
                self._disk(voter, e="vote_synced", term=self._term)
                self._node(voter, Ev.RAFT, e="term_vote", term=self._term)
                continue
            self._disk(voter, e="vote_synced", term=self._term, vote=node)
            self._node(voter, Ev.RAFT, e="term_vote", term=self._term, vote=node)
            vote = {**ends, **theirs}
            self._node(voter, Ev.RAFT, e="vote", term=self._term, candidate=node, **vote)
        role_epoch = 2 * self._term + 1
        self._node(node, Ev.RAFT, e="leader", term=self._term, ended=last, role_epoch=role_epoch)
        for other in _NODES:
            if other != node:
                self._node(other, Ev.RAFT, e="follower", term=self._term, role_epoch=role_epoch - 1)
        barrier = len(self._log)
        if self.broker:
            about: Line = {"term": self._term, "barrier": barrier, "role_epoch": role_epoch}
            self._node(node, Ev.ROLE, e="elected", **about)
        self._append([None])
        if self.broker:
            reached = dict.fromkeys(("committed", "reput", "target"), barrier)
            for step in ("barrier_committed", "dispatched", "master_ready"):
                self._node(node, Ev.ROLE, e=step, **about, **reached)

    def _append(self, sent: Sequence[_Sent | None]) -> int:
        """Append to all nodes, commit, build the queues; None is a no-op. The first index."""
        first = len(self._log)
        for one in sent:
            self._log.append(self._entry(one))
        last = len(self._log) - 1
        order = [self._leader, *[n for n in _NODES if n != self._leader]]
        for node in order:
            self._store_range(node, first, last)
        for node in order:
            self._committed(node, first, last)
        return first

    def _entry(self, sent: _Sent | None) -> _Entry:
        chain = self._log[-1].chain if self._log else ""
        if sent is None:
            return _Entry(self._term, digest_of(chain, self._term))
        chain = digest_of(chain, self._term, sent.digest)
        if not self.broker:
            return _Entry(self._term, chain, sent.mid, sent.digest)
        queue = self._queues[sent.q]
        queue.append(len(self._log))
        return _Entry(self._term, chain, sent.mid, sent.digest, sent.q, len(queue) - 1)

    def _store_range(self, node: str, first: int, last: int) -> None:
        if self._orphan is not None and node == self._orphan[0]:
            tail, self._orphan = self._orphan[1], None
            self._node(node, Ev.STORE, e="truncate", lidx=tail)
            self._disk(node, e="synced", ledger=LEDGER, lidx=tail - 1)
        # One event for each run of entries of one term.
        begin = first
        for index in range(first, last + 1):
            if index == last or self._log[index + 1].term != self._log[index].term:
                end = self._log[index]
                self._node(
                    node,
                    Ev.STORE,
                    e="append",
                    lidx=begin,
                    last=index,
                    eterm=end.term,
                    chain=end.chain,
                    ledger=LEDGER,
                )
                begin = index + 1
        self._disk(node, e="synced", lidx=last, ledger=LEDGER)
        self._node(node, Ev.STORE, e="flush", lidx=last, ledger=LEDGER)

    def _committed(self, node: str, first: int, last: int) -> None:
        entry = self._log[last]
        about: Line = {"ledger": LEDGER, "chain": entry.chain}
        self._node(node, Ev.RAFT, e="commit", term=self._term, lidx=last, eterm=entry.term, **about)
        self._node(node, Ev.RAFT, e="apply", lidx=first, last=last, **about)
        if self.broker:
            self._node(node, Ev.STORE, e="reput", lidx=last, ledger=LEDGER)

    def _fail_leader(self, how: str) -> None:
        """The leader goes; of what is under way, one append was committed and one is lost with it."""
        old, self._faults = self._leader, self._faults + 1
        kept, lost = self._invoke(self._procs[0]), self._invoke(self._procs[1])
        self._serve(kept)
        self._append([kept])
        self._serve(lost)
        tail = len(self._log)
        orphan: Line = {"lidx": tail, "last": tail, "eterm": self._term, "chain": digest_of("lost", tail)}
        self._node(old, Ev.STORE, e="append", ledger=LEDGER, **orphan)
        self._disk(old, e="synced", ledger=LEDGER, lidx=tail)
        self._node(old, Ev.STORE, e="flush", ledger=LEDGER, lidx=tail)
        fault: Line = {"fault": self._faults, "f": how, "targets": old}
        self._emit("nemesis", Ev.FAULT, e="begin", effective=True, aim="leader", **fault)
        for sent in (kept, lost):
            self._complete(sent, OpType.INFO, error="no answer")
        voted = _NODES[(_NODES.index(old) + 1) % 3]
        ended, committed = tail, tail - 1
        if how == "kill":
            self._inc[old] += 1
            self._disk(old, e="watched")
            self._begin_life(old)
            recovered: Line = {"term": self._term, "vote": old, "ended": ended, "committed": committed}
            self._node(old, Ev.STORE, e="recover", **recovered)
        elif self.broker:
            self._node(old, Ev.ROLE, e="demoted", term=self._term, role_epoch=2 * self._term + 1)
        self._node(old, Ev.RAFT, e="follower", term=self._term, role_epoch=2 * self._term + 2)
        self._orphan = (old, tail)
        refused = self._invoke(self._procs[2])
        self._complete(refused, OpType.FAIL, code="NOT_LEADER")
        self._elect(voted)
        self._emit("nemesis", Ev.FAULT, e="end", effective=True, **fault)

    # -- clients -------------------------------------------------------------------------------------------

    def _round(self) -> None:
        sent = [self._invoke(p) for p in self._procs]
        self._random.shuffle(sent)
        for one in sent:
            self._serve(one)
        first = self._append(sent)
        for number, one in enumerate(sent):
            index = first + number
            self._node(
                self._leader,
                Ev.RAFT,
                e="ack",
                term=self._term,
                lidx=index,
            )
            self._complete(one, OpType.OK, lidx=index)
        if self.broker:
            for q in range(len(self._queues)):
                self._consume(q)
        else:
            self._read_ledger("get", end_claim=True)
            if self._random.random() < 0.3:
                self._read_ledger("get", end_claim=False, behind=2)

    def _invoke(self, process: str) -> _Sent:
        self._ops += 1
        self._mids += 1
        q = self._random.randrange(len(self._queues)) if self.broker else -1
        proc = f"{process}.{self._proc_no[process]}"
        sent = _Sent(self._ops, self._mids, digest_of(self._mids), proc, f"client:{process}", q)
        place: Line = {"topic": TOPIC, "q": q} if self.broker else {}
        about: Line = {"mid": sent.mid, "digest": sent.digest, "ledger": LEDGER, **place}
        self._op(sent.src, OpType.INVOKE, sent.op, proc, self._send_name, **about)
        return sent

    @property
    def _send_name(self) -> str:
        return "send" if self.broker else "append"

    def _serve(self, sent: _Sent) -> None:
        self._node(self._leader, Ev.RAFT, e="accept", term=self._term)

    def _complete(self, sent: _Sent, how: OpType, /, **fields: Value) -> None:
        if how is OpType.OK:
            index = fields["lidx"]
            assert isinstance(index, int)
            fields |= {"node": self._leader, "term": self._term}
            if self.broker:
                fields["qoff"] = self._log[index].qoff
        if how is OpType.INFO:
            self._proc_no[sent.src.removeprefix("client:")] += 1
        self._op(sent.src, how, sent.op, sent.proc, self._send_name, **fields)

    def _read_ledger(self, name: str, *, end_claim: bool, behind: int = 0, start: int | None = None) -> None:
        end = len(self._log) - behind
        begin = max(0, end - 6) if start is None else start
        found = [i for i in range(begin, end) if self._log[i].mid is not None]
        invoke: Line = {"from_off": begin, "ledger": LEDGER, "stale": behind > 0}
        with_answer: Line = {"next_off": end, "end_claim": end_claim}
        if end_claim:
            with_answer["max_off"] = end
        self._read("client:r0", "r0", name, found, invoke, with_answer, {})

    def _read(
        self,
        src: str,
        proc: str,
        name: str,
        found: list[int],
        invoke: Line,
        with_answer: Line,
        reader: Line,
    ) -> int:
        self._ops += 1
        op = self._ops
        self._op(src, OpType.INVOKE, op, proc, name, **invoke, **reader)
        given: Line = reader | {"attempt": 0} if reader else {}
        for i, index in enumerate(found):
            self._emit(src, Ev.DLV, op=op, i=i, **given, **self._message(index))
        self._op(src, OpType.OK, op, proc, name, node=self._leader, term=self._term, **with_answer)
        return op

    def _message(self, index: int) -> Line:
        entry = self._log[index]
        assert entry.mid is not None
        line: Line = {"mid": entry.mid, "digest": entry.digest, "ledger": LEDGER, "lidx": index}
        return line | ({"topic": TOPIC, "q": entry.q, "qoff": entry.qoff} if self.broker else {})

    # -- consumers -----------------------------------------------------------------------------------------

    def _assign(self, q: int) -> None:
        consumer = self._owner[q]
        about: Line = {"group": GROUP, "consumer": consumer, "epoch": self._epoch[q], "topic": TOPIC, "q": q}
        self._emit(f"client:{consumer}", Ev.MEMBER, e="assign", off=self._consumed[q], **about)

    def _consume(self, q: int, *, commit: bool = True) -> None:
        consumer, begin = self._owner[q], self._consumed[q]
        src, end = f"client:{consumer}", len(self._queues[q])
        reader: Line = {"group": GROUP, "consumer": consumer, "epoch": self._epoch[q]}
        place: Line = {"topic": TOPIC, "q": q}
        found = self._queues[q][begin:end]
        op = self._read(
            src,
            consumer,
            "pull",
            found,
            {"from_off": begin, **place},
            {"next_off": end},
            reader,
        )
        for index in found:
            entry = self._log[index]
            assert entry.mid is not None
            where: Line = {**place, **reader, "attempt": 0}
            self._emit(src, Ev.DONE, mid=entry.mid, code="ok", op=op, qoff=entry.qoff, **where)
        if found and commit:
            self._consumed[q] = end
            self._ops += 1
            about: Line = {"group": GROUP, "consumer": consumer, "off": end, **place}
            self._op(src, OpType.INVOKE, self._ops, consumer, "commit_off", **about)
            self._op(src, OpType.OK, self._ops, consumer, "commit_off", off=end)

    def _crash_consumer(self) -> None:
        """c0 processes messages, does not get to storing its offset, and c1 takes over."""
        if self._owner[0] != "c0":
            return
        sent = self._invoke(self._procs[0])
        self._serve(sent)
        index = self._append([sent])
        ack: Line = {"term": self._term, "lidx": index}
        self._node(self._leader, Ev.RAFT, e="ack", **ack)
        self._complete(sent, OpType.OK, lidx=index)
        q = sent.q
        self._consume(q, commit=False)
        left: Line = {"group": GROUP, "consumer": self._owner[q]}
        self._emit(f"client:{self._owner[q]}", Ev.MEMBER, e="crash", **left)
        self._owner[q] = "c1" if self._owner[q] == "c0" else "c0"
        self._epoch[q] += 1
        self._assign(q)

    # -- the end -------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        admin = "admin"
        self._emit(admin, Ev.META, e="healed")
        self._round()
        self._emit(admin, Ev.META, e="drain_begin")
        if self.broker:
            for q, queue in enumerate(self._queues):
                place: Line = {"topic": TOPIC, "q": q}
                self._emit(admin, Ev.META, e="drain_target", off=len(queue) - 1, **place)
                self._consume(q)
                answer: Line = {"end_claim": True, "max_off": len(queue), "next_off": len(queue)}
                self._read("client:r0", "r0", "drain", queue, {"from_off": 0, **place}, answer, {})
        else:
            last = max(i for i, entry in enumerate(self._log) if entry.mid is not None)
            self._emit(admin, Ev.META, e="drain_target", off=last, ledger=LEDGER)
            self._read_ledger("drain", end_claim=True, start=0)
        self._emit(admin, Ev.META, e="drain_end")

    def _dump(self) -> None:
        for node in _NODES:
            for index, entry in enumerate(self._log):
                line: Line = {"eterm": entry.term, "chain": entry.chain, "is_committed": True}
                line |= (
                    {"internal": True, "ledger": LEDGER, "lidx": index}
                    if entry.mid is None
                    else self._message(index) | self._derived()
                )
                self._emit("admin", Ev.DUMP, node=node, **line)
            for q, queue in enumerate(self._queues):
                for qoff, index in enumerate(queue):
                    unit: Line = {"topic": TOPIC, "q": q, "qoff": qoff, "lidx": index, "size": 100}
                    self._emit("admin", Ev.CQ, node=node, **unit)
            self._dumped(node, LEDGER, len(self._log))
            if self.broker:
                self._dumped(node, "consumequeue", sum(len(queue) for queue in self._queues))

    def _derived(self) -> Line:
        return {"size": 100, "indexed": True} if self.broker else {}

    def _dumped(self, node: str, ledger: str, count: int) -> None:
        told: Line = {"node": node, "ledger": ledger, "count": count, "digest": digest_of(ledger, count)}
        self._emit("admin", Ev.META, e="dumped", text="clean", **told)

    # -- writing -------------------------------------------------------------------------------------------

    def _op(self, src: str, how: OpType, op: int, proc: str, name: str, /, **fields: Value) -> None:
        self._emit(src, Ev.OP, type=how.value, op=op, proc=proc, f=name, **fields)

    def _node(self, name: str, ev: Ev, /, **fields: Value) -> None:
        self._emit(f"node:{name}", ev, **({} if ev is Ev.META else {"node": name}), **fields)

    def _disk(self, name: str, /, **fields: Value) -> None:
        self._emit(f"disk:{name}", Ev.DISK, node=name, **fields)

    def _emit(self, src: str, ev: Ev, /, **fields: Value) -> None:
        inc = self._inc[src.removeprefix("node:")] if src.startswith("node:") else 0
        self._keep(src, inc, ev, fields)

    def _keep(self, src: str, inc: int, ev: Ev, fields: Line) -> None:
        self._now += _STEP_NS
        line = self._line(src, inc, self.written[src, inc], ev, fields)
        self.trace.files.setdefault((src, inc), []).append(line)
        self.written[src, inc] += 1
        self._kept += 1
        if self._kept >= _MOST_KEPT:
            self._spill()

    def _spill(self) -> None:
        if self._run_dir is not None:
            self.trace.write(self._run_dir)
            self.trace.files.clear()
        self._kept = 0

    def _line(self, src: str, inc: int, seq: int, ev: Ev, fields: Line) -> Line:
        head: Line = {"v": VERSION, "run": self.trace.run, "src": src, "inc": inc, "seq": seq, "host": "h"}
        return head | {"mono": self._now, "wall": self._now, "ev": ev.value} | fields


def clean_trace(
    run: str, *, seed: int = 1, rounds: int = 12, faults: int = 2, broker: bool = True, producers: int = 4
) -> Trace:
    """A trace of a correct cluster. A round is about 60 lines with 4 producers."""
    return Synthetic(run, seed=seed, broker=broker, producers=producers).make(rounds=rounds, faults=faults)


def write_clean_trace(run_dir: Path, run: str, *, rounds: int, faults: int, producers: int) -> int:
    """Such a trace in files, whatever its length in little memory. How many lines it has."""
    made = Synthetic(run, seed=1, broker=True, producers=producers, run_dir=run_dir)
    made.make(rounds=rounds, faults=faults)
    return sum(made.written.values())
