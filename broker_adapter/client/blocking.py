"""The clients for programs without asyncio: the same calls, which wait. Each has a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from broker_adapter.client.admin import Admin
from broker_adapter.client.core.pulling import PullResult
from broker_adapter.client.core.route_data import BrokerAddresses, TopicRoute
from broker_adapter.client.core.subscription import ALL
from broker_adapter.client.core.values import Message, MessageExt, MessageQueue, SendResult
from broker_adapter.client.producer import Producer
from broker_adapter.client.pull_consumer import PullConsumer
from broker_adapter.client.push_consumer import Listener, PushConsumer
from dledger.platform import LoopThread

T = TypeVar("T")
C = TypeVar("C", Producer, PullConsumer, PushConsumer, Admin)


class _Blocking(Generic[C]):
    """A client of asyncio in a loop and thread of its own."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._thread = LoopThread("remoting-client")
        self._is_closed = False
        self._client: C = self._run(_made(make))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def close(self) -> None:
        """End what is in progress and disconnect. Repeatable."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._run(self._client.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        try:
            self._run(self._client.start())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _made(make: Callable[[], C]) -> C:
    """In the loop to which its connections belong."""
    return make()


class BlockingProducer(_Blocking[Producer]):
    """Blocking face of `Producer`, for any number of threads. Use it with `with`. Options as there."""

    def __init__(self, group: str, name_servers: Sequence[str] | str, **options: Any) -> None:
        super().__init__(lambda: Producer(group, name_servers, **options))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._run(self._client.queues(topic))

    def send(self, message: Message, **options: Any) -> SendResult:
        """See `Producer.send`."""
        return self._run(self._client.send(message, **options))

    def submit(self, message: Message, **options: Any) -> Future[SendResult]:
        """Begin to send, and return the future (RocketMQ's asynchronous send). See `Producer.send`."""
        return self._thread.start(self._client.send(message, **options))

    def send_batch(self, messages: Sequence[Message], **options: Any) -> SendResult:
        """See `Producer.send_batch`."""
        return self._run(self._client.send_batch(messages, **options))

    def request(self, message: Message, **options: Any) -> MessageExt:
        """See `Producer.request`."""
        return self._run(self._client.request(message, **options))

    def send_oneway(self, message: Message, **options: Any) -> None:
        """See `Producer.send_oneway`."""
        self._run(self._client.send_oneway(message, **options))


class BlockingPullConsumer(_Blocking[PullConsumer]):
    """Blocking face of `PullConsumer`. Use it with `with`. Options as there."""

    def __init__(self, group: str, name_servers: Sequence[str] | str, **options: Any) -> None:
        super().__init__(lambda: PullConsumer(group, name_servers, **options))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._run(self._client.queues(topic))

    def pull(self, queue: MessageQueue, offset: int, **options: Any) -> PullResult:
        """See `PullConsumer.pull`."""
        return self._run(self._client.pull(queue, offset, **options))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._run(self._client.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        self._run(self._client.commit(queue, offset))

    def commit_positions(self) -> None:
        self._run(self._client.commit_positions())

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """See `PullConsumer.assign`."""

        async def assign() -> None:
            self._client.assign(queues)

        self._run(assign())

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """See `PullConsumer.seek`."""

        async def seek() -> None:
            self._client.seek(queue, offset)

        self._run(seek())

    def poll(self, timeout_s: float = 5.0) -> list[MessageExt]:
        """See `PullConsumer.poll`."""
        return self._run(self._client.poll(timeout_s))


class BlockingPushConsumer(_Blocking[PushConsumer]):
    """Blocking face of `PushConsumer`: the listener is called on threads. Use it with `with`."""

    def __init__(
        self, group: str, name_servers: Sequence[str] | str, listener: Listener, **options: Any
    ) -> None:
        super().__init__(lambda: PushConsumer(group, name_servers, listener, **options))

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Before `with`. See `PushConsumer.subscribe`."""
        self._client.subscribe(topic, expression)


class BlockingAdmin(_Blocking[Admin]):
    """Blocking face of `Admin`. Use it with `with`. Options as there."""

    def __init__(self, name_servers: Sequence[str] | str, **options: Any) -> None:
        super().__init__(lambda: Admin(name_servers, **options))

    def clusters(self) -> dict[str, list[BrokerAddresses]]:
        return self._run(self._client.clusters())

    def route(self, topic: str) -> TopicRoute:
        return self._run(self._client.route(topic))

    def create_topic(self, topic: str, **options: Any) -> None:
        """See `Admin.create_topic`."""
        self._run(self._client.create_topic(topic, **options))

    def min_offset(self, queue: MessageQueue) -> int:
        return self._run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return self._run(self._client.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self._run(self._client.search_offset(queue, timestamp_ms))

    def view_message(self, offset_message_id: str) -> MessageExt:
        return self._run(self._client.view_message(offset_message_id))
