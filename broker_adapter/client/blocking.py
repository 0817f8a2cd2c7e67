"""Clients for programs without asyncio, with the same calls. Each client has its own thread.

Each method wraps the asyncio client's method and has the same parameters and docstring.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from broker_adapter.client.admin import Admin
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.client.instance import RemotingClient
from broker_adapter.client.producer import Producer
from broker_adapter.client.pull_consumer import PullConsumer
from broker_adapter.client.push_consumer import PushConsumer
from broker_adapter.client.transactions import TransactionProducer
from broker_adapter.errors import BrokerError
from dledger.infra.loops.loop_thread import LoopThread

_log = logging.getLogger(__name__)

#: Time for calls in other threads to fail by themselves after the client has disconnected (seconds). Only the
#: call itself knows whether a message may be stored.
_GRACE_S = 1.0

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=RemotingClient, covariant=True)
R = TypeVar("R", bound=RemotingClient)
Sending = TypeVar("Sending", bound=Producer, covariant=True)


class _BlockingClient(Generic[C]):
    """An asyncio client with its own event loop and thread."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._thread = LoopThread("remoting-client")
        self._is_closed = False
        try:
            self._client: C = self._in_loop(make)  # in the event loop that owns its connections
        except BaseException:
            self._thread.stop()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def _in_loop(self, function: Callable[[], T]) -> T:
        """Call a function on the loop's thread, which owns the state of the client."""

        async def call() -> T:
            return function()

        return self._run(call())

    def start(self) -> None:
        """Start the client: `with` does the same. After an error it is closed."""
        try:
            self._run(self._client.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop background work and disconnect. May be called again."""
        self._close(lambda: self._client.close())

    def _close(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._thread.check_caller()
        if not self._is_closed:
            self._is_closed = True
            try:
                self._run(end())
            finally:
                self._thread.stop(_GRACE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client.

        If the block has raised an error, that error takes precedence over an error from `close`.
        """
        try:
            self.close()
        except BrokerError as failure:
            if error is None:
                raise
            _log.warning("closing the client failed: %s", failure)


def _blocking(
    method: Callable[Concatenate[R, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_BlockingClient[R], P], T]:
    """Derive a blocking method from a coroutine method."""

    @wraps(method)
    def call(self: _BlockingClient[R], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    return call


def _starting(
    method: Callable[Concatenate[R, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_BlockingClient[R], P], Future[T]]:
    """Derive a method that starts the work of a coroutine method and returns a future."""

    @wraps(method)
    def call(self: _BlockingClient[R], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._thread.start(method(self._client, *args, **kwargs))

    return call


def _on_loop(
    method: Callable[Concatenate[R, P], T],
) -> Callable[Concatenate[_BlockingClient[R], P], T]:
    """Derive a method from one that is not a coroutine."""

    @wraps(method)
    def call(self: _BlockingClient[R], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._in_loop(lambda: method(self._client, *args, **kwargs))

    return call


def _with_parameters_of(
    original: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the parameters and the docstring of another one."""
    return wraps(original)


class _BlockingSender(_BlockingClient[Sending]):
    """The methods that both kinds of producers have."""

    queues = _blocking(Producer.queues)
    send = _blocking(Producer.send)
    submit = _starting(Producer.send)
    send_batch = _blocking(Producer.send_batch)
    send_oneway = _blocking(Producer.send_oneway)
    request = _blocking(Producer.request)

    @property
    def group(self) -> str:
        return self._client.group


class BlockingProducer(_BlockingSender[Producer]):
    """The blocking interface of `Producer`. Use `with`. Thread-safe.

    `submit` starts a `send` and returns a future (RocketMQ's asynchronous send).
    """

    @_with_parameters_of(Producer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: Producer(*args, **kwargs))


class BlockingTransactionProducer(_BlockingSender[TransactionProducer]):
    """The blocking interface of `TransactionProducer`. Use `with`. Thread-safe."""

    @_with_parameters_of(TransactionProducer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: TransactionProducer(*args, **kwargs))

    send_in_transaction = _blocking(TransactionProducer.send_in_transaction)


class BlockingPullConsumer(_BlockingClient[PullConsumer]):
    """The blocking interface of `PullConsumer`. Use `with`."""

    @_with_parameters_of(PullConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: PullConsumer(*args, **kwargs))

    queues = _blocking(PullConsumer.queues)
    pull = _blocking(PullConsumer.pull)
    committed = _blocking(PullConsumer.committed)
    commit = _blocking(PullConsumer.commit)
    commit_positions = _blocking(PullConsumer.commit_positions)
    min_offset = _blocking(PullConsumer.min_offset)
    max_offset = _blocking(PullConsumer.max_offset)
    search_offset = _blocking(PullConsumer.search_offset)
    assign = _on_loop(PullConsumer.assign)
    seek = _on_loop(PullConsumer.seek)
    seek_to_begin = _blocking(PullConsumer.seek_to_begin)
    seek_to_end = _blocking(PullConsumer.seek_to_end)
    position = _on_loop(PullConsumer.position)
    poll = _blocking(PullConsumer.poll)

    @property
    def group(self) -> str:
        return self._client.group


class BlockingPushConsumer(_BlockingClient[PushConsumer]):
    """The blocking interface of `PushConsumer`. The listener is called on threads. Use `with`."""

    @_with_parameters_of(PushConsumer.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: PushConsumer(*args, **kwargs))

    subscribe = _on_loop(PushConsumer.subscribe)

    def close(self, timeout: float = 10.0) -> None:
        """Wait up to `timeout` seconds for the listener, commit, leave and disconnect. See
        `PushConsumer.close`.
        """
        self._close(lambda: self._client.close(timeout))

    def abandon(self) -> None:
        """Disconnect like a crashed program, without committing or leaving the group. May be called again."""
        self._close(self._client.abandon)

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues of this member, sorted."""
        return self._in_loop(lambda: self._client.assigned)

    @property
    def is_balanced(self) -> bool:
        """True if this member got its full share of the topics at the last rebalance."""
        return self._client.is_balanced

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """Offsets of the assigned queues: all messages before them are consumed."""
        return self._in_loop(lambda: self._client.positions)

    @property
    def reset_count(self) -> int:
        """The number of resets of this member's offsets."""
        return self._client.reset_count


class BlockingAdmin(_BlockingClient[Admin]):
    """The blocking interface of `Admin`. Use `with`."""

    @_with_parameters_of(Admin.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: Admin(*args, **kwargs))

    clusters = _blocking(Admin.clusters)
    broker_runtime = _blocking(Admin.broker_runtime)
    route = _blocking(Admin.route)
    create_topic = _blocking(Admin.create_topic)
    delete_topic = _blocking(Admin.delete_topic)
    topics = _blocking(Admin.topics)
    topic_stats = _blocking(Admin.topic_stats)
    create_group = _blocking(Admin.create_group)
    delete_group = _blocking(Admin.delete_group)
    groups = _blocking(Admin.groups)
    group_members = _blocking(Admin.group_members)
    group_offsets = _blocking(Admin.group_offsets)
    min_offset = _blocking(Admin.min_offset)
    max_offset = _blocking(Admin.max_offset)
    search_offset = _blocking(Admin.search_offset)
    view_message = _blocking(Admin.view_message)
    query = _blocking(Admin.query)
    committed = _blocking(Admin.committed)
    reset_offset = _blocking(Admin.reset_offset)
