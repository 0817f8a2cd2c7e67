"""Producers of a broker workload: messages and batches to several topics and queues, with keys and tags.

The client repeats failed sends at another node, and the trace records each attempt. A message stored by a
refused attempt is a duplicate. The client repeats a send with an unknown outcome in the same queue, because
the brokers recognize its id. The receiving node may also repeat it when it forwards it to a master. Each
message or batch is stored once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from broker_adapter.client import Message, Producer, SendResult, SendStatus
from broker_adapter.errors import BrokerError
from chaos.trace.operations import ClientTrace, Process
from chaos.trace.schema import LEDGER
from chaos.workloads.clients import QueueByNumber
from chaos.workloads.messages import Bodies, digest
from chaos.workloads.spec import Setting

TAGS = ("a", "b", "c")
#: Messages of one client that share a key: few enough for a single query to find them all.
_KEY_SPAN = 8
_REMEMBERED_KEYS = 4
#: Pause in seconds after a send that lacks its second copy. The outcomes of such sends are indeterminate, so
#: further ones are useless as evidence.
_SHORT_OF_COPIES_S = 0.25


class WorkloadSender:
    """One producer, shared by several workers."""

    def __init__(
        self, setting: Setting, producer: Producer, trace: ClientTrace, rng: Random, topics: Sequence[str]
    ) -> None:
        self._tally = setting.tally
        self._has_indexes = setting.has_indexes
        self._spec = setting.spec
        self._producer = producer
        self._trace = trace
        self._numbers = trace.numbers
        self._rng = rng
        self._topics = topics
        self._bodies = Bodies(rng, setting.spec.max_bytes, setting.payloads())
        #: (topic, key) of the last acknowledged messages, for the final queries.
        self.keys: deque[tuple[str, str]] = deque(maxlen=_REMEMBERED_KEYS)

    def worker(self) -> Callable[[], Awaitable[bool]]:
        """Return a function that sends one message or batch and returns True if it was acknowledged."""
        process = self._trace.process()
        return lambda: self._send(process)

    async def _send(self, process: Process) -> bool:
        rng = self._rng
        size = self._spec.draw_size(rng)
        mids = [self._numbers.message() for _ in range(size)]
        bodies = [self._bodies.make(mid) for mid in mids]
        topic, queue, tag = rng.choice(self._topics), rng.randrange(self._spec.queues), rng.choice(TAGS)
        key = f"key-{mids[0] // _KEY_SPAN}"
        where = {"topic": topic, "q": queue}
        if size == 1:
            op = process.invoke("send", mid=mids[0], digest=digest(bodies[0]), tag=tag, key=key, **where)
        else:
            for i, (mid, body) in enumerate(zip(mids, bodies, strict=True)):
                process.item(i, mid, digest(body), tag=tag, key=key, **where)
            op = process.invoke("send_batch", count=size, **where)
        self._trace.sending(mids[0], op)
        began = self._trace.writer.now()
        try:
            messages = [Message(topic, body, tags=tag, keys=[key]) for body in bodies]
            result = await self._send_all(messages, QueueByNumber(queue, rng))
        except BrokerError as error:
            self._tally.not_ok(process.failed(error), error.status.name, size)
            return False
        finally:
            self._trace.over(mids[0])
        if result.status is not SendStatus.SEND_OK:
            # The receiving node stored the message, but not all the required copies.
            self._tally.not_ok(process.unsure(result.status.name), result.status.name, size)
            await asyncio.sleep(_SHORT_OF_COPIES_S)
            return False
        process.ok(count=size, **_stored_at(result, has_index=self._has_indexes), **where)
        self._tally.ok(began, self._trace.writer.now(), size)
        self._tally.recognized += result.is_duplicate
        self.keys.append((topic, key))
        return True

    async def _send_all(self, messages: Sequence[Message], selector: QueueByNumber) -> SendResult:
        if len(messages) == 1:
            return await self._producer.send(messages[0], selector=selector)
        return await self._producer.send_batch(messages, selector=selector)


def _stored_at(result: SendResult, *, has_index: bool) -> dict[str, int | str]:
    """Return the queue offset of the first message and, if the acknowledgment contains them, its log index
    and the node that stored it. A node that repeated the send may not know these if an earlier attempt stored
    the message."""
    fields: dict[str, int | str] = {"qoff": result.queue_offset}
    if has_index and result.log_index >= 0:
        fields |= {
            "term": result.term,
            "node": result.node_id,
            "lidx": result.log_index,
            "ledger": LEDGER,
        }
    return fields
