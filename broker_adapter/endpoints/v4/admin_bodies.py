"""Response bodies of administration requests.

Sources: RocketMQ's TopicConfig, SubscriptionGroupConfig, TopicStatsTable, ConsumeStats, ResetOffsetBody,
ConsumerConnection, ProducerConnection, KVTable, GroupList.

Some bodies use fastjson's dialect of JSON, in which keys of objects may be objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from broker_adapter.api import MESSAGE_TYPES, GroupConfig, QueueOffset, QueueStats, TopicConfig
from broker_adapter.endpoints.filters.filters import split_tags
from broker_adapter.endpoints.traffic import Rates, Sums, Traffic
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.bodies import QueueName, SubscriptionData, parse
from broker_adapter.endpoints.v4.clients import Member
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.remoting.codes import Language
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.json_bodies import dump, dump_rows
from broker_adapter.wire.attributes import (
    MESSAGE_TYPE,
    UNSPECIFIED,
    Attributes,
    change_group_attributes,
    change_topic_attributes,
    parse_changes,
)
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC
from broker_adapter.wire.java_hash import java_hash
from broker_adapter.wire.topic_names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP

#: Maximum number of subscriptions of all members of a group. Normally the members have the same
#: subscriptions.
_MAX_SUBSCRIPTIONS = 4_096
#: Maximum total length of their expressions.
_MAX_EXPRESSIONS = 1 << 20
#: Group settings of RocketMQ that this broker does not use.
_GROUP_DEFAULTS = {"brokerId": 0, "notifyConsumerIdsChangedEnable": True, "whichBrokerWhenConsumeSlowly": 1}
_LANGUAGES = {int(language): language.name for language in Language}


def changed_topic(fields: Mapping[str, str], before: TopicConfig | None) -> TopicConfig:
    """Return the config after UPDATE_AND_CREATE_TOPIC. Settings that are missing from the request keep their
    values.

    Raises IllegalMessage.
    """
    base = before or TopicConfig(read.text(fields, "topic"))
    attributes = dict(
        change_topic_attributes(
            None if before is None else _topic_attributes(before), parse_changes(fields.get("attributes", ""))
        )
    )
    message_type = attributes.get(MESSAGE_TYPE, UNSPECIFIED)
    if message_type == UNSPECIFIED or message_type in MESSAGE_TYPES:
        attributes.pop(MESSAGE_TYPE, None)
    else:  # imported from a RocketMQ table
        message_type = UNSPECIFIED
    return TopicConfig(
        base.name,
        read.number(fields, "readQueueNums", base.read_queues),
        read.number(fields, "writeQueueNums", base.write_queues),
        read.number(fields, "perm", base.perm),
        read.number(fields, "topicSysFlag", base.sys_flag),
        read.flag(fields, "order", default=base.order),
        "" if message_type == UNSPECIFIED else message_type,
        attributes=tuple(attributes.items()),
    )


def _topic_attributes(config: TopicConfig) -> Attributes:
    """Return all attributes of a topic in RocketMQ's form."""
    message_type = ((MESSAGE_TYPE, config.message_type),) if config.message_type else ()
    return tuple(sorted((*message_type, *config.attributes)))


class UnusedMembers(NamedTuple):
    """Members of a RocketMQ JSON table that this broker does not use: members of the table, and members of
    its entries by name.
    """

    beside: Mapping[str, Any] = MappingProxyType({})
    entries: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


_NOTHING = UnusedMembers()
_NO_MEMBERS: Mapping[str, Any] = MappingProxyType({})


def unused_topic_members(table: Mapping[str, Any]) -> UnusedMembers:
    """Return the unused members of topics.json. Call after `topics_of`."""
    return _carried(table, "topicConfigTable", _known_of_topic(TopicConfig("")).keys())


def unused_group_members(table: Mapping[str, Any]) -> UnusedMembers:
    """Return the unused members of subscriptionGroup.json. Call after `groups_of`."""
    return _carried(table, "subscriptionGroupTable", _known_of_group(GroupConfig("")).keys())


def _carried(table: Mapping[str, Any], member: str, known: Set[str]) -> UnusedMembers:
    entries = {}
    for name, entry in (table.get(member) or {}).items():
        if unknown := {key: value for key, value in entry.items() if key not in known}:
            entries[name] = unknown
    return UnusedMembers(
        {key: one for key, one in table.items() if key not in ("dataVersion", member)}, entries
    )


