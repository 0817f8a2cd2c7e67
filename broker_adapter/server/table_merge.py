"""Three-way merge of the state with tables that RocketMQ wrote. Pure functions.

*base* is the content of the tables that this project last wrote, *theirs* is the current content, and *ours*
is the state. Only values that RocketMQ changed are taken from *theirs*. For example, a topic that was
acknowledged but not yet written is in neither *base* nor *theirs*, and is kept.

If merges were interrupted, there are several bases: the first base, followed by tables that were merged into
the state completely, partly or not at all. A value counts as unchanged only if it equals all bases, and a key
as deleted if any base has it. Suppose that RocketMQ deletes a topic, the log contains that merge, and
RocketMQ recreates the topic. The topic then equals the first base although it is new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.delivery_state.commands import SystemOffset
from broker_adapter.log.classic.system_names import is_system_group, user_topics
from broker_adapter.log.classic.tables import delays_of, groups_of, offsets_of, parse_table, topics_of
from broker_adapter.metadata.commands import (
    MAX_OFFSETS_PER_COMMAND,
    Command,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.topic_names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP

TOPICS, GROUPS = "topics.json", "subscriptionGroup.json"
OFFSETS, DELAYS = "consumerOffset.json", "delayOffset.json"
TABLE_NAMES = (TOPICS, GROUPS, OFFSETS, DELAYS)
_K = TypeVar("_K")
_V = TypeVar("_V")

#: Group, topic, queue id.
OffsetKey = tuple[str, str, int]


class Tables(NamedTuple):
    """Contents of the tables without RocketMQ's internal entries.

    `system`: offsets of the broker's own queues, by topic and queue id.
    """

    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, GroupConfig]
    offsets: Mapping[OffsetKey, int]
    system: Mapping[tuple[str, int], int]

    def system_offsets(self) -> list[SystemOffset]:
        return [SystemOffset(*queue, offset) for queue, offset in self.system.items()]


def tables_from(
    topics: Iterable[TopicConfig],
    groups: Iterable[GroupConfig],
    offsets: Mapping[str, Sequence[QueueOffset]],
    delays: Mapping[int, int],
) -> Tables:
    """Build tables from a RocketMQ broker's values.

    `offsets`: offsets by group. `delays`: offsets by delay level.
    """
    system = {(SCHEDULE_TOPIC, level - 1): offset for level, offset in delays.items() if level > 0}
    for one in offsets.get(TRANSACTION_GROUP, ()):
        if one.topic in (HALF_TOPIC, OP_TOPIC):
            system[one.topic, one.queue_id] = one.offset
    return Tables(
        {name: one._replace(auto_created=False) for name, one in user_topics(topics).items()},
        {one.name: one._replace(auto_created=False) for one in groups if not is_system_group(one.name)},
        {
            (group, one.topic, one.queue_id): one.offset
            for group, rows in offsets.items()
            if not is_system_group(group)
            for one in rows
        },
        system,
    )


def parse_tables(contents: Mapping[str, bytes]) -> Tables:
    """Parse the files by name. A missing file counts as empty. Raises STORE_TABLE_DAMAGED."""
    parsed = {name: parse_table(contents.get(name, b"{}")) for name in TABLE_NAMES}
    return tables_from(
        topics_of(parsed[TOPICS]).values(),
        groups_of(parsed[GROUPS]).values(),
        offsets_of(parsed[OFFSETS]),
        delays_of(parsed[DELAYS]),
    )


def merge(bases: Sequence[Tables], theirs: Tables, ours: Tables) -> list[Command]:
    """Return the commands that apply all changes between the bases and *theirs* to the state.

    If there is no base, all entries in *theirs* are new, and none is deleted.
    """
    topics = _difference([base.topics for base in bases], theirs.topics, ours.topics)
    groups = _difference([base.groups for base in bases], theirs.groups, ours.groups)
    offsets = _difference([base.offsets for base in bases], theirs.offsets, ours.offsets)
    known = {*ours.groups, *groups.changed} - groups.deleted
    gone = groups.deleted | {group for base in bases for group in base.groups if group not in theirs.groups}
    unnamed = {group for group, _, _ in offsets.changed} - known - gone
    queues = {
        name: max(config.read_queues, config.write_queues)
        for name, config in {**ours.topics, **topics.changed}.items()
        if name not in topics.deleted
    }
    moved = _by_group(offsets.changed, known | unnamed, queues)
    left = {group for group, _, _ in theirs.offsets}
    last = [
        ResetOffsets(group, part, False)
        for group, rows in _by_group(offsets.changed, groups.deleted, queues).items()
        for part in _parts(rows)
    ]
    cleaned = {group for group, _, _ in offsets.deleted} - known - left - groups.deleted
    dropped: dict[str, list[tuple[str, int]]] = {}
    for group, topic, queue_id in sorted(offsets.deleted):
        if group in known and topic in queues:
            dropped.setdefault(group, []).append((topic, queue_id))
    return [
        *(DeleteTopic(name) for name in sorted(topics.deleted)),
        *last,
        *(DeleteGroup(name, keeps_offsets=name in left) for name in sorted(groups.deleted)),
        *(DeleteGroup(name) for name in sorted(cleaned)),
        # Messages of these topics precede the command in the log.
        *(PutTopic(config, keeps_messages=True) for config in topics.changed.values()),
        *(PutGroup(config) for config in groups.changed.values()),
        *(PutGroup(_used(name, theirs)) for name in sorted(unnamed)),
        *(DropOffsets(group, part) for group, rows in dropped.items() for part in _parts(rows)),
        # Without barriers, because no user requested a reset.
        *(ResetOffsets(group, part, False) for group, rows in moved.items() for part in _parts(rows)),
    ]


def _by_group(
    offsets: Mapping[tuple[str, str, int], int], groups: Collection[str], queues: Mapping[str, int]
) -> dict[str, list[QueueOffset]]:
    """Return the offsets of these groups in existing queues."""
    by_group: dict[str, list[QueueOffset]] = {}
    for (group, topic, queue_id), offset in offsets.items():
        if group in groups and queue_id < queues.get(topic, 0):
            by_group.setdefault(group, []).append(QueueOffset(topic, queue_id, offset))
    return by_group


def _used(group: str, theirs: Tables) -> GroupConfig:
    """Return the config of a group that the state does not know.

    If only our state has deleted the group, the config is in their table.
    """
    return theirs.groups.get(group, GroupConfig(group, auto_created=True))


def unlogged(
    bases: Sequence[Tables], theirs: Tables, merged: Tables, ours: Tables, created: Collection[str] = ()
) -> list[Command]:
    """Return the commands of the merge of `theirs` for a log that contains none of them.

    `merged`: state after the merge. `created`: groups that the merge created. Entries that were changed later
    are omitted, because the log has their newer values.
    """
    groups = _unmerged([base.groups for base in bases], theirs.groups, merged.groups, ours.groups)
    for name in created:
        if ours.groups.get(name) == merged.groups.get(name):
            groups.pop(name, None)
    before = ours._replace(
        topics=_unmerged([base.topics for base in bases], theirs.topics, merged.topics, ours.topics),
        groups=groups,
        offsets=_unmerged([base.offsets for base in bases], theirs.offsets, merged.offsets, ours.offsets),
    )
    return merge([before], ours, before)


def _unmerged(
    bases: Sequence[Mapping[_K, _V]],
    theirs: Mapping[_K, _V],
    merged: Mapping[_K, _V],
    ours: Mapping[_K, _V],
) -> dict[_K, _V]:
    """Return the state in which each entry that the merge changed has an earlier value again."""
    reverted = dict(ours)
    for key in theirs.keys() | {key for base in bases for key in base}:
        earlier = [base for base in bases if base.get(key) != theirs.get(key)]
        if not earlier or ours.get(key) != merged.get(key):
            continue
        if key in earlier[0]:
            reverted[key] = earlier[0][key]
        else:
            reverted.pop(key, None)
    return reverted


@dataclass(frozen=True, slots=True)
class _Changes(Generic[_K, _V]):
    changed: dict[_K, _V]
    deleted: set[_K]


def _difference(
    bases: Sequence[Mapping[_K, _V]], theirs: Mapping[_K, _V], ours: Mapping[_K, _V]
) -> _Changes[_K, _V]:
    changed = {
        key: value
        for key, value in theirs.items()
        if ours.get(key) != value and not (bases and all(base.get(key) == value for base in bases))
    }
    deleted = {key for key in ours if key not in theirs and any(key in base for base in bases)}
    return _Changes(changed, deleted)


def _parts(rows: Sequence[_V]) -> Iterable[tuple[_V, ...]]:
    for at in range(0, len(rows), MAX_OFFSETS_PER_COMMAND):
        yield tuple(rows[at : at + MAX_OFFSETS_PER_COMMAND])
