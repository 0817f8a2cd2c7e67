"""Watched files: an error in one round does not end the watch, and is logged once."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from structlog.testing import capture_logs

from dledger.infra.files.watching import FileWatch
from dledger.testing.virtual.clock import VirtualClock
from dledger.testing.virtual.event_loop import virtual_loop


class Watched:
    """A watch in virtual time. `broken` names the checks that fail."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.loop = virtual_loop(self.clock.after, lambda: self.clock.now_ms, Random(1))
        self.broken: set[str] = set()
        self.done: list[str] = []
        checks = [self.check(name) for name in ("certificates", "accounts")]
        self.watch = FileWatch(None, checks, self.on_checked)

    def check(self, name: str) -> Callable[[], None]:
        def run() -> None:
            self.done.append(name)
            if name in self.broken:
                raise OSError(name)

        return run

    async def on_checked(self) -> None:
        self.check("renewal")()

    def work(self, seconds: int, *broken: str) -> tuple[list[str], int]:
        """Run for this time. Return what was done, and the number of log lines."""
        self.broken, self.done = set(broken), []
        with capture_logs() as lines:
            self.clock.run_until(self.clock.now_ms + 1000 * seconds)
        return self.done, len(lines)


ROUND = ["certificates", "accounts", "renewal"]


def test_every_round_runs_all_checks_and_then_the_renewal() -> None:
    watched = Watched()
    watched.loop.entered(watched.watch.start)
    done, lines = watched.work(10)
    assert len(done) > 2 * len(ROUND) and lines == 0
    assert done[: 2 * len(ROUND)] == ROUND * 2
    watched.loop.close()


def test_an_error_ends_neither_its_round_nor_later_ones_and_is_logged_once() -> None:
    watched = Watched()
    watched.loop.entered(watched.watch.start)
    for broken in ("certificates", "accounts", "renewal"):
        done, lines = watched.work(10, broken)
        assert set(done) == set(ROUND) and len(done) > 2 * len(ROUND) and lines == 1, broken
    assert watched.work(10)[1] == 0
    assert watched.work(10, "renewal")[1] == 1, "an error that returns is logged again"
    watched.loop.close()


def test_a_stopped_watch_checks_nothing() -> None:
    watched = Watched()

    async def stop_twice() -> None:
        await watched.watch.stop()
        await watched.watch.stop()

    watched.loop.entered(lambda: watched.loop.create_task(stop_twice()))
    watched.clock.run_until(watched.clock.now_ms + 10)
    watched.loop.entered(watched.watch.start)
    assert watched.work(3)[0]
    watched.loop.entered(lambda: watched.loop.create_task(stop_twice()))
    watched.clock.run_until(watched.clock.now_ms + 10)
    assert not watched.work(10)[0]
    watched.loop.close()
