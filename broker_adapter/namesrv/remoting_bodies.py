"""Between the bodies of RocketMQ's NameServer requests and our own types.

Facts: RegisterBrokerBody, TopicConfigSerializeWrapper, TopicRouteData, ClusterInfo, DataVersion of RocketMQ.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE, TopicConfig
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.namesrv.values import (
    BrokerEntry,
    RemotingNode,
    Route,
    check_topic_count,
    invalid,
)
from broker_adapter.remoting.json_bodies import dump, dump_rows
from broker_adapter.remoting.longs import LONGS

#: Of a registration, inflated if it was compressed (bytes); 20,000 topics with the longest names take less.
MAX_BODY = 8 << 20
#: Objects, lists and members of a JSON text together; 20,000 topics have 240,000. What is in it costs more
#: than its bytes: 8 MiB of "{}," are 200 MiB of objects, and stop the event loop for half a second.
MAX_PARTS = 400_000
#: The attribute that says which messages a topic takes.
_MESSAGE_TYPE = "+message.type"
_INT_BYTES = 4


class DataVersion(NamedTuple):
    """Which topics a broker has, as it counts them itself."""

    state_version: int = 0  # grows with elections of RocketMQ's controller
    timestamp: int = 0
    counter: int = 0

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


class RegisterBody(NamedTuple):
    """What a registration says of topics."""

    version: DataVersion
    topics: Sequence[TopicConfig]
    filter_servers: Sequence[str]


def data_version(body: bytes) -> DataVersion:
    """NameServerRefused (NAMESRV_INVALID)."""
    return _data_version(_parse(body) if body else {})


def body_crc32(body: bytes) -> int:
    """As RocketMQ's UtilAll.crc32 has it: without the top bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


def register_body(body: bytes, *, compressed: bool, crc32: int, max_topics: int) -> RegisterBody:
    """`crc32`: of the body; 0: not told. NameServerRefused (NAMESRV_INVALID); NameServerBusy (_LIMIT)."""
    _check_size(body)
    if crc32 and crc32 != body_crc32(body):
        raise invalid("the body's CRC32 is not the one that the header names")
    if not body:
        return RegisterBody(DataVersion(), (), ())
    # A broker of RocketMQ 5.5 with compressedRegister compresses, and says that it does not.
    if compressed or not body.startswith(b"{"):
        return _inflated(body, max_topics)
    found = _object(_parse(body), "the body")
    wrapper = _part(found, "topicConfigSerializeWrapper")
    table = _part(wrapper, "topicConfigTable")
    check_topic_count(len(table), max_topics)
    return RegisterBody(
        _data_version(_part(wrapper, "dataVersion")),
        [_topic(name, _object(value, "a topic")) for name, value in table.items()],
        _texts(found.get("filterServerList") or []),
    )


def encode_register_body(
    topics: Iterable[TopicConfig], version: DataVersion, filter_servers: Sequence[str] = ()
) -> bytes:
    """Not compressed. Slow; see `dump_rows`."""
    table = dump_rows((topic.name, _topic_to_json(topic)) for topic in topics)
    wrapper = b'{"dataVersion":' + dump(version.to_json()) + b',"topicConfigTable":' + table + b"}"
    servers = dump(list(filter_servers))
    return b'{"filterServerList":' + servers + b',"topicConfigSerializeWrapper":' + wrapper + b"}"


def route_data(route: Route, order_config: str | None) -> bytes:
    """TopicRouteData. `order_config`: how many queues of which broker are in order.

    A broker of ours is read under its name, and written to under one name for each of its nodes, all of
    which take messages: clients of this protocol look for new routes every 30 s only, and after a failure
    try another *name*. Whatever the number of nodes, the i-th queue to write to is queue i modulo their
    number, so that a client's selector keeps a key in its queue.
    """
    found: dict[str, Any] = {
        "brokerDatas": [
            _broker_data(name, route.clusters[label], ids)
            for label, published in route.brokers.items()
            for name, ids in _names_of(label, published, route.remoting.get(label, ()))
            if ids
        ],
        "filterServerTable": {address: list(servers) for address, servers in route.filter_servers.items()},
        "queueDatas": [
            {
                "brokerName": name,
                "perm": perm,
                "readQueueNums": config.read_queues,
                "topicSysFlag": config.sys_flag,
                "writeQueueNums": config.write_queues,
            }
            for label, config in route.queues.items()
            for name, perm in _permissions(label, config.perm, route.remoting.get(label, ()))
        ],
    }
    if order_config is not None:
        found["orderTopicConf"] = order_config
    return dump(found)


def node_name(broker_name: str, node_id: str) -> str:
    """Under which one node takes messages of producers."""
    return f"{broker_name}-{node_id}"


def _names_of(
    label: str, published: Mapping[int, str], nodes: Sequence[RemotingNode]
) -> list[tuple[str, Mapping[int, str]]]:
    """By name, the addresses under their broker ids."""
    if not nodes:
        return [(label, published)]
    own = [(node_name(label, node.node_id), {MASTER_ID: node.address}) for node in nodes]
    return [(label, {node.broker_id: node.address for node in nodes}), *own]


def _permissions(label: str, perm: int, nodes: Sequence[RemotingNode]) -> list[tuple[str, int]]:
    """By name, what may be done there."""
    if not nodes:
        return [(label, perm)]
    return [
        (label, perm & ~PERM_WRITE),
        *((node_name(label, node.node_id), perm & ~PERM_READ) for node in nodes),
    ]


