"""What the state of metadata consists of: immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import Status, error_for
from broker_adapter.metadata.commands import NO_GENERATION, Queues


class Group(NamedTuple):
    """A group at one moment. Immutable; `_replace` makes the next one."""

    config: GroupConfig
    generation: int
    members: Mapping[str, Queues]
    offsets: MappingProxyType[tuple[str, int], int]  # by (topic, queue id)

    @property
    def name(self) -> str:
        return self.config.name

    def queue_offsets(self) -> list[QueueOffset]:
        """All offsets, by topic and queue."""
        return [QueueOffset(topic, queue, offset) for (topic, queue), offset in sorted(self.offsets.items())]


class GroupDelivery(NamedTuple):
    """What a group was given of single messages: how many are not done, and how far its cursors have come."""

    pending: int
    progress: int


class Outcome(NamedTuple):
    """What came of a command. `status` None: it was done. `generation`: the group's afterwards, or -1."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    generation: int = NO_GENERATION
    status: Status | None = None
    message: str = ""

    def check(self) -> Outcome:
        """Itself, if the command was done; otherwise its error is raised."""
        if self.status is not None:
            raise error_for(self.status, self.message)
        return self


class Contents(NamedTuple):
    """All that belongs to the state, as an image holds it."""

    applied_index: int
    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, Group]


EMPTY = Contents(-1, {}, {})
