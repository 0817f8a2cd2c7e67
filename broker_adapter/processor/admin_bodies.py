"""Bodies that administrators are sent. Facts: TopicConfig, SubscriptionGroupConfig, TopicStatsTable,
ConsumeStats, ResetOffsetBody, ConsumerConnection, ProducerConnection, KVTable, GroupList of RocketMQ.

Some are no JSON but what fastjson writes: objects are keys of objects there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from broker_adapter.api import MESSAGE_TYPES, GroupConfig, QueueOffset, QueueStats, TopicConfig
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.format.delay_levels import SCHEDULE_TOPIC
from broker_adapter.format.topic_names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from broker_adapter.processor import fields as read
from broker_adapter.processor.bodies import QueueName, Subscription, parse
from broker_adapter.processor.clients import Member
from broker_adapter.remoting.codes import Language
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.json_bodies import dump, dump_rows
from broker_adapter.traffic.traffic import Rates, Sums, Traffic

#: Of all members of a group; they should all have the same.
_MAX_SUBSCRIPTIONS = 4_096
#: Characters of their expressions together.
_MAX_EXPRESSIONS = 1 << 20
_LANGUAGES = {int(language): language.name for language in Language}


def topic_config(fields: Mapping[str, str]) -> TopicConfig:
    """From UPDATE_AND_CREATE_TOPIC. IllegalMessage."""
    message_type = ""
    for attribute in fields.get("attributes", "").split(","):
        name, _, value = attribute.strip().lstrip("+").partition("=")
        if name == "message.type":
            message_type = value.upper()
    if message_type == "UNSPECIFIED":
        message_type = ""
    if message_type not in MESSAGE_TYPES:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"message.type {message_type[:32]!r} is not known")
    return TopicConfig(
        read.text(fields, "topic"),
        read.number(fields, "readQueueNums", 4),
        read.number(fields, "writeQueueNums", 4),
        read.number(fields, "perm", 6),
        read.number(fields, "topicSysFlag", 0),
        read.flag(fields, "order"),
        message_type,
    )


def topic_to_json(config: TopicConfig) -> dict[str, Any]:
    return {
        "attributes": {"message.type": config.message_type} if config.message_type else {},
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": config.name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queues,
    }


def all_topics(configs: Iterable[TopicConfig], version: int) -> bytes:
    """By name. Slaves of RocketMQ take them over when the version is another one than before. Slow; see
    `dump_rows`."""
    rows = ((config.name, topic_to_json(config)) for config in sorted(configs))
    return _table("topicConfigTable", rows, version)


def all_offsets(offsets: Mapping[str, Sequence[QueueOffset]]) -> bytes:
    """Of all groups, by topic@group. Slow; see `dump_rows`."""
    table: dict[str, dict[str, int]] = {}
    for group, found in offsets.items():
        for topic, queue_id, offset in found:
            table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    return _table("offsetTable", table.items(), 0)


def delays(own: Mapping[tuple[str, int], int]) -> bytes:
    """How far each delay level is delivered. `own`: the offsets of the broker's own queues."""
    levels = sorted(
        (queue_id + 1, offset) for (topic, queue_id), offset in own.items() if topic == SCHEDULE_TOPIC
    )
    return _table("offsetTable", ((str(level), offset) for level, offset in levels), 0)


def transaction_offsets(own: Mapping[tuple[str, int], int]) -> dict[str, list[QueueOffset]]:
    """Of the group that RocketMQ's own checks are. `own`: as of `delays`."""
    rows = sorted(QueueOffset(*queue, offset) for queue, offset in own.items())
    found = [one for one in rows if one.topic in (HALF_TOPIC, OP_TOPIC)]
    return {TRANSACTION_GROUP: found} if found else {}


def group_config(body: bytes) -> GroupConfig:
    """From UPDATE_AND_CREATE_SUBSCRIPTIONGROUP. IllegalMessage."""
    found = parse(body)
    name = found.get("groupName")
    retry_queues, retry_max_times = found.get("retryQueueNums", 1), found.get("retryMaxTimes", 16)
    if not isinstance(name, str) or type(retry_queues) is not int or type(retry_max_times) is not int:
        raise IllegalMessage(Status.REQUEST_MALFORMED, "a group has a name, and numbers of queues and times")
    return GroupConfig(
        name,
        bool(found.get("consumeEnable", True)),
        bool(found.get("consumeFromMinEnable", True)),
        bool(found.get("consumeBroadcastEnable", True)),
        retry_queues,
        retry_max_times,
        bool(found.get("consumeMessageOrderly", False)),
    )


