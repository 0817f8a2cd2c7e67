"""When calls that end with an append leave for the master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_adapter.endpoints.forwarding.link import CallBatcher


class Desk:
    """A loop that is idle, and a time that is over, when the test says so."""

    def __init__(self) -> None:
        self.gone: list[int] = []
        self.asked: list[Callable[[], None]] = []
        self.timers: list[Timer] = []
        self.gathering = CallBatcher(
            lambda size, add: add(self.gone), later=self._later, when_idle=self.asked.append
        )

    def _later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def add(self, *call_ids: int, size: int = 10) -> None:
        for call_id in call_ids:

            def add(frame: Any, call_id: int = call_id) -> None:
                frame.append(call_id)

            self.gathering.add(call_id, size, add)

    def idle(self) -> None:
        asked, self.asked[:] = list(self.asked), []
        for callback in asked:
            callback()


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def test_what_is_at_hand_goes_when_the_loop_is_idle() -> None:
    desk = Desk()
    desk.add(1, 2)
    assert desk.gone == [] and len(desk.asked) == 1
    desk.idle()
    assert desk.gone == [1, 2]


def test_what_comes_meanwhile_goes_with_the_first_answer_of_the_newest_frame() -> None:
    desk = Desk()
    desk.add(1, 2)
    desk.idle()
    desk.add(3)
    desk.add(4)
    assert desk.gone == [1, 2] and not desk.asked
    desk.gathering.answered(2)
    assert desk.gone == [1, 2, 3, 4]
    desk.add(5)
    desk.gathering.answered(1)  # late, and of the frame before
    assert desk.gone == [1, 2, 3, 4]
    desk.gathering.answered(3)
    assert desk.gone == [1, 2, 3, 4, 5]


def test_after_the_last_answer_a_call_goes_at_once_again() -> None:
    desk = Desk()
    desk.add(1)
    desk.idle()
    desk.gathering.answered(1)
    desk.add(2)
    desk.idle()
    assert desk.gone == [1, 2]
    assert desk.timers[0].is_cancelled


def test_much_does_not_wait_for_an_answer() -> None:
    desk = Desk()
    desk.add(1)
    desk.idle()
    desk.add(2, size=1 << 20)
    assert desk.gone == [1, 2]


def test_a_frame_that_is_not_answered_holds_nobody_up_for_long() -> None:
    desk = Desk()
    desk.add(1)
    desk.idle()
    desk.add(2)
    desk.timers[-1].callback()
    assert desk.gone == [1, 2]


def test_nothing_goes_after_the_end() -> None:
    desk = Desk()
    desk.add(1)
    desk.idle()
    desk.add(2)
    desk.gathering.stop()
    assert desk.timers[-1].is_cancelled
    desk.gathering.answered(1)
    assert desk.gone == [1]
