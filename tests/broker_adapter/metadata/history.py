"""The obvious implementation of metadata: it keeps what was done, and looks through it for every answer."""

from __future__ import annotations

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.errors import Status
from broker_adapter.metadata.commands import (
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    NewGeneration,
    PutGroup,
    PutTopic,
    ResetOffsets,
    SetRulesVersion,
)


class History:
    def __init__(self) -> None:
        self.done: list[tuple[int, Command]] = []

    def put(self, index: int, command: Command) -> Status | None:
        """Why the command is refused; if it is not, it belongs to the history from here on."""
        status = self.why_not(command)
        is_skipped = isinstance(command, NewGeneration) and self.rules_version >= 3
        if status is None and not is_skipped:
            self.done.append((index, command))
        return status

    def why_not(self, command: Command) -> Status | None:
        if isinstance(command, PutTopic | PutGroup | SetRulesVersion):
            return None
        if isinstance(command, NewGeneration) and self.rules_version >= 3:
            return None
        if isinstance(command, DeleteTopic):
            return None if self.topic(command.topic) else Status.TOPIC_UNKNOWN
        if self.config(command.group) is None:
            return Status.GROUP_UNKNOWN
        if isinstance(command, CommitOffsets):
            newest = self.generation(command.group)
            allowed = {newest} if self.members(command.group) else {newest, -1}
            if command.generation not in allowed:
                return Status.GENERATION_STALE
        if isinstance(command, CommitOffsets | ResetOffsets):
            for name, queue_id, _ in command.offsets:
                topic = self.topic(name)
                if topic is None:
                    return Status.TOPIC_UNKNOWN
                if queue_id not in range(topic.read_queues) and queue_id not in range(topic.write_queues):
                    return Status.QUEUE_UNKNOWN
        return None

    def topic(self, name: str) -> TopicConfig | None:
        found = None
        for _, command in self.done:
            if isinstance(command, PutTopic) and command.config.name == name:
                found = found if found and command.create_only else command.config
            if isinstance(command, DeleteTopic) and command.topic == name:
                found = None
        return found

    def config(self, group: str) -> GroupConfig | None:
        found = None
        for _, command in self.of_life(group):
            if isinstance(command, PutGroup):
                found = found if found and command.create_only else command.config
        return found

    def generation(self, group: str) -> int:
        """The newest entry that began one: creation, members, reset."""
        life = self.of_life(group)
        begun = [index for index, command in life if isinstance(command, NewGeneration | ResetOffsets)]
        return max([life[0][0], *begun])

    @property
    def rules_version(self) -> int:
        return max(
            (command.version for _, command in self.done if isinstance(command, SetRulesVersion)), default=1
        )

    def members(self, group: str) -> frozenset[str]:
        given = [command.members for _, command in self.of_life(group) if isinstance(command, NewGeneration)]
        return given[-1] if given and self.rules_version < 3 else frozenset()

    def offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The greatest of what the newest reset set and what was committed since, while the topic exists."""
        known: list[int] = []
        for _, command in self.of_life(group, topic):
            if isinstance(command, DeleteTopic):
                known = []
            if isinstance(command, CommitOffsets | ResetOffsets):
                mine = [o.offset for o in command.offsets if (o.topic, o.queue_id) == (topic, queue_id)]
                if isinstance(command, ResetOffsets) and mine:
                    known = [mine[-1]]
                known += mine if isinstance(command, CommitOffsets) else []
        return max(known, default=None)

    def of_life(self, group: str, topic: str = "") -> list[tuple[int, Command]]:
        """What was done with a group since its creation, and, if asked for, what ended a topic."""
        found: list[tuple[int, Command]] = []
        for index, command in self.done:
            match command:
                case DeleteGroup(group=name) if name == group:
                    found = []
                case PutGroup(config=config) if config.name == group:
                    found.append((index, command))
                case CommitOffsets(group=name) | ResetOffsets(group=name) | NewGeneration(group=name):
                    if name == group:
                        found.append((index, command))
                case DeleteTopic(topic=name) if name == topic and found:
                    found.append((index, command))
        return found
