"""Encoding and decoding of the bodies of RocketMQ's NameServer requests.

Source: RocketMQ's RegisterBrokerBody, TopicConfigSerializeWrapper, TopicRouteData, ClusterInfo, DataVersion.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE, TopicConfig
from broker_adapter.namesrv.values import (
    BrokerEntry,
    ClusterInfo,
    PublishedRoute,
    SendName,
    check_topic_count,
    invalid,
)
from broker_adapter.remoting.json_bodies import check_limits, dump, dump_rows
from broker_adapter.wire.broker_ids import MASTER_ID
from broker_adapter.wire.longs import LONGS

#: Maximum size of a registration body after decompression, in bytes. 20,000 topics with the longest names
#: take less.
MAX_BODY = 8 << 20
#: Maximum number of objects, lists and members of a JSON text; 20,000 topics have 240,000. Parsed objects
#: take more memory than their text. For example, 8 MiB of "{}," become 200 MiB of objects and block the event
#: loop for half a second.
MAX_PARTS = 400_000
#: Attribute with the message type of a topic.
_MESSAGE_TYPE = "+message.type"
_INT_BYTES = 4


class DataVersion(NamedTuple):
    """The version of a broker's topic table, which the broker counts."""

    state_version: int = 0  # grows with elections of RocketMQ's controller
    timestamp: int = 0
    counter: int = 0

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


class RegisterBody(NamedTuple):
    """Topics and filter servers of a registration."""

    version: DataVersion
    topics: Sequence[TopicConfig]
    filter_servers: Sequence[str]


def data_version(body: bytes) -> DataVersion:
    """Decode a data version. Raises NameServerRefused (NAMESRV_INVALID)."""
    return _data_version(_parse(body) if body else {})


def body_crc32(body: bytes) -> int:
    """Return the CRC32 without its highest bit, as RocketMQ's UtilAll.crc32 does."""
    return zlib.crc32(body) & 0x7FFFFFFF


def register_body(body: bytes, *, compressed: bool, crc32: int, max_topics: int) -> RegisterBody:
    """Decode a registration body. `crc32`: expected checksum, 0 for none.

    Raises NameServerRefused (NAMESRV_INVALID) or NameServerBusy (NAMESRV_LIMIT).
    """
    _check_size(body)
    if crc32 and crc32 != body_crc32(body):
        raise invalid("the body's CRC32 does not match the header")
    if not body:
        return RegisterBody(DataVersion(), (), ())
    # With compressedRegister, a broker of RocketMQ 5.5 compresses the body but does not set the flag.
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
    """Encode an uncompressed registration body. Slow; see `dump_rows`."""
    table = dump_rows((topic.name, _topic_to_json(topic)) for topic in topics)
    wrapper = b'{"dataVersion":' + dump(version.to_json()) + b',"topicConfigTable":' + table + b"}"
    servers = dump(list(filter_servers))
    return b'{"filterServerList":' + servers + b',"topicConfigSerializeWrapper":' + wrapper + b"}"


def route_data(
    route: PublishedRoute, order_config: str | None, *, single: bool = False, terms: bool = False
) -> bytes:
    """Encode a route as TopicRouteData. `order_config`: number of ordered queues per broker; `single`: omit
    the write-only names; `terms`: include the masters' terms.

    Clients of this protocol refresh routes only every 30 s, and after a failure they try another broker
    *name*. Each member therefore has a write-only name in addition to the broker's own name, under which the
    master has broker id 0. The write-only names of registered members other than the master have the same
    number of writable queues as the broker. A client's selector therefore maps a key to the same queue under
    any name: the i-th writable queue of the route is always queue i modulo this number.
    """
    send_names = {} if single else route.send_names
    value: dict[str, Any] = {
        "brokerDatas": [
            _broker_data(name, route.clusters[label], ids)
            for label, published in route.brokers.items()
            for name, ids in (
                (label, published),
                *((one.name, {MASTER_ID: one.address}) for one in send_names.get(label, ())),
            )
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
            for name, perm in _permissions(label, config.perm, send_names.get(label, ()))
        ],
    }
    if order_config is not None:
        value["orderTopicConf"] = order_config
    if terms:
        value["masterTerms"] = dict(route.master_terms)
    return dump(value)


def _permissions(label: str, perm: int, names: Sequence[SendName]) -> list[tuple[str, int]]:
    """Return the permission under each broker name."""
    writable = [one.name for one in names if one.is_writable] if perm & PERM_WRITE else []
    return [(label, perm), *((name, perm & ~PERM_READ) for name in writable)]