def topic_to_json(config: TopicConfig, carried: Mapping[str, Any] = _NO_MEMBERS) -> dict[str, Any]:
    return {"topicFilterType": "SINGLE_TAG", **carried, **_known_of_topic(config)}


def _known_of_topic(config: TopicConfig) -> dict[str, Any]:
    return {
        "attributes": dict(_topic_attributes(config)),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queues,
        "topicName": config.name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queues,
    }


def all_topics(configs: Iterable[TopicConfig], version: int, carried: UnusedMembers = _NOTHING) -> bytes:
    """Encode all topics, by name.

    RocketMQ's slaves copy the table when its version has changed. Slow; see `dump_rows`.
    """
    of = carried.entries
    rows = ((one.name, topic_to_json(one, of.get(one.name, _NO_MEMBERS))) for one in sorted(configs))
    return _table("topicConfigTable", rows, version, carried.beside)


def all_offsets(offsets: Mapping[str, Sequence[QueueOffset]]) -> bytes:
    """Encode the offsets of all groups by topic@group. Slow; see `dump_rows`."""
    table: dict[str, dict[str, int]] = {}
    for group, found in offsets.items():
        for topic, queue_id, offset in found:
            table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    return _table("offsetTable", table.items(), 0)


def delays(own: Mapping[tuple[str, int], int]) -> bytes:
    """Encode the delivery offset of each delay level.

    `own`: read offsets in the system queues, by topic and queue id.
    """
    levels = sorted(
        (queue_id + 1, offset) for (topic, queue_id), offset in own.items() if topic == SCHEDULE_TOPIC
    )
    return _table("offsetTable", ((str(level), offset) for level, offset in levels), 0)


def transaction_offsets(own: Mapping[tuple[str, int], int]) -> dict[str, list[QueueOffset]]:
    """Return the offsets of the group that RocketMQ uses for its transaction checks.

    `own`: as in `delays`.
    """
    rows = sorted(QueueOffset(*queue, offset) for queue, offset in own.items())
    found = [one for one in rows if one.topic in (HALF_TOPIC, OP_TOPIC)]
    return {TRANSACTION_GROUP: found} if found else {}


def group_name(body: bytes) -> str:
    """Return the group name of an UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.

    Raises IllegalMessage (REQUEST_MALFORMED).
    """
    name = parse(body).get("groupName")
    if not isinstance(name, str):
        raise IllegalMessage(Status.REQUEST_MALFORMED, "the name of the group is missing")
    return name


def changed_group(body: bytes, before: GroupConfig | None) -> GroupConfig:
    """Return the config after UPDATE_AND_CREATE_SUBSCRIPTIONGROUP. Settings that are missing from the body
    keep their values.

    Raises IllegalMessage.
    """
    found = {name: value for name, value in parse(body).items() if value is not None}
    base = before or GroupConfig(group_name(body))
    retry_queues = found.get("retryQueueNums", base.retry_queues)
    retry_max_times = found.get("retryMaxTimes", base.retry_max_times)
    if type(retry_queues) is not int or type(retry_max_times) is not int:
        raise IllegalMessage(Status.REQUEST_MALFORMED, "retryQueueNums and retryMaxTimes must be numbers")
    changes = found.get("attributes", {})
    if not isinstance(changes, dict) or not all(isinstance(value, str) for value in changes.values()):
        raise IllegalMessage(Status.REQUEST_MALFORMED, "attributes must be an object with string values")
    return GroupConfig(
        base.name,
        bool(found.get("consumeEnable", base.consume_enable)),
        bool(found.get("consumeFromMinEnable", base.consume_from_min_enable)),
        bool(found.get("consumeBroadcastEnable", base.consume_broadcast_enable)),
        retry_queues,
        retry_max_times,
        bool(found.get("consumeMessageOrderly", base.consume_orderly)),
        attributes=change_group_attributes(None if before is None else before.attributes, changes),
    )


def group_to_json(config: GroupConfig, carried: Mapping[str, Any] = _NO_MEMBERS) -> dict[str, Any]:
    return {**_GROUP_DEFAULTS, **carried, **_known_of_group(config)}


