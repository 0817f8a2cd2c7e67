"""The task that waits for a time."""

from __future__ import annotations

from broker_adapter.scheduled.due_loop import DueLoop
from tests.node.local import until


async def test_what_is_expected_during_a_look_is_not_forgotten() -> None:
    looks = 0

    async def look() -> int | None:
        nonlocal looks
        looks += 1
        if looks == 1:  # it may have come behind what this look has seen
            loop.expect(0)
        return None

    loop = DueLoop("test", look, lambda: 1000)
    loop.start()
    await until(lambda: looks == 2)
    loop.stop()


async def test_a_look_that_failed_is_followed_by_another() -> None:
    now_ms = looks = 0

    async def look() -> int | None:
        nonlocal now_ms, looks
        looks += 1
        now_ms += 600
        raise OSError("the disk")

    loop = DueLoop("test", look, lambda: now_ms)
    loop.start()
    await until(lambda: loop._next_ms == 1_600)
    loop.stop()
    assert looks == 1
