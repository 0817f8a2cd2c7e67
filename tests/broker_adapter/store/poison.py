"""Committed entries with any bytes, made of valid ones, and what a node makes of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state.commands import (
    Ack,
    Bury,
    Carry,
    ChangeKind,
    ChangeVisibility,
    ConfirmReceipt,
    Defer,
    DeferredKind,
    Drop,
    Element,
    EndDeferred,
    EndHalfId,
    Ending,
    Fold,
    Pop,
    PurgeBelow,
    QueueKey,
    RecordAttempt,
    RecordCheck,
    SentId,
    SentIds,
    StoredId,
    StoredIds,
)
from broker_adapter.delivery_state.delay_index import DelayIndex
from broker_adapter.delivery_state.duplicate_filter import SendIdentity
from broker_adapter.delivery_state.queue_state import QueueDelivery
from broker_adapter.delivery_state.records import encode as encode_delivery
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.log.replicated import ENTRIES
from broker_adapter.metadata.commands import (
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    ExpireGroup,
    NewGeneration,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.metadata.records import encode as encode_metadata
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server.replicated_state import ReplicatedState
from broker_adapter.store.dispatcher import Dispatcher, StoreOptions
from broker_adapter.store.job_queue import JobQueue
from broker_adapter.wire.message import patch_offsets
from dledger.infra.files.disk import Disk
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.store.helpers import (
    ROOT,
    SMALL,
    V6,
    Entry,
    InlineJobQueue,
    Log,
)

DELIVERY = "DLEDGER_SYS_DELIVERY"
KEYS = [("T", "k1"), ("U", "k1")]
NUMBERS = (0, 1, -1, 7, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))


class Replica:
    """What a node makes of committed entries, from its first start on or a later one."""

    def __init__(
        self,
        disk: Disk | None = None,
        index: DelayIndex | None = None,
        *,
        root: Path = ROOT,
        options: StoreOptions = SMALL,
        job_queue: Callable[[str, int], JobQueue] = InlineJobQueue,
    ) -> None:
        if disk is None:
            disk = SimDisk()
            disk.mkdir(root)
        self.disk = disk
        self.delivery = DeliveryState(
            first_offset=lambda *queue: self.metadata.first_offset(*queue), index=index
        )
        self.metadata = MetadataState(
            on_topic_cut=lambda topic: self.dispatcher.queues.delete_topic(topic),
            on_done=self.delivery.metadata_changed,
        )
        state = ReplicatedState(self.metadata, self.delivery)
        self.dispatcher = Dispatcher(
            root,
            state,
            durable_index=lambda: 1 << 60,
            log=ENTRIES,
            delivery=state.apply_delivery,
            options=options,
            disk=self.disk,
            clock=lambda: 0.0,
            job_queue=job_queue,
        )

    def start(self) -> int:
        """Index of the last entry that is applied already."""
        applied = self.dispatcher.recover()
        if applied is None:
            self.dispatcher.load(())
        return -1 if applied is None else applied.index

    def image(self) -> bytes:
        return b"".join(self.dispatcher.save())


def metadata_commands() -> list[Command]:
    return [
        PutTopic(TopicConfig("T", 4, 4), create_only=True),
        PutTopic(TopicConfig("U", 4, 4), create_only=True),
        PutGroup(GroupConfig("g"), create_only=True),
        NewGeneration("g", frozenset({"m1", "m2"})),
        CommitOffsets("g", -1, (QueueOffset("T", 0, 3), QueueOffset("U", 1, 4))),
        ResetOffsets("g", (QueueOffset("T", 0, 1),)),
        DeleteTopic("U"),
        ExpireGroup("g", 3, 1),
        DeleteGroup("g"),
    ]


def delivery_elements(rng: Random, state: DeliveryState) -> list[Element]:
    """What a master might propose in this state."""
    key = QueueKey("g", "T", rng.randrange(3))
    queue = state.queues.get(key) or QueueDelivery(key, 0)
    offset = rng.choice(list(queue.pending) or [1])
    pop = queue.pending[offset].pop if offset in queue.pending else 7
    deferred = rng.choice(list(state.deferred) or [7])
    kind, begin = rng.choice(list(DeferredKind)), min(queue.cursor, 1 << 62)
    defer = Defer(kind, "T", 0, 10**12, b"d" * 16, "id", "c", 0, 0, 5, b"\0" * 8, "p\1v", b"b")
    fresh = (begin, begin + 1, begin + 3)
    elements: list[Element] = [
        Pop(key, "c", "attempt", 60_000, True, False, False, begin, begin + 4, fresh, ((offset, pop),)),
        Ack(key, offset, pop),
        Drop(key, offset, pop),
        ChangeVisibility(key, offset, pop, 1000, rng.choice(list(ChangeKind))),
        SentIds((SentId(b"x" * 16, 0, 8), SentId(b"y" * 16, 3, 9))),
        StoredIds((StoredId(SendIdentity(b"x" * 16, b"c" * 16, 7), 0, 8),)),
        EndHalfId(b"x" * 16, 7, 3),
        RecordAttempt(SendIdentity(b"x" * 16, b"c" * 16, 9), 0, 8),
        defer,
        Carry(deferred, defer),
        EndDeferred(deferred, rng.choice(list(Ending))),
        RecordCheck(deferred, 10**12),
        Bury(key, offset, pop, 1000),
        ConfirmReceipt(key, pop, (offset,)),
        PurgeBelow("T", key.queue_id, offset),
        Fold(key, 0, 100),
    ]
    return rng.sample(elements, rng.randint(1, 4))


def wild_command(rng: Random, state: DeliveryState) -> bytes:
    """A command with numbers that fit into their fields, and nothing else about them."""
    elements = []
    for element in delivery_elements(rng, state):
        fields = [name for name, value in element._asdict().items() if type(value) is int]
        if fields:
            element = element._replace(**{rng.choice(fields): rng.choice(NUMBERS)})  # type: ignore[arg-type]
        elements.append(element)
    with suppress(struct.error, ValueError):
        return encode_delivery(elements)
    return b""


def good_entry(log: Log, rng: Random, state: DeliveryState) -> Entry:
    kind = rng.random()
    if kind < 0.25:
        return log.command(encode_metadata(rng.choice(metadata_commands())))
    if kind < 0.5:
        return log.message(DELIVERY, body=encode_delivery(delivery_elements(rng, state)))
    return log.message(
        rng.choice("TU"),
        rng.randrange(3),
        tag=rng.choice(("", "A")),
        keys=rng.choice(("", "k1 k2")),
        host=rng.choice((None, None, V6)),
    )


def mutated(body: bytes, rng: Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.choice((1, 1, 1, 2, 5)) if body else 0):
        at = rng.randrange(len(changed))
        match rng.randrange(6):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2 | 3:
                form = rng.choice((">h", ">i", ">q"))
                number = rng.choice(NUMBERS)
                size = struct.calcsize(form)
                raw = (number & (1 << 8 * size) - 1).to_bytes(size)
                changed[at : at + size] = raw
            case 4:
                del changed[at : at + rng.randint(1, 9)]
            case _:
                changed[at:at] = rng.randbytes(rng.randint(1, 9))
        if not changed:
            return b""
    return bytes(changed)


def poison(log: Log, rng: Random, state: DeliveryState) -> Entry:
    """An entry with wrong bytes, in which the fields that only tell of its place are right again."""
    before = dict(log.next_offsets)
    entry = good_entry(log, rng, state)
    log.next_offsets = before
    body = bytearray(mutated(entry.body, rng))
    if len(body) >= 91 and rng.random() < 0.9:
        body[:4] = len(body).to_bytes(4)
        with suppress(ValueError):  # another magic number
            patch_offsets(body, int.from_bytes(body[20:28]) & (1 << 63) - 1, entry.pos + 48)
    log.entries.pop()
    log.end_pos = entry.pos
    return put(log, entry.index, bytes(body))


def put(log: Log, index: int, body: bytes) -> Entry:
    entry = Entry(index, 1, body, log.end_pos)
    log.entries.append(entry)
    log.end_pos += 48 + len(body)
    return entry


def poisoned_log(rng: Random, count: int) -> Log:
    """Good entries and bad ones, as a master writes them that heeds what its ConsumeQueues say."""
    log, watcher = Log(), Replica()
    watcher.start()
    for command in metadata_commands()[:3]:
        log.command(encode_metadata(command))
    applied = 0
    for _ in range(count):
        watcher.dispatcher.apply(log.entries[applied:])
        applied = len(log.entries)
        for queue, offset in watcher.dispatcher.queues.next_offsets().items():
            log.next_offsets[queue] = max(offset, log.next_offsets.get(queue, 0))
        (poison if rng.random() < 0.4 else good_entry)(log, rng, watcher.delivery)
    return log


def batches(entries: Sequence[Entry], rng: Random) -> list[Sequence[Entry]]:
    found: list[Sequence[Entry]] = []
    at = 0
    while at < len(entries):
        end = at + rng.choice((1, 3, 40))
        found.append(entries[at:end])
        at = end
    return found
