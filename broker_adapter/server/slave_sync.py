"""Copies topics, groups and offsets from a slave's master (SlaveSynchronize), and discovers the master.

Brokers of this project log their changes of these tables; a RocketMQ master does not. Copied offsets are
limited to the messages that this slave has. Suppose that a group had a greater offset and the slave became
master. It would assign the offsets in between to new messages, and the group would never receive them.

The tables are copied when replication starts, when the log contains a topic that the slave does not know, and
periodically. Clients must be able to read acknowledged messages. If the master fails before the slave could
query an unknown topic, the slave therefore creates the topic from its messages.

Entries that commands in the log have changed after the tables were requested are not copied, because the log
is newer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, TypeVar

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.node.node import ClassicNode
from broker_adapter.log.classic.system_names import is_system_name
from broker_adapter.metadata.commands import (
    NO_GENERATION,
    RESERVED_PREFIX,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    ExpireGroup,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.migration.master import Master
from broker_adapter.server.classic_tables import tables_of
from broker_adapter.server.log_host import BrokerParts
from broker_adapter.server.table_merge import OffsetKey, Tables, merge, tables_from
from broker_adapter.store.dispatcher import Arrivals
from broker_adapter.wire.topic_names import reply_topic
from dledger.infra.logs import get_logger

_log = get_logger("slave")
_MASTER_CHECK_S = 0.5
#: Interval of the checks whether a copy is due, and delay after a failed copy.
_TICK_S, _RETRY_S = 0.1, 0.5
#: A master unreachable for this time cannot be queried for unknown topics (seconds).
_UNREACHED_S = 1.0
_K = TypeVar("_K")
_V = TypeVar("_V")


class _UnknownTopic(NamedTuple):
    """Messages of an unknown topic.

    `queues`: the topic has at least this many queues. `number`: number of the arrival, to detect later
    arrivals.
    """

    queues: int
    number: int


class _LoggedChanges:
    """Names of entries that commands in the log have changed."""

    def __init__(self) -> None:
        self._topics: set[str] = set()
        self._groups: set[str] = set()
        self._offsets: set[OffsetKey] = set()

    def add(self, command: Command) -> None:
        match command:
            case PutTopic(config=TopicConfig(name=topic)) | DeleteTopic(topic=topic):
                self._topics.add(topic)
            case (
                PutGroup(config=GroupConfig(name=group)) | DeleteGroup(group=group) | ExpireGroup(group=group)
            ):
                self._groups.add(group)
            case ResetOffsets(group=group, offsets=offsets):
                self._offsets.update((group, topic, queue_id) for topic, queue_id, _ in offsets)
            case DropOffsets(group=group, queues=queues):
                self._offsets.update((group, *queue) for queue in queues)

    def applied_to(self, tables: Tables, ours: Tables) -> Tables:
        """Return `tables`, but take the changed entries from `ours`."""
        return tables._replace(
            topics=_updated(tables.topics, ours.topics, self._topics.__contains__),
            groups=_updated(tables.groups, ours.groups, self._groups.__contains__),
            offsets=_updated(tables.offsets, ours.offsets, self._has_offset),
        )

    def _has_offset(self, key: OffsetKey) -> bool:
        group, topic, _ = key
        return group in self._groups or topic in self._topics or key in self._offsets


def _updated(
    received: Mapping[_K, _V], ours: Mapping[_K, _V], is_changed: Callable[[_K], bool]
) -> dict[_K, _V]:
    kept = {key: value for key, value in received.items() if not is_changed(key)}
    return kept | {key: value for key, value in ours.items() if is_changed(key)}


class SlaveSync:
    """Copies the tables of the master. Implements BackgroundService."""

    def __init__(
        self,
        node: ClassicNode,
        parts: BrokerParts,
        tls: Callable[[], ssl.SSLContext | None],
        max_offset: Callable[[str, int], int],
        adopted: Callable[[], None] = lambda: None,
        readable: Callable[[], Arrivals] = list,
    ) -> None:
        """Create the service.

        `tls`: returns the TLS context for calls to the master, or None for plain text. `max_offset`: returns
        the end of the dispatched messages of (topic, queue id). `adopted`: called on the machine's thread
        after each change that is not in the log. `readable`: returns the queues with readable messages.
        """
        self._adopted = adopted
        self._node = node
        self._max_offset = max_offset
        self._readable = readable
        self._tls = tls
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._problem = ""
        self._refusal = ""  # last logged refusal of an entry of the master's tables
        self._unknown: dict[str, _UnknownTopic] = {}
        self._arrivals = 0
        self._created: set[str] = set()
        #: Queues that restarted after the tables were requested. Received offsets in them may belong to
        #: deleted topics.
        self._restarted: set[tuple[str, int]] = set()
        #: Topics whose deletion is postponed to the next copy, because messages have arrived since the tables
        #: were requested.
        self._undecided: set[str] = set()
        #: The readable queues when the tables were requested.
        self._ends: set[tuple[str, int, int]] = set()
        #: Changes in the log since the tables were requested.
        self._logged = _LoggedChanges()
        self._snapshot: Tables | None = None
        self._snapshot_of = ""  # address of the master that sent the snapshot

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.arrived(self._readable())
        self._tasks = [loop.create_task(self._find_master()), loop.create_task(self._keep_synced())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def arrived(self, arrivals: Arrivals) -> None:
        """Handle dispatched messages. May be called on any thread."""
        if self._node.roles.leads:
            return
        topics = self._parts.metadata.topics
        for topic, queue_id, _ in arrivals:
            config = topics.get(topic)
            if config is not None and queue_id < max(config.read_queues, config.write_queues):
                continue
            is_own = is_system_name(topic) or topic == reply_topic(self._parts.settings.cluster)
            if not is_own and not topic.startswith(RESERVED_PREFIX):
                self._arrivals += 1
                before = self._unknown.get(topic, _UnknownTopic(0, 0)).queues
                self._unknown[topic] = _UnknownTopic(max(before, queue_id + 1), self._arrivals)

    def command_logged(self, command: Command) -> None:
        """Handle a command of the log. Called on the machine's thread."""
        if self._node.roles.leads:
            return
        self._logged.add(command)
        if isinstance(command, DeleteTopic):
            self._unknown.pop(command.topic, None)

    def queue_restarted(self, topic: str, queue_id: int) -> None:
        """Handle a queue that restarted at offset 0. Called on the machine's thread."""
        self._restarted.add((topic, queue_id))

    # -- inside

    async def _find_master(self) -> None:
        while True:
            if not self._parts.is_master:
                for status in self._parts.registrations().values():
                    if status.registered and status.master_ha_address:
                        self._node.replication.set_master(status.master_ha_address)
                        break
            await asyncio.sleep(_MASTER_CHECK_S)

    async def _keep_synced(self) -> None:
        now_s = asyncio.get_running_loop().time
        period_s = self._node.settings.sync_period_ms / 1000
        copied, due_s, unreached_s = 0, now_s() + period_s, now_s()
        while True:
            await asyncio.sleep(min(period_s, _TICK_S))
            address, replication = self._master_address(), self._node.replication
            if self._parts.is_master or replication.has_all:
                unreached_s = now_s()
                continue
            if not replication.follows:
                if replication.is_following and now_s() - unreached_s >= _UNREACHED_S:
                    await self._create_unknown_topics()
                continue
            unreached_s = now_s()
            connections = replication.connections
            is_due = connections != copied or bool(self._unknown) or now_s() >= due_s
            if not address or not is_due:
                continue
            try:
                await self._sync(address)
                self._problem, copied, due_s = "", connections, now_s() + period_s
            except BrokerError as error:
                if self._problem != error.message:
                    self._problem = error.message
                    _log.warning("the master's tables could not be copied", master=address, reason=str(error))
                await self._create_unknown_topics()
                await asyncio.sleep(_RETRY_S)
            except Exception as error:
                # Without tables this slave could not serve clients as a master, so copying continues after
                # any error.
                _log.error("the master's tables could not be copied", master=address, exc_info=error)
                await asyncio.sleep(_RETRY_S)

    def _master_address(self) -> str:
        statuses = self._parts.registrations().values()
        return next(filter(None, (status.master_address for status in statuses if status.registered)), "")

    async def _sync(self, address: str) -> None:
        unknown = dict(self._unknown)
        self._restarted.clear()
        self._logged = _LoggedChanges()
        self._ends = set(self._readable())
        async with Master([address], address=address, tls=self._tls()) as master:  # no NameServer is needed
            topics = (await master.topics()).values()
            groups = (await master.groups()).values()
            offsets = await master.offsets()
            tables = tables_from(topics, groups, offsets, await master.delays())
        base = self._snapshot if self._snapshot_of == address else None
        # Resets and deletions by a master of this project are in the log, which may be newer than the
        # received tables.
        replication = self._node.replication
        is_foreign = replication.follows and not replication.by_handshake
        await self._node.feed.run(lambda: self._adopt(tables, base, is_foreign))
        self._snapshot, self._snapshot_of = _with_topics(tables, base, self._undecided), address
        self._created &= self._undecided
        for topic, arrival in unknown.items():
            # The topic is now known, or its master has deleted it.
            self._forget(topic, arrival)

    def _adopt(self, tables: Tables, base: Tables | None, is_foreign: bool) -> None:
        """Apply the received tables.

        Invalid entries are skipped and logged. Called on the machine's thread.
        """
        parts = self._parts
        for command in self._commands(tables, base, is_foreign):
            if self._node.roles.leads:
                return  # this broker is master, and all further changes are in the log
            try:
                outcome = parts.metadata.adopt(command)
            except BrokerError as error:
                reason = str(error)
            else:
                reason = outcome.message
            if not reason:
                self._adopted()
            else:
                self._log_refusal(reason)
        if not self._node.roles.leads:
            # Limit the offsets to the messages of this log. Otherwise later messages would be skipped.
            own = tables.system_offsets()
            ends = [self._max_offset(offset.topic, offset.queue_id) for offset in own]
            own = [row._replace(offset=min(row.offset, end)) for row, end in zip(own, ends, strict=True)]
            before = parts.delivery_state.system_offsets()
            for refused in parts.delivery_state.adopt(own):
                self._log_refusal(str(refused))
            if parts.delivery_state.system_offsets() != before:
                self._adopted()

    def _log_refusal(self, reason: str) -> None:
        if reason != self._refusal:
            self._refusal = reason
            _log.warning("skipped an invalid entry of the master's tables", reason=reason)

    def _commands(self, tables: Tables, base: Tables | None, is_foreign: bool) -> list[Command]:
        """Return the commands that apply the received tables.

        `base`: previous tables of the same master. Entries that are no longer in the received tables are
        deleted. `is_foreign`: the master is a RocketMQ broker, which does not log deletions.
        """
        ours = tables_of(self._parts.metadata, self._parts.delivery_state)
        tables = self._logged.applied_to(tables, ours)
        created = {name: ours.topics[name] for name in self._created if name in ours.topics}
        known = base or Tables({}, {}, {}, {})
        known = known._replace(topics={**created, **known.topics})
        self._undecided = self._changed_topics()
        deleted = [
            command
            for command in merge([known], tables, ours)
            if isinstance(command, DeleteGroup | DropOffsets)
            or (isinstance(command, DeleteTopic) and command.topic not in self._undecided)
        ]
        return [
            *(deleted if is_foreign else ()),
            *(
                change
                for command in merge((), tables, ours)
                for change in self._changes(command, ours, is_foreign)
            ),
        ]

    def _changed_topics(self) -> set[str]:
        """Return the topics with messages that arrived, or queues that restarted, after the tables were
        requested.

        Suppose that the master recreated a topic after it sent its table. A deletion would hide messages of
        the new topic.
        """
        arrived = {topic for topic, _, _ in set(self._readable()) - self._ends}
        return arrived | {topic for topic, _ in self._restarted}

    def _changes(self, command: Command, ours: Tables, may_fall: bool) -> Sequence[Command]:
        """Limit the offsets of a command to the existing messages."""
        if not isinstance(command, ResetOffsets):
            return (command,)
        up, down = list[QueueOffset](), list[QueueOffset]()
        for received in command.offsets:
            topic, queue_id, _ = received
            if (topic, queue_id) in self._restarted:
                continue
            before = ours.offsets.get((command.group, topic, queue_id))
            limited = received._replace(offset=min(received.offset, self._max_offset(topic, queue_id)))
            if before is None or limited.offset > before:
                up.append(limited)
            elif received.offset < before and may_fall:
                down.append(limited)
        return [
            *([CommitOffsets(command.group, NO_GENERATION, tuple(up))] if up else ()),
            *([ResetOffsets(command.group, tuple(down))] if down else ()),
        ]

    async def _create_unknown_topics(self) -> None:
        """Create topics for messages of unknown topics, because the master cannot be queried."""
        unknown = dict(self._unknown)
        if unknown:
            await self._node.feed.run(lambda: self._put_topics(unknown))

    def _put_topics(self, unknown: dict[str, _UnknownTopic]) -> None:
        """Create the topics. Called on the machine's thread."""
        metadata = self._parts.metadata
        for topic, arrival in unknown.items():
            if self._node.roles.leads:
                return
            if topic not in self._unknown:  # the log has deleted it
                continue
            config = metadata.topic(topic) or TopicConfig(topic, 1, 1, auto_created=True)
            config = config._replace(
                read_queues=max(config.read_queues, arrival.queues),
                write_queues=max(config.write_queues, arrival.queues),
            )
            try:
                metadata.adopt(PutTopic(config))
            except BrokerError as error:
                _log.warning("messages of an invalid topic exist", topic=topic, reason=str(error))
            else:
                _log.warning("created a topic from its messages: the master is unreachable", topic=topic)
                self._created.add(topic)
                self._adopted()
            self._forget(topic, arrival)

    def _forget(self, topic: str, arrival: _UnknownTopic) -> None:
        if self._unknown.get(topic) == arrival:
            self._unknown.pop(topic, None)


def _with_topics(tables: Tables, base: Tables | None, names: Set[str]) -> Tables:
    """Return `tables`, to which the entries of these topics that exist only in `base` are added."""
    if base is None:
        return tables
    topics = {name: config for name, config in base.topics.items() if name in names}
    offsets = {key: offset for key, offset in base.offsets.items() if key[1] in names - tables.topics.keys()}
    return tables._replace(topics={**topics, **tables.topics}, offsets={**offsets, **tables.offsets})