def cluster_info(brokers: Iterable[BrokerEntry]) -> bytes:
    """ClusterInfo: who is published under which id, and which names a cluster has. Tools look for each name
    that a route has, those that are written to among them, which are no names of the cluster's."""
    addresses: dict[str, dict[int, str]] = {}
    clusters: dict[str, set[str]] = {}
    cluster_of: dict[str, str] = {}
    of_nodes: dict[str, dict[str, Any]] = {}
    for entry in brokers:
        ids = addresses.setdefault(entry.broker_name, {})
        if entry.broker_id >= 0:
            ids[entry.broker_id] = entry.remoting_address or entry.address
        clusters.setdefault(entry.cluster, set()).add(entry.broker_name)
        cluster_of[entry.broker_name] = entry.cluster
        if entry.remoting_address and entry.broker_id >= 0:
            own = node_name(entry.broker_name, entry.node_id)
            of_nodes[own] = _broker_data(own, entry.cluster, {MASTER_ID: entry.remoting_address})
    of_names = {name: _broker_data(name, cluster_of[name], ids) for name, ids in addresses.items()}
    return dump(
        {
            "brokerAddrTable": dict(sorted({**of_nodes, **of_names}.items())),
            "clusterAddrTable": {cluster: sorted(names) for cluster, names in sorted(clusters.items())},
        }
    )


def topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """TopicList."""
    found: dict[str, Any] = {"topicList": list(topics)}
    if broker_address is not None:
        found["brokerAddr"] = broker_address
    return dump(found)


def key_values(table: Mapping[str, str]) -> bytes:
    """KVTable."""
    return dump({"table": dict(table)})


def _broker_data(name: str, cluster: str, ids: Mapping[int, str]) -> dict[str, Any]:
    return {
        "brokerAddrs": {str(broker_id): ids[broker_id] for broker_id in sorted(ids)},
        "brokerName": name,
        "cluster": cluster,
        "enableActingMaster": False,
    }


# -- reading ------------------------------------------------------------------------------------------------


def _inflated(body: bytes, max_topics: int) -> RegisterBody:
    """Lengths and pieces: the version, each topic on a line, filter servers. What follows is of static
    topics, which we do not have."""
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_BODY)
    except zlib.error as error:
        raise invalid(f"the body cannot be decompressed: {error}") from None
    if inflater.unconsumed_tail:
        raise invalid(f"the decompressed body is larger than {MAX_BODY} bytes")
    at = 0

    def number() -> int:
        nonlocal at
        at += _INT_BYTES
        if at > len(data):
            raise invalid("the decompressed body ends too early")
        return int.from_bytes(data[at - _INT_BYTES : at])

    def piece() -> bytes:
        nonlocal at
        size = number()
        if size > len(data) - at:
            raise invalid("the decompressed body ends too early")
        at += size
        return data[at - size : at]

    version = _data_version(_parse(piece()))
    count = number()
    check_topic_count(count, max_topics)
    topics = [_topic_line(piece()) for _ in range(count)]
    return RegisterBody(version, topics, _texts(_parse(piece()) or []) if at < len(data) else ())


def _topic_line(line: bytes) -> TopicConfig:
    """TopicConfig.encode: name, read and write queues, permission, filter type, perhaps attributes."""
    try:
        words = line.decode().split(" ", 5)
    except UnicodeDecodeError:
        raise invalid("a topic's line is no UTF-8") from None
    if len(words) < 4:
        raise invalid("a topic's line has fewer than four words")
    try:
        read, write, perm = (int(word) for word in words[1:4])
    except ValueError:
        raise invalid("a topic's line has words where numbers belong") from None
    attributes = _parse(words[5].encode()) if len(words) == 6 and words[5] else {}
    return TopicConfig(words[0], read, write, perm, message_type=_message_type(attributes))


def _topic(name: str, value: Mapping[str, Any]) -> TopicConfig:
    return TopicConfig(
        _text(value.get("topicName", name), "topicName"),
        _int(value.get("readQueueNums", 0), "readQueueNums"),
        _int(value.get("writeQueueNums", 0), "writeQueueNums"),
        _int(value.get("perm", 0), "perm"),
        _int(value.get("topicSysFlag", 0), "topicSysFlag"),
        bool(value.get("order", False)),
        _message_type(_part(value, "attributes")),
    )


def _topic_to_json(topic: TopicConfig) -> dict[str, Any]:
    return {
        "attributes": {_MESSAGE_TYPE: topic.message_type} if topic.message_type else {},
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.write_queues,
    }


def _message_type(attributes: object) -> str:
    """Of the topic's attributes: `message.type`, with or without the plus sign of a change."""
    found = _object(attributes, "attributes")
    return str(found.get(_MESSAGE_TYPE) or found.get(_MESSAGE_TYPE[1:]) or "")


def _data_version(found: object) -> DataVersion:
    values = _object(found, "dataVersion")
    names = ("stateVersion", "timestamp", "counter")
    return DataVersion(*(_int(values.get(name) or 0, name) for name in names))


def _check_size(body: bytes) -> None:
    if len(body) > MAX_BODY:
        raise invalid(f"a body of {len(body)} bytes; {MAX_BODY} may be")


def _parse(body: bytes) -> Any:
    _check_size(body)
    if sum(map(body.count, (b"{", b"[", b","))) > MAX_PARTS:
        raise invalid(f"the body has more than {MAX_PARTS} objects, lists and members")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise invalid("the body is no JSON") from None


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{name} is no JSON object")
    return value


def _part(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in another one; empty if it is missing or null."""
    value = found.get(name)
    return {} if value is None else _object(value, name)


def _int(value: object, name: str) -> int:
    if type(value) is not int or value not in LONGS:
        raise invalid(f"{name} is no number of 64 bits")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{name} is no text")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise invalid("filterServerList is no list")
    return [_text(one, "filterServerList") for one in value]
