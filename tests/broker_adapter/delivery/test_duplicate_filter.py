"""Which sends repeat a stored message, and how long that is remembered."""

from __future__ import annotations

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery_state import duplicate_filter
from broker_adapter.delivery_state.duplicate_filter import (
    DEFERRED,
    ENDED,
    HALF,
    MAX_AGE_MS,
    MAX_ALIKE,
    DuplicateFilter,
    Position,
    SendIdentity,
    content_digest,
    send_identity,
)
from broker_adapter.delivery_state.handles import topic_digest
from broker_adapter.wire.compression import CompressionType
from broker_adapter.wire.properties import PropertiesText
from broker_adapter.wire.sys_flag import COMPRESSED, MULTI_TAGS

SPAN_MS = 15_000
NOW_MS = 1_000_000


def identity(message_id: str = "id", body: bytes = b"x", born_ms: int = 50, topic: str = "t") -> SendIdentity:
    return send_identity(topic, message_id, [OutgoingMessage(body)], born_ms)


def test_a_send_repeats_one_with_its_id_and_content_that_was_born_near_it() -> None:
    ids = DuplicateFilter()
    ids.put(identity(), 2, 7, NOW_MS)
    for born_ms in (50, 50 + SPAN_MS, 50 - SPAN_MS):
        assert ids.find(identity(born_ms=born_ms), NOW_MS, SPAN_MS) == (2, 7)
    for other in (
        identity(body=b"y"),
        identity("other"),
        identity(topic="u"),
        identity(born_ms=51 + SPAN_MS),
        identity(born_ms=49 - SPAN_MS),
    ):
        assert ids.find(other, NOW_MS, SPAN_MS) is None


def test_an_id_is_forgotten_after_a_minute_also_where_nothing_else_is_sent() -> None:
    ids = DuplicateFilter()
    ids.put(identity(), 2, 7, NOW_MS)
    assert ids.find(identity(), NOW_MS + MAX_AGE_MS, SPAN_MS) == (2, 7)
    assert ids.find(identity(), NOW_MS + MAX_AGE_MS + 1, SPAN_MS) is None


def test_an_id_does_not_age_while_cluster_time_steps() -> None:
    ids = DuplicateFilter()
    ids.put(identity(), 2, 7, NOW_MS)
    ids.time_stepped(3_600_000)
    ids.put(identity("late"), 2, 8, NOW_MS + 3_600_000)
    restored = DuplicateFilter(ids.save(), ids.steps_ms)
    for one in (ids, restored):
        assert one.find(identity(), NOW_MS + 3_600_000 + MAX_AGE_MS, SPAN_MS) == (2, 7)
        assert one.find(identity("late"), NOW_MS + 3_600_000 + MAX_AGE_MS, SPAN_MS) == (2, 8)
        assert one.find(identity(), NOW_MS + 3_600_001 + MAX_AGE_MS, SPAN_MS) is None


#: Each is another message than the others by the span, in the order in which they are stored.
BIRTHS_MS = (3_600_050, 50, -7_200_000, 20_000)


def births() -> DuplicateFilter:
    ids = DuplicateFilter()
    for offset, born_ms in enumerate(BIRTHS_MS):
        ids.put(identity(born_ms=born_ms), 0, offset, NOW_MS + offset)
    return ids


def test_contents_and_births_under_one_id_are_remembered_each() -> None:
    ids = births()
    ids.put(identity(body=b"y"), 0, 9, NOW_MS)
    assert len(ids) == len(BIRTHS_MS) + 1
    restored = DuplicateFilter(ids.save())
    assert restored.save() == ids.save()
    for one in (ids, restored):
        for offset, born_ms in enumerate(BIRTHS_MS):
            assert one.find(identity(born_ms=born_ms), NOW_MS, SPAN_MS) == (0, offset)
        assert one.find(identity(born_ms=-7_000_000), NOW_MS, SPAN_MS) is None
        assert one.find(identity(body=b"y"), NOW_MS, SPAN_MS) == (0, 9)


def test_a_send_near_two_births_repeats_the_nearer_one_that_lives() -> None:
    ids = births()
    found = [ids.find(identity(born_ms=born_ms), NOW_MS, SPAN_MS) for born_ms in (9_000, 11_000)]
    assert found == [(0, 1), (0, 3)]
    assert ids.find(identity(born_ms=9_000), NOW_MS + MAX_AGE_MS + 2, SPAN_MS) == (0, 3)


