"""The push consumer.

The members of a group share the queues of its topics, and a listener receives the messages.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from broker_adapter.client import group_requests
from broker_adapter.client.consumer_calls import ConsumeFromWhere, ConsumerRequests
from broker_adapter.client.core.admin_bodies import parse_offset_table
from broker_adapter.client.core.checks import check_callable, check_type
from broker_adapter.client.core.member_bodies import QueueInfo, consumed_directly, running_info
from broker_adapter.client.core.rebalance import AllocateStrategy, allocate_averagely
from broker_adapter.client.core.subscription import ALL, SQL92, Expression, Subscription
from broker_adapter.client.core.values import MessageExt, MessageQueue, decode_one
from broker_adapter.client.group_requests import MessageModel
from broker_adapter.client.instance import ClientInstance, RemotingClient, now_ms
from broker_adapter.client.listening import GuardedListener, QueueListener
from broker_adapter.client.options import ClientOptions
from broker_adapter.client.program_calls import call_program
from broker_adapter.client.queue_worker import (
    NOT_LOCKED,
    ConsumeSettings,
    ConsumeStatus,
    QueueWorker,
    with_own_topic,
)
from broker_adapter.errors import BrokerError, IllegalMessage, PutRefused, ResponseCode, Status, TopicRefused
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Executor
from broker_adapter.wire.topic_names import RETRY_PREFIX, check_group_name, check_topic_name

_log = logging.getLogger(__name__)

#: A function (which runs on a thread) or a coroutine function. Returns a ConsumeStatus or None.
Listener = Callable[[Sequence[MessageExt]], object]

_REBALANCE_S = 20.0
#: Maximum length of quoted remarks in responses.
_REMARK = 255
#: Limits of a notice to reset offsets, which is parsed on the event loop.
_MAX_RESET_VALUES = 1 << 16
#: Valid offsets.
_OFFSETS = range(1 << 63)
_REBALANCE_AGAIN_S = 1.0  # after an incomplete rebalance
_MISSING_TOPIC_S = 5.0  # while a subscribed topic does not exist


class PushConsumer(RemotingClient):
    """RocketMQ's DefaultMQPushConsumer for asyncio. `subscribe`, then `async with`, or `start` and `close`.

    The listener receives each message at least once. Messages may be redelivered after a failure, a change of
    members or a crash.
    """

    def __init__(
        self,
        group: str,
        name_servers: Sequence[str] | str,
        listener: Listener,
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int = 0,
        allocate: AllocateStrategy = allocate_averagely,
        max_reconsume_times: int = 16,
        settings: ConsumeSettings | None = None,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
        queue_listener: QueueListener | None = None,
    ) -> None:
        """`consume_timestamp_ms`: ms since 1970, for CONSUME_FROM_TIMESTAMP. `max_reconsume_times`: maximum
        number of redeliveries before a message becomes a dead letter. With ordered consumption, a message
        never becomes a dead letter.

        A broadcasting consumer keeps its offsets only in memory. It starts at `consume_from`; in queues that
        are added later, it starts at the first message. Raises IllegalMessage if the group name is invalid or
        an argument has another type.
        """
        check_group_name(group)
        check_callable("listener", listener)
        check_callable("allocate", allocate)
        check_type("model", model, MessageModel)
        check_type("consume_from", consume_from, ConsumeFromWhere)
        check_type("consume_timestamp_ms", consume_timestamp_ms, int)
        check_type("max_reconsume_times", max_reconsume_times, int)
        self.group = group
        self._client = ClientInstance(name_servers, options, tls)
        self._calls = ConsumerRequests(self._client, group)
        self._listener = listener
        self._queue_listener = GuardedListener(queue_listener or QueueListener())
        self._is_clustering = model is MessageModel.CLUSTERING
        self._model = model
        self._consume_from = consume_from
        self._consume_timestamp_ms = consume_timestamp_ms
        self._allocate = allocate
        self._max_reconsume_times = max_reconsume_times
        self._settings = settings or ConsumeSettings()
        check_type("settings", self._settings, ConsumeSettings)
        self._slots = asyncio.Semaphore(self._settings.threads)
        self._threads = ThreadPoolExecutor(self._settings.threads, "consume")
        self._subscriptions: dict[str, Subscription] = {}
        self._workers: dict[MessageQueue, QueueWorker] = {}
        #: Listener calls that still run for ordered queues that this member no longer has. A thread cannot be
        #: stopped.
        self._running_calls: dict[MessageQueue, asyncio.Future[ConsumeStatus]] = {}
        self._rebalance = asyncio.Event()
        self._is_balanced = False
        self._was_balanced = False  # a rebalance has completed since the start
        self._missing: set[str] = set()  # subscribed topics without a route
        self._balancing = asyncio.Lock()  # guards changes of the assigned queues
        self._retry_topic = RETRY_PREFIX + group
        self._is_running = False
        self._started_ms = 0
        #: Queues whose last commit failed. A successful commit removes a queue from this set.
        self._commit_errors: dict[MessageQueue, BrokerError] = {}
        #: Number of resets of this member's queues. A reset replaces offsets that the member would have
        #: committed.
        self.reset_count = 0

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues assigned to this member, sorted."""
        return sorted(self._workers)

    @property
    def is_balanced(self) -> bool:
        """True if the last rebalance assigned this member its full share of the subscribed topics."""
        return self._is_balanced

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offsets of the assigned queues. All messages before them are consumed."""
        return {queue: worker.state.offset for queue, worker in self._workers.items()}

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Subscribe to a topic, before `start`. `expression`: `*`, tags separated by `||`, or an `SqlFilter`.
        Raises IllegalMessage.
        """
        if self._is_running:
            raise RuntimeError("subscribe before start")
        check_topic_name(topic)
        self._subscriptions[topic] = Subscription(topic, expression, now_ms())

    async def start(self) -> None:
        """Join the group. A subscribed topic may be created later, as for RocketMQ's consumer. Raises
        NameServerUnavailable, and IllegalMessage if a broker rejects an SQL filter.
        """
        self._is_running, self._started_ms = True, now_ms()
        for topic in self._subscriptions:
            try:
                await self._client.routes.get(topic)
            except TopicRefused as error:
                _log.warning("waiting for a topic: %s", error)
                continue
            await self._check_filter(self._subscriptions[topic])
        if self._is_clustering:
            self._subscriptions[self._retry_topic] = Subscription(self._retry_topic, ALL, now_ms())
        self._client.dispatch.register(
            [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], self._members_changed, Executor("notices", 8, 64)
        )
        self._client.dispatch.register(
            [RequestCode.RESET_CONSUMER_CLIENT_OFFSET], self._offsets_reset, Executor("resets", 8, 64)
        )
        admin = Executor("admin", 4, 16)
        self._client.dispatch.register([RequestCode.GET_CONSUMER_RUNNING_INFO], self._running_info, admin)
        self._client.dispatch.register([RequestCode.CONSUME_MESSAGE_DIRECTLY], self._consume_directly, admin)
        # the topic's queues may have changed
        self._client.routes.on_change = lambda topic: self._rebalance.set()
        self._client.start()
        await self._heartbeat()
        pause_s = await self._balance()
        self._client.run(self._every(self._client.options.heartbeat_broker_s, self._heartbeat))
        self._client.run(self._keep_balance(pause_s))
        self._client.run(self._every(self._settings.commit_interval_s, self._commit))
        if self._is_ordered:
            self._client.run(self._every(self._settings.lock_interval_s, self._renew_locks))

    async def close(self, timeout: float = 10.0) -> None:
        """Wait up to `timeout` seconds for the listener, commit, leave the group, and disconnect. May be
        called again.

        If a commit failed, in this call or when queues were released earlier, raises its BrokerError after
        disconnecting. The group then receives some messages of this member again.
        """
        was_running, self._is_running = self._is_running, False
        async with self._balancing:  # finish a queue change in progress
            await self._client.stop_tasks()
        await self._drop(list(self._workers.values()), timeout)
        if was_running:
            request = group_requests.unregister(self.client_id, consumer=self.group)
            await self._call_brokers(request)
        await self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        errors, self._commit_errors = self._commit_errors, {}
        if errors:
            raise next(iter(errors.values()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the consumer.

        If the block has raised an error, that error takes precedence over an error from `close`.
        """
        try:
            await self.close()
        except BrokerError as failure:
            if error is None:
                raise
            _log.warning("offsets were not committed: %s", failure)

    async def abandon(self) -> None:
        """Disconnect without committing or leaving the group, like a crash. May be called again."""
        self._is_running = False
        self._commit_errors.clear()
        await self._client.connections.close()
        async with self._balancing:
            await self._client.stop_tasks()
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.state.is_dropped = True
        await self._client.close()
        await asyncio.gather(*(worker.stop(0.0) for worker in workers))
        for worker in workers:
            self._queue_listener.revoked(worker.queue)
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _is_ordered(self) -> bool:
        return self._settings.is_ordered and self._is_clustering

    async def _check_filter(self, subscription: Subscription) -> None:
        """Let a broker check an SQL filter, as RocketMQ's clients do, because each pull with an invalid one
        would fail."""
        if subscription.kind != SQL92:
            return
        for broker in (await self._client.routes.get(subscription.topic)).brokers.values():
            request = group_requests.check_subscription(self.client_id, self.group, subscription)
            try:
                address = await self._client.reader_of(subscription.topic, broker.name)
                await self._client.call(address, request)
            except IllegalMessage:
                raise
            except BrokerError as error:
                _log.warning("a filter was not checked: %s", error)
            else:
                return

    # -- membership

    async def _heartbeat(self) -> None:
        request = group_requests.heartbeat(
            self.client_id,
            group=self.group,
            model=self._model,
            where=self._consume_from,
            subscriptions=self._subscriptions.values(),
        )
        await self._call_brokers(request)

    async def _call_brokers(self, request: RemotingCommand) -> None:
        """Send the request to all brokers of the subscribed topics.

        Failures are logged. The next heartbeat repeats the request.
        """
        routes = self._client.routes.known
        addresses = {
            address
            for topic in self._subscriptions
            if topic in routes
            for broker in routes[topic].brokers.values()
            for address in broker.addresses.values()
        }
        await asyncio.gather(*(self._call_broker(address, replace(request)) for address in sorted(addresses)))

    async def _call_broker(self, address: str, request: RemotingCommand) -> None:
        try:
            await self._client.call(address, request)
        except BrokerError as error:
            _log.info("a request to a broker failed: address %s, %s", address, error)

    async def _members_changed(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        if request.fields.get("consumerGroup") == self.group:
            self._rebalance.set()

    async def _members(self, topic: str) -> list[str]:
        """Return the ids of the group's members. Raises BrokerError if no broker of the topic responds in
        time.
        """
        last: BrokerError = PutRefused(Status.NOT_CONNECTED, f"{topic}: the route has no broker")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._client.options.timeout):
                for broker in (await self._client.routes.get(topic)).brokers.values():
                    try:
                        address = await self._client.master_of(topic, broker.name)
                        answer = await self._client.call(address, group_requests.members_of(self.group))
                        return group_requests.parse_members(answer.body)
                    except BrokerError as error:
                        last = error
        raise last

    # -- queues

    async def _keep_balance(self, pause_s: float) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._rebalance.wait()
            self._rebalance.clear()
            pause_s = await self._balance()

    async def _balance(self) -> float:
        """Acquire and release queues. Return the time in seconds until the next attempt."""
        is_complete = True
        is_balanced = True
        for topic in list(self._subscriptions):
            try:
                async with self._balancing:
                    is_complete &= await self._balance_topic(topic)
            except TopicRefused:
                self._missing.add(topic)
                # The broker creates the retry topic some time after the first heartbeat.
                is_complete &= topic != self._retry_topic
            except BrokerError as error:
                _log.info("not rebalanced: topic %s, %s", topic, error)
                is_complete = False
            except Exception:  # the program's allocation strategy failed; the next round may succeed
                _log.exception("not rebalanced: topic %s", topic)
                is_complete = False
            if topic != self._retry_topic:
                is_balanced &= is_complete
        self._is_balanced = is_balanced
        self._was_balanced |= is_balanced
        if not is_complete:
            return _REBALANCE_AGAIN_S
        return _MISSING_TOPIC_S if self._missing else _REBALANCE_S

    async def _balance_topic(self, topic: str) -> bool:
        if not self._is_running:
            return True
        queues = (await self._client.routes.get(topic)).subscribe_queues(topic)
        if topic in self._missing:
            # Its brokers may be new to this client, and would otherwise not know this member until the next
            # heartbeat.
            self._missing.discard(topic)
            await self._heartbeat()
        assigned = list(queues)
        if self._is_clustering:
            members = await self._members(topic)
            if self.client_id not in members:
                return False  # the broker does not know this member yet; keep the current queues
            assigned = self._allocate(queues, members, self.client_id)
        mine = {queue: worker for queue, worker in self._workers.items() if queue.topic == topic}
        await self._drop([worker for queue, worker in mine.items() if queue not in assigned], grace_s=1.0)
        new = [queue for queue in assigned if queue not in mine]
        requested_at = asyncio.get_running_loop().time()
        answers = await self._lock_queues(new, unlock=False) if self._is_ordered else dict.fromkeys(new, True)
        locked = [queue for queue in new if answers.get(queue)]
        for queue in locked:
            self._start_at(queue, await self._start_of(queue), requested_at)
        return len(locked) == len(new)

    def _start_at(self, queue: MessageQueue, begin: int, locked_at: float) -> None:
        worker = QueueWorker(
            queue,
            begin,
            self._subscriptions[queue.topic],
            self._calls,
            self._consume,
            self._send_back if self._is_clustering else None,
            replace(self._settings, is_ordered=self._is_ordered),
            self._slots,
            self._queue_listener,
        )
        worker.locked_at, worker.after = locked_at, self._running_calls.get(queue)
        self._workers[queue] = worker
        self._queue_listener.assigned(queue, begin)
        worker.start()

    async def _start_of(self, queue: MessageQueue) -> int:
        where = self._consume_from
        if queue.topic == self._retry_topic:
            where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if self._is_clustering:
            return await self._group_start(queue, where)
        if self._was_balanced and where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        return await self._calls.start_of(queue, where, self._consume_timestamp_ms)

    async def _group_start(self, queue: MessageQueue, where: ConsumeFromWhere) -> int:
        """Return the start position, and commit it if it depends on the current time.

        Suppose that a member starts at the end of a queue and leaves, and then a message arrives. Without the
        commit, the next member would start after the message.
        """
        offset = await self._calls.committed(queue)
        if offset is None:
            offset = await self._calls.first_offset(queue, where, self._consume_timestamp_ms)
            if where is not ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
                await self._calls.commit(queue, offset)
        return offset

    async def _drop(self, workers: list[QueueWorker], grace_s: float) -> None:
        """Release queues. Their offsets are committed before another member gets the queues.

        If a listener call for an ordered queue is running, the queue remains locked until the call ends or
        the lock expires.
        """
        for worker in workers:
            self._workers.pop(worker.queue, None)
        await asyncio.gather(*(worker.stop(grace_s) for worker in workers))
        if self._is_clustering:
            await asyncio.gather(*map(self._commit_one, workers))
        for worker in workers:
            worker.state.is_dropped = True
            self._queue_listener.revoked(worker.queue)
        unlocked = [worker.queue for worker in workers if worker.queue not in self._running_calls]
        if self._is_ordered and unlocked:
            await self._lock_queues(unlocked, unlock=True)

    async def _offsets_reset(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Handle a reset of the group's offsets.

        Consumption continues at the new offsets, and messages in memory are not committed.
        """
        if request.fields.get("group") != self.group:
            return
        offsets = parse_offset_table(request.body, _MAX_RESET_VALUES)
        async with self._balancing:
            for queue, offset in offsets.items():
                if type(offset) is not int or offset not in _OFFSETS or queue not in self._workers:
                    continue
                worker = self._workers.pop(queue)
                worker.state.is_dropped = True
                self._note_reset(queue)
                await worker.stop(grace_s=1.0)
                self._queue_listener.revoked(queue)
                if self._is_running:
                    self._start_at(queue, offset, worker.locked_at)

    async def _commit(self) -> None:
        if not self._is_clustering:
            return
        for worker in list(self._workers.values()):
            await self._commit_one(worker)

    async def _commit_one(self, worker: QueueWorker) -> None:
        try:
            await worker.commit()
        except BrokerError as error:
            if error.status is Status.GENERATION_STALE:
                self._note_reset(worker.queue)
                return
            self._commit_errors[worker.queue] = error
            _log.warning("an offset was not committed: queue %s, %s", worker.queue, error)
        else:
            self._commit_errors.pop(worker.queue, None)

    def _note_reset(self, queue: MessageQueue) -> None:
        """Record that a reset has replaced an offset that this member was going to commit."""
        self._commit_errors.pop(queue, None)
        self.reset_count += 1

    # -- locks of ordered queues

    async def _renew_locks(self) -> None:
        requested_at = asyncio.get_running_loop().time()
        for queue, is_granted in (await self._lock_queues(list(self._workers), unlock=False)).items():
            worker = self._workers.get(queue)
            # the queue was released in the meantime, and another member must be able to lock it
            if worker is None and is_granted:
                self._client.run(self._unlock(queue))
            elif worker is not None and worker.locked_at <= requested_at:  # not locked again meanwhile
                worker.locked_at = requested_at if is_granted else NOT_LOCKED

    async def _lock_queues(self, queues: Sequence[MessageQueue], *, unlock: bool) -> dict[MessageQueue, bool]:
        """Lock or unlock queues at their brokers. Return a dict that maps each queue to True if this member
        holds its lock.

        The dict omits the queues of brokers that do not respond. Their locks remain valid until they expire.
        """
        of_brokers: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            of_brokers.setdefault(queue.broker_name, []).append(queue)
        responses = await asyncio.gather(
            *(self._lock_at_broker(group, unlock=unlock) for group in of_brokers.values())
        )
        return {queue: is_granted for answers in responses for queue, is_granted in answers.items()}

    async def _lock_at_broker(
        self, queues: Sequence[MessageQueue], *, unlock: bool
    ) -> dict[MessageQueue, bool]:
        """Lock or unlock the queues of one broker."""
        name, topic = queues[0].broker_name, queues[-1].topic
        request = group_requests.lock(self.group, self.client_id, queues, unlock=unlock)
        try:
            answer = await self._client.call(await self._client.master_of(topic, name), request)
            locked = set() if unlock else group_requests.parse_locked(answer.body)
        except BrokerError as error:
            _log.info("locks were not changed: broker %s, %s", name, error)
            return {}
        return {queue: queue in locked for queue in queues}

    # -- the listener

    async def _consume(self, messages: Sequence[MessageExt]) -> ConsumeStatus:
        if not self._is_ordered or inspect.iscoroutinefunction(self._listener):
            return await self._call_listener(messages)
        call = asyncio.ensure_future(self._call_listener(messages))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            queue = messages[0].queue
            self._running_calls[queue] = call
            call.add_done_callback(lambda _: self._on_call_end(queue))
            raise

    def _on_call_end(self, queue: MessageQueue) -> None:
        del self._running_calls[queue]
        if self._is_running and queue not in self._workers:
            self._client.run(self._unlock(queue))

    async def _unlock(self, queue: MessageQueue) -> None:
        async with self._balancing:
            if queue not in self._workers and queue not in self._running_calls:
                await self._lock_queues([queue], unlock=True)

    async def _call_listener(self, messages: Sequence[MessageExt]) -> ConsumeStatus:
        try:
            return await self._listen(messages)
        except Exception:
            _log.exception("the listener failed: message id %s", messages[0].message_id)
            return ConsumeStatus.RECONSUME_LATER

    async def _listen(self, messages: Sequence[MessageExt]) -> ConsumeStatus:
        """Call the listener and return its status. Exceptions of the listener propagate."""
        status = await call_program(self._listener, messages, self._threads)
        return ConsumeStatus.CONSUME_SUCCESS if status is None else ConsumeStatus(status)

    # -- requests of administrators

    async def _running_info(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        if request.fields.get("consumerGroup") != self.group:
            return self._not_of_this_group(request)
        lag_ms = now_ms() - round(asyncio.get_running_loop().time() * 1000)
        queues = {
            queue: QueueInfo(
                worker.state.cached,
                worker.state.offset,
                worker.is_locked,
                0 if worker.locked_at == NOT_LOCKED else round(worker.locked_at * 1000) + lag_ms,
                worker.pulled_ms,
                worker.consumed_ms,
            )
            for queue, worker in sorted(self._workers.items())
        }
        properties = {
            "PROP_CONSUMEORDERLY": str(self._is_ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_THREADPOOL_CORE_SIZE": str(self._settings.threads),
        }
        return request.answer(
            ResponseCode.SUCCESS, body=running_info(properties, self._subscriptions.values(), queues)
        )

    async def _consume_directly(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """Pass a message to the listener at an administrator's request. The result is reported but has no
        effect.

        Raises StoredDataDamaged if the message cannot be decoded.
        """
        if request.fields.get("consumerGroup") != self.group:
            return self._not_of_this_group(request)
        message = decode_one(request.body, request.fields.get("brokerName", ""))
        remark = None
        async with self._slots:
            started_ms = now_ms()
            try:
                status = await self._listen([with_own_topic(message)])
                result = "CR_SUCCESS" if status is ConsumeStatus.CONSUME_SUCCESS else "CR_LATER"
            except Exception as error:
                _log.exception("the listener failed: message id %s", message.message_id)
                result, remark = "CR_THROW_EXCEPTION", repr(error)[:_REMARK]
        body = consumed_directly(
            result, is_ordered=self._is_ordered, spent_ms=now_ms() - started_ms, remark=remark
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _not_of_this_group(self, request: RemotingCommand) -> RemotingCommand:
        group = request.fields.get("consumerGroup", "")[:_REMARK]
        problem = f"The Consumer Group <{group}> not exist in this consumer"
        return request.answer(ResponseCode.SYSTEM_ERROR, problem)

    async def _send_back(self, message: MessageExt) -> None:
        delay_level = 0 if message.body_error is None else group_requests.DEAD_LETTER
        request = group_requests.send_back(
            self.group, message, delay_level=delay_level, max_attempts=self._max_reconsume_times
        )
        address = await self._client.master_of(message.queue.topic, message.queue.broker_name)
        await self._client.call(address, request)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await work()
