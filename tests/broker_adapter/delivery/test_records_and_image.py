"""Bytes of commands, handles and images: what is written today is read tomorrow."""

from __future__ import annotations

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.delivery_state import image
from broker_adapter.delivery_state.commands import (
    MAX_SPAN,
    MAX_SYSTEM_QUEUES,
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
    SystemOffset,
    SystemQueueEnd,
    UnknownElement,
)
from broker_adapter.delivery_state.deferred_messages import MAX_END_AGE_MS, LogPosition
from broker_adapter.delivery_state.duplicate_filter import MAX_AGE_MS, SendIdentity
from broker_adapter.delivery_state.handles import (
    deferred_handle,
    parse_deferred,
    parse_receipt,
    receipt_handle,
)
from broker_adapter.delivery_state.records import (
    NO_REQUEST,
    STORED_ID_SIZE,
    STORED_IDS_OVERHEAD,
    decode,
    encode,
    encode_stored_ids,
)
from broker_adapter.delivery_state.state import DeliveryState, first_number, index_of
from broker_adapter.errors import StoredDataDamaged
from broker_adapter.metadata.commands import PutTopic
from broker_adapter.metadata.records import encode as encode_metadata
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server.replicated_state import ReplicatedState
from dledger.core.values import MAX_TERM
from dledger.store.offline.recover import MIN_TERM_ADVANCE

KEY = QueueKey("g", "t", 2)
IDENTITY = SendIdentity(b"z" * 16, b"c" * 16, 77)
DEFER = Defer(
    DeferredKind.HALF, "t", 1, 99, b"d" * 16, "id", "client", -1, 4, 5, b"\x7f\0\0\1\0\0\0\2", "p\1v\2", b"b"
)
ELEMENTS: list[Element] = [
    Pop(KEY, "c", "attempt", 60_000, True, False, True, 5, 9, (5, 7), ((1, 11), (3, 12))),
    Pop(QueueKey("gruppe", "ü", 0), "", "", 1, False, True, False, 0, 0, (), ()),
    Ack(KEY, 1, 2),
    Drop(KEY, 3, 4),
    ChangeVisibility(KEY, 5, 6, 7, ChangeKind.RETURN),
    SentIds((SentId(b"x" * 16, -1, 8), SentId(b"y" * 16, 3, 9))),
    StoredIds((StoredId(IDENTITY, -1, 8), StoredId(IDENTITY._replace(born_ms=0), 3, 9))),
    EndHalfId(b"x" * 16, 77, 8),
    RecordAttempt(IDENTITY, -1, 8),
    DEFER,
    Carry(1 << 40, DEFER._replace(kind=DeferredKind.DELAYED)),
    EndDeferred(7, Ending.RECALLED),
    RecordCheck(8, 9),
    Bury(KEY, 1, 2, 3),
    ConfirmReceipt(KEY, 7, (1, 3)),
    ConfirmReceipt(KEY, 7, ()),
    SystemOffset("SCHEDULE_TOPIC_XXXX", 17, 1 << 40),
    SystemQueueEnd("SCHEDULE_TOPIC_XXXX", 17, 1 << 40),
    PurgeBelow("t", 4, 99),
    Fold(KEY, 60_000, 9),
    Pop(KEY, "c", "", 1, False, False, False, 0, 0, (), (), True),
]


def test_every_element_comes_back() -> None:
    assert decode(encode(ELEMENTS, b"r" * 16)) == (b"r" * 16, ELEMENTS)


def test_bytes_of_a_command() -> None:
    assert encode([Ack(KEY, 1, 2)]) == (
        b"DD\1" + NO_REQUEST + b"\0\2" + b"\0\1g" + b"\0\1t" + b"\2\0\0\0\x18"
        b"\0\0\0\1\0\0\0\2" + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\0\0\0\0\2"
    )


def test_ids_that_follow_a_command_are_part_of_it() -> None:
    ids = StoredIds((StoredId(IDENTITY, 1, 2),), 7)
    late = encode_stored_ids(ids)
    assert len(late) == STORED_IDS_OVERHEAD + STORED_ID_SIZE
    assert decode(encode([Ack(KEY, 1, 2)]) + late) == (NO_REQUEST, [Ack(KEY, 1, 2), ids])


