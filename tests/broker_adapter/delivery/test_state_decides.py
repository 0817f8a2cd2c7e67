"""What depends on the state when a command is applied, the state decides: whoever proposed it may have known
another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state import image
from broker_adapter.delivery_state.commands import (
    MAX_SPAN,
    Ack,
    Bury,
    ChangeKind,
    ChangeOutcome,
    ChangeVisibility,
    ConfirmReceipt,
    Defer,
    DeferOutcome,
    DeferredKind,
    Drop,
    Element,
    Fold,
    Outcome,
    Pop,
    PopOutcome,
    PurgeBelow,
    QueueKey,
    RecordCheck,
    StoredId,
    StoredIds,
)
from broker_adapter.delivery_state.duplicate_filter import SendIdentity, id_digest
from broker_adapter.delivery_state.queue_state import SEGMENT, QueueDelivery
from broker_adapter.delivery_state.records import encode, encode_stored_ids
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.metadata.commands import (
    NO_GENERATION,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    PutGroup,
    PutTopic,
    ResetOffsets,
    SetRulesVersion,
)
from broker_adapter.metadata.records import encode as encode_metadata
from broker_adapter.metadata.state import MetadataState

KEY = QueueKey("g", "t", 0)
ID = bytes(range(16))


class Log:
    """Commands of both kinds, applied in order."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.index = 0
        self.outcomes: list[Outcome] = []
        self.delivery = DeliveryState(
            on_outcomes=lambda _, outcomes: self.outcomes.extend(outcomes),
            first_offset=lambda *queue: self.metadata.first_offset(*queue),
            cursor_floor=lambda *queue: self.metadata.cursor_floor(*queue),
        )
        self.metadata = MetadataState(
            on_done=self.delivery.metadata_changed, on_topic_cut=self.delivery.topic_cut
        )
        self.change(PutTopic(TopicConfig("t")))
        self.change(PutGroup(GroupConfig("g")))

    def change(self, command: Command) -> None:
        self.index += 1
        self.metadata.apply(self.index, encode_metadata(command))

    def apply(self, *elements: Element, steps_ms: int | None = None) -> list[Outcome]:
        """`steps_ms`: the sum of the steps of the time by now; None: as 0.1.0, which did not record it."""
        self.index += 1
        self.outcomes.clear()
        steps = b"" if steps_ms is None else encode_stored_ids(StoredIds((), steps_ms))
        self.delivery.apply(self.index, self.now_ms, encode(elements, ID) + steps)
        return self.outcomes[: len(elements)]

    def give(self, begin: int, count: int, key: QueueKey = KEY, invisible_ms: int = 50) -> int:
        """Fresh messages of a queue. Their pop."""
        offsets = tuple(range(begin, begin + count))
        pop = Pop(key, "c", "", invisible_ms, False, False, False, begin, begin + count, offsets, (), True)
        (popped,) = self.apply(pop)
        assert isinstance(popped, PopOutcome)
        assert [at for at, _ in popped.given] == list(offsets)
        return popped.pop

    @property
    def queue(self) -> QueueDelivery:
        return self.delivery.queues[KEY]

    @property
    def pending(self) -> list[int]:
        return sorted(self.queue.pending)


def pop_at(begin: int, **more: bool) -> Pop:
    return Pop(KEY, "c", "", 50, False, False, False, begin, begin + 1, (begin,), (), **more)


def test_a_queue_that_is_new_to_a_group_begins_where_the_log_says() -> None:
    """A reset came between the choice and the command, and was acknowledged."""
    log = Log()
    log.change(ResetOffsets("g", (QueueOffset("t", 0, 7),)))
    (popped,) = log.apply(pop_at(9, first_from_state=True))
    assert isinstance(popped, PopOutcome) and not popped.given and not popped.is_fresh_given
    assert log.queue.cursor == 7
    log.give(7, 1)


def committed(offset: int) -> CommitOffsets:
    return CommitOffsets("g", NO_GENERATION, (QueueOffset("t", 0, offset),))


def test_a_group_that_pops_and_pulls_is_not_given_what_it_has_committed() -> None:
    """Its pending messages stay: nobody has acknowledged them."""
    log = Log()
    log.change(SetRulesVersion(2))
    log.give(0, 1)
    log.change(committed(51))
    assert (log.queue.cursor, log.pending) == (51, [0])
    log.change(committed(7))
    assert log.queue.cursor == 51
    log.give(51, 1)
    log.change(ResetOffsets("g", (QueueOffset("t", 0, 3),)))
    assert log.queue.cursor == 3


