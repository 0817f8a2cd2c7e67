"""What the state of delivery has to be like after each command of the log: the obvious model.

It shares the decoder of commands with the broker and nothing else; every state that it was ever in is kept.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery_state import records
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
    Ending,
    Fold,
    Pop,
    PurgeBelow,
    QueueKey,
    RecordAttempt,
    RecordCheck,
    StoredIds,
)
from broker_adapter.delivery_state.duplicate_filter import ENDED, LATEST, SendIdentity
from broker_adapter.delivery_state.handles import topic_digest
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import StoredDataDamaged
from broker_adapter.metadata.commands import (
    Command,
    DeleteGroup,
    DeleteTopic,
    ExpireGroup,
    PutTopic,
    ResetOffsets,
)
from dledger.testing import Violation

FirstOffset = Callable[[QueueKey], int | None]
_ID = struct.Struct(">16s16sqiqq")
_RETRY_SPAN_MS = DeliverySettings().retry_span_ms


class _KnownId(NamedTuple):
    identity: SendIdentity
    place: tuple[int, int]
    stamp_ms: int


#: As the fields of `queue_state.PoppedMessage`.
PoppedMessage = tuple[int, int, int, str, str, bool, int]


class DeliveryLook(NamedTuple):
    """All of it at one moment."""

    cursors: tuple[tuple[QueueKey, int], ...]
    pending: tuple[tuple[QueueKey, int, PoppedMessage], ...]
    deferred: tuple[tuple[int, int, int], ...]  # number, due, checks
    ids: tuple[tuple[bytes, bytes, int, int, int], ...]  # id, content, born, queue id, queue offset


def look_at_delivery(state: DeliveryState) -> DeliveryLook:
    """What a broker has."""
    ids = state.ids.save()
    return DeliveryLook(
        tuple((queue.key, queue.cursor) for _, queue in sorted(state.queues.items())),
        tuple(
            (queue.key, offset, (*popped[:5], popped.renews, popped.given_ms))
            for _, queue in sorted(state.queues.items())
            for offset, popped in sorted(queue.pending.items())
        ),
        tuple((number, one.due_ms, one.checks) for number, one in sorted(state.deferred.items())),
        tuple(sorted(one[:5] for one in _ID.iter_unpack(ids))),
    )


class DeliveryModel:
    """Fed with the commands of the committed log, in order."""

    def __init__(self, *, is_strict: bool = False) -> None:
        """`is_strict`: all commands are of brokers of now."""
        self.is_strict = is_strict
        self.acked: set[tuple[QueueKey, int]] = set()
        self.given: set[tuple[QueueKey, int]] = set()
        self.carried = 0
        self._first: FirstOffset = lambda key: None
        self._cursors: dict[QueueKey, int] = {}
        self._pending: dict[tuple[QueueKey, int], PoppedMessage] = {}
        self._deferred: dict[int, tuple[Defer, int, int]] = {}
        self._ids: list[_KnownId] = []  # the oldest first
        self._latest: dict[SendIdentity, int] = {}  # born timestamps of later attempts
        self._steps_ms = 0
        self._indexes = [-1]
        self._looks = [self.look()]

    def put(self, index: int, stamp_ms: int, body: bytes, first: FirstOffset) -> None:
        """The next command; `first`: where a group begins in a queue, None if it or the topic is none."""
        self._first = first
        try:
            command = records.decode(body)
        except StoredDataDamaged:
            command = None
        if command is None:
            return
        for element in command.elements:
            if isinstance(element, StoredIds):
                self._steps_ms = max(self._steps_ms, element.steps_ms)
        for place, element in enumerate(command.elements):
            self._take(element, (index << 16) + place, stamp_ms - self._steps_ms)
        self._note(index)

    def metadata(self, index: int, command: Command, took_effect: bool) -> None:
        match command:
            case DeleteGroup(group=name) | ExpireGroup(group=name) if took_effect:
                self._forget([key for key in self._cursors if key.group == name])
                # One of that name begins anew, and is given what this one has done.
                self.acked = {place for place in self.acked if place[0].group != name}
            case DeleteTopic(topic=name) if took_effect:
                self._forget([key for key in self._cursors if key.topic == name])
                self._forget_topic(name)
            case PutTopic(config=config) if took_effect:  # a new one
                self._forget_topic(config.name)
            case ResetOffsets(group=name, offsets=offsets) if took_effect:
                for topic, queue_id, offset in offsets:
                    key = QueueKey(name, topic, queue_id)
                    if key in self._cursors:
                        self._forget([key])
                        self._cursors[key] = offset
            case _:
                return
        self._note(index)

    def of_group(self, name: str) -> tuple[int, int]:
        """How many messages it was given that are not done; the sum of what its cursors have passed, and one
        for each."""
        pending = sum(key.group == name for key, _ in self._pending)
        return pending, sum(cursor + 1 for key, cursor in self._cursors.items() if key.group == name)

    def at(self, index: int) -> DeliveryLook:
        """After the entry with this index."""
        return self._looks[bisect_right(self._indexes, index) - 1]

    def look(self) -> DeliveryLook:
        return DeliveryLook(
            tuple(sorted(self._cursors.items())),
            tuple(sorted((key, offset, popped) for (key, offset), popped in self._pending.items())),
            tuple(sorted((number, due, checks) for number, (_, due, checks) in self._deferred.items())),
            tuple(
                sorted(
                    [(*one.identity, *one.place) for one in self._ids]
                    + [(*identity, LATEST, born_ms) for identity, born_ms in self._latest.items()]
                )
            ),
        )

    def least(self, key: QueueKey) -> int:
        """The first offset that is not done."""
        return min([self._cursors.get(key, 0), *(at for whose, at in self._pending if whose == key)])

    def cursor(self, key: QueueKey) -> int:
        return self._cursors.get(key, 0)

    def pops(self, key: QueueKey) -> dict[int, int]:
        """Of what is pending, by offset."""
        return {at: popped[0] for (whose, at), popped in self._pending.items() if whose == key}

    @property
    def holds(self) -> int:
        return len(self._deferred)

    # -- inside

    def _note(self, index: int) -> None:
        self._indexes.append(index)
        self._looks.append(self.look())

    def _forget(self, keys: list[QueueKey]) -> None:
        for key in keys:
            del self._cursors[key]
        self._pending = {place: popped for place, popped in self._pending.items() if place[0] not in keys}

    def _forget_topic(self, name: str) -> None:
        self._deferred = {at: one for at, one in self._deferred.items() if one[0].topic != name}
        prefix = topic_digest(name)
        self._keep_ids([one for one in self._ids if not one.identity.id_digest.startswith(prefix)])

    def _keep_ids(self, ids: list[_KnownId]) -> None:
        self._ids = ids
        kept = {one.identity for one in ids}
        self._latest = {identity: born_ms for identity, born_ms in self._latest.items() if identity in kept}

    def _take(self, element: Element, number: int, awake_ms: int) -> None:
        match element:
            case Pop():
                self._pop(element, number, awake_ms)
            case Ack(key, offset, pop):
                popped = self._pending.get((key, offset))
                if popped and popped[0] == pop and popped[1] > awake_ms:
                    del self._pending[key, offset]
                    self.acked.add((key, offset))
            case Drop(key, offset, pop):
                popped = self._pending.get((key, offset))
                if popped and popped[0] == pop:
                    del self._pending[key, offset]
            case ChangeVisibility(key, offset, pop, invisible_ms, kind):
                popped = self._pending.get((key, offset))
                if popped and popped[0] == pop and popped[1] > awake_ms:
                    changed = [
                        number if kind is ChangeKind.CHANGE else pop,
                        awake_ms + invisible_ms,
                        *popped[2:],
                    ]
                    if kind is ChangeKind.RETURN:
                        changed[2], changed[4] = popped[2] - 1, ""
                    changed[5] = popped[5] and kind is ChangeKind.RENEW
                    self._pending[key, offset] = tuple(changed)  # type: ignore[assignment]
            case Bury(key, offset, pop, invisible_ms):
                popped = self._pending.get((key, offset))
                if popped and popped[0] == pop:
                    self._pending[key, offset] = (
                        number,
                        awake_ms + invisible_ms,
                        popped[2],
                        "",
                        "",
                        False,
                        popped[6],
                    )
            case ConfirmReceipt(key, pop, offsets):
                for offset in offsets:
                    popped = self._pending.get((key, offset))
                    if popped and popped[0] == pop and popped[1] > awake_ms:
                        self._pending[key, offset] = (*popped[:5], True, popped[6])
            case PurgeBelow(topic, queue_id, below):
                self._pending = {
                    (key, offset): popped
                    for (key, offset), popped in self._pending.items()
                    if (key.topic, key.queue_id) != (topic, queue_id) or offset >= below
                }
            case Fold(key, idle_ms, most):
                self._fold(key, awake_ms - idle_ms, most)
            case Defer():
                self._deferred[number] = (element, element.due_ms, 0)
            case Carry():
                self.carried += 1  # and nothing else
            case EndDeferred(deferred_id, ending):
                if self._deferred.pop(deferred_id, None) is None:
                    raise Violation("ended once", f"{element} of what is not deferred")
                if ending in (Ending.ROLLED_BACK, Ending.RECALLED):
                    self._end_id((-1, deferred_id), awake_ms)
            case RecordCheck(deferred_id, next_ms):
                if deferred_id in self._deferred and self._deferred[deferred_id][0].kind is DeferredKind.HALF:
                    defer, _, checks = self._deferred[deferred_id]
                    self._deferred[deferred_id] = (defer, next_ms, checks + 1)
            case RecordAttempt(identity, queue_id, queue_offset):
                for one in [one for one in self._ids if one.place == (queue_id, queue_offset)]:
                    before_ms = self._latest.get(one.identity, one.identity.born_ms)
                    if one.identity.key == identity.key and identity.born_ms > before_ms:
                        self._latest[one.identity] = identity.born_ms
            case StoredIds(ids):
                for identity, queue_id, queue_offset in ids:
                    number_or_offset = queue_offset + (number >> 16 << 16 if queue_id == -1 else 0)
                    self._new_id(identity, (queue_id, number_or_offset), awake_ms)

    def _end_id(self, place: tuple[int, int], stamp_ms: int) -> None:
        """Late attempts of this send are refused from now on."""
        for one in [one for one in self._ids if one.place == place]:
            self._ids.remove(one)
            latest_ms = self._latest.pop(one.identity, one.identity.born_ms)
            self._ids.append(_KnownId(one.identity, (ENDED, latest_ms), stamp_ms))

    def _new_id(self, identity: SendIdentity, place: tuple[int, int], stamp_ms: int) -> None:
        """Ids live for a minute. Within it the same send is stored twice only if it was born too late."""
        self._keep_ids([one for one in self._ids if one.stamp_ms >= stamp_ms - 60_000])
        for one in self._ids:
            is_near = abs(one.identity.born_ms - identity.born_ms) <= _RETRY_SPAN_MS
            if one.place[0] == ENDED:
                is_near &= identity.born_ms <= one.place[1]
            if is_near and one.identity.key == identity.key:
                raise Violation("sent once", f"{identity} at {one.place} and {place}")
        self._ids.append(_KnownId(identity, place, stamp_ms))

    def _fold(self, key: QueueKey, before_ms: int, most: int) -> None:
        for _ in range(most):
            last = (key, self._cursors.get(key, 0) - 1)
            if last not in self._pending or self._pending[last][1] > before_ms:
                return
            del self._pending[last]
            self._cursors[key] = last[1]

    def _pop(self, pop: Pop, number: int, awake_ms: int) -> None:
        key = pop.key
        if key not in self._cursors:
            first = self._first(key)
            if first is None:
                return
            if self.is_strict and pop.begin != first and not pop.first_from_state:
                raise Violation("first offset", f"{pop} where {key.group} begins at {first}")
            self._cursors[key] = first if pop.first_from_state else pop.begin
        cursor = self._cursors[key]
        mine = {at: popped for (whose, at), popped in self._pending.items() if whose == key}
        if pop.is_orderly and not pop.repeats and any(popped[1] > awake_ms for popped in mine.values()):
            return
        given: dict[int, int] = {}
        for at, old in pop.again:
            popped = mine.get(at)
            if popped is None or popped[0] != old:
                continue
            if pop.repeats and popped[4] == pop.attempt_id:
                given[at] = popped[2]
            elif not pop.repeats and popped[1] <= awake_ms:
                given[at] = popped[2] + 1
        if pop.begin == cursor and (not pop.is_orderly or set(mine) == set(given)):
            self._cursors[key] = pop.end
            given.update((at, 1) for at in pop.fresh)
        if pop.is_orderly and not pop.repeats and given and min(given) > min([*mine, *given]):
            raise Violation("orderly", f"{pop} gives {given} before {sorted(mine)}")
        for at, attempts in given.items():
            if (key, at) in self.acked:
                raise Violation("acknowledged ack", f"{key} {at} was acknowledged and is given by {pop}")
            self.given.add((key, at))
            invisible_until_ms = awake_ms + pop.invisible_ms
            popped = (
                number,
                invisible_until_ms,
                attempts,
                pop.client_id,
                pop.attempt_id,
                pop.renews,
                awake_ms,
            )
            self._pending[key, at] = popped