def _known_of_group(config: GroupConfig) -> dict[str, Any]:
    return {
        "attributes": dict(config.attributes),
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeMessageOrderly": config.consume_orderly,
        "groupName": config.name,
        "retryMaxTimes": config.retry_max_times,
        "retryQueueNums": config.retry_queues,
    }


def all_groups(configs: Iterable[GroupConfig], version: int, carried: UnusedMembers = _NOTHING) -> bytes:
    """Encode all groups in the same way as `all_topics` encodes topics."""
    of = carried.entries
    rows = ((one.name, group_to_json(one, of.get(one.name, _NO_MEMBERS))) for one in sorted(configs))
    return _table("subscriptionGroupTable", rows, version, carried.beside)


def _table(
    name: str, rows: Iterable[tuple[str, object]], version: int, beside: Mapping[str, Any] = _NO_MEMBERS
) -> bytes:
    told = {"counter": version, "stateVersion": 0, "timestamp": 0}
    head = dump({"dataVersion": told, **beside})[:-1]
    return head + b',"' + name.encode() + b'":' + dump_rows(rows) + b"}"


def topic_stats(broker_name: str, stats: Iterable[QueueStats]) -> bytes:
    return _by_queue(
        (
            QueueName(one.topic, broker_name, one.queue_id),
            {
                "lastUpdateTimestamp": one.last_update_ms,
                "maxOffset": one.max_offset,
                "minOffset": one.min_offset,
            },
        )
        for one in stats
    )


class Progress(NamedTuple):
    """The progress of a group in one queue.

    `pulled`: offset up to which members have received messages. `when_ms`: store timestamp of the last
    consumed message.
    """

    queue: QueueName
    end: int
    offset: int
    pulled: int
    when_ms: int


def consume_stats(queues: Iterable[Progress], per_second: float) -> bytes:
    """Encode ConsumeStats. Slow; see `dump_rows`."""
    rows = (
        (
            queue,
            {"brokerOffset": end, "consumerOffset": offset, "pullOffset": pulled, "lastTimestamp": when_ms},
        )
        for queue, end, offset, pulled, when_ms in queues
    )
    return _by_queue(rows, f'"consumeTps":{per_second:.2f},')


#: A group's progress and messages per second, by topic.
Topics = Sequence[tuple[Sequence[Progress], float]]


def all_consume_stats(address: str, groups: Mapping[str, Topics]) -> bytes:
    """Encode ConsumeStatsList by group. Slow; see `dump_rows`."""
    listed = b",".join(
        b"{" + dump(group) + b":[" + b",".join(consume_stats(*one) for one in topics) + b"]}"
        for group, topics in groups.items()
    )
    every = [one for topics in groups.values() for rows, _ in topics for one in rows]
    behind = sum(max(0, one.end - one.offset) for one in every)
    in_flight = sum(one.pulled - one.offset for one in every)
    told = dump({"brokerAddr": address, "totalDiff": behind, "totalInflightDiff": in_flight})
    return told[:-1] + b',"consumeStatsList":[' + listed + b"]}"


def stats_data(found: Sums) -> dict[str, Any]:
    """Return BrokerStatsData."""
    named = {"statsMinute": found.minute, "statsHour": found.hour, "statsDay": found.day}
    return {
        name: {"avgpt": one.per_event, "sum": one.amount, "tps": one.per_second}
        for name, one in named.items()
    }


def traffic_rows(traffic: Traffic) -> dict[str, str]:
    """Return the traffic rows of a broker's runtime table, since the start of this node."""
    put, given = traffic.put_totals, traffic.given_totals
    put_rates, given_rates = _rates(traffic.put_rates()), _rates(traffic.given_rates())
    return {
        "putTps": put_rates,
        "getFoundTps": given_rates,
        "getTotalTps": given_rates,
        "getTransferedTps": given_rates,
        "getTransferredTps": given_rates,
        "putMessageTimesTotal": str(put.calls),
        "putMessageSizeTotal": str(put.size),
        "putMessageAverageSize": str(put.size / put.messages if put.messages else 0.0),
        "msgPutTotalTodayNow": str(put.messages),
        "msgPutTotalTodayMorning": str(put.by_morning),
        "msgPutTotalYesterdayMorning": str(put.by_yesterday),
        "msgGetTotalTodayNow": str(given.messages),
        "msgGetTotalTodayMorning": str(given.by_morning),
        "msgGetTotalYesterdayMorning": str(given.by_yesterday),
    }