@pytest.mark.slow
@pytest.mark.parametrize("cut", range(len(encode(ELEMENTS))))
def test_a_command_that_was_cut_is_damage_or_shorter(cut: int) -> None:
    """Elements end where they say, so a cut is seen unless it falls between two of them."""
    try:
        found = decode(encode(ELEMENTS)[:cut])
    except StoredDataDamaged:
        return
    assert found is not None
    assert found.elements == ELEMENTS[: len(found.elements)]


def test_kinds_and_versions_of_newer_nodes_are_passed_over() -> None:
    newer = encode([Ack(KEY, 1, 2)]) + b"\x63\0\0\0\2??" + encode_stored_ids(StoredIds(()))
    found = decode(newer)
    assert found is not None
    assert found.elements == [Ack(KEY, 1, 2), UnknownElement(0x63), StoredIds(())]
    assert decode(b"DD\2" + newer[3:]) is None
    state = DeliveryState()
    state.apply(1, 1, newer)
    state.apply(2, 1, b"DD\2" + newer[3:])
    state.apply(3, 1, b"what is this")
    assert (state.unknown, state.damaged, state.applied_index) == (2, 1, 3)


def test_a_handle_is_one_of_its_topic_and_nothing_else() -> None:
    handle = receipt_handle("t", 3, 1 << 40, 1 << 50)
    assert parse_receipt("t", handle) == (3, 1 << 40, 1 << 50)
    assert parse_receipt("u", handle) is None
    for wrong in ("", "x", handle[:-2], handle + "AA", "A" + handle[1:], deferred_handle("t", 5), "ü" * 38):
        assert parse_receipt("t", wrong) is None
    assert parse_deferred("t", deferred_handle("t", 5)) == 5
    assert parse_deferred("u", deferred_handle("t", 5)) is None


def filled() -> DeliveryState:
    state = DeliveryState()
    state.apply(4, 1000, encode([Pop(KEY, "c", "a", 50, True, False, False, 0, 3, (0, 2), ()), DEFER]))
    state.apply(5, 1001, encode([DEFER._replace(digest=b""), EndDeferred((4 << 16) + 1, Ending.COMMITTED)]))
    return state


def test_a_handle_of_lost_nodes_does_not_fit_a_delivery_of_the_recovered_cluster() -> None:
    """Both were delivered by a command at index 4, in terms that a forced recovery lies between."""
    pop = encode([Pop(KEY, "c", "a", 50, True, False, False, 0, 3, (0, 2), ())])
    lost, recovered = DeliveryState(), DeliveryState()
    lost.apply(4, 1000, pop, term=9)
    recovered.apply(4, 1000, pop, term=9 + MIN_TERM_ADVANCE)
    old, new = (state.queues[KEY].pending[2].pop for state in (lost, recovered))
    assert old == 4 << 16 != new and index_of(old) == index_of(new) == 4
    recovered.apply(5, 1001, encode([Ack(KEY, 2, old)]), term=9 + MIN_TERM_ADVANCE)
    assert 2 in recovered.queues[KEY].pending, "nothing was acknowledged"
    recovered.apply(6, 1001, encode([Ack(KEY, 2, new)]), term=9 + MIN_TERM_ADVANCE)
    assert 2 not in recovered.queues[KEY].pending


def test_numbers_have_64_bits_and_start_at_the_index() -> None:
    assert [first_number(7, term) for term in (-1, 0, 5, MIN_TERM_ADVANCE - 1)] == [7 << 16] * 4
    assert first_number((1 << 44) - 1, MAX_TERM) + 0xFFFF < 1 << 63
    numbers = [first_number(7, MIN_TERM_ADVANCE * n) for n in range(8)]
    assert len(set(numbers)) == 8 and {index_of(number) for number in numbers} == {7}


def test_an_image_holds_everything() -> None:
    saved = image.save(filled())
    state = DeliveryState()
    image.load(state, saved)
    assert image.save(state) == saved
    queue = state.queues[KEY]
    assert (queue.cursor, sorted(queue.pending), state.pending_count) == (3, [0, 2], 2)
    assert queue.pending[2] == (4 << 16, 1050, 1, "c", "a", True, 1000)
    assert state.deferred.ending_of_half("t", (4 << 16) + 1) is Ending.COMMITTED
    assert [one.defer().body for one in state.deferred.values()] == [b"b"]
    assert state.ids.find(SendIdentity(b"d" * 16, b"any content of it", 0), 1000, 1) == (-1, (4 << 16) + 1)


