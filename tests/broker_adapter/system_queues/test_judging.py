"""What is done about a half message, by its age, its checks and the ends that are known."""

from __future__ import annotations

import pytest

from broker_adapter.format.message import Message, encode
from broker_adapter.format.properties import join_properties
from broker_adapter.format.topic_names import HALF_TOPIC
from broker_adapter.system_queues.judging import CheckRules, Judgement, Step, judge, offsets_of
from broker_adapter.system_queues.waiting import Waiting, waiting

RULES = CheckRules(first_ms=6_000, again_ms=30_000, most=15, reserved_ms=900_000)
BORN = 1_000_000


def half(stored_ms: int = BORN, **properties: str) -> Waiting:
    """At queue offset 7."""
    where = {"REAL_TOPIC": "t", "REAL_QID": "1", **properties}
    message = Message(
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


def judged(found: Waiting | None, after_ms: int, *ended: int, is_last: bool = True) -> Judgement:
    return judge(found, set(ended), BORN + after_ms, RULES, is_last=is_last)


def test_its_producer_has_some_time_and_is_asked_then() -> None:
    assert judged(half(), 5_999) == Judgement(Step.WAIT, BORN + 6_000)
    assert judged(half(), 6_000) == Judgement(Step.CHECK, checks=1)


def test_one_that_was_checked_waits_from_then_on() -> None:
    checked = half(BORN + 6_000, TRANSACTION_CHECK_TIMES="1")
    assert judged(checked, 35_999) == Judgement(Step.WAIT, BORN + 36_000)
    assert judged(checked, 36_000) == Judgement(Step.CHECK, checks=2)
    last = half(BORN + 6_000, TRANSACTION_CHECK_TIMES="15")
    assert judged(last, 36_000).step is Step.GIVE_UP
    assert judged(last, 35_999).step is Step.WAIT, "its last check may still be answered"


@pytest.mark.parametrize(
    "more", [{}, {"TRANSACTION_CHECK_TIMES": "2"}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "6000"}]
)
def test_one_that_is_older_than_messages_become_is_given_up(more: dict[str, str]) -> None:
    """However few checks it had, and whatever time its producer wanted."""
    assert judged(half(BORN + 890_000, **more), 900_000).step is not Step.GIVE_UP
    assert judged(half(BORN + 890_000, **more), 900_001).step is Step.GIVE_UP
    assert judged(half(BORN + 890_000, **more), 900_001, 7).step is Step.OVER


@pytest.mark.parametrize(
    ("found", "ended"),
    [(half(), 7), (half(TRAN_PREPARED_QUEUE_OFFSET="3"), 3), (None, 0)],
    ids=["itself", "the message that it was first", "no half message"],
)
def test_what_has_ended_is_over(found: Waiting | None, ended: int) -> None:
    assert judged(found, 0, ended).step is Step.OVER


def test_one_with_a_time_of_its_own_goes_behind_others_and_not_behind_nobody() -> None:
    patient = half(CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    assert judged(patient, 10_000, is_last=False).step is Step.BEHIND
    assert judged(patient, 10_000) == Judgement(Step.WAIT, BORN + 600_000)
    assert judged(patient, 600_000).step is Step.CHECK
    hurried = half(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    assert judged(hurried, 1_000).step is Step.CHECK


def test_a_clock_of_a_producer_that_is_ahead_gives_it_no_more_time() -> None:
    early = half(BORN - 50_000)
    assert judged(early, -44_000).step is Step.CHECK


@pytest.mark.parametrize(
    ("body", "offsets"), [(b"1,22,333,", [1, 22, 333]), (b"5", [5]), (b"", []), (b"x,-1,6,", [6])]
)
def test_op_messages_name_halves(body: bytes, offsets: list[int]) -> None:
    assert offsets_of(body) == offsets


@pytest.mark.parametrize("properties", [{}, {"REAL_TOPIC": "t"}, {"REAL_TOPIC": "t", "REAL_QID": "-1"}])
def test_what_has_nowhere_to_go_does_not_wait(properties: dict[str, str]) -> None:
    message = Message(HALF_TOPIC, b"x", join_properties(properties))
    assert waiting(bytes(encode(message))) is None