def test_births_under_one_id_leave_each_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts for the limit, and those that leave leave the others."""
    monkeypatch.setattr(duplicate_filter, "MAX_IDS", 3)
    ids = births()
    found = [ids.find(identity(born_ms=born_ms), NOW_MS, SPAN_MS) for born_ms in BIRTHS_MS]
    assert found == [None, (0, 1), (0, 2), (0, 3)]
    assert ids.put(identity("late"), 0, 9, NOW_MS + MAX_AGE_MS + 3) == 0
    assert ids.find(identity(born_ms=20_000), NOW_MS, SPAN_MS) == (0, 3)
    assert len(ids) == 2
    assert ids.put(identity("later"), 0, 9, NOW_MS + MAX_AGE_MS + 4) == 0
    assert ids.find(identity(born_ms=20_000), NOW_MS, SPAN_MS) is None


def test_a_rolled_back_half_leaves_the_other_births_under_its_id() -> None:
    ids = DuplicateFilter()
    for offset, born_ms in enumerate(BIRTHS_MS):
        ids.put(identity(born_ms=born_ms), HALF, offset, NOW_MS)
    ids.end_half(identity().id_digest, 50, 1, NOW_MS)
    restored = DuplicateFilter(ids.save())
    for one in (ids, restored):
        assert [one.find(identity(born_ms=born_ms), NOW_MS, 0) for born_ms in BIRTHS_MS] == [
            (HALF, 0),
            (ENDED, 50),
            (HALF, 2),
            (HALF, 3),
        ]
    ids.put(identity(), HALF, 7, NOW_MS)
    assert ids.find(identity(), NOW_MS, 0) == (HALF, 7)


def test_ids_that_are_too_many_leave_before_their_time_and_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicate_filter, "MAX_IDS", 2)
    ids = DuplicateFilter()
    early = [ids.put(identity(str(number)), 0, number, NOW_MS) for number in range(4)]
    assert (early, len(ids)) == ([0, 0, 1, 1], 2)
    assert ids.put(identity("late"), 0, 9, NOW_MS + MAX_AGE_MS + 1) == 0
    assert len(ids) == 1


@pytest.mark.parametrize("queue_id", [0, HALF])
def test_of_too_many_births_under_one_id_the_oldest_leaves_early(queue_id: int) -> None:
    ids, restored = DuplicateFilter(), DuplicateFilter()
    count = 2 * MAX_ALIKE + 1
    for offset in range(count):
        one = identity(born_ms=-offset * 2 * SPAN_MS)
        early = [ids.put(one, queue_id, offset, NOW_MS + offset) for ids in (ids, restored)]
        assert early == [offset >= MAX_ALIKE] * 2
        restored = DuplicateFilter(restored.save())
    assert len(ids) == MAX_ALIKE and ids.save() == restored.save()
    found = [ids.find(identity(born_ms=-offset * 2 * SPAN_MS), NOW_MS, SPAN_MS) for offset in range(count)]
    assert found == [None] * (count - MAX_ALIKE) + [(queue_id, at) for at in range(count - MAX_ALIKE, count)]
    assert ids.put(identity("late"), 0, 9, NOW_MS + count + MAX_AGE_MS) == 0
    assert len(ids) == 1


def test_of_too_many_halves_of_one_id_and_birth_the_oldest_leaves_early() -> None:
    ids = DuplicateFilter()
    early = [ids.put(identity(body=bytes([n])), HALF, n, NOW_MS) for n in range(MAX_ALIKE + 2)]
    assert sum(early) == 2 and len(ids) == MAX_ALIKE
    assert ids.half_offsets(identity().id_digest, 50) == list(range(2, MAX_ALIKE + 2))
    assert ids.find(identity(body=b"\0"), NOW_MS, SPAN_MS) is None


def test_an_ended_send_takes_the_room_of_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in an image, so that nodes that began with one forget the same."""
    monkeypatch.setattr(duplicate_filter, "MAX_IDS", 2)
    ids = DuplicateFilter()
    ids.put(identity("a"), DEFERRED, 5, NOW_MS)
    ids.put(identity("b"), 0, 1, NOW_MS)
    ids.end_deferred(5, NOW_MS)
    ids.end_deferred(6, NOW_MS)
    restored = DuplicateFilter(ids.save())
    for one in (ids, restored):
        one.put(identity("c"), 0, 2, NOW_MS)
        found = [one.find(identity(name), NOW_MS, SPAN_MS) for name in "abc"]
        assert found == [(ENDED, 50), None, (0, 2)]
    assert ids.save() == restored.save()