def test_every_flipped_byte_of_an_image_is_found_and_leaves_the_empty_state() -> None:
    saved = image.save(filled())
    for at in range(len(saved)):
        state = filled()
        with pytest.raises(StoredDataDamaged):
            image.load(state, saved[:at] + bytes((saved[at] ^ 1,)) + saved[at + 1 :])
        assert image.save(state) == image.save(DeliveryState())


#: What `filled()` was saved as by version 1.
FIRST_IMAGE = (
    "4444534901bdd80872000000000000000500000004000167000174000163000161000000010000000000000001000000"
    "0200000000000000030000000200000000000000000000000000040000000000000000041a0000000100000002000000"
    "030100000000000003e800000000000000020000000000040000000000000000041a0000000100000002000000030100"
    "000000000003e80000000100000000000500000000000000000063000000000000005f44440100000000000000000000"
    "0000000000000003000174000269640006636c69656e74060000003601000000000001000000000000006300010002ff"
    "ffffff00000004000000000000000500087f000001000000020000000470017602620000000100000000000400010100"
    "000000000003e90000000164646464646464646464646464646464ffffffff000000000004000100000000000003e8"
)


#: And by version 2.
SECOND_IMAGE = (
    "44445349027c556b38000000000000000500000002000167000174000000010000000000000001000000020000000000"
    "000003000000010000006800000002000163000161000000020000000000000000000000000004000000000000000004"
    "1a0000000100000000000000010100000000000003e800000000000000020000000000040000000000000000041a0000"
    "000100000000000000010100000000000003e80000000100000000000500000000000000000063000000000000005f44"
    "4401000000000000000000000000000000000003000174000269640006636c69656e7406000000360100000000000100"
    "0000000000006300010002ffffffff00000004000000000000000500087f000001000000020000000470017602620000"
    "000100000000000400010100000000000003e90000000164646464646464646464646464646464ffffffff0000000000"
    "04000100000000000003e8"
)


#: And by version 5, that of 0.1.0.
IMAGE_OF_0_1_0 = (
    "4444534905b666d28b000000000000000500000002000167000174000000010000000000000001000000020000000000"
    "000003000000010000006800000002000163000161000000020000000000000000000000000004000000000000000004"
    "1a0000000100000000000000010100000000000003e800000000000000020000000000040000000000000000041a0000"
    "000100000000000000010100000000000003e80000000100000000000500000000000000000063000000000000005f44"
    "4401000000000000000000000000000000000003000174000269640006636c69656e7406000000360100000000000100"
    "0000000000006300010002ffffffff00000004000000000000000500087f000001000000020000000470017602620000"
    "00000000000100000000000400010100000000000003e900000001000000000000000164646464646464646464646464"
    "646464ffffffff000000000004000100000000000003e8"
)


#: And by version 3.
THIRD_IMAGE = (
    "4444534903b66c4f5a000000000000000500000002000167000174000000010000000000000001000000020000000000"
    "000003000000010000006800000002000163000161000000020000000000000000000000000004000000000000000004"
    "1a0000000100000000000000010100000000000003e800000000000000020000000000040000000000000000041a0000"
    "000100000000000000010100000000000003e80000000100000000000500000000000000000063000000000000005f44"
    "4401000000000000000000000000000000000003000174000269640006636c69656e7406000000360100000000000100"
    "0000000000006300010002ffffffff00000004000000000000000500087f000001000000020000000470017602620000"
    "000100000000000400010100000000000003e9000000010000000164646464646464646464646464646464ffffffff00"
    "0000000004000100000000000003e8"
)


#: And by version 4.
FOURTH_IMAGE = (
    "4444534904cb0cbf4d000000000000000500000002000167000174000000010000000000000001000000020000000000"
    "000003000000010000006800000002000163000161000000020000000000000000000000000004000000000000000004"
    "1a0000000100000000000000010100000000000003e800000000000000020000000000040000000000000000041a0000"
    "000100000000000000010100000000000003e80000000100000000000500000000000000000063000000000000005f44"
    "4401000000000000000000000000000000000003000174000269640006636c69656e7406000000360100000000000100"
    "0000000000006300010002ffffffff00000004000000000000000500087f000001000000020000000470017602620000"
    "00000000000100000000000400010100000000000003e9000000010000000164646464646464646464646464646464ff"
    "ffffff000000000004000100000000000003e8"
)


