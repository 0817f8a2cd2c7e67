"""Topics, groups and offsets of a live master, kept equal in a group of ours (RocketMQ's SlaveSynchronize).

Topics that are mirrored have permission 0 here: clients that know both brokers use the master's queues only.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.classic.store_directory import QueueKey
from broker_adapter.classic.system_names import is_system_group, is_system_topic
from broker_adapter.errors import Status, error_for
from broker_adapter.moving.master import Master
from broker_adapter.moving.several import each
from broker_adapter.moving.target import ImportTarget


class MetadataSync:
    """`topics`: those that are mirrored, as the master has them. `ends`: how far a queue is stored here."""

    def __init__(
        self,
        master: Master,
        target: ImportTarget,
        ends: Callable[[QueueKey], int],
        say: Callable[[str], None],
    ) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, GroupConfig] = {}
        self._master = master
        self._target = target
        self._ends = ends
        self._say = say
        self._here: dict[str, TopicConfig] | None = None
        self._committed: dict[tuple[str, QueueKey], int] = {}

    async def sync_topics(self) -> None:
        """MASTER_DIFFERS if one of them is open here: it may have other messages."""
        found = {name: one for name, one in (await self._master.topics()).items() if not is_system_topic(one)}
        for name in sorted(set(self.topics) - set(found)):
            self._say(f"topic {name} was deleted at the master; here it stays, without permissions")
        if self._here is None:
            self._here = await self._target.configs()
            await self._check_closed(found)
        self.topics = found
        for config in found.values():
            await self._put_hidden(config, max(config.read_queues, config.write_queues))

    async def ensure_queue(self, topic: str, queue_id: int) -> None:
        """A topic may have had more queues than it has."""
        await self._put_hidden(self.topics[topic], queue_id + 1)

    def queues(self) -> list[QueueKey]:
        """All that a mirrored topic has here, which may be more than it has at the master."""
        assert self._here is not None
        return [
            (name, queue_id)
            for name in sorted(self.topics)
            for queue_id in range(self._here[name].write_queues)
        ]

    async def sync_groups(self) -> None:
        for name, config in (await self._master.groups()).items():
            if not is_system_group(name):
                await self._put_group(config)

    async def sync_offsets(self, *, only_up: bool = False) -> int:
        """How many have changed. `only_up`: groups may have gone on here."""
        wanted = []
        for group, offsets in (await self._master.offsets()).items():
            mine = [one for one in offsets if self._has_queue(one)]
            if not mine or is_system_group(group):
                continue
            if group not in self.groups:
                await self._put_group(GroupConfig(group))
            wanted += [(group, one) for one in mine]
        return sum(await each(self._put_offset(group, one, only_up=only_up) for group, one in wanted))

    async def sync(self) -> None:
        await self.sync_topics()
        await self.sync_groups()
        await self.sync_offsets()

    async def open_topics(self, mask: int) -> None:
        """Give them the permissions that they have at the master, as far as `mask` has them."""
        assert self._here is not None
        await each(
            self._target.put_topic(
                config._replace(
                    read_queues=max(config.read_queues, self._here[config.name].read_queues),
                    perm=config.perm & mask,
                )
            )
            for config in self.topics.values()
        )

    async def look(self) -> bool:
        """Know topics without changing any. Whether one that can be written at the master can be here."""
        found = await self._master.topics()
        self.topics = {name: one for name, one in found.items() if not is_system_topic(one)}
        self._here = await self._target.configs()
        self.topics = {name: one for name, one in self.topics.items() if name in self._here}
        return any(self._here[name].is_writable and one.is_writable for name, one in self.topics.items())

    # -- inside -------------------------------------------------------------------------------------------

    async def _check_closed(self, found: dict[str, TopicConfig]) -> None:
        """Consumers that know the group make topics of retries here, which are empty."""
        assert self._here is not None
        for name in sorted(set(found) & set(self._here)):
            here = self._here[name]
            if not here.perm:
                continue
            for queue_id in range(max(here.read_queues, here.write_queues)):
                if (await self._target.bounds(name, queue_id))[1]:
                    text = f"topic {name} is open in the group (perm {here.perm}), and has messages"
                    raise error_for(Status.MASTER_DIFFERS, f"{text}: nothing can be mirrored into it")

    async def _put_hidden(self, config: TopicConfig, queues: int) -> None:
        assert self._here is not None
        here = self._here.get(config.name)
        if here is not None:
            queues = max(queues, here.read_queues, here.write_queues)
        hidden = config._replace(read_queues=queues, write_queues=queues, perm=0)
        if here != hidden:
            await self._target.put_topic(hidden)
            self._here[config.name] = hidden

    async def _put_group(self, config: GroupConfig) -> None:
        if self.groups.get(config.name) != config:
            await self._target.put_group(config)
            self.groups[config.name] = config

    def _has_queue(self, offset: QueueOffset) -> bool:
        config = self.topics.get(offset.topic)
        return config is not None and offset.queue_id < max(config.read_queues, config.write_queues)

    async def _put_offset(self, group: str, offset: QueueOffset, *, only_up: bool) -> bool:
        key = offset.topic, offset.queue_id
        offset = offset._replace(offset=min(offset.offset, self._ends(key)))
        before = self._committed.get((group, key))
        if before == offset.offset or (only_up and before is not None and offset.offset < before):
            return False
        if only_up or (before is not None and before < offset.offset):
            await self._target.commit(group, offset)
        else:
            await self._target.reset(group, offset)
        self._committed[group, key] = offset.offset
        return True