def test_a_rolled_back_half_is_found_by_its_id_and_birth() -> None:
    ids = DuplicateFilter()
    ids.put(identity(body=b"first"), HALF, 5, NOW_MS)
    ids.put(identity(body=b"second", born_ms=60), HALF, 6, NOW_MS)
    ids.put(identity(body=b"stored", born_ms=70), 0, 1, NOW_MS)
    for born_ms, offset in ((50, 5), (50, 6), (60, -1), (70, 1)):
        ids.end_half(identity().id_digest, born_ms, offset, NOW_MS)
    assert ids.find(identity(body=b"first"), NOW_MS, SPAN_MS) == (ENDED, 50)
    assert ids.find(identity(body=b"second"), NOW_MS, SPAN_MS) == (HALF, 6)
    assert ids.find(identity(body=b"stored"), NOW_MS, SPAN_MS) == (0, 1)


def test_a_rolled_back_half_leaves_those_that_share_its_id_and_birth() -> None:
    """A program fills one message object twice in a millisecond."""
    ids = DuplicateFilter()
    ids.put(identity(body=b"first"), HALF, 5, NOW_MS)
    ids.put(identity(body=b"second"), HALF, 6, NOW_MS)
    restored = DuplicateFilter(ids.save())
    for one in (ids, restored):
        assert one.half_offsets(identity().id_digest, 50) == [5, 6]
        one.end_half(identity().id_digest, 50, 5, NOW_MS)
        assert one.find(identity(body=b"first"), NOW_MS, SPAN_MS) == (ENDED, 50)
        assert one.find(identity(body=b"second"), NOW_MS, SPAN_MS) == (HALF, 6)
        assert one.half_offsets(identity().id_digest, 50) == [6]
        one.end_half(identity().id_digest, 50, 6, NOW_MS)
        assert one.half_offsets(identity().id_digest, 50) == [] and len(one) == 2


def test_a_late_attempt_is_one_born_up_to_the_latest_recorded_one() -> None:
    ids = DuplicateFilter()
    ids.put(identity(), DEFERRED, 5, NOW_MS)
    assert not ids.record_attempt(identity(born_ms=90), Position(DEFERRED, 6))
    assert not ids.record_attempt(identity(body=b"other", born_ms=90), Position(DEFERRED, 5))
    for born_ms in (70, 60):
        assert ids.record_attempt(identity(born_ms=born_ms), Position(DEFERRED, 5))
    assert ids.latest_attempt(identity().key, Position(DEFERRED, 5)) == 70
    assert ids.find(identity(born_ms=71), NOW_MS, 10) is None, (
        "the birth that retries are near to is the first"
    )
    restored = DuplicateFilter(ids.save())
    for one in (ids, restored):
        one.end_deferred(5, NOW_MS)
        found = [one.find(identity(born_ms=born_ms), NOW_MS, 20) for born_ms in (29, 30, 70, 71)]
        assert found == [None, (ENDED, 70), (ENDED, 70), None]
        assert not one.record_attempt(identity(born_ms=99), Position(DEFERRED, 5))
    assert ids.save() == restored.save()


def test_a_stored_message_is_found_rather_than_an_ended_one() -> None:
    """It was sent again after a recall. Late attempts of both are answered with it."""
    ids = DuplicateFilter()
    ids.put(identity(), DEFERRED, 5, NOW_MS)
    ids.end_deferred(5, NOW_MS)
    ids.put(identity(born_ms=60), 0, 1, NOW_MS)
    assert [ids.find(identity(born_ms=at), NOW_MS, SPAN_MS) for at in (50, 55, 99)] == [(0, 1)] * 3
    assert ids.find(identity(), NOW_MS, 5) == (ENDED, 50)