@pytest.mark.parametrize("older", [THIRD_IMAGE, FOURTH_IMAGE])
def test_an_image_of_a_version_before_is_taken_as_it_was(older: str) -> None:
    state = DeliveryState()
    image.load(state, bytes.fromhex(older))
    assert image.save(state) == image.save(filled())


def test_an_image_has_how_far_the_broker_has_come_in_queues_of_its_own() -> None:
    state = filled()
    before = state.applied_index
    state.apply(before + 1, 1000, encode([SystemOffset("a", 1, 5), SystemOffset("b", 0, 7)]))
    state.apply(before + 2, 1000, encode([SystemOffset("a", 1, 4), SystemOffset("b", 0, 8)]))
    other = DeliveryState()
    image.load(other, image.save(state))
    assert image.save(other) == image.save(state)
    assert other.system_offsets() == {("a", 1): 5, ("b", 0): 8}, "they only grow"


def test_only_the_end_of_a_queue_of_the_brokers_own_takes_its_offset_back() -> None:
    state = DeliveryState()
    state.apply(
        1, 1000, encode([SystemOffset("a", 1, 5), SystemQueueEnd("a", 1, 7), SystemQueueEnd("b", 0, 1)])
    )
    assert state.system_offsets() == {("a", 1): 5}
    state.apply(2, 1000, encode([SystemQueueEnd("a", 1, 3)]))
    assert state.system_offset("a", 1) == 3


def test_there_are_no_more_queues_of_the_brokers_own_than_may_be() -> None:
    state = DeliveryState()
    state.apply(1, 1000, encode([SystemOffset("a", number, 1) for number in range(MAX_SYSTEM_QUEUES + 1)]))
    assert len(state.system_offsets()) == MAX_SYSTEM_QUEUES


def test_an_image_has_of_a_delayed_message_where_the_log_has_it_and_no_more() -> None:
    state = DeliveryState()
    delayed = DEFER._replace(kind=DeferredKind.DELAYED, body=bytes(100_000), topic="late")
    first, second, third = (4 << 16), (4 << 16) + 1, 5 << 16
    state.apply(4, 1000, encode([delayed, delayed._replace(digest=b"")]), LogPosition(700, 200_300))
    state.apply(5, 1000, encode([delayed._replace(digest=b"e" * 16)]), LogPosition(300_000, 100_200))
    state.apply(
        6, 1000, encode([DEFER._replace(digest=b"", kind=DeferredKind.HALF)]), LogPosition(400_000, 300)
    )
    state.apply(7, 1000, encode([Carry(first, delayed), Carry(99, delayed)]), LogPosition(500_000, 200_400))
    saved = image.save(state)
    assert len(saved) < 1000
    other = DeliveryState()
    image.load(other, saved)
    assert image.save(other) == saved
    assert other.deferred.in_log() == [second, third, first]
    assert [other.deferred[n].place for n in (second, third, first)] == [
        (700, 200_300),
        (300_000, 100_200),
        (500_000, 200_400),
    ]
    assert [other.deferred[n].element for n in (second, third, first)] == [1, 0, 0]
    assert other.is_awaited("late") and other.first_pos() == 700
    other.apply(8, 1001, encode([EndDeferred(first, Ending.MOVED), EndDeferred(second, Ending.RECALLED)]))
    assert other.first_pos() == 300_000
    other.topic_cut("late")
    assert other.first_pos() is None and len(other.deferred) == 1


def test_a_delayed_message_that_an_older_image_holds_is_in_the_log_once_it_was_carried() -> None:
    state = DeliveryState()
    number = 4 << 16
    state.apply(4, 1000, encode([DEFER._replace(kind=DeferredKind.DELAYED, due_ms=77)]))
    state.apply(
        5, 1000, encode([Carry(number, DEFER._replace(kind=DeferredKind.DELAYED))]), LogPosition(70, 300)
    )
    message = state.deferred[number]
    assert (message.command, message.place, message.due_ms) == (b"", (70, 300), 77)


