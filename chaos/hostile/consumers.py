"""Hostile consumers and producers, whose calls are valid but overload the servers."""

from __future__ import annotations

import asyncio
import multiprocessing
from itertools import count
from multiprocessing.connection import Connection

from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from chaos.hostile.callers import HostileCaller, filtered, receive_request, resource, send_request
from chaos.hostile.orders import PREFIX, HostileOrders
from chaos.hostile.world import HostileWorld

#: Numbers of topics of telemetry streams: close to the 64 KiB limit of settings, and sometimes above it.
_SETTINGS_TOPICS, _TOO_MANY_TOPICS, _TOPIC_LENGTH = 430, 1_000, 127
_REPEATS = 4
#: Timeout in seconds for a client to receive a message, after which it is killed.
_DEATH_S = 10.0


def costly_expressions() -> list[str]:
    """Return SQL92 expressions that never match and cost almost as much as the limits on words and requests
    allow."""
    chained = " AND ".join(["5 NOT BETWEEN 1 AND 9 OR KEYS <> TAGS"] * 370)
    nested = "NOT (" * 1_300 + "TAGS = 'never'" + ")" * 1_300
    lists = " OR ".join(f"TAGS IN ({', '.join(repr(f'z{n}') for n in range(30))})" for _ in range(120))
    texts = " OR ".join(["KEYS CONTAINS 'zzzz'"] * 1_000)
    return [f"({chained}) AND TAGS = 'never'", nested, lists, texts]


async def expensive_filters(world: HostileWorld) -> None:
    """Receive and pull with the most expensive expressions that match nothing."""
    expressions = costly_expressions()

    async def once(number: int) -> None:
        rng, orders = world.rng, world.orders
        address = orders.addresses[number % len(orders.addresses)]
        filter_ = filtered(rng.choice(expressions))
        async with HostileCaller(world, f"filters-{number}", address) as caller:
            while True:
                await world.pace()
                topic = rng.choice(orders.topics)
                if rng.random() < 0.5:
                    group = f"{PREFIX}filters-{number}"
                    await caller.stream("ReceiveMessage", receive_request(group, topic, filter_=filter_))
                else:
                    queue = pb.MessageQueue(topic=resource(topic), id=0)
                    pull = calls.PullMessageRequest(
                        group=resource(f"{PREFIX}filters-pull-{number}"),
                        message_queue=queue,
                        batch_size=32,
                        filter_expression=filter_,
                    )
                    pull.long_polling_timeout.seconds = 1
                    await caller.stream("PullMessage", pull)

    await world.repeat(once)


async def telemetry_floods(world: HostileWorld) -> None:
    """Open telemetry streams with settings of maximum size and hold them open."""
    every = [resource(f"{PREFIX}{n}-".ljust(_TOPIC_LENGTH, "x")) for n in range(_TOO_MANY_TOPICS)]

    async def once(number: int) -> None:
        topics = every[: _TOO_MANY_TOPICS if number % 10 == 9 else _SETTINGS_TOPICS]
        settings = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=pb.Publishing(topics=topics))
        if number % 2:
            entries = [pb.SubscriptionEntry(topic=topic, expression=filtered("a=1")) for topic in topics]
            subscription = pb.Subscription(group=resource(f"{PREFIX}told"), subscriptions=entries)
            settings = pb.Settings(client_type=pb.ClientType.SIMPLE_CONSUMER, subscription=subscription)
        address = world.orders.addresses[number % len(world.orders.addresses)]
        async with HostileCaller(world, f"telemetry-{number}", address) as caller:
            await caller.talk(settings)

    await world.repeat(once)


async def topic_floods(world: HostileWorld) -> None:
    """Query and send to topics that are never used again."""
    numbers = count()

    async def once(number: int) -> None:
        address = world.orders.addresses[number % len(world.orders.addresses)]
        async with HostileCaller(world, f"topics-{number}", address) as caller:
            while True:
                await world.pace()
                topic = f"{PREFIX}topic-{next(numbers)}"
                await caller.call("QueryRoute", calls.QueryRouteRequest(topic=resource(topic)))
                world.count("routes")
                answer = await caller.call("SendMessage", send_request(topic, topic, b"x"))
                world.count("created", answer.status.code == pb.Code.OK)

    await world.repeat(once)


