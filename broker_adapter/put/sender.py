"""Stores each message or batch once. A duplicate receives the result of the first send.

`Sender.start` checks a send and passes it to the committer without waiting. An endpoint that calls it in one
step for all sends that arrived together stores them in order, with as few appends as possible. Each send is
rejected, recognized as a duplicate, or stored with its own put status.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.delivery_state.commands import Element, RecordAttempt
from broker_adapter.delivery_state.duplicate_filter import (
    DEFERRED,
    ENDED,
    Position,
    SendIdentity,
    send_identity,
)
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import BrokerError, IllegalMessage, PutIndeterminate, Status, error_for
from broker_adapter.put.committer import Committer, PutRequest, RequestOutcome
from broker_adapter.put.message_writer import MessageWriter, QueuedRecords
from broker_adapter.put.record_writer import NO_FIELDS, BrokerFields, is_sent_back, retry_fields
from broker_adapter.wire.host import known_host
from broker_adapter.wire.properties import UNIQ_KEY, split_properties, text_of
from broker_adapter.wire.topic_names import UNSENDABLE_TOPICS
from dledger.infra.quotas import client_of

T = TypeVar("T")

#: Maximum number of topics whose duplicates are counted by name. Other topics share the label OTHER_TOPICS.
_MOST_COUNTED = 1_000
OTHER_TOPICS = "(others)"


class Send(NamedTuple):
    """Messages stored together in one queue of a topic, consecutively, all or none.

    `config`: the topic, loaded by the caller. `message_id` identifies the send; "" disables the duplicate
    check. It becomes the property UNIQ_KEY of a single message, but not of the messages of a batch.
    `queue_id`: -1 means any queue. `timeout_ms`: 0 means the configured timeout.
    """

    config: TopicConfig
    messages: Sequence[OutgoingMessage]
    message_id: str = ""
    queue_id: int = -1
    born_host: str = ""
    timeout_ms: int = 0
    is_batch: bool = False


class PutResult(NamedTuple):
    """The committed position of a message, or of the first message of a batch.

    `is_repeated`: an earlier attempt of the same send stored the message. `physical_offset`: offset in the
    CommitLog. `log_index` and `term`: index and term of the message's entry, or -1 if unknown.
    `physical_offsets`: one offset per message, or empty if unknown.
    """

    queue_id: int
    queue_offset: int
    is_repeated: bool = False
    physical_offset: int = -1
    log_index: int = -1
    term: int = -1
    # The put status if the classic log was not durable in time, or None if it is as durable as configured.
    put_status: Status | None = None
    physical_offsets: Sequence[int] = ()


class EarlierSend(NamedTuple):
    """An earlier send of the same message that the state does not contain yet.

    `queue_id`: the queue id that the state will record.
    """

    queue_id: int
    done: RequestOutcome


class SubmittedSend(NamedTuple):
    """A send whose records the committer has received. `queue_id`: queue of its messages."""

    request: PutRequest
    queue_id: int

    @property
    def done(self) -> asyncio.Future[RequestOutcome]:
        """Return the future that completes when the send is stored or has failed. Do not cancel it."""
        return self.request.done

    def result(self) -> PutResult:
        """Return the committed position once `done` is complete. Raises its error."""
        done = self.done.result()
        return _sent(self.queue_id, done) if done.places else PutResult(self.queue_id, done.offsets[0])


class RepeatedSend(NamedTuple):
    """A send that waits for an earlier send of the same message.

    `queue_id`: queue for the message itself if the earlier send is not stored.
    """

    identity: SendIdentity
    queue_id: int


StartedSend: TypeAlias = SubmittedSend | RepeatedSend | Position | BrokerError


class SendApi(Protocol):
    """Sends messages. Only the master serves it."""

    def start(self, send: Send) -> StartedSend:
        """Submit the send, unless it is a duplicate or must be rejected. Does not wait.

        After a SubmittedSend, its `done` completes. After any other result, nothing is submitted.
        """

    async def send_one(self, send: Send) -> PutResult:
        """Store one send, like `send`. Raises an error if it is not stored."""

    async def send(self, sends: Sequence[Send]) -> list[PutResult | BrokerError]:
        """Store messages. For each send, return its position or its error.

        A duplicate has the same topic, message id and content as an earlier send, and a born timestamp within
        `delivery.retry_span_ms` of it. It receives the result of the first send once that is committed.

        After NotMaster, TopicRefused, Busy or IllegalMessage, nothing was stored. After PutIndeterminate, the
        messages may be stored. After IllegalMessage (SEND_ENDED), an earlier attempt stored the message, but
        it was recalled or rolled back and will be in no queue.
        """


class Sender:
    """Implements SendApi.

    `_sending` holds the requests whose identity the state has not recorded yet, by id and content.
    """

    def __init__(
        self,
        state: DeliveryState,
        committer: Committer,
        writer: MessageWriter,
        *,
        now_ms: Callable[[], int],
        retry_span_ms: int,
        timeout_ms: int,
    ) -> None:
        """`now_ms` returns cluster time.

        `retry_span_ms`: the maximum difference between the born timestamps of two attempts of one send; 0
        disables the duplicate check. `timeout_ms`: default timeout of sends.
        """
        self._state = state
        self._committer = committer
        self._writer = writer
        self._now_ms = now_ms
        self._retry_span_ms = retry_span_ms
        self._timeout_ms = timeout_ms
        self._sending: dict[bytes, list[PutRequest]] = {}
        self._awaited: dict[PutRequest, asyncio.Future[None]] = {}  # until the request has left `_sending`
        self.duplicates = Counter[str]()  # by topic

    def clear(self) -> None:
        for request in [one for requests in self._sending.values() for one in requests]:
            self._release(request)

    def identity(
        self, topic: str, message_id: str, messages: Sequence[OutgoingMessage]
    ) -> SendIdentity | None:
        """Return the identity of messages as received from the client, or None to skip the duplicate
        check.
        """
        if not message_id or not self._retry_span_ms:
            return None
        return send_identity(topic, message_id, messages, messages[0].born_timestamp or self._now_ms())

    async def send_one(self, send: Send) -> PutResult:
        return await self._finish_send(send, self.start(send), send.timeout_ms or self._timeout_ms)

    async def send(self, sends: Sequence[Send]) -> list[PutResult | BrokerError]:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        pending = [self.start(send) for send in sends]
        results: list[PutResult | BrokerError] = []
        for send, started in zip(sends, pending, strict=True):
            remaining_ms = send.timeout_ms or self._timeout_ms
            if results:  # waiting for the earlier sends counts against the timeouts of later ones
                remaining_ms = max(0, remaining_ms - int(1000 * (loop.time() - start_s)))
            try:
                results.append(await self._finish_send(send, started, remaining_ms))
            except BrokerError as error:
                results.append(error)
        return results

    def start(self, send: Send) -> StartedSend:
        try:
            self._writer.check_master()
            check_writable(send.config)
            queue_id = self._writer.queue_of(send.config, send.queue_id)
            identity = self.identity(send.config.name, send.message_id, send.messages)
            if identity is not None:
                if self._in_flight(identity) is not None:
                    return RepeatedSend(identity, queue_id)
                if (found := self._stored(identity)) is not None:
                    return found
            return self._submit(send, queue_id, identity)
        except BrokerError as error:
            return error

    async def _finish_send(self, send: Send, started: StartedSend, timeout_ms: int) -> PutResult:
        if isinstance(started, BrokerError):
            raise started
        earlier: EarlierSend | Position | None = None
        if isinstance(started, RepeatedSend):
            earlier = await self.outcome(started.identity, timeout_ms)
            if earlier is None:  # the earlier attempt was not stored
                started = self._submit(send, started.queue_id, started.identity)
        elif isinstance(started, Position):
            earlier = started
        if isinstance(started, SubmittedSend):
            await wait_for_result(timeout_ms, started.done)
            return started.result()
        assert earlier is not None
        self.count_duplicate(send.config.name)
        if isinstance(earlier, EarlierSend) and earlier.done.places:
            return _sent(earlier.queue_id, earlier.done)._replace(is_repeated=True)
        put_status = await self.put_status_of(earlier, timeout_ms)
        return PutResult(*queue_place(earlier), True, put_status=put_status)

    def _submit(self, send: Send, queue_id: int, identity: SendIdentity | None) -> SubmittedSend:
        topic, messages = send.config.name, send.messages
        if send.message_id and not send.is_batch:
            messages = [with_id(messages[0], send.message_id)]
        records = self._writer.records(
            topic,
            queue_id,
            messages,
            born_host=known_host(send.born_host),
            own=_broker_fields(topic, messages),
        )
        return SubmittedSend(self.request(identity, queued=[records], born_host=send.born_host), queue_id)

    async def outcome(self, identity: SendIdentity, timeout_ms: int) -> EarlierSend | Position | None:
        """Return the outcome of an earlier attempt of this send, or None if there was none.

        While the outcome is indeterminate, waits until the message is applied or this broker is no longer
        master.

        Raises PutIndeterminate after `timeout_ms`, IllegalMessage (SEND_ENDED), and the error of the earlier
        attempt.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while (request := self._in_flight(identity)) is not None:
            remaining_ms = max(0, int(1000 * (end - loop.time())))
            if request.done.done() and isinstance(request.done.exception(), PutIndeterminate):
                await wait_for_result(remaining_ms, self._awaited.setdefault(request, loop.create_future()))
                continue
            try:
                done = await wait_for_result(remaining_ms, request.done)
            except PutIndeterminate:
                if not request.done.done():
                    raise
            else:
                return EarlierSend(request.recorded_queue_id if request.queued else DEFERRED, done)
        return self._stored(identity)

    async def record_attempt(
        self, identity: SendIdentity, earlier: EarlierSend | Position, place: Position, timeout_ms: int
    ) -> bool:
        """Record that an attempt repeats the message at `place`, which may still be recalled or rolled back.

        Suppose that a client's second attempt is lost in the network, and the response to the third lets it
        recall the message. The second attempt, which may arrive after that, is recognized because it was born
        before the third. Call this before the response. Returns False if the message has ended meanwhile: the
        caller must call `outcome` again. Raises PutIndeterminate.
        """
        with self._state.lock:
            latest_ms = self._state.ids.latest_attempt(identity.key, place)
        # Ids of 0.1.0 have no born timestamp to compare.
        is_comparable = latest_ms is not None or isinstance(earlier, EarlierSend)
        if not is_comparable or (latest_ms is not None and identity.born_ms <= latest_ms):
            return True
        request = PutRequest(elements=[RecordAttempt(identity, *place)])
        try:
            self._committer.submit(request)
            done = await wait_for_result(timeout_ms, request.done)
        except BrokerError as error:  # a refusal would mean that the message is not stored
            raise PutIndeterminate(Status.OUTCOME_UNKNOWN, str(error)) from error
        return done.outcomes[0] is True

    def _stored(self, identity: SendIdentity) -> Position | None:
        """Return the position of an earlier send of the same message, if the state has recorded one.

        Raises IllegalMessage (SEND_ENDED) if the message of that send was recalled or rolled back.
        """
        with self._state.lock:
            found = self._state.ids.find(identity, self._now_ms(), self._retry_span_ms, self._writer.steps_ms)
            if found is not None and found.queue_id == DEFERRED:
                # Ids recorded by 0.1.0 remain in the state even if their message was recalled or rolled back.
                return None if self._state.deferred.has_ended_unstored(found.queue_offset) else found
        if found is not None and found.queue_id == ENDED:
            text = "the message of this send was stored earlier, and then recalled or rolled back"
            raise IllegalMessage(Status.SEND_ENDED, text)
        return found

    def _in_flight(self, identity: SendIdentity) -> PutRequest | None:
        for request in self._sending.get(identity.key, ()):
            other = request.identity
            if other is not None and abs(other.born_ms - identity.born_ms) <= self._retry_span_ms:
                return request
        return None

    def count_duplicate(self, topic: str) -> None:
        is_counted = topic in self.duplicates or len(self.duplicates) < _MOST_COUNTED
        self.duplicates[topic if is_counted else OTHER_TOPICS] += 1

    async def put_status_of(self, earlier: EarlierSend | Position, timeout_ms: int) -> Status | None:
        """Return the current put status of an earlier message. See `PutResult`."""
        if isinstance(earlier, EarlierSend):
            return earlier.done.put_status
        return await self._writer.put_status_of_all(timeout_ms)

    def request(
        self,
        identity: SendIdentity | None,
        *,
        queued: Sequence[QueuedRecords] = (),
        elements: Sequence[Element] = (),
        id_queue_id: int | None = None,
        released: Callable[[PutRequest], None] = lambda _: None,
        born_host: str,
    ) -> PutRequest:
        """Submit a request and track it by its identity until the state records it; then call `released`.

        `born_host`: host:port of the client whose share of waiting bytes the request uses, or "" for none.
        """

        def release() -> None:
            self._release(request)
            released(request)

        request = PutRequest(
            queued=queued,
            elements=elements,
            identity=identity,
            id_queue_id=id_queue_id,
            release=release,
            client=client_of(born_host),
        )
        self._committer.submit(request)
        if identity is not None:
            self._sending.setdefault(identity.key, []).append(request)
        return request

    def _release(self, request: PutRequest) -> None:
        if request.identity is not None:
            key = request.identity.key
            others = [one for one in self._sending.get(key, ()) if one is not request]
            if others:
                self._sending[key] = others
            else:
                self._sending.pop(key, None)
        awaited = self._awaited.pop(request, None)
        if awaited is not None and not awaited.done():
            awaited.set_result(None)


