"""PushConsumer: members of a group share the queues of its topics, and a listener gets the messages."""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from broker_adapter.client import group_requests
from broker_adapter.client.consumer_calls import ConsumeFromWhere, ConsumerCalls
from broker_adapter.client.core.admin_bodies import parse_offset_table
from broker_adapter.client.core.member_bodies import QueueInfo, consumed_directly, running_info
from broker_adapter.client.core.rebalance import AllocateStrategy, allocate_averagely
from broker_adapter.client.core.subscription import ALL, Subscription
from broker_adapter.client.core.values import MessageExt, MessageQueue, decode_messages
from broker_adapter.client.group_requests import MessageModel
from broker_adapter.client.instance import ClientInstance, RemotingClient, now_ms
from broker_adapter.client.listening import QueueListener
from broker_adapter.client.options import ClientOptions
from broker_adapter.client.queue_worker import (
    NOT_LOCKED,
    ConsumeSettings,
    ConsumeStatus,
    QueueWorker,
    with_own_topic,
)
from broker_adapter.errors import BrokerError, PutRefused, ResponseCode, Status, TopicRefused
from broker_adapter.format.topic_names import RETRY_PREFIX
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Executor

_log = logging.getLogger(__name__)

#: A function, or a coroutine function; functions run on threads. The result is a ConsumeStatus or None.
Listener = Callable[[Sequence[MessageExt]], object]

_REBALANCE_S = 20.0
#: Characters of what others have said, in answers.
_REMARK = 255
#: All that an offset may be.
_OFFSETS = range(1 << 63)
_REBALANCE_AGAIN_S = 1.0  # after something was missing


