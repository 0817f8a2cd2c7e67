"""The service for clients of RocketMQ 5 in a process of its own, on a delivery of memory.

    python -m tests.clients.memory_server [--nodes N] [--orderly GROUP]... [--max-retries N]

To clients it looks like a cluster of N nodes; it prints their addresses, and serves until its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from broker_adapter.api import GroupConfig
from broker_adapter.config.rocketmq_v2 import ClientServiceSettings
from dledger.infra.transport.channels import new_server
from tests.broker_adapter.v5.world import World

#: As in production, but for waits that only make tests slow.
SETTINGS = ClientServiceSettings(min_polling_ms=1_000, max_polling_ms=3_000, min_invisible_ms=1_000)


class OrderlyGroup(GroupConfig):
    """A group that consumes in order."""

    consume_orderly = True


async def serve(options: argparse.Namespace) -> None:
    server = new_server()
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(options.nodes)]
    members = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports, 1)}
    world = World(SETTINGS, members)
    server.add_generic_rpc_handlers((world.service.handler,))
    world.delivery.orderly.update(options.orderly)
    for name in options.group:
        world.delivery.groups[name] = GroupConfig(name, retry_max_times=options.max_retries)
    for name in options.orderly:
        world.delivery.groups[name] = OrderlyGroup(name, retry_max_times=options.max_retries)
    await server.start()
    print(*members.values(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    world.service.stop()
    await server.stop(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--orderly", action="append", default=[])
    parser.add_argument("--group", action="append", default=[])
    parser.add_argument("--max-retries", type=int, default=16)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
