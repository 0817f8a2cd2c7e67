"""Load on brokers by released clients of RocketMQ 5. Whoever only watches uses our own client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from random import Random

from broker_adapter.api import GroupConfig
from broker_adapter.client import Admin, PullConsumer
from broker_adapter.errors import BrokerError
from chaos.trace.operations import Process
from chaos.trace.schema import Ev
from chaos.workloads.auditor import Auditor, NameServers
from chaos.workloads.broker import READERS, FinalReader, make_topics
from chaos.workloads.clients import OPTIONS, queue_of
from chaos.workloads.pacing import Pace
from chaos.workloads.released.consumers import GROUPS, GroupPlan, ReleasedGroup
from chaos.workloads.released.installed import Kind
from chaos.workloads.released.process import ClientProcess
from chaos.workloads.released.producers import ReleasedProducer
from chaos.workloads.released.pushed import PUSH_HELD_MS, PushMember
from chaos.workloads.released.topics import Topics
from chaos.workloads.released.transactions import Transactions
from chaos.workloads.spec import DrainTimeout, Setting

_PAUSE_S = 0.2
_AT_ONCE = 4
#: For delayed and half messages to end when nobody sends any more.
_HELD_S = 40.0
FOLDER = "clients"
#: Of the brokers: clients that wait for messages do not wait long; what they do not acknowledge comes again,
#: also from a push consumer that is no more, and transactions that nobody ends are asked about.
BROKER_SETTINGS = {
    "rocketmq_v2": {"min_polling_ms": 200, "max_polling_ms": 4_000, "min_invisible_ms": 1_000},
    "delivery": {
        "invisible_ms": 2 * PUSH_HELD_MS + 2_000,
        "heard_ms": 10_000,
        "check_first_ms": 2_000,
        "check_again_ms": 2_000,
        "max_checks": 10,
    },
}
PUSH_GROUPS = (
    GroupPlan("pushed", "shared", is_push=True),
    GroupPlan("pushed-in-order", "fifo", is_push=True),
)


class ClientsWorkload:
    """Implements `Workload`. `addresses`: of the nodes. `kinds`: the clients, which are
    taken in turn. `folder`: for what they write. `held_messages`: how many delayed and half messages the
    master has; None: there is none that says."""

    def __init__(
        self,
        setting: Setting,
        names: NameServers,
        addresses: Sequence[str],
        kinds: Sequence[Kind],
        folder: Path,
        held_messages: Callable[[], Awaitable[int | None]],
    ) -> None:
        self._setting = setting
        self._spec = setting.spec
        self._names = names
        self._all_addresses, self._each_address = ";".join(addresses), cycle(addresses)
        self._kinds = cycle(kinds)
        self._folder = folder
        self._held_messages = held_messages
        self._clients: list[ClientProcess] = []
        self._topics = Topics.of(self._spec.topics, self._spec.queues, push=self._spec.push)
        plans = (*GROUPS, *(PUSH_GROUPS if self._spec.push else ())) if self._spec.consumers else ()
        self._groups = [
            ReleasedGroup(plan, setting, self._topics, self._new_client, PushMember if plan.is_push else None)
            for plan in plans
        ]
        self._transactions = Transactions(setting.tally)
        self._producers: list[ReleasedProducer] = []

    async def prepare(self) -> None:
        """Make the topics and groups, and start the producers. BrokerError, ClientError or ClientDied if that
        does not succeed."""
        await make_topics(self._names, dict(self._topics.queues()))
        async with Admin(self._names.remoting, options=OPTIONS) as admin:
            for group in self._groups:
                is_orderly = group.plan.mode == "fifo"
                await admin.put_group(GroupConfig(group.plan.name, consume_orderly=is_orderly))
        for number in range(self._spec.clients):
            name, rng = f"p{number}", Random(self._setting.rng.random())
            client = self._new_client(name)
            about = (client, name, rng, self._topics, self._transactions)
            self._producers.append(ReleasedProducer(self._setting, *about))
        async with asyncio.TaskGroup() as tasks:
            for producer in self._producers:
                tasks.create_task(producer.start())

    def logs(self) -> Iterable[Mapping[str, str | int]]:
        return [{"topic": topic, "q": q} for topic, queues in self._topics.queues() for q in range(queues)]

    async def write(self, stop: asyncio.Event) -> None:
        """And until no message is delayed or half any more: what is stored later nobody would read."""
        async with asyncio.TaskGroup() as tasks:
            queues = self._topics.fifo_queues
            tasks.create_task(Auditor(self._setting, self._names, [self._topics.fifo], queues).run(stop))
            asked = self._producers if self._spec.transactional else ()
            answering = [tasks.create_task(producer.answer_checks()) for producer in asked]
            sending = []
            for producer in self._producers:
                rng = Random(self._setting.rng.random())
                rate = self._spec.rate / self._spec.clients
                pace = Pace(self._spec.at_once or _AT_ONCE, rate, rng, self._setting.tally)
                sending.append(tasks.create_task(pace.run(stop, producer.worker)))
            await asyncio.gather(*sending)
            if self._spec.delayed or self._spec.transactional:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HELD_S):
                        while await self._held_messages() != 0:
                            await asyncio.sleep(_PAUSE_S)
            for task in answering:
                task.cancel()

    async def read(self, stop: asyncio.Event, drained: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for group in self._groups:
                for number in range(self._spec.consumers):
                    tasks.create_task(group.live(number, stop, drained))

    async def drain(self, within_s: float) -> None:
        writer, numbers = self._setting.client("drain")
        writer.write(Ev.META, {"e": "drain_begin"})
        reader = FinalReader(self._setting, writer, Process(writer, numbers))
        behind = "the final reader did not come to the end"
        try:
            names = self._names.remoting
            async with (
                asyncio.timeout(within_s),
                PullConsumer(READERS, names, options=OPTIONS) as consumer,
                Admin(names, options=OPTIONS) as admin,
            ):
                for topic, queues in self._topics.queues():
                    for queue in range(queues):
                        await reader.read(consumer, topic, queue)
                while behind := await self._behind(admin, reader):
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            raise DrainTimeout(behind) from None
        writer.write(Ev.META, {"e": "drain_end"})

    async def close(self) -> None:
        for client in self._clients:
            client.kill()
        await asyncio.gather(*(client.wait() for client in self._clients))

    async def _behind(self, admin: Admin, reader: FinalReader) -> str:
        """Which group has messages that are not done, in words; empty if none has. The broker says so: what
        it passed over and should not have, the checks find."""
        for group in self._groups:
            for (topic, queue), end in reader.ends_of(group.topics).items():
                try:
                    done = await admin.committed(group.plan.name, queue_of(topic, queue)) or 0
                except BrokerError as error:
                    return f"group {group.plan.name}: {error}"
                if done < end:
                    return f"group {group.plan.name} is at {done} of {topic}/{queue}, which ends at {end}"
        return ""

    def _new_client(self, name: str) -> ClientProcess:
        kind = next(self._kinds)
        address = next(self._each_address) if kind.takes_one_address else self._all_addresses
        folder, command = self._folder / f"{name}-{kind.name}", [*kind.command, address]
        client = ClientProcess(name, folder, command, kind.environment)
        self._clients.append(client)
        return client
