"""The clients for programs without asyncio: the same calls, which wait. Each has a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from broker_adapter.api import GroupConfig, QueueOffset, QueueStats, TopicConfig
from broker_adapter.client.admin import Admin
from broker_adapter.client.producer import Producer
from broker_adapter.client.pull_consumer import PullConsumer, QueueReader
from broker_adapter.client.routes import StaticRoutes
from broker_adapter.client.values import Message, MessageQueue, PullBatch, SendReceipt
from dledger import TlsFiles
from dledger.platform import LoopThread

T = TypeVar("T")
C = TypeVar("C", Producer, PullConsumer, Admin)

#: Makes the RouteSource (Admin: BrokerSource), in the client's own event loop; or the addresses of brokers.
Routes = Callable[[], Any] | Sequence[str] | str


class _Blocking(Generic[C]):
    """A client of asyncio in a loop and thread of its own."""

    def __init__(self, routes: Routes, tls: TlsFiles | None, make: Callable[[Any], C]) -> None:
        self._thread = LoopThread("dledger-broker-client")
        try:
            self._source: object
            self._client: C
            self._source, self._client = self._run(_made(routes, tls, make))
        except BaseException:
            self._thread.stop()
            raise
        self._closed = False

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def close(self) -> None:
        """End what is under way, disconnect."""
        if not self._closed:
            self._closed = True
            self._run(self._client.close())
            if isinstance(self._source, StaticRoutes):
                self._run(self._source.close())
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _made(routes: Routes, tls: TlsFiles | None, make: Callable[[Any], C]) -> tuple[object, C]:
    """gRPC's channels belong to the loop in which they are made."""
    source = routes() if callable(routes) else StaticRoutes(routes, tls=tls)
    return source, make(source)


class BlockingProducer(_Blocking[Producer]):
    """Blocking face of `Producer`, for any number of threads. `options` are those of `Producer`."""

    def __init__(self, routes: Routes, *, tls: TlsFiles | None = None, **options: Any) -> None:
        super().__init__(routes, tls, lambda source: Producer(source, tls=tls, **options))

    def send(self, topic: str, body: bytes, **options: Any) -> SendReceipt:
        """Send one message; it is committed on return. See `Producer.send`."""
        return self._run(self._client.send(topic, body, **options))

    def submit(self, topic: str, body: bytes, **options: Any) -> Future[SendReceipt]:
        """Begin to send one message, and return its future. See `Producer.send`."""
        return self._thread.start(self._client.send(topic, body, **options))

    def send_many(self, topic: str, bodies: Sequence[bytes], **options: Any) -> Sequence[SendReceipt]:
        """Send messages as one atomic batch. See `Producer.send_many`."""
        return self._run(self._client.send_many(topic, bodies, **options))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._run(self._client.queues(topic))


class BlockingQueueReader:
    """Blocking face of `QueueReader`."""

    def __init__(self, thread: LoopThread, reader: QueueReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def offset(self) -> int:
        return self._reader.offset

    def seek(self, offset: int) -> None:
        self._reader.seek(offset)

    def seek_to_time(self, timestamp_ms: int) -> None:
        self._thread.run(self._reader.seek_to_time(timestamp_ms))

    def commit(self) -> None:
        self._thread.run(self._reader.commit())

    def messages(self, *, follow: bool = False) -> Iterator[Message]:
        """Message after message. See `QueueReader.messages`."""
        return self._iterate(self._reader.messages(follow=follow))

    def batches(self, *, follow: bool = False) -> Iterator[list[Message]]:
        """Like `messages`, in lists as they arrive: cheaper for bulk."""
        return self._iterate(self._reader.batches(follow=follow))

    def _iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        async def fetch() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        try:
            while (found := self._thread.run(fetch())) is not None:
                yield found[0]
        finally:
            self._thread.run(_end(items))


async def _end(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


class BlockingPullConsumer(_Blocking[PullConsumer]):
    """Blocking face of `PullConsumer`. `options` are those of `PullConsumer`."""

    def __init__(self, routes: Routes, *, tls: TlsFiles | None = None, **options: Any) -> None:
        super().__init__(routes, tls, lambda source: PullConsumer(source, tls=tls, **options))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._run(self._client.queues(topic))

    def pull(self, topic: str, queue_id: int, offset: int, **options: Any) -> PullBatch:
        """See `PullConsumer.pull`."""
        return self._run(self._client.pull(topic, queue_id, offset, **options))

    def reader(self, topic: str, queue_id: int, offset: int, **options: Any) -> BlockingQueueReader:
        """See `PullConsumer.reader`."""
        return BlockingQueueReader(self._thread, self._client.reader(topic, queue_id, offset, **options))

    def bounds(self, topic: str, queue_id: int, *, broker: str = "") -> QueueStats:
        return self._run(self._client.bounds(topic, queue_id, broker=broker))

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, broker: str = "") -> int:
        return self._run(self._client.offset_by_time(topic, queue_id, timestamp_ms, broker=broker))

    def commit(self, topic: str, queue_id: int, offset: int, *, broker: str = "") -> None:
        self._run(self._client.commit(topic, queue_id, offset, broker=broker))

    def committed(self, topic: str, queue_id: int, *, broker: str = "") -> int | None:
        return self._run(self._client.committed(topic, queue_id, broker=broker))


class BlockingAdmin(_Blocking[Admin]):
    """Blocking face of `Admin`. `options` are those of `Admin`."""

    def __init__(self, routes: Routes, *, tls: TlsFiles | None = None, **options: Any) -> None:
        super().__init__(routes, tls, lambda source: Admin(source, tls=tls, **options))

    def put_topic(self, config: TopicConfig) -> None:
        self._run(self._client.put_topic(config))

    def delete_topic(self, name: str) -> None:
        self._run(self._client.delete_topic(name))

    def topics(self) -> list[TopicConfig]:
        return self._run(self._client.topics())

    def topic_stats(self, topic: str) -> list[QueueStats]:
        return self._run(self._client.topic_stats(topic))

    def put_group(self, config: GroupConfig) -> None:
        self._run(self._client.put_group(config))

    def delete_group(self, name: str) -> None:
        self._run(self._client.delete_group(name))

    def groups(self) -> list[GroupConfig]:
        return self._run(self._client.groups())

    def offsets(self, group: str) -> tuple[int, list[QueueOffset]]:
        return self._run(self._client.offsets(group))

    def reset_offsets(self, group: str, offsets: Sequence[QueueOffset]) -> int:
        return self._run(self._client.reset_offsets(group, offsets))

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return self._run(self._client.offset_by_time(topic, queue_id, timestamp_ms))

    def message(self, offset_id: str) -> Message:
        return self._run(self._client.message(offset_id))

    def query(self, topic: str, key: str, *, max_messages: int = 32) -> list[Message]:
        return self._run(self._client.query(topic, key, max_messages=max_messages))