async def repeated_calls(world: HostileWorld) -> None:
    """Repeat sends, receives and acks at two nodes, with the same attempt id, without an attempt id, and for
    acknowledged messages."""
    topic = f"{PREFIX}repeats"
    numbers = count()

    async def once(number: int) -> None:
        addresses = world.orders.addresses
        callers = [HostileCaller(world, f"repeats-{number}", address) for address in addresses]
        async with callers[0], callers[1 % len(callers)]:
            await _repeat(world, callers[:2], topic, f"{number}-{next(numbers)}")

    await world.repeat(once)


async def _repeat(world: HostileWorld, callers: list[HostileCaller], topic: str, name: str) -> None:
    offsets = set()
    for turn in range(_REPEATS):
        caller = callers[turn % len(callers)]
        answer = await caller.call("SendMessage", send_request(topic, name, name.encode()))
        if answer.status.code == pb.Code.OK:
            world.count("sent")
            offsets.add(answer.entries[0].offset)
    world.count("stored_again", max(0, len(offsets) - 1))
    group = f"{PREFIX}repeats-{name[:1]}"
    for attempt in (name, None):
        for turn in range(_REPEATS):
            request = receive_request(group, topic, invisible_s=10, attempt=attempt)
            messages = await callers[turn % len(callers)].stream("ReceiveMessage", request)
            world.count("received", len(messages))
            for message in messages[:2]:
                await _ack_twice(callers, group, topic, message)
                world.count("repeated")


async def _ack_twice(callers: list[HostileCaller], group: str, topic: str, message: pb.Message) -> None:
    properties = message.system_properties
    entry = calls.AckMessageEntry(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
    request = calls.AckMessageRequest(group=resource(group), topic=resource(topic), entries=[entry, entry])
    for caller in callers:
        await caller.call("AckMessage", request)


async def abandoned_groups(world: HostileWorld) -> None:
    """Create groups that receive as much as possible and acknowledge nothing."""
    numbers = count()

    async def once(number: int) -> None:
        group = f"{PREFIX}abandoned-{next(numbers)}"
        address = world.orders.addresses[number % len(world.orders.addresses)]
        world.count("groups")
        async with HostileCaller(world, f"abandoned-{number}", address) as caller:
            empty = 0
            while empty < 3:
                await world.pace()
                topic = world.rng.choice(world.orders.topics)
                messages = await caller.stream("ReceiveMessage", receive_request(group, topic))
                world.count("held", len(messages))
                empty = 0 if messages else empty + 1
            world.count("full")

    await world.repeat(once)


async def dying_clients(world: HostileWorld) -> None:
    """Kill clients that hold messages before they acknowledge them."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])

    def live_and_die(number: int) -> int:
        """Run and kill one client. Returns the number of messages that it held, or -1 on timeout."""
        ours, theirs = processes.Pipe(duplex=False)
        victim = processes.Process(target=_hold, args=(world.orders, number, theirs), daemon=True)
        victim.start()
        theirs.close()
        try:
            return int(ours.recv()) if ours.poll(_DEATH_S) else -1
        except EOFError:
            return -1
        finally:
            victim.kill()
            victim.join()
            ours.close()

    async def once(number: int) -> None:
        held = await asyncio.to_thread(live_and_die, number)
        if held > 0:
            world.count("killed")
            world.count("held", held)
        else:
            world.count("empty")

    await world.repeat(once)


def _hold(orders: HostileOrders, number: int, report: Connection) -> None:
    """Run a client that holds messages until it is killed."""

    async def live() -> None:
        world = HostileWorld(orders)
        address = orders.addresses[number % len(orders.addresses)]
        async with HostileCaller(world, f"dying-{number}", address) as caller:
            while True:
                for topic in orders.topics:
                    request = receive_request(f"{PREFIX}dying", topic, invisible_s=10)
                    if found := await caller.stream("ReceiveMessage", request):
                        report.send(len(found))
                        await asyncio.Event().wait()

    asyncio.run(live())
