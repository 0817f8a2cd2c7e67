"""Measure 64 concurrent unary Append calls of a client without batching, relative to a unary echo."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from benchmarks import ours, yardsticks
from benchmarks.common import BODY, BenchError, Load, Operation, Row, interleaved, rounds_for, scratch
from dledger.cli.local.cluster_plan import DEFAULT_GROUP
from dledger.infra.transport.channels import open_channel
from dledger.v1 import log_pb2, log_pb2_grpc

LEAST_SHARE_OF_ECHO = 0.45


def unary_append(channel: Any) -> Operation:
    """Return an operation that calls Append without a session, as a minimal client in any language does."""
    call: Any = log_pb2_grpc.LogServiceStub(channel).Append
    request = log_pb2.AppendRequest(group=DEFAULT_GROUP, bodies=[BODY])

    async def append() -> int:
        answer = await call(request)
        if answer.HasField("status"):
            raise BenchError(f"Append failed with {answer.status.code} {answer.status.message}")
        return 1

    return append


async def run(seconds: float) -> AsyncGenerator[Row]:
    with scratch("unary") as folder:
        async with ours.running(folder) as system, yardsticks.echo() as echo:
            leader = system.cluster.plan.node(system.leader_id).address
            async with open_channel(leader) as channel:
                operations = {
                    "append": (unary_append(channel), yardsticks.UNARY_IN_FLIGHT),
                    "echo": (yardsticks.unary_echo(echo), yardsticks.UNARY_IN_FLIGHT),
                }
                rounds = await interleaved(operations, seconds, rounds_for(seconds))
    append, bare = Load.joined(rounds["append"]), Load.joined(rounds["echo"])
    share = append.rate / bare.rate
    yield Row(
        "64 concurrent unary Append",
        f"{append.rate:,.0f}/s",
        f">= {LEAST_SHARE_OF_ECHO} of echo",
        share >= LEAST_SHARE_OF_ECHO,
        f"{share:.2f} of the echo's {bare.rate:,.0f}/s; p50 {append.latency_ms(0.5):.1f} ms",
        {"rate": append.rate, "echo_rate": bare.rate, "share": share},
    )