@pytest.mark.parametrize("older", [FIRST_IMAGE, SECOND_IMAGE])
def test_an_image_of_an_older_version_is_taken_and_its_ends_are_of_any_topic(older: str) -> None:
    state = DeliveryState()
    image.load(state, bytes.fromhex(older))
    assert state.deferred.ending_of_half("t", (4 << 16) + 1) is Ending.COMMITTED
    assert [ended.topic for ended in state.deferred.ends()] == [""]
    state.deferred.replace_ends([ended._replace(topic="t") for ended in state.deferred.ends()])
    assert image.save(state) == image.save(filled())


def test_ids_of_an_image_of_0_1_0_match_by_id_alone_until_they_are_a_minute_old() -> None:
    state = DeliveryState()
    image.load(state, bytes.fromhex(IMAGE_OF_0_1_0))
    assert image.save(state) == image.save(filled())
    send = SendIdentity(b"d" * 16, b"whatever it is..", 123_456)
    assert state.ids.find(send, 1000 + MAX_AGE_MS, 15_000) == (-1, (4 << 16) + 1)
    assert state.ids.find(send, 1001 + MAX_AGE_MS, 15_000) is None


def test_ids_do_not_age_by_the_steps_of_cluster_time_that_come_with_them() -> None:
    state, night_ms = DeliveryState(), 8 * 3_600_000
    half = DEFER._replace(digest=b"")
    state.apply(4, 1000, encode([half, StoredIds((StoredId(IDENTITY, -1, 0),))]))
    other = IDENTITY._replace(content=b"o" * 16)
    state.apply(5, 1000 + night_ms, encode([StoredIds((StoredId(other, 2, 7),), night_ms)]))
    restored = DeliveryState()
    image.load(restored, image.save(state))
    for one in (state, restored):
        assert one.ids.find(IDENTITY, 1000 + night_ms + MAX_AGE_MS, 1) == (-1, 4 << 16)
        assert one.ids.find(other, 1000 + night_ms + MAX_AGE_MS, 1) == (2, 7)
        assert one.ids.find(other, 1000 + 2 * night_ms, 1, steps_ms=2 * night_ms) == (2, 7), "none came since"
        assert one.ids.find(other, 1001 + night_ms + MAX_AGE_MS, 1) is None


def test_an_image_from_before_there_was_delivery_is_taken() -> None:
    old = MetadataState()
    old.apply(3, encode_metadata(PutTopic(TopicConfig("t"))))
    metadata, delivery = MetadataState(), filled()
    both = ReplicatedState(metadata, delivery)
    both.load(old.save())
    assert metadata.topic("t") == TopicConfig("t")
    assert image.save(delivery) == image.save(DeliveryState())
    both.apply_delivery(4, 1000, encode([DEFER]), 70, 200, 7)
    saved = both.save()
    other = DeliveryState()
    ReplicatedState(MetadataState(), other).load(saved)
    assert image.save(other) == image.save(delivery)
    for wrong in (b"?", b"DRSI\2" + saved[5:], saved[:-1]):
        with pytest.raises(StoredDataDamaged):
            both.load(wrong)


def test_ends_are_forgotten_by_age() -> None:
    state = filled()
    number = next(iter(state.deferred))
    state.apply(9, 1001 + MAX_END_AGE_MS + 1, encode([EndDeferred(number, Ending.ROLLED_BACK)]))
    assert state.deferred.ending_of_half("t", (4 << 16) + 1) is None
    assert state.deferred.ending_of_half("t", number) is Ending.ROLLED_BACK


@pytest.mark.parametrize(
    "wrong",
    [
        Pop(QueueKey("g", "t", 0), "c", "", 1000, True, False, False, 0, MAX_SPAN + 1, (), ()),
        ChangeVisibility(QueueKey("g", "t", 0), 0, 7, 1 << 62, ChangeKind.CHANGE),
    ],
)
def test_a_command_that_passes_over_too_much_or_ends_too_late_is_damaged(
    wrong: Pop | ChangeVisibility,
) -> None:
    """No broker writes one: what it asks for takes the machine's thread for long, or overflows a time."""
    with pytest.raises(StoredDataDamaged):
        decode(encode([wrong]))
