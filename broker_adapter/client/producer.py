"""Producer: sends messages and says what became of them."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from broker_adapter.client import group_requests
from broker_adapter.client.core import outcomes, requests
from broker_adapter.client.core.queue_choice import QueueChoice
from broker_adapter.client.core.requests import OutgoingMessage
from broker_adapter.client.core.values import (
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    SendStatus,
)
from broker_adapter.client.instance import ClientInstance, RemotingClient, now_ms
from broker_adapter.client.options import ClientOptions
from broker_adapter.client.request_reply import (
    CORRELATION_ID,
    REPLY_TO_CLIENT,
    TTL,
    PendingRequests,
)
from broker_adapter.errors import (
    AnswerMissing,
    BrokerError,
    FrameRefused,
    IllegalMessage,
    PutIndeterminate,
    PutRefused,
    Status,
    TopicRefused,
)
from broker_adapter.format.properties import UNIQ_KEY, join_properties
from broker_adapter.format.sys_flag import COMPRESSED, COMPRESSION_ZLIB
from broker_adapter.format.topic_names import check_topic_name
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.executors import Executor

_log = logging.getLogger(__name__)

#: Chooses the queue of a message: queues of the topic, the message, the argument of `send`.
Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]
#: Told before each attempt: the messages, and the number of the attempt, from 1 on.
OnAttempt = Callable[[Sequence[Message], int], None]

#: Larger bodies are compressed on a thread: they would hold up the event loop.
_THREAD_BYTES = 64 << 10
_COMPRESS_LEVEL = 5  # RocketMQ's
_LEAST_S = 0.001
_ATTEMPTS = 3  # RocketMQ's retryTimesWhenSendFailed, and one


class Producer(RemotingClient):
    """RocketMQ's DefaultMQProducer for asyncio. Use it with `async with`, or `start` and `close`."""

    def __init__(
        self,
        group: str,
        name_servers: Sequence[str] | str,
        *,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
        create_topics: bool = True,
        on_attempt: OnAttempt | None = None,
    ) -> None:
        """`create_topics`: messages of unknown topics go to brokers that create topics by use, if any do."""
        self._on_attempt = on_attempt
        self.group = group
        self._client = ClientInstance(name_servers, options, tls)
        self._options = self._client.options
        self._create_topics = create_topics
        self._greeted: set[str] = set()  # addresses of brokers that know this producer
        self._is_greeting = False
        #: Topics whose brokers are greeted; the route of one whose brokers are away is not known meanwhile.
        self._greeting: dict[str, None] = {}
        self._requests = PendingRequests()
        replies = Executor("replies", running=64, waiting=1000)
        push = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        self._client.dispatch.register([push], self._requests.answered, replies)
        self._choice = QueueChoice(self._options.avoid_broker_s, random.randrange(1 << 16))

    # -- sending

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues that take messages (fetchPublishMessageQueues). TopicRefused (TOPIC_UNKNOWN)."""
        check_topic_name(topic)
        return (await self._client.routes.get(topic)).publish_queues(topic)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message; a broker has stored it on return.

        Without `queue` and `selector` a failed attempt is repeated at another broker, up to three in all:
        the message may then be stored twice (`SendResult.may_be_duplicate`). With one of them the order
        matters: an attempt is repeated only if nothing was stored, at that queue, or at the one that
        `selector` chooses of the queues that there are by then.

        PutIndeterminate (OUTCOME_UNKNOWN): no attempt has succeeded, and one may have been stored.
        PutRefused, TopicRefused, IllegalMessage: nothing was stored.
        """
        outgoing = await self._encoded(message)
        return await self._send([message], outgoing, queue, selector, arg, timeout_s)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of one topic into one queue, all or none. Errors as those of `send`.

        `selector` is asked with the first message. IllegalMessage for none, for delays, and for several
        topics.
        """
        outgoing = self._encoded_batch(messages)
        return await self._send(messages, outgoing, queue, selector, arg, timeout_s)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
    ) -> None:
        """Send one message without an answer: whether it is stored is not known. PutRefused: it is not.

        Brokers of RocketMQ drop what they have not begun when the connection ends: do not close at once.
        """
        outgoing = await self._encoded(message)
        chosen = queue or self._choose(await self._write_queues(message.topic), message, selector, arg)
        request = self._request(chosen, outgoing)
        request.flag = RemotingCommand.oneway(request.code).flag
        await self._client.connections.notify(await self._address(chosen), request)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout_s: float = 3.0,
    ) -> MessageExt:
        """Send one message and wait for the answer of whoever consumes it (`reply_to`).

        AnswerMissing (ANSWER_MISSING): none came in time, and the message may have been consumed. Errors of
        `send`.
        """
        with self._requests.one() as (correlation_id, answer):
            own = {
                CORRELATION_ID: correlation_id,
                REPLY_TO_CLIENT: self._client.client_id,
                TTL: str(int(timeout_s * 1000)),
            }
            asked = replace(message, properties={**message.properties, **own})
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_s
            with suppress(TimeoutError):  # of a broker that is away; the answer may come through another one
                async with asyncio.timeout(timeout_s / 2):
                    await self._greet(message.topic)
            left = max(deadline - loop.time(), _LEAST_S)
            await self.send(asked, queue=queue, selector=selector, arg=arg, timeout_s=left)
            try:
                async with asyncio.timeout_at(deadline):
                    return await answer
            except TimeoutError:
                text = f"{message.topic}: no answer within {timeout_s:g} s"
                raise AnswerMissing(Status.ANSWER_MISSING, text) from None

    # -- inside

    async def _keep_greeting(self) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_broker_s)
            self._greeted.clear()
            for topic in list(self._greeting):
                try:
                    await self._greet(topic)
                except BrokerError as error:
                    _log.info("brokers were not greeted: topic %s, %s", topic, error)

    async def _greet(self, topic: str) -> None:
        """Brokers ask the producers that they know, and pass answers on to them."""
        if not self._is_greeting:
            self._is_greeting = True
            self._client.run(self._keep_greeting())
        if len(self._greeting) >= self._options.max_topics and topic not in self._greeting:
            del self._greeting[next(iter(self._greeting))]
        self._greeting[topic] = None
        route = self._client.routes.known.get(topic)
        if route is None:
            await self._write_queues(topic)
            route = self._client.routes.known.get(topic)
        masters = {broker.master for broker in route.brokers.values()} if route is not None else set()
        new = [address for address in masters - self._greeted if address is not None]
        await asyncio.gather(*map(self._greet_one, new))

    async def _greet_one(self, address: str) -> None:
        request = group_requests.heartbeat(self._client.client_id, producers=[self.group])
        try:
            await self._client.call(address, request)
            self._greeted.add(address)
        except BrokerError as error:
            _log.info("a broker was not greeted: address %s, %s", address, error)

    async def _send(
        self,
        messages: Sequence[Message],
        outgoing: OutgoingMessage,
        wanted: MessageQueue | None,
        selector: Selector | None,
        arg: object,
        timeout_s: float | None,
    ) -> SendResult:
        message = messages[0]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_s or self._options.timeout_s)
        is_ordered = wanted is not None or selector is not None
        tried: frozenset[str] = frozenset()
        unknown: PutIndeterminate | None = None
        last: BrokerError | None = None
        for attempt in range(_ATTEMPTS):
            if loop.time() >= deadline:
                break
            queue = wanted
            if queue is None:
                try:
                    async with asyncio.timeout_at(deadline):
                        queues = await self._write_queues(message.topic, renew=attempt > 0)
                except TimeoutError:  # no NameServer answers
                    break
                queue = (
                    selector(queues, message, arg)
                    if selector is not None
                    else self._choice.pick(queues, loop.time(), tried=tried)
                )
            if self._on_attempt is not None:
                self._on_attempt(messages, attempt + 1)
            try:
                result = await self._attempt(queue, outgoing, deadline)
            except BrokerError as error:
                last = error
                if isinstance(error, PutIndeterminate):
                    unknown = error
                if not outcomes.retries_elsewhere(error) or (unknown is not None and is_ordered):
                    break
                self._choice.failed(queue.broker_name, loop.time())
                tried |= {queue.broker_name}
            else:
                self._choice.succeeded(queue.broker_name)
                return _with_duplicates(result) if unknown is not None else result
        raise unknown or last or PutRefused(Status.NOT_CONNECTED, "no time was left for an attempt")

    async def _attempt(self, queue: MessageQueue, outgoing: OutgoingMessage, deadline: float) -> SendResult:
        try:
            async with asyncio.timeout_at(deadline):
                address = await self._address(queue)
        except TimeoutError:
            raise PutRefused(Status.NOT_CONNECTED, f"{queue}: no route in time") from None
        left = deadline - asyncio.get_running_loop().time()
        timeout_s = min(left, self._options.request_timeout_s)
        try:
            answer = await self._client.connections.invoke(address, self._request(queue, outgoing), timeout_s)
        except AnswerMissing as error:
            raise PutIndeterminate(Status.OUTCOME_UNKNOWN, error.message) from None
        if answer.code not in SendStatus.__members__.values():
            raise outcomes.send_error(answer, address)
        try:
            return SendResult(
                status=SendStatus(answer.code),
                queue=queue._replace(queue_id=requests.number(answer, "queueId")),
                queue_offset=requests.number(answer, "queueOffset"),
                message_ids=outgoing.message_ids,
                offset_message_ids=tuple(answer.fields.get("msgId", "").split(",")),
                transaction_id=answer.fields.get("transactionId", ""),
                node_id=answer.fields.get("nodeId", ""),
                term=requests.number(answer, "term", -1),
                log_index=requests.number(answer, "logIndex", -1),
            )
        except FrameRefused as error:  # it says that something was stored
            raise PutIndeterminate(Status.OUTCOME_UNKNOWN, f"{address}: {error.message}") from None

    async def _address(self, queue: MessageQueue) -> str:
        routes = self._client.routes.known
        for topic in (queue.topic, requests.DEFAULT_TOPIC):
            if topic in routes and (address := routes[topic].master(queue.broker_name)) is not None:
                return address
        return await self._client.master_of(queue.topic, queue.broker_name)

    def _request(self, queue: MessageQueue, outgoing: OutgoingMessage) -> RemotingCommand:
        return requests.send_message(
            self.group, queue, outgoing, now_ms(), default_topic_queues=self._options.default_topic_queues
        )

    async def _write_queues(self, topic: str, *, renew: bool = False) -> tuple[MessageQueue, ...]:
        """Of the topic, or of the one that stands for topics that are created by use."""
        routes = self._client.routes
        try:
            route = await (routes.renewed(topic) if renew else routes.get(topic))
        except TopicRefused as error:
            if not self._create_topics:
                raise
            try:
                default = await routes.get(requests.DEFAULT_TOPIC)
            except TopicRefused:
                raise error from None
            most = self._options.default_topic_queues
            return tuple(one for one in default.publish_queues(topic) if one.queue_id < most)
        queues = route.publish_queues(topic)
        if not queues and not renew:  # another broker may take them by now
            queues = (await routes.renewed(topic)).publish_queues(topic)
        if not queues:
            raise TopicRefused(Status.TOPIC_NOT_WRITABLE, f"no broker takes messages of {topic} now")
        return queues

    def _choose(
        self, queues: Sequence[MessageQueue], message: Message, selector: Selector | None, arg: object
    ) -> MessageQueue:
        if selector is not None:
            return selector(queues, message, arg)
        return self._choice.pick(queues, asyncio.get_running_loop().time())

    async def _encoded(self, message: Message) -> OutgoingMessage:
        check_topic_name(message.topic)
        requests.check_body(len(message.body), self._options.max_body_bytes, self._options.least_body_bytes)
        key = self._client.keys.next()
        body, sys_flag = message.body, 0
        if len(body) >= self._options.compress_above_bytes:
            if len(body) >= _THREAD_BYTES:
                packed = await asyncio.to_thread(zlib.compress, body, _COMPRESS_LEVEL)
            else:
                packed = zlib.compress(body, _COMPRESS_LEVEL)
            if len(packed) < len(body):
                body, sys_flag = packed, COMPRESSED | COMPRESSION_ZLIB
        properties = join_properties(message.wire_properties(key))
        return OutgoingMessage(body, properties, message.flag, sys_flag, (key,))

    def _encoded_batch(self, messages: Sequence[Message]) -> OutgoingMessage:
        if not messages:
            raise IllegalMessage(Status.REQUEST_MALFORMED, "a batch without messages")
        if len({message.topic for message in messages}) > 1:
            raise IllegalMessage(Status.REQUEST_MALFORMED, "a batch has messages of one topic only")
        if any(message.delay_level for message in messages):
            raise IllegalMessage(Status.REQUEST_MALFORMED, "messages of a batch have no delay")
        check_topic_name(messages[0].topic)
        keys = self._client.keys.take(len(messages))
        body = requests.batch_body(
            (one.body, one.wire_properties(key), one.flag) for one, key in zip(messages, keys, strict=True)
        )
        requests.check_body(len(body), self._options.max_body_bytes)
        # A batch has properties of its own, which brokers want: RocketMQ joins the ids.
        properties = join_properties({UNIQ_KEY: ",".join(keys), "WAIT": "true"})
        return OutgoingMessage(body, properties, 0, 0, tuple(keys), is_batch=True)


def _with_duplicates(result: SendResult) -> SendResult:
    return replace(result, may_be_duplicate=True)
