"""The metadata that every node makes of the commands in the log. Deterministic: no clock, no lots, no disk.

The rules of offsets and generations:

- A group's generation is the index of the log entry that began it: its creation, an assignment or a reset.
  Indexes only grow and are never given twice, so it never falls, not over deletion and creation of the group
  either, and nothing has to be remembered of what was deleted.
- A commit carries a generation. The group's own is taken; a lower one is stale, a higher one nobody has been
  given; both are refused. -1 is taken while the group has no members.
- A commit is taken or refused as a whole. In a queue the greater offset wins. Only a reset lowers one.
- Offsets are those of existing topics and queues. Deleting a topic removes the offsets in it.

Threads: one applies. Any other may read at any time without a lock: a `Group` and the mapping of topics are
never changed but replaced, so that what is read once is of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from broker_adapter.api import QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged, error_for
from broker_adapter.metadata.commands import (
    NO_GENERATION,
    BeginQueue,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    ExpireGroup,
    NewGeneration,
    PutGroup,
    PutTopic,
    ResetOffsets,
    check,
)
from broker_adapter.metadata.image import decode_image, encode_image
from broker_adapter.metadata.records import NO_REQUEST, Unknown, decode
from broker_adapter.metadata.values import EMPTY, Contents, Group, GroupDelivery, Outcome

# Part of the state's rules, as every node must judge alike.
MAX_TOPICS = 10_000
MAX_GROUPS = 10_000
MAX_OFFSETS_PER_GROUP = 65_536
MAX_OFFSETS = 1_000_000

_NOTHING = GroupDelivery(0, 0)


class MetadataState:
    """Topics, groups, offsets and generations.

    `on_result` is told, on the applying thread, what came of every command that carries a request id.
    `on_topic_cut` is told, also there and before anything else is applied, when a topic comes into being or
    ends: queue offsets go on, but the least offset of each of its queues moves to the next one, so that
    messages of a deleted topic are never taken for those of a later one with its name.
    `on_done` is told, there and then, of each command that took effect.
    `delivered` is asked what a group has of delivery at this point of the log.
    `begin_queue` lets a new queue begin at an offset; False: there were messages in it.
    """

    def __init__(
        self,
        *,
        on_result: Callable[[bytes, Outcome], None] | None = None,
        on_topic_cut: Callable[[str], None] | None = None,
        on_done: Callable[[Command], None] | None = None,
        delivered: Callable[[str], GroupDelivery] = lambda group: _NOTHING,
        begin_queue: Callable[[str, int, int], bool] = lambda topic, queue_id, offset: True,
    ) -> None:
        self._on_result = on_result
        self._on_topic_cut = on_topic_cut
        self._on_done = on_done
        self._delivered = delivered
        self._on_begin = begin_queue
        # Counted since the start of this node; no part of the state.
        self.refused = 0
        self.unknown = 0
        self.damaged = 0
        self._applied_index = -1
        self._topics: Mapping[str, TopicConfig] = MappingProxyType({})
        self._groups: dict[str, Group] = {}
        self._offset_count = 0

    # -- reading, on any thread ---------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        """Index of the last entry that was applied, -1 before the first. What it did can be read by now."""
        return self._applied_index

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """All topics by name; another mapping after each change."""
        return self._topics

    def topic(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def first_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group begins in a queue. None: there is no such group, or no such topic."""
        found = self._groups.get(group)
        return None if found is None or topic not in self._topics else found.offsets.get((topic, queue_id), 0)

    def groups(self) -> list[Group]:
        return list(self._groups.values())

    def progress(self, group: Group) -> int:
        """How far the group has come: grows with each commit that changes something, and with each message
        that it is given."""
        return sum(group.offsets.values()) + len(group.offsets) + self._delivered(group.name).progress

    # -- the state machine, on one thread -----------------------------------------------------------------

    def apply(self, index: int, body: bytes) -> None:
        """The body of a message of DLEDGER_SYS_METADATA, whatever it is; `index` is that of its entry.

        Entries up to `applied_index` have been applied before and are passed over.
        """
        if index <= self._applied_index:
            return
        topics = self._topics
        try:
            request_id, command = decode(body)
            if isinstance(command, Unknown):
                self.unknown += 1
                return
            outcome = self._judge(index, command)
        except StoredDataDamaged:
            self.damaged += 1
            return
        finally:
            self._applied_index = index  # not earlier: whoever sees it sees what the command did
        self._tell_of_cut(command, topics)
        if self._on_done is not None and outcome.status is None:
            self._on_done(command)
        if self._on_result is not None and request_id != NO_REQUEST:
            self._on_result(request_id, outcome)

    def adopt(self, command: Command) -> Outcome:
        """What a log does not say: what was known before it began, or a master says of a log of another
        kind. Messages of a topic may be older than that, and stay. On the applying thread. BrokerError for
        what no command may be."""
        check(command)
        outcome = self._judge(max(self._applied_index, 0), command)
        if self._on_done is not None and outcome.status is None:
            self._on_done(command)
        return outcome

    def save(self) -> bytes:
        """The whole state: the same bytes on every node that has applied the same. On the applying thread."""
        return encode_image(Contents(self._applied_index, self._topics, self._groups))

    def load(self, image: bytes) -> None:
        """Forget everything and take over what `save` gave; nothing: the empty state. On the applying thread.

        StoredDataDamaged (METADATA_DAMAGED) if it is not that; nothing is changed then. `on_topic_cut` is not
        told: the least offsets of the queues are saved where the queues are.
        """
        self._take(decode_image(image) if image else EMPTY)

    # -- the commands -------------------------------------------------------------------------------------

    def _judge(self, index: int, command: Command) -> Outcome:
        try:
            return Outcome(index, self._execute(index, command))
        except BrokerError as refusal:
            self.refused += 1
            return Outcome(index, self._generation_for(command), refusal.status, refusal.message)

    def _execute(self, index: int, command: Command) -> int:
        """The generation of the group afterwards. BrokerError if refused; nothing is changed then."""
        match command:
            case PutTopic():
                self._put_topic(command)
            case DeleteTopic():
                self._delete_topic(command.topic)
            case PutGroup():
                return self._put_group(index, command)
            case DeleteGroup():
                self._delete_group(command.group)
            case ExpireGroup():
                self._expire_group(command)
            case CommitOffsets():
                return self._commit(command)
            case ResetOffsets():
                return self._reset(index, command)
            case NewGeneration():
                group = self._known_group(command.group)
                self._groups[command.group] = group._replace(
                    generation=index, members=MappingProxyType(dict(command.members))
                )
                return index
            case BeginQueue():
                self._begin_queue(command)
        return NO_GENERATION

    def _put_topic(self, command: PutTopic) -> None:
        name = command.config.name
        exists = name in self._topics
        if exists and command.create_only:
            return
        if not exists and len(self._topics) >= MAX_TOPICS:
            raise error_for(Status.TOO_MANY_TOPICS, f"there are {MAX_TOPICS} topics")
        self._topics = MappingProxyType({**self._topics, name: command.config})

    def _delete_topic(self, name: str) -> None:
        if name not in self._topics:
            raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {name!r}")
        self._topics = MappingProxyType({key: value for key, value in self._topics.items() if key != name})
        for group in self.groups():
            kept = {queue: offset for queue, offset in group.offsets.items() if queue[0] != name}
            if len(kept) != len(group.offsets):
                self._set_offsets(group, kept)

    def _begin_queue(self, command: BeginQueue) -> None:
        topic, queue_id, offset = command.topic, command.queue_id, command.offset
        self._check_queues((QueueOffset(topic, queue_id, offset),))
        if not self._on_begin(topic, queue_id, offset):
            text = f"queue {queue_id} of {topic} cannot begin at {offset}: there were messages in it"
            raise error_for(Status.QUEUE_NOT_NEW, text)

    def _put_group(self, index: int, command: PutGroup) -> int:
        config = command.config
        group = self._groups.get(config.name)
        if group is not None:
            if not command.create_only:
                self._groups[config.name] = group._replace(config=config)
            return group.generation
        if len(self._groups) >= MAX_GROUPS:
            raise error_for(Status.TOO_MANY_GROUPS, f"there are {MAX_GROUPS} groups")
        created = Group(config, index, MappingProxyType({}), MappingProxyType({}))
        # Another mapping, as other threads may be going through this one.
        self._groups = {**self._groups, config.name: created}
        return index

    def _delete_group(self, name: str) -> None:
        group = self._known_group(name)
        self._offset_count -= len(group.offsets)
        self._groups = {key: value for key, value in self._groups.items() if key != name}

    def _expire_group(self, command: ExpireGroup) -> None:
        group = self._known_group(command.group)
        if group.members:
            raise error_for(Status.GROUP_HAS_MEMBERS, f"group {group.name!r} has members")
        if (
            not group.config.auto_created
            or group.generation != command.generation
            or self.progress(group) != command.progress
            or self._delivered(group.name).pending
        ):
            raise error_for(Status.GENERATION_STALE, f"group {group.name!r} is not what it was: it was used")
        self._delete_group(group.name)

    def _commit(self, command: CommitOffsets) -> int:
        group = self._known_group(command.group)
        self._check_generation(group, command.generation)
        self._check_queues(command.offsets)
        changed = group.offsets.copy()
        for topic, queue_id, offset in command.offsets:
            changed[topic, queue_id] = self._newer_offset(changed.get((topic, queue_id)), offset)
        self._check_room(group, len(changed))
        self._set_offsets(group, changed)
        return group.generation

    def _newer_offset(self, stored: int | None, committed: int) -> int:
        return committed if stored is None else max(stored, committed)

    def _check_generation(self, group: Group, generation: int) -> None:
        if generation == group.generation:
            return
        if generation == NO_GENERATION:
            if not group.members:
                return
            raise error_for(
                Status.GROUP_HAS_MEMBERS,
                f"group {group.name!r} has members: only they commit, with generation {group.generation}",
            )
        newest = f"that of group {group.name!r} is {group.generation}"
        if generation < group.generation:
            raise error_for(Status.GENERATION_STALE, f"generation {generation} is over: {newest}")
        raise error_for(Status.GENERATION_UNKNOWN, f"nobody was given generation {generation}: {newest}")

    def _reset(self, index: int, command: ResetOffsets) -> int:
        group = self._known_group(command.group)
        self._check_queues(command.offsets)
        changed = group.offsets.copy()
        for topic, queue_id, offset in command.offsets:
            changed[topic, queue_id] = offset
        self._check_room(group, len(changed))
        self._set_offsets(group._replace(generation=index), changed)
        return index

    # -- parts of them ------------------------------------------------------------------------------------

    def _take(self, contents: Contents) -> None:
        self._applied_index = contents.applied_index
        self._topics = MappingProxyType(dict(contents.topics))
        self._groups = dict(contents.groups)
        self._offset_count = sum(len(group.offsets) for group in self._groups.values())

    def _tell_of_cut(self, command: Command, before: Mapping[str, TopicConfig]) -> None:
        match command:
            case PutTopic(config=TopicConfig(name=topic)) | DeleteTopic(topic=topic):
                if self._on_topic_cut is not None and (topic in before) != (topic in self._topics):
                    self._on_topic_cut(topic)

    def _known_group(self, name: str) -> Group:
        if (group := self._groups.get(name)) is None:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {name!r}")
        return group

    def _generation_for(self, command: Command) -> int:
        """The present generation of the group that a command is about, -1 without one."""
        match command:
            case CommitOffsets(group=name) | ResetOffsets(group=name) | NewGeneration(group=name):
                group = self._groups.get(name)
                return NO_GENERATION if group is None else group.generation
        return NO_GENERATION

    def _check_queues(self, offsets: tuple[QueueOffset, ...]) -> None:
        for name, queue_id, _ in offsets:
            topic = self._topics.get(name)
            if topic is None:
                raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {name!r}")
            # A topic whose write queues were made fewer is read to the end of the others.
            if queue_id >= max(topic.read_queues, topic.write_queues):
                raise error_for(Status.QUEUE_UNKNOWN, f"topic {name!r} has no queue {queue_id}")

    def _check_room(self, group: Group, count: int) -> None:
        total = self._offset_count - len(group.offsets) + count
        if count > len(group.offsets) and (count > MAX_OFFSETS_PER_GROUP or total > MAX_OFFSETS):
            raise error_for(
                Status.TOO_MANY_OFFSETS,
                f"group {group.name!r} would have {count} offsets, all groups {total}: "
                f"{MAX_OFFSETS_PER_GROUP} and {MAX_OFFSETS} are allowed",
            )

    def _set_offsets(self, group: Group, offsets: dict[tuple[str, int], int]) -> None:
        self._offset_count += len(offsets) - len(self._groups[group.name].offsets)
        self._groups[group.name] = group._replace(offsets=MappingProxyType(offsets))
