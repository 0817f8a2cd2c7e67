"""Processors on the master for requests of mqadmin and the dashboard: topics, groups, their progress, and
changes.

Responses may have tens of thousands of rows. They are encoded on threads, because encoding takes tenths of a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker_adapter.api import DEFAULT_TOPIC, BrokerApi, ImportApi, QueueOffset, QueueStats, TopicConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.endpoints.v4 import admin_bodies as bodies
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.admin_bodies import Progress
from broker_adapter.endpoints.v4.bodies import QueueName
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import GroupRefused, ResponseCode, Status, error_for
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.json_bodies import dump
from broker_adapter.store.queue_reader import store_timestamp_of
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.topic_names import UNSENDABLE_TOPICS, is_system_topic_name
from dledger.infra.loops.threads import SharedThreads
from dledger.infra.quotas import FairQueue, client_of

#: Topics reserved for the broker. The delay topic is not among them, because imports into a replicated log
#: store their state in it.
_UNCHANGEABLE = UNSENDABLE_TOPICS - {SCHEDULE_TOPIC} | {DEFAULT_TOPIC}
#: A field of this project: the offsets are copied from a cluster that is mirrored.
IS_IMPORT = "isImport"


class AdminProcessor:
    def __init__(
        self,
        broker: BrokerApi,
        traffic: Traffic,
        broker_name: str,
        address: Callable[[], str],
        version: Callable[[], int],
        directory: Directory,
        defaults: Iterable[TopicConfig] = (),
    ) -> None:
        """`broker_name`: broker name of the queues.

        `address` returns the address of this node. `version`: number that increases with each change to
        topics and groups. `directory`: looks up single topics and groups. `defaults`: topics that are
        announced to NameServers but have no messages.
        """
        self._broker = broker
        self._traffic = traffic
        self._broker_name = broker_name
        self._address = address
        self._version = version
        self._directory = directory
        self._defaults = {config.name: config for config in defaults}
        # one thread, because threads compete with the event loop for the interpreter
        self._texts = SharedThreads(None, 1)
        #: Serializes queries about all groups, because each needs many reads.
        self._of_all_groups = FairQueue(1)

    # -- topics -------------------------------------------------------------------------------------------

    async def put_topic(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        await self._broker.change_topic(
            _topic_of_users(fields),
            lambda before: bodies.changed_topic(fields, before),
            is_forced=read.flag(fields, "force"),
        )
        return _done(request)

    async def delete_topic(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Delete a topic.

        As in RocketMQ, the request succeeds if the topic does not exist. It fails for a system topic, that
        is, one that RocketMQ's brokers reserve or one named after this broker or its cluster.
        """
        name = _topic_of_users(request.fields)
        if is_system_topic_name(name) or name == self._broker_name or name in self._defaults:
            raise error_for(Status.TOPIC_RESERVED, f"topic {name} is a system topic, which cannot be deleted")
        if self._directory.topic(name) is not None:
            await self._broker.delete_topic(name)
        return _done(request)

    async def all_topics(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        topics, version = self._broker.topics(), self._version()
        body = await self._texts.run(client_of(context.remote), bodies.all_topics, topics, version)
        return _done(request, body, totalTopicNum=len(topics))

    async def topic(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        name = read.text(request.fields, "topic")
        if (config := self._directory.topic(name)) is not None:
            return _done(request, dump(bodies.topic_to_json(config)))
        raise error_for(Status.TOPIC_UNKNOWN, f"topic {name[:255]!r} does not exist")

    async def topic_stats(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        name = read.text(request.fields, "topic")
        if self._directory.topic(name) is None and (config := self._defaults.get(name)) is not None:
            stats = [QueueStats(name, queue_id, 0, 0, 0) for queue_id in range(config.read_queues)]
        else:
            stats = await self._broker.topic_stats(name, remote=context.remote)
        return _done(
            request,
            await self._texts.run(client_of(context.remote), bodies.topic_stats, self._broker_name, stats),
        )

    # -- groups -------------------------------------------------------------------------------------------

    async def put_group(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        body = request.command.body
        await self._broker.change_group(
            bodies.group_name(body), lambda before: bodies.changed_group(body, before)
        )
        return _done(request)

    async def delete_group(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Delete a group.

        Its offsets remain for a later group of the same name, unless `cleanOffset` is set. As in RocketMQ,
        the request succeeds if the group does not exist.
        """
        name = read.text(request.fields, "groupName")
        try:
            await self._broker.delete_group(name, keeps_offsets=not read.flag(request.fields, "cleanOffset"))
        except GroupRefused as error:
            if error.status is not Status.GROUP_UNKNOWN:
                raise
        return _done(request)

    async def all_groups(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        groups, version = self._broker.groups(), self._version()
        body = await self._texts.run(client_of(context.remote), bodies.all_groups, groups, version)
        return _done(request, body, totalGroupNum=len(groups))

    async def group(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        name = read.text(request.fields, "group")
        if (config := self._directory.group(name)) is not None:
            return _done(request, dump(bodies.group_to_json(config)))
        raise error_for(Status.GROUP_UNKNOWN, f"group {name[:255]!r} does not exist")

    async def consume_stats(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Report the group's progress in all topics in which it has offsets. A topic that the request names
        is included even without offsets.

        As in RocketMQ, an unknown group has consumed nothing.
        """
        group, wanted = read.text(request.fields, "consumerGroup"), request.fields.get("topic") or ""
        try:
            offsets = await self._broker.offsets(group)
        except GroupRefused as error:
            if error.status is not Status.GROUP_UNKNOWN:
                raise
            offsets = []
        topics = await self._progress(group, offsets, {}, wanted)
        rows = [row for _, some in topics for row in some]
        rate = sum(self._traffic.given_to(group, topic) for topic, _ in topics)
        # A group may have tens of thousands of queues, so their rows are encoded on a thread.
        return _done(
            request, await self._texts.run(client_of(context.remote), bodies.consume_stats, rows, rate)
        )

    async def all_consume_stats(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Report the progress of all groups that consume in order, or of all other groups."""
        is_orderly = read.flag(request.fields, "isOrder", default=False)
        used = {}
        async with self._of_all_groups.holding(client_of(context.remote)):
            stats: dict[str, list[QueueStats]] = {}
            for group, offsets in (await self._broker.all_offsets()).items():
                config = self._directory.group(group)
                if not offsets or config is None or config.consume_orderly != is_orderly:
                    continue
                if topics := await self._progress(group, offsets, stats):
                    rates = [self._traffic.given_to(group, topic) for topic, _ in topics]
                    used[group] = [(rows, rate) for (_, rows), rate in zip(topics, rates, strict=True)]
        return _done(
            request,
            await self._texts.run(client_of(context.remote), bodies.all_consume_stats, self._address(), used),
        )

    async def _progress(
        self, group: str, offsets: Iterable[QueueOffset], known: dict[str, list[QueueStats]], wanted: str = ""
    ) -> list[tuple[str, list[Progress]]]:
        """Return a group's progress by topic.

        `wanted`: return only this topic. `known`: a cache of topic statistics, which this method fills.
        """
        is_wanted = bool(wanted) and self._directory.topic(wanted) is not None
        by_topic: dict[str, dict[int, int]] = {wanted: {}} if is_wanted else {}
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
                pulled = max(offset, self._broker.pulled_offset(group, topic, stats.queue_id))
                rows.append(Progress(queue, stats.max_offset, offset, pulled, when_ms))
            found.append((topic, rows))
        return found

    async def all_offsets(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        async with self._of_all_groups.holding(client_of(context.remote)):
            found = await self._broker.all_offsets()
        found = found | bodies.transaction_offsets(self._broker.system_offsets())
        return _done(request, await self._texts.run(client_of(context.remote), bodies.all_offsets, found))

    async def all_delays(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        return _done(request, bodies.delays(self._broker.system_offsets()))

    async def _time_of(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp of a message, or 0 if the message cannot be read."""
        if offset < 0:
            return 0
        found = await self._broker.read(topic, queue_id, offset)
        return store_timestamp_of(found[0]) if found else 0

    async def groups_of_topic(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """List the groups with offsets in a topic. Nodes add the groups of their connected members."""
        groups = await self._broker.groups_of(read.text(request.fields, "topic"))
        return _done(request, dump({"groupList": groups}))

    async def reset(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Reset a group's offsets.

        The new offset is the offset of the first message at or after a time, the end of the queue if the time
        is negative, or, for one queue, a given offset. A time applies to all queues, or to the queue in the
        request. As in RocketMQ 5, `isForce` has no effect on the broker; it concerns broadcasting members.
        Members continue at the new offset with their next pull (`metadata.reset_barriers`).
        """
        fields = request.fields
        topic, group = read.text(fields, "topic"), read.text(fields, "group")
        when_ms = read.number(fields, "timestamp")
        queue_id, to = read.number(fields, "queueId", -1), read.number(fields, "offset", -1)
        if queue_id >= 0 and to >= 0:
            return await self._reset_to(request, group, QueueOffset(topic, queue_id, to))
        targets = []
        for stats in await self._queues(topic, queue_id):
            offset = stats.max_offset
            if when_ms >= 0:
                offset = await self._broker.offset_by_time(topic, stats.queue_id, when_ms)
            targets.append(QueueOffset(topic, stats.queue_id, offset))
        return await self._reset_to(request, group, *targets)

    async def _queues(self, topic: str, queue_id: int) -> list[QueueStats]:
        if queue_id < 0:
            return await self._broker.topic_stats(topic)
        return [await self._broker.queue_stats(topic, queue_id)]

    async def _reset_to(self, request: RemotingRequest, group: str, *targets: QueueOffset) -> RemotingCommand:
        is_import = read.flag(request.fields, IS_IMPORT, default=False)
        await self._broker.reset_offsets(group, targets, is_import=is_import)
        rows = [(QueueName(one.topic, self._broker_name, one.queue_id), one.offset) for one in targets]
        return _done(request, bodies.reset_offsets(rows))


class ImportProcessor:
    """Stores messages from another broker with their queue offsets.

    The request codes exist only in this project.
    """

    def __init__(self, imports: ImportApi) -> None:
        self._imports = imports

    async def begin_queue(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        topic, queue_id = read.text(fields, "topic"), read.number(fields, "queueId")
        await self._imports.begin_queue(topic, queue_id, read.number(fields, "offset"))
        return request.command.answer(ResponseCode.SUCCESS)

    async def store(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        count = await self._imports.store(request.command.body)
        return request.command.answer(ResponseCode.SUCCESS, fields={"stored": str(count)})

    async def read_queue(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        topic, queue_id = read.text(fields, "topic"), read.number(fields, "queueId")
        found = await self._imports.read_queue(topic, queue_id, read.number(fields, "offset"))
        bounds = {"minOffset": str(found.min_offset), "maxOffset": str(found.max_offset)}
        body = b"".join(found.records)
        return request.command.answer(ResponseCode.SUCCESS, fields=bounds, body=body)


def _topic_of_users(fields: Mapping[str, str]) -> str:
    """Return the topic to create, change or delete. Raises TopicRefused (TOPIC_RESERVED)."""
    topic = read.text(fields, "topic")
    if topic in _UNCHANGEABLE:
        raise error_for(Status.TOPIC_RESERVED, f"topic {topic} is reserved for the broker")
    return topic


def _done(request: RemotingRequest, body: bytes = b"", **numbers: int) -> RemotingCommand:
    fields = {name: str(number) for name, number in numbers.items()}
    return request.command.answer(ResponseCode.SUCCESS, fields=fields, body=body)
