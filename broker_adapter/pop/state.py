"""The state of delivery that every node makes of the commands in the log. Deterministic: its time is that of
the store stamps.

Per group, topic and queue there are a cursor, the next offset that was never given, and the pending messages:
given to somebody until a time, and not done. What is below the cursor and not pending is done. A message
whose time has come may be given again, under a new pop; the pop is the number that its handle carries, and
only the newest one counts. Each element of a command is judged by what the state is when it is applied, and
has an outcome of its own.

Threads: one applies. Others read under `lock`, which is held for one command at a time, and for a part of one
that removes much: the event loop waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from time import sleep
from typing import TypeVar

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.metadata.commands import Command, DeleteGroup, DeleteTopic, ExpireGroup, ResetOffsets
from broker_adapter.metadata.values import GroupDelivery
from broker_adapter.pop.commands import (
    Ack,
    Bury,
    Carried,
    Change,
    Changed,
    ChangeKind,
    Checked,
    Defer,
    Deferred,
    Drop,
    Element,
    End,
    Fold,
    Outcome,
    PassedOn,
    Pop,
    Popped,
    Purged,
    QueueKey,
    Sent,
    SystemOffset,
    SystemQueueEnd,
)
from broker_adapter.pop.deferred_messages import (
    NOWHERE,
    DeferredMessage,
    DeferredMessages,
    IndexMark,
    LogPosition,
)
from broker_adapter.pop.delay_index import DelayIndex
from broker_adapter.pop.duplicate_filter import DuplicateFilter
from broker_adapter.pop.handles import topic_digest
from broker_adapter.pop.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.pop.records import NO_REQUEST, decode, request_id_of

#: A pop's or a deferred message's number is the index of its command and the place in it.
_PLACE_BITS = 16
_MAX_PLACE = (1 << _PLACE_BITS) - 1
#: No command was stored later: the times that are made of it fit into their fields.
MAX_STAMP_MS = 1 << 62
#: Queues of the broker's own whose offsets are kept. Part of the state's rules.
MAX_SYSTEM_QUEUES = 1_024

#: What is removed under the lock in one go, milliseconds of it; and for how long others may have it then.
_SLICE, _GIVE_WAY_S = 2_000, 0.0005

_K = TypeVar("_K")

#: Where a group begins in a queue, as the log has it at this point; None: there is no such group or topic.
FirstOffset = Callable[[str, str, int], int | None]


class _Contents:
    """What is replaced as a whole when an image is loaded."""

    def __init__(self, index: DelayIndex | None = None) -> None:
        self.applied_index = -1
        self.queues: dict[QueueKey, QueueDelivery] = {}
        self.deferred = DeferredMessages(index)
        self.ids = DuplicateFilter()
        self.system_offsets: dict[tuple[str, int], int] = {}  # by topic and queue id
        self.pending_count = 0
        self.by_group: dict[str, dict[QueueKey, QueueDelivery]] = {}
        self.pending_of: dict[str, int] = {}  # by group
        self.by_place: dict[tuple[str, int], dict[QueueKey, QueueDelivery]] = {}  # by topic and queue id
        self.by_owner: dict[str, dict[QueueKey, QueueDelivery]] = {}


class DeliveryState:
    """`on_outcomes` is told, on the applying thread, what came of every command with a request id: also of
    one that changed nothing because it could not be read, and of one that was not carried out to its end.
    Then there are fewer outcomes than elements.
    `first_offset` is asked when a command needs it: groups and topics that were deleted get no state.
    `index` is where delayed messages are that the log has; without one they are in memory."""

    def __init__(
        self,
        *,
        on_outcomes: Callable[[bytes, list[Outcome]], None] | None = None,
        first_offset: FirstOffset = lambda group, topic, queue_id: 0,
        index: DelayIndex | None = None,
    ) -> None:
        self.lock = Lock()
        self._on_outcomes = on_outcomes
        self._first_offset = first_offset
        # Counted since the start of this node; no part of the state.
        self.unknown = 0
        self.damaged = 0
        self._index = index
        self._now = _Contents(index)

    def clear(self) -> None:
        """The empty state. On the applying thread."""
        self._replace(_Contents())  # nobody reads the index from now on
        if self._index is not None:
            self._index.wipe()
        self._replace(_Contents(self._index))

    @property
    def has_index(self) -> bool:
        return self._index is not None

    def beside(self) -> DeliveryState:
        """To be filled and taken: with the same index, and without the lock, for which the event loop would
        wait."""
        return DeliveryState(index=self._index)

    def close(self) -> None:
        """Let go of the index."""
        with self.lock:
            if self._index is not None:
                self._index.close()

    def take(self, other: DeliveryState) -> None:
        """What the other one has, which is used no more. On the applying thread."""
        self._replace(other._now)

    def _replace(self, contents: _Contents) -> None:
        before = self._now
        with self.lock:
            self._now = contents
        del before  # not under the lock: it may be much

    # -- reading, under the lock --------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        return self._now.applied_index

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._now.applied_index = index

    @property
    def queues(self) -> dict[QueueKey, QueueDelivery]:
        return self._now.queues

    @property
    def deferred(self) -> DeferredMessages:
        return self._now.deferred

    @property
    def ids(self) -> DuplicateFilter:
        return self._now.ids

    @ids.setter
    def ids(self, ids: DuplicateFilter) -> None:
        self._now.ids = ids

    def system_offset(self, topic: str, queue_id: int) -> int:
        """How far the broker has come in a queue of its own."""
        return self._now.system_offsets.get((topic, queue_id), 0)

    @property
    def pending_count(self) -> int:
        """Of all groups."""
        return self._now.pending_count

    def queue(self, key: QueueKey) -> QueueDelivery | None:
        return self._now.queues.get(key)

    def pending_of(self, group: str) -> int:
        """How many messages the group was given that are not done."""
        return self._now.pending_of.get(group, 0)

    def owners(self) -> list[str]:
        """All clients with popped messages."""
        return list(self._now.by_owner)

    def queues_of(self, owner: str) -> list[QueueDelivery]:
        """Of which a client has popped something, in any group."""
        return list(self._now.by_owner.get(owner, {}).values())

    def popped_in_attempt(
        self, group: str, topic: str, attempt_id: str
    ) -> list[tuple[QueueKey, int, PoppedMessage]]:
        """What a call with this attempt id has got and is not done, by queue and offset."""
        found = []
        for key, queue in self._now.by_group.get(group, {}).items():
            if key.topic == topic:
                found += [(key, at, queue.pending[at]) for at in queue.popped_in_attempt(attempt_id)]
        return sorted(found)

    # -- for any thread -----------------------------------------------------------------------------------

    def offsets_of(self, group: str) -> dict[tuple[str, int], int]:
        """The first offset that is not done, of each queue of which the group was given anything."""
        with self.lock:
            queues = self._now.by_group.get(group, {})
            return {(key.topic, key.queue_id): queue.least for key, queue in queues.items()}

    def offset_of(self, group: str, topic: str, queue_id: int) -> int | None:
        """Likewise of one queue; None: the group was given nothing of it."""
        with self.lock:
            queue = self._now.by_group.get(group, {}).get(QueueKey(group, topic, queue_id))
            return None if queue is None else queue.least

    def topics_of(self, group: str) -> set[str]:
        """Of which the group was given anything."""
        with self.lock:
            return {key.topic for key in self._now.by_group.get(group, {})}

    def of_group(self, group: str) -> GroupDelivery:
        """What the group has of delivery."""
        with self.lock:
            queues = self._now.by_group.get(group, {})
            return GroupDelivery(self.pending_of(group), sum(queue.cursor + 1 for queue in queues.values()))

    def has_pending(self, group: str) -> bool:
        """Whether the group was given messages that are not done."""
        with self.lock:
            return self.pending_of(group) > 0

    def first_pos(self) -> int | None:
        """The position from which on the log has delayed messages; None: it has none."""
        with self.lock:
            return self.deferred.first_pos()

    def system_offsets(self) -> dict[tuple[str, int], int]:
        """How far the broker has come in each queue of its own."""
        with self.lock:
            return dict(self._now.system_offsets)

    def is_awaited(self, topic: str) -> bool:
        """Whether a delayed or half message waits for the topic."""
        with self.lock:
            return self.deferred.is_awaited(topic)

    # -- the state machine, on one thread -----------------------------------------------------------------

    def apply(self, index: int, stamp_ms: int, body: bytes, place: LogPosition = NOWHERE) -> None:
        """The body of a message of DLEDGER_SYS_DELIVERY, whatever it is; `index` is that of its entry, and
        `place` where the log has it: delayed messages are read there when they are due.

        Entries up to `applied_index` have been applied before and are passed over.
        """
        if index <= self.applied_index:
            return
        try:
            if not 0 <= stamp_ms < MAX_STAMP_MS:
                raise StoredDataDamaged(Status.RECORD_FIELD, f"stored at {stamp_ms} ms")
            command = decode(body)
        except StoredDataDamaged:
            self.damaged += 1
            command = None
        else:
            self.unknown += command is None
        outcomes: list[Outcome] = []
        try:
            with self.lock:
                self.applied_index = index
                if command is not None:
                    numbers = range(index << _PLACE_BITS, (index + 1) << _PLACE_BITS)
                    for number, element in zip(numbers, command.elements, strict=False):
                        outcomes.append(self._execute(element, number, stamp_ms, place))
        finally:  # whoever proposed it waits, whatever became of it
            request_id = request_id_of(body)
            if self._on_outcomes is not None and request_id != NO_REQUEST:
                self._on_outcomes(request_id, outcomes)
        if self.deferred.is_full:
            self.write_index()

    def write_index(self) -> None:
        """Put into the index what is not there yet. On the applying thread. OSError."""
        self.deferred.write()
        with self.lock:
            self.deferred.written()

    def mark_index(self) -> IndexMark:
        """What the index has now, for a checkpoint. On the applying thread. OSError."""
        self.write_index()
        return self.deferred.mark()

    def sync_index(self) -> None:
        """It is durable on return. On any thread. OSError."""
        if self._index is not None:
            self._index.sync()

    def metadata_changed(self, command: Command) -> None:
        """A command on topics and groups took effect."""
        match command:
            case DeleteGroup(group=group) | ExpireGroup(group=group):
                self._forget(list(self._now.by_group.get(group, {}).values()))
            case DeleteTopic(topic=topic):
                self._forget([queue for key, queue in self.queues.items() if key.topic == topic])
            case ResetOffsets(group=group, offsets=offsets):
                for topic, queue_id, offset in offsets:
                    queue = self.queues.get(QueueKey(group, topic, queue_id))
                    if queue is not None:
                        self._forget([queue], QueueDelivery(queue.key, offset))

    def topic_cut(self, topic: str) -> None:
        """A topic came into being or ended: nothing of one that had its name is of it."""
        whole = self.deferred.whole_of_topic(topic)
        ids = self.ids.without(topic_digest(topic))
        ends = self.deferred.ends_without(topic)
        with self.lock:
            self.ids = ids
            self.deferred.take_ends(ends)
            for count, number in enumerate(whole, 1):
                self.deferred.drop(number)
                if count % _SLICE == 0:
                    self._give_way()
        after = -1
        while self.deferred.has_rows_of(topic) and (rows := self.deferred.page(after, _SLICE, topic)):
            after = rows[-1].version
            with self.lock:
                for row in rows:
                    self.deferred.drop(row.number)
            if self.deferred.is_full:
                self.write_index()
            sleep(_GIVE_WAY_S)

    def adopt(self, offsets: Sequence[SystemOffset]) -> None:
        """What a log does not say: as `MetadataState.adopt`. On the applying thread."""
        with self.lock:
            for one in offsets:
                self._advance(one)

    def restore(self, queue: QueueDelivery, pending: Sequence[tuple[int, PoppedMessage]]) -> None:
        """A queue of an image."""
        self._add(queue)
        for offset, popped in pending:
            self._put(queue, offset, popped)

    # -- elements -----------------------------------------------------------------------------------------

    def _execute(self, element: Element, number: int, stamp_ms: int, place: LogPosition) -> Outcome:
        match element:
            case Ack(key, offset, pop):
                return self._done(key, offset, pop, stamp_ms)
            case Drop(key, offset, pop):
                return self._done(key, offset, pop, None)
            case Pop():
                return self._pop(element, number, stamp_ms)
            case Change():
                return self._change(element, number, stamp_ms)
            case Sent(ids):
                for digest, queue_id, queue_offset in ids:
                    self.ids.put(digest, queue_id, queue_offset, stamp_ms)
            case Defer():
                self.deferred.put(number, DeferredMessage.of(element, place, number & _MAX_PLACE))
                if element.digest:
                    self.ids.put(element.digest, -1, number, stamp_ms)
                return Deferred(number)
            case Carried(deferred_id):
                return self.deferred.carried(deferred_id, place, number & _MAX_PLACE, number)
            case End(deferred_id, ending):
                return self.deferred.end(deferred_id, ending, stamp_ms)
            case Checked(deferred_id, next_ms):
                return self.deferred.checked(deferred_id, next_ms)
            case SystemOffset():
                return self._advance(element)
            case SystemQueueEnd(topic, queue_id, end):
                offsets = self._now.system_offsets
                if offsets.get((topic, queue_id), 0) > end:
                    offsets[topic, queue_id] = end
            case Bury():
                return self._bury(element, number, stamp_ms)
            case PassedOn(key, pop, offsets):
                self._passed_on(key, pop, offsets, stamp_ms)
            case Purged(topic, queue_id, below):
                self._purged(topic, queue_id, below)
            case Fold(key, idle_ms, most):
                return self._fold(key, stamp_ms - idle_ms, most)
            case _:
                self.unknown += 1
        return None

    def _advance(self, to: SystemOffset) -> bool:
        offsets, queue = self._now.system_offsets, (to.topic, to.queue_id)
        is_known = queue in offsets or len(offsets) < MAX_SYSTEM_QUEUES
        if not is_known or to.offset < offsets.get(queue, 0):
            return False
        offsets[queue] = to.offset
        return True

    def _pop(self, pop: Pop, number: int, stamp_ms: int) -> Popped:
        queue = self.queues.get(pop.key)
        if queue is None:
            first = self._first_offset(*pop.key)
            if first is None:
                return Popped(number, stamp_ms, (), False)
            queue = QueueDelivery(pop.key, first if pop.first_from_state else pop.begin)
            self._add(queue)
        invisible_until_ms = stamp_ms + pop.invisible_ms
        if pop.is_orderly and not pop.repeats and queue.has_invisible(stamp_ms):
            return Popped(number, invisible_until_ms, (), False)
        given: list[tuple[int, int]] = []
        for offset, old in pop.again:
            popped = queue.pending.get(offset)
            if popped is None or popped.pop != old:
                continue
            if popped.attempt_id != pop.attempt_id if pop.repeats else popped.invisible_until_ms > stamp_ms:
                continue
            given.append((offset, popped.attempts + (not pop.repeats)))
        is_next = pop.begin == queue.cursor
        if is_next and not (pop.is_orderly and len(queue.pending) != len(given)):
            queue.cursor = pop.end
            given += [(offset, 1) for offset in pop.fresh]
        else:
            is_next = False
        for offset, attempt in given:
            popped = PoppedMessage(
                number, invisible_until_ms, attempt, pop.client_id, pop.attempt_id, pop.renews, stamp_ms
            )
            self._put(queue, offset, popped)
        return Popped(number, invisible_until_ms, tuple(given), is_next)

    def _found(self, key: QueueKey, offset: int, pop: int) -> tuple[QueueDelivery, PoppedMessage] | None:
        """What is pending under this pop."""
        queue = self.queues.get(key)
        popped = queue and queue.pending.get(offset)
        return (queue, popped) if queue and popped and popped.pop == pop else None

    def _done(self, key: QueueKey, offset: int, pop: int, stamp_ms: int | None) -> bool:
        """`stamp_ms` None: also when its time is over."""
        found = self._found(key, offset, pop)
        if found is None or (stamp_ms is not None and found[1].invisible_until_ms <= stamp_ms):
            return False
        self._remove(found[0], offset)
        return True

    def _change(self, change: Change, number: int, stamp_ms: int) -> Changed | None:
        found = self._found(change.key, change.offset, change.pop)
        if found is None or found[1].invisible_until_ms <= stamp_ms:
            return None
        queue, popped = found
        popped = popped._replace(invisible_until_ms=stamp_ms + change.invisible_ms)
        if change.kind is ChangeKind.CHANGE:
            popped = popped._replace(pop=number, renews=False)
        elif change.kind is ChangeKind.RETURN:
            # Nor does the call that did not get it have it: repeated, it is given it as anybody is.
            popped = popped._replace(attempts=popped.attempts - 1, attempt_id="", renews=False)
        elif change.kind is ChangeKind.RELEASE:
            popped = popped._replace(renews=False)
        self._put(queue, change.offset, popped)
        return Changed(popped.pop, popped.invisible_until_ms)

    def _bury(self, bury: Bury, number: int, stamp_ms: int) -> Changed | None:
        found = self._found(bury.key, bury.offset, bury.pop)
        if found is None:
            return None
        queue, popped = found
        invisible_until_ms = stamp_ms + bury.invisible_ms
        popped = popped._replace(
            pop=number, invisible_until_ms=invisible_until_ms, owner="", attempt_id="", renews=False
        )
        self._put(queue, bury.offset, popped)
        return Changed(number, invisible_until_ms)

    def _passed_on(self, key: QueueKey, pop: int, offsets: Sequence[int], stamp_ms: int) -> None:
        for offset in offsets:
            found = self._found(key, offset, pop)
            if found is not None and found[1].invisible_until_ms > stamp_ms:
                self._put(found[0], offset, found[1]._replace(renews=True))

    def _purged(self, topic: str, queue_id: int, below: int) -> None:
        for queue in self._now.by_place.get((topic, queue_id), {}).values():
            for count, offset in enumerate([offset for offset in queue.pending if offset < below], 1):
                self._remove(queue, offset)
                if count % _SLICE == 0:
                    self._give_way()

    def _fold(self, key: QueueKey, before_ms: int, most: int) -> int:
        queue = self.queues.get(key)
        if queue is None:
            return 0
        for count in range(most):
            popped = queue.pending.get(queue.cursor - 1)
            if popped is None or popped.invisible_until_ms > before_ms:
                return count
            queue.cursor -= 1
            self._remove(queue, queue.cursor)
        return most

    # -- parts of them ------------------------------------------------------------------------------------

    def _add(self, queue: QueueDelivery) -> None:
        key, now = queue.key, self._now
        now.queues[key] = queue
        now.by_group.setdefault(key.group, {})[key] = queue
        now.by_place.setdefault((key.topic, key.queue_id), {})[key] = queue

    def _put(self, queue: QueueDelivery, offset: int, popped: PoppedMessage) -> None:
        now, key = self._now, queue.key
        if (before := queue.pending.get(offset)) is None:
            self._count(key.group, 1)
        queue.put(offset, popped)
        if before is not None and before.owner != popped.owner:
            self._may_be_rid_of(before.owner, queue)
        now.by_owner.setdefault(popped.owner, {})[key] = queue

    def _remove(self, queue: QueueDelivery, offset: int) -> None:
        owner = queue.pending[offset].owner
        queue.remove(offset)
        self._count(queue.key.group, -1)
        self._may_be_rid_of(owner, queue)

    def _may_be_rid_of(self, owner: str, queue: QueueDelivery) -> None:
        if owner not in queue.owners:
            _discard(self._now.by_owner, owner, queue.key)

    def _give_way(self) -> None:
        """Let others have the lock, which is held, for a moment: who only releases it has it again first."""
        self.lock.release()
        sleep(_GIVE_WAY_S)
        self.lock.acquire()

    def _count(self, group: str, more: int) -> None:
        now = self._now
        now.pending_count += more
        now.pending_of[group] = now.pending_of.get(group, 0) + more
        if not now.pending_of[group]:
            del now.pending_of[group]

    def _forget(self, queues: list[QueueDelivery], instead: QueueDelivery | None = None) -> None:
        """All that was given of these queues. What that costs does not grow with how much it is, as long as
        the lock is held: the event loop waits for it."""
        now = self._now
        with self.lock:
            for queue in queues:
                key = queue.key
                for owner in queue.owners:
                    _discard(now.by_owner, owner, key)
                if queue.pending:
                    self._count(key.group, -len(queue.pending))
                del now.queues[key]
                _discard(now.by_group, key.group, key)
                _discard(now.by_place, (key.topic, key.queue_id), key)
            if instead is not None:
                self._add(instead)

    def sorted_queues(self) -> Iterator[QueueDelivery]:
        """As an image has them."""
        return (self.queues[key] for key in sorted(self.queues))


def _discard(index: dict[_K, dict[QueueKey, QueueDelivery]], name: _K, key: QueueKey) -> None:
    queues = index[name]
    del queues[key]
    if not queues:
        del index[name]
