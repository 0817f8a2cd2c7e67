"""Splitting a stream into lines and batches, against the obvious way to do it."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.cli import line_source
from dledger.cli.line_source import LineBatch, LineBatches, LineSplitter
from dledger.core.values import ENTRY_HEADER_SIZE
from tests.client.helpers import until


def obvious_lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def split_all(splitter: LineSplitter, chunks: list[bytes]) -> list[bytes]:
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


alphabet = st.sampled_from([b"\n", b"\n", b"\r", b"\0", b"a", b"\xff", b"bc"])
streams = st.lists(st.lists(alphabet, max_size=8).map(b"".join), max_size=12)


@settings(deadline=None)  # other work on the machine is not a fault
@given(streams)
def test_any_chunking_gives_the_lines(chunks: list[bytes]) -> None:
    splitter = LineSplitter(1000)
    expected = obvious_lines(b"".join(chunks))
    assert split_all(splitter, chunks) == expected
    assert splitter.lines == len(expected)
    assert splitter.too_long is None


@settings(deadline=None)  # other work on the machine is not a fault
@given(streams, st.integers(0, 4))
def test_the_first_line_over_the_limit_ends_it(chunks: list[bytes], limit: int) -> None:
    splitter = LineSplitter(limit)
    expected = obvious_lines(b"".join(chunks))
    over = next((i for i, line in enumerate(expected) if len(line) > limit), None)
    assert split_all(splitter, chunks) == (expected if over is None else expected[:over])
    assert splitter.too_long == (None if over is None else over + 1)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"\n\n", [b"", b""]),
        (b"a", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\n\0\xff\n", [b"a\r", b"\0\xff"]),
    ],
)
def test_corner_cases(data: bytes, lines: list[bytes]) -> None:
    assert split_all(LineSplitter(100), [data]) == lines


def test_a_line_without_end_is_not_kept() -> None:
    splitter = LineSplitter(10)
    assert splitter.feed(b"ok\n" + b"x" * 11) == [b"ok"]
    assert splitter.too_long == 2
    assert splitter.feed(b"x" * 1_000_000) == []
    assert splitter.finish() == []


async def gather(data: bytes, **limits: int) -> list[LineBatch]:
    settings = {"batch_bytes": 4096, "batch_entries": 100, "max_line_bytes": 1 << 20, **limits}
    return [batch async for batch in LineBatches(io.BytesIO(data), **settings)]


async def test_batches_hold_all_lines_in_order_within_the_limits() -> None:
    lines = [b"%d " % i * (i % 50) for i in range(5000)]
    batches = await gather(b"\n".join(lines) + b"\n")
    assert [body for batch in batches for body in batch.bodies] == lines
    assert [b.first_line for b in batches[1:]] == [b.last_line + 1 for b in batches[:-1]]
    for batch in batches:
        assert len(batch.bodies) <= 100
        assert len(batch.bodies) == 1 or batch.size + ENTRY_HEADER_SIZE * len(batch.bodies) <= 4096


async def test_a_line_greater_than_a_batch_goes_alone() -> None:
    batches = await gather(b"a\n" + b"x" * 5000 + b"\nb\n")
    assert [batch.bodies for batch in batches] == [[b"a"], [b"x" * 5000], [b"b"]]


async def test_empty_lines_count_their_overhead() -> None:
    batches = await gather(b"\n" * 1000, batch_bytes=ENTRY_HEADER_SIZE * 10, batch_entries=10_000)
    assert {len(batch.bodies) for batch in batches} == {10}


async def test_a_line_over_the_limit_is_named_after_the_lines_before_it() -> None:
    source = LineBatches(
        io.BytesIO(b"a\nb\n" + b"x" * 20 + b"\nc\n"), batch_bytes=100, batch_entries=10, max_line_bytes=10
    )
    assert [b.bodies async for b in source] == [[b"a", b"b"]]
    assert source.splitter.too_long == 3


async def test_a_slow_pipe_is_not_waited_for() -> None:
    """The first line comes out while the pipe stays open."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        batches = LineBatches(pipe, batch_bytes=4096, batch_entries=100, max_line_bytes=100)
        stream = aiter(batches)
        os.write(write_end, b"one\ntw")
        assert (await anext(stream)).bodies == [b"one"]
        os.write(write_end, b"o")
        os.close(write_end)
        assert [b.bodies async for b in stream] == [[b"two"]]


class Broken(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError("the disk is gone")


async def test_a_read_error_comes_out() -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        async for _ in LineBatches(Broken(), batch_bytes=10, batch_entries=10, max_line_bytes=10):
            raise AssertionError("there is nothing to read")


def taking_turns(later: Callable[..., Future[None]]) -> Callable[..., Future[None]]:
    """The real function for the first chunk, and then `later`."""
    real, calls = asyncio.run_coroutine_threadsafe, count()
    return lambda coroutine, loop: (later if next(calls) else real)(coroutine, loop)


def reader() -> threading.Thread:
    return next(thread for thread in threading.enumerate() if thread.name == "read-lines")


def test_an_ended_loop_ends_the_reader_that_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    async def main() -> threading.Thread:
        lines = LineBatches(Endless(), batch_bytes=10, batch_entries=1, max_line_bytes=10)
        await anext(aiter(lines))
        await until(lambda: len(asyncio.all_tasks()) > 1)  # the reader's put into the full queue
        return reader()

    asyncio.run(main()).join()
    assert not raised


def test_a_loop_that_ends_before_it_takes_a_chunk_ends_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its callback is never run, and the future of the chunk never done."""
    monkeypatch.setattr(line_source, "_CHECK_S", 0.01)

    async def main() -> threading.Thread:
        lines = LineBatches(Endless(), batch_bytes=10, batch_entries=1, max_line_bytes=10)
        await anext(aiter(lines))
        return reader()

    def never_run(coroutine: Coroutine[Any, Any, None], loop: object) -> Future[None]:
        return Future()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", taking_turns(never_run))
    asyncio.run(main()).join()


@pytest.mark.filterwarnings("error:coroutine:RuntimeWarning")
def test_an_ended_loop_ends_the_reader_that_waits_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    unraisable: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    gc.collect()  # what tests before this one have left
    unraisable.clear()
    read_end, write_end = os.pipe()

    async def main(pipe: io.FileIO) -> threading.Thread:
        lines = aiter(LineBatches(pipe, batch_bytes=10, batch_entries=1, max_line_bytes=10))
        os.write(write_end, b"a\n")
        await anext(lines)
        return reader()

    with io.FileIO(read_end) as pipe:
        thread = asyncio.run(main(pipe))
        os.write(write_end, b"b\n")
        thread.join()
    os.close(write_end)
    gc.collect()
    assert not raised
    assert not [one for one in unraisable if "never awaited" in str(one.exc_value)]


class Endless(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        return b"a\n"
