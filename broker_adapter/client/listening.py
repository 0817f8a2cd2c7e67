"""What a push consumer tells a program that wants to know which queues it has and what it commits."""

from __future__ import annotations

from broker_adapter.client.core.values import MessageQueue


class QueueListener:
    """Does nothing: override what is of interest. Called on the event loop; it must return at once."""

    def assigned(self, queue: MessageQueue, offset: int) -> None:
        """The queue belongs to this member, which begins at `offset`."""

    def revoked(self, queue: MessageQueue) -> None:
        """The queue does not belong to this member any more: nothing more of it is given."""

    def committing(self, queue: MessageQueue, offset: int) -> None:
        """A commit is about to be sent."""

    def committed(self, queue: MessageQueue, offset: int, error: BaseException | None) -> None:
        """It has ended. With an error nobody knows whether it counts."""
