"""The demo's judgement finds each fault that is planted, and calls nothing else a fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_adapter.cli.demo.demo_check import (
    Acknowledged,
    Delivery,
    OffsetWatch,
    Queue,
    Stored,
    check_delivered,
    check_stored,
)

A: Queue = ("a", 0)
B: Queue = ("a", 1)
Found = dict[Queue, list[Stored]]


def body(line: int) -> bytes:
    return b"line %d" % line


def stored(*lines: int) -> list[Stored]:
    return [Stored(offset, line, body(line)) for offset, line in enumerate(lines)]


def sound() -> Found:
    return {A: stored(1, 3, 5), B: stored(2, 4, 6)}


ACKNOWLEDGED = [Acknowledged(n, A if n % 2 else B, (n - 1) // 2, body(n)) for n in range(1, 7)]


def deliveries(*places: tuple[Queue, int]) -> list[Delivery]:
    return [Delivery("m", queue, offset, sound()[queue][offset].body) for queue, offset in places]


def test_what_is_where_it_was_acknowledged_is_sound() -> None:
    verdict = check_stored(ACKNOWLEDGED, {}, sound())
    assert verdict.ok and verdict.messages == 6 and verdict.again == 0


def lose(found: Found) -> None:
    found[A].pop()


def alter(found: Found) -> None:
    found[A][1] = Stored(1, 3, b"other")


def exchange(found: Found) -> None:
    found[A][0], found[A][1] = Stored(0, 3, body(3)), Stored(1, 1, body(1))


def leave_out(found: Found) -> None:
    found[B][1:] = [Stored(2, 4, body(4)), Stored(3, 6, body(6))]


def smuggle(found: Found) -> None:
    found[B].append(Stored(3, 99, b"strange"))


def misplace(found: Found) -> None:
    found[B].append(Stored(3, 1, body(1)))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lose, "missing"),
        (alter, "altered"),
        (exchange, "out of order"),
        (leave_out, "out of order"),
        (smuggle, "foreign"),
        (misplace, "foreign"),
    ],
)
def test_planted_faults_in_the_queues_are_found(spoil: Callable[[Found], None], kind: str) -> None:
    found = sound()
    spoil(found)
    verdict = check_stored(ACKNOWLEDGED, {}, found)
    assert kind in verdict.faults and verdict.examples


def test_what_was_sent_again_is_counted_and_no_fault() -> None:
    found = sound()
    found[A] = stored(1, 3, 1, 3, 5)
    acknowledged = [one for one in ACKNOWLEDGED if one.queue == B]
    acknowledged += [Acknowledged(n, A, offset, body(n)) for n, offset in ((1, 2), (3, 3), (5, 4))]
    verdict = check_stored(acknowledged, {}, found)
    assert verdict.ok and verdict.again == 2


def test_lines_in_doubt_may_be_there_or_not() -> None:
    acknowledged = [one for one in ACKNOWLEDGED if one.line < 5]
    verdict = check_stored(acknowledged, {5: A, 7: A}, {A: stored(1, 3, 5), B: stored(2, 4)})
    assert verdict.ok and verdict.in_doubt_found == 1
    assert "foreign" in check_stored(acknowledged, {}, {A: stored(1, 3, 5), B: stored(2, 4)}).faults


ALL = [(A, 0), (B, 0), (A, 1), (A, 2), (B, 1), (B, 2)]


def test_a_group_that_got_everything_in_order_is_sound() -> None:
    verdict = check_delivered(sound(), deliveries(*ALL))
    assert verdict.ok and (verdict.messages, verdict.again) == (6, 0)


def test_what_is_delivered_again_is_counted_and_no_fault() -> None:
    verdict = check_delivered(sound(), deliveries(*ALL[:4], (A, 1), (A, 2), *ALL[4:], (B, 2)))
    assert verdict.ok and verdict.again == 3


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (deliveries(*ALL[:-1]), "missing"),
        (deliveries((A, 1), (A, 0), (A, 2), (B, 0), (B, 1), (B, 2)), "out of order"),
        (deliveries((A, 0), (A, 2), (B, 0), (B, 1), (B, 2)), "out of order"),
        ([*deliveries(*ALL[:-1]), Delivery("m", B, 2, b"other")], "altered"),
        ([*deliveries(*ALL), Delivery("m", B, 3, b"beyond")], "altered"),
        ([], "missing"),
    ],
)
def test_planted_faults_of_delivery_are_found(given: list[Delivery], kind: str) -> None:
    assert kind in check_delivered(sound(), given).faults


def test_offsets_and_generations_that_go_back_are_found() -> None:
    watch = OffsetWatch()
    watch.read(1.0, 5, {A: 1})
    watch.read(2.0, 5, {A: 1})
    watch.read(3.0, 9, {A: 4, B: 0})
    assert (watch.faults, watch.readings, watch.generations, watch.changed_at) == ([], 3, 2, 3.0)
    watch.read(4.0, 9, {A: 3, B: 0})
    watch.read(5.0, 9, {A: 3})
    watch.read(6.0, 8, {A: 3})
    assert watch.faults == [
        "a-0: 4 was followed by 3",
        "a-1: 0 was followed by None",
        "generation 9 was followed by 8",
    ]
