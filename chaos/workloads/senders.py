"""Producers of a broker workload: messages and batches to several topics and queues, with keys and tags.

The producer of the client repeats automatically what was refused for certain, at another node, which is
noted; a message that was stored by a refused attempt is a duplicate. What nobody knows it never repeats, as
the queue is given. The node to which a single message came may, on its way to a master: that is stored once.
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
from chaos.workloads.clients import QueueNumber
from chaos.workloads.messages import Bodies, digest
from chaos.workloads.spec import Setting

TAGS = ("a", "b", "c")
#: Messages of one client that share a key: few enough to be found by one look-up.
_KEY_SPAN = 8
_REMEMBERED_KEYS = 4
#: Where a second copy is missing, each worker sends less often: nobody can say anything of what it sends.
_SHORT_OF_COPIES_S = 0.25


class Sender:
    """One producer, by several workers."""

    def __init__(
        self, setting: Setting, producer: Producer, trace: ClientTrace, rng: Random, topics: Sequence[str]
    ) -> None:
        self._tally = setting.tally
        self._tells_indexes = setting.tells_indexes
        self._spec = setting.spec
        self._producer = producer
        self._trace = trace
        self._numbers = trace.numbers
        self._rng = rng
        self._topics = topics
        self._bodies = Bodies(rng, setting.spec.max_bytes, setting.payloads())
        #: (topic, key) of the last acknowledged messages, to look them up in the end.
        self.keys: deque[tuple[str, str]] = deque(maxlen=_REMEMBERED_KEYS)

    def worker(self) -> Callable[[], Awaitable[bool]]:
        """One that sends one message or batch per call, and says whether it is acknowledged."""
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
            result = await self._send_all(messages, QueueNumber(queue, rng))
        except BrokerError as error:
            self._tally.not_ok(process.failed(error), error.status.name, size)
            return False
        finally:
            self._trace.over(mids[0])
        if result.status is not SendStatus.SEND_OK:
            # It is stored where it was sent to, and not as far as it was to be.
            self._tally.not_ok(process.unsure(result.status.name), result.status.name, size)
            await asyncio.sleep(_SHORT_OF_COPIES_S)
            return False
        process.ok(count=size, **_stored_at(result, has_index=self._tells_indexes), **where)
        self._tally.ok(began, self._trace.writer.now(), size)
        self.keys.append((topic, key))
        return True

    async def _send_all(self, messages: Sequence[Message], selector: QueueNumber) -> SendResult:
        if len(messages) == 1:
            return await self._producer.send(messages[0], selector=selector)
        return await self._producer.send_batch(messages, selector=selector)


def _stored_at(result: SendResult, *, has_index: bool) -> dict[str, int | str]:
    """What an acknowledgement says of where the first message is, and of who has stored it: not of one that
    was stored before, by an attempt of which the node that repeated it has heard nothing."""
    told: dict[str, int | str] = {"qoff": result.queue_offset}
    if has_index and result.log_index >= 0:
        told |= {
            "term": result.term,
            "node": result.node_id,
            "lidx": result.log_index,
            "ledger": LEDGER,
        }
    return told