def cluster_info(
    brokers: Iterable[BrokerEntry],
    send_names: Mapping[str, Sequence[SendName]],
    info: ClusterInfo | None = None,
) -> bytes:
    """Encode cluster info. `info`: fields beyond RocketMQ's ClusterInfo, in a separate member.

    ClusterInfo contains the addresses of each broker name and the names in each cluster. Tools look up each
    name in a route, so the addresses include the write-only names. The clusters do not include them, because
    tools add up the results for all names in a cluster.
    """
    addresses: dict[str, dict[int, str]] = {}
    clusters: dict[str, set[str]] = {}
    cluster_of: dict[str, str] = {}
    for entry in brokers:
        ids = addresses.setdefault(entry.broker_name, {})
        if entry.broker_id >= 0:
            ids[entry.broker_id] = entry.address
        clusters.setdefault(entry.cluster, set()).add(entry.broker_name)
        cluster_of[entry.broker_name] = entry.cluster
    of_names = {name: _broker_data(name, cluster_of[name], ids) for name, ids in addresses.items()}
    write_only = {
        one.name: _broker_data(one.name, cluster, {MASTER_ID: one.address})
        for cluster, names in send_names.items()
        for one in names
    }
    value: dict[str, Any] = {
        "brokerAddrTable": dict(sorted({**write_only, **of_names}.items())),
        "clusterAddrTable": {cluster: sorted(names) for cluster, names in sorted(clusters.items())},
    }
    if info is not None:
        value["nameServer"] = {**info._asdict(), "brokers": [entry._asdict() for entry in info.brokers]}
    return dump(value)


def topic_list(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """Encode RocketMQ's TopicList."""
    value: dict[str, Any] = {"topicList": list(topics)}
    if broker_address is not None:
        value["brokerAddr"] = broker_address
    return dump(value)


def key_values(table: Mapping[str, str]) -> bytes:
    """Encode RocketMQ's KVTable."""
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
    """Decode a compressed registration.

    The body consists of items with a length prefix: the version, the topics with one line each, and the
    filter servers. The rest describes static topics, which this project does not support.
    """
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
            raise invalid("the compressed body is truncated")
        return int.from_bytes(data[at - _INT_BYTES : at])

    def piece() -> bytes:
        nonlocal at
        size = number()
        if size > len(data) - at:
            raise invalid("the compressed body is truncated")
        at += size
        return data[at - size : at]

    version = _data_version(_parse(piece()))
    count = number()
    check_topic_count(count, max_topics)
    topics = [_topic_line(piece()) for _ in range(count)]
    return RegisterBody(version, topics, _texts(_parse(piece()) or []) if at < len(data) else ())


def _topic_line(line: bytes) -> TopicConfig:
    """Decode a line of TopicConfig.encode: name, read and write queues, permission, filter type, optional
    attributes.
    """
    try:
        words = line.decode().split(" ", 5)
    except UnicodeDecodeError:
        raise invalid("a topic line is not UTF-8") from None
    if len(words) < 4:
        raise invalid("a topic line has fewer than four fields")
    try:
        read, write, perm = (int(word) for word in words[1:4])
    except ValueError:
        raise invalid("a topic line has a field that is not a number") from None
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
    """Return the attribute `message.type`, with or without the plus sign of a change."""
    values = _object(attributes, "attributes")
    return str(values.get(_MESSAGE_TYPE) or values.get(_MESSAGE_TYPE[1:]) or "")


def _data_version(found: object) -> DataVersion:
    values = _object(found, "dataVersion")
    names = ("stateVersion", "timestamp", "counter")
    return DataVersion(*(_int(values.get(name) or 0, name) for name in names))


def _check_size(body: bytes) -> None:
    if len(body) > MAX_BODY:
        raise invalid(f"the body is {len(body)} bytes long; the limit is {MAX_BODY}")


def _parse(body: bytes) -> Any:
    try:
        check_limits(body, MAX_BODY, MAX_PARTS)
    except ValueError as error:
        raise invalid(str(error)) from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise invalid("the body is not JSON") from None


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{name} is not a JSON object")
    return value


def _part(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a nested object. If it is missing or null, return an empty one."""
    value = found.get(name)
    return {} if value is None else _object(value, name)


def _int(value: object, name: str) -> int:
    if type(value) is not int or value not in LONGS:
        raise invalid(f"{name} is not a 64-bit number")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{name} is not a string")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise invalid("filterServerList is not a list")
    return [_text(one, "filterServerList") for one in value]
