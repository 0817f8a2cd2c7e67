"""A merge stays pending until the log has all its commands: the base and tables are not written before."""

from __future__ import annotations

import asyncio

import pytest

from broker_adapter.errors import Status, error_for
from broker_adapter.metadata.commands import Command, DeleteTopic
from broker_adapter.server import classic_host
from broker_adapter.server.classic_host import MergeLogger
from dledger import AppendOutcome


class World:
    def __init__(self) -> None:
        self.end, self.leads, self.takes = 0, True, True
        self.log: list[Command] = []
        self.times_logged = 0
        self.tried = asyncio.Event()
        self.logger = MergeLogger(self.unlogged, lambda: self.end, lambda: self.leads, self.logged)

    def unlogged(self) -> list[Command]:
        return [command for command in (DeleteTopic("a"), DeleteTopic("b")) if command not in self.log]

    async def logged(self) -> None:
        self.times_logged += 1

    def append(self, command: Command) -> asyncio.Future[AppendOutcome]:
        """The log takes the first command, and refuses the second unless it `takes`."""
        future: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        if self.log and not self.takes:
            self.tried.set()
            future.set_exception(error_for(Status.DISK_FULL, "there is no room"))
            future.exception()  # a stopped logger does not look at it
        else:
            self.log.append(command)
            self.end += 1
            future.set_result(AppendOutcome(self.end, 1, 1, 0))
        return future


async def ended(world: World) -> None:
    task = world.logger._task
    assert task is not None
    async with asyncio.timeout(5):
        await asyncio.gather(task, return_exceptions=True)


async def test_a_merge_is_pending_while_the_log_has_a_part_of_it() -> None:
    world = World()
    world.takes = False
    world.logger.merged(world.unlogged())
    assert world.logger.is_pending
    world.logger.log(world.append)
    await world.tried.wait()
    assert world.log == [DeleteTopic("a")] and world.logger.is_pending and not world.times_logged
    await world.logger.stop()


async def test_a_merge_stays_pending_if_its_master_steps_down_before_the_log_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables that are written then would be the base of the next start, which would find nothing to merge."""
    monkeypatch.setattr(classic_host, "_RETRY_S", 0)
    world = World()
    world.takes = False
    world.logger.merged(world.unlogged())
    world.logger.log(world.append)
    await world.tried.wait()
    world.leads = False
    await ended(world)
    assert world.logger.is_pending
    world.leads = world.takes = True
    world.logger.log(world.append)
    await ended(world)
    assert world.log == [DeleteTopic("a"), DeleteTopic("b")]
    assert not world.logger.is_pending and world.times_logged == 1


async def test_a_merge_is_pending_no_more_once_another_master_has_written_the_log() -> None:
    world = World()
    world.logger.merged(world.unlogged())
    world.end += 1
    assert not world.logger.is_pending
    world.logger.log(world.append)
    assert not world.log