def _sent(queue_id: int, done: RequestOutcome) -> PutResult:
    place = done.places[0]
    return PutResult(
        queue_id,
        place.queue_offset,
        False,
        place.physical_offset,
        place.log_index,
        place.term,
        done.put_status,
        place.physical_offsets,
    )


def queue_place(earlier: EarlierSend | Position) -> tuple[int, int]:
    """Return the queue and offset of an earlier message. For negative queue ids, see `Position`."""
    if isinstance(earlier, Position):
        return earlier
    return (earlier.queue_id, earlier.done.offsets[0]) if earlier.done.offsets else (-1, -1)


def with_id(message: OutgoingMessage, message_id: str) -> OutgoingMessage:
    if message.properties.get(UNIQ_KEY) == message_id:
        return message  # keep the original property text
    return message._replace(properties={**message.properties, UNIQ_KEY: message_id})


async def wait_for_result(timeout_ms: int, done: asyncio.Future[T]) -> T:
    """Wait for a result like `wait_with_timeout`, but do not cancel `done` after the timeout.

    This function runs for every message, so it avoids the objects that `shield` and `asyncio.timeout` create.
    """
    if not done.done():
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def complete(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        done.add_done_callback(complete)
        timer = loop.call_later(timeout_ms / 1000, complete)
        try:
            await over
        finally:
            timer.cancel()
            done.remove_done_callback(complete)
        if not done.done():
            raise _unknown_after(timeout_ms)
    return done.result()


async def wait_with_timeout(timeout_ms: int, done: Awaitable[T]) -> T:
    """Wait for `done`. After `timeout_ms`, raise PutIndeterminate (OUTCOME_UNKNOWN)."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await done
    except TimeoutError:
        raise _unknown_after(timeout_ms) from None


def _unknown_after(timeout_ms: int) -> PutIndeterminate:
    return PutIndeterminate(Status.OUTCOME_UNKNOWN, f"not known to be committed after {timeout_ms} ms")


def check_writable(config: TopicConfig) -> TopicConfig:
    """Return the topic if clients may send to it.

    Raises TopicRefused (TOPIC_NOT_WRITABLE, TOPIC_RESERVED).
    """
    if config.name in UNSENDABLE_TOPICS:
        raise error_for(Status.TOPIC_RESERVED, f"topic {config.name} is reserved: clients may not send to it")
    if not config.is_writable:
        text = f"topic {config.name} is not writable (perm {config.perm})"
        raise error_for(Status.TOPIC_NOT_WRITABLE, text)
    return config


def _broker_fields(topic: str, messages: Sequence[OutgoingMessage]) -> BrokerFields:
    """Return the fields that the broker sets. Only single messages can have been sent back by a consumer."""
    if len(messages) > 1 or not is_sent_back(topic):
        return NO_FIELDS
    return retry_fields(topic, split_properties(text_of(messages[0].properties)))
