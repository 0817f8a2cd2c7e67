"""The checker of these tests finds what it is for, in files and notes that are changed after a good run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from broker_adapter.errors import Status
from tests.broker_adapter.process.checker import check_files, stop
from tests.broker_adapter.process.load import Acknowledged, Load, Notes
from tests.broker_adapter.process.processes import BrokerProcesses

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-derived-files")]

QUEUE = ("orders", 1)


def first_file(brokers: BrokerProcesses) -> Path:
    return next(iter(sorted((brokers.derived("n2") / "consumequeue" / "orders" / "1").iterdir())))


def flip_a_unit(brokers: BrokerProcesses, _: Notes) -> None:
    content = bytearray(first_file(brokers).read_bytes())
    content[27] ^= 1
    first_file(brokers).write_bytes(content)


def cut_a_queue(brokers: BrokerProcesses, _: Notes) -> None:
    first_file(brokers).write_bytes(first_file(brokers).read_bytes()[:100])


def add_a_unit(brokers: BrokerProcesses, _: Notes) -> None:
    folder = first_file(brokers).parent
    last = max(folder.iterdir())
    (folder / f"{int(last.name) + last.stat().st_size:020d}").write_bytes(b"\1" * 20)


def acknowledge_another_body(_: BrokerProcesses, notes: Notes) -> None:
    place = (*QUEUE, 3)
    notes.acknowledged[place] = notes.acknowledged[place]._replace(body=b"0:1:another one")


def acknowledge_beyond_the_end(_: BrokerProcesses, notes: Notes) -> None:
    notes.acknowledged[*QUEUE, 1 << 40] = Acknowledged(b"0:0:", "", "", "")


def refuse_what_is_stored(_: BrokerProcesses, notes: Notes) -> None:
    notes.refused[notes.acknowledged[*QUEUE, 2].body] = Status.DISK_FULL


def tear_a_batch(_: BrokerProcesses, notes: Notes) -> None:
    notes.batches.append([notes.acknowledged[*QUEUE, 0].body, notes.acknowledged["orders", 0, 0].body])


def deliver_out_of_order(_: BrokerProcesses, notes: Notes) -> None:
    deliveries = notes.delivered[QUEUE]
    deliveries[0], deliveries[1] = deliveries[1], deliveries[0]


def deliver_too_little(_: BrokerProcesses, notes: Notes) -> None:
    end = max(offset for topic, queue_id, offset in notes.acknowledged if (topic, queue_id) == QUEUE)
    notes.delivered[QUEUE] = [(o, body) for o, body in notes.delivered[QUEUE] if o < end]


MUTATIONS: list[Callable[[BrokerProcesses, Notes], None]] = [
    flip_a_unit,
    cut_a_queue,
    add_a_unit,
    acknowledge_another_body,
    acknowledge_beyond_the_end,
    refuse_what_is_stored,
    tear_a_batch,
    deliver_out_of_order,
    deliver_too_little,
]


async def test_everything_that_is_changed_is_found(tmp_path: Path) -> None:
    async with BrokerProcesses(tmp_path) as brokers:
        async with Load(brokers) as load:
            await load.progress(200)
        end = await stop(brokers)
        check_files(brokers, load.notes, end)
        folder, kept = brokers.derived("n2"), tmp_path / "kept"
        shutil.copytree(folder, kept)
        for mutate in MUTATIONS:
            notes = deepcopy(load.notes)
            mutate(brokers, notes)
            with pytest.raises(AssertionError):
                check_files(brokers, notes, end)
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
        check_files(brokers, load.notes, end)
