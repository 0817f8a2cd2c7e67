"""The state of delivery that every node makes of the commands in the log. Deterministic: its time is that of
the store stamps.

Per group, topic and queue there are a cursor, the next offset that was never given, and the pending messages:
given to somebody until a time, and not done. What is below the cursor and not pending is done. A message
whose time has come may be given again, under a new pop; the pop is the number that its handle carries, and
only the newest one counts. Each element of a command is judged by what the state is when it is applied, and
has an outcome of its own.

Threads: one applies. Others read under `lock`, which is held for one command at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock

from broker_adapter.delivery.commands import (
    Ack,
    Change,
    Changed,
    ChangeKind,
    Checked,
    Drop,
    Element,
    End,
    Hold,
    Holding,
    Outcome,
    Pop,
    Popped,
    QueueKey,
    Sent,
)
from broker_adapter.delivery.held_messages import HeldMessage, HeldMessages
from broker_adapter.delivery.queue_state import Held, QueueDelivery
from broker_adapter.delivery.records import NO_REQUEST, decode
from broker_adapter.delivery.sent_ids import SentIds
from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.metadata.commands import Command, DeleteGroup, DeleteTopic, ResetOffsets

#: A pop's or a held message's number is the index of its command and the place in it.
_PLACE_BITS = 16
#: No command was stored later: the times that are made of it fit into their fields.
MAX_STAMP_MS = 1 << 62

Place = tuple[QueueDelivery, int]


class DeliveryState:
    """`on_outcomes` is told, on the applying thread, what came of every command with a request id. `exists`
    says whether there are such a group and topic at this point of the log: those that were deleted get no
    state."""

    def __init__(
        self,
        *,
        on_outcomes: Callable[[bytes, list[Outcome]], None] | None = None,
        exists: Callable[[str, str], bool] = lambda group, topic: True,
    ) -> None:
        self.lock = Lock()
        self._on_outcomes = on_outcomes
        self._exists = exists
        # Counted since the start of this node; no part of the state.
        self.unknown = 0
        self.damaged = 0
        self.clear()

    def clear(self) -> None:
        """The empty state. On the applying thread."""
        self.applied_index = -1
        self.queues: dict[QueueKey, QueueDelivery] = {}
        self.held = HeldMessages()
        self.ids = SentIds()
        self.pending_count = 0
        self._by_owner: dict[str, set[Place]] = {}
        self._by_attempt: dict[str, set[Place]] = {}

    # -- reading, under the lock --------------------------------------------------------------------------

    def queue(self, key: QueueKey) -> QueueDelivery | None:
        return self.queues.get(key)

    def held_by(self, owner: str) -> list[tuple[QueueKey, int, Held]]:
        """What a client holds, in any group."""
        return self._listed(self._by_owner.get(owner, ()))

    def owners(self) -> list[str]:
        return list(self._by_owner)

    def held_in_attempt(self, group: str, topic: str, attempt_id: str) -> list[tuple[QueueKey, int, Held]]:
        """What a call with this attempt id has got and is not done, by queue and offset."""
        found = self._listed(self._by_attempt.get(attempt_id, ()))
        return [one for one in found if (one[0].group, one[0].topic) == (group, topic)]

    # -- for any thread -----------------------------------------------------------------------------------

    def offsets_of(self, group: str) -> dict[tuple[str, int], int]:
        """The first offset that is not done, of each queue of which the group was given anything."""
        with self.lock:
            return {
                (key.topic, key.queue_id): queue.least
                for key, queue in self.queues.items()
                if key.group == group
            }

    # -- the state machine, on one thread -----------------------------------------------------------------

    def apply(self, index: int, stamp_ms: int, body: bytes) -> None:
        """The body of a message of DLEDGER_SYS_DELIVERY, whatever it is; `index` is that of its entry.

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
        with self.lock:
            self.applied_index = index
            if command is None:
                return
            numbers = range(index << _PLACE_BITS, (index + 1) << _PLACE_BITS)
            outcomes = [
                self._execute(element, number, stamp_ms)
                for number, element in zip(numbers, command.elements, strict=False)
            ]
        if self._on_outcomes is not None and command.request_id != NO_REQUEST:
            self._on_outcomes(command.request_id, outcomes)

    def metadata_changed(self, command: Command) -> None:
        """A command on topics and groups took effect."""
        match command:
            case DeleteGroup(group=group):
                self._forget(lambda key: key.group == group)
            case DeleteTopic(topic=topic):
                self._forget(lambda key: key.topic == topic)
                with self.lock:
                    self.held.drop_topic(topic)
            case ResetOffsets(group=group, offsets=offsets):
                with self.lock:
                    for topic, queue_id, offset in offsets:
                        queue = self.queues.get(QueueKey(group, topic, queue_id))
                        if queue is not None:
                            self._empty(queue)
                            queue.cursor = offset

    def restore(self, queue: QueueDelivery, pending: Sequence[tuple[int, Held]]) -> None:
        """A queue of an image."""
        self.queues[queue.key] = queue
        for offset, held in pending:
            self._put(queue, offset, held)

    # -- elements -----------------------------------------------------------------------------------------

    def _execute(self, element: Element, number: int, stamp_ms: int) -> Outcome:
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
            case Hold():
                self.held.put(number, HeldMessage(element, element.due_ms))
                if element.digest:
                    self.ids.put(element.digest, -1, number, stamp_ms)
                return Holding(number)
            case End(hold_id, ending):
                return self.held.end(hold_id, ending, stamp_ms)
            case Checked(hold_id, next_ms):
                return self.held.checked(hold_id, next_ms)
            case _:
                self.unknown += 1
        return None

    def _pop(self, pop: Pop, number: int, stamp_ms: int) -> Popped:
        queue = self.queues.get(pop.key)
        if queue is None:
            if not self._exists(pop.key.group, pop.key.topic):
                return Popped(number, stamp_ms, (), False)
            queue = self.queues[pop.key] = QueueDelivery(pop.key, pop.begin)
        until_ms = stamp_ms + pop.invisible_ms
        if pop.is_orderly and not pop.repeats and queue.is_held(stamp_ms):
            return Popped(number, until_ms, (), False)
        given: list[tuple[int, int]] = []
        for offset, old in pop.again:
            held = queue.pending.get(offset)
            if held is None or held.pop != old:
                continue
            if held.attempt_id != pop.attempt_id if pop.repeats else held.until_ms > stamp_ms:
                continue
            given.append((offset, held.attempts + (not pop.repeats)))
        is_next = pop.begin == queue.cursor
        if is_next and not (pop.is_orderly and len(queue.pending) != len(given)):
            queue.cursor = pop.end
            given += [(offset, 1) for offset in pop.fresh]
        else:
            is_next = False
        for offset, attempt in given:
            held = Held(number, until_ms, attempt, pop.client_id, pop.attempt_id, pop.renews, stamp_ms)
            self._put(queue, offset, held)
        return Popped(number, until_ms, tuple(given), is_next)

    def _done(self, key: QueueKey, offset: int, pop: int, stamp_ms: int | None) -> bool:
        """`stamp_ms` None: also when its time is over."""
        queue = self.queues.get(key)
        held = queue and queue.pending.get(offset)
        if not queue or not held or held.pop != pop or (stamp_ms is not None and held.until_ms <= stamp_ms):
            return False
        self._remove(queue, offset, held)
        return True

    def _change(self, change: Change, number: int, stamp_ms: int) -> Changed | None:
        queue = self.queues.get(change.key)
        held = queue and queue.pending.get(change.offset)
        if not queue or not held or held.pop != change.pop or held.until_ms <= stamp_ms:
            return None
        held = held._replace(until_ms=stamp_ms + change.invisible_ms)
        if change.kind is ChangeKind.CHANGE:
            held = held._replace(pop=number, renews=False)
        elif change.kind is ChangeKind.RETURN:
            # Nor does the call that did not get it hold it: repeated, it is given it as anybody is.
            held = held._replace(attempts=held.attempts - 1, attempt_id="", renews=False)
        elif change.kind is ChangeKind.RELEASE:
            held = held._replace(renews=False)
        self._put(queue, change.offset, held)
        return Changed(held.pop, held.until_ms)

    # -- parts of them ------------------------------------------------------------------------------------

    def _put(self, queue: QueueDelivery, offset: int, held: Held) -> None:
        before = queue.pending.get(offset)
        if before is not None:
            self._remove(queue, offset, before)
        queue.put(offset, held)
        self.pending_count += 1
        self._by_owner.setdefault(held.owner, set()).add((queue, offset))
        if held.attempt_id:
            self._by_attempt.setdefault(held.attempt_id, set()).add((queue, offset))

    def _remove(self, queue: QueueDelivery, offset: int, held: Held) -> None:
        queue.remove(offset)
        self.pending_count -= 1
        _discard(self._by_owner, held.owner, (queue, offset))
        if held.attempt_id:
            _discard(self._by_attempt, held.attempt_id, (queue, offset))

    def _empty(self, queue: QueueDelivery) -> None:
        for offset, held in list(queue.pending.items()):
            self._remove(queue, offset, held)

    def _forget(self, concerns: Callable[[QueueKey], bool]) -> None:
        with self.lock:
            for key in [key for key in self.queues if concerns(key)]:
                self._empty(self.queues.pop(key))

    def _listed(self, places: set[Place] | tuple[()]) -> list[tuple[QueueKey, int, Held]]:
        """By queue and offset: a set of places has an order of its own in every process."""
        return sorted((queue.key, offset, queue.pending[offset]) for queue, offset in places)

    def sorted_queues(self) -> Iterator[QueueDelivery]:
        """As an image has them."""
        return (self.queues[key] for key in sorted(self.queues))


def _discard(index: dict[str, set[Place]], name: str, place: Place) -> None:
    places = index[name]
    places.discard(place)
    if not places:
        del index[name]
