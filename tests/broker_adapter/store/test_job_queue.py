"""Stages: order, back-pressure, failures; and the Dispatcher with real threads and a real disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker_adapter.errors import ReadFailed
from broker_adapter.log.replicated import ENTRIES
from broker_adapter.store.dispatcher import Dispatcher, StoreOptions
from broker_adapter.store.job_queue import JobQueueFailed, ThreadJobQueue
from tests.broker_adapter.store.helpers import SHAPE, Commands, Log, dumb_look, look


def test_jobs_are_done_in_order_and_drain_waits_for_them() -> None:
    job_queue = ThreadJobQueue("test", 100)
    done: list[int] = []
    for number in range(50):
        job_queue.submit(lambda number=number: done.append(number), 1)  # type: ignore[misc]
    job_queue.drain()
    assert done == list(range(50)) and job_queue.pending == 0
    job_queue.close()
    with pytest.raises(JobQueueFailed):
        job_queue.submit(lambda: None)


def test_submit_waits_while_more_than_the_limit_is_pending() -> None:
    job_queue = ThreadJobQueue("test", 2)
    go, submitted = threading.Event(), threading.Event()
    job_queue.submit(go.wait, 3)

    def submit() -> None:
        job_queue.submit(lambda: None, 1)
        submitted.set()

    thread = threading.Thread(target=submit)
    thread.start()
    assert job_queue.pending == 3 and not submitted.is_set()
    go.set()
    thread.join()
    assert submitted.is_set()
    job_queue.close()


def test_items_are_gathered_until_another_job_or_a_reader_waits_for_them() -> None:
    job_queue = ThreadJobQueue("test", 1000)
    done: list[list[int]] = []
    go = threading.Event()
    job_queue.submit(go.wait)
    for number in range(5):
        job_queue.gather(done.append, [number], 1)
    job_queue.submit(lambda: done.append([-1]))
    job_queue.gather(done.append, [5, 6], 20)
    job_queue.gather(done.append, [7], 1)
    assert job_queue.pending == 26
    go.set()
    assert job_queue.wait(60)
    assert done == [[0, 1, 2, 3, 4], [-1], [5, 6, 7]] and job_queue.pending == 0
    job_queue.gather(done.append, [8], 1)
    job_queue.drain()
    assert done[3:] == [[8]]
    job_queue.close()


def test_gathered_items_are_processed_even_if_nobody_waits_for_them() -> None:
    job_queue = ThreadJobQueue("test", 1000)
    done = threading.Event()
    job_queue.gather(lambda items: done.set(), [1], 1)
    assert done.wait(60)
    job_queue.close()


def test_gathered_items_count_against_the_limit() -> None:
    job_queue = ThreadJobQueue("test", 2)
    taken: list[int] = []
    job_queue.gather(taken.extend, [0, 1], 3)
    job_queue.gather(taken.extend, [2, 3], 1)  # waits until the first ones are processed
    assert taken == [0, 1]
    job_queue.close()
    assert taken == [0, 1, 2, 3]


def test_what_a_job_raises_comes_out_and_nothing_follows_it() -> None:
    job_queue = ThreadJobQueue("test", 2)
    done: list[int] = []
    go = threading.Event()

    def fail() -> None:
        go.wait()
        raise OSError("disk full")

    job_queue.submit(fail)
    job_queue.submit(lambda: done.append(1))
    go.set()
    for _ in range(2):
        with pytest.raises(JobQueueFailed, match="disk full"):
            job_queue.drain()
        with pytest.raises(JobQueueFailed):
            job_queue.submit(lambda: done.append(2))
    job_queue.close()
    assert not done


def options() -> StoreOptions:
    return StoreOptions(
        units_per_file=16, index_shape=SHAPE, max_open_files=2, checkpoint_interval_s=0.0, index_backlog=3
    )


def test_a_real_disk_and_real_threads_end_as_the_log_says(tmp_path: Path) -> None:
    log = Log()
    for number in range(300):
        log.message("T", number % 3, tag=f"t{number}", keys=f"k{number % 7}" if number % 2 else "")
    keys = [("T", f"k{number}") for number in range(7)]
    dispatcher = Dispatcher(
        tmp_path, Commands(), durable_index=lambda: 1 << 60, log=ENTRIES, options=options()
    )
    assert dispatcher.recover() is None
    dispatcher.load(())
    stop, problems = threading.Event(), list[BaseException]()

    def read() -> None:
        """Units are those of the log at any time, whatever is written and purged beside."""
        try:
            while not stop.is_set():
                for queue in dispatcher.queues.all():
                    begin = queue.min_offset
                    try:
                        units = queue.read(begin, queue.max_offset - begin)
                    except ReadFailed:
                        assert queue.min_offset > begin
                        continue
                    places = {entry.pos + 48: len(entry.body) for entry in log.entries}
                    assert all(places[unit.physical_offset] == unit.size for unit in units)
                for topic, key in keys:
                    assert list(dispatcher.index.find(topic, key, 0, 1 << 60)) is not None
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for first in range(0, 300, 7):
        dispatcher.apply(log.entries[first : first + 7])
        if first == 140:
            dispatcher.purge_below(log.entries[60].pos)
    stop.set()
    for reader in readers:
        reader.join()
    assert not problems
    dispatcher.close()
    dispatcher.close()
    again = Dispatcher(tmp_path, Commands(), durable_index=lambda: 1 << 60, log=ENTRIES, options=options())
    applied = again.recover()
    assert applied is not None and applied.end_pos == log.end_pos
    seen, everything = look(again), dumb_look(log.entries)
    for place, (_, max_offset, floor, units) in everything.items():  # type: ignore[misc]
        kept = [unit for unit in units if unit[0] >= log.entries[60].pos]
        assert seen[place] == (max_offset - len(kept), max_offset, floor, kept)
    again.close()
    names = {path.name for path in (tmp_path / "consumequeue/T/0").iterdir()}
    assert f"{0:020d}" not in names and f"{320:020d}" in names


def test_a_failing_index_stops_the_dispatcher(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("in the way")
    dispatcher = Dispatcher(tmp_path, Commands(), durable_index=lambda: -1, log=ENTRIES, options=options())
    dispatcher.load(())
    log = Log()
    with pytest.raises(JobQueueFailed):
        for _ in range(10):
            dispatcher.apply([log.message(keys="k")])
