"""Slaves that are killed in the middle of dispatching, and whose derived files are then damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from broker_adapter.wire.index_layout import IndexShape
from tests.broker_adapter.process.checker import check
from tests.broker_adapter.process.load import Load
from tests.broker_adapter.process.processes import SMALL, BrokerProcesses, Seen

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-derived-files")]

MADE_AGAIN = "derived files are not believed and made again from the log"

RNG = Random(11)


def flip(path: Path, begin: int, end: int) -> None:
    content = bytearray(path.read_bytes())
    content[RNG.randrange(begin, end)] ^= 0x20
    path.write_bytes(content)


def used(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


def first_queue(root: Path) -> Path:
    return next(iter(sorted((root / "consumequeue" / "orders" / "0").iterdir())))


def cut_queue(root: Path) -> None:
    path = first_queue(root)
    path.write_bytes(path.read_bytes()[: used(path) // 2])


def flip_queue(root: Path) -> None:
    """In the first units: every checkpoint speaks of those."""
    flip(first_queue(root), 0, 20)


def remove_queue(root: Path) -> None:
    first_queue(root).unlink()


def flip_index(root: Path) -> None:
    """In an item: header and slots of the newest file are made of the items at every start."""
    first = IndexShape(SMALL["index_slots"], SMALL["index_items"]).item_position(1)
    flip(min((root / "index").iterdir()), first, first + 20)


def remove_index(root: Path) -> None:
    min((root / "index").iterdir()).unlink()


def flip_checkpoint(root: Path) -> None:
    path = root / "derived_checkpoint"
    flip(path, 0, path.stat().st_size)


def cut_checkpoint(root: Path) -> None:
    path = root / "derived_checkpoint"
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES: list[Callable[[Path], None]] = [
    cut_queue,
    flip_queue,
    remove_queue,
    flip_index,
    remove_index,
    flip_checkpoint,
    cut_checkpoint,
]


@pytest.mark.long
async def test_damaged_files_of_killed_slaves_are_noticed_and_made_again(tmp_path: Path) -> None:
    async with BrokerProcesses(tmp_path, broker={"checkpoint_ms": 20}) as brokers:
        nodes = brokers.nodes
        async with Load(brokers, writers=2) as load:
            await load.progress(300)
            for damage in DAMAGES:
                victim = RNG.choice(brokers.slaves(await brokers.master()))
                await has_checkpoint(brokers, victim)
                noticed = nodes.log_of(victim).count(MADE_AGAIN)
                await nodes.kill(victim)
                damage(brokers.derived(victim))
                await nodes.start([victim])
                await load.progress(50)
                await has_checkpoint(brokers, victim)
                assert nodes.log_of(victim).count(MADE_AGAIN) == noticed + 1, damage.__name__
        await check(brokers, load)


async def test_without_any_derived_file_everything_is_made_of_the_log(tmp_path: Path) -> None:
    async with BrokerProcesses(tmp_path) as brokers:
        nodes = brokers.nodes
        async with Load(brokers) as load:
            await load.progress(500)
            slave = brokers.slaves(await brokers.master())[0]
            await nodes.kill(slave)
            shutil.rmtree(brokers.derived(slave))
            await nodes.start([slave])
            await has_checkpoint(brokers, slave)
            # And of all of them at once: offsets of groups come from the log, too.
            await nodes.kill(*nodes.members)
            for node in nodes.members:
                shutil.rmtree(brokers.derived(node))
            await nodes.start()
            await load.progress(300)
            await load.found_by_key()
        await check(brokers, load)


async def has_checkpoint(brokers: BrokerProcesses, node: str) -> None:
    """Until the node has begun to serve and has a checkpoint of some messages."""

    def written(seen: Seen) -> bool:
        owner = seen[node].owner
        return bool(owner) and owner["checkpoint_index"] > 100 and owner["dispatched_index"] > 100

    await brokers.nodes.wait_for(written)
