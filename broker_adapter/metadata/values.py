"""Immutable values of the metadata state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import Status, error_for
from broker_adapter.metadata.commands import FIRST_RULES_VERSION

#: Maximum number of client ids in a barrier; the newest are kept. A dropped client has to pass the barrier
#: again only after a failover, so a small number suffices. The limit bounds the state of groups whose members
#: change over years.
MAX_PASSED = 16


class Barrier(NamedTuple):
    """A barrier in one queue: a reset that older commits must not undo.

    `reset_index` is the index of the reset in the log. `passed` lists the ids of clients that have committed
    an offset reached after the reset, in the order of their first such commit.
    """

    reset_index: int
    passed: tuple[str, ...] = ()

    def with_passed(self, client_id: str) -> Barrier:
        """Return the barrier with `client_id` added to the clients that have passed."""
        if client_id in self.passed:
            return self
        return self._replace(passed=(*self.passed, client_id)[-MAX_PASSED:])


NO_BARRIERS: Mapping[tuple[str, int], Barrier] = MappingProxyType({})


class Group(NamedTuple):
    """A consumer group at one point of the log. Immutable; `_replace` returns a changed copy.

    `generation`: index of the entry that created the group or last reset its offsets. `members`: ids that
    release 0.1.0 recorded; empty since rules version 3.
    """

    config: GroupConfig
    generation: int
    offsets: MappingProxyType[tuple[str, int], int]  # by (topic, queue id)
    barriers: Mapping[tuple[str, int], Barrier] = NO_BARRIERS  # by (topic, queue id)
    members: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.config.name

    def queue_offsets(self) -> list[QueueOffset]:
        """Return all offsets, sorted by topic and queue."""
        return [QueueOffset(topic, queue, offset) for (topic, queue), offset in sorted(self.offsets.items())]


#: Client id by group and (topic, queue id): the members that hold a lock to consume a queue in order.
LockHolders: TypeAlias = Mapping[str, Mapping[tuple[str, int], str]]


class GroupDelivery(NamedTuple):
    """State of the delivery of single messages to a group.

    `pending`: number of unacknowledged messages. `progress`: progress of the cursors.
    """

    pending: int
    progress: int


class CommandOutcome(NamedTuple):
    """Result of a command. `status` is None if the command succeeded."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    status: Status | None = None
    message: str = ""

    def check(self) -> CommandOutcome:
        """Return self if the command succeeded, otherwise raise its error."""
        if self.status is not None:
            raise error_for(self.status, self.message)
        return self


class StateContents(NamedTuple):
    """All fields of the state, as stored in an image."""

    applied_index: int
    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, Group]
    rules_version: int = FIRST_RULES_VERSION
    lock_holders: LockHolders = MappingProxyType({})
    imported_queues: Mapping[str, frozenset[int]] = MappingProxyType({})  # ids by topic
    #: Offsets kept from deleted groups, by group, the oldest deletion first.
    deleted_groups: Mapping[str, Mapping[tuple[str, int], int]] = MappingProxyType({})
    merged_tables: str = ""


EMPTY = StateContents(-1, {}, {})
