"""The process of one hostile client: `Orders` on standard input, counts on standard output.

It lives until standard input ends, which it does when the harness dies, too; then it kills its process group,
so that nothing that it has started stays behind.
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
from chaos.hostile.orders import Orders, counts_to_line
from chaos.hostile.world import World

_REPORT_S = 0.2
#: Behind servers and good clients: hostile ones of this world have machines of their own.
_NICE = 10

_RUNS: dict[str, Callable[[World], Awaitable[None]]] = {
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
    world = World(Orders.of_line(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    asyncio.run(_run(world))


def _end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


async def _run(world: World) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_report(world))
        tasks.create_task(_work(world))


async def _work(world: World) -> None:
    await _RUNS[world.orders.kind](world)


async def _report(world: World) -> None:
    while True:
        os.write(sys.stdout.fileno(), counts_to_line(world.counts))
        await asyncio.sleep(_REPORT_S)


if __name__ == "__main__":
    main()
