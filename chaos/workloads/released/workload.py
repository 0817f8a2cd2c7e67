"""Broker workload by released RocketMQ 5 clients. Observers such as the auditor use the project's own
client."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from time import time_ns
from typing import Any

from broker_adapter.client import Admin, PullConsumer
from broker_adapter.errors import BrokerError
from chaos.trace.operations import Process
from chaos.trace.outcomes import ClientError
from chaos.trace.schema import Ev
from chaos.workloads.auditor import Auditor
from chaos.workloads.broker import READERS, FinalReader, make_topics
from chaos.workloads.clients import OPTIONS, queue_of
from chaos.workloads.messages import Bodies, digest, number_of
from chaos.workloads.pacing import Pacer
from chaos.workloads.released.consumers import (
    GROUPS,
    MOST,
    WAIT_S,
    HeldMessage,
    ReleasedGroup,
    ReleasedGroupPlan,
    ReleasedMember,
)
from chaos.workloads.released.installed import ClientKind
from chaos.workloads.released.process import ClientProcess
from chaos.workloads.released.topics import PredictableTopics
from chaos.workloads.senders import TAGS
from chaos.workloads.spec import DrainTimeout, Setting
from chaos.workloads.tally import LoadTally

# Push consumers as members: the client delivers each message and waits for its outcome.
#
# The client acknowledges and releases messages automatically, and hides the server's responses. The driver
# reports the response to each ack, so that the trace records whether the ack took effect.

#: Time in ms during which messages of a live push consumer are invisible to others. It is less than half of
#: the servers' `delivery.invisible_ms`: servers renew the invisible time when less than half is left, except
#: while there is no master.
PUSH_HELD_MS = 3_000


class PushMember(ReleasedMember):
    """One push consumer, from its start until it leaves or crashes."""

    _held_ms = PUSH_HELD_MS

    async def leave(self) -> bool:
        """Close the client, which first finishes its messages."""
        closing = asyncio.create_task(self._close())
        try:
            while not closing.done():
                await self._settle_all(await self._receive())
            return await closing
        except ClientError:
            return False
        finally:
            closing.cancel()
            self._left()

    async def _start(self, **subscription: Any) -> None:
        await self._client.request("push", **subscription)

    async def _fetch(self) -> dict[str, Any]:
        return await self._client.request("take", most=MOST, wait_s=WAIT_S)

    async def _settle(self, one: HeldMessage) -> None:
        await self._request("settle", one, "ack", is_done=True)

    async def _leave_alone(self, one: HeldMessage) -> None:
        """Fail the message. The client then releases it or, in a FIFO group, keeps it and retries."""
        self._done(one, "retry")
        await self._client.request("settle", handle=one.handle, is_done=False)

    async def _settle_all(self, received: list[HeldMessage]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in received:
                tasks.create_task(self._ack(one))


_PAUSE_S = 0.2
_AT_ONCE = 4
#: Limit in seconds for delayed and half messages to end after the last send.
_HELD_S = 40.0
FOLDER = "clients"
#: Broker settings. Polls are short. Unacknowledged messages, even of a dead push consumer, are
#: redelivered after a short time, and transactions without an outcome are checked after a short time.
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
    ReleasedGroupPlan("pushed", "shared", is_push=True),
    ReleasedGroupPlan("pushed-in-order", "fifo", is_push=True),
)


class ClientsWorkload:
    """Implements `Workload`. `addresses`: the nodes. `kinds`: the client implementations, used in rotation.
    `folder`: for their files. `held_messages` returns the master's number of delayed and half messages; None
    if no master answers."""

    def __init__(
        self,
        setting: Setting,
        names: Sequence[str],
        addresses: Sequence[str],
        kinds: Sequence[ClientKind],
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
        self._topics = PredictableTopics.of(self._spec.topics, self._spec.queues, push=self._spec.push)
        plans = (*GROUPS, *(PUSH_GROUPS if self._spec.push else ())) if self._spec.consumers else ()
        self._groups = [
            ReleasedGroup(plan, setting, self._topics, self._new_client, PushMember if plan.is_push else None)
            for plan in plans
        ]
        self._transactions = TransactionOutcomes(setting.tally)
        self._producers: list[ReleasedProducer] = []

    async def prepare(self) -> None:
        """Create the topics and groups, and start the producers. Raises BrokerError, ClientError or
        ClientDied."""
        await make_topics(self._names, dict(self._topics.queues()))
        async with Admin(self._names, options=OPTIONS) as admin:
            for group in self._groups:
                is_orderly = group.plan.mode == "fifo"
                await admin.create_group(group.plan.name, consume_orderly=is_orderly)
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
        """Run the producers until `stop`, then wait until no delayed or half message is left: the final read
        would miss messages that are delivered later."""
        async with asyncio.TaskGroup() as tasks:
            queues = self._topics.fifo_queues
            tasks.create_task(Auditor(self._setting, self._names, [self._topics.fifo], queues).run(stop))
            transactional = self._producers if self._spec.transactional else ()
            answering = [tasks.create_task(producer.answer_checks()) for producer in transactional]
            sending = []
            for producer in self._producers:
                rng = Random(self._setting.rng.random())
                rate = self._spec.rate / self._spec.clients
                pace = Pacer(self._spec.at_once or _AT_ONCE, rate, rng, self._setting.tally)
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
        behind = "the final reader did not reach the end"
        try:
            names = self._names
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
        """Describe the first group with unfinished messages. Returns an empty text if there is none. This
        relies on the progress that the broker reports; the checker finds messages that the broker skipped."""
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


# Producers that are released clients: single messages, partly FIFO, delayed, or in a transaction.
#
# The client repeats a send by itself, up to three attempts, with one message id, and the broker stores an id
# once. A message stored twice therefore violates the guarantee, whichever attempts stored it.

#: Share of FIFO messages among those neither delayed nor in a transaction, and share of these that go to
#: `lanes` if it exists.
_IN_ORDER = 0.4
_IN_LANES = 0.4
_MESSAGE_GROUPS = tuple(f"account-{n}" for n in range(8))
#: Share of delayed messages that are recalled, and the range of delays in whole seconds, the unit of clients.
_RECALLED = 0.2
_DELAY_S = (1, 3)
_CHECKS_WAIT_S = 1


class ReleasedProducer:
    """One client, shared by several workers. `wall_ns`: the clock that delayed messages are due by."""

    def __init__(
        self,
        setting: Setting,
        client: ClientProcess,
        name: str,
        rng: Random,
        topics: PredictableTopics,
        transactions: TransactionOutcomes,
        wall_ns: Callable[[], int] = time_ns,
    ) -> None:
        self._tally = setting.tally
        self._spec = setting.spec
        self._client = client
        self._writer, self._numbers = setting.client(name)
        self._rng = rng
        self._topics = topics
        self._transactions = transactions
        self._wall_ns = wall_ns
        self._bodies = Bodies(rng, setting.spec.max_bytes, setting.payloads())

    async def start(self) -> None:
        await self._client.start()
        await self._client.request("producer", topics=self._topics.names)

    def worker(self) -> Callable[[], Awaitable[bool]]:
        """Return a function that sends one message and returns True if it was acknowledged."""
        process = self._process()
        return lambda: self._send(process)

    async def answer_checks(self) -> None:
        """Answer the broker's transaction checks, which may concern transactions of any producer. Never
        returns."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                checks = await self._client.request("checks", wait_s=_CHECKS_WAIT_S)
                for check in checks["messages"]:
                    half = self._transactions[number_of(b64decode(check["body"]))]
                    tasks.create_task(self._end(half, "decide", check["handle"], self._writer.now()))

    async def _send(self, process: Process) -> bool:
        draw = self._rng.random() - self._spec.delayed
        if draw < 0:
            return await self._send_delayed(process)
        if draw < self._spec.transactional:
            return await self._transact(process)
        topic, queue, message_group = self._place()
        message, body = self._message(topic, queue)
        began = self._writer.now()
        process.invoke("send", **message)
        about = _client_fields(message, body) | {"message_group": message_group}
        receipt = await self._request(process, "send", about)
        if receipt is None:
            return False
        process.ok(qoff=receipt["offset"], topic=topic, q=queue)
        self._tally.ok(began, self._writer.now())
        return True

    async def _send_delayed(self, process: Process) -> bool:
        """Send a delayed message, whose final position is unknown. A share of these messages is recalled
        immediately."""
        message, body = self._message(self._rng.choice(self._topics.normal), 0)
        where = {"topic": message["topic"], "q": 0}
        now_ms = self._wall_ns() // 1_000_000 + 1
        due_ms = (now_ms // 1000 + 1 + self._rng.randint(*_DELAY_S)) * 1000
        began = self._writer.now()
        process.invoke("send", delay_ms=due_ms - now_ms, **message)
        receipt = await self._request(process, "send", _client_fields(message, body) | {"due_ms": due_ms})
        if receipt is None:
            return False
        process.ok(**where)
        self._tally.ok(began, self._writer.now())
        if self._rng.random() < _RECALLED:
            process.invoke("recall", mid=message["mid"], **where)
            about = {"topic": message["topic"], "recall_handle": receipt["recall_handle"]}
            if await self._request(process, "recall", about) is not None:
                process.ok(**where)
        return True

    async def _transact(self, process: Process) -> bool:
        message, body = self._message(self._rng.choice(self._topics.normal), 0)
        half = self._transactions.begin(message, self._process, self._rng)
        began = self._writer.now()
        process.invoke("txn_begin", **message)
        begun = await self._request(process, "half", _client_fields(message, body))
        if begun is None:
            return False
        process.ok(topic=message["topic"], q=message["q"])
        handle = begun["handle"]
        if half.is_orphan:
            await self._client.request("forget", handle=handle)
            return True
        return await self._end(half, "end", handle, began)

    async def _end(self, half: HalfTransaction, do: str, handle: int, began: int) -> bool:
        request = self._client.request
        return await self._transactions.end(
            half, lambda: request(do, handle=handle, commit=half.is_commit), began
        )

    async def _request(self, process: Process, do: str, about: dict[str, Any]) -> dict[str, Any] | None:
        """Return the client's answer, or None if it raised an error, which is recorded and counted."""
        try:
            return await self._client.request(do, **about)
        except ClientError as error:
            self._tally.not_ok(process.failed(error), f"{error.kind} {error.code}")
            return None

    def _message(self, topic: str, queue: int) -> tuple[dict[str, Any], str]:
        """Create a message: its trace fields, and its body in Base64 as clients take it."""
        mid = self._numbers.message()
        body = self._bodies.make(mid)
        about = {"tag": self._rng.choice(TAGS), "key": f"key-{mid}", "topic": topic, "q": queue}
        return {"mid": mid, "digest": digest(body), **about}, b64encode(body).decode()

    def _process(self) -> Process:
        return Process(self._writer, self._numbers)

    def _place(self) -> tuple[str, int, str]:
        """Choose a topic, its queue and a message group, which may be empty. The message group determines the
        queue, so a message found in another queue is a violation."""
        rng, topics = self._rng, self._topics
        if rng.random() >= _IN_ORDER:
            return rng.choice(topics.normal), 0, ""
        if topics.lanes and rng.random() < _IN_LANES:
            queue = rng.randrange(topics.fifo_queues)
            return topics.lanes, queue, topics.lane(queue)
        group = rng.choice(_MESSAGE_GROUPS)
        return topics.fifo, topics.queue_of(group), group


def _client_fields(message: dict[str, Any], body: str) -> dict[str, Any]:
    """Return the fields that a client needs to send a message."""
    return {"body": body, **{name: message[name] for name in ("topic", "tag", "key")}}


# Transactions: the half messages of all producers, and the intended outcome of each.
#
# A transaction ends in the same way whichever client ends it: the one that started it or one that the broker
# checks. Only the first end is recorded: an end with unknown outcome may take effect at any later time, also
# because a check got the same answer again.

#: How transactions end: by their client (committed, rolled back), or else by a check.
_COMMITTED, _ROLLED_BACK = 0.5, 0.75
#: Share of committed transactions among those ended by a check.
_COMMITTED_LATE = 0.5


@dataclass(slots=True)
class HalfTransaction:
    """One transaction. `message`: its trace fields. `process`: creates another process of the producer.
    `is_orphan`: its client never ends it."""

    message: dict[str, Any]
    process: Callable[[], Process]
    is_commit: bool
    is_orphan: bool
    is_ended: bool = False


@dataclass(slots=True)
class TransactionOutcomes:
    """Transactions of all producers of a run, by message number: the broker may check any producer."""

    tally: LoadTally
    _halves: dict[int, HalfTransaction] = field(default_factory=dict)

    def begin(self, message: dict[str, Any], process: Callable[[], Process], rng: Random) -> HalfTransaction:
        """Register a transaction and draw its outcome."""
        draw = rng.random()
        is_orphan = draw >= _ROLLED_BACK
        is_commit = rng.random() < _COMMITTED_LATE if is_orphan else draw < _COMMITTED
        half = self._halves[message["mid"]] = HalfTransaction(message, process, is_commit, is_orphan)
        return half

    def __getitem__(self, mid: int) -> HalfTransaction:
        return self._halves[mid]

    async def end(self, half: HalfTransaction, act: Callable[[], Awaitable[object]], began: int) -> bool:
        """Run `act`, with which a client ends the transaction. Return True if the outcome is certain.

        `began`: monotonic start time in ns."""
        if half.is_ended:
            return await _is_answered(act)
        half.is_ended = True
        process = half.process()
        where = {name: half.message[name] for name in ("topic", "q")}
        if half.is_commit:
            process.invoke("txn_commit", **half.message)
        else:
            process.invoke("txn_rollback", mid=half.message["mid"], **where)
        try:
            await act()
        except ClientError as error:
            self.tally.not_ok(process.failed(error), f"{error.kind} {error.code}")
            return False
        process.ok(**where)
        if half.is_commit:
            self.tally.ok(began, process.now())
        return True


async def _is_answered(act: Callable[[], Awaitable[object]]) -> bool:
    try:
        await act()
    except ClientError:
        return False
    return True
