"""A push consumer's notifications about its queues and commits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from broker_adapter.client.core.values import MessageQueue

_log = logging.getLogger(__name__)


class QueueListener:
    """A listener whose methods do nothing.

    Override the methods. They run on the event loop and must return immediately. An exception is logged and
    has no other effect.
    """

    def assigned(self, queue: MessageQueue, offset: int) -> None:
        """Called when a queue is assigned. Consumption starts at `offset`."""

    def revoked(self, queue: MessageQueue) -> None:
        """Called when a queue is revoked.

        Afterwards the message listener receives no messages from the queue.
        """

    def committing(self, queue: MessageQueue, offset: int) -> None:
        """Called before a commit is sent."""

    def committed(self, queue: MessageQueue, offset: int, error: BaseException | None) -> None:
        """Called with the result of a commit.

        The error GENERATION_STALE means that a reset of the group has replaced the offset. After any other
        error, the outcome is unknown.
        """


class GuardedListener(QueueListener):
    """Passes notifications to the listener of a program, and logs its exceptions.

    Otherwise an exception would end the work that triggers the notification, such as the task that commits.
    """

    def __init__(self, listener: QueueListener) -> None:
        self._listener = listener

    def assigned(self, queue: MessageQueue, offset: int) -> None:
        with _logged(queue):
            self._listener.assigned(queue, offset)

    def revoked(self, queue: MessageQueue) -> None:
        with _logged(queue):
            self._listener.revoked(queue)

    def committing(self, queue: MessageQueue, offset: int) -> None:
        with _logged(queue):
            self._listener.committing(queue, offset)

    def committed(self, queue: MessageQueue, offset: int, error: BaseException | None) -> None:
        with _logged(queue):
            self._listener.committed(queue, offset, error)


@contextmanager
def _logged(queue: MessageQueue) -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.exception("the queue listener failed: queue %s", queue)
