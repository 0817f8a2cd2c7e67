"""How a broker keeps messages that are in no queue of their topic yet: one protocol for each form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.config.settings import DeliverySettings
from broker_adapter.pop.api import Delayed, Half, OrphanedHalf, Resolution
from broker_adapter.pop.committer import Committer
from broker_adapter.pop.sender import Sender
from broker_adapter.pop.state import DeliveryState
from broker_adapter.store.queue_reader import QueueFiles, QueueReader


class ToDefer(NamedTuple):
    """A message that is to be kept apart from its topic for a while."""

    config: TopicConfig
    message: OutgoingMessage
    message_id: str
    queue_id: int = -1  # that it goes into later; -1: any
    born_host: str = ""
    timeout_ms: int = 0


class Deferring(Protocol):
    """On the master's event loop. `start` and `stop` with its mastership. Times are cluster time (ms); errors
    are those of `DeliveryApi`."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def on_orphan(self, ask: Callable[[OrphanedHalf], None]) -> None: ...

    async def delay(self, put: ToDefer, deliver_at_ms: int, level: int) -> Delayed: ...

    async def half(self, put: ToDefer, client_id: str, check_after_ms: int) -> Half: ...

    async def recall(self, topic: str, handle: str, timeout_ms: int) -> str: ...

    async def end_transaction(
        self, topic: str, transaction_id: str, resolution: Resolution, timeout_ms: int
    ) -> None: ...


class DispatchedQueues(QueueFiles, Protocol):
    """The queues of this node, and how far they are dispatched."""

    async def wait_applied(self, index: int | None = None, timeout_ms: int = 5000) -> int: ...


class DeferringParts(NamedTuple):
    """What of delivery such a form may use."""

    state: DeliveryState
    committer: Committer
    writer: MessageWriter
    sender: Sender
    reader: QueueReader
    files: DispatchedQueues
    make_topic: Callable[[str], Awaitable[None]]  # of the broker's own making
    now_ms: Callable[[], int]  # cluster time
    run: Callable[[Callable[[], Any], str], Awaitable[Any]]  # what blocks, on a reader's thread
    settings: DeliverySettings


#: `own` keeps messages in commands of delivery, whatever the log: also what another form has no place for.
MakeDeferring = Callable[[Deferring, DeferringParts], Deferring]


def in_commands(own: Deferring, parts: DeferringParts) -> Deferring:
    return own
