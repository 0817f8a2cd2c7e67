"""A log made by hand, and a second, deliberately dumb implementation of what is derived from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from broker_adapter.log.replicated import ENTRIES
from broker_adapter.store.dispatcher import Arrivals, Dispatcher, StoreOptions
from broker_adapter.store.job_queue import GatheredWork, Job
from broker_adapter.wire.host import Host
from broker_adapter.wire.index_layout import IndexShape, index_keys
from broker_adapter.wire.java_hash import tag_code
from broker_adapter.wire.message import MessageRecord, Version, decode, encode, patch_offsets
from broker_adapter.wire.properties import join_properties, split_properties
from dledger.testing.virtual.sim_disk import SimDisk

ROOT = Path("/broker")
METADATA = "DLEDGER_SYS_METADATA"
SHAPE = IndexShape(slots=5, items=12)
SMALL = StoreOptions(
    units_per_file=4, index_shape=SHAPE, max_open_files=3, checkpoint_interval_s=0.0, checkpoint_bytes=1 << 40
)
START_MS = 1_700_000_000_000
EVER = (0, 1 << 60)
V6 = Host(bytes(range(16)), 10911)


#: Of an entry, without its sums.
_HEADER = Struct(">iiqqq12xi")


class Entry(NamedTuple):
    index: int  # type: ignore[assignment]
    term: int
    body: bytes
    pos: int


@dataclass
class Log:
    """Makes entries as a broker would: dense queue offsets, physical offsets in the records."""

    entries: list[Entry] = field(default_factory=list)
    next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    end_pos: int = 0
    now_ms: int = START_MS
    gap_every: int = 3  # entries, one of which is the log's own; 0: there are none

    def add(self, body: bytes, *, term: int = 1) -> Entry:
        index = self.entries[-1].index + 1 if self.entries else 0
        if self._is_gap(index):  # an entry of the log's own came in between
            index += 1
            self.end_pos += 48
        entry = Entry(index, term, body, self.end_pos)
        self.end_pos += 48 + len(body)
        self.entries.append(entry)
        return entry

    def skip_index(self) -> None:
        self.end_pos += 48

    def message(
        self,
        topic: str = "T",
        queue_id: int = 0,
        *,
        tag: str = "",
        keys: str = "",
        unique: str = "",
        other: str = "x",
        delay: str = "",
        part: int = 0,
        host: Host | None = None,
        version: Version | None = None,
        body: bytes = b"body",
        offset: int | None = None,
    ) -> Entry:
        properties = {"TAGS": tag, "KEYS": keys, "UNIQ_KEY": unique, "other": other, "DELAY": delay}
        self.now_ms += 400
        message = MessageRecord(
            topic,
            body,
            join_properties({name: value for name, value in properties.items() if value}),
            queue_id=queue_id,
            sys_flag=part,
            store_timestamp=self.now_ms,
            version=version,
        )
        if host is not None:
            message = message._replace(born_host=host, store_host=host)
        record = encode(message)
        takes_offset = part in (0, 8)
        place = (topic, queue_id)
        if offset is None:
            offset = self.next_offsets.get(place, 0) if takes_offset else 0
        if takes_offset:
            self.next_offsets[place] = offset + 1
        index_gap = 48 if len(self.entries) and self._is_gap(self.entries[-1].index + 1) else 0
        patch_offsets(record, offset, self.end_pos + index_gap + 48)
        return self.add(bytes(record))

    def command(self, text: bytes) -> Entry:
        return self.message(METADATA, body=text)

    def _is_gap(self, index: int) -> bool:
        return self.gap_every > 0 and index % self.gap_every == self.gap_every - 1


def as_stored(entries: Sequence[Entry]) -> bytes:
    """The bytes of consecutive entries in the log, those of the log's own between them as no-ops."""
    stored = bytearray()
    for number, entry in enumerate(entries):
        if number:
            before = entries[number - 1]
            for index in range(before.index + 1, entry.index):
                stored += _HEADER.pack(2, 48, index, entry.term, before.pos + 48 + len(before.body), 0)
        size = 48 + len(entry.body)
        stored += _HEADER.pack(1, size, entry.index, entry.term, entry.pos, len(entry.body)) + entry.body
    return bytes(stored)


class Commands:
    """Metadata that are the list of all commands; b"delete X" deletes topic X."""

    def __init__(self, delete_topic: Callable[[str], None] = lambda _: None) -> None:
        self.delete_topic = delete_topic
        self.applied: list[tuple[int, str]] = []

    def apply(self, index: int, body: bytes) -> None:
        self.applied.append((index, body.decode()))
        word, _, topic = body.decode().partition(" ")
        if word == "delete":
            self.delete_topic(topic)

    def save(self) -> bytes:
        return json.dumps(self.applied).encode()

    def load(self, data: bytes) -> None:
        self.applied = [(index, text) for index, text in json.loads(data or b"[]")]

    def checkpoint(self) -> bytes:
        return self.save()

    def restore(self, data: bytes) -> None:
        self.load(data)

    def sync(self) -> None: ...

    def checkpointed(self) -> None: ...

    def close(self) -> None: ...


