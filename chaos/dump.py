"""Dumps the files of all nodes after a run as trace lines: every log entry and every ConsumeQueue unit.

Reads the files without a server. For damaged files, dumps the valid entries and reports the damaged ranges.
Memory use is one batch and, with brokers, 16 bytes per entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from broker_adapter.delivery_state.commands import DELIVERY_TOPIC
from broker_adapter.errors import CompressionUnavailable, StoredDataDamaged
from broker_adapter.log.classic.store_directory import StoreDirectory
from broker_adapter.metadata.commands import METADATA_TOPIC
from broker_adapter.store.offline import OfflineIndex, OfflineQueues
from broker_adapter.wire.compression import decompress
from broker_adapter.wire.index_layout import index_keys
from broker_adapter.wire.java_hash import tag_code
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.properties import KEYS, TAGS, UNIQ_KEY, split_properties
from chaos.cluster.cluster import ChaosCluster, derived_of
from chaos.cluster.node_configs import ClusterVariant
from chaos.faults.take_over import LEFT, left_directory
from chaos.hostile.orders import PREFIX as HOSTILE_PREFIX
from chaos.trace.schema import LEDGER, Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.messages import UNREADABLE, digest, number_of
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.store.offline.inspect import OfflineLog, StoredEntry

_ANY_BODY = 1 << 30
_MAX_DECOMPRESSED = 64 << 20
#: Topics with the broker's own state, not client messages.
_OWN_TOPICS = (METADATA_TOPIC, DELIVERY_TOPIC)
#: Fields that are compared with other files of the same node. They are omitted for a lost log, whose node has
#: none.
_OF_FILES = ("lidx", "digest", "size", "tag_hash")
#: Prefix of such topics in a classic log.
_SYSTEM = "DLEDGER_SYS_"
#: Topics that belong to hostile clients, and the dead-letter and retry topics of their groups.
_HOSTILE_TOPICS = (HOSTILE_PREFIX, f"%DLQ%{HOSTILE_PREFIX}", f"%RETRY%{HOSTILE_PREFIX}")


def dump_source(node_id: str) -> str:
    """Return the trace source that writes the files of a node."""
    return f"dump:{node_id}"


def dump_cluster(run_directory: Path, run: str, cluster: ChaosCluster, settled: int | None) -> None:
    """Dump all nodes, one after the other, each with its own writer. The nodes must have stopped."""
    for node_id, store in zip(cluster.node_ids, cluster.stores(), strict=True):
        with TraceWriter(run_directory, run, dump_source(node_id)) as writer:
            if cluster.kind == "classic":
                dump_classic(writer, node_id, store)
                continue
            dump_node(writer, node_id, store, cluster.kind, settled)


def dump_node(
    writer: TraceWriter, node_id: str, store: Path, kind: ClusterVariant, settled: int | None
) -> None:
    """Write the files of one node to `writer`.

    `store`: its directory; derived files are in a sibling directory. `settled`: the index that all nodes had
    committed at the end. If it is None, the committed index in the node's own checkpoint is used.
    """
    with OfflineLog(store) as log:
        checkpoint = log.report.checkpoint
        committed = settled if settled is not None else checkpoint.committed_index if checkpoint else -1
        index = OfflineIndex(derived_of(store)) if kind == "broker" else None
        ledger = _LedgerDump(writer, node_id, index, committed)
        for entry in log.entries():
            ledger.dump(entry)
        report = log.report
    for damage in report.damages:
        hole = {"lidx": damage.first_index, "last": damage.last_index, "text": damage.reason}
        writer.write(Ev.META, {"e": "dump_hole", "node": node_id, "ledger": LEDGER, **hole})
    text = "; ".join([f"{report.verdict.value}: {report.verdict_reason}".rstrip(": "), *report.problems])
    _conclude(writer, node_id, LEDGER, ledger.count, ledger.sum(), text, ended=report.end_index)
    if kind == "broker":
        _dump_queues(writer, node_id, derived_of(store), ledger.indexes)


def dump_classic(writer: TraceWriter, node_id: str, store: Path) -> None:
    """Dump a node with a classic log, and the log that was set aside when the node was lost."""
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
        count = 0
        for record in classic_records(StoreDirectory(left)):
            place = {name: value for name, value in record.fields.items() if name not in _OF_FILES}
            writer.write(Ev.LEFT, {**place, "node": node_id})
            count += 1
        _conclude(writer, node_id, LEFT, count, "", "clean")


class ClassicRecord(NamedTuple):
    """A record of a classic log: its trace fields, its offset, and the index keys under which it is found."""

    fields: dict[str, int | str | bool]
    offset: int
    keys: Sequence[str]


def classic_records(directory: StoreDirectory) -> Iterator[ClassicRecord]:
    """Yield all records, numbered from 0. `chain` covers all bytes of the log up to the end of the record."""
    chain = 0
    for number, (record, message) in enumerate(directory.scan().messages()):
        chain = crc32(record, chain)
        fields: dict[str, int | str | bool] = {
            "lidx": number,
            "off": message.physical_offset,
            "chain": f"{chain:08x}",
        }
        keys: Sequence[str] = ()
        if _is_not_client_topic(message.topic):
            fields["internal"] = True
        else:
            properties = split_properties(message.properties)
            fields |= {"topic": message.topic, "q": message.queue_id, "qoff": message.queue_offset}
            fields |= _body_fields(message)
            fields |= {"size": len(record), "tag_hash": tag_code(properties.get(TAGS, ""))}
            keys = index_keys(message.topic, properties.get(UNIQ_KEY), properties.get(KEYS))
        yield ClassicRecord(fields, message.physical_offset, keys)


class _Indexes:
    """Maps positions to entry indexes. Entries must be added in order of position."""

    def __init__(self) -> None:
        self._positions = array("q")
        self._indexes = array("q")

    def add(self, pos: int, index: int) -> None:
        self._positions.append(pos)
        self._indexes.append(index)

    def at(self, pos: int) -> int:
        """Return the index of the entry at `pos`, or -1 if none starts at that position."""
        slot = bisect_left(self._positions, pos)
        is_there = slot < len(self._positions) and self._positions[slot] == pos
        return self._indexes[slot] if is_there else -1


class _LedgerDump:
    """Dumps one line per entry, and computes a digest over all committed entries."""

    def __init__(self, writer: TraceWriter, node_id: str, index: OfflineIndex | None, committed: int) -> None:
        """Create a dump. `index`: the index of a broker, whose entries are messages; otherwise None."""
        self._writer = writer
        self._node_id = node_id
        self._index = index
        self._is_broker = index is not None
        self._committed = committed
        self._sum = blake2b(digest_size=8)
        self.count = 0
        self.indexes = _Indexes()

    def dump(self, entry: StoredEntry) -> None:
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
        if entry.internal or (message is not None and _is_not_client_topic(message.topic)):
            fields["internal"] = True
        elif message is not None:
            fields |= {"topic": message.topic, "q": message.queue_id, "qoff": message.queue_offset}
            fields |= _body_fields(message)
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

    def _derived(self, message: MessageRecord, entry: StoredEntry) -> dict[str, int | bool]:
        """Return the values that the derived files must have for a message, and whether the index contains
        it."""
        properties = split_properties(message.properties)
        values: dict[str, int | bool] = {
            "size": len(entry.body),
            "tag_hash": tag_code(properties.get(TAGS, "")),
        }
        texts = index_keys(message.topic, properties.get(UNIQ_KEY), properties.get(KEYS))
        if texts and self._index is not None:
            values["indexed"] = self._index.holds(texts, entry.pos + ENTRY_HEADER_SIZE)
        return values

    def sum(self) -> str:
        return self._sum.hexdigest()


def _purge_to(body: bytes) -> int | None:
    """Return the index up to which an internal entry purges the log (docs/formats.md: `T1`, `PU`)."""
    if body.startswith(b"T1"):
        body = body[10:]
    return int.from_bytes(body[2:10], signed=True) if body.startswith(b"PU") else None


def _is_not_client_topic(topic: str) -> bool:
    """Return True if no regular client sends to the topic."""
    return topic in _OWN_TOPICS or topic.startswith((*_HOSTILE_TOPICS, _SYSTEM))


def _message_in(entry: StoredEntry) -> MessageRecord | None:
    """Decode a message. Returns None if the entry is not a message, which is an error in a broker's log."""
    try:
        return decode(entry.body, max_body_bytes=_ANY_BODY)
    except StoredDataDamaged:
        return None


