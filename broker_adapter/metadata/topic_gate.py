"""Which topics and queues take messages at the end of the log, on the master.

The state knows topics as far as commands are applied. Behind that there may be commands in the log already,
and what is appended now comes after them: a message behind the deletion of its topic would be acknowledged
and read by nobody. So whoever appends asks here, in the step in which the log takes the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged, error_for
from broker_adapter.metadata import records
from broker_adapter.metadata.commands import DeleteTopic, PutTopic
from broker_adapter.metadata.expiry import LastUse
from broker_adapter.metadata.state import MetadataState


class _Change(NamedTuple):
    """A command in the log: `write_queues` 0 is a deletion."""

    at: int
    write_queues: int


class TopicGate:
    """Implements `broker_adapter.commitlog.message_writer.TopicCheck`. On the event loop."""

    def __init__(
        self, metadata: MetadataState, use: LastUse | None = None, own: Collection[str] = ()
    ) -> None:
        """`use` is told of what is appended. `own`: topics that the broker itself writes, and that nobody
        makes or deletes."""
        self._own = own
        self._metadata = metadata
        self._use = use
        self._changes: dict[str, list[_Change]] = {}  # appended, and not known to be applied

    def begin(self) -> None:
        """A leadership begins: all that is in the log is applied."""
        self._changes.clear()

    def appending(self, body: bytes) -> Callable[[int], None] | None:
        """What is to be told the index of a command when the log takes it; None: nothing need be.
        TopicRefused (TOPIC_RESERVED)."""
        try:
            command = records.decode(body).command if records.is_of_topic(body) else None
        except StoredDataDamaged:
            return None
        match command:
            case DeleteTopic(topic=name) | PutTopic(config=TopicConfig(name=name)) if name in self._own:
                raise error_for(Status.TOPIC_RESERVED, f"topic {name!r} belongs to the broker itself")
            case DeleteTopic(topic=name):
                return lambda index: self._note(name, _Change(index, 0))
            case PutTopic(config=config, create_only=False):
                return lambda index: self._note(config.name, _Change(index, config.write_queues))
        return None

    def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
        """Why a message that is appended now would be lost there; None: it is not."""
        if topic in self._own:
            return None
        if self._use is not None:
            self._use.touch(topic)
        queues = self._queues(topic)
        if queue_id < queues:
            return None
        what = f"has {queues} queues to write" if queues else "is being deleted, or was"
        text = f"topic {topic} {what}, and nothing was stored in its queue {queue_id}; send again"
        return error_for(Status.TOPIC_CHANGED, text)

    def fitting_queue(self, topic: str, queue_id: int) -> int:
        """That queue, or another one if the topic has fewer, or is about to: a message may wait for long."""
        queues = self._queues(topic)
        return queue_id % queues if queues else queue_id

    def _queues(self, topic: str) -> int:
        """To which may be written now, and when all in the log is applied; 0: there is no such topic."""
        # In this order: what is applied is forgotten first, so that the state has it when it is asked.
        changes = self._pending(topic) if topic in self._changes else ()
        config = self._metadata.topic(topic)
        queues = 0 if config is None else config.write_queues
        return min(queues, *(one.write_queues for one in changes)) if changes else queues

    def _note(self, topic: str, change: _Change) -> None:
        for other in list(self._changes):
            self._pending(other)  # forgets what is applied: of a deleted topic nobody asks again
        self._changes.setdefault(topic, []).append(change)

    def _pending(self, topic: str) -> list[_Change]:
        applied = self._metadata.applied_index
        left = [one for one in self._changes[topic] if one.at > applied]
        if left:
            self._changes[topic] = left
        else:
            del self._changes[topic]
        return left
