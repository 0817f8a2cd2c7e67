"""A slave copies topics, groups and offsets from its master (SlaveSynchronize), and learns who that is.

What brokers of this project change in these is in their logs; of a master of RocketMQ's own it is not. An
offset never goes beyond the messages that are here: a slave that is made master gives the offsets behind them
to new messages, which the group would never get. Nor does one of a master whose log is another: its messages
are not those that are here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.classic.system_names import is_system_group, is_system_topic
from broker_adapter.classic_node.node import ClassicNode
from broker_adapter.errors import BrokerError
from broker_adapter.metadata.commands import (
    MAX_OFFSETS_PER_COMMAND,
    NO_GENERATION,
    Command,
    CommitOffsets,
    PutGroup,
    PutTopic,
    ResetOffsets,
)
from broker_adapter.moving.master import Master
from broker_adapter.pop.commands import SystemOffset
from broker_adapter.server.classic_tables import own_offsets
from broker_adapter.server.log_host import BrokerParts
from dledger.platform import get_logger

_log = get_logger("slave")
_LOOK_S = 0.5


class SlaveSync:
    """Implements Beside."""

    def __init__(
        self,
        node: ClassicNode,
        parts: BrokerParts,
        tls: Callable[[], ssl.SSLContext | None],
        max_offset: Callable[[str, int], int],
        adopted: Callable[[], None] = lambda: None,
    ) -> None:
        """`tls`: of a call to the master; None: plain text. `max_offset`: of (topic, queue id), as far as
        messages have come. `adopted` is told, on the machine's thread, of changes that no log has."""
        self._adopted = adopted
        self._node = node
        self._max_offset = max_offset
        self._tls = tls
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._problem = ""

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._find_master()), loop.create_task(self._sync_ever())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- inside

    async def _find_master(self) -> None:
        while True:
            if not self._parts.is_master:
                for status in self._parts.registrations().values():
                    if status.registered and status.master_ha_address:
                        self._node.replication.set_master(status.master_ha_address)
                        break
            await asyncio.sleep(_LOOK_S)

    async def _sync_ever(self) -> None:
        while True:
            await asyncio.sleep(self._node.settings.sync_period_ms / 1000)
            address, replication = self._master_address(), self._node.replication
            if self._parts.is_master or not address or replication.has_all or not replication.follows:
                continue
            try:
                await self._sync(address)
                self._problem = ""
            except BrokerError as error:
                if self._problem != error.message:
                    self._problem = error.message
                    _log.warning("the master's tables could not be copied", master=address, reason=str(error))

    def _master_address(self) -> str:
        found = (one.master_address for one in self._parts.registrations().values() if one.registered)
        return next(filter(None, found), "")

    async def _sync(self, address: str) -> None:
        async with Master([address], address=address, tls=self._tls()) as master:  # no NameServer is asked
            topics = (await master.topics()).values()
            groups = (await master.groups()).values()
            offsets = await master.offsets()
            own = own_offsets(await master.delays(), offsets)
        commands: list[Command] = [
            *self._topics([one for one in topics if not is_system_topic(one)]),
            *self._groups([one for one in groups if not is_system_group(one.name)]),
        ]
        for group, found in offsets.items():
            if not is_system_group(group):
                commands += self._offsets(group, found)
        await self._node.feed.run(lambda: self._adopt(commands, own))

    def _adopt(self, commands: Sequence[Command], own: Sequence[SystemOffset]) -> None:
        """On the machine's thread. What is refused is so again the next time, and harms nobody."""
        for command in commands:
            if self._node.roles.leads:
                return  # from here on the log has it all
            self._parts.metadata.adopt(command)
            self._adopted()
        if not self._node.roles.leads:
            # No further than this log goes: what comes there later would be passed over.
            ends = [self._max_offset(one.topic, one.queue_id) for one in own]
            own = [one._replace(offset=min(one.offset, end)) for one, end in zip(own, ends, strict=True)]
            before = self._parts.delivery_state.system_offsets()
            self._parts.delivery_state.adopt(own)
            if self._parts.delivery_state.system_offsets() != before:
                self._adopted()

    def _topics(self, found: Sequence[TopicConfig]) -> list[Command]:
        here = self._parts.metadata.topics
        return [
            PutTopic(one)
            for one in found
            if one.name not in here or here[one.name]._replace(auto_created=False) != one
        ]

    def _groups(self, found: Sequence[GroupConfig]) -> list[Command]:
        here = {
            group.name: group.config._replace(auto_created=False) for group in self._parts.metadata.groups()
        }
        return [PutGroup(one) for one in found if one.name not in here or here[one.name] != one]

    def _offsets(self, group: str, found: Sequence[QueueOffset]) -> list[Command]:
        known = self._parts.metadata.group(group)
        here = {} if known is None else known.offsets
        # What a master of ours sets back comes with the log; what was asked for may be older than that.
        may_fall = self._node.replication.follows and not self._node.replication.by_handshake
        up, down = [], []
        for told in found:
            before = here.get((told.topic, told.queue_id), 0)
            one = told._replace(offset=min(told.offset, self._max_offset(told.topic, told.queue_id)))
            if one.offset > before:
                up.append(one)
            elif told.offset < before and may_fall:
                down.append(one)
        commands: list[Command] = []
        for at in range(0, len(up), MAX_OFFSETS_PER_COMMAND):
            commands.append(CommitOffsets(group, NO_GENERATION, tuple(up[at : at + MAX_OFFSETS_PER_COMMAND])))
        for at in range(0, len(down), MAX_OFFSETS_PER_COMMAND):
            commands.append(ResetOffsets(group, tuple(down[at : at + MAX_OFFSETS_PER_COMMAND])))
        return commands