def test_a_commit_in_an_older_log_moves_no_cursor() -> None:
    """An older release has given these messages, and its log says so."""
    log = Log()
    log.give(0, 1)
    log.change(committed(51))
    log.give(1, 50)


def test_a_commit_that_was_judged_before_a_reset_moves_no_cursor() -> None:
    log = Log()
    log.change(SetRulesVersion(2))
    log.give(0, 1)
    log.change(ResetOffsets("g", (QueueOffset("t", 0, 0),)))
    log.change(replace(committed(51), judged_at=1))
    assert log.queue.cursor == 0


@pytest.mark.parametrize("keeps_offsets", [True, False])
def test_a_deletion_of_a_group_that_keeps_offsets_keeps_cursors_and_what_is_pending(
    keeps_offsets: bool,
) -> None:
    log = Log()
    log.give(0, 3)
    log.change(DeleteGroup("g", keeps_offsets))
    log.change(PutGroup(GroupConfig("g")))
    log.give(3 if keeps_offsets else 0, 1)
    assert log.pending == ([0, 1, 2, 3] if keeps_offsets else [0])


def test_a_command_of_an_older_log_begins_where_it_says() -> None:
    log = Log()
    log.change(ResetOffsets("g", (QueueOffset("t", 0, 7),)))
    (popped,) = log.apply(pop_at(9))
    assert isinstance(popped, PopOutcome) and popped.given == ((9, 1),)


def test_a_repetition_makes_no_queue_that_begins_at_0() -> None:
    log = Log()
    log.change(ResetOffsets("g", (QueueOffset("t", 0, 7),)))
    log.apply(pop_at(0, first_from_state=True)._replace(repeats=True, end=0, fresh=()))
    assert log.queue.cursor == 7


def test_a_message_on_its_way_to_the_dead_letters_is_ended_by_its_drop_alone() -> None:
    log = Log()
    pop = log.give(0, 2)
    (taken,) = log.apply(Bury(KEY, 0, pop, 10))
    assert isinstance(taken, ChangeOutcome)
    assert log.apply(
        Ack(KEY, 0, pop), ChangeVisibility(KEY, 0, pop, 99), Drop(KEY, 0, pop), Bury(KEY, 0, pop, 10)
    ) == [
        False,
        None,
        False,
        None,
    ]
    again = Pop(KEY, "c", "a", 50, False, False, True, 0, 0, (), ((0, pop),), True)
    assert log.apply(again, Drop(KEY, 0, taken.pop)) == [PopOutcome(log.index << 16, 1050, (), False), True]
    assert log.pending == [1]


@pytest.mark.parametrize("first", ["ack", "change", "duplicate"])
def test_whoever_is_first_has_the_message_and_no_letter_is_stored(first: str) -> None:
    log = Log()
    pop = log.give(0, 1)
    begin = {
        "ack": Ack(KEY, 0, pop),
        "change": ChangeVisibility(KEY, 0, pop, 99),
        "duplicate": Pop(KEY, "c", "", 50, False, False, True, 0, 0, (), ((0, pop),), True),
    }[first]
    assert log.apply(begin, Bury(KEY, 0, pop, 10))[1] is None


@pytest.mark.parametrize("how", ["on its way to the dead letters", "given back"])
def test_a_call_holds_no_more_what_was_taken_from_it(how: str) -> None:
    """Nor its client: neither is given it as what they hold, nor does it take room of theirs."""
    log = Log()
    (popped,) = log.apply(pop_at(0, first_from_state=True)._replace(attempt_id="call"))
    assert isinstance(popped, PopOutcome)
    assert log.queue.popped_in_attempt("call") == [0] and list(log.queue.owners) == ["c"]
    is_buried = how == "on its way to the dead letters"
    log.apply(
        Bury(KEY, 0, popped.pop, 10)
        if is_buried
        else ChangeVisibility(KEY, 0, popped.pop, 0, ChangeKind.RETURN)
    )
    assert log.pending == [0] and log.queue.popped_in_attempt("call") == []
    assert list(log.queue.owners) == ([""] if is_buried else ["c"])


