"""What stands on the disks of all nodes after a run, as lines of the trace: every entry of the log and every
unit of the ConsumeQueues.

Read from the files without a server. Of a node whose files are torn or damaged comes what is good, and what
is not is said. In memory are a batch, and with brokers 16 bytes for each entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from broker_adapter.classic.store_directory import StoreDirectory
from broker_adapter.errors import StoredDataDamaged
from broker_adapter.format.index_layout import index_keys
from broker_adapter.format.java_hash import tag_code
from broker_adapter.format.message import Message, decode
from broker_adapter.format.properties import KEYS, TAGS, UNIQ_KEY, split_properties
from broker_adapter.metadata.commands import METADATA_TOPIC
from broker_adapter.pop.commands import DELIVERY_TOPIC
from broker_adapter.store.offline import OfflineIndex, OfflineQueues
from chaos.cluster.cluster import ChaosCluster, Kind, derived_of
from chaos.faults.take_over import LEFT, left_directory
from chaos.hostile.orders import PREFIX as HOSTILE_PREFIX
from chaos.trace.schema import LEDGER, Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.messages import UNREADABLE, digest, number_of
from dledger.platform import ENTRY_HEADER_SIZE, OfflineLog, StoredEntry

_ANY_BODY = 1 << 30
#: Of the broker's own state: no messages of anybody.
_OWN_TOPICS = (METADATA_TOPIC, DELIVERY_TOPIC)
#: What is compared with files of the same node, and so not told of a log that was lost.
_OF_FILES = ("lidx", "digest", "size", "tag_hash")
#: The same in a classic log.
_SYSTEM = "DLEDGER_SYS_"
#: What hostile clients make up is nobody's either: topics, and the dead letters of their groups.
_HOSTILE_TOPICS = (HOSTILE_PREFIX, f"%DLQ%{HOSTILE_PREFIX}", f"%RETRY%{HOSTILE_PREFIX}")


def dump_source(node_id: str) -> str:
    """Who writes the files of a node into the trace."""
    return f"dump:{node_id}"


def dump_cluster(run_directory: Path, run: str, cluster: ChaosCluster, settled: int | None) -> None:
    """`dump_node` for all nodes, one after the other, each with a writer of its own. They have stopped."""
    for node_id, store in zip(cluster.node_ids, cluster.stores(), strict=True):
        with TraceWriter(run_directory, run, dump_source(node_id)) as writer:
            if cluster.kind == "classic":
                dump_classic(writer, node_id, store)
                continue
            dump_node(writer, node_id, store, cluster.kind, settled)


def dump_node(writer: TraceWriter, node_id: str, store: Path, kind: Kind, settled: int | None) -> None:
    """Write the files of one node into `writer`.

    `store`: its directory; derived files are beside it. `settled`: what was committed on all nodes in the
    end; None: nobody knows, and what the node itself has noted as committed counts instead.
    """
    with OfflineLog(store) as log:
        checkpoint = log.report.checkpoint
        committed = settled if settled is not None else checkpoint.committed_index if checkpoint else -1
        index = OfflineIndex(derived_of(store)) if kind == "broker" else None
        ledger = _LedgerDump(writer, node_id, index, committed)
        for entry in log.entries():
            ledger.take(entry)
        report = log.report
    for damage in report.damages:
        hole = {"lidx": damage.first_index, "last": damage.last_index, "text": damage.reason}
        writer.write(Ev.META, {"e": "dump_hole", "node": node_id, "ledger": LEDGER, **hole})
    said = "; ".join([f"{report.verdict.value}: {report.verdict_reason}".rstrip(": "), *report.problems])
    _conclude(writer, node_id, LEDGER, ledger.count, ledger.sum(), said, ended=report.end_index)
    if kind == "broker":
        _dump_queues(writer, node_id, derived_of(store), ledger.indexes)


def dump_classic(writer: TraceWriter, node_id: str, store: Path) -> None:
    """The same of a node with a classic log, and of the log that it had when it was lost."""
    begins = _Indexes()
    index, total, count = OfflineIndex(store), blake2b(digest_size=8), 0
    directory = StoreDirectory(store)
    for record in classic_records(directory):
        fields = {**record.fields, "node": node_id, "ledger": LEDGER, "eterm": 0, "is_committed": True}
        if record.keys:
            fields["indexed"] = index.holds(record.keys, record.offset)
        writer.write(Ev.DUMP, fields)
        total.update(f"{record.fields['lidx']} {record.fields['chain']}\n".encode())
        begins.add(record.offset, count)
        count += 1
    _conclude(writer, node_id, LEDGER, count, total.hexdigest(), "clean", ended=count - 1)
    _dump_queues(writer, node_id, store, begins, header=0)
    if (left := left_directory(store.parent)).exists():
        told = 0
        for record in classic_records(StoreDirectory(left)):
            place = {name: value for name, value in record.fields.items() if name not in _OF_FILES}
            writer.write(Ev.LEFT, {**place, "node": node_id})
            told += 1
        _conclude(writer, node_id, LEFT, told, "", "clean")


class ClassicRecord(NamedTuple):
    """Of a classic log: what lines have of it, where it begins, and under which texts an index has it."""

    fields: dict[str, int | str | bool]
    offset: int
    keys: Sequence[str]


def classic_records(directory: StoreDirectory) -> Iterator[ClassicRecord]:
    """All, numbered. `chain` covers all bytes of the log up to the end of the record."""
    chain = 0
    for number, (record, message) in enumerate(directory.scan().messages()):
        chain = crc32(record, chain)
        fields: dict[str, int | str | bool] = {
            "lidx": number,
            "off": message.physical_offset,
            "chain": f"{chain:08x}",
        }
        keys: Sequence[str] = ()
        if _is_nobodys(message.topic):
            fields["internal"] = True
        else:
            found = split_properties(message.properties)
            fields |= {"topic": message.topic, "q": message.queue_id, "qoff": message.queue_offset}
            fields |= {"mid": number_of(message.body), "digest": digest(message.body)}
            fields |= {"size": len(record), "tag_hash": tag_code(found.get(TAGS, ""))}
            keys = index_keys(message.topic, found.get(UNIQ_KEY), found.get(KEYS))
        yield ClassicRecord(fields, message.physical_offset, keys)


class _Indexes:
    """Which entry begins at a position. Entries come in the order of their positions."""

    def __init__(self) -> None:
        self._positions = array("q")
        self._indexes = array("q")

    def add(self, pos: int, index: int) -> None:
        self._positions.append(pos)
        self._indexes.append(index)

    def at(self, pos: int) -> int:
        """-1: none begins there."""
        found = bisect_left(self._positions, pos)
        is_there = found < len(self._positions) and self._positions[found] == pos
        return self._indexes[found] if is_there else -1


class _LedgerDump:
    """One line for each entry, and a digest over all committed ones."""

    def __init__(self, writer: TraceWriter, node_id: str, index: OfflineIndex | None, committed: int) -> None:
        """`index`: of a broker, to which the entries are messages."""
        self._writer = writer
        self._node_id = node_id
        self._index = index
        self._is_broker = index is not None
        self._committed = committed
        self._sum = blake2b(digest_size=8)
        self.count = 0
        self.indexes = _Indexes()

    def take(self, entry: StoredEntry) -> None:
        is_committed = entry.index <= self._committed
        fields: dict[str, int | str | bool] = {
            "node": self._node_id,
            "ledger": LEDGER,
            "lidx": entry.index,
            "eterm": entry.term,
            "chain": f"{entry.chain_crc:08x}",
            "is_committed": is_committed,
        }
        if entry.internal and (purge_to := _purge_to(entry.body)) is not None:
            fields["purge_to"] = purge_to
        message = None if entry.internal or not self._is_broker else _message_in(entry)
        if entry.internal or (message is not None and _is_nobodys(message.topic)):
            fields["internal"] = True
        elif message is not None:
            fields |= {"topic": message.topic, "q": message.queue_id, "qoff": message.queue_offset}
            fields |= {"mid": number_of(message.body), "digest": digest(message.body)}
            fields |= self._derived(message, entry)
        else:
            fields |= {"mid": UNREADABLE if self._is_broker else number_of(entry.body)}
            fields["digest"] = digest(entry.body)
        self._writer.write(Ev.DUMP, fields)
        self.count += 1
        if is_committed:
            self._sum.update(b"%d %d %d\n" % (entry.index, entry.term, entry.chain_crc))
        if self._is_broker:
            self.indexes.add(entry.pos, entry.index)

    def _derived(self, message: Message, entry: StoredEntry) -> dict[str, int | bool]:
        """What the files that are made of the log must say of a message, and whether the index has it."""
        found = split_properties(message.properties)
        said: dict[str, int | bool] = {"size": len(entry.body), "tag_hash": tag_code(found.get(TAGS, ""))}
        texts = index_keys(message.topic, found.get(UNIQ_KEY), found.get(KEYS))
        if texts and self._index is not None:
            said["indexed"] = self._index.holds(texts, entry.pos + ENTRY_HEADER_SIZE)
        return said

    def sum(self) -> str:
        return self._sum.hexdigest()


def _purge_to(body: bytes) -> int | None:
    """The index that an entry of the log itself lets go, with all below it (docs/formats.md: `T1`, `PU`)."""
    if body.startswith(b"T1"):
        body = body[10:]
    return int.from_bytes(body[2:10], signed=True) if body.startswith(b"PU") else None


def _is_nobodys(topic: str) -> bool:
    """Whether no good client sends to it."""
    return topic in _OWN_TOPICS or topic.startswith((*_HOSTILE_TOPICS, _SYSTEM))


def _message_in(entry: StoredEntry) -> Message | None:
    """None: the entry is none, which on a broker's log should not be."""
    try:
        return decode(entry.body, max_body_bytes=_ANY_BODY)
    except StoredDataDamaged:
        return None


