"""What mqadmin and the dashboard ask a master: topics, groups, their progress, and changes of these.

Answers may have ten thousands of rows. Their text takes tenths of a second: threads make it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker_adapter.api import BrokerApi, QueueOffset, QueueStats, TopicConfig
from broker_adapter.errors import GroupRefused, ResponseCode, Status, error_for
from broker_adapter.processor import admin_bodies as bodies
from broker_adapter.processor import fields as read
from broker_adapter.processor.admin_bodies import Progress
from broker_adapter.processor.bodies import QueueName
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.directory import Directory
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.json_bodies import LongTexts, dump
from broker_adapter.store.queue_reader import store_timestamp_of
from broker_adapter.traffic.traffic import Traffic

_LATEST = -1


class AdminProcessor:
    def __init__(
        self,
        broker: BrokerApi,
        traffic: Traffic,
        broker_name: str,
        address: str,
        version: Callable[[], int],
        directory: Directory,
        defaults: Iterable[TopicConfig] = (),
    ) -> None:
        """`broker_name`: under which queues are read; `address`: of this node; `version`: grows with each
        change of topics and groups; `directory`: these, one by one; `defaults`: topics that NameServers are
        told of and that never have messages."""
        self._broker = broker
        self._traffic = traffic
        self._broker_name = broker_name
        self._address = address
        self._version = version
        self._directory = directory
        self._defaults = {config.name: config for config in defaults}
        self._texts = LongTexts()
        #: Questions about all groups, of which each is many reads: the next one waits.
        self._of_all_groups = asyncio.Semaphore(1)

    # -- topics -------------------------------------------------------------------------------------------

    async def put_topic(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        await self._broker.put_topic(bodies.topic_config(request.fields))
        return _done(request)

    async def delete_topic(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """What is not there is deleted, as in RocketMQ."""
        name = read.text(request.fields, "topic")
        if self._directory.topic(name) is not None:
            await self._broker.delete_topic(name)
        return _done(request)

    async def all_topics(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        topics, version = self._broker.topics(), self._version()
        body = await self._texts.make(bodies.all_topics, topics, version)
        return _done(request, body, totalTopicNum=len(topics))

    async def topic(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        name = read.text(request.fields, "topic")
        if (config := self._directory.topic(name)) is not None:
            return _done(request, dump(bodies.topic_to_json(config)))
        raise error_for(Status.TOPIC_UNKNOWN, f"there is no topic {name[:255]!r}")

    async def topic_stats(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        name = read.text(request.fields, "topic")
        if self._directory.topic(name) is None and (config := self._defaults.get(name)) is not None:
            stats = [QueueStats(name, queue_id, 0, 0, 0) for queue_id in range(config.read_queues)]
        else:
            stats = await self._broker.topic_stats(name, remote=context.remote)
        return _done(request, await self._texts.make(bodies.topic_stats, self._broker_name, stats))

    # -- groups -------------------------------------------------------------------------------------------

    async def put_group(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        await self._broker.put_group(bodies.group_config(request.command.body))
        return _done(request)

    async def delete_group(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        name = read.text(request.fields, "groupName")
        if self._directory.group(name) is not None:
            await self._broker.delete_group(name)
        return _done(request)

    async def all_groups(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        groups, version = self._broker.groups(), self._version()
        body = await self._texts.make(bodies.all_groups, groups, version)
        return _done(request, body, totalGroupNum=len(groups))

    async def group(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        name = read.text(request.fields, "group")
        if (config := self._directory.group(name)) is not None:
            return _done(request, dump(bodies.group_to_json(config)))
        raise error_for(Status.GROUP_UNKNOWN, f"there is no group {name[:255]!r}")

    async def consume_stats(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Of all topics in which the group has offsets, or of one."""
        group, wanted = read.text(request.fields, "consumerGroup"), request.fields.get("topic") or ""
        _, offsets = await self._broker.offsets(group)
        topics = await self._progress(offsets, {}, wanted)
        rows = [row for _, some in topics for row in some]
        rate = sum(self._traffic.given_to(group, topic) for topic, _ in topics)
        # A group may have tens of thousands of queues: their text is no work for the event loop.
        return _done(request, await self._texts.make(bodies.consume_stats, rows, rate))

    async def all_consume_stats(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Of all groups that consume in order, or of all others."""
        is_orderly = read.flag(request.fields, "isOrder", default=False)
        used = {}
        async with self._of_all_groups:
            stats: dict[str, list[QueueStats]] = {}
            for group, offsets in (await self._broker.all_offsets()).items():
                config = self._directory.group(group)
                if not offsets or config is None or config.consume_orderly != is_orderly:
                    continue
                if topics := await self._progress(offsets, stats):
                    rates = [self._traffic.given_to(group, topic) for topic, _ in topics]
                    used[group] = [(rows, rate) for (_, rows), rate in zip(topics, rates, strict=True)]
        return _done(request, await self._texts.make(bodies.all_consume_stats, self._address, used))

    async def _progress(
        self, offsets: Iterable[QueueOffset], known: dict[str, list[QueueStats]], wanted: str = ""
    ) -> list[tuple[str, list[Progress]]]:
        """Of a group, by topic; `wanted`: of one only; `known`: of topics, which are added to it."""
        by_topic: dict[str, dict[int, int]] = {}
        for one in offsets:
            if wanted in ("", one.topic) and self._directory.topic(one.topic) is not None:
                by_topic.setdefault(one.topic, {})[one.queue_id] = one.offset
        found = []
        for topic, consumed in by_topic.items():
            rows = []
            if topic not in known:
                known[topic] = await self._broker.topic_stats(topic)
            for stats in known[topic]:
                offset = consumed.get(stats.queue_id, 0)
                when_ms = await self._time_of(topic, stats.queue_id, offset - 1)
                queue = QueueName(topic, self._broker_name, stats.queue_id)
                rows.append(Progress(queue, stats.max_offset, offset, when_ms))
            found.append((topic, rows))
        return found

    async def all_offsets(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        async with self._of_all_groups:
            found = await self._broker.all_offsets()
        found = found | bodies.transaction_offsets(self._broker.system_offsets())
        return _done(request, await self._texts.make(bodies.all_offsets, found))

    async def all_delays(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        return _done(request, bodies.delays(self._broker.system_offsets()))

    async def _time_of(self, topic: str, queue_id: int, offset: int) -> int:
        """When this message was stored; 0 if it cannot be read."""
        if offset < 0:
            return 0
        found = await self._broker.pull(topic, queue_id, offset, max_messages=1)
        return store_timestamp_of(found.records[0]) if found.records else 0

    async def groups_of_topic(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Which have offsets there."""
        groups = await self._broker.groups_of(read.text(request.fields, "topic"))
        return _done(request, dump({"groupList": groups}))

    async def reset(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """To the first message at or after a time; -1: to the end; or one queue to an offset. Members pull on
        from where they are until they look for their offsets again."""
        fields = request.fields
        topic, group = read.text(fields, "topic"), read.text(fields, "group")
        when_ms, is_forced = read.number(fields, "timestamp"), read.flag(fields, "isForce", default=True)
        try:
            _, offsets = await self._broker.offsets(group)
        except GroupRefused:
            offsets = []
        consumed = {one.queue_id: one.offset for one in offsets if one.topic == topic}
        targets = []
        queue_id, to = read.number(fields, "queueId", -1), read.number(fields, "offset", -1)
        if queue_id >= 0 and to >= 0:
            return await self._reset_to(request, group, QueueOffset(topic, queue_id, to))
        for stats in await self._broker.topic_stats(topic):
            queue_id, offset = stats.queue_id, stats.max_offset
            if when_ms != _LATEST:
                offset = await self._broker.offset_by_time(topic, queue_id, max(0, when_ms))
            if is_forced or offset < consumed.get(queue_id, offset + 1):
                targets.append(QueueOffset(topic, queue_id, offset))
        return await self._reset_to(request, group, *targets)

    async def _reset_to(self, request: RemotingRequest, group: str, *targets: QueueOffset) -> RemotingCommand:
        await self._broker.reset_offsets(group, targets)
        rows = [(QueueName(one.topic, self._broker_name, one.queue_id), one.offset) for one in targets]
        return _done(request, bodies.reset_offsets(rows))


def _done(request: RemotingRequest, body: bytes = b"", **numbers: int) -> RemotingCommand:
    fields = {name: str(number) for name, number in numbers.items()}
    return request.command.answer(ResponseCode.SUCCESS, fields=fields, body=body)
