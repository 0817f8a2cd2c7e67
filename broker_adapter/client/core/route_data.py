"""Decodes the NameServer's TopicRouteData and ClusterInfo: the brokers of a topic and of a cluster.

Pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from broker_adapter.client.core.values import MessageQueue
from broker_adapter.errors import FrameRefused
from broker_adapter.remoting.json_bodies import check_limits
from broker_adapter.wire.broker_ids import MASTER_ID
from broker_adapter.wire.longs import long_of

_WRITE: Final = 2
_READ: Final = 4
#: Maximum number of queues of one topic, and of addresses in one response. RocketMQ has no such limits.
_MAX_QUEUES: Final = 65_536
_MAX_ADDRESSES: Final = 4_096
#: Maximum bytes and values of a body, which the event loop parses in up to 40 ms. Bodies with unquoted keys
#: take 0.2 s per MiB.
_MAX_BODY_BYTES, _MAX_BODY_VALUES, _MAX_BARE_BYTES = 4 << 20, 1 << 18, 1 << 20
#: Matches a string, which is kept, or a key that is a number. An unterminated string matches to the end of
#: the text, because otherwise each of its quotes would start another scan.
_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|(?P<before>[{,]\s*)(?P<key>-?\d+)\s*:', re.DOTALL)


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """The nodes of one broker name. `addresses`: by broker id; 0 is the master."""

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)

    @property
    def reader(self) -> str | None:
        """The address of the master, or of the slave with the lowest id if no master is known."""
        return self.addresses[min(self.addresses)] if self.addresses else None


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of a topic at one broker. `permission`: 4 readable, 2 writable."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of a topic.

    `order`: RocketMQ's orderTopicConf, empty for most topics. `master_terms`: by broker name, if
    requested from a NameServer of this project.
    """

    brokers: Mapping[str, BrokerAddresses]
    queues: Sequence[QueueData]
    order: str = ""
    master_terms: Mapping[str, int] = field(default_factory=dict)

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues. A broker without a master has none."""
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
        """Return the address to pull from.

        This is the address with the given broker id; otherwise, for a slave, that with the id plus one,
        because ids of DLedger groups start at 1; otherwise that with the lowest id.
        """
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
    """Expand `broker-a:4;broker-b:4` to all queues.

    The result includes queues of unavailable brokers, so that each key keeps its queue.
    """
    queues: list[MessageQueue] = []
    for part in order.split(";"):
        name, _, text = part.partition(":")
        count = long_of(text)
        if not name or count is None or not 0 <= count <= _MAX_QUEUES - len(queues):
            raise _malformed(f"orderTopicConf is invalid: {order[:100]!r}")
        queues += [MessageQueue(topic, name, number) for number in range(count)]
    return tuple(queues)


def parse_route(body: bytes) -> TopicRoute:
    """Decode TopicRouteData. Raises FrameRefused (FRAME_INVALID)."""
    value = parse_body(body)
    queues = tuple(map(_queue_data, _list(value.get("queueDatas"))))
    if sum(max(1, one.read_queues, one.write_queues) for one in queues) > _MAX_QUEUES:
        raise _malformed(f"the route has more than {_MAX_QUEUES} queues")
    return TopicRoute(
        brokers=_brokers(_list(value.get("brokerDatas"))),
        queues=queues,
        order=str(value.get("orderTopicConf") or ""),
        master_terms=_terms(value.get("masterTerms") or {}),
    )


def _terms(found: Any) -> dict[str, int]:
    if not isinstance(found, dict) or not all(type(term) is int for term in found.values()):
        raise _malformed("masterTerms must be an object with integer values")
    return found


def parse_topic_list(body: bytes) -> list[str]:
    """Decode the names of topics. Raises FrameRefused (FRAME_INVALID)."""
    topics = parse_body(body).get("topicList")
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise _malformed("topicList is not a list of names")
    return topics


def parse_clusters(body: bytes) -> dict[str, list[BrokerAddresses]]:
    """Decode the brokers of each cluster from a ClusterInfo. Raises FrameRefused (FRAME_INVALID)."""
    value = parse_body(body)
    clusters = value.get("clusterAddrTable") or {}
    try:
        brokers = _brokers(list((value.get("brokerAddrTable") or {}).values()))
        return {
            str(cluster): [brokers[name] for name in sorted(names) if name in brokers]
            for cluster, names in clusters.items()
        }
    except (AttributeError, TypeError) as error:
        raise _malformed(str(error)) from None


def distinct(brokers: Iterable[BrokerAddresses]) -> list[BrokerAddresses]:
    """Drop each broker name whose nodes are only some of the nodes of another name, such as the write-only
    names of members.
    """
    candidates = list(brokers)
    addresses = {broker.name: set(broker.addresses.values()) for broker in candidates}
    return [
        broker
        for broker in candidates
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
        raise _malformed(f"invalid broker data: {error!r}") from None
    if sum(max(1, len(broker.addresses)) for broker in brokers) > _MAX_ADDRESSES:
        raise _malformed(f"the route has more than {_MAX_ADDRESSES} addresses")
    return {broker.name: broker for broker in brokers}


def _list(found: Any) -> Sequence[Any]:
    if not isinstance(found, list | None):
        raise _malformed("a field of the route must be a list, but is not")
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
        raise _malformed(f"invalid queue data: {error!r}") from None
    if not (0 <= data.read_queues <= _MAX_QUEUES and 0 <= data.write_queues <= _MAX_QUEUES):
        raise _malformed(
            f"invalid queue counts: {data.read_queues} for reading, {data.write_queues} for writing"
        )
    return data


def parse_body(body: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises FrameRefused (FRAME_INVALID).

    RocketMQ writes numeric keys without quotes, as fastjson does, except in responses to requests that
    require standard JSON.
    """
    try:
        check_limits(body, _MAX_BODY_BYTES, _MAX_BODY_VALUES)
        try:
            value = json.loads(body)
        except json.JSONDecodeError:
            check_limits(body, _MAX_BARE_BYTES, _MAX_BODY_VALUES)
            value = json.loads(_BARE_KEY.sub(_with_quotes, body.decode()))
    except (ValueError, RecursionError) as error:
        raise _malformed(str(error)[:100]) from None
    if not isinstance(value, dict):
        raise _malformed("the route is not a JSON object")
    return value


def _with_quotes(found: re.Match[str]) -> str:
    return found[0] if found["key"] is None else f'{found["before"]}"{found["key"]}":'


def _malformed(problem: str) -> FrameRefused:
    return FrameRefused(f"invalid response of a NameServer: {problem}")
