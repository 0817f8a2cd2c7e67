"""Metadata state machine: derives topics, groups and offsets from the commands in the log.

It is deterministic: it uses no clock, no randomness and no disk. Rules of offsets:

- A commit is applied or refused as a whole. In each queue the greater offset wins. Only a reset lowers an
  offset.
- A reset sets a barrier for each offset that it sets (rules version 2). A commit without a generation that
  was judged before the reset changes nothing in such a queue. A barrier is removed by a newer reset, with its
  topic or group, or by `EndBarriers`.
- A group's generation is the index of the log entry that created the group or last reset its offsets. Indexes
  only increase, so a generation never refers to an earlier group with the same name.
- Release 0.1.0 also recorded the members of groups (`NewGeneration`), which started a generation, and wrote
  commits with a generation. Until rules version 3, all nodes apply such entries as 0.1.0 did: a commit counts
  with the group's generation, or without one (-1) while the group has no members. The entry that raises the
  version to 3 removes all members.
- Offsets refer to existing topics and queues. Deleting a topic removes the offsets in it.
- A deletion that keeps offsets passes them to the next group with the same name, as in RocketMQ.

One thread applies entries. Other threads may read at any time without a lock: `Group` values and the mapping
of topics are replaced, never modified, so a reader always sees a consistent snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from broker_adapter.api import QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged, error_for
from broker_adapter.metadata.commands import (
    FIRST_RULES_VERSION,
    MAX_OFFSET,
    MAX_QUEUES_PER_TOPIC,
    NO_GENERATION,
    BeginQueue,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    EndBarriers,
    ExpireGroup,
    GrantLocks,
    NewGeneration,
    PutGroup,
    PutTopic,
    ReleaseLocks,
    ResetOffsets,
    SetMergedTables,
    SetRulesVersion,
    check,
)
from broker_adapter.metadata.image import decode_image, encode_image
from broker_adapter.metadata.records import NO_REQUEST, UnknownCommand, decode
from broker_adapter.metadata.values import (
    EMPTY,
    Barrier,
    CommandOutcome,
    Group,
    GroupDelivery,
    LockHolders,
    StateContents,
)
from dledger import RULES_VERSION, Code, StorageError

# These limits are part of the state machine, so they must be equal on all nodes.
MAX_TOPICS = 10_000
MAX_GROUPS = 10_000
MAX_OFFSETS_PER_GROUP = 65_536
MAX_OFFSETS = 1_000_000
#: Limits on deleted groups whose offsets are kept, and on those offsets. If they are exceeded, the group that
#: was deleted first loses its offsets.
MAX_DELETED_GROUPS = 10_000
MAX_DELETED_OFFSETS = 131_072
#: Higher than the number of locks that a master grants, because a release may follow a later grant in the
#: log.
MAX_LOCKS = 131_072

#: First rules version in which a reset sets barriers.
_BARRIERS_SINCE = 2
#: First rules version in which a commit moves the cursor of a group that also receives single messages.
_COMMITS_MOVE_CURSORS_SINCE = 2
#: First rules version in which groups have no members.
_NO_MEMBERS_SINCE = 3

_NOTHING = GroupDelivery(0, 0)
_V = TypeVar("_V")


def check_rules_version(version: int) -> None:
    """Raise StorageError (UNSUPPORTED_VERSION) if this release does not implement this version of the
    rules.
    """
    if version > RULES_VERSION:
        raise StorageError(
            f"this log requires rules version {version}, but this release supports only {RULES_VERSION}: "
            "install the release that wrote it, or a newer one",
            code=Code.UNSUPPORTED_VERSION,
        )


class MetadataState:
    """Topics, groups and offsets, updated by the entries of the log.

    All callbacks run on the applying thread:

    - `on_result` receives the outcome of each command that carries a request id.
    - `on_topic_cut` receives a topic that was created or deleted, before the next entry is applied. Queue
      offsets continue, but the minimum offset of each queue moves to the next offset, so that messages of a
      deleted topic never appear in a later topic of the same name. It is not called for a topic that another
      broker created (`PutTopic.keeps_messages`).
    - `on_done` receives each command that took effect.
    - `on_logged` receives each command of the log, whether it took effect or was refused.
    - `delivered` returns the delivery state of a group at this point of the log.
    - `begin_queue` sets the first offset of a new queue; it returns False if the queue has had messages.
    """

    def __init__(
        self,
        *,
        on_result: Callable[[bytes, CommandOutcome], None] | None = None,
        on_topic_cut: Callable[[str], None] | None = None,
        on_done: Callable[[Command], None] | None = None,
        on_logged: Callable[[Command], None] = lambda command: None,
        delivered: Callable[[str], GroupDelivery] = lambda group: _NOTHING,
        begin_queue: Callable[[str, int, int], bool] = lambda topic, queue_id, offset: True,
    ) -> None:
        self._on_result = on_result
        self._on_topic_cut = on_topic_cut
        self._on_done = on_done
        self._on_logged = on_logged
        self._delivered = delivered
        self._on_begin = begin_queue
        # Counted since this node started; not part of the state.
        self.refused = 0
        self.unknown = 0
        self.damaged = 0
        self._applied_index = -1
        self._topics: Mapping[str, TopicConfig] = MappingProxyType({})
        self._groups: dict[str, Group] = {}
        self._deleted: Mapping[str, Mapping[tuple[str, int], int]] = MappingProxyType({})
        self._offset_count = 0
        self._rules_version = FIRST_RULES_VERSION
        self._lock_holders: LockHolders = MappingProxyType({})
        self._imported_queues: Mapping[str, frozenset[int]] = MappingProxyType({})
        self._lock_count = 0
        self._merged_tables = ""

    # -- reading, on any thread ---------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry, or -1 if there is none.

        The effects of this entry are already visible.
        """
        return self._applied_index

    @property
    def rules_version(self) -> int:
        """Rules version for the next entry: 1 in logs of release 0.1.0, until a master raises it."""
        return self._rules_version

    @property
    def merged_tables(self) -> str:
        """Id of the last merge of another broker's tables that is completely in the log, or "" if there
        is none.
        """
        return self._merged_tables

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """All topics by name. Each change replaces the mapping."""
        return self._topics

    def imported_queues(self, topic: str) -> frozenset[int]:
        """Return the ids of the topic's queues that were imported from another cluster and start above offset
        0.
        """
        return self._imported_queues.get(topic, frozenset())

    def topic(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    @property
    def lock_holders(self) -> LockHolders:
        """Holders of queue locks. Each change replaces the mapping.

        The master releases expired locks, including those in deleted topics and groups.
        """
        return self._lock_holders

    def first_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset at which a receive starts in a queue from which the group has not received.

        This is the group's committed or reset offset, or 0 if it has none. Returns None if the group or the
        topic does not exist.
        """
        known = self._groups.get(group)
        return None if known is None or topic not in self._topics else known.offsets.get((topic, queue_id), 0)

    def cursor_floor(self, group: str, topic: str, queue_id: int) -> int:
        """Return the group's committed offset.

        The group receives no new messages below this offset. Under rules version 1, commits did not move
        cursors, and the result is always 0.
        """
        known = self._groups.get(group)
        if known is None or self._rules_version < _COMMITS_MOVE_CURSORS_SINCE:
            return 0
        return known.offsets.get((topic, queue_id), 0)

    @property
    def deleted_groups(self) -> Mapping[str, Mapping[tuple[str, int], int]]:
        """Offsets that were kept from deleted groups, by group. Each change replaces the mapping."""
        return self._deleted

    def groups(self) -> list[Group]:
        return list(self._groups.values())

    def progress(self, group: Group) -> int:
        """Return a number that increases with each effective commit of the group and each message delivered
        to it.
        """
        return sum(group.offsets.values()) + len(group.offsets) + self._delivered(group.name).progress

    # -- the state machine, on one thread -----------------------------------------------------------------

    def apply(self, index: int, body: bytes) -> None:
        """Apply the body of a message of DLEDGER_SYS_METADATA; `index` is the index of its entry.

        Skips entries up to `applied_index`. Raises StorageError if the rules are from a newer release,
        because this node would derive a different state than the others.
        """
        if index <= self._applied_index:
            return
        topics = self._topics
        try:
            request_id, command = decode(body)
            if isinstance(command, UnknownCommand):
                self.unknown += 1
                return
            outcome = self._judge(index, command)
        except StoredDataDamaged:
            self.damaged += 1
            return
        finally:
            self._applied_index = index  # last, so that a reader who sees the index also sees the effect
        self._on_logged(command)
        self._notify_topic_cut(command, topics)
        if self._on_done is not None and outcome.status is None:
            self._on_done(command)
        if self._on_result is not None and request_id != NO_REQUEST:
            self._on_result(request_id, outcome)

    def adopt(self, command: Command) -> CommandOutcome:
        """Apply a command that is not in the log, for state that precedes the log or comes from a RocketMQ
        master.

        Messages of a created topic may be older than the command and remain readable; messages of a deleted
        topic become unreadable. Call it on the applying thread. Raises BrokerError for an invalid command.
        """
        check(command)
        if isinstance(command, ResetOffsets):  # corrects this node's copy; no user requested a reset
            command = replace(command, has_barriers=False)
        elif isinstance(command, PutTopic):
            command = replace(command, keeps_messages=True)
        topics = self._topics
        outcome = self._judge(max(self._applied_index, 0), command)
        self._notify_topic_cut(command, topics)
        if self._on_done is not None and outcome.status is None:
            self._on_done(command)
        return outcome

    def drop_queue(self, topic: str, queue_id: int) -> None:
        """Drop the offsets of all groups in a queue that is recreated. Call on the applying thread."""
        for group in self.groups():
            self._drop(group, ((topic, queue_id),))
        self._drop_deleted(lambda queue: queue == (topic, queue_id))

    def restore_offsets(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Replace all offsets of a group with the offsets in an image.

        Omits offsets in unknown topics and offsets out of range. If the group does not exist, it was deleted,
        and the offsets are kept for a later group with the same name. Call on the applying thread.
        """
        topics, queues = self._topics, range(MAX_QUEUES_PER_TOPIC)
        known = {
            (topic, queue_id): offset
            for (topic, queue_id), offset in offsets.items()
            if topic in topics and queue_id in queues and 0 <= offset <= MAX_OFFSET
        }
        if (group := self._groups.get(name)) is None:
            self._keep_offsets(name, known)
        else:
            self._set_offsets(group, known)

    def save(self) -> bytes:
        """Encode the whole state.

        Nodes that have applied the same entries return the same bytes. Call on the applying thread.
        """
        return encode_image(
            StateContents(
                self._applied_index,
                self._topics,
                self._groups,
                self._rules_version,
                self._lock_holders,
                self._imported_queues,
                self._deleted,
                self._merged_tables,
            )
        )

    def load(self, image: bytes) -> None:
        """Replace the state with a result of `save`; empty bytes mean the empty state. On the applying
        thread.

        Raises StoredDataDamaged (METADATA_DAMAGED) for an invalid image and StorageError for one with newer
        rules; the state is then unchanged. Does not call `on_topic_cut`: minimum offsets are saved with the
        queues.
        """
        contents = decode_image(image) if image else EMPTY
        check_rules_version(contents.rules_version)
        self._restore(contents)

    # -- the commands -------------------------------------------------------------------------------------

    def _judge(self, index: int, command: Command) -> CommandOutcome:
        try:
            self._execute(index, command)
        except BrokerError as refusal:
            self.refused += 1
            return CommandOutcome(index, refusal.status, refusal.message)
        return CommandOutcome(index)

    def _execute(self, index: int, command: Command) -> None:
        """Execute the command. Raises BrokerError if the command is refused; the state is then unchanged."""
        match command:
            case PutTopic():
                self._put_topic(command)
            case DeleteTopic():
                self._delete_topic(command.topic)
            case PutGroup():
                self._put_group(index, command)
            case DeleteGroup():
                self._delete_group(command)
            case ExpireGroup():
                self._expire_group(command)
            case CommitOffsets():
                self._commit(command)
            case ResetOffsets():
                self._reset(index, command)
            case EndBarriers():
                self._end_barriers(command)
            case DropOffsets():
                self._drop(self._known_group(command.group), command.queues)
            case NewGeneration():
                self._set_members(index, command)
            case BeginQueue():
                self._begin_queue(command)
            case SetRulesVersion(version=version):
                self._raise_rules(version)
            case SetMergedTables():
                self._merged_tables = command.merge_id
            case GrantLocks():
                self._grant_locks(command)
            case ReleaseLocks():
                self._release_locks(command)

    def _raise_rules(self, version: int) -> None:
        check_rules_version(version)
        self._rules_version = max(self._rules_version, version)
        if self._rules_version >= _NO_MEMBERS_SINCE:
            # Otherwise the members that 0.1.0 recorded would make their groups refuse all commits forever.
            self._groups = {name: group._replace(members=frozenset()) for name, group in self._groups.items()}

    def _set_members(self, index: int, command: NewGeneration) -> None:
        """Start a generation with these members, as 0.1.0 did. Since rules version 3 this has no effect."""
        if self._rules_version < _NO_MEMBERS_SINCE:
            group = self._known_group(command.group)
            self._groups[group.name] = group._replace(generation=index, members=command.members)

    def _put_topic(self, command: PutTopic) -> None:
        name = command.config.name
        exists = name in self._topics
        if exists and command.create_only:
            return
        if not exists and len(self._topics) >= MAX_TOPICS:
            raise error_for(Status.TOO_MANY_TOPICS, f"the limit of {MAX_TOPICS} topics is reached")
        self._topics = MappingProxyType({**self._topics, name: command.config})

    def _delete_topic(self, name: str) -> None:
        if name not in self._topics:
            raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {name!r}")
        self._topics = MappingProxyType({key: value for key, value in self._topics.items() if key != name})
        others = {topic: ids for topic, ids in self._imported_queues.items() if topic != name}
        self._imported_queues = MappingProxyType(others)
        for group in self.groups():
            kept = {queue: offset for queue, offset in group.offsets.items() if queue[0] != name}
            if len(kept) != len(group.offsets):
                barriers = {queue: barrier for queue, barrier in group.barriers.items() if queue[0] != name}
                self._set_offsets(group._replace(barriers=MappingProxyType(barriers)), kept)
        self._drop_deleted(lambda queue: queue[0] == name)

    def _grant_locks(self, command: GrantLocks) -> None:
        before = self._lock_holders.get(command.group, {})
        holders = {**before, **dict.fromkeys(command.queues, command.client_id)}
        count = self._lock_count + len(holders) - len(before)
        if count > max(MAX_LOCKS, self._lock_count):
            raise error_for(Status.TOO_MANY_MEMBERS, f"the limit of {MAX_LOCKS} locked queues is reached")
        self._set_lock_holders(command.group, holders)

    def _release_locks(self, command: ReleaseLocks) -> None:
        holders = dict(self._lock_holders.get(command.group, {}))
        for queue in command.queues:
            if holders.get(queue) == command.client_id:
                del holders[queue]
        self._set_lock_holders(command.group, holders)

    def _set_lock_holders(self, group: str, holders: Mapping[tuple[str, int], str]) -> None:
        self._lock_count += len(holders) - len(self._lock_holders.get(group, {}))
        others = _without(self._lock_holders, group)
        if holders:
            others[group] = MappingProxyType(holders)
        self._lock_holders = MappingProxyType(others)

    def _begin_queue(self, command: BeginQueue) -> None:
        topic, queue_id, offset = command.topic, command.queue_id, command.offset
        self._check_queues((QueueOffset(topic, queue_id, offset),))
        if not self._on_begin(topic, queue_id, offset):
            text = f"queue {queue_id} of {topic} cannot start at {offset}: it has had messages"
            raise error_for(Status.QUEUE_NOT_NEW, text)
        if offset:
            imported = self.imported_queues(topic) | {queue_id}
            self._imported_queues = MappingProxyType({**self._imported_queues, topic: imported})

    def _put_group(self, index: int, command: PutGroup) -> None:
        config = command.config
        group = self._groups.get(config.name)
        if group is not None:
            if not command.create_only:
                self._groups[config.name] = group._replace(config=config)
            return
        if len(self._groups) >= MAX_GROUPS:
            raise error_for(Status.TOO_MANY_GROUPS, f"the limit of {MAX_GROUPS} groups is reached")
        offsets = dict(self._deleted.get(config.name, {}))
        self._deleted = MappingProxyType(_without(self._deleted, config.name))
        created = Group(config, index, MappingProxyType(offsets))
        self._offset_count += len(offsets)
        # A new mapping, because other threads may be iterating over this one.
        self._groups = {**self._groups, config.name: created}

    def _delete_group(self, command: DeleteGroup) -> None:
        name = command.group
        if not command.keeps_offsets and name in self._deleted:
            self._deleted = MappingProxyType(_without(self._deleted, name))
            return
        group = self._known_group(name)
        self._remove_group(group)
        if command.keeps_offsets:
            self._keep_offsets(name, group.offsets)

    def _remove_group(self, group: Group) -> None:
        self._offset_count -= len(group.offsets)
        self._groups = _without(self._groups, group.name)

    def _keep_offsets(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Keep the offsets of a deleted group.

        If the limits are exceeded, drops the offsets of the groups that were deleted first.
        """
        deleted = {**_without(self._deleted, name), name: MappingProxyType(dict(offsets))}
        count = sum(map(len, deleted.values()))
        dropped = []
        for oldest, kept in list(deleted.items()):
            if len(deleted) <= MAX_DELETED_GROUPS and count <= MAX_DELETED_OFFSETS:
                break
            count -= len(kept)
            del deleted[oldest]
            dropped.append(oldest)
        self._deleted = MappingProxyType(deleted)
        for oldest in dropped:
            if self._on_done is not None:
                self._on_done(DeleteGroup(oldest))

    def _drop_deleted(self, is_dropped: Callable[[tuple[str, int]], bool]) -> None:
        """Drop the kept offsets of deleted groups in all queues for which `is_dropped` returns True."""
        if self._deleted:
            self._deleted = MappingProxyType(
                {
                    name: MappingProxyType({queue: at for queue, at in kept.items() if not is_dropped(queue)})
                    for name, kept in self._deleted.items()
                }
            )

    def _expire_group(self, command: ExpireGroup) -> None:
        group = self._known_group(command.group)
        if (
            group.members
            or not group.config.auto_created
            or group.generation != command.generation
            or self.progress(group) != command.progress
            or self._delivered(group.name).pending
        ):
            raise error_for(
                Status.GENERATION_STALE, f"group {group.name!r} was used after its deletion was proposed"
            )
        self._remove_group(group)

    def _commit(self, command: CommitOffsets) -> None:
        group = self._known_group(command.group)
        self._check_generation(group, command.generation)
        self._check_queues(command.offsets)
        changed, barriers = group.offsets.copy(), group.barriers
        for topic, queue_id, offset in command.offsets:
            queue = topic, queue_id
            barrier = barriers.get(queue)
            if barrier is not None and command.generation == NO_GENERATION:
                if barrier.reset_index > command.judged_at:
                    continue
                if command.client_id and command.client_id not in barrier.passed:
                    barriers = {**barriers, queue: barrier.with_passed(command.client_id)}
            changed[queue] = self._newer_offset(changed.get(queue), offset)
        self._check_room(group, len(changed))
        if barriers is not group.barriers:
            group = group._replace(barriers=MappingProxyType(dict(barriers)))
        self._set_offsets(group, changed)

    def _newer_offset(self, stored: int | None, committed: int) -> int:
        return committed if stored is None else max(stored, committed)

    def _check_generation(self, group: Group, generation: int) -> None:
        """Raise GroupRefused if 0.1.0 would have refused the commit.

        Commits of later releases have no generation.
        """
        if generation != group.generation and (generation != NO_GENERATION or group.members):
            text = f"commit has generation {generation}, but group {group.name!r} has {group.generation}"
            raise error_for(Status.GENERATION_STALE, text)

    def _reset(self, index: int, command: ResetOffsets) -> None:
        group = self._known_group(command.group)
        self._check_queues(command.offsets)
        changed, barriers = group.offsets.copy(), dict(group.barriers)
        has_barriers = command.has_barriers and self._rules_version >= _BARRIERS_SINCE
        for topic, queue_id, offset in command.offsets:
            changed[topic, queue_id] = offset
            if has_barriers:
                barriers[topic, queue_id] = Barrier(index)
        self._check_room(group, len(changed))
        group = group._replace(generation=index, barriers=MappingProxyType(barriers))
        self._set_offsets(group, changed)

    def _end_barriers(self, command: EndBarriers) -> None:
        group = self._known_group(command.group)
        kept = {queue: left for queue, left in group.barriers.items() if left.reset_index > command.up_to}
        self._groups[group.name] = group._replace(barriers=MappingProxyType(kept))

    def _drop(self, group: Group, queues: Iterable[tuple[str, int]]) -> None:
        dropped = group.offsets.keys() & set(queues)
        if dropped:
            kept = {queue: offset for queue, offset in group.offsets.items() if queue not in dropped}
            barriers = {queue: barrier for queue, barrier in group.barriers.items() if queue not in dropped}
            self._set_offsets(group._replace(barriers=MappingProxyType(barriers)), kept)

    # -- helpers ------------------------------------------------------------------------------------------

    def _restore(self, contents: StateContents) -> None:
        self._applied_index = contents.applied_index
        self._topics = MappingProxyType(dict(contents.topics))
        self._groups = dict(contents.groups)
        self._rules_version = contents.rules_version
        self._offset_count = sum(len(group.offsets) for group in self._groups.values())
        self._lock_holders = MappingProxyType(dict(contents.lock_holders))
        self._imported_queues = MappingProxyType(dict(contents.imported_queues))
        self._deleted = MappingProxyType(dict(contents.deleted_groups))
        self._merged_tables = contents.merged_tables
        self._lock_count = sum(map(len, self._lock_holders.values()))

    def _notify_topic_cut(self, command: Command, before: Mapping[str, TopicConfig]) -> None:
        match command:
            case PutTopic(keeps_messages=True):
                pass
            case PutTopic(config=TopicConfig(name=topic)) | DeleteTopic(topic=topic):
                if self._on_topic_cut is not None and (topic in before) != (topic in self._topics):
                    self._on_topic_cut(topic)

    def _known_group(self, name: str) -> Group:
        if (group := self._groups.get(name)) is None:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {name!r}")
        return group

    def _check_queues(self, offsets: tuple[QueueOffset, ...]) -> None:
        for name, queue_id, _ in offsets:
            topic = self._topics.get(name)
            if topic is None:
                raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {name!r}")
            # After a reduction of write queues, consumers still read the remaining queues to their end.
            if queue_id >= max(topic.read_queues, topic.write_queues):
                raise error_for(Status.QUEUE_UNKNOWN, f"topic {name!r} has no queue {queue_id}")

    def _check_room(self, group: Group, count: int) -> None:
        total = self._offset_count - len(group.offsets) + count
        if count > len(group.offsets) and (count > MAX_OFFSETS_PER_GROUP or total > MAX_OFFSETS):
            raise error_for(
                Status.TOO_MANY_OFFSETS,
                f"group {group.name!r} would have {count} offsets, all groups {total}: "
                f"the limits are {MAX_OFFSETS_PER_GROUP} and {MAX_OFFSETS}",
            )

    def _set_offsets(self, group: Group, offsets: dict[tuple[str, int], int]) -> None:
        self._offset_count += len(offsets) - len(self._groups[group.name].offsets)
        self._groups[group.name] = group._replace(offsets=MappingProxyType(offsets))


def _without(items: Mapping[str, _V], name: str) -> dict[str, _V]:
    return {key: value for key, value in items.items() if key != name}
