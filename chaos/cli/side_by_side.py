"""Several runs at the same time, each in a process of its own: none waits for the loop of another."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple


class Job(NamedTuple):
    """`arguments`: of `dledger-chaos`."""

    name: str
    arguments: Sequence[str]


class Ended(NamedTuple):
    """`output`: all that it has said, errors among it."""

    job: Job
    exit_code: int
    output: str


async def run_side_by_side(jobs: Sequence[Job], at_once: int, on_end: Callable[[Ended], object]) -> None:
    """All of them, `at_once` at a time, in their order; `on_end` for each as it ends.

    Cancelled, it interrupts those that go on, and returns when they have cleaned up. If it dies itself, they
    find nobody to talk to with their next line, and end as well.
    """
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            on_end(await _run(job))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(work())


async def _run(job: Job) -> Ended:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        "-m",
        "chaos.cli",
        *job.arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        # Also if a terminal has interrupted it already: twice is no more than once.
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await asyncio.shield(asyncio.ensure_future(process.communicate()))
        raise
    assert process.returncode is not None
    return Ended(job, process.returncode, output.decode(errors="replace"))
