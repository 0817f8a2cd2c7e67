"""Reduce a failing sequence: delta debugging (Zeller and Hildebrandt, 2002) over its steps. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from .steps import Step

#: Steps at the start of a sequence, which are dropped last: what is created by use instead is limited.
SETUP = frozenset({"setup_topic", "setup_group"})


async def shrunk(
    steps: Sequence[Step], fails: Callable[[Sequence[Step]], Awaitable[bool]], max_attempts: int = 200
) -> list[Step]:
    """A subsequence that still fails, from which no single step can be dropped (if the attempts suffice).
    `steps` must fail."""
    setup = [step for step in steps if step.kind in SETUP]
    rest = [step for step in steps if step.kind not in SETUP]

    async def fails_with_setup(candidate: Sequence[Step]) -> bool:
        return await fails([*setup, *candidate])

    rest = await _minimal(rest, fails_with_setup, max_attempts)
    for step in list(setup):
        fewer = [one for one in setup if one is not step]
        if await fails([*fewer, *rest]):
            setup = fewer
    return [*setup, *rest]


async def _minimal(
    steps: Sequence[Step], fails: Callable[[Sequence[Step]], Awaitable[bool]], max_attempts: int
) -> list[Step]:
    current, chunk, attempts = list(steps), max(1, len(steps) // 2), 0
    while attempts < max_attempts:
        start, has_dropped = 0, False
        while start < len(current) and attempts < max_attempts:
            candidate = current[:start] + current[start + chunk :]
            attempts += 1
            if candidate and await fails(candidate):
                current, has_dropped = candidate, True
            else:
                start += chunk
        if chunk > 1:
            chunk //= 2
        elif not has_dropped:
            break
    return current
