"""Which work threads were given first. Whose is over first is up to the machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import Any

#: Whom work on a thread is done for.
turn: ContextVar[str] = ContextVar("turn", default="")


class BegunWork(Executor):
    """Notes whose `turn` it is for each work, in the order in which threads take it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.order: list[str] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.order.append(turn.get())
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait, cancel_futures=cancel_futures)