def test_only_a_half_message_is_checked() -> None:
    log = Log()
    for kind, is_checked in ((DeferredKind.HALF, True), (DeferredKind.DELAYED, False)):
        (outcome,) = log.apply(Defer(kind, "t", 0, 9, b"", "", "", 0, 0, 0, b"", "", b"x"))
        assert isinstance(outcome, DeferOutcome)
        number = outcome.deferred_id
        assert log.apply(RecordCheck(number, 5000)) == [is_checked]
        assert log.delivery.deferred[number].checks == int(is_checked)


def test_a_message_whose_move_ended_half_way_is_given_again() -> None:
    log = Log()
    pop = log.give(0, 1)
    (taken,) = log.apply(Bury(KEY, 0, pop, 10))
    assert isinstance(taken, ChangeOutcome)
    log.now_ms += 10
    again = Pop(KEY, "d", "", 50, False, False, False, 1, 1, (), ((0, taken.pop),), True)
    (popped,) = log.apply(again)
    assert isinstance(popped, PopOutcome) and popped.given == ((0, 2),)


def test_only_what_has_reached_its_client_may_be_renewed() -> None:
    log = Log()
    pop = log.give(0, 3)
    log.apply(Ack(KEY, 1, pop), ConfirmReceipt(KEY, pop, (0, 1)), ConfirmReceipt(KEY, pop + 1, (2,)))
    assert {at: popped.renews for at, popped in log.queue.pending.items()} == {0: True, 2: False}
    log.now_ms += 50
    log.apply(ConfirmReceipt(KEY, pop, (2,)))
    assert not log.queue.pending[2].renews


def test_what_was_purged_is_pending_for_nobody() -> None:
    log = Log()
    log.give(0, 4)
    log.change(PutGroup(GroupConfig("h")))
    log.give(0, 3, QueueKey("h", "t", 0))
    log.give(0, 3, QueueKey("h", "t", 1))
    log.apply(PurgeBelow("t", 0, 2))
    assert {key: sorted(queue.pending) for key, queue in log.delivery.queues.items()} == {
        KEY: [2, 3],
        QueueKey("h", "t", 0): [2],
        QueueKey("h", "t", 1): [0, 1, 2],
    }
    assert (log.delivery.pending_count, log.delivery.pending_of("h")) == (6, 4)


def test_what_nobody_wants_for_long_is_as_if_it_was_never_given_but_not_what_was_acknowledged() -> None:
    log = Log()
    pop = log.give(0, 6)
    log.apply(Ack(KEY, 2, pop))
    log.now_ms += 149
    assert log.apply(Fold(KEY, 100, 9)) == [0]
    log.now_ms += 1
    assert log.apply(Fold(KEY, 100, 2)) == [2]
    assert (log.queue.cursor, log.pending) == (4, [0, 1, 3])
    assert log.apply(Fold(KEY, 100, 9)) == [1]
    assert (log.queue.cursor, log.pending) == (3, [0, 1])
    log.give(3, 3)


def test_ids_and_delayed_messages_of_a_deleted_topic_are_not_of_one_with_its_name() -> None:
    """Also those whose command came after the deletion."""
    log = Log()
    log.change(PutTopic(TopicConfig("u")))
    ids = [(topic, when) for topic in "tu" for when in ("before", "after")]
    identities = {one: SendIdentity(id_digest(*one), b"c" * 16, 7) for one in ids}

    def send(when: str) -> None:
        for topic in "tu":
            defer = Defer(DeferredKind.DELAYED, topic, 0, 9, b"", "", "", 0, 0, 0, b"", "", b"x")
            log.apply(StoredIds((StoredId(identities[topic, when], 0, 5),)), defer)

    send("before")
    log.change(DeleteTopic("t"))
    send("after")
    log.change(PutTopic(TopicConfig("t")))
    found = {one for one in ids if log.delivery.ids.find(identities[one], log.now_ms, 1)}
    assert found == {("u", "before"), ("u", "after")}
    assert [one.topic for one in log.delivery.deferred.values()] == ["u", "u"]
    assert log.delivery.deferred.bytes == sum(one.size for one in log.delivery.deferred.values())


