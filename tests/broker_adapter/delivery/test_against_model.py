"""Random commands against the obvious model, and through images in between."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from broker_adapter.api import QueueOffset, TopicConfig
from broker_adapter.delivery_state import image
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
    PopOutcome,
    PurgeBelow,
    QueueKey,
    RecordCheck,
    StoredId,
    StoredIds,
)
from broker_adapter.delivery_state.deferred_messages import LogPosition
from broker_adapter.delivery_state.duplicate_filter import SendIdentity, id_digest
from broker_adapter.delivery_state.queue_state import PoppedMessage
from broker_adapter.delivery_state.records import encode
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.metadata.commands import Command, DeleteGroup, DeleteTopic, PutTopic, ResetOffsets
from tests.broker_adapter.simulator.delivery_model import DeliveryModel, look_at_delivery

KEYS = [QueueKey(group, topic, queue) for group in "gh" for topic in "tu" for queue in (0, 1)]
ID = bytes(range(16))


def first_offset(key: QueueKey) -> int:
    """Where a group begins in a queue that is new to it: a point of view of this test."""
    return 4 * key.queue_id


def new_state(outcomes: list[object]) -> DeliveryState:
    return DeliveryState(
        on_outcomes=lambda _, some: outcomes.extend(some),
        first_offset=lambda *key: first_offset(QueueKey(*key)),
    )


class Twins:
    """The state and the model, fed with the same commands."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.outcomes: list[object] = []
        self.state = new_state(self.outcomes)
        self.model = DeliveryModel()
        self.index = 0
        self.now_ms = 1_000_000
        self._identities: list[SendIdentity] = []
        self._ended: set[int] = set()

    def step(self) -> None:
        rng = self.rng
        self.index += rng.randint(1, 3)
        self.now_ms += rng.choice((0, 0, 1, 20, 300))
        if rng.random() < 0.03:
            self.metadata()
        else:
            body = encode(self.elements(), ID)
            self.state.apply(self.index, self.now_ms, body, LogPosition(100 * self.index, len(body)))
            self.model.put(self.index, self.now_ms, body, first_offset)
        assert look_at_delivery(self.state) == self.model.look()
        pending_keys = {(queue.key, at) for queue in self.state.queues.values() for at in queue.pending}
        assert self.state.pending_count == len(pending_keys)
        owned = [
            (queue.key, at)
            for owner in self.state.owners()
            for queue in self.state.queues_of(owner)
            for at in queue.popped_by(owner)
        ]
        assert sorted(owned) == sorted(pending_keys)
        by_group = Counter(key.group for key, _ in pending_keys)
        assert {group: self.state.pending_of(group) for group in "gh"} == {g: by_group[g] for g in "gh"}
        for queue in self.state.queues.values():
            times = [one.invisible_until_ms for one in queue.pending.values()]
            assert queue.next_expiry() == min(times, default=None)
            assert queue.latest_expiry() == max(times, default=None)
            over = sorted(at for at, one in queue.pending.items() if one.invisible_until_ms <= self.now_ms)
            assert sorted(at for at, _ in queue.expired(self.now_ms, 1000)) == over

    def metadata(self) -> None:
        key, offset = self.rng.choice(KEYS), self.rng.randint(0, 30)
        # The model is told that what was acknowledged may come again.
        reset = ResetOffsets(key.group, (QueueOffset(key.topic, key.queue_id, offset),))
        put = PutTopic(TopicConfig(key.topic))  # a new one
        command: Command = self.rng.choice((reset, DeleteGroup(key.group), DeleteTopic(key.topic), put))
        if isinstance(command, DeleteTopic | PutTopic):
            self.state.topic_cut(key.topic)
        self.state.metadata_changed(command)
        self.model.metadata(self.index, command, True)
        self.model.acked.clear()

    def elements(self) -> list[Element]:
        if self.rng.random() < 0.15:
            return [self.orderly_pop()]
        if self.rng.random() < 0.1:
            key = self.rng.choice(KEYS)
            kind = self.rng.choice(list(DeferredKind))
            defer = Defer(kind, key.topic, 0, 7, b"", "i", "c", 1, 2, 3, b"", "p", b"body")
            return [defer, StoredIds((StoredId(self.identity(), -1, 0),), self.now_ms // 3)]
        return [self.element() for _ in range(self.rng.randint(1, 5))]

    def orderly_pop(self) -> Pop:
        """As the master proposes one by what it knows: by offset, and fresh ones behind them."""
        rng, key = self.rng, self.rng.choice(KEYS)
        queue = self.state.queue(key)
        pending = sorted(queue.pending.items()) if queue else []
        again = tuple((at, one.pop) for at, one in pending[: rng.randint(0, len(pending))])
        begin = queue.cursor if queue else 0
        fresh = tuple(range(begin, begin + rng.randint(0, 2)))
        return Pop(key, "c", "", 10, False, True, False, begin, begin + len(fresh), fresh, again)

    def element(self) -> Element:
        rng, key = self.rng, self.rng.choice(KEYS)
        queue = self.state.queue(key)
        pending = list(queue.pending.items()) if queue else []
        offset, popped = rng.choice(pending) if pending else (0, PoppedMessage(1, 0, 1, "c", "", False, 0))
        pop = popped.pop if rng.random() < 0.9 else rng.randint(0, 99)
        dice = rng.random()
        if dice < 0.4:
            return self.pop(key, queue.cursor if queue else 0, pending)
        if dice < 0.6:
            return Ack(key, offset, pop)
        if dice < 0.65:
            return self.rare(key, offset, pop)
        if dice < 0.8:
            return ChangeVisibility(key, offset, pop, rng.choice((0, 10, 500)), rng.choice(list(ChangeKind)))
        if dice < 0.85:
            return StoredIds(
                tuple(StoredId(self.identity(), rng.randint(0, 3), rng.randint(0, 99)) for _ in range(2)),
                self.now_ms // 3,
            )
        deferred = [number for number in self.state.deferred if number not in self._ended]
        if dice < 0.9 or not deferred:
            kind = rng.choice(list(DeferredKind))
            return Defer(kind, key.topic, 0, 7, b"", "i", "c", 1, 2, 3, b"", "p", b"body")
        if dice < 0.92:
            kind, number = rng.choice(list(DeferredKind)), rng.choice(deferred)
            return Carry(number, Defer(kind, key.topic, 0, 7, b"", "i", "c", 1, 2, 3, b"", "p", b"body"))
        if dice < 0.95:
            return RecordCheck(rng.choice(deferred), self.now_ms + 5)
        # Each once: the model takes an end of nothing for a fault of the broker.
        self._ended.add(deferred[0])
        return EndDeferred(deferred[0], rng.choice(list(Ending)))

    def rare(self, key: QueueKey, offset: int, pop: int) -> Element:
        rng = self.rng
        dice = rng.randint(0, 4)
        if dice == 0:
            return Drop(key, offset, pop)
        if dice == 1:
            return Bury(key, offset, pop, rng.choice((0, 100)))
        if dice == 2:
            return ConfirmReceipt(key, pop, (offset, offset + 1))
        if dice == 3:
            return PurgeBelow(key.topic, key.queue_id, offset + rng.randint(0, 2))
        return Fold(key, rng.choice((0, 200)), rng.randint(1, 3))

    def pop(self, key: QueueKey, cursor: int, pending: list[tuple[int, PoppedMessage]]) -> Pop:
        rng = self.rng
        begin = cursor if rng.random() < 0.8 else max(0, cursor - 1)
        end = begin + rng.randint(0, 4)
        fresh = tuple(at for at in range(begin, end) if rng.random() < 0.8)
        again = tuple((at, one.pop) for at, one in pending if rng.random() < 0.7)
        attempt = rng.choice(("", "a", "b"))
        repeats = bool(attempt) and rng.random() < 0.2
        if repeats:
            begin, end, fresh = 0, 0, ()
        pop = Pop(key, "c", attempt, rng.choice((10, 400)), True, False, repeats, begin, end, fresh, again)
        return pop._replace(
            client_id=rng.choice("cd"), renews=rng.random() < 0.5, first_from_state=rng.random() < 0.5
        )

    def identity(self) -> SendIdentity:
        """A new send, or one under an id of before: with another content, or born too late."""
        rng = self.rng
        if self._identities and rng.random() < 0.3:
            before = rng.choice(self._identities)
            if rng.random() < 0.5:
                found = before._replace(content=rng.randbytes(16))
            else:
                newest_ms = max(one.born_ms for one in self._identities if one[:2] == before[:2])
                found = before._replace(born_ms=newest_ms + 15_001)
        else:
            id_digest_ = id_digest(rng.choice("tu"), str(len(self._identities)))
            found = SendIdentity(id_digest_, rng.randbytes(16), rng.randint(0, 99))
        self._identities.append(found)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_state_is_that_of_the_model(seed: int) -> None:
    twins = Twins(Random(f"delivery {seed}"))
    for _ in range(250):
        twins.step()
        if twins.rng.random() < 0.05:
            saved = image.save(twins.state)
            other = new_state(twins.outcomes)
            image.load(other, saved)
            assert image.save(other) == saved
            twins.state = other
    assert any(isinstance(one, PopOutcome) and one.given for one in twins.outcomes)
