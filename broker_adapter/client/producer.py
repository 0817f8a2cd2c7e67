"""The producer, which sends messages and reports the outcome of each send."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from broker_adapter.client import group_requests
from broker_adapter.client.core import outcomes, requests
from broker_adapter.client.core.checks import check_callable, check_timeout, check_type
from broker_adapter.client.core.queue_choice import QueueChoice
from broker_adapter.client.core.requests import EncodedMessage
from broker_adapter.client.core.send_attempts import TOPICS_WITHOUT_IDS, SendAttempts
from broker_adapter.client.core.values import (
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    SendStatus,
    check_queue,
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
from broker_adapter.remoting.codes import DUPLICATE_FILTER, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.executors import Executor
from broker_adapter.wire.compression import compressor_of
from broker_adapter.wire.properties import UNIQ_KEY, join_properties
from broker_adapter.wire.topic_names import check_group_name, check_topic_name

_log = logging.getLogger(__name__)

#: Chooses a queue, given the queues of the topic, the message, and the argument `arg` of `send`.
Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]
#: Called before each attempt with the messages and the number of the attempt, which starts at 1.
OnAttempt = Callable[[Sequence[Message], int], None]

#: Larger bodies are compressed on a thread, because they would block the event loop.
_THREAD_BYTES = 64 << 10
_LEAST_S = 0.001


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
        """`create_topics`: send messages for unknown topics to brokers that create topics automatically.

        Raises IllegalMessage if the group name is invalid, and CompressionUnavailable if the package for
        `ClientOptions.compress_type` is not installed.
        """
        check_group_name(group)
        self._on_attempt = on_attempt
        self.group = group
        self._client = ClientInstance(name_servers, options, tls)
        self._options = self._client.options
        self._compress = compressor_of(self._options.compress_type)
        self._create_topics = create_topics
        self._registered_brokers: set[str] = set()  # addresses of brokers that know this producer
        self._is_keeping_registered = False
        #: Topics whose brokers receive heartbeats, including topics without a route because their brokers are
        #: down.
        self._registered_topics: dict[str, None] = {}
        self._requests = PendingRequests()
        replies = Executor("replies", running=64, waiting=1000)
        push = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        self._client.dispatch.register([push], self._requests.answered, replies)
        self._choice = QueueChoice(self._options.avoid_broker_s, random.randrange(1 << 16))
        self._filters: dict[str, str] = {}  # duplicate filters, by broker name

    # -- sending

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues (fetchPublishMessageQueues). Raises TopicRefused (TOPIC_UNKNOWN)."""
        check_topic_name(topic)
        return (await self._client.routes.get(topic)).publish_queues(topic)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message. When the call returns, a broker has stored the message.

        A failed attempt is repeated, up to three attempts in total: without `queue` and `selector` on another
        broker, with them on the same queue, or the queue that `selector` chooses from the current queues.

        An attempt with an unknown outcome may have stored the message. If the broker stores repeated sends
        once, as this project's brokers do, the send is repeated in the same log until the timeout, for at
        most 25 s. For brokers of RocketMQ, a send with `queue` or `selector`, which preserve order, is not
        repeated, and a send without them may be stored twice (`SendResult.may_be_duplicate`).

        Raises PutIndeterminate (OUTCOME_UNKNOWN) if no attempt succeeded but one may have stored the message.
        PutRefused, TopicRefused and IllegalMessage mean that nothing was stored. IllegalMessage also concerns
        a queue of another topic, and both `queue` and `selector`.
        """
        outgoing = await self._encoded(message)
        return await self._send([message], outgoing, queue, selector, arg, timeout)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages of one topic to one queue, all or none. Raises the errors of `send`.

        `selector` receives the first message. Raises IllegalMessage if the batch is empty, contains delayed
        messages, or has more than one topic.
        """
        outgoing = self._encoded_batch(messages)
        return await self._send(messages, outgoing, queue, selector, arg, timeout)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
    ) -> None:
        """Send a message without waiting for a response. Raises PutRefused if it was not sent.

        Do not close the producer immediately afterwards: when a connection ends, RocketMQ's brokers drop its
        requests that they have not started to process.
        """
        outgoing = await self._encoded(message)
        _check_choice(message.topic, queue, selector)
        chosen = queue or self._choose(await self._write_queues(message.topic), message, selector, arg)
        request = self._request(chosen, outgoing, now_ms())
        request.flag = RemotingCommand.oneway(request.code).flag
        await self._client.connections.notify(await self._address(chosen), request)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        timeout: float = 3.0,
    ) -> MessageExt:
        """Send a message and wait for the reply of its consumer (`reply_to`).

        Raises AnswerMissing (ANSWER_MISSING) if no reply arrives in time; the message may have been consumed.
        Also raises the errors of `send`.
        """
        check_type("a message", message, Message)
        check_timeout(timeout)
        _check_choice(message.topic, queue, selector)
        with self._requests.new_request() as (correlation_id, answer):
            own = {
                CORRELATION_ID: correlation_id,
                REPLY_TO_CLIENT: self._client.client_id,
                TTL: str(int(timeout * 1000)),
            }
            request = replace(message, properties={**message.properties, **own})
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout
            # a broker may be down, but the reply may arrive through another broker
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout / 2):
                    await self._register(message.topic)
            remaining = max(deadline - loop.time(), _LEAST_S)
            await self.send(request, queue=queue, selector=selector, arg=arg, timeout=remaining)
            try:
                async with asyncio.timeout_at(deadline):
                    return await answer
            except TimeoutError:
                text = f"{message.topic}: no reply within {timeout:g} s"
                raise AnswerMissing(Status.ANSWER_MISSING, text) from None

    # -- internal

    async def _keep_registered(self) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_broker_s)
            self._registered_brokers.clear()
            for topic in list(self._registered_topics):
                try:
                    await self._register(topic)
                except BrokerError as error:
                    _log.info("heartbeats failed: topic %s, %s", topic, error)

    async def _register(self, topic: str) -> None:
        """Register with the brokers of a topic.

        Brokers send transaction checks and replies only to registered producers.
        """
        if not self._is_keeping_registered:
            self._is_keeping_registered = True
            self._client.run(self._keep_registered())
        if len(self._registered_topics) >= self._options.max_topics and topic not in self._registered_topics:
            del self._registered_topics[next(iter(self._registered_topics))]
        self._registered_topics[topic] = None
        route = self._client.routes.known.get(topic)
        if route is None:
            await self._write_queues(topic)
            route = self._client.routes.known.get(topic)
        masters = {broker.master for broker in route.brokers.values()} if route is not None else set()
        new = [address for address in masters - self._registered_brokers if address is not None]
        await asyncio.gather(*map(self._register_with, new))

    async def _register_with(self, address: str) -> None:
        request = group_requests.heartbeat(self._client.client_id, producers=[self.group])
        try:
            await self._client.call(address, request)
            self._registered_brokers.add(address)
        except BrokerError as error:
            _log.info("a heartbeat failed: address %s, %s", address, error)

    async def _send(
        self,
        messages: Sequence[Message],
        outgoing: EncodedMessage,
        wanted: MessageQueue | None,
        selector: Selector | None,
        arg: object,
        timeout: float | None,
    ) -> SendResult:
        _check_choice(messages[0].topic, wanted, selector)
        timeout = self._options.timeout if timeout is None else timeout
        check_timeout(timeout)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        is_ordered = wanted is not None or selector is not None
        born_ms = now_ms()  # the same in all attempts, because brokers use it to detect duplicates
        attempts = SendAttempts(messages[0].topic, self._filters, deadline, wanted, is_ordered=is_ordered)
        while attempts.may_continue(loop.time()):
            try:
                async with asyncio.timeout_at(attempts.deadline):
                    await asyncio.sleep(attempts.pause_s)
                    queue = await self._next_queue(attempts, messages[0], selector, arg)
            except TimeoutError:  # no NameServer responds
                break
            except BrokerError:
                if attempts.unknown is None:
                    raise
                attempts.number += 1
                continue  # an earlier attempt may have stored the message
            attempts.number += 1
            if self._on_attempt is not None:
                try:
                    self._on_attempt(messages, attempts.number)
                except Exception:
                    _log.exception("on_attempt raised an error, which is ignored")
            started = loop.time()
            try:
                result = await self._attempt(queue, outgoing, born_ms, attempts.deadline)
            except BrokerError as error:
                if not attempts.failed(queue, error, started):
                    break
                self._choice.failed(queue.broker_name, loop.time())
            else:
                self._choice.succeeded(queue.broker_name)
                if queue is attempts.wanted or attempts.number == 1:
                    return result
                name = queue.broker_name if wanted is None else wanted.broker_name
                is_safe = attempts.is_safe(queue) or result.is_duplicate
                own_queue = result.queue._replace(broker_name=name)
                return replace(result, queue=own_queue, may_be_duplicate=not is_safe)
        raise attempts.error

    async def _next_queue(
        self, attempts: SendAttempts, message: Message, selector: Selector | None, arg: object
    ) -> MessageQueue:
        is_repeated = attempts.number > 0
        if attempts.wanted is not None:
            queues: Sequence[MessageQueue] = ()
            if is_repeated:
                with suppress(BrokerError):  # the attempt reports the reason
                    queues = await self._write_queues(message.topic, renew=True)
            return attempts.same_queue(attempts.wanted, queues)
        queues = await self._write_queues(message.topic, renew=is_repeated)
        if selector is not None:
            return self._choose(queues, message, selector, arg)
        now = asyncio.get_running_loop().time()
        return self._choice.pick(attempts.allowed(queues), now, tried=attempts.tried)

    async def _attempt(
        self, queue: MessageQueue, outgoing: EncodedMessage, born_ms: int, deadline: float
    ) -> SendResult:
        try:
            async with asyncio.timeout_at(deadline):
                address = await self._address(queue)
        except TimeoutError:
            raise PutRefused(
                Status.NOT_CONNECTED, f"{queue}: no route was found within the timeout"
            ) from None
        remaining = deadline - asyncio.get_running_loop().time()
        timeout_s = min(remaining, self._options.request_timeout)
        try:
            request = self._request(queue, outgoing, born_ms)
            answer = await self._client.connections.invoke(address, request, timeout_s)
        except AnswerMissing as error:
            raise PutIndeterminate(Status.OUTCOME_UNKNOWN, error.message) from None
        if answer.code not in SendStatus.__members__.values():
            raise outcomes.send_error(answer, address)
        try:
            result = SendResult(
                status=SendStatus(answer.code),
                queue=queue._replace(queue_id=requests.number(answer, "queueId")),
                queue_offset=requests.number(answer, "queueOffset"),
                message_ids=outgoing.message_ids,
                offset_message_ids=tuple(answer.fields.get("msgId", "").split(",")),
                transaction_id=answer.fields.get("transactionId", ""),
                node_id=answer.fields.get("nodeId", ""),
                term=requests.number(answer, "term", -1),
                log_index=requests.number(answer, "logIndex", -1),
                is_duplicate=answer.fields.get("duplicate") == "true",
            )
        except FrameRefused as error:  # the code of the response means that the message was stored
            raise PutIndeterminate(Status.OUTCOME_UNKNOWN, f"{address}: {error.message}") from None
        if queue.topic.startswith(TOPICS_WITHOUT_IDS):
            return result
        if found := answer.fields.get(DUPLICATE_FILTER):
            self._filters[queue.broker_name] = found
        else:
            self._filters.pop(queue.broker_name, None)
        return result

    async def _address(self, queue: MessageQueue) -> str:
        routes = self._client.routes.known
        for topic in (queue.topic, requests.DEFAULT_TOPIC):
            if topic in routes and (address := routes[topic].master(queue.broker_name)) is not None:
                return address
        return await self._client.master_of(queue.topic, queue.broker_name)

    def _request(self, queue: MessageQueue, outgoing: EncodedMessage, born_ms: int) -> RemotingCommand:
        return requests.send_message(
            self.group, queue, outgoing, born_ms, default_topic_queues=self._options.default_topic_queues
        )

    async def _write_queues(self, topic: str, *, renew: bool = False) -> tuple[MessageQueue, ...]:
        """Return the topic's queues.

        If the topic is unknown and may be created automatically, return the default topic's queues.
        """
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
            limit = self._options.default_topic_queues
            return tuple(queue for queue in default.publish_queues(topic) if queue.queue_id < limit)
        queues = route.publish_queues(topic)
        if not queues and not renew:  # another broker may have writable queues by now
            queues = (await routes.renewed(topic)).publish_queues(topic)
        if not queues:
            raise TopicRefused(Status.TOPIC_NOT_WRITABLE, f"no broker accepts messages of {topic} at present")
        return queues

    def _choose(
        self, queues: Sequence[MessageQueue], message: Message, selector: Selector | None, arg: object
    ) -> MessageQueue:
        if selector is not None:
            chosen = selector(queues, message, arg)
            check_queue(chosen, message.topic)
            return chosen
        return self._choice.pick(queues, asyncio.get_running_loop().time())

    async def _encoded(self, message: Message) -> EncodedMessage:
        check_type("a message", message, Message)
        check_topic_name(message.topic)
        requests.check_body(len(message.body), self._options.max_body_bytes, self._options.least_body_bytes)
        key = self._client.keys.next()
        body, sys_flag = message.body, 0
        if len(body) >= self._options.compress_above_bytes:
            if len(body) >= _THREAD_BYTES:
                packed = await asyncio.to_thread(self._compress, body)
            else:
                packed = self._compress(body)
            if len(packed) < len(body):
                body, sys_flag = packed, self._options.compress_type.sys_flag
        properties = join_properties(message.wire_properties(key))
        return EncodedMessage(body, properties, message.flag, sys_flag, (key,))

    def _encoded_batch(self, messages: Sequence[Message]) -> EncodedMessage:
        check_type("a batch", messages, Sequence)
        if not messages:
            raise IllegalMessage(Status.REQUEST_MALFORMED, "the batch is empty")
        for message in messages:
            check_type("a message", message, Message)
        if len({message.topic for message in messages}) > 1:
            raise IllegalMessage(Status.REQUEST_MALFORMED, "all messages of a batch must have the same topic")
        if any(message.delay_level for message in messages):
            raise IllegalMessage(Status.REQUEST_MALFORMED, "messages of a batch cannot have a delay")
        check_topic_name(messages[0].topic)
        keys = self._client.keys.next_keys(len(messages))
        body = requests.batch_body(
            (one.body, one.wire_properties(key), one.flag) for one, key in zip(messages, keys, strict=True)
        )
        requests.check_body(len(body), self._options.max_body_bytes)
        # The batch has its own id, so that brokers of this project store it once.
        properties = join_properties({UNIQ_KEY: self._client.keys.next(), "WAIT": "true"})
        return EncodedMessage(body, properties, 0, 0, tuple(keys), is_batch=True)


def _check_choice(topic: str, queue: MessageQueue | None, selector: Selector | None) -> None:
    """Raise IllegalMessage (REQUEST_MALFORMED) unless at most one is given, and the queue belongs to the
    topic."""
    if queue is not None and selector is not None:
        raise IllegalMessage(Status.REQUEST_MALFORMED, "pass either queue or selector, not both")
    if queue is not None:
        check_queue(queue, topic)
    if selector is not None:
        check_callable("selector", selector)