def group_to_json(config: GroupConfig) -> dict[str, Any]:
    return {
        "brokerId": 0,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeMessageOrderly": config.consume_orderly,
        "groupName": config.name,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": config.retry_max_times,
        "retryQueueNums": config.retry_queues,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def all_groups(configs: Iterable[GroupConfig], version: int) -> bytes:
    """As `all_topics`."""
    rows = ((config.name, group_to_json(config)) for config in sorted(configs))
    return _table("subscriptionGroupTable", rows, version)


def _table(name: str, rows: Iterable[tuple[str, object]], version: int) -> bytes:
    told = {"counter": version, "stateVersion": 0, "timestamp": 0}
    return b'{"dataVersion":' + dump(told) + b',"' + name.encode() + b'":' + dump_rows(rows) + b"}"


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
    """Of a group in one queue. `when_ms`: when the last message that was consumed was stored."""

    queue: QueueName
    end: int
    offset: int
    when_ms: int


def consume_stats(queues: Iterable[Progress], per_second: float) -> bytes:
    """Slow; see `dump_rows`."""
    rows = (
        (queue, {"brokerOffset": end, "consumerOffset": offset, "lastTimestamp": when_ms})
        for queue, end, offset, when_ms in queues
    )
    return _by_queue(rows, f'"consumeTps":{per_second:.2f},')


#: Of a group: for each topic its progress, and messages a second.
Topics = Sequence[tuple[Sequence[Progress], float]]


def all_consume_stats(address: str, groups: Mapping[str, Topics]) -> bytes:
    """ConsumeStatsList, by group. Slow; see `dump_rows`."""
    listed = b",".join(
        b"{" + dump(group) + b":[" + b",".join(consume_stats(*one) for one in topics) + b"]}"
        for group, topics in groups.items()
    )
    behind = sum(
        max(0, one.end - one.offset) for topics in groups.values() for rows, _ in topics for one in rows
    )
    told = dump({"brokerAddr": address, "totalDiff": behind, "totalInflightDiff": 0})
    return told[:-1] + b',"consumeStatsList":[' + listed + b"]}"


def stats_data(found: Sums) -> dict[str, Any]:
    """BrokerStatsData."""
    named = {"statsMinute": found.minute, "statsHour": found.hour, "statsDay": found.day}
    return {
        name: {"avgpt": one.per_event, "sum": one.amount, "tps": one.per_second}
        for name, one in named.items()
    }


def traffic_rows(traffic: Traffic) -> dict[str, str]:
    """Of the table of a broker's runtime: since the start of this node."""
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


def _by_queue(rows: Iterable[tuple[QueueName, object]], before: str = "") -> bytes:
    """{"offsetTable":{{a queue}:what is told of it}}. Slow; see `dump_rows`."""
    table = dump_rows((queue.to_json(), told) for queue, told in rows)
    return b"{" + before.encode() + b'"offsetTable":' + table + b"}"


def consumer_connection(members: Mapping[str, Member]) -> bytes:
    """Of a group with one member at least. Slow; see `dump_rows`."""
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


def _subscriptions(members: Mapping[str, Member]) -> dict[str, Subscription]:
    """By topic, as many as are told."""
    every = (one for member in members.values() for one in member.data.subscriptions.items())
    found: dict[str, Subscription] = {}
    left = _MAX_EXPRESSIONS
    for topic, one in islice(every, _MAX_SUBSCRIPTIONS):
        if (left := left - len(one.expression)) < 0:
            break
        found[topic] = one
    return found


def producer_connection(producers: Mapping[str, RemotingConnection]) -> bytes:
    """Likewise slow."""
    rows = (_connection(connection, client_id, 0, 0) for client_id, connection in producers.items())
    return b'{"connectionSet":' + _list(rows) + b"}"


def all_producers(groups: Mapping[str, Mapping[str, RemotingConnection]], now_ms: int) -> bytes:
    """ProducerTableInfo. Likewise slow. `now_ms`: those that are connected are alive then."""
    table = ((group, [_producer(*one, now_ms) for one in found.items()]) for group, found in groups.items())
    return b'{"data":' + dump_rows(table) + b"}"


def _producer(client_id: str, connection: RemotingConnection, now_ms: int) -> dict[str, Any]:
    told = {"clientId": client_id, "remoteIP": connection.peer, "lastUpdateTimestamp": now_ms}
    return {**told, "language": Language.OTHER.name, "version": 0}


def _list(rows: Iterable[object]) -> bytes:
    """Row by row, as `dump_rows`."""
    return b"[" + b",".join(map(dump, rows)) + b"]"


def _connection(
    connection: RemotingConnection, client_id: str, language: int, version: int
) -> dict[str, Any]:
    name = _LANGUAGES.get(language, Language.OTHER.name)
    return {"clientAddr": connection.peer, "clientId": client_id, "language": name, "version": version}


def _subscription(found: Subscription) -> dict[str, Any]:
    tags = [] if found.is_sql or found.expression == "*" else found.expression.split("||")
    tags = [tag.strip() for tag in tags]
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "SQL92" if found.is_sql else "TAG",
        "subString": found.expression,
        "subVersion": found.version,
        "tagsSet": [tag for tag in tags if tag],
        "topic": found.topic,
    }
