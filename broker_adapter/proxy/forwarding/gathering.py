"""Calls that end with an append, on their way to the master: self-clocked, as the groups of the log are.

A frame costs both nodes a wake-up, and on a busy machine one that comes alone leads to an append of few
calls. So while one is unanswered, what comes meanwhile gathers for the next: at the master it would wait for
the same append. A call that comes alone goes when the loop is idle, which is at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker_adapter.proxy.forwarding.frames import AddTo

#: So much does not wait any longer (bytes).
_MUCH: Final = 256 << 10
#: Nor longer than this (seconds): what the master is at may concern one of them alone.
_LONGEST_S: Final = 0.02


class Timer(Protocol):
    def cancel(self) -> None: ...


class Gathering:
    """`put`: (bytes, how they get into a frame) to the stream; `later`: calls back after some seconds;
    `when_idle`: when the loop has nothing else to do."""

    def __init__(
        self,
        put: Callable[[int, AddTo], None],
        *,
        later: Callable[[float, Callable[[], None]], Timer],
        when_idle: Callable[[Callable[[], None]], None],
    ) -> None:
        self._put = put
        self._later = later
        self._when_idle = when_idle
        self._waiting: list[tuple[int, int, AddTo]] = []
        self._bytes = 0
        self._is_asked = False
        self._first_under_way = 0  # of the newest frame; 0: all of it may be answered
        self._timer: Timer | None = None

    def add(self, call_id: int, size: int, add: AddTo) -> None:
        """Numbers of calls grow."""
        self._waiting.append((call_id, size, add))
        self._bytes += size
        if self._bytes >= _MUCH:
            self._go()
        elif not self._first_under_way and not self._is_asked:
            self._is_asked = True
            self._when_idle(self._idle)

    def answered(self, call_id: int) -> None:
        """One of the newest frame is enough: its append is done."""
        if self._first_under_way and call_id >= self._first_under_way:
            self._over()

    def stop(self) -> None:
        """What has not gone by now stays."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _idle(self) -> None:
        self._is_asked = False
        if not self._first_under_way:
            self._go()

    def _over(self) -> None:
        self._first_under_way = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._go()

    def _go(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        self._first_under_way = waiting[0][0]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._later(_LONGEST_S, self._over)
        for _, size, add in waiting:
            self._put(size, add)
