"""RocketMQ's tables in the directory of a classic log: topics.json, subscriptionGroup.json,
consumerOffset.json, delayOffset.json.

A broker of RocketMQ that is started on the directory reads them; and what such a one has written is where a
broker of ours begins that has no checkpoint of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from threading import Lock

from broker_adapter.api import GroupConfig, QueueOffset
from broker_adapter.classic.system_names import is_system_group, is_system_topic
from broker_adapter.classic.tables import delays_of, groups_of, offsets_of, table_at, topics_of
from broker_adapter.errors import BrokerError
from broker_adapter.format.delay_levels import SCHEDULE_TOPIC
from broker_adapter.format.topic_names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from broker_adapter.metadata.commands import (
    MAX_OFFSETS_PER_COMMAND,
    NO_GENERATION,
    Command,
    CommitOffsets,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.metadata.state import MetadataState
from broker_adapter.pop.commands import SystemOffset
from broker_adapter.pop.state import DeliveryState
from broker_adapter.processor.admin_bodies import (
    all_groups,
    all_offsets,
    all_topics,
    delays,
    transaction_offsets,
)
from broker_adapter.server.log_host import BrokerParts
from dledger import ReadFailed
from dledger.platform import OsDisk, get_logger, in_thread, read_file, replace_file

_log = get_logger("tables")
_PERIOD_S = 1.0
#: For the disk, when the broker is stopped.
_STOP_S = 10.0
_NAMES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
#: What this project wrote: whoever finds other tables knows that a broker of RocketMQ has run here.
_DIGESTS = "tables_written.json"


def adopt_tables(directory: Path, metadata: MetadataState, delivery: DeliveryState, is_new: bool) -> bool:
    """What the tables say, into metadata that know nothing (`is_new`), or to what they know if somebody else
    has written the tables since. `delivery` gets how far that one has come in its own queues. Whether there
    was anything to take over. STORE_TABLE_DAMAGED."""
    if not is_new and _are_known(directory):
        return False
    delivery.adopt(_system_offsets(directory))
    refused = 0
    for command in _commands(directory):
        try:
            refused += metadata.adopt(command).status is not None
        except BrokerError as error:
            refused += 1
            _log.warning("what a table has cannot be here", reason=str(error))
    if refused:
        _log.warning("not all of the tables could be taken over", refused=refused)
    return True


def set_back_offsets(metadata: MetadataState, max_offset: Callable[[str, int], int]) -> None:
    """No group is beyond the messages that are there: it would pass over what comes. Tables are written at
    other times than the log, which may have lost its end. `max_offset`: of (topic, queue id)."""
    for group in metadata.groups():
        ends = [QueueOffset(*queue, max_offset(*queue)) for queue in group.offsets]
        beyond = [one for one in ends if one.offset < group.offsets[one.topic, one.queue_id]]
        if beyond:
            _log.warning("a group is ahead of the log, and set back", group=group.name, queues=len(beyond))
        for at in range(0, len(beyond), MAX_OFFSETS_PER_COMMAND):
            metadata.adopt(ResetOffsets(group.name, tuple(beyond[at : at + MAX_OFFSETS_PER_COMMAND])))


def _commands(directory: Path) -> Iterator[Command]:
    for topic in topics_of(table_at(directory / "topics.json")).values():
        if not is_system_topic(topic):
            yield PutTopic(topic)
    groups = groups_of(table_at(directory / "subscriptionGroup.json"))
    for group in groups.values():
        if not is_system_group(group.name):
            yield PutGroup(group)
    for name, offsets in offsets_of(table_at(directory / "consumerOffset.json")).items():
        if is_system_group(name):
            continue
        if name not in groups:
            yield PutGroup(GroupConfig(name, auto_created=True))
        for at in range(0, len(offsets), MAX_OFFSETS_PER_COMMAND):
            yield CommitOffsets(name, NO_GENERATION, tuple(offsets[at : at + MAX_OFFSETS_PER_COMMAND]))


def _system_offsets(directory: Path) -> list[SystemOffset]:
    delays = delays_of(table_at(directory / "delayOffset.json"))
    offsets = offsets_of(table_at(directory / "consumerOffset.json"))
    return own_offsets(delays, offsets)


def own_offsets(
    delays: Mapping[int, int], offsets: Mapping[str, Sequence[QueueOffset]]
) -> list[SystemOffset]:
    """`delays`: by level; `offsets`: by group. As a broker of RocketMQ has them."""
    found = [SystemOffset(SCHEDULE_TOPIC, level - 1, offset) for level, offset in delays.items() if level > 0]
    of_transactions = offsets.get(TRANSACTION_GROUP, ())
    return found + [SystemOffset(*one) for one in of_transactions if one.topic in (HALF_TOPIC, OP_TOPIC)]


def _digests(directory: Path) -> dict[str, str]:
    """Of the tables that are there."""
    found = {}
    for name in _NAMES:
        with suppress(FileNotFoundError):
            found[name] = _digest((directory / name).read_bytes())
    return found


def _are_known(directory: Path) -> bool:
    """Whether the tables are what this project wrote, or was about to write when it ended."""
    known = _digests_known(directory)
    return all(digest in known.get(name, ()) for name, digest in _digests(directory).items())


def _digests_known(directory: Path) -> dict[str, list[str]]:
    """Nothing if that cannot be read: then somebody else has written."""
    with suppress(FileNotFoundError, ValueError):
        found = json.loads((directory / _DIGESTS).read_bytes())
        if isinstance(found, dict):
            return {name: [one] if isinstance(one, str) else list(one) for name, one in found.items()}
    return {}


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def offsets_by_group(parts: BrokerParts) -> dict[str, list[QueueOffset]]:
    """How far each group has come, whichever way it consumes."""
    found = {}
    for group in parts.metadata.groups():
        offsets = dict(group.offsets)
        for queue, offset in parts.delivery_state.offsets_of(group.name).items():
            offsets[queue] = max(offset, offsets.get(queue, offset))
        found[group.name] = [QueueOffset(*queue, offset) for queue, offset in sorted(offsets.items())]
    return found | transaction_offsets(parts.delivery_state.system_offsets())


class TableWriter:
    """Implements Beside. Writes what has changed, once a second at most, each table whole."""

    def __init__(
        self,
        directory: Path,
        parts: BrokerParts,
        wait_applied: Callable[[], Awaitable[int]],
        is_durable: Callable[[], bool] = lambda: True,
    ) -> None:
        """`wait_applied`: until all that the log has now can be seen in `parts`; ReadFailed. `is_durable`:
        whether the next start finds here what was taken over from tables, without them."""
        self._is_durable = is_durable
        self._told: dict[str, list[str]] = {}
        self._wait_applied = wait_applied
        self._writing = Lock()
        self._directory = directory
        self._parts = parts
        self._written: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._problem = ""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(ReadFailed):
            await self._wait_applied()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._write()
        except TimeoutError:
            _log.error("the disk does not answer: tables stay as they are")

    async def _run(self) -> None:
        while True:
            await self._write()
            await asyncio.sleep(_PERIOD_S)

    async def _write(self) -> None:
        try:
            await in_thread(self._write_changed, "tables")
            self._problem = ""
        except Exception as error:  # the log has it all: consumers do not depend on these
            if self._problem != repr(error):
                self._problem = repr(error)
                _log.error("tables could not be written", exc_info=error)

    def _write_changed(self) -> None:
        with self._writing:  # a task that was cancelled leaves its thread behind
            is_durable = self._is_durable()  # before the contents, which have no less then
            contents = self._contents()
            if is_durable:
                self._tell({name: _digest(content) for name, content in contents.items()})
            for name, content in contents.items():
                if self._written.get(name) != content:
                    _replace(self._directory / name, content)
                    self._written[name] = content

    def _tell(self, digests: Mapping[str, str]) -> None:
        """These tables will be ours, as those are that are there: whichever of them the next start finds."""
        if all(self._told.get(name, [""])[-1] == digest for name, digest in digests.items()):
            return
        known, here = _digests_known(self._directory), _digests(self._directory)
        for name, digest in digests.items():
            left = [here[name]] if here.get(name) in known.get(name, ()) else []
            self._told[name] = [*left, digest] if left != [digest] else left
        self._directory.mkdir(parents=True, exist_ok=True)
        replace_file(OsDisk(), self._directory / _DIGESTS, json.dumps(self._told).encode())

    def _contents(self) -> dict[str, bytes]:
        metadata = self._parts.metadata
        version = max(metadata.applied_index, 0)
        topics = list(metadata.topics.values())
        groups = [group.config for group in metadata.groups()]
        own = self._parts.delivery_state.system_offsets()
        if not topics and not groups and not own:
            return {}
        return {
            "topics.json": all_topics(topics, version),
            "subscriptionGroup.json": all_groups(groups, version),
            "consumerOffset.json": all_offsets(offsets_by_group(self._parts)),
            "delayOffset.json": delays(own),
        }


def _replace(path: Path, content: bytes) -> None:
    """RocketMQ keeps the version before beside it."""
    disk = OsDisk()
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        replace_file(disk, path.with_name(path.name + ".bak"), read_file(disk, path))
    replace_file(disk, path, content)