class PushConsumer(RemotingClient):
    """RocketMQ's DefaultMQPushConsumer for asyncio. `subscribe`, then `async with`, or `start` and `close`.

    Each message is given to the listener at least once: after a failure, a change of members or a crash some
    come again.
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
        """`consume_timestamp_ms`: since 1970, for CONSUME_FROM_TIMESTAMP. `max_reconsume_times`: then a
        message is a dead letter; those of ordered consumption never are.

        A broadcasting consumer keeps its offsets in memory: it begins at `consume_from` after each start.
        """
        self.group = group
        self._client = ClientInstance(name_servers, options, tls)
        self._calls = ConsumerCalls(self._client, group)
        self._listener = listener
        self._queue_listener = queue_listener or QueueListener()
        self._is_clustering = model is MessageModel.CLUSTERING
        self._model = model
        self._consume_from = consume_from
        self._consume_timestamp_ms = consume_timestamp_ms
        self._allocate = allocate
        self._max_reconsume_times = max_reconsume_times
        self._settings = settings or ConsumeSettings()
        self._slots = asyncio.Semaphore(self._settings.threads)
        self._threads = ThreadPoolExecutor(self._settings.threads, "consume")
        self._subscriptions: dict[str, Subscription] = {}
        self._workers: dict[MessageQueue, QueueWorker] = {}
        #: Calls of the listener that go on though their ordered queues were left: nothing ends a thread.
        self._going_on: dict[MessageQueue, asyncio.Future[ConsumeStatus]] = {}
        self._rebalance = asyncio.Event()
        self._is_balanced = False
        self._balancing = asyncio.Lock()  # who changes which queues there are
        self._retry_topic = RETRY_PREFIX + group
        self._is_running = False
        self._started_ms = 0

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """Queues that this member has now, sorted."""
        return sorted(self._workers)

    @property
    def is_balanced(self) -> bool:
        """Whether this member has all of its share of the subscribed topics, as it was last found."""
        return self._is_balanced

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """Of the queues that this member has: everything before is done."""
        return {queue: worker.state.offset for queue, worker in self._workers.items()}

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Before `start`. `expression`: `*`, or tags with `||` between them. IllegalMessage."""
        assert not self._is_running, "subscribe before start"
        self._subscriptions[topic] = Subscription(topic, expression, now_ms())

    async def start(self) -> None:
        """Join the group. TopicRefused, NameServerUnavailable if a subscribed topic has no route."""
        self._is_running, self._started_ms = True, now_ms()
        for topic in self._subscriptions:
            await self._client.routes.get(topic)
        if self._is_clustering:
            self._subscriptions[self._retry_topic] = Subscription(self._retry_topic, ALL, now_ms())
        self._client.dispatch.register(
            [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], self._members_changed, Executor("notices", 8, 64)
        )
        self._client.dispatch.register(
            [RequestCode.RESET_CONSUMER_CLIENT_OFFSET], self._offsets_reset, Executor("resets", 8, 64)
        )
        asked = Executor("asked", 4, 16)
        self._client.dispatch.register([RequestCode.GET_CONSUMER_RUNNING_INFO], self._running_info, asked)
        self._client.dispatch.register([RequestCode.CONSUME_MESSAGE_DIRECTLY], self._consume_directly, asked)
        self._client.routes.on_change = lambda topic: self._rebalance.set()  # it may have other queues
        self._client.start()
        await self._heartbeat()
        await self._balance()
        self._client.run(self._every(self._client.options.heartbeat_broker_s, self._heartbeat))
        self._client.run(self._keep_balance())
        self._client.run(self._every(self._settings.commit_interval_s, self._commit))
        if self._is_ordered:
            self._client.run(self._every(self._settings.lock_interval_s, self._renew_locks))

    async def close(self, grace_s: float = 10.0) -> None:
        """Wait `grace_s` seconds for the listener, commit, leave the group, disconnect. Repeatable."""
        was_running, self._is_running = self._is_running, False
        async with self._balancing:  # a queue that is just being left is left to the end
            await self._client.stop_tasks()
        await self._drop(list(self._workers.values()), grace_s)
        if was_running:
            request = group_requests.unregister(self.client_id, consumer=self.group)
            await self._tell_brokers(request)
        await self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def abandon(self) -> None:
        """Disconnect as a program that dies: nothing is committed, nobody is told. Repeatable."""
        self._is_running = False
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

    # -- membership

    async def _heartbeat(self) -> None:
        request = group_requests.heartbeat(
            self.client_id,
            group=self.group,
            model=self._model,
            where=self._consume_from,
            subscriptions=self._subscriptions.values(),
        )
        await self._tell_brokers(request)

    async def _tell_brokers(self, request: RemotingCommand) -> None:
        """All brokers of the subscribed topics; one that does not answer is told the next time."""
        routes = self._client.routes.known
        addresses = {
            address
            for topic in self._subscriptions
            if topic in routes
            for broker in routes[topic].brokers.values()
            for address in broker.addresses.values()
        }
        await asyncio.gather(*(self._tell_broker(address, replace(request)) for address in sorted(addresses)))

    async def _tell_broker(self, address: str, request: RemotingCommand) -> None:
        try:
            await self._client.call(address, request)
        except BrokerError as error:
            _log.info("a broker was not told: address %s, %s", address, error)

    async def _members_changed(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        if request.fields.get("consumerGroup") == self.group:
            self._rebalance.set()

    async def _members(self, topic: str) -> list[str]:
        """BrokerError if no broker of the topic says it, of those that are asked in the time of a call."""
        last: BrokerError = PutRefused(Status.NOT_CONNECTED, f"{topic}: the route names no broker")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._client.options.timeout_s):
                for broker in (await self._client.routes.get(topic)).brokers.values():
                    try:
                        address = await self._client.master_of(topic, broker.name)
                        answer = await self._client.call(address, group_requests.members_of(self.group))
                        return group_requests.parse_members(answer.body)
                    except BrokerError as error:
                        last = error
        raise last

    # -- queues

    async def _keep_balance(self) -> None:
        is_complete = True
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_REBALANCE_S if is_complete else _REBALANCE_AGAIN_S):
                    await self._rebalance.wait()
            self._rebalance.clear()
            is_complete = await self._balance()

    async def _balance(self) -> bool:
        """Take and leave queues. False if something is missing: look again soon."""
        is_complete = True
        is_balanced = True
        for topic in list(self._subscriptions):
            try:
                async with self._balancing:
                    is_complete &= await self._balance_topic(topic)
            except TopicRefused:
                # A retry topic is there some time after the first heartbeat only.
                is_complete &= topic != self._retry_topic
            except BrokerError as error:
                _log.info("not rebalanced: topic %s, %s", topic, error)
                is_complete = False
            except Exception:  # of a program's own strategy: the next round may fare better
                _log.exception("not rebalanced: topic %s", topic)
                is_complete = False
            if topic != self._retry_topic:
                is_balanced &= is_complete
        self._is_balanced = is_balanced
        return is_complete

    async def _balance_topic(self, topic: str) -> bool:
        if not self._is_running:
            return True
        queues = (await self._client.routes.get(topic)).subscribe_queues(topic)
        wanted = list(queues)
        if self._is_clustering:
            members = await self._members(topic)
            if self.client_id not in members:
                return False  # the broker does not know us yet; what we have stays ours
            wanted = self._allocate(queues, members, self.client_id)
        mine = {queue: worker for queue, worker in self._workers.items() if queue.topic == topic}
        await self._drop([worker for queue, worker in mine.items() if queue not in wanted], grace_s=1.0)
        new = [queue for queue in wanted if queue not in mine]
        asked_at = asyncio.get_running_loop().time()
        answers = await self._ask_locks(new, unlock=False) if self._is_ordered else dict.fromkeys(new, True)
        locked = [queue for queue in new if answers.get(queue)]
        for queue in locked:
            self._start_at(queue, await self._begin_at(queue), asked_at)
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
        worker.locked_at, worker.after = locked_at, self._going_on.get(queue)
        self._workers[queue] = worker
        self._queue_listener.assigned(queue, begin)
        worker.start()

    async def _begin_at(self, queue: MessageQueue) -> int:
        where = self._consume_from
        if queue.topic == self._retry_topic:
            where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if self._is_clustering:
            return await self._calls.first_offset(queue, where, self._consume_timestamp_ms)
        return await self._calls.begin_of(queue, where, self._consume_timestamp_ms)

    async def _drop(self, workers: list[QueueWorker], grace_s: float) -> None:
        """Leave queues: what was done is committed before another member takes them. Who still consumes an
        ordered one keeps its lock, until that is over or nobody renews it."""
        for worker in workers:
            self._workers.pop(worker.queue, None)
        await asyncio.gather(*(worker.stop(grace_s) for worker in workers))
        if self._is_clustering:
            await asyncio.gather(*map(self._commit_one, workers))
        for worker in workers:
            worker.state.is_dropped = True
            self._queue_listener.revoked(worker.queue)
        left = [worker.queue for worker in workers if worker.queue not in self._going_on]
        if self._is_ordered and left:
            await self._ask_locks(left, unlock=True)

    async def _offsets_reset(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Somebody has set the group's offsets: go on there. What was being consumed is not committed."""
        if request.fields.get("group") != self.group:
            return
        offsets = parse_offset_table(request.body)
        async with self._balancing:
            for queue, offset in offsets.items():
                if type(offset) is not int or offset not in _OFFSETS or queue not in self._workers:
                    continue
                worker = self._workers.pop(queue)
                worker.state.is_dropped = True
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
            _log.info("an offset was not committed: queue %s, %s", worker.queue, error)

    # -- locks of ordered queues

    async def _renew_locks(self) -> None:
        asked_at = asyncio.get_running_loop().time()
        for queue, is_granted in (await self._ask_locks(list(self._workers), unlock=False)).items():
            worker = self._workers.get(queue)
            if worker is None and is_granted:  # it was left meanwhile: nobody else would get it
                self._client.run(self._unlock(queue))
            elif worker is not None and worker.locked_at <= asked_at:  # it was not taken again meanwhile
                worker.locked_at = asked_at if is_granted else NOT_LOCKED

    async def _ask_locks(self, queues: Sequence[MessageQueue], *, unlock: bool) -> dict[MessageQueue, bool]:
        """Each broker for its queues: whether they are locked for this member. Those of brokers that do not
        answer are left out: a lock that is believed in is believed in on."""
        of_brokers: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            of_brokers.setdefault(queue.broker_name, []).append(queue)
        told = await asyncio.gather(*(self._ask_lock(its, unlock=unlock) for its in of_brokers.values()))
        return {queue: is_granted for answers in told for queue, is_granted in answers.items()}

    async def _ask_lock(self, queues: Sequence[MessageQueue], *, unlock: bool) -> dict[MessageQueue, bool]:
        """Those of one broker."""
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
            return await self._told(messages)
        call = asyncio.ensure_future(self._told(messages))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            queue = messages[0].queue
            self._going_on[queue] = call
            call.add_done_callback(lambda _: self._call_is_over(queue))
            raise

    def _call_is_over(self, queue: MessageQueue) -> None:
        del self._going_on[queue]
        if self._is_running and queue not in self._workers:
            self._client.run(self._unlock(queue))

    async def _unlock(self, queue: MessageQueue) -> None:
        async with self._balancing:
            if queue not in self._workers and queue not in self._going_on:
                await self._ask_locks([queue], unlock=True)

    async def _told(self, messages: Sequence[MessageExt]) -> ConsumeStatus:
        try:
            return await self._listen(messages)
        except Exception:
            _log.exception("the listener failed: message id %s", messages[0].message_id)
            return ConsumeStatus.RECONSUME_LATER

    async def _listen(self, messages: Sequence[MessageExt]) -> ConsumeStatus:
        """What the listener says, and raises."""
        if inspect.iscoroutinefunction(self._listener):
            status = await self._listener(messages)
        else:
            status = await asyncio.get_running_loop().run_in_executor(self._threads, self._listener, messages)
        return ConsumeStatus.CONSUME_SUCCESS if status is None else ConsumeStatus(status)

    # -- what administrators ask

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
        """A message out of turn. The listener's answer changes nothing: an administrator reads it.

        StoredDataDamaged for a message that cannot be read."""
        if request.fields.get("consumerGroup") != self.group:
            return self._not_of_this_group(request)
        found = decode_messages(request.body, request.fields.get("brokerName", ""))
        if not found:
            return request.answer(ResponseCode.SYSTEM_ERROR, "there is no message in the request")
        remark = None
        async with self._slots:
            begun_ms = now_ms()
            try:
                status = await self._listen([with_own_topic(message) for message in found])
                result = "CR_SUCCESS" if status is ConsumeStatus.CONSUME_SUCCESS else "CR_LATER"
            except Exception as error:
                _log.exception("the listener failed: message id %s", found[0].message_id)
                result, remark = "CR_THROW_EXCEPTION", repr(error)[:_REMARK]
        body = consumed_directly(
            result, is_ordered=self._is_ordered, spent_ms=now_ms() - begun_ms, remark=remark
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    def _not_of_this_group(self, request: RemotingCommand) -> RemotingCommand:
        group = request.fields.get("consumerGroup", "")[:_REMARK]
        problem = f"The Consumer Group <{group}> not exist in this consumer"
        return request.answer(ResponseCode.SYSTEM_ERROR, problem)

    async def _send_back(self, message: MessageExt) -> None:
        request = group_requests.send_back(self.group, message, delay_level=0, most=self._max_reconsume_times)
        address = await self._client.master_of(message.queue.topic, message.queue.broker_name)
        await self._client.call(address, request)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await work()
