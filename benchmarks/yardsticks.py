"""Measure the machine's primitives in the same run: fdatasync, gRPC calls and streams, crc32.

Rates in entries per second depend on the machine; ratios to these yardsticks can be compared between
machines.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import grpc.aio

from benchmarks.common import (
    BODY,
    BODY_SIZE,
    BenchError,
    Load,
    Operation,
    Row,
    child,
    interleaved,
    rounds_for,
    scratch,
)
from benchmarks.echo_server import SERVICE
from dledger.infra.transport.channels import open_channel

NAME = "yardsticks"
UNARY_IN_FLIGHT = 64
_RECYCLED_BYTES = 16 << 20
_STREAM_BYTES = 1 << 20


@contextmanager
def fdatasync_file(folder: Path) -> Iterator[Operation]:
    """Provide an operation that writes and syncs one body like the log does, into space written before."""
    path = folder / "fdatasync"
    path.write_bytes(bytes(_RECYCLED_BYTES))
    descriptor = os.open(path, os.O_WRONLY)
    os.fsync(descriptor)
    at = 0

    async def write() -> int:
        nonlocal at
        os.pwrite(descriptor, BODY, at)
        os.fdatasync(descriptor)
        at = (at + BODY_SIZE) % _RECYCLED_BYTES
        return 1

    try:
        yield write
    finally:
        os.close(descriptor)


@asynccontextmanager
async def echo() -> AsyncIterator[grpc.aio.Channel]:
    """Start an echo server process; yield a channel to it."""
    with child([sys.executable, "-m", "benchmarks.echo_server"], stdout=PIPE) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise BenchError("the echo server of the yardsticks did not start")
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield channel


def unary_echo(channel: grpc.aio.Channel) -> Operation:
    call: Any = channel.unary_unary(f"/{SERVICE}/Unary")

    async def echo_once() -> int:
        await call(BODY)
        return 1

    return echo_once


def ping_pong(channel: grpc.aio.Channel) -> Operation:
    stream: Any = None

    async def exchange() -> int:
        nonlocal stream
        if stream is None:
            method: Any = channel.stream_stream(f"/{SERVICE}/Stream")
            stream = method()
        await stream.write(BODY)
        await stream.read()
        return 1

    return exchange


async def one_way(channel: grpc.aio.Channel, seconds: float) -> float:
    """Stream messages of 1 MiB to another process, which only counts them. Return MB/s."""
    method: Any = channel.stream_unary(f"/{SERVICE}/Sink")
    sink = method()
    message, began = bytes(_STREAM_BYTES), time.perf_counter()
    while time.perf_counter() - began < seconds:
        await sink.write(message)
    await sink.done_writing()
    taken = int(await sink)
    return taken / (time.perf_counter() - began) / 1e6


async def _crc32() -> int:
    """Compute 256 checksums per call, so that the cost of the loop is negligible."""
    for _ in range(256):
        zlib.crc32(BODY)
    return 256


async def measure(seconds: float) -> dict[str, Load]:
    """Measure all yardsticks, interleaved."""
    with scratch("yardsticks") as folder, fdatasync_file(folder) as fdatasync:
        async with echo() as channel:
            operations = {
                "fdatasync": (fdatasync, 1),
                "unary": (unary_echo(channel), 1),
                "unary_64": (unary_echo(channel), UNARY_IN_FLIGHT),
                "stream": (ping_pong(channel), 1),
                "crc32": (_crc32, 1),
            }
            loads = await interleaved(operations, seconds, rounds_for(seconds))
    return {name: Load.joined(rounds) for name, rounds in loads.items()}


async def run(seconds: float) -> AsyncGenerator[Row]:
    loads = await measure(seconds)
    yield _latency("pwrite + fdatasync of 1 KiB", loads["fdatasync"])
    yield _latency("stream ping-pong of 1 KiB", loads["stream"])
    yield _latency("unary echo of 1 KiB", loads["unary"])
    unary = loads["unary_64"]
    yield Row(
        "unary echo, 64 in flight",
        f"{unary.rate:,.0f}/s",
        detail=f"p50 {unary.latency_ms(0.5):.1f} ms",
        values={"rate": unary.rate, "p50_ms": unary.latency_ms(0.5)},
    )
    crc_us = 1e6 / loads["crc32"].rate
    yield Row(
        "crc32 of 1 KiB by the system's zlib",
        f"{crc_us:.2f} µs",
        detail=f"{BODY_SIZE / crc_us / 1e3:.1f} GB/s",
        values={"us": crc_us},
    )


def _latency(figure: str, load: Load) -> Row:
    p50, p99 = load.latency_ms(0.5), load.latency_ms(0.99)
    return Row(
        figure, f"p50 {1000 * p50:.0f} µs", detail=f"p99 {1000 * p99:.0f} µs",
        values={"p50_ms": p50, "p99_ms": p99},
    )  # fmt: skip
