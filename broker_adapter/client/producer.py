"""The producer for asyncio programs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count, repeat
from types import TracebackType
from typing import Self

import tenacity

from broker_adapter.api import OutgoingMessage, outgoing_messages
from broker_adapter.client.directory import REPEATABLE, RETRY_PAUSE, Directory
from broker_adapter.client.routes import Route, RouteSource, names_with_master, writable_queues
from broker_adapter.client.send_queue import AttemptHook, Call, ProducerLimits, SendQueue
from broker_adapter.client.values import MessageQueue, Receipts, SendReceipt
from broker_adapter.errors import Busy, IllegalMessage, PutRefused, Status, TopicRefused
from broker_adapter.format.java_hash import java_hash
from broker_adapter.format.properties import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    PropertiesText,
    join_properties,
    with_property,
)
from broker_adapter.format.unique_keys import UniqueKeys
from dledger import TlsFiles

DEFAULT_TIMEOUT = 10.0
#: A master that has not answered a batch for so long leaves its fate unknown, in seconds.
DEFAULT_STALL_TIMEOUT = 3.0
#: So long may a NameServer not have heard yet of a topic that was just created, in seconds.
_UNHEARD = 1.0
_LONGEST_PAUSE = 0.2  # a bit more than RETRY_PAUSE ever is
#: The broker chooses: for topics that it has yet to create.
_ANY_QUEUE = -1
_ZEROS = repeat(0)  # flag and sys_flag of what this producer sends

#: Chooses one of a topic's writable queues, which are sorted.
QueueSelector = Callable[[Sequence[MessageQueue]], MessageQueue]


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Producer:
    """Sends messages. Use it with `async with`, in one event loop, from any number of tasks.

    Args:
        routes: a NameServer client or `StaticRoutes`.
        timeout: seconds until a send is given up, unless a call says otherwise.
        stall_timeout: seconds without an answer until a batch counts as indeterminate.
        retry_indeterminate: False (default): a message whose fate is unknown raises PutIndeterminate and is
            never sent again. True: it is sent again until it is acknowledged or the time is over, so that it
            may be stored twice (at least once).
        unique_keys: give each message RocketMQ's UNIQ_KEY, by which it is found.
        limits: how sends are batched.
        tls: PEM files for TLS, read again when they change; None: plain text.
        now_ms: the clock of born timestamps and unique keys.
        on_attempt: called before each attempt to send, also of what is sent again, with the bodies of one
            call and the number of the attempt, from 1 on; it must not raise.
    """

    def __init__(
        self,
        routes: RouteSource,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        stall_timeout: float = DEFAULT_STALL_TIMEOUT,
        retry_indeterminate: bool = False,
        unique_keys: bool = True,
        limits: ProducerLimits | None = None,
        tls: TlsFiles | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
        on_attempt: AttemptHook | None = None,
    ) -> None:
        self._directory = Directory(routes, tls)
        self._timeout = timeout
        self._stall_timeout = stall_timeout
        self._on_attempt = on_attempt
        self._retry_indeterminate = retry_indeterminate
        self._keys = UniqueKeys(now_ms) if unique_keys else None
        self._limits = ProducerLimits() if limits is None else limits
        self._now_ms = now_ms
        self._send_queues: dict[MessageQueue, SendQueue] = {}
        self._turns: dict[str, count[int]] = {}  # by topic: round robin
        #: By topic. Locks are fair: calls that wait for a route are queued in their order.
        self._entrances: dict[str, asyncio.Lock] = {}
        self._pending_bytes = 0
        self._closed = False

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
        queue_selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message; it is committed on return.

        The queue is `queue_id`, that of `sharding_key` (equal keys, equal queue, as long as the topic keeps
        its number of queues), what `queue_selector` chooses, or the next one in turn. Messages of one queue
        are stored in the order of the calls.

        Raises PutRefused (not stored: no master, busy, not connected, till the time was over), TopicRefused,
        IllegalMessage: not stored; PutIndeterminate: nobody knows.
        """
        made = self._messages([body], tag, keys, properties)
        [receipt] = await self._send(
            topic, *made, queue_id, sharding_key, queue_selector, self._deadline(timeout)
        )
        return receipt

    async def send_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
        queue_selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> Sequence[SendReceipt]:
        """Send messages to one queue, as one atomic batch: all of them are stored, side by side, or none.

        Errors as those of `send`. A batch that no broker takes is an IllegalMessage.
        """
        if not bodies:
            return []
        made = self._messages(bodies, tag, keys, properties)
        return await self._send(topic, *made, queue_id, sharding_key, queue_selector, self._deadline(timeout))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be written to, sorted. Empty for a topic that does not exist."""
        return writable_queues(await self._directory.route(topic))

    async def close(self) -> None:
        """Fail what is under way, disconnect. Await your sends before."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(send_queue.close() for send_queue in self._send_queues.values()))
        await self._directory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside

    def _deadline(self, timeout: float | None) -> float:
        if self._closed:
            raise RuntimeError("the producer is closed")
        return asyncio.get_running_loop().time() + (self._timeout if timeout is None else timeout)

    def _messages(
        self,
        bodies: Sequence[bytes],
        tag: str | None,
        keys: str | Sequence[str],
        properties: Mapping[str, str] | None,
    ) -> tuple[list[OutgoingMessage], Sequence[str]]:
        """The messages of one call, which share their properties, and the UNIQ_KEY of each, "" without."""
        for body in bodies:
            if not isinstance(body, bytes):
                text = f"a body is bytes, not {type(body).__name__}"
                raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        made = dict(properties) if properties else {}
        if tag is not None:
            made[TAGS] = tag
        if keys:
            made[KEYS] = keys if isinstance(keys, str) else " ".join(keys)
        try:
            shared = PropertiesText(join_properties(made))
        except TypeError as error:
            raise IllegalMessage(Status.PROPERTIES_INVALID, f"properties are text: {error}") from None
        now = self._now_ms()
        if self._keys is None or UNIQ_KEY in made:
            unique_keys = [made.get(UNIQ_KEY, "")] * len(bodies)
            return outgoing_messages(zip(bodies, repeat(shared), _ZEROS, _ZEROS, repeat(now))), unique_keys
        unique_keys = self._keys.take(len(bodies))
        each = [with_property(shared, UNIQ_KEY, key) for key in unique_keys]
        return outgoing_messages(zip(bodies, each, _ZEROS, _ZEROS, repeat(now))), unique_keys

    async def _send(
        self,
        topic: str,
        messages: list[OutgoingMessage],
        unique_keys: Sequence[str],
        queue_id: int | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        timeout_at: float,
    ) -> Sequence[SendReceipt]:
        call = Call(messages, timeout_at, asyncio.get_running_loop().create_future())
        if self._pending_bytes and self._pending_bytes + call.size > self._limits.max_pending_bytes:
            raise Busy(
                Status.TOO_MANY_PENDING_BYTES, f"{self._pending_bytes} bytes of this producer are under way"
            )
        self._pending_bytes += call.size
        send_queue: SendQueue | None = None
        try:
            async with asyncio.timeout_at(timeout_at):
                async with self._entrances.setdefault(topic, asyncio.Lock()):
                    route = self._directory.known_route(topic) or await self._route(topic, timeout_at)
                    queue = self._choose(route, topic, queue_id, sharding_key, selector)
                    send_queue = self._send_queue(queue)
                    send_queue.add(call)
                result = await call.future
        except TimeoutError:
            if send_queue is None:
                raise PutRefused(Status.NOT_CONNECTED, f"no route of topic {topic!r} in time") from None
            raise send_queue.expired(call) from None
        finally:
            call.future.cancel()
            self._pending_bytes -= call.size
        if queue.queue_id == _ANY_QUEUE:
            self._directory.forget(topic)  # it exists now
        return Receipts(topic, queue.broker, unique_keys, result)

    async def _route(self, topic: str, timeout_at: float) -> Route:
        """The route, asked for until somebody can tell it. Cancel it to give up.

        TopicRefused if the topic is unknown for `_UNHEARD`: NameServers hear of a new one a moment late.
        """
        loop = asyncio.get_running_loop()
        unknown_at = min(loop.time() + _UNHEARD, timeout_at - _LONGEST_PAUSE)

        def is_worth_repeating(error: BaseException) -> bool:
            if isinstance(error, TopicRefused):
                return error.status is Status.TOPIC_UNKNOWN and loop.time() < unknown_at
            return isinstance(error, REPEATABLE)

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(is_worth_repeating), wait=RETRY_PAUSE, reraise=True
        )
        return await retrying(self._directory.route, topic)

    def _send_queue(self, queue: MessageQueue) -> SendQueue:
        send_queue = self._send_queues.get(queue)
        if send_queue is None:
            self._directory.watch(queue.topic)
            send_queue = self._send_queues[queue] = SendQueue(
                self._directory,
                queue,
                self._limits,
                retry_indeterminate=self._retry_indeterminate,
                stall_timeout=self._stall_timeout,
                on_attempt=self._on_attempt,
            )
        return send_queue

    def _choose(
        self,
        route: Route,
        topic: str,
        queue_id: int | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
    ) -> MessageQueue:
        if sum(given is not None for given in (queue_id, sharding_key, selector)) > 1:
            raise ValueError("queue_id, sharding_key and queue_selector exclude each other")
        queues = writable_queues(route)
        if not queues:
            return _queue_of_new_topic(route, topic, queue_id)
        if selector is not None:
            return selector(queues)
        if sharding_key is not None:
            return queues[java_hash(sharding_key) % len(queues)]
        turn = next(self._turns.setdefault(topic, count()))
        if queue_id is None:
            return queues[turn % len(queues)]
        named = [queue for queue in queues if queue.queue_id == queue_id]
        if not named:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"{topic} has no writable queue {queue_id}")
        return named[turn % len(named)]


def _queue_of_new_topic(route: Route, topic: str, queue_id: int | None) -> MessageQueue:
    """Where a topic begins that is in no route. The broker creates it, if it does such things."""
    if route.queues:
        raise TopicRefused(Status.TOPIC_NOT_WRITABLE, f"topic {topic!r} is not writable")
    broker = names_with_master(route)[0]  # the directory gives no route that shows neither
    return MessageQueue(topic, broker, _ANY_QUEUE if queue_id is None else queue_id)