def _rates(rates: Rates) -> str:
    return " ".join(str(rate) for rate in rates)


def reset_offsets(offsets: Iterable[tuple[QueueName, int]]) -> bytes:
    return _by_queue(offsets)


def reset_offsets_for_c(offsets: Iterable[tuple[QueueName, int]]) -> bytes:
    """Encode ResetOffsetBodyForC, for the C++ client, which cannot read objects as keys."""
    return dump({"offsetTable": [{**queue.to_json(), "offset": offset} for queue, offset in offsets]})


def _by_queue(rows: Iterable[tuple[QueueName, object]], before: str = "") -> bytes:
    """Encode {"offsetTable":{{queue}:row, ...}}. Slow; see `dump_rows`."""
    table = dump_rows((queue.to_json(), told) for queue, told in rows)
    return b"{" + before.encode() + b'"offsetTable":' + table + b"}"


def consumer_connection(members: Mapping[str, Member]) -> bytes:
    """Encode the connections of a group that has at least one member. Slow; see `dump_rows`."""
    first = next(iter(members.values())).data
    told = dump(
        {
            "consumeFromWhere": first.consume_from_where,
            "consumeType": first.consume_type,
            "messageModel": first.message_model,
        }
    )
    rows = (_connection(one.connection, name, one.language, one.version) for name, one in members.items())
    table = dump_rows((topic, _subscription(one)) for topic, one in _subscriptions(members).items())
    return told[:-1] + b',"connectionSet":' + _list(rows) + b',"subscriptionTable":' + table + b"}"


def _subscriptions(members: Mapping[str, Member]) -> dict[str, SubscriptionData]:
    """Return subscriptions by topic, up to the limits above."""
    every = (one for member in members.values() for one in member.data.subscriptions.items())
    found: dict[str, SubscriptionData] = {}
    left = _MAX_EXPRESSIONS
    for topic, one in islice(every, _MAX_SUBSCRIPTIONS):
        if (left := left - len(one.expression)) < 0:
            break
        found[topic] = max(found.get(topic, one), one, key=attrgetter("version"))
    return found


def producer_connection(producers: Mapping[str, RemotingConnection]) -> bytes:
    """Encode producer connections. Slow; see `dump_rows`."""
    rows = (_connection(connection, client_id, 0, 0) for client_id, connection in producers.items())
    return b'{"connectionSet":' + _list(rows) + b"}"


def all_producers(groups: Mapping[str, Mapping[str, RemotingConnection]], now_ms: int) -> bytes:
    """Encode ProducerTableInfo. Slow; see `dump_rows`.

    `now_ms`: reported as the time of the last update, because all producers are connected now.
    """
    table = ((group, [_producer(*one, now_ms) for one in found.items()]) for group, found in groups.items())
    return b'{"data":' + dump_rows(table) + b"}"


def _producer(client_id: str, connection: RemotingConnection, now_ms: int) -> dict[str, Any]:
    told = {"clientId": client_id, "remoteIP": connection.peer, "lastUpdateTimestamp": now_ms}
    return {**told, "language": Language.OTHER.name, "version": 0}


def _list(rows: Iterable[object]) -> bytes:
    """Encode a list row by row, like `dump_rows`."""
    return b"[" + b",".join(map(dump, rows)) + b"]"


def _connection(
    connection: RemotingConnection, client_id: str, language: int, version: int
) -> dict[str, Any]:
    name = _LANGUAGES.get(language, Language.OTHER.name)
    return {"clientAddr": connection.peer, "clientId": client_id, "language": name, "version": version}


def _subscription(found: SubscriptionData) -> dict[str, Any]:
    tags = [] if found.is_sql or found.expression == "*" else split_tags(found.expression)
    return {
        "classFilterMode": False,
        "codeSet": [java_hash(tag) for tag in tags],
        "expressionType": "SQL92" if found.is_sql else "TAG",
        "subString": found.expression,
        "subVersion": found.version,
        "tagsSet": tags,
        "topic": found.topic,
    }
