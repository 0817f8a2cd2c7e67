"""Calls functions of the program: message listeners, local transactions and their checks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


async def call_program(function: Callable[[T], Any], argument: T, threads: Executor | None = None) -> Any:
    """Call a coroutine function on the event loop, or another function on a thread, and return its result.

    `threads`: None for the default executor of the loop. An exception of the function never looks like a
    cancellation of the caller and never ends the event loop: those that would are raised as RuntimeError.
    """
    context = copy_context()
    try:
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        return await asyncio.get_running_loop().run_in_executor(
            threads, context.run, _on_thread, function, argument
        )
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("the function of the program raised CancelledError") from error


def _on_thread(function: Callable[[T], Any], argument: T) -> Any:
    try:
        return function(argument)
    except Exception:
        raise
    except BaseException as error:  # such as SystemExit, which asyncio raises from the event loop
        raise RuntimeError(f"the function of the program raised {type(error).__name__}") from error