def _body_fields(message: MessageRecord) -> dict[str, int | str]:
    """Return number and digest of the body that the producer sent: producers compress large bodies."""
    body = message.body
    with suppress(StoredDataDamaged, CompressionUnavailable):
        body = decompress(body, message.sys_flag, _MAX_DECOMPRESSED)
    return {"mid": number_of(body), "digest": digest(body)}


def _dump_queues(
    writer: TraceWriter, node_id: str, root: Path, indexes: _Indexes, *, header: int = ENTRY_HEADER_SIZE
) -> None:
    """Dump one line per unit of the queues that regular clients send to, and a digest over all units.

    `header`: size of the log's header before each record.
    """
    queues = OfflineQueues(root)
    count, total = 0, blake2b(digest_size=8)
    for topic, queue_id, offset, unit in queues.units():
        index = indexes.at(unit.physical_offset - header)
        place = {"node": node_id, "topic": topic, "q": queue_id, "qoff": offset, "lidx": index}
        if not _is_not_client_topic(topic):
            writer.write(Ev.CQ, {**place, "size": unit.size, "tag_hash": unit.tag_code})
            count += 1
        total.update(
            f"{topic} {queue_id} {offset} {unit.physical_offset} {unit.size} {unit.tag_code}\n".encode()
        )
    text = "; ".join(queues.problems) or "clean"
    _conclude(writer, node_id, "consumequeue", count, total.hexdigest(), text)


def _conclude(
    writer: TraceWriter, node_id: str, what: str, count: int, total: str, text: str, **fields: int
) -> None:
    line = {"node": node_id, "ledger": what, "count": count, "digest": total, "text": text, **fields}
    writer.write(Ev.META, {"e": "dumped", **line})