def _dump_queues(
    writer: TraceWriter, node_id: str, root: Path, indexes: _Indexes, *, header: int = ENTRY_HEADER_SIZE
) -> None:
    """One line for each unit of the queues that good clients send to, and a digest over the units of all.
    `header`: what the log has before each record."""
    queues = OfflineQueues(root)
    count, total = 0, blake2b(digest_size=8)
    for topic, queue_id, offset, unit in queues.units():
        index = indexes.at(unit.physical_offset - header)
        place = {"node": node_id, "topic": topic, "q": queue_id, "qoff": offset, "lidx": index}
        if not _is_nobodys(topic):
            writer.write(Ev.CQ, {**place, "size": unit.size, "tag_hash": unit.tag_code})
            count += 1
        total.update(
            f"{topic} {queue_id} {offset} {unit.physical_offset} {unit.size} {unit.tag_code}\n".encode()
        )
    said = "; ".join(queues.problems) or "clean"
    _conclude(writer, node_id, "consumequeue", count, total.hexdigest(), said)


def _conclude(
    writer: TraceWriter, node_id: str, what: str, count: int, total: str, said: str, **fields: int
) -> None:
    told = {"node": node_id, "ledger": what, "count": count, "digest": total, "text": said, **fields}
    writer.write(Ev.META, {"e": "dumped", **told})
