"""Which brokers have a topic: the NameServer's TopicRouteData and ClusterInfo. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker_adapter.client.core.values import MessageQueue
from broker_adapter.errors import FrameRefused
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.remoting.longs import long_of

_WRITE: Final = 2
_READ: Final = 4
#: Queues of one topic, and addresses of one answer; RocketMQ itself knows no limit.
_MAX_QUEUES: Final = 65_536
_MAX_ADDRESSES: Final = 4_096
#: A text, which stays as it is, or a key that is a number. A text without an end ends with all: from each of
#: its quotes it would be looked at again.
_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|(?P<before>[{,]\s*)(?P<key>-?\d+)\s*:', re.DOTALL)


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """One group of brokers: `addresses` by broker id, 0 is the master."""

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class QueueData:
    """Queues of the topic at one broker. `permission`: 4 readable, 2 writable."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic is. `order`: RocketMQ's orderTopicConf, empty for most topics."""

    brokers: Mapping[str, BrokerAddresses]
    queues: Sequence[QueueData]
    order: str = ""

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues that take messages. A broker without a master takes none."""
        if self.order:
            return _ordered_queues(topic, self.order)
        return tuple(
            MessageQueue(topic, data.broker_name, number)
            for data in self._sorted()
            if data.permission & _WRITE and self.master(data.broker_name) is not None
            for number in range(data.write_queues)
        )

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(
            MessageQueue(topic, data.broker_name, number)
            for data in self._sorted()
            if data.permission & _READ
            for number in range(data.read_queues)
        )

    def master(self, broker_name: str) -> str | None:
        broker = self.brokers.get(broker_name)
        return None if broker is None else broker.master

    def reader(self, broker_name: str, broker_id: int) -> str | None:
        """Whom to pull from: this id, the one after it (ids of DLedger groups begin with 1), or any."""
        broker = self.brokers.get(broker_name)
        if broker is None or not broker.addresses:
            return None
        ids = (broker_id, broker_id + 1) if broker_id != MASTER_ID else (broker_id,)
        for one in ids:
            if one in broker.addresses:
                return broker.addresses[one]
        return broker.addresses[min(broker.addresses)]

    def _sorted(self) -> list[QueueData]:
        return sorted(self.queues, key=lambda data: data.broker_name)


def _ordered_queues(topic: str, order: str) -> tuple[MessageQueue, ...]:
    """`broker-a:4;broker-b:4`: all queues, whether their broker is there or not, so that none moves."""
    found: list[MessageQueue] = []
    for part in order.split(";"):
        name, _, text = part.partition(":")
        count = long_of(text)
        if not name or count is None or not 0 <= count <= _MAX_QUEUES - len(found):
            raise _malformed(f"orderTopicConf {order[:100]!r}")
        found += [MessageQueue(topic, name, number) for number in range(count)]
    return tuple(found)


def parse_route(body: bytes) -> TopicRoute:
    """FrameRefused (FRAME_INVALID) if it is no TopicRouteData."""
    found = _object(body)
    queues = tuple(map(_queue_data, _list(found.get("queueDatas"))))
    if sum(max(1, one.read_queues, one.write_queues) for one in queues) > _MAX_QUEUES:
        raise _malformed(f"more than {_MAX_QUEUES} queues")
    return TopicRoute(
        brokers=_brokers(_list(found.get("brokerDatas"))),
        queues=queues,
        order=str(found.get("orderTopicConf") or ""),
    )


def parse_topic_list(body: bytes) -> list[str]:
    """Names of topics. FrameRefused (FRAME_INVALID)."""
    topics = _object(body).get("topicList")
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise _malformed("topicList is no list of names")
    return topics


def parse_clusters(body: bytes) -> dict[str, list[BrokerAddresses]]:
    """Cluster -> its brokers, of a ClusterInfo. FrameRefused (FRAME_INVALID)."""
    found = _object(body)
    clusters = found.get("clusterAddrTable") or {}
    try:
        brokers = _brokers(list((found.get("brokerAddrTable") or {}).values()))
        return {
            str(cluster): [brokers[name] for name in sorted(names) if name in brokers]
            for cluster, names in clusters.items()
        }
    except (AttributeError, TypeError) as error:
        raise _malformed(str(error)) from None


def distinct(brokers: Iterable[BrokerAddresses]) -> list[BrokerAddresses]:
    """Without names under which only some nodes of another one are known, as our nodes are to producers."""
    found = list(brokers)
    addresses = {broker.name: set(broker.addresses.values()) for broker in found}
    return [
        broker
        for broker in found
        if not any(addresses[broker.name] < others for others in addresses.values())
    ]


def _brokers(found: Sequence[Any]) -> dict[str, BrokerAddresses]:
    try:
        brokers = [
            BrokerAddresses(
                str(one["brokerName"]),
                str(one.get("cluster") or ""),
                {int(number): str(address) for number, address in one["brokerAddrs"].items()},
            )
            for one in found
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(f"broker data: {error!r}") from None
    if sum(max(1, len(broker.addresses)) for broker in brokers) > _MAX_ADDRESSES:
        raise _malformed(f"more than {_MAX_ADDRESSES} addresses")
    return {broker.name: broker for broker in brokers}


def _list(found: Any) -> Sequence[Any]:
    if not isinstance(found, list | None):
        raise _malformed("no list where there should be one")
    return found or []


def _queue_data(found: Any) -> QueueData:
    try:
        data = QueueData(
            str(found["brokerName"]),
            int(found["readQueueNums"]),
            int(found["writeQueueNums"]),
            int(found["perm"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _malformed(f"queue data: {error!r}") from None
    if not (0 <= data.read_queues <= _MAX_QUEUES and 0 <= data.write_queues <= _MAX_QUEUES):
        raise _malformed(f"{data.read_queues} and {data.write_queues} queues")
    return data


def _object(body: bytes) -> dict[str, Any]:
    """RocketMQ writes numeric keys without quotes (fastjson), unless it is asked not to where it can be."""
    try:
        found = json.loads(_BARE_KEY.sub(_with_quotes, body.decode()))
    except (ValueError, RecursionError) as error:
        raise _malformed(str(error)[:100]) from None
    if not isinstance(found, dict):
        raise _malformed("no JSON object")
    return found


def _with_quotes(found: re.Match[str]) -> str:
    return found[0] if found["key"] is None else f'{found["before"]}"{found["key"]}":'


def _malformed(problem: str) -> FrameRefused:
    return FrameRefused(f"a route of a NameServer: {problem}")
