"""What is done about a half message, by its age, its checks and the ends that are known."""

from __future__ import annotations

from functools import partial

import pytest

from broker_adapter.scheduled.judging import CheckAction, CheckDecision, CheckRules, judge, offsets_of
from broker_adapter.scheduled.waiting import PendingMessage, waiting
from broker_adapter.wire.message import MessageRecord, encode
from broker_adapter.wire.properties import join_properties
from broker_adapter.wire.topic_names import HALF_TOPIC

RULES = CheckRules(first_ms=6_000, again_ms=30_000, most=15, reserved_ms=900_000)
BORN = 1_000_000


def half(stored_ms: int = BORN, **properties: str) -> PendingMessage:
    """At queue offset 7."""
    where = {"REAL_TOPIC": "t", "REAL_QID": "1", **properties}
    message = MessageRecord(
        HALF_TOPIC,
        b"x",
        join_properties(where),
        queue_offset=7,
        born_timestamp=BORN,
        store_timestamp=stored_ms,
    )
    found = waiting(bytes(encode(message)))
    assert found is not None
    return found


def judged(found: PendingMessage | None, after_ms: int, *ended: int, is_last: bool = True) -> CheckDecision:
    return judge(found, set(ended), BORN + after_ms, RULES, is_last=is_last)


def test_its_producer_has_some_time_and_is_asked_then() -> None:
    assert judged(half(), 5_999) == CheckDecision(CheckAction.WAIT, BORN + 6_000)
    assert judged(half(), 6_000) == CheckDecision(CheckAction.CHECK, checks=1)


def test_one_that_was_checked_waits_from_then_on() -> None:
    checked = half(BORN + 6_000, TRANSACTION_CHECK_TIMES="1")
    assert judged(checked, 35_999) == CheckDecision(CheckAction.WAIT, BORN + 36_000)
    assert judged(checked, 36_000) == CheckDecision(CheckAction.CHECK, checks=2)
    last = half(BORN + 6_000, TRANSACTION_CHECK_TIMES="15")
    assert judged(last, 36_000).step is CheckAction.GIVE_UP
    assert judged(last, 35_999).step is CheckAction.WAIT, "its last check may still be answered"


@pytest.mark.parametrize("more", [{}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "6000"}])
def test_one_that_was_asked_for_and_is_older_than_messages_become_is_given_up(more: dict[str, str]) -> None:
    """However few checks it had, and whatever time its producer wanted."""
    more = {"TRANSACTION_CHECK_TIMES": "1", "__HALF_SINCE": str(BORN), **more}
    assert judged(half(BORN + 890_000, **more), 900_000).step is not CheckAction.GIVE_UP
    assert judged(half(BORN + 890_000, **more), 900_001).step is CheckAction.GIVE_UP
    assert judged(half(BORN + 890_000, **more), 900_001, 7).step is CheckAction.OVER


@pytest.mark.parametrize(
    ("found", "ended"),
    [(half(), 7), (half(TRAN_PREPARED_QUEUE_OFFSET="3"), 3), (None, 0)],
    ids=["itself", "the message that it was first", "no half message"],
)
def test_what_has_ended_is_over(found: PendingMessage | None, ended: int) -> None:
    assert judged(found, 0, ended).step is CheckAction.OVER


def test_one_with_a_time_of_its_own_goes_behind_others_and_not_behind_nobody() -> None:
    patient = half(CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    assert judged(patient, 10_000, is_last=False).step is CheckAction.BEHIND
    assert judged(patient, 10_000) == CheckDecision(CheckAction.WAIT, BORN + 600_000)
    assert judged(patient, 600_000).step is CheckAction.CHECK
    hurried = half(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    assert judged(hurried, 1_000).step is CheckAction.CHECK


@pytest.mark.parametrize("stored_ms", [BORN - 1_000_000, BORN + 1_000_000])
def test_the_clock_of_a_producer_counts_for_nothing(stored_ms: int) -> None:
    found, after_ms = half(stored_ms), stored_ms - BORN
    assert judged(found, after_ms + 5_999) == CheckDecision(CheckAction.WAIT, stored_ms + 6_000)
    assert judged(found, after_ms + 6_000) == CheckDecision(CheckAction.CHECK, checks=1)


def test_one_that_was_never_asked_for_is_not_given_up() -> None:
    assert judged(half(), 900_001) == CheckDecision(CheckAction.CHECK, checks=1)


def test_steps_of_the_time_neither_age_a_half_nor_end_the_time_that_its_producer_has() -> None:
    """Stored before a step of 1,000 s, when the sum of the steps was 50 s."""
    patient = half(__HALF_SINCE=str(BORN - 50_000), CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    asked = half(BORN + 6_000, __HALF_SINCE=str(BORN - 50_000), TRANSACTION_CHECK_TIMES="1")
    stepped = partial(judge, ended=(), rules=RULES, is_last=True, steps_ms=1_050_000)
    assert stepped(patient, now_ms=BORN + 1_005_000) == CheckDecision(CheckAction.WAIT, BORN + 1_600_000)
    assert stepped(asked, now_ms=BORN + 1_036_000) == CheckDecision(CheckAction.CHECK, checks=2)
    assert stepped(asked, now_ms=BORN + 1_900_001).step is CheckAction.GIVE_UP


def test_a_half_that_is_moved_keeps_when_it_was_stored_first() -> None:
    found = half()
    assert found.since_ms(0) == BORN
    moved = half(BORN + 500, __HALF_SINCE=str(BORN))
    assert moved.since_ms(0) == BORN
    assert "__HALF_SINCE" not in str(moved.restored().properties)
    for wrong in ("-1", "x", "9" * 19):
        assert half(__HALF_SINCE=wrong).since_ms(0) == BORN


@pytest.mark.parametrize(
    ("body", "offsets"), [(b"1,22,333,", [1, 22, 333]), (b"5", [5]), (b"", []), (b"x,-1,6,", [6])]
)
def test_op_messages_name_halves(body: bytes, offsets: list[int]) -> None:
    assert offsets_of(body) == offsets


@pytest.mark.parametrize("properties", [{}, {"REAL_TOPIC": "t"}, {"REAL_TOPIC": "t", "REAL_QID": "-1"}])
def test_what_has_nowhere_to_go_does_not_wait(properties: dict[str, str]) -> None:
    message = MessageRecord(HALF_TOPIC, b"x", join_properties(properties))
    assert waiting(bytes(encode(message))) is None
