"""Replicated delivery state, built from the commands in the log. Its only clock is the store stamps of the
commands.

Times of pops are cluster time without its steps, so that neither a stop of the cluster nor the subsequent
step makes invisible messages visible. Times of delayed messages are dates in cluster time.

For each group, topic and queue, the state has a cursor and the pending messages. The cursor is the next
offset that was never delivered. A pending message has been delivered to a client until a certain time, and is
not done: neither acknowledged nor dropped. Offsets below the cursor that are not pending are done. When a
message becomes visible again, it may be delivered again in a new pop. The number of the pop is part of the
handle, and only the newest pop of a message is valid. Each element of a command has its own outcome, which
depends on the state at apply time.

Threads: one thread applies commands, others read under `lock`. The applying thread holds the lock for one
command at most, and only for parts of a command that removes many messages, because the event loop waits for
the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from time import sleep

from broker_adapter.delivery_state.commands import (
    MAX_SYSTEM_QUEUES,
    Ack,
    Bury,
    Carry,
    ChangeKind,
    ChangeOutcome,
    ChangeVisibility,
    ConfirmReceipt,
    Defer,
    DeferOutcome,
    Drop,
    Element,
    EndDeferred,
    EndHalfId,
    Fold,
    Outcome,
    Pop,
    PopOutcome,
    PurgeBelow,
    QueueKey,
    RecordAttempt,
    RecordCheck,
    SentIds,
    StoredIds,
    SystemOffset,
    SystemQueueEnd,
    refusal_of_system_offset,
)
from broker_adapter.delivery_state.contents import DeliveryContents
from broker_adapter.delivery_state.deferred_messages import (
    NOWHERE,
    UNSTORED,
    DeferredMessage,
    DeferredMessages,
    IndexMark,
    LogPosition,
)
from broker_adapter.delivery_state.delay_index import DelayIndex
from broker_adapter.delivery_state.duplicate_filter import DEFERRED, DuplicateFilter, Position
from broker_adapter.delivery_state.handles import topic_digest
from broker_adapter.delivery_state.queue_state import PoppedMessage, QueueDelivery
from broker_adapter.delivery_state.records import NO_REQUEST, decode, request_id_of
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.metadata.commands import (
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    ExpireGroup,
    ResetOffsets,
)
from broker_adapter.metadata.values import GroupDelivery

# The number of a pop or deferred message consists of an era of the log, the index of its command and its
# position in the command. A forced recovery advances the term by more than one era (`dledger recover`):
# handles of commands that only the lost nodes had must not fit those that a new cluster writes at the same
# indexes. Elections alone do not get that far.
_PLACE_BITS = 16
_INDEX_BITS = 44
_ERA_BITS = 3
_TERMS_PER_ERA = 1 << 24
_MAX_PLACE = (1 << _PLACE_BITS) - 1
# Maximum stamp of a command. Times computed from it fit their fields.
MAX_STAMP_MS = 1 << 62

# Removals per lock acquisition (some milliseconds), and the pause in which other threads may acquire the
# lock.
_SLICE, _GIVE_WAY_S = 2_000, 0.0005


def index_of(number: int) -> int:
    """Return the index of the command that created a pop or a deferred message."""
    return number >> _PLACE_BITS & ((1 << _INDEX_BITS) - 1)


def first_number(index: int, term: int) -> int:
    """Return the number of the first element of the command at `index`."""
    era = max(term, 0) // _TERMS_PER_ERA % (1 << _ERA_BITS)
    return (era << _INDEX_BITS | index) << _PLACE_BITS


# Returns the first offset of a group in a queue at the current log position; None: no such group or topic.
FirstOffset = Callable[[str, str, int], int | None]
# Returns the lowest allowed cursor of a group in a queue after a commit.
CursorFloor = Callable[[str, str, int], int]


class DeliveryState:
    """Delivery state of all groups.

    `on_outcomes` receives the outcomes of each command with a request id, on the applying thread. An
    unreadable or interrupted command has fewer outcomes than elements. `first_offset` and `cursor_floor`: see
    `FirstOffset` and `CursorFloor`. Commands for deleted groups and topics create no state, because
    `first_offset` returns None for them. `index` stores the positions of delayed messages; without an index,
    memory contains them.
    """

    def __init__(
        self,
        *,
        on_outcomes: Callable[[bytes, list[Outcome]], None] | None = None,
        first_offset: FirstOffset = lambda group, topic, queue_id: 0,
        cursor_floor: CursorFloor = lambda group, topic, queue_id: 0,
        index: DelayIndex | None = None,
    ) -> None:
        self.lock = Lock()
        self._on_outcomes = on_outcomes
        self._first_offset = first_offset
        self._cursor_floor = cursor_floor
        # Counters since the start of this node, which are not part of the state.
        self.unknown = 0
        self.damaged = 0
        self.ids_left_early = 0
        self._index = index
        self._now = DeliveryContents(index)

    def clear(self) -> None:
        """Reset to the empty state. Call from the applying thread."""
        self._replace(DeliveryContents())  # from now on, no reader uses the index
        if self._index is not None:
            self._index.wipe()
        self._replace(DeliveryContents(self._index))

    @property
    def has_index(self) -> bool:
        return self._index is not None

    def empty_copy(self) -> DeliveryState:
        """Return an empty state with the same index.

        It can be loaded without the lock and then passed to `adopt_contents`.
        """
        return DeliveryState(index=self._index)

    def close(self) -> None:
        """Close the index."""
        with self.lock:
            if self._index is not None:
                self._index.close()

    def adopt_contents(self, other: DeliveryState) -> None:
        """Replace the contents with the contents of another state, which must not be used afterwards.

        Call from the applying thread.
        """
        self._replace(other._now)

    def _replace(self, contents: DeliveryContents) -> None:
        before = self._now
        with self.lock:
            self._now = contents
        del before  # free it without the lock: it may be large

    # -- reading, under the lock -------------------------------------------------------------------------

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
        """Return the broker's read offset in a system queue."""
        return self._now.system_offsets.get((topic, queue_id), 0)

    @property
    def pending_count(self) -> int:
        """The number of pending messages in all groups."""
        return self._now.pending_count

    def queue(self, key: QueueKey) -> QueueDelivery | None:
        return self._now.queues.get(key)

    def pending_of(self, group: str) -> int:
        """Return the number of pending messages of a group."""
        return self._now.pending_of.get(group, 0)

    def owners(self) -> list[str]:
        """Return all clients with popped messages."""
        return list(self._now.by_owner)

    def queues_of(self, owner: str) -> list[QueueDelivery]:
        """Return the queues in which a client has popped messages, in any group."""
        return list(self._now.by_owner.get(owner, {}).values())

    def popped_in_attempt(
        self, group: str, topic: str, attempt_id: str
    ) -> list[tuple[QueueKey, int, PoppedMessage]]:
        """Return the pending messages that calls with this attempt id received, by queue and offset."""
        found = []
        for key, queue in self._now.by_group.get(group, {}).items():
            if key.topic == topic:
                found += [(key, at, queue.pending[at]) for at in queue.popped_in_attempt(attempt_id)]
        return sorted(found)

    # -- for any thread ----------------------------------------------------------------------------------

    def offsets_of(self, group: str) -> dict[tuple[str, int], int]:
        """Return the first offset that is not done, for each queue with deliveries to the group."""
        with self.lock:
            queues = self._now.by_group.get(group, {})
            return {(key.topic, key.queue_id): queue.least for key, queue in queues.items()}

    def offset_of(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the first offset that is not done in one queue, or None if the group has no deliveries
        in it.
        """
        with self.lock:
            queue = self._now.by_group.get(group, {}).get(QueueKey(group, topic, queue_id))
            return None if queue is None else queue.least

    def topics_of(self, group: str) -> set[str]:
        """Return the topics with deliveries to the group."""
        with self.lock:
            return {key.topic for key in self._now.by_group.get(group, {})}

    def of_group(self, group: str) -> GroupDelivery:
        """Return the group's delivery totals."""
        with self.lock:
            queues = self._now.by_group.get(group, {})
            return GroupDelivery(self.pending_of(group), sum(queue.cursor + 1 for queue in queues.values()))

    def has_pending(self, group: str) -> bool:
        """True if the group has pending messages."""
        with self.lock:
            return self.pending_of(group) > 0

    def first_pos(self) -> int | None:
        """Return a log position at or before the first delayed message, or None if there is none."""
        with self.lock:
            return self.deferred.first_pos()

    def system_offsets(self) -> dict[tuple[str, int], int]:
        """Return the broker's read offset in each system queue."""
        with self.lock:
            return dict(self._now.system_offsets)

    def is_awaited(self, topic: str) -> bool:
        """True if a delayed or half message is pending for the topic."""
        with self.lock:
            return self.deferred.is_awaited(topic)

    # -- the state machine, on one thread ----------------------------------------------------------------

    def apply(
        self, index: int, stamp_ms: int, body: bytes, place: LogPosition = NOWHERE, term: int = 0
    ) -> None:
        """Apply a command, unless it has already been applied.

        `place`: its log position, from which delayed messages are read when they are due. `term`: of its
        entry.
        """
        if index <= self.applied_index:
            return
        try:
            if not 0 <= stamp_ms < MAX_STAMP_MS:
                raise StoredDataDamaged(
                    Status.RECORD_FIELD,
                    f"store timestamp {stamp_ms} ms is not between 0 and {MAX_STAMP_MS - 1}",
                )
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
                    self._count_steps(command.elements)
                    first = first_number(index, term)
                    numbers = range(first, first + (1 << _PLACE_BITS))
                    for number, element in zip(numbers, command.elements, strict=False):
                        outcomes.append(self._execute(element, number, stamp_ms, place))
        finally:  # the proposer waits for the outcomes even after an error
            request_id = request_id_of(body)
            if self._on_outcomes is not None and request_id != NO_REQUEST:
                self._on_outcomes(request_id, outcomes)
        if self.deferred.is_full:
            self.write_index()

    def _count_steps(self, elements: Sequence[Element]) -> None:
        """Record the steps of cluster time.

        Called before the elements are applied, because the record was stored after the steps.
        """
        for element in elements:
            if isinstance(element, StoredIds):
                self.ids.time_stepped(element.steps_ms)

    def write_index(self) -> None:
        """Write pending changes to the index. Call from the applying thread. Raises OSError."""
        self.deferred.write()
        with self.lock:
            self.deferred.written()

    def mark_index(self) -> IndexMark:
        """Return the index's mark for a checkpoint. Call from the applying thread. Raises OSError."""
        self.write_index()
        return self.deferred.mark()

    def sync_index(self) -> None:
        """Make the index durable. Call from any thread. Raises OSError."""
        if self._index is not None:
            self._index.sync()

    def metadata_changed(self, command: Command) -> None:
        """Apply the effect of a metadata command that changes topics or groups."""
        match command:
            case DeleteGroup(keeps_offsets=True):
                pass
            case DeleteGroup(group=group) | ExpireGroup(group=group):
                self._forget(list(self._now.by_group.get(group, {}).values()))
            case DeleteTopic(topic=topic):
                self._forget([queue for key, queue in self.queues.items() if key.topic == topic])
            case DropOffsets(group=group, queues=dropped):
                keys = [QueueKey(group, *queue) for queue in dropped]
                self._forget([self.queues[key] for key in keys if key in self.queues])
            case CommitOffsets(group=group, offsets=offsets):
                self._move_cursors([QueueKey(group, topic, queue_id) for topic, queue_id, _ in offsets])
            case ResetOffsets(group=group, offsets=offsets):
                for topic, queue_id, offset in offsets:
                    queue = self.queues.get(QueueKey(group, topic, queue_id))
                    if queue is not None:
                        self._forget([queue], QueueDelivery(queue.key, offset))

    def _move_cursors(self, keys: Sequence[QueueKey]) -> None:
        # A group may both pull and receive messages. Its pending messages stay, as in RocketMQ, because their
        # clients have not acknowledged them.
        for key in keys:
            if (queue := self.queues.get(key)) is not None:
                with self.lock:
                    queue.cursor = max(queue.cursor, self._cursor_floor(*key))

    def drop_queue(self, topic: str, queue_id: int) -> None:
        """Drop all deliveries of a queue that was recreated, and the broker's read offset in it."""
        self._forget(list(self._now.by_place.get((topic, queue_id), {}).values()))
        with self.lock:
            self._now.system_offsets.pop((topic, queue_id), None)

    def set_system_offsets(self, offsets: Sequence[SystemOffset]) -> list[BrokerError]:
        """Replace all system offsets. Return the errors of `adopt`."""
        with self.lock:
            self._now.system_offsets.clear()
        return self.adopt(offsets)

    def topic_cut(self, topic: str) -> None:
        """Discard all messages and ids of a topic that was created or deleted."""
        whole = self.deferred.whole_of_topic(topic)
        ids = self.ids.without(topic_digest(topic))
        ends = self.deferred.ends_without(topic)
        with self.lock:
            self.ids = ids
            self.deferred.replace_ends(ends)
            for count, number in enumerate(whole, 1):
                self.deferred.drop(number)
                if count % _SLICE == 0:
                    self._yield_lock()
        after = -1
        while self.deferred.has_rows_of(topic) and (rows := self.deferred.page(after, _SLICE, topic)):
            after = rows[-1].version
            with self.lock:
                for row in rows:
                    self.deferred.drop(row.number)
            if self.deferred.is_full:
                self.write_index()
            sleep(_GIVE_WAY_S)

    def adopt(self, offsets: Sequence[SystemOffset]) -> list[BrokerError]:
        """Advance system offsets, like `MetadataState.adopt`. Called on the applying thread.

        Returns an error FIELD_OUT_OF_RANGE for each invalid offset, which is skipped.
        """
        refusals = [(one, refusal_of_system_offset(one)) for one in offsets]
        with self.lock:
            for one in (one for one, refusal in refusals if refusal is None):
                self._advance(one)
        return [refusal for _, refusal in refusals if refusal is not None]

    def restore_system_offset(self, offset: SystemOffset) -> None:
        """Restore an offset from an image."""
        self._advance(offset)

    def restore(self, queue: QueueDelivery, pending: Sequence[tuple[int, PoppedMessage]]) -> None:
        """Restore a queue from an image."""
        self._now.add(queue)
        for offset, popped in pending:
            self._now.put(queue, offset, popped)

    # -- elements ----------------------------------------------------------------------------------------

    def _execute(self, element: Element, number: int, stamp_ms: int, place: LogPosition) -> Outcome:
        """Apply one element. Invisible times do not include the steps of cluster time.

        Suppose that a single broker starts after 8 h of downtime and delivers a message to A for 10 minutes.
        Half a minute later, cluster time steps forward by 8 h. The message must not be delivered to B then.
        """
        awake_ms = stamp_ms - self.ids.steps_ms
        match element:
            case Ack(key, offset, pop):
                return self._done(key, offset, pop, awake_ms)
            case Drop(key, offset, pop):
                return self._done(key, offset, pop, None)
            case Pop():
                return self._pop(element, number, awake_ms)
            case ChangeVisibility():
                return self._change(element, number, awake_ms)
            case SentIds(ids):
                for digest, queue_id, queue_offset in ids:
                    self.ids.put_first(digest, queue_id, queue_offset, stamp_ms)
            case StoredIds():
                self._store_ids(element, number, stamp_ms)
            case EndHalfId():
                self.ids.end_half(*element, stamp_ms)
            case RecordAttempt(identity, queue_id, offset):
                return self.ids.record_attempt(identity, Position(queue_id, offset))
            case Defer():
                self._defer(element, number, stamp_ms, place)
                return DeferOutcome(number)
            case Carry(deferred_id):
                return self.deferred.carried(deferred_id, place, number & _MAX_PLACE, number)
            case EndDeferred(deferred_id, ending):
                is_done = self.deferred.end_message(deferred_id, ending, stamp_ms)
                if is_done and ending in UNSTORED:
                    self.ids.end_deferred(deferred_id, stamp_ms)
                return is_done
            case RecordCheck(deferred_id, next_ms):
                return self.deferred.checked(deferred_id, next_ms)
            case SystemOffset():
                return self._advance(element)
            case SystemQueueEnd(topic, queue_id, end):
                offsets = self._now.system_offsets
                if offsets.get((topic, queue_id), 0) > end:
                    offsets[topic, queue_id] = end
            case Bury():
                return self._bury(element, number, awake_ms)
            case ConfirmReceipt(key, pop, offsets):
                self._passed_on(key, pop, offsets, awake_ms)
            case PurgeBelow(topic, queue_id, below):
                self._purged(topic, queue_id, below)
            case Fold(key, idle_ms, most):
                return self._fold(key, awake_ms - idle_ms, most)
            case _:
                self.unknown += 1
        return None

    def _defer(self, defer: Defer, number: int, stamp_ms: int, place: LogPosition) -> None:
        self.deferred.put(number, DeferredMessage.of(defer, place, number & _MAX_PLACE))
        if defer.digest:
            self.ids.put_first(defer.digest, DEFERRED, number, stamp_ms)

    def _store_ids(self, stored: StoredIds, number: int, stamp_ms: int) -> None:
        for identity, queue_id, offset in stored.ids:
            if queue_id == DEFERRED:
                offset += number - (number & _MAX_PLACE)
            self.ids_left_early += self.ids.put(identity, queue_id, offset, stamp_ms)

    def _advance(self, to: SystemOffset) -> bool:
        offsets, queue = self._now.system_offsets, (to.topic, to.queue_id)
        is_known = queue in offsets or len(offsets) < MAX_SYSTEM_QUEUES
        if not is_known or to.offset < offsets.get(queue, 0):
            return False
        offsets[queue] = to.offset
        return True

    def _pop(self, pop: Pop, number: int, awake_ms: int) -> PopOutcome:
        queue = self.queues.get(pop.key)
        if queue is None:
            first = self._first_offset(*pop.key)
            if first is None:
                return PopOutcome(number, awake_ms, (), False)
            queue = QueueDelivery(pop.key, first if pop.first_from_state else pop.begin)
            self._now.add(queue)
        invisible_until_ms = awake_ms + pop.invisible_ms
        if pop.is_orderly and not pop.repeats and queue.has_invisible(awake_ms):
            return PopOutcome(number, invisible_until_ms, (), False)
        given: list[tuple[int, int]] = []
        for offset, old in pop.again:
            popped = queue.pending.get(offset)
            if popped is None or popped.pop != old:
                continue
            if popped.attempt_id != pop.attempt_id if pop.repeats else popped.invisible_until_ms > awake_ms:
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
                number, invisible_until_ms, attempt, pop.client_id, pop.attempt_id, pop.renews, awake_ms
            )
            self._now.put(queue, offset, popped)
        return PopOutcome(number, invisible_until_ms, tuple(given), is_next)

    def _found(self, key: QueueKey, offset: int, pop: int) -> tuple[QueueDelivery, PoppedMessage] | None:
        """Return the message if it is pending under this pop."""
        queue = self.queues.get(key)
        popped = queue and queue.pending.get(offset)
        return (queue, popped) if queue and popped and popped.pop == pop else None

    def _done(self, key: QueueKey, offset: int, pop: int, awake_ms: int | None) -> bool:
        """Remove a message if this pop is its newest and the message is invisible at `awake_ms`.

        `awake_ms`: None removes the message even if it is visible again. Returns False if nothing changed.
        """
        found = self._found(key, offset, pop)
        if found is None or (awake_ms is not None and found[1].invisible_until_ms <= awake_ms):
            return False
        self._now.remove(found[0], offset)
        return True

    def _change(self, change: ChangeVisibility, number: int, awake_ms: int) -> ChangeOutcome | None:
        found = self._found(change.key, change.offset, change.pop)
        if found is None or found[1].invisible_until_ms <= awake_ms:
            return None
        queue, popped = found
        popped = popped._replace(invisible_until_ms=awake_ms + change.invisible_ms)
        if change.kind is ChangeKind.CHANGE:
            popped = popped._replace(pop=number, renews=False)
        elif change.kind is ChangeKind.RETURN:
            # The call did not receive the message, so a repeated call has no claim to it.
            popped = popped._replace(attempts=popped.attempts - 1, attempt_id="", renews=False)
        elif change.kind is ChangeKind.RELEASE:
            popped = popped._replace(renews=False)
        self._now.put(queue, change.offset, popped)
        return ChangeOutcome(popped.pop, popped.invisible_until_ms)

    def _bury(self, bury: Bury, number: int, awake_ms: int) -> ChangeOutcome | None:
        found = self._found(bury.key, bury.offset, bury.pop)
        if found is None:
            return None
        queue, popped = found
        invisible_until_ms = awake_ms + bury.invisible_ms
        popped = popped._replace(
            pop=number, invisible_until_ms=invisible_until_ms, owner="", attempt_id="", renews=False
        )
        self._now.put(queue, bury.offset, popped)
        return ChangeOutcome(number, invisible_until_ms)

    def _passed_on(self, key: QueueKey, pop: int, offsets: Sequence[int], awake_ms: int) -> None:
        for offset in offsets:
            found = self._found(key, offset, pop)
            if found is not None and found[1].invisible_until_ms > awake_ms:
                self._now.put(found[0], offset, found[1]._replace(renews=True))

    def _purged(self, topic: str, queue_id: int, below: int) -> None:
        for queue in self._now.by_place.get((topic, queue_id), {}).values():
            for count, offset in enumerate([offset for offset in queue.pending if offset < below], 1):
                self._now.remove(queue, offset)
                if count % _SLICE == 0:
                    self._yield_lock()

    def _fold(self, key: QueueKey, before_ms: int, most: int) -> int:
        queue = self.queues.get(key)
        if queue is None:
            return 0
        for count in range(most):
            popped = queue.pending.get(queue.cursor - 1)
            if popped is None or popped.invisible_until_ms > before_ms:
                return count
            queue.cursor -= 1
            self._now.remove(queue, queue.cursor)
        return most

    # -- helpers -----------------------------------------------------------------------------------------

    def _yield_lock(self) -> None:
        """Release the lock briefly.

        Without a pause, this thread would acquire the lock again before any other thread.
        """
        self.lock.release()
        sleep(_GIVE_WAY_S)
        self.lock.acquire()

    def _forget(self, queues: list[QueueDelivery], instead: QueueDelivery | None = None) -> None:
        # The event loop waits for the lock, so the time under the lock must not depend on the number of
        # messages.
        with self.lock:
            self._now.forget(queues)
            if instead is not None:
                self._now.add(instead)
