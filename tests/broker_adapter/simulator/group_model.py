"""What topics and groups have to be like after each command of the log: the obvious model.

It shares the decoder of commands with the broker and nothing else; every state that it was ever in is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker_adapter.api import QueueOffset, TopicConfig
from broker_adapter.metadata.commands import (
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    EndBarriers,
    ExpireGroup,
    PutGroup,
    PutTopic,
    ResetOffsets,
    SetRulesVersion,
)
from broker_adapter.metadata.state import MetadataState
from dledger.testing import Violation

Offsets = dict[tuple[str, int], int]


class GroupLook(NamedTuple):
    """A group at one moment. Values are never changed."""

    generation: int
    offsets: tuple[tuple[tuple[str, int], int], ...]
    is_by_use: bool


class MetadataLook(NamedTuple):
    """All of it at one moment."""

    topics: tuple[tuple[str, TopicConfig], ...]
    groups: tuple[tuple[str, GroupLook], ...]


def look_at(metadata: MetadataState) -> MetadataLook:
    """What a broker has."""
    groups = [
        (g.name, GroupLook(g.generation, tuple(sorted(g.offsets.items())), g.config.auto_created))
        for g in metadata.groups()
    ]
    return MetadataLook(tuple(sorted(metadata.topics.items())), tuple(sorted(groups)))


class GroupModel:
    """Fed with the commands of the committed log, in order."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicConfig] = {}
        self._groups: dict[str, GroupLook] = {}
        self._indexes = [-1]
        self._looks = [MetadataLook((), ())]
        self._done: set[tuple[str, tuple[QueueOffset, ...]]] = set()  # commits that took effect as a whole
        self._has_barriers = False  # since an entry that raises the rules version
        self._resets: dict[str, dict[tuple[str, int], int]] = {}  # index of the last one, by group and queue

    def put(self, index: int, command: Command, delivered: Callable[[str], tuple[int, int]]) -> str | None:
        """The next command. Returns the topic that it made or removed, if any. `delivered`: of a group, how
        many messages are in flight, and how far its cursors have come."""
        if isinstance(command, ExpireGroup):
            self._expire(command, *delivered(command.group))
        before = dict(self._groups)
        cut = self._carry_out(index, command)
        self._check_nothing_fell(index, command, before)
        self._indexes.append(index)
        self._looks.append(
            MetadataLook(tuple(sorted(self._topics.items())), tuple(sorted(self._groups.items())))
        )
        return cut

    def at(self, index: int) -> MetadataLook:
        """After the entry with this index."""
        return self._looks[bisect_right(self._indexes, index) - 1]

    def since(self, index: int) -> Iterator[MetadataLook]:
        """As it was at an entry, and after each command behind it."""
        yield from self._looks[bisect_right(self._indexes, index) - 1 :]

    @property
    def newest_index(self) -> int:
        return self._indexes[-1]

    def offsets(self, group: str) -> Offsets:
        """Now."""
        found = self._groups.get(group)
        return dict(found.offsets) if found else {}

    def generation(self, group: str) -> int:
        found = self._groups.get(group)
        return found.generation if found else -1

    def committed(self, group: str, offsets: tuple[QueueOffset, ...]) -> bool:
        """Whether such a commit took effect, in some entry of the log."""
        return (group, offsets) in self._done

    @property
    def names(self) -> tuple[set[str], set[str]]:
        """Of the groups and of the topics that there are."""
        return set(self._groups), set(self._topics)

    # -- inside

    def _carry_out(self, index: int, command: Command) -> str | None:
        match command:
            case PutTopic(config=config, create_only=create_only):
                exists = config.name in self._topics
                if not (exists and create_only):
                    self._topics[config.name] = config
                return None if exists else config.name
            case DeleteTopic(topic=topic):
                if self._topics.pop(topic, None) is None:
                    return None
                for name, group in self._groups.items():
                    kept = tuple(item for item in group.offsets if item[0][0] != topic)
                    self._groups[name] = group._replace(offsets=kept)
                    resets = self._resets.get(name, {})
                    self._resets[name] = {queue: at for queue, at in resets.items() if queue[0] != topic}
                return topic
            case PutGroup(config=config, create_only=create_only):
                known = self._groups.get(config.name)
                if known is None:
                    self._groups[config.name] = GroupLook(index, (), config.auto_created)
                elif not create_only:
                    self._groups[config.name] = known._replace(is_by_use=config.auto_created)
            case DeleteGroup(group=name):
                self._remove(name)
            case SetRulesVersion():
                self._has_barriers = True
            case EndBarriers(group=name, up_to=up_to):
                kept_resets = {queue: at for queue, at in self._resets.get(name, {}).items() if at > up_to}
                self._resets[name] = kept_resets
            case CommitOffsets() | ResetOffsets() if command.group in self._groups:
                self._move(index, command, self._groups[command.group])
        return None

    def _expire(self, command: ExpireGroup, pending: int, given: int) -> None:
        group = self._groups.get(command.group)
        if group is None or not group.is_by_use or pending:
            return
        progress = given + sum(offset + 1 for _, offset in group.offsets)
        if (group.generation, progress) == (command.generation, command.progress):
            self._remove(command.group)

    def _remove(self, name: str) -> None:
        self._groups.pop(name, None)
        self._resets.pop(name, None)

    def _move(self, index: int, command: CommitOffsets | ResetOffsets, group: GroupLook) -> None:
        if not all(self._is_queue(one) for one in command.offsets):
            return
        offsets, resets = dict(group.offsets), self._resets.setdefault(command.group, {})
        if isinstance(command, ResetOffsets):
            named = {(one.topic, one.queue_id): one.offset for one in command.offsets}
            offsets.update(named)
            group = group._replace(generation=index)
            if self._has_barriers:
                resets.update(dict.fromkeys(named, index))
        else:
            counted = [
                one
                for one in command.offsets
                if resets.get((one.topic, one.queue_id), -1) <= command.judged_at
            ]
            for one in counted:
                queue = (one.topic, one.queue_id)
                offsets[queue] = max(one.offset, offsets.get(queue, one.offset))
            if len(counted) == len(command.offsets):
                self._done.add((command.group, command.offsets))
        self._groups[command.group] = group._replace(offsets=tuple(sorted(offsets.items())))

    def _is_queue(self, one: QueueOffset) -> bool:
        config = self._topics.get(one.topic)
        return config is not None and one.queue_id < max(config.read_queues, config.write_queues)

    def _check_nothing_fell(self, index: int, command: Command, before: dict[str, GroupLook]) -> None:
        for name, group in self._groups.items():
            was = before.get(name)
            if was is None or was is group:
                continue
            if group.generation < was.generation:
                raise Violation(
                    "generations", f"{name} from {was.generation} to {group.generation} at {index}"
                )
            if isinstance(command, ResetOffsets | DeleteTopic):
                continue
            now = dict(group.offsets)
            fell = [
                (queue, offset, now.get(queue))
                for queue, offset in was.offsets
                if now.get(queue, -1) < offset
            ]
            if fell:
                raise Violation("consumer offsets", f"{name} at {index}: {fell}")
