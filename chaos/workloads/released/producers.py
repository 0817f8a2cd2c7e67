"""Producers that are released clients: single messages, some of them in the order of message groups, delayed,
or in a transaction.

The client repeats a send automatically, three times in all, under one message id, and the broker stores an id
once: so a message that is stored twice is a broken promise, whichever attempt stored it.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from random import Random
from time import time_ns
from typing import Any

from chaos.trace.operations import Process
from chaos.trace.outcomes import ClientError
from chaos.workloads.messages import Bodies, digest, number_of
from chaos.workloads.released.process import ClientProcess
from chaos.workloads.released.topics import Topics
from chaos.workloads.released.transactions import Half, Transactions
from chaos.workloads.senders import TAGS
from chaos.workloads.spec import Setting

#: Of all messages that are neither delayed nor in a transaction; and of these, to `lanes` if there is one.
_IN_ORDER = 0.4
_IN_LANES = 0.4
_MESSAGE_GROUPS = tuple(f"account-{n}" for n in range(8))
#: Of delayed messages; and after how many seconds they are due, at least: clients name whole ones.
_RECALLED = 0.2
_DELAY_S = (1, 3)
_CHECKS_WAIT_S = 1


class ReleasedProducer:
    """One client, by several workers. `wall_ns`: the clock by which a delayed message is due."""

    def __init__(
        self,
        setting: Setting,
        client: ClientProcess,
        name: str,
        rng: Random,
        topics: Topics,
        transactions: Transactions,
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
        await self._client.ask("producer", topics=self._topics.names)

    def worker(self) -> Callable[[], Awaitable[bool]]:
        """One that sends one message per call, and says whether it is acknowledged."""
        process = self._process()
        return lambda: self._send(process)

    async def answer_checks(self) -> None:
        """Answer when the broker asks about transactions, whoever began them. Never returns."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                asked = await self._client.ask("checks", wait_s=_CHECKS_WAIT_S)
                for one in asked["messages"]:
                    half = self._transactions[number_of(b64decode(one["body"]))]
                    tasks.create_task(self._end(half, "decide", one["handle"], self._writer.now()))

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
        about = _told(message, body) | {"message_group": message_group}
        receipt = await self._asked(process, "send", about)
        if receipt is None:
            return False
        process.ok(qoff=receipt["offset"], topic=topic, q=queue)
        self._tally.ok(began, self._writer.now())
        return True

    async def _send_delayed(self, process: Process) -> bool:
        """Where it will stand nobody knows yet. Some are taken back at once."""
        message, body = self._message(self._rng.choice(self._topics.normal), 0)
        where = {"topic": message["topic"], "q": 0}
        now_ms = self._wall_ns() // 1_000_000 + 1
        due_ms = (now_ms // 1000 + 1 + self._rng.randint(*_DELAY_S)) * 1000
        began = self._writer.now()
        process.invoke("send", delay_ms=due_ms - now_ms, **message)
        receipt = await self._asked(process, "send", _told(message, body) | {"due_ms": due_ms})
        if receipt is None:
            return False
        process.ok(**where)
        self._tally.ok(began, self._writer.now())
        if self._rng.random() < _RECALLED:
            process.invoke("recall", mid=message["mid"], **where)
            about = {"topic": message["topic"], "recall_handle": receipt["recall_handle"]}
            if await self._asked(process, "recall", about) is not None:
                process.ok(**where)
        return True

    async def _transact(self, process: Process) -> bool:
        message, body = self._message(self._rng.choice(self._topics.normal), 0)
        half = self._transactions.begin(message, self._process, self._rng)
        began = self._writer.now()
        process.invoke("txn_begin", **message)
        begun = await self._asked(process, "half", _told(message, body))
        if begun is None:
            return False
        process.ok(topic=message["topic"], q=message["q"])
        handle = begun["handle"]
        if half.is_orphan:
            await self._client.ask("forget", handle=handle)
            return True
        return await self._end(half, "end", handle, began)

    async def _end(self, half: Half, do: str, handle: int, began: int) -> bool:
        ask = self._client.ask
        return await self._transactions.end(
            half, lambda: ask(do, handle=handle, commit=half.is_commit), began
        )

    async def _asked(self, process: Process, do: str, about: dict[str, Any]) -> dict[str, Any] | None:
        """What the client answers; None: it raised, which is told and counted."""
        try:
            return await self._client.ask(do, **about)
        except ClientError as error:
            self._tally.not_ok(process.failed(error), f"{error.kind} {error.code}")
            return None

    def _message(self, topic: str, queue: int) -> tuple[dict[str, Any], str]:
        """A new one: what the trace tells of it, and its body as clients take it."""
        mid = self._numbers.message()
        body = self._bodies.make(mid)
        about = {"tag": self._rng.choice(TAGS), "key": f"key-{mid}", "topic": topic, "q": queue}
        return {"mid": mid, "digest": digest(body), **about}, b64encode(body).decode()

    def _process(self) -> Process:
        return Process(self._writer, self._numbers)

    def _place(self) -> tuple[str, int, str]:
        """Topic and queue, and the message group, if any. The queue follows from that: whoever finds the
        message elsewhere has found what was never sent there."""
        rng, topics = self._rng, self._topics
        if rng.random() >= _IN_ORDER:
            return rng.choice(topics.normal), 0, ""
        if topics.lanes and rng.random() < _IN_LANES:
            queue = rng.randrange(topics.fifo_queues)
            return topics.lanes, queue, topics.lane(queue)
        group = rng.choice(_MESSAGE_GROUPS)
        return topics.fifo, topics.queue_of(group), group


def _told(message: dict[str, Any], body: str) -> dict[str, Any]:
    """What a client is told of a message that it is to send."""
    return {"body": body, **{name: message[name] for name in ("topic", "tag", "key")}}
