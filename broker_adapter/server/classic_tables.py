"""Maintains RocketMQ's tables in the directory of a classic log.

The tables are topics.json, subscriptionGroup.json, consumerOffset.json and delayOffset.json. A RocketMQ
broker that is started on the directory reads them. At its next start, this broker merges RocketMQ's changes
into the state (`table_merge`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from broker_adapter.api import QueueOffset
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.endpoints.v4.admin_bodies import (
    UnusedMembers,
    all_groups,
    all_offsets,
    all_topics,
    delays,
    transaction_offsets,
    unused_group_members,
    unused_topic_members,
)
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged, error_for
from broker_adapter.log.classic.tables import content_at, table_at
from broker_adapter.metadata.commands import (
    MAX_OFFSETS_PER_COMMAND,
    Command,
    DeleteGroup,
    PutGroup,
    ResetOffsets,
    SetMergedTables,
)
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server.log_host import BrokerParts
from broker_adapter.server.table_base import (
    NO_TABLES,
    SeenTables,
    TableBase,
    are_left_cleanly,
    prepared_path,
    read_base,
    tables_on_disk,
    write_base,
)
from broker_adapter.server.table_merge import (
    DELAYS,
    GROUPS,
    OFFSETS,
    TABLE_NAMES,
    TOPICS,
    Tables,
    merge,
    parse_tables,
    tables_from,
    unlogged,
)
from broker_adapter.store.consume_queues import Incarnation
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from dledger import ReadFailed
from dledger.infra.files.disk import Disk, OsDisk, read_file, replace_file, write_all
from dledger.infra.logs import get_logger
from dledger.infra.loops.threads import in_thread

_log = get_logger("tables")
_PERIOD_S = 1.0
#: Delay between attempts of `publish`, while a checkpoint or a merge is in progress.
_RETRY_S = 0.05
#: Timeout for disk writes when the broker stops.
_STOP_S = 10.0
_NOTHING = Tables({}, {}, {}, {})

MaxOffset = Callable[[str, int], int]


class TableAdoption:
    """Merges changes that another broker made in the tables.

    Call on the machine's thread: `begin` once the derived files are recovered, `restore` when the log has
    been applied up to `position`, and `finish` when the whole log has been applied.
    """

    def __init__(self, directory: Path, metadata: MetadataState, delivery: DeliveryState) -> None:
        self._directory = directory
        self._metadata = metadata
        self._delivery = delivery
        self._base: TableBase | None = None
        self._found: Mapping[str, bytes] = {}
        self._is_left_cleanly = False
        self._theirs = self._merged = _NOTHING
        self._bases: Sequence[Tables] = ()
        self._merge_id = ""  # id of a merge that the log may lack
        self._created: set[str] = set()  # groups that the merge created
        self.is_finished = False
        #: True if the state was changed outside the log.
        self.has_changed = False

    def begin(self, is_new: bool) -> None:
        """Start the merge. `is_new`: the state is empty, and the whole log will be replayed.

        Commands in the log may refer to topics that exist only in the tables. These topics are therefore
        created first. Raises STORE_TABLE_DAMAGED.
        """
        if not self.is_finished:
            self._base = read_base(OsDisk(), self._directory)
            contents = {name: content_at(self._directory / name) for name in TABLE_NAMES}
            self._found = {name: content for name, content in contents.items() if content is not None}
            self._theirs = parse_tables(self._found)
            self._is_left_cleanly = are_left_cleanly(OsDisk(), self._directory)
        if is_new:
            first = self._parsed_base() if self.has_base and not self.is_finished else self._theirs
            self._execute(merge((), first, _NOTHING))
            _log_refused(self._delivery.set_system_offsets(first.system_offsets()))
            self.has_changed = self.has_changed or first != _NOTHING

    @property
    def has_base(self) -> bool:
        """True if this project has already written the tables."""
        return self._base is not None and self._base.is_image

    @property
    def position(self) -> int:
        """The log position at which a rebuild must call `restore`; -1 if it need not."""
        return -1 if self._base is None or self.is_finished else self._base.position

    @property
    def incarnations(self) -> Sequence[Incarnation]:
        return () if self._base is None else self._base.written.incarnations

    def restore(self) -> None:
        """Restore the state from the base, which is an image of the state at this position of the log.

        A rebuild needs the base if the log does not contain all changes, as on a slave of RocketMQ.
        """
        base, ours = self._parsed_base(), self._ours()
        kept = {group for group, _, _ in base.offsets}
        for command in merge([ours], base._replace(offsets={}), ours._replace(offsets={})):
            if isinstance(command, DeleteGroup):
                command = DeleteGroup(command.group, keeps_offsets=command.group in kept)
            self._execute([command])
        by_group: dict[str, dict[tuple[str, int], int]] = {}
        for (group, topic, queue_id), offset in base.offsets.items():
            by_group.setdefault(group, {})[topic, queue_id] = offset
        for name in by_group.keys() - {group.name for group in self._metadata.groups()}:
            self._metadata.restore_offsets(name, by_group[name])
        for known in self._metadata.groups():
            # Offsets of single-message delivery are in the log.
            own = self._delivery.offsets_of(known.name)
            offsets = {queue: at for queue, at in by_group.get(known.name, {}).items() if queue not in own}
            offsets |= {queue: at for queue, at in known.offsets.items() if queue in own}
            self._metadata.restore_offsets(known.name, offsets)
        _log_refused(self._delivery.set_system_offsets(base.system_offsets()))

    def finish(
        self,
        max_offset: MaxOffset,
        incarnations: Sequence[Incarnation] = (),
        *,
        was_clean: bool = False,
    ) -> Sequence[Command]:
        """Merge, and return the commands that the next master has to append to the log.

        `max_offset`: returns the end of (topic, queue id). `incarnations`: current incarnations of the
        queues. An offset beyond the end of a queue that was recreated since the base refers to the deleted
        topic. `was_clean`: the other broker wrote the tables when it stopped. In that case an offset in a
        recreated queue belongs to the new topic, even if it equals the base. If the other broker was killed,
        the offset may remain from the deleted topic. Raises LOG_FAILED if the merge cannot be recorded first.
        """
        self.is_finished = True
        base = (self._base or TableBase(-1, NO_TABLES)).settled(self._metadata.merged_tables)
        history = base.history(OsDisk(), self._directory)
        restarted = _restarted(history[0], incarnations)
        # Tables that this project wrote at a clean stop may be older than the recreation of a queue.
        was_clean = was_clean or (self._is_left_cleanly and self._found != history[-1].contents)
        seen = SeenTables(self._found, incarnations, was_clean)
        is_noted = bool(base.merges) and _is_same(history[-1], seen)
        if is_noted:
            seen = history.pop()
        self._bases = _bases(history, seen)
        theirs, ours = self._theirs, self._ours()
        if any(tables[:3] != theirs[:3] for tables in self._bases):
            self._note(base if is_noted else base._replace(merges=(*base.merges, seen)), is_noted)
        commands = [_limited(command, max_offset, restarted) for command in merge(self._bases, theirs, ours)]
        created = {command.config.name for command in commands if isinstance(command, PutGroup)}
        self._created = created - ours.groups.keys()
        self._execute(commands)
        before = self._delivery.system_offsets()
        # System offsets only increase: a lower offset would deliver messages twice.
        _log_refused(self._delivery.adopt(theirs.system_offsets()))
        if commands or self._delivery.system_offsets() != before:
            _log.info("merged changes of another broker", commands=len(commands))
            self.has_changed = True
        if self.has_changed:
            set_back_offsets(self._metadata, max_offset)
        self._merged = self._ours()
        return self.unlogged()

    def _note(self, base: TableBase, is_noted: bool) -> None:
        """Record the merge before it changes the state, because a checkpoint may contain it before the log
        does.

        Suppose that the process ends after such a checkpoint, and that RocketMQ then changes an entry back to
        its value in the base. Compared with the base alone, the entry would look unchanged, and the merged
        value would win.
        """
        try:
            if not is_noted:
                write_base(OsDisk(), self._directory, base)
        except OSError as error:
            text = (
                f"{self._directory}: cannot merge the changes of another broker: the merge record cannot be"
            )
            raise error_for(Status.LOG_FAILED, f"{text} written: {error}") from error
        self._merge_id = base.merge_id

    def unlogged(self) -> Sequence[Command]:
        """Return the commands of the merge for a log that lacks them, even if the state already includes the
        merge.

        Call after `finish`, on any thread. Suppose that a checkpoint contains the merge, and that the process
        ended before the log contained it. The next start finds the record of the merge and returns the same
        commands again.
        """
        if not self._merge_id:
            return []
        changes = unlogged(self._bases, self._theirs, self._merged, self._ours(), self._created)
        return [*changes, SetMergedTables(self._merge_id)]

    # -- inside

    def _parsed_base(self) -> Tables:
        return _NOTHING if self._base is None else parse_tables(self._base.written.contents)

    def _ours(self) -> Tables:
        return tables_of(self._metadata, self._delivery)

    def _execute(self, commands: Iterable[Command]) -> None:
        refused = 0
        for command in commands:
            try:
                refused += self._metadata.adopt(command).status is not None
            except BrokerError as error:
                refused += 1
                _log.warning("skipped an invalid entry of a table", reason=str(error))
        if refused:
            _log.warning("some entries of the tables were not adopted", refused=refused)


def _is_same(seen: SeenTables, now: SeenTables) -> bool:
    """Return True if no other broker has changed the tables between the two observations."""
    return seen.contents == now.contents and set(seen.incarnations) == set(now.incarnations)


def _bases(history: Sequence[SeenTables], seen: SeenTables) -> list[Tables]:
    """Return the tables to compare with `seen`."""
    bases = []
    for before, after in pairwise((*history, seen)):
        base = parse_tables(before.contents)
        bases.append(_without(base, _restarted(before, after.incarnations)) if after.was_clean else base)
    return bases or [parse_tables(seen.contents)]


def _restarted(before: SeenTables, incarnations: Iterable[Incarnation]) -> set[tuple[str, int]]:
    return {(topic, queue_id) for topic, queue_id, _ in set(incarnations) - set(before.incarnations)}


def _without(base: Tables, queues: Collection[tuple[str, int]]) -> Tables:
    """Return the base without offsets in these queues."""
    return base._replace(offsets={key: at for key, at in base.offsets.items() if key[1:] not in queues})


def _log_refused(errors: Iterable[BrokerError]) -> None:
    for error in errors:
        _log.warning("skipped an invalid entry of a table", reason=str(error))


def _limited(command: Command, max_offset: MaxOffset, restarted: Collection[tuple[str, int]]) -> Command:
    """Limit the offsets of a command to the existing messages."""
    if not isinstance(command, ResetOffsets):
        return command
    rows = []
    for offset in command.offsets:
        end = max_offset(offset.topic, offset.queue_id)
        if offset.offset <= end or (offset.topic, offset.queue_id) not in restarted:
            rows.append(offset._replace(offset=min(offset.offset, end)))
    return ResetOffsets(command.group, tuple(rows), command.has_barriers)


def set_back_offsets(metadata: MetadataState, max_offset: MaxOffset) -> None:
    """Lower group offsets that are beyond the existing messages, because the group would skip later messages.

    Such offsets occur because the tables and the log are written separately, and the log may have lost its
    end. `max_offset`: returns the end of (topic, queue id).
    """
    for group in metadata.groups():
        ends = [QueueOffset(*queue, max_offset(*queue)) for queue in group.offsets]
        beyond = [end for end in ends if end.offset < group.offsets[end.topic, end.queue_id]]
        if beyond:
            _log.warning(
                "lowered offsets of a group that were beyond the end of the log",
                group=group.name,
                queues=len(beyond),
            )
        for at in range(0, len(beyond), MAX_OFFSETS_PER_COMMAND):
            metadata.adopt(ResetOffsets(group.name, tuple(beyond[at : at + MAX_OFFSETS_PER_COMMAND])))
    for name, kept in metadata.deleted_groups.items():
        metadata.restore_offsets(name, {queue: min(at, max_offset(*queue)) for queue, at in kept.items()})


def tables_of(metadata: MetadataState, delivery: DeliveryState) -> Tables:
    """Convert the state to tables."""
    system = delivery.system_offsets()
    levels = {queue_id + 1: offset for (topic, queue_id), offset in system.items() if topic == SCHEDULE_TOPIC}
    configs = [group.config for group in metadata.groups()]
    return tables_from(metadata.topics.values(), configs, offsets_by_group(metadata, delivery), levels)


def offsets_by_group(metadata: MetadataState, delivery: DeliveryState) -> dict[str, list[QueueOffset]]:
    """Return the offsets of each group. In each queue, this is the higher of the committed offset and the
    offset of single-message delivery.
    """
    by_group = {}
    known = {group.name: group.offsets for group in metadata.groups()}
    for name, committed in {**metadata.deleted_groups, **known}.items():
        offsets = dict(committed)
        for queue, offset in delivery.offsets_of(name).items():
            offsets[queue] = max(offset, offsets.get(queue, offset))
        by_group[name] = [QueueOffset(*queue, offset) for queue, offset in sorted(offsets.items())]
    return by_group | transaction_offsets(delivery.system_offsets())


class AdoptedChanges(NamedTuple):
    """Changes of the state that are not in the log, for example those that a slave copies from a RocketMQ
    master.

    After a restart they are either in a checkpoint or lost.
    """

    may_write: Callable[[], bool]  # False while a merge of the tables is pending
    total: Callable[[], Awaitable[int]]  # number of changes visible to readers
    durable: Callable[[], int]  # number of changes in a checkpoint
    make_durable: Callable[[], Awaitable[None]]


class _Copy(NamedTuple):
    """A copy of the tables to be written. Later copies have greater numbers."""

    number: int
    position: int
    contents: Mapping[str, bytes]
    incarnations: Sequence[Incarnation]


class TableWriter:
    """Writes changed tables, at most once a second and for `publish`. Implements BackgroundService.

    A copy of the tables is written only after a checkpoint contains all its changes. Suppose that the tables
    were written earlier and that the process ended. The next start would use the older checkpoint, and find
    no difference between the tables and the base. Until the checkpoint is written, the copy is not updated.
    Otherwise a slave of a busy master, which always has newer changes, would never write the copy.
    """

    def __init__(
        self,
        directory: Path,
        parts: BrokerParts,
        wait_applied: Callable[[], Awaitable[int]],
        adopted: AdoptedChanges | None = None,
        position: Callable[[], int] = lambda: -1,
        incarnations: Callable[[], Sequence[Incarnation]] = lambda: (),
    ) -> None:
        """Create a writer.

        `wait_applied`: waits until the current log is visible in `parts`; raises ReadFailed. `adopted`: None
        if all changes are in the log. `position`: returns the position up to which the log is applied.
        `incarnations`: returns the incarnations of the queues.
        """
        self._adopted = adopted
        self._position = position
        self._incarnations = incarnations
        self._wait_applied = wait_applied
        self._writing = Lock()
        self._directory = directory
        self._parts = parts
        self._numbers = count(1)
        # the next copy, with the number of changes that must be durable first
        self._waiting: tuple[_Copy, int] | None = None
        self._newest = 0  # number of the copy written last
        self._written: SeenTables | None = None
        self._base: TableBase | None = None
        self._task: asyncio.Task[None] | None = None
        self._carried: dict[str, UnusedMembers] = {}
        self._problem = ""
        self._publishing: list[asyncio.Future[None]] = []
        self._is_wanted = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(_STOP_S):
                with suppress(ReadFailed):
                    await self._wait_applied()
                self._waiting = None
                await self.write()
                if self._waiting is not None and self._adopted is not None:
                    await self._adopted.make_durable()
                    await self.write()
        except TimeoutError:
            _log.error("the disk does not respond: tables were not written")
        self._end_publishing(len(self._publishing))

    async def publish(self) -> None:
        """Wait until the tables contain the current state or writing them has failed.

        Concurrent calls share a write. Call on the event loop on which `start` was called.
        """
        if self._task is None or self._task.done():
            return
        written = asyncio.get_running_loop().create_future()
        self._publishing.append(written)
        self._is_wanted.set()
        await written

    async def _run(self) -> None:
        while True:
            self._is_wanted.clear()
            calls = len(self._publishing)
            if await self.write(is_published=calls > 0):
                self._end_publishing(calls)
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S if self._publishing else _PERIOD_S):
                    await self._is_wanted.wait()

    def _end_publishing(self, calls: int) -> None:
        """Complete the first `calls` waiters."""
        for written in self._publishing[:calls]:
            if not written.done():  # its caller may have been cancelled
                written.set_result(None)
        del self._publishing[:calls]

    async def write(self, *, is_published: bool = False) -> bool:
        """Write the tables. Return False if a copy waits for a checkpoint or a merge is pending.

        `is_published`: make the required checkpoint durable, and then write the current state.
        """
        try:
            if is_published:
                self._waiting = None
            is_written = await self._write_durable()
            if is_published and self._waiting is not None and self._adopted is not None:
                await self._adopted.make_durable()
                is_written = await self._write_durable()
            self._problem = ""
            return is_written
        except Exception as error:  # the state is in the log, so consumers do not depend on the tables
            if self._problem != repr(error):
                self._problem = repr(error)
                _log.error("tables could not be written", exc_info=error)
            return True

    async def _write_durable(self) -> bool:
        adopted = self._adopted
        if adopted is not None and not adopted.may_write():
            self._waiting = None
            return False
        if self._waiting is None:
            copy = await in_thread(self._copy, "tables")
            self._waiting = copy, 0 if adopted is None else await adopted.total()
        copy, changes = self._waiting
        if adopted is not None and adopted.durable() < changes:
            return False
        self._waiting = None
        await in_thread(partial(self._put, copy), "tables")
        return True

    def _copy(self) -> _Copy:
        # Read the position first, so that the contents include at least the log up to it.
        number, position = next(self._numbers), self._position()
        return _Copy(number, position, self._contents(), self._incarnations())

    def _put(self, copy: _Copy) -> None:
        with self._writing:  # the thread of a cancelled task may still be running
            if copy.number < self._newest or not copy.contents:
                return
            self._newest = copy.number
            written = SeenTables(copy.contents, copy.incarnations)
            if written == self._written:
                return
            disk = OsDisk()
            self._directory.mkdir(parents=True, exist_ok=True)
            if self._base is None:
                self._base = read_base(disk, self._directory) or TableBase(-1, NO_TABLES)
            present = tables_on_disk(disk, self._directory)
            if present != copy.contents:
                self._replace_tables(disk, copy.position, written, present)
            # Until all tables are replaced, the base has the earlier incarnations for the others.
            self._note(disk, TableBase(copy.position, written, self._base.number))
            self._written = written

    def _replace_tables(
        self, disk: Disk, position: int, written: SeenTables, present: Mapping[str, bytes]
    ) -> None:
        """Replace the tables that have changed. `present`: current contents of the files."""
        assert self._base is not None
        directory, number = self._directory, self._base.number + 1
        merged = self._base.history(disk, directory)[-1].incarnations
        changed = {name: new for name, new in written.contents.items() if present.get(name) != new}
        for name, content in changed.items():
            _write(disk, prepared_path(directory, name, number), content)
        disk.sync_directory(directory)
        before = self._readable(present, disk)
        self._note(disk, TableBase(position, written, number, SeenTables(before, merged)))
        for name in changed:
            path = directory / name
            if name in before:  # RocketMQ keeps the previous version as a backup
                replace_file(disk, path.with_name(f"{name}.bak"), before[name])
            disk.rename(prepared_path(directory, name, number), path)
            disk.sync_directory(directory)

    def _note(self, disk: Disk, base: TableBase) -> None:
        write_base(disk, self._directory, base)
        self._base = base
        if base.before is None:
            self._remove_prepared(disk)

    def _remove_prepared(self, disk: Disk) -> None:
        """Remove the prepared files of incomplete writes."""
        for path in disk.listdir(self._directory):
            table, _, number = path.rpartition(".")
            if table in TABLE_NAMES and number.isdecimal():
                disk.unlink(self._directory / path)

    def _readable(self, present: Mapping[str, bytes], disk: Disk) -> dict[str, bytes]:
        """Return the tables that a restart would read. `present`: current contents of the files."""
        written, read = {} if self._written is None else self._written.contents, partial(read_file, disk)
        readable = {}
        for name in TABLE_NAMES:
            content = present.get(name)
            if content is None or content != written.get(name):
                content = None
                with suppress(StoredDataDamaged):
                    content = content_at(self._directory / name, read)
            if content is not None:
                readable[name] = content
        return readable

    def _carry(self, name: str, present: Set[str]) -> UnusedMembers:
        """Return the data in a table that only RocketMQ uses, for entries that have existed since the table
        was first read.
        """
        unused = self._carried.get(name, None)
        if unused is None:
            unused = UnusedMembers()
            with suppress(StoredDataDamaged):
                table = table_at(self._directory / name)
                unused = unused_topic_members(table) if name == TOPICS else unused_group_members(table)
        entries = {entry: members for entry, members in unused.entries.items() if entry in present}
        self._carried[name] = unused = unused._replace(entries=entries)
        return unused

    def _contents(self) -> dict[str, bytes]:
        metadata, delivery = self._parts.metadata, self._parts.delivery_state
        version = max(metadata.applied_index, 0)
        topics = list(metadata.topics.values())
        groups = [group.config for group in metadata.groups()]
        own = delivery.system_offsets()
        if not topics and not groups and not own and not (self._directory / TOPICS).exists():
            return {}
        return {
            TOPICS: all_topics(topics, version, self._carry(TOPICS, {topic.name for topic in topics})),
            GROUPS: all_groups(groups, version, self._carry(GROUPS, {group.name for group in groups})),
            OFFSETS: all_offsets(offsets_by_group(metadata, delivery)),
            DELAYS: delays(own),
        }


def _write(disk: Disk, path: Path, content: bytes) -> None:
    """Write and sync a file. The caller must sync the directory."""
    handle = disk.open(path, create=True)
    try:
        disk.truncate(handle, 0)
        write_all(disk, handle, [content], 0)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
