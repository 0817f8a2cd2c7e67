"""The process of one hostile client. It reads `HostileOrders` from standard input and writes counts to
standard output.

It runs until standard input ends, which also happens if the harness dies. Then it kills its process group,
which includes all its children.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from chaos.hostile import connections, consumers, forgers, handshakes
from chaos.hostile.orders import HostileOrders, counts_to_line
from chaos.hostile.world import HostileWorld

_REPORT_S = 0.2
#: Lower priority than servers and regular clients, because real hostile clients run on other machines.
_NICE = 10

_RUNS: dict[str, Callable[[HostileWorld], Awaitable[None]]] = {
    run.__name__: run
    for run in (
        connections.connection_floods,
        handshakes.handshake_floods,
        connections.exhausted_descriptors,
        connections.half_requests,
        connections.garbage,
        connections.unread_streams,
        consumers.expensive_filters,
        consumers.telemetry_floods,
        consumers.topic_floods,
        consumers.repeated_calls,
        consumers.abandoned_groups,
        consumers.dying_clients,
        forgers.forged_peers,
        forgers.forged_registrations,
        forgers.registration_floods,
    )
}


def main() -> None:
    os.nice(_NICE)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    world = HostileWorld(HostileOrders.of_line(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    asyncio.run(_run(world))


def _end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


async def _run(world: HostileWorld) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_report(world))
        tasks.create_task(_work(world))


async def _work(world: HostileWorld) -> None:
    await _RUNS[world.orders.kind](world)


async def _report(world: HostileWorld) -> None:
    while True:
        os.write(sys.stdout.fileno(), counts_to_line(world.counts))
        await asyncio.sleep(_REPORT_S)


if __name__ == "__main__":
    main()
