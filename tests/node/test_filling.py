"""How far ahead of appends zeros are written, and that a node does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dledger.client import AsyncClient
from dledger.node.filling import Filling
from dledger.store.disk import Buffer, OsDisk
from tests.node.local import GROUP, running_nodes

MB = 1 << 20


class Log:
    """Grows at a rate, while it is looked at as an allocator does."""

    def __init__(self, most: int = 48 * MB) -> None:
        self.filling = Filling(most)
        self.now_s = 100.0
        self.end_pos = 5.0 * MB
        self.filling.look(self.now_s, int(self.end_pos))

    def grow(self, rate: float, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            step = self.filling.pause_s
            assert 0 < step <= 0.2
            self.now_s += step
            self.end_pos += rate * step
            self.filling.look(self.now_s, int(self.end_pos))


def test_about_a_second_of_appends_is_ahead() -> None:
    log = Log()
    assert log.filling.ahead_bytes == 0
    log.grow(10 * MB, 3)
    assert log.filling.ahead_bytes == pytest.approx(10 * MB, rel=0.05)


def test_chunks_come_twice_as_fast_as_appends_and_are_small_for_small_rates() -> None:
    log = Log()
    log.grow(20 * MB, 3)
    assert log.filling.chunk_bytes == MB
    assert log.filling.chunk_bytes / log.filling.pause_s == pytest.approx(40 * MB, rel=0.05)
    log.grow(MB, 5)
    assert log.filling.chunk_bytes == pytest.approx(MB // 4, rel=0.05)
    assert log.filling.ahead_bytes == pytest.approx(MB, rel=0.05)


def test_a_log_that_rests_is_not_filled_and_one_that_goes_on_is() -> None:
    log = Log()
    log.grow(10 * MB, 3)
    log.grow(0, 10)
    assert log.filling.ahead_bytes == 0
    log.grow(1_000, 10)
    assert log.filling.ahead_bytes == 0, "an append a second has no need of it"
    log.grow(5 * MB, 3)
    assert log.filling.ahead_bytes > 4 * MB


def test_a_log_that_grows_faster_than_is_worth_it_is_not_filled() -> None:
    log = Log(most=48 * MB)
    log.grow(60 * MB, 3)
    assert log.filling.ahead_bytes == 0
    log.grow(40 * MB, 5)
    assert log.filling.ahead_bytes > 38 * MB


def test_a_log_that_was_cut_does_not_grow_backwards() -> None:
    log = Log()
    log.grow(10 * MB, 3)
    log.end_pos -= 20 * MB
    log.grow(10 * MB, 3)
    assert log.filling.ahead_bytes == pytest.approx(10 * MB, rel=0.05)


class ZerosDisk(OsDisk):
    def __init__(self) -> None:
        self.zeros = 0

    def pwritev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        size = sum(map(len, buffers))
        if size >= 4096 and not any(bytes(buffer).strip(b"\0") for buffer in buffers):
            self.zeros += size
        return super().pwritev(handle, buffers, offset)


@pytest.mark.parametrize("limit", [48 * MB, 0])
async def test_a_node_writes_zeros_ahead_of_appends_if_it_may(tmp_path: Path, limit: int) -> None:
    disk = ZerosDisk()
    settings = {"limits": {"fill_ahead_bytes_per_second": limit}}
    async with (
        running_nodes(tmp_path, settings=settings, disks={"n1": disk}) as (node,),
        AsyncClient([node.config.address], group=GROUP) as client,
    ):
        enough = 40 * MB if limit else 2 * MB
        while disk.zeros < 64 << 10 and node.store.tail.pos < enough:
            await client.append(b"x" * 10_000)
    assert (disk.zeros >= 64 << 10) is (limit > 0)
