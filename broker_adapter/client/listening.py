"""What a member of a group tells of its membership, as it happens."""

from __future__ import annotations

from collections.abc import Mapping

from broker_adapter.client.values import MessageQueue


class GroupListener:
    """Override what is of interest. Called in the event loop of the consumer: must neither block nor raise.

    A queue is assigned when this member begins to consume it, and revoked when it has stopped to; a queue
    that it keeps through several generations is assigned once.
    """

    def assigned(self, queue: MessageQueue, offset: int, generation: int) -> None:
        """Before the first message of `queue`, which is at `offset` or behind."""

    def revoked(self, queue: MessageQueue) -> None:
        """No further message of `queue`; one that is in a handler's hands may yet be finished."""

    def committing(self, offsets: Mapping[MessageQueue, int], generation: int) -> None:
        """Before offsets are committed: all before them was consumed. One commit per broker at a time."""

    def commit_repeated(self, offsets: Mapping[MessageQueue, int], number: int) -> None:
        """Before the same commit is sent once more, because it was refused or nobody knows what came of it:
        the `number`-th time, from 2 on. Between its `committing` and its `committed`."""

    def committed(self, offsets: Mapping[MessageQueue, int], error: BaseException | None) -> None:
        """What came of that commit: None, or an error after which these offsets may be stored or not."""
