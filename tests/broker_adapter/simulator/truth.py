"""What the committed log says, in the most obvious way; brokers are compared with it at every step.

Queues are lists of messages. Of what brokers derive, nothing is used here but the decoders of records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from broker_adapter.api import QueueOffset
from broker_adapter.delivery_state.commands import DELIVERY_TOPIC, QueueKey
from broker_adapter.errors import StoredDataDamaged
from broker_adapter.metadata import records
from broker_adapter.metadata.commands import (
    METADATA_TOPIC,
    DeleteGroup,
    DeleteTopic,
    ExpireGroup,
    ResetOffsets,
)
from broker_adapter.metadata.records import UnknownCommand
from broker_adapter.put.sender import PutResult
from broker_adapter.store.consume_queue import ConsumeQueue
from broker_adapter.wire.consume_queue_unit import FILLER_SIZE, MAX_FILLERS
from broker_adapter.wire.java_hash import tag_code
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.properties import split_properties
from broker_adapter.wire.sys_flag import TRANSACTION_MASK
from dledger import AppliedEntry
from dledger.testing import Violation
from tests.broker_adapter.simulator.delivery_model import look_at_delivery
from tests.broker_adapter.simulator.delivery_truth import DeliveryTruth
from tests.broker_adapter.simulator.group_model import GroupModel, look_at

if TYPE_CHECKING:
    from tests.broker_adapter.simulator.machine import CheckedDispatcher

Queue = tuple[str, int]
#: The property of a message that tells the tries of a producer apart.
TRY = "try"
#: What the bodies of messages begin with that no broker has written.
POISON = b"poison "


class Stored(NamedTuple):
    """A committed message."""

    entry_index: int
    term: int
    physical_offset: int
    size: int
    tag_code: int
    body: bytes
    keys: str
    message_id: str


@dataclass
class QueueModel:
    """All messages that a queue ever got; message i has queue offset i."""

    messages: list[Stored] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)  # (entry, floor from there on)

    def length_at(self, index: int) -> int:
        """How many it had after an entry."""
        return bisect_right(self.messages, index, key=lambda one: one.entry_index)

    def floor_at(self, index: int) -> int:
        return max((floor for at, floor in self.cuts if at <= index), default=0)

    def first_after(self, physical_offset: int) -> int:
        """The first message at this place of the log or behind it."""
        first = bisect_left(self.messages, physical_offset, key=lambda one: one.physical_offset)
        while self.messages[first : first + 1] and self.messages[first].size == FILLER_SIZE:
            first += 1  # it has the place of the message behind it
        return first


class LogTruth:
    """Implements `dledger.testing.durable.Judge`, and judges what clients were told."""

    def __init__(self) -> None:
        self.queues: dict[Queue, QueueModel] = {}
        self.groups = GroupModel()
        self.delivery = DeliveryTruth()
        self.acknowledged: dict[tuple[Queue, int], bytes] = {}
        self.refused: set[tuple[bytes, str]] = set()  # (body, try)
        self.commits_acknowledged = 0
        self.deletions = Counter[str]()  # by topic
        self.expiries = Counter[str]()  # of groups, by what came of them
        self._seen_commit: dict[str, int] = {}  # by group: index at which an acknowledged commit was there
        self._holes: set[tuple[str, int, int]] = set()  # offsets that messages in no queue have taken
        self._tries: set[tuple[bytes, str]] = set()
        self._last_stamp = -1

    def queue(self, queue: Queue) -> QueueModel:
        return self.queues.get(queue, QueueModel())

    # -- the committed log

    def committed(self, index: int, entry: AppliedEntry | None) -> None:
        if entry is None:
            return
        try:
            message = decode(entry.body)
        except StoredDataDamaged:
            return  # no message, and nobody's
        if message.physical_offset != entry.pos + 48:
            raise Violation("places", f"entry {index} at {entry.pos} says {message.physical_offset}")
        if message.store_timestamp < self._last_stamp:
            raise Violation("times", f"{message.store_timestamp} at entry {index} after {self._last_stamp}")
        self._last_stamp = message.store_timestamp
        if message.topic == METADATA_TOPIC:
            self._command(index, message)
        elif message.topic == DELIVERY_TOPIC:
            self.delivery.command(message.body)
            self.delivery.model.put(index, message.store_timestamp, message.body, self._first_offset)
        else:
            self._message(entry, message)
            self.delivery.message(message)

    def _first_offset(self, key: QueueKey) -> int | None:
        groups, topics = self.groups.names
        if key.group not in groups or key.topic not in topics:
            return None
        return self.groups.offsets(key.group).get((key.topic, key.queue_id), 0)

    def _command(self, index: int, message: MessageRecord) -> None:
        try:
            _, command = records.decode(message.body)
        except StoredDataDamaged:
            return
        if isinstance(command, UnknownCommand):
            return
        groups, _ = self.groups.names
        cut = self.groups.put(index, command, self.delivery.model.of_group)
        match command:
            case DeleteGroup(group=name) | ExpireGroup(group=name):
                took_effect = name in groups and name not in self.groups.names[0]
            case ResetOffsets(group=name):
                took_effect = self.groups.generation(name) == index
            case _:
                took_effect = cut is not None
        self.delivery.model.metadata(index, command, took_effect)
        if isinstance(command, ExpireGroup):
            self.expiries["expired" if took_effect else "kept"] += 1
        if isinstance(command, DeleteTopic) and took_effect:
            self.deletions[command.topic] += 1
        for (topic, _), queue in self.queues.items():
            if topic == cut:
                queue.cuts.append((index, len(queue.messages)))

    def _message(self, entry: AppliedEntry, message: MessageRecord) -> None:
        if message.sys_flag & TRANSACTION_MASK:  # in no queue, whatever offset it took
            self._holes.add((message.topic, message.queue_id, message.queue_offset))
            return
        name = message.topic, message.queue_id
        if not message.body.startswith(POISON):
            self._check_takes(entry.index, *name)
        queue = self.queues.setdefault(name, QueueModel())
        properties = split_properties(message.properties)
        missing = message.queue_offset - len(queue.messages)
        if not 0 <= missing <= MAX_FILLERS and message.body.startswith(POISON):
            return  # it has no place
        left_out = range(len(queue.messages), message.queue_offset)
        if missing < 0 or any((*name, offset) not in self._holes for offset in left_out):
            raise Violation(
                "queue offsets dense",
                f"{message.queue_offset} at entry {entry.index}, where {len(queue.messages)} was next in"
                f" {message.topic}-{message.queue_id}",
            )
        filler = Stored(entry.index, entry.term, entry.pos + 48, FILLER_SIZE, 0, b"", "", "")
        queue.messages += [filler] * missing
        self._tries.add((message.body, properties.get(TRY, "")))
        queue.messages.append(
            Stored(
                entry.index,
                entry.term,
                entry.pos + 48,
                len(entry.body),
                tag_code(properties.get("TAGS")),
                message.body,
                properties.get("KEYS", ""),
                properties.get("UNIQ_KEY", ""),
            )
        )

    def _check_takes(self, index: int, topic: str, queue_id: int) -> None:
        """There is such a queue at this place of the log: nobody would read the message otherwise."""
        config = dict(self.groups.at(index).topics).get(topic)
        if config is None or queue_id >= max(config.read_queues, config.write_queues):
            raise Violation(
                "lost to a deletion", f"entry {index} is of {topic}-{queue_id}, there is {config}"
            )

    # -- what brokers have derived from it

    def check(self, node_id: str, machine: CheckedDispatcher, applied: int, base_index: int) -> None:
        """`base_index` does not matter: what was purged, the machine's own queues tell."""
        expected = self.groups.at(applied)
        found = look_at(machine.metadata)
        if found != expected:
            raise Violation("metadata", f"{node_id} at {applied}: {found}, not {expected}")
        given, wanted = look_at_delivery(machine.delivery), self.delivery.model.at(applied)
        if given != wanted:
            raise Violation("delivery", f"{node_id} at {applied}: {given}, not {wanted}")
        there = {(queue.topic, queue.queue_id): queue for queue in machine.dispatcher.queues.all()}
        for name, model in self.queues.items():
            length = model.length_at(applied)
            queue = there.pop(name, None)
            if queue is None:
                if length:
                    raise Violation(
                        "ConsumeQueue", f"{node_id} at {applied} has no {name}, which has {length}"
                    )
                continue
            self._check_queue(node_id, machine, applied, queue, model, length)
        if there:
            raise Violation(
                "ConsumeQueue", f"{node_id} at {applied} has {sorted(there)}, which nobody wrote to"
            )

    def _check_queue(
        self,
        node_id: str,
        machine: CheckedDispatcher,
        applied: int,
        queue: ConsumeQueue,
        model: QueueModel,
        length: int,
    ) -> None:
        where = f"{node_id} at {applied}: {queue}"
        floor = model.floor_at(applied)
        if (queue.max_offset, queue.floor) != (length, floor):
            found = f"ends at {queue.max_offset} with floor {queue.floor}"
            raise Violation("ConsumeQueue", f"{where} {found}, not at {length} with floor {floor}")
        least = min(length, max(floor, model.first_after(machine.kept_from)))
        if not floor <= queue.min_offset <= max(least, floor):
            raise Violation("ConsumeQueue", f"{where} begins at {queue.min_offset}, not at {least}")
        at = max(queue.min_offset, machine.checked.get((queue.topic, queue.queue_id), 0))
        while at < length:
            for unit in queue.read(at, length - at):
                one = model.messages[at]
                if tuple(unit) != (one.physical_offset, one.size, one.tag_code):
                    raise Violation("ConsumeQueue", f"{where}: unit {at} is {unit}, not of {one}")
                at += 1
        machine.checked[queue.topic, queue.queue_id] = length

    # -- what clients were told

    def sent(self, result: PutResult, topic: str, bodies: Sequence[bytes]) -> None:
        """A producer was told that its messages are stored."""
        queue = (topic, result.queue_id)
        stored = self.queue(queue).messages[result.queue_offset : result.queue_offset + len(bodies)]
        if [one.body for one in stored] != list(bodies):
            raise Violation("acknowledged", f"{result} of {topic}, where there is {stored}")
        if [one.physical_offset for one in stored] != list(result.physical_offsets):
            raise Violation("acknowledged", f"{result} of {topic}, which lies elsewhere: {stored}")
        if any(one.term != result.term for one in stored):
            raise Violation("acknowledged", f"{result} of {topic} in another term: {stored}")
        for at, body in enumerate(bodies, result.queue_offset):
            self.acknowledged[queue, at] = body

    def pulled(
        self, node_id: str, queue: Queue, offset: int, next_offset: int, records_: Sequence[bytes]
    ) -> list[bytes]:
        """A consumer got these, and nothing else, between two offsets. Returns their bodies."""
        bodies = []
        there = self.queue(queue).messages[offset:next_offset]
        places = [at for at, one in enumerate(there, offset) if one.size != FILLER_SIZE]
        if len(places) != len(records_):
            raise Violation("seen", f"{node_id}: {len(records_)} of {queue} {offset} to {next_offset}")
        for at, record in zip(places, records_, strict=True):
            message = decode(record)
            stored = self.queue(queue).messages[at : at + 1]
            if not stored or stored[0].physical_offset != message.physical_offset:
                raise Violation("seen", f"{node_id} gave {message} as {queue} {at}; committed is {stored}")
            if (message.queue_offset, message.body) != (at, stored[0].body):
                raise Violation("seen", f"{node_id} gave {message} as {queue} {at}; committed is {stored}")
            bodies.append(message.body)
        return bodies

    def commit_acknowledged(self, group: str, offsets: tuple[QueueOffset, ...]) -> None:
        if not self.groups.committed(group, offsets):
            raise Violation("consumer offsets", f"{offsets} of {group}, acknowledged")
        self.commits_acknowledged += 1
        self._seen_commit[group] = self.groups.newest_index

    def reset_acknowledged(self, group: str, index: int) -> None:
        if self.groups.generation(group) < index:
            raise Violation("generations", f"reset of {group} at {index}, which is not in the log")
        self._seen_commit[group] = self.groups.newest_index

    def begin_offsets(self, group: str) -> int:
        """What a read of the group's offsets has to have seen: an index."""
        return self._seen_commit.get(group, -1)

    def end_offsets(self, group: str, since: int, offsets: Sequence[QueueOffset]) -> None:
        """A linearizable read: what it gave was so at some time since it began."""
        answer = tuple(((one.topic, one.queue_id), one.offset) for one in offsets)
        for look in self.groups.since(since):
            group_look = dict(look.groups).get(group)
            if group_look is not None and group_look.offsets == answer:
                return
        raise Violation("consumer offsets", f"{group} was read as {answer}; not so since {since}")

    # -- the end

    def check_refused(self) -> None:
        for body, number in self.refused & self._tries:
            raise Violation("refused", f"try {number} of {body!r} was refused for good, and is committed")

    def check_expired(self, topic: str, begin_pos: int) -> None:
        """Of a topic that nobody deletes: it went when all its messages had been purged, and not before."""
        for name, queue in self.queues.items():
            if name[0] == topic:
                for one in queue.messages[: queue.floor_at(1 << 60)]:
                    if one.physical_offset >= begin_pos:
                        raise Violation("expired", f"{one} of {name}, which the log still has")
