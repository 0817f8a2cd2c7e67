"""However many messages are delayed, and however long, what they take of memory does not grow."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_adapter.delivery_state import image
from broker_adapter.delivery_state.commands import Defer, DeferredKind, Element, EndDeferred, Ending
from broker_adapter.delivery_state.deferred_messages import IndexMark, LogPosition
from broker_adapter.delivery_state.delay_index import FIRST_DUE
from broker_adapter.delivery_state.records import encode
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.scheduled import deferred_delivery as module
from broker_adapter.scheduled.delay_file import DelayFile
from tests.broker_adapter.scheduled.deferred_world import ID, START, World
from tests.node.local import until

DAY_MS = 86_400_000
BODY = 1024
HOSTS = [b"\x0a\0\0" + bytes((number,)) + b"\0\0\1\xbb" for number in range(50)]


class FileWorld(World):
    """The log is a file: what is in memory is what deferred delivery keeps there."""

    def __init__(self, path: Path) -> None:
        super().__init__(DelayFile(path.with_suffix(".index"), synchronous="OFF"))
        self.file = path.open("w+b")
        self.ended = 0

    def apply(self, elements: Sequence[Element]) -> None:
        self.index += 1
        self.elements.clear()
        self.ended += sum(isinstance(one, EndDeferred) and one.ending is Ending.MOVED for one in elements)
        body = encode(elements, ID)
        pos = self.file.seek(0, 2)
        self.file.write(body)
        self.state.apply(self.index, self.now_ms, body, LogPosition(pos, len(body)))

    async def read(self, places: Sequence[LogPosition]) -> list[bytes]:
        await asyncio.sleep(0)
        return [self._at(place) for place in places]

    def _at(self, place: LogPosition) -> bytes:
        self.file.seek(place.pos)
        return self.file.read(place.size)


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def delayed(number: int, count: int) -> Defer:
    """One of so many, which are due all through 40 days, in any order."""
    due_ms = START + DAY_MS + (number * 7_919 % count) * 39 * DAY_MS // count
    host, topic = HOSTS[number % len(HOSTS)], f"orders-{number % 10}"
    body = b"%8d" % number + bytes(BODY - 8)
    return Defer(DeferredKind.DELAYED, topic, 0, due_ms, b"", "", "", 0, 0, START, host, "", body)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_what_many_delayed_messages_take_of_memory_does_not_grow(tmp_path: Path, count: int) -> None:
    world = FileWorld(tmp_path / "log")
    world.deferred.stop()
    with traced():
        for number in range(count):
            world.apply([delayed(number, count)])
        taken = tracemalloc.get_traced_memory()[0]
        assert taken < 4 << 20, taken  # what is not in the index yet
        world.deferred.start()
        tracemalloc.reset_peak()
        await until(lambda: world.deferred._listed[0] > world.now_ms)
        listing = tracemalloc.get_traced_memory()[1] - taken
        assert listing < 4 << 20, listing
        assert len(world.deferred._due) < count / 20  # the rest is due later
    saved = image.save(world.state)
    assert len(saved) < 40 * count
    other = DeliveryState(index=DelayFile(tmp_path / "other", synchronous="OFF"))
    image.load(other, saved)
    assert other.deferred.mark()[:2] == world.state.deferred.mark()[:2]
    assert list(other.deferred) == list(world.state.deferred)
    world.deferred.stop()
    world.file.close()


async def test_of_many_that_are_due_soon_a_part_is_listed_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LISTED", 100)
    monkeypatch.setattr(module, "_PAGE", 30)
    world = FileWorld(tmp_path / "log")
    world.deferred.stop()
    for number in range(6_000):
        world.apply([delayed(number, 6_000)._replace(due_ms=START + 1_000 + number % 977)])
    world.deferred.start()
    world.deferred._process_due()
    await until(lambda: world.deferred._listing is None)
    assert 100 <= len(world.deferred._due) < 130
    for number in range(6_000, 6_400):  # as they come in on a master
        defer = delayed(number, 6_000)._replace(due_ms=START + 1_000)
        await world.deferred._put(defer, None, 1_000)
        assert len(world.deferred._due) <= 230
    world.now_ms += 2_000
    world.deferred._arm()
    await until(lambda: world.ended == 6_400)
    assert not world.state.deferred and not world.deferred._due
    world.deferred.stop()
    world.file.close()


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_each_is_moved_once_within_forty_days_and_never_early(tmp_path: Path, count: int) -> None:
    world = FileWorld(tmp_path / "log")
    for number in range(count):
        world.apply([delayed(number, count)])
    world.deferred.stop()
    world.deferred.start()
    dues = sorted(one.due_ms for one in world.state.deferred.values())
    with traced():
        before = tracemalloc.get_traced_memory()[0]
        for day in range(42):
            world.now_ms = START + day * DAY_MS
            due = bisect_right(dues, world.now_ms)
            world.deferred._process_due()
            await until(lambda due=due: world.ended >= due)  # type: ignore[misc]
            assert world.ended == due
        grown = tracemalloc.get_traced_memory()[1] - before
        assert grown < 30 << 20, grown
    assert world.ended == count and not world.state.deferred and not world.deferred._due
    world.deferred.stop()
    world.file.close()


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_taking_in_a_million_and_starting_again_needs_as_much_memory_as_a_few(
    tmp_path: Path, count: int
) -> None:
    state = DeliveryState(index=DelayFile(tmp_path / "index"))
    before, pos, most = resident(), 0, 0
    for index in range(1, count // 100 + 1):
        elements = [delayed(index * 100 + at, count)._replace(body=b"x") for at in range(100)]
        command = encode(elements)
        state.apply(index, START, command, LogPosition(pos, len(command)))
        pos += len(command) + 48
        if index % 200 == 0:  # as often as there are checkpoints
            saved, mark = image.checkpoint(state)
            state.sync_index()
            state.deferred.kept(mark or IndexMark(0, 0, 0))
            assert len(saved) < 1_000
            most = max(most, resident() - before)
    state.close()
    again = DeliveryState(index=DelayFile(tmp_path / "index"))
    image.restore(again, saved)
    most = max(most, resident() - before)
    after = FIRST_DUE
    while len(again.deferred._near) < 20_000:
        _, after = again.deferred.due_page(after, 1 << 60, 500)
    most = max(most, resident() - before)
    assert most < 64 << 20, most
    assert len(again.deferred) == count
    again.deferred.clear_near()
    given = DeliveryState(index=DelayFile(tmp_path / "given"))
    image.load(given, image.save(again))
    assert given.mark_index()[:2] == again.mark_index()[:2]
    for one in (again, given):
        one.close()
