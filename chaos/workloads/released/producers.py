"""Producers that are released clients: single messages, some of them in the order of message groups.

The client repeats a send by itself, three times in all, under one message id, and the broker stores an id
once: so a message that is stored twice is a broken promise, whichever attempt stored it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from random import Random

from broker_adapter.java_hash import java_hash
from chaos.trace.operations import Process
from chaos.workloads.messages import Bodies, digest
from chaos.workloads.released.process import ClientError, ClientProcess
from chaos.workloads.released.topics import Topics
from chaos.workloads.senders import TAGS
from chaos.workloads.spec import Setting

#: Of all messages.
_IN_ORDER = 0.4
_MESSAGE_GROUPS = tuple(f"account-{n}" for n in range(8))


class ReleasedProducer:
    """One client, by several workers."""

    def __init__(
        self, setting: Setting, client: ClientProcess, name: str, rng: Random, topics: Topics
    ) -> None:
        self._tally = setting.tally
        self._client = client
        self._writer, self._numbers = setting.client(name)
        self._rng = rng
        self._topics = topics
        self._bodies = Bodies(rng, setting.spec.max_bytes, setting.payloads())

    async def start(self) -> None:
        await self._client.start()
        await self._client.ask("producer", topics=self._topics.names)

    def worker(self) -> Callable[[], Awaitable[bool]]:
        """One that sends one message per call, and says whether it is acknowledged."""
        process = Process(self._writer, self._numbers)
        return lambda: self._send(process)

    async def _send(self, process: Process) -> bool:
        mid = self._numbers.message()
        body, tag, key = self._bodies.make(mid), self._rng.choice(TAGS), f"key-{mid}"
        where, message_group = self._place()
        process.invoke("send", mid=mid, digest=digest(body), tag=tag, key=key, **where)
        began = self._writer.now()
        text = b64encode(body).decode()
        about = {"topic": where["topic"], "tag": tag, "key": key, "message_group": message_group}
        try:
            receipt = await self._client.ask("send", body=text, **about)
        except ClientError as error:
            self._tally.not_ok(process.failed(error), f"{error.kind} {error.code}")
            return False
        process.ok(qoff=receipt["offset"], **where)
        self._tally.ok(began, self._writer.now())
        return True

    def _place(self) -> tuple[dict[str, int | str], str]:
        """Topic and queue, and the message group, if any. The queue follows from that: whoever finds the
        message elsewhere has found what was never sent there."""
        if self._rng.random() < _IN_ORDER:
            group = self._rng.choice(_MESSAGE_GROUPS)
            return {"topic": self._topics.fifo, "q": java_hash(group) % self._topics.fifo_queues}, group
        return {"topic": self._rng.choice(self._topics.normal), "q": 0}, ""