def test_what_has_not_changed_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    pop = log.give(0, 5 * SEGMENT)
    image.save(log.delivery)
    encoded: list[int] = []
    right = QueueDelivery._encode

    def encode_and_note(self: QueueDelivery, first: int) -> bytes:
        encoded.append(first)
        return right(self, first)

    monkeypatch.setattr(QueueDelivery, "_encode", encode_and_note)
    log.apply(Ack(KEY, 7, pop), ChangeVisibility(KEY, 3 * SEGMENT, pop, 9, ChangeKind.CHANGE))
    saved = image.save(log.delivery)
    assert encoded == [0, 3 * SEGMENT]
    other = DeliveryState()
    image.load(other, saved)
    assert image.save(other) == saved


def test_the_lock_is_not_kept_for_what_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits for it."""
    log = Log()
    log.give(0, 2000)
    steps: list[int] = []
    monkeypatch.setattr(QueueDelivery, "remove", lambda *_: steps.append(1))
    log.change(ResetOffsets("g", (QueueOffset("t", 0, 3),)))
    assert (steps, log.queue.cursor, log.delivery.pending_count, log.delivery.owners()) == ([], 3, 0, [])


@pytest.mark.parametrize(
    "elements", [[Pop(KEY, "c", "", 50, False, False, False, 0, MAX_SPAN + 1, (), ())], []]
)
def test_who_proposed_a_command_is_told_of_it_also_if_it_cannot_be_read(elements: list[Element]) -> None:
    told: list[tuple[bytes, list[Outcome]]] = []
    state = DeliveryState(on_outcomes=lambda request_id, outcomes: told.append((request_id, outcomes)))
    state.apply(1, 1, encode(elements, ID) + b"?" * (not elements))
    assert (state.damaged, told) == (1, [(ID, [])])


def test_who_proposed_a_command_is_told_of_it_also_if_it_is_not_carried_out_to_its_end() -> None:
    def mistake(*queue: object) -> int:
        raise ZeroDivisionError

    told: list[list[Outcome]] = []
    state = DeliveryState(on_outcomes=lambda _, outcomes: told.append(outcomes), first_offset=mistake)
    with pytest.raises(ZeroDivisionError):
        state.apply(1, 1, encode([Ack(KEY, 0, 1), pop_at(0)], ID))
    assert told == [[False]]


def test_a_dead_letter_ends_a_message_whose_time_is_over_and_an_ack_does_not() -> None:
    """Moving it may take longer than the time for which it was taken: it would be there twice."""
    log = Log()
    pop = log.give(0, 2)
    log.now_ms += 50
    assert log.apply(Ack(KEY, 0, pop), Drop(KEY, 1, pop)) == [False, True]
    assert log.pending == [0]


def test_a_queue_of_which_a_group_was_given_nothing_yet_counts_as_progress() -> None:
    """Else a receive in front of the deletion of an unused group in the log would not keep the group."""
    log = Log()
    before = log.delivery.of_group("g")
    log.apply(Pop(KEY, "c", "", 50, False, False, False, 0, 0, (), (), True))
    assert log.queue.cursor == 0 and log.delivery.of_group("g").progress > before.progress


def test_what_is_invisible_does_not_age_by_steps_of_the_time() -> None:
    """Those of its own record count for a command: also for the first one after a step."""
    hour_ms, log = 3_600_000, Log()
    log.give(0, 1)
    (popped,) = log.apply(pop_at(1), steps_ms=0)
    assert isinstance(popped, PopOutcome)
    log.now_ms += hour_ms + 49
    again = pop_at(2)._replace(begin=2, end=2, fresh=(), again=((1, popped.pop),))
    (refused,) = log.apply(again, steps_ms=hour_ms)
    assert isinstance(refused, PopOutcome) and refused.given == ()
    assert log.apply(Ack(KEY, 1, popped.pop), steps_ms=hour_ms) == [True]
    assert log.pending == [0]
    (popped,) = log.apply(pop_at(2), steps_ms=hour_ms)
    assert isinstance(popped, PopOutcome)
    log.now_ms += 50
    (given,) = log.apply(again._replace(again=((2, popped.pop),)), steps_ms=hour_ms)
    assert isinstance(given, PopOutcome) and given.given == ((2, 2),)
    log.now_ms += 49
    change = ChangeVisibility(KEY, 2, given.pop, 50, ChangeKind.CHANGE)
    log.now_ms += hour_ms
    (changed,) = log.apply(change, steps_ms=2 * hour_ms)
    assert isinstance(changed, ChangeOutcome)
    assert changed.invisible_until_ms == log.now_ms - 2 * hour_ms + 50
    assert log.apply(Fold(KEY, 0, 9), steps_ms=2 * hour_ms) == [0]