class InlineJobQueue:
    """Does each job at once, on the thread that submits it."""

    def __init__(self, name: str, limit: int) -> None:
        self.pending = 0

    def gather(self, work: GatheredWork, items: Sequence[Any], weight: int) -> None:
        self.submit(partial(work, list(items)), weight)

    def submit(self, job: Job, weight: int = 0) -> None:
        job()

    def wait(self, timeout_s: float) -> bool:
        return True

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


class Node:
    """A Dispatcher on a disk, with what a node gives it."""

    def __init__(
        self, disk: SimDisk, options: StoreOptions = SMALL, metadata: Commands | None = None
    ) -> None:
        self.disk = disk
        if not disk.exists(ROOT):
            disk.mkdir(ROOT)
            disk.sync_directory(ROOT.parent)
        self.durable = 1 << 60
        self.arrivals: list[Arrivals] = []
        self.metadata = metadata or Commands()
        self.now = 0.0
        self.dispatcher = Dispatcher(
            ROOT,
            self.metadata,
            durable_index=lambda: self.durable,
            log=ENTRIES,
            on_arrival=self.arrivals.append,
            options=options,
            disk=disk,
            clock=lambda: self.now,
            job_queue=InlineJobQueue,
        )
        self.metadata.delete_topic = self.dispatcher.queues.delete_topic

    def start(self, entries: Sequence[Entry]) -> int:
        """As a node starts: recover, or load nothing; then apply the rest. How many were known already."""
        applied = self.dispatcher.recover()
        if applied is None:
            self.dispatcher.load(())
            known = 0
        else:
            ends = [(e.index, e.term, e.pos + 48 + len(e.body)) for e in entries]
            known = ends.index((applied.index, applied.term, applied.end_pos)) + 1
        if entries[known:]:
            self.dispatcher.apply(entries[known:])
        return known


def look(dispatcher: Dispatcher, keys: Sequence[tuple[str, str]] = ()) -> dict[str, object]:
    """All that readers can see of it."""
    seen: dict[str, object] = {}
    for queue in dispatcher.queues.all():
        units = []
        while queue.min_offset + len(units) < queue.max_offset:
            units += queue.read(queue.min_offset + len(units), 3)
        seen[f"{queue.topic}@{queue.queue_id}"] = (
            queue.min_offset,
            queue.max_offset,
            queue.floor,
            [tuple(unit) for unit in units],
        )
    for topic, key in keys:
        seen[f"{topic}#{key}"] = list(dispatcher.index.find(topic, key, *EVER))
    return seen


def dumb_look(entries: Sequence[Entry], keys: Sequence[tuple[str, str]] = ()) -> dict[str, object]:
    """The same, made of the whole log in the most obvious way."""
    units: dict[str, list[tuple[int, int, int]]] = {}
    floors: dict[str, int] = {}
    found: dict[str, list[int]] = {f"{topic}#{key}": [] for topic, key in keys}
    for entry in entries:
        try:
            message = decode(entry.body)
        except Exception:
            continue
        if message.physical_offset != entry.pos + 48:
            continue
        if message.topic == METADATA:
            word, _, topic = message.body.decode().partition(" ")
            for place in units:
                if word == "delete" and place.startswith(f"{topic}@"):
                    floors[place] = len(units[place])
            continue
        properties = split_properties(message.properties)
        part = message.sys_flag & 12
        if part in (0, 8):
            place = f"{message.topic}@{message.queue_id}"
            mine = units.setdefault(place, [])
            assert message.queue_offset == len(mine)
            mine.append((entry.pos + 48, len(entry.body), tag_code(properties.get("TAGS"))))
        if part != 12:
            texts = index_keys(message.topic, properties.get("UNIQ_KEY"), properties.get("KEYS"))
            for text in set(texts):
                if text in found:
                    found[text].insert(0, entry.pos + 48)
    seen: dict[str, object] = {}
    for place, mine in units.items():
        floor = floors.get(place, 0)
        seen[place] = (floor, len(mine), floor, mine[floor:])
    return {**seen, **found}


def commands_of(entries: Sequence[Entry]) -> list[tuple[int, str]]:
    messages = [(entry.index, decode(entry.body)) for entry in entries if entry.body[4:5] == b"\xda"]
    return [(index, message.body.decode()) for index, message in messages if message.topic == METADATA]