def test_what_is_known_of_attempts_goes_with_its_id() -> None:
    for leave in (
        lambda ids: ids.put(identity("late"), 0, 1, NOW_MS + MAX_AGE_MS + 1),
        lambda ids: ids.put(identity(), 0, 1, NOW_MS),  # replaces it
    ):
        ids = DuplicateFilter()
        ids.put(identity(), DEFERRED, 5, NOW_MS)
        ids.record_attempt(identity(born_ms=70), Position(DEFERRED, 5))
        size = len(ids.save())
        leave(ids)
        assert len(ids.save()) == size // 2
    ids = DuplicateFilter()
    for topic in "tu":
        ids.put(identity(topic=topic), DEFERRED, ord(topic), NOW_MS)
        ids.record_attempt(identity(topic=topic, born_ms=70), Position(DEFERRED, ord(topic)))
    kept = ids.without(topic_digest("t"))
    assert len(kept.save()) == len(ids.save()) // 2
    assert kept.latest_attempt(identity(topic="u").key, Position(DEFERRED, ord("u"))) == 70


def test_ids_of_a_topic_go_with_it() -> None:
    ids = DuplicateFilter()
    ids.put(identity(), 0, 1, NOW_MS)
    ids.put(identity(topic="u"), 0, 2, NOW_MS)
    ids.time_stepped(5)
    kept = ids.without(topic_digest("t"))
    assert (len(kept), kept.steps_ms) == (1, 5)
    assert kept.find(identity(topic="u"), NOW_MS, SPAN_MS) == (0, 2)
    assert kept.without(topic_digest("t")) is kept


def test_ids_of_0_1_0_have_its_limits_until_newer_ones_come() -> None:
    ids = DuplicateFilter()
    ids.put_first(b"a" * 16, 0, 1, NOW_MS)
    ids.put_first(b"b" * 16, 0, 2, NOW_MS + duplicate_filter.FIRST_MAX_AGE_MS)
    assert len(ids) == 2
    ids.put(identity(), 0, 3, NOW_MS + duplicate_filter.FIRST_MAX_AGE_MS)
    assert len(ids) == 2


def content(**fields: object) -> bytes:
    message = OutgoingMessage(b"body", {"a": "1", "b": "2"})
    return content_digest([message._replace(**fields)])  # type: ignore[arg-type]


def test_the_order_of_properties_and_spans_of_tracing_hooks_are_no_content() -> None:
    """Go sends properties in any order, and hooks add a span to each try of a traced client."""
    assert content(properties=PropertiesText("b\x012\x02a\x011")) == content()
    span = {"uber-trace-id": "7f", "X-B3-TraceId": "1", "traceparent": "00-1", "sw8": "1-x"}
    assert content(properties={"a": "1", **span, "b": "2"}) == content()
    assert content(born_timestamp=7) == content()


@pytest.mark.parametrize(
    "fields",
    [
        {"body": b"other"},
        {"flag": 1},
        {"properties": {"a": "1"}},
        {"properties": {"a": "1", "b": "3"}},
        {"properties": {"a": "1", "b": "2", "traced": "3"}},
        {"sys_flag": COMPRESSED},
        {"sys_flag": CompressionType.LZ4.sys_flag},
        {"producer_group": "p"},
    ],
)
def test_all_else_that_a_producer_sends_is_content(fields: dict[str, object]) -> None:
    assert content(**fields) != content()


def test_other_bits_of_the_sys_flag_are_no_content() -> None:
    assert content(sys_flag=MULTI_TAGS) == content()


def test_a_batch_has_the_content_of_all_its_messages() -> None:
    one, two = OutgoingMessage(b"ab"), OutgoingMessage(b"c")
    assert content_digest([one, two]) != content_digest([OutgoingMessage(b"a"), OutgoingMessage(b"bc")])
    assert content_digest([one, two]) != content_digest([two, one])
    assert content_digest([one]) != content_digest([one, one])


def test_digests_of_contents_never_change() -> None:
    """They are stored, and nodes of different releases compare them."""
    text = "b\x012\x02traceparent\x01x\x02a\x011\x01z\x02b\x013"
    messages = [
        OutgoingMessage(b"body", PropertiesText(text), 7, 0xFFFF, 5, "group"),
        OutgoingMessage(b"", {"\ud800": "x", "X-B3-Sampled": "1"}, -1, 0, 6, ""),
        OutgoingMessage(b"x" * 3000, {str(number): "v" for number in range(40)}, 0, 1, 0, "g\ud800"),
    ]
    assert content_digest(messages).hex() == "9ba31a3dca6e07380f57141ff8086241"
    assert content_digest(messages[:1]).hex() == "9e35a36eccfa6f0457ae62e760e3f0db"
