"""Frames of the remoting protocol, and what its client reads."""

from __future__ import annotations

import json
import struct
from random import Random

from broker_adapter.client.core.admin_bodies import (
    parse_consume_stats,
    parse_groups,
    parse_offset_table,
    parse_runtime,
    parse_topic,
    parse_topic_stats,
    parse_topics,
)
from broker_adapter.client.core.route_data import (
    parse_body,
    parse_clusters,
    parse_route,
    parse_topic_list,
)
from broker_adapter.client.core.values import decode_one, first_messages
from broker_adapter.client.group_requests import parse_locked, parse_members
from broker_adapter.endpoints.v4.bodies import heartbeat, lock_request, parse
from broker_adapter.endpoints.v4.sends import batch_of
from broker_adapter.errors import FrameRefused, IllegalMessage, StoredDataDamaged
from broker_adapter.log.classic.tables import delays_of, groups_of, offsets_of, parse_table, topics_of
from broker_adapter.namesrv.client import parse_cluster_info
from broker_adapter.namesrv.remoting_bodies import cluster_info
from broker_adapter.namesrv.values import BrokerEntry, ClusterInfo
from broker_adapter.remoting.codes import Language
from broker_adapter.remoting.command import HeaderForm, RemotingCommand, decode, encode
from broker_adapter.remoting.connection import FrameReader
from broker_adapter.wire.compression import CompressionType, compressor_of, decompress
from broker_adapter.wire.message import MessageRecord
from broker_adapter.wire.message import encode as encode_record
from broker_adapter.wire.properties import join_properties
from broker_adapter.wire.sys_flag import COMPRESSED
from tests.broker_adapter.client.scripted import decode_messages
from tests.fuzz.target import Target


def _frame(rng: Random) -> bytes:
    return encode(
        RemotingCommand(
            rng.choice((10, 34, 105, 310)),
            {f"k{i}": rng.choice(("", "1", "true", "Ä\x01\x02")) for i in range(rng.randrange(4))},
            rng.randbytes(rng.randrange(40)),
            opaque=rng.randrange(1 << 31),
            flag=rng.randrange(4),
            remark=rng.choice((None, "no")),
            language=rng.choice(list(Language)),
            form=rng.choice(list(HeaderForm)),
        )
    )


def with_lengths(data: bytes) -> bytes:
    """The frame's own, and its header's if that is longer than the frame."""
    if len(data) < 8:
        return data
    mark = int.from_bytes(data[4:8])
    length = min(mark & 0xFFFFFF, len(data) - 8)
    return struct.pack(">iI", len(data) - 4, (mark & 0xFF000000) | length) + data[8:]


def _read(data: bytes) -> None:
    """Twice: what is behind a frame is one, too."""
    reader = FrameReader()
    reader.feed(data + data)
    for _ in range(2):
        command = reader.next()
        if command is None:
            raise FrameRefused("it is not complete")
        encode(command)


def _broker(rng: Random) -> dict[str, object]:
    return {
        "brokerName": rng.choice("ab"),
        "cluster": "main",
        "brokerAddrs": {str(number): f"10.0.0.{number}:10911" for number in range(rng.randrange(3))},
    }


def _bare_keys(found: object) -> bytes:
    """As fastjson writes numeric keys."""
    text = json.dumps(found)
    for number in range(3):
        text = text.replace(f'"{number}":', f"{number}:")
    return text.encode()


def _route(rng: Random) -> bytes:
    queues = {"brokerName": "a", "readQueueNums": rng.randrange(5), "writeQueueNums": 4, "perm": 6}
    order = rng.choice(("", "a:4;b:2"))
    return _bare_keys({"brokerDatas": [_broker(rng)], "queueDatas": [queues], "orderTopicConf": order})


def _use_route(data: bytes) -> None:
    route = parse_route(data)
    route.publish_queues("t")
    route.subscribe_queues("t")


def _name_server(rng: Random) -> bytes:
    entry = BrokerEntry(
        "c", "b", "n1", rng.randrange(3), "SLAVE", "h:1", "", rng.randrange(9), 1, 2, 3, True, ""
    )
    info = ClusterInfo("0.1", 1, 2, [entry] * rng.randrange(3), 4, 5, 6, 7, ["b"], {"route": 8})
    return cluster_info(info.brokers, {}, info)


def _clusters(rng: Random) -> bytes:
    brokers = [_broker(rng) for _ in range(rng.randrange(3))]
    table = {str(broker["brokerName"]): broker for broker in brokers}
    return _bare_keys({"brokerAddrTable": table, "clusterAddrTable": {"main": list(table)}})


def _records(rng: Random) -> bytes:
    text = join_properties({"UNIQ_KEY": "K", "TAGS": "a"})
    plain = MessageRecord("t", rng.randbytes(rng.randrange(1, 9)), text)
    method = rng.choice(list(CompressionType))
    body = compressor_of(method)(bytes(rng.randrange(99)))
    packed = MessageRecord("t", body, text, sys_flag=method.sys_flag)
    return b"".join(bytes(encode_record(one)) for one in rng.choices((plain, packed), k=2))


_MOST_INFLATED = 1 << 16


def _compressed(rng: Random) -> bytes:
    """The number of the compression and a body."""
    method = rng.choice(list(CompressionType))
    return bytes([method]) + compressor_of(method)(rng.randbytes(30) * rng.randrange(1, 30))


def _use_compressed(data: bytes) -> None:
    flag = COMPRESSED | (data[0] % 8 << 8) if data else 0
    assert len(decompress(data[1:], flag, _MOST_INFLATED)) <= _MOST_INFLATED


def _use_messages(data: bytes) -> None:
    decode_one(data, "a")
    for one in decode_messages(data, "a"):
        assert one.message_id and one.tags is not None and one.keys is not None


def _locked(rng: Random) -> bytes:
    queues = [{"topic": "t", "brokerName": "a", "queueId": number} for number in range(rng.randrange(4))]
    return json.dumps({"lockOKMQSet": queues}).encode()


def _members(rng: Random) -> bytes:
    return json.dumps({"consumerIdList": [f"c{number}" for number in range(rng.randrange(4))]}).encode()


def _notice(rng: Random) -> bytes:
    return json.dumps({"topicList": [f"t{number}" for number in range(rng.randrange(4))]}).encode()


def _body(rng: Random) -> bytes:
    """Of a heartbeat that asks for locks, too: a batch of messages behind a byte that says so."""
    if rng.random() < 0.3:
        items = []
        for _ in range(rng.randrange(1, 4)):
            body, properties = rng.randbytes(rng.randrange(20)), b"a\x01b\x02" * rng.randrange(3)
            size = 22 + len(body) + len(properties)
            items.append(struct.pack(">iiiii", size, 0, 0, 1, len(body)) + body)
            items.append(struct.pack(">h", len(properties)) + properties)
        return b"\0" + b"".join(items)
    subscription = {
        "topic": "t",
        "subString": rng.choice(("*", "a || b")),
        "subVersion": rng.choice((1, "2")),
    }
    consumer = {"groupName": "g", "consumeType": rng.choice((1, "CONSUME_POP"))}
    consumer["subscriptionDataSet"] = [subscription] * rng.randrange(3)
    said = {
        "clientID": "c",
        "clientId": "c",
        "consumerGroup": "g",
        "consumerDataSet": [consumer] * rng.randrange(3),
        "producerDataSet": [{"groupName": "p"}],
        "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 1}],
    }
    return json.dumps(said).encode()


def _read_body(data: bytes) -> None:
    if data[:1] == b"\0":
        batch_of({}, data[1:], 1 << 20)
    else:
        heartbeat(data)
        lock_request(data)


def _admin(rng: Random) -> bytes:
    """A letter that says what it is the answer to, and the answer."""
    queue = b'{"brokerName":"a","queueId":%d,"topic":"t"}' % rng.randrange(9)
    match rng.randrange(6):
        case 0:
            told = b'{"lastUpdateTimestamp":1,"maxOffset":%d,"minOffset":0}' % rng.randrange(99)
            return b's{"offsetTable":{' + queue + b":" + told + b"}}"
        case 1:
            told = b'{"brokerOffset":9,"consumerOffset":%d,"lastTimestamp":1}' % rng.randrange(9)
            return (
                b'c{"consumeTps":0.0,"offsetTable":{'
                + queue
                + b":"
                + told
                + b","
                + queue
                + b":"
                + told
                + b"}}"
            )
        case 2:
            config = {"topicName": "t", "readQueueNums": 4, "writeQueueNums": rng.randrange(9), "perm": 6}
            return b"t" + json.dumps({"topicConfigTable": {"t": config}}).encode()
        case 3:
            config = {"topicName": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
            return b"1" + json.dumps(config).encode()
        case 4:
            rows = {"dispatchBehindBytes": str(rng.randrange(99)), "bootTimestamp": 1}
            return b"r" + json.dumps({"table": rows}).encode()
    group = {"groupName": "g", "retryMaxTimes": rng.randrange(9), "consumeEnable": True}
    return b"g" + json.dumps({"subscriptionGroupTable": {"g": group}}).encode()


def _read_admin(data: bytes) -> None:
    parsers = {
        b"s": parse_topic_stats,
        b"c": parse_consume_stats,
        b"t": parse_topics,
        b"1": parse_topic,
        b"r": parse_runtime,
    }
    parsers.get(data[:1], parse_groups)(data[1:])


def _table(rng: Random) -> bytes:
    number = str(rng.randrange(1 << 40))
    table = {
        "dataVersion": {"counter": 1, "timestamp": 2},
        "topicConfigTable": {"t": {"topicName": "t", "perm": 6, "attributes": {"message.type": "FIFO"}}},
        "subscriptionGroupTable": {"g": {"groupName": "g", "retryMaxTimes": rng.randrange(9)}},
    }
    bare = '"offsetTable":{' + rng.choice(('"t@g":{0:' + number + ",1:7}}", "1:" + number + "}")) + "}"
    return json.dumps(table)[:-1].encode() + b"," + bare.encode()


def _use_table(data: bytes) -> None:
    table = parse_table(data)
    topics_of(table)
    groups_of(table)
    if "@" in str(table.get("offsetTable")):
        offsets_of(table)
    else:
        delays_of(table)


TARGETS = (
    Target(
        "classic-tables",
        _table,
        _use_table,
        (parse_table, topics_of, groups_of, offsets_of, delays_of),
        (StoredDataDamaged,),
        text=True,
    ),
    Target("remoting-body", _body, _read_body, (parse, heartbeat, lock_request, batch_of), (IllegalMessage,)),
    Target("remoting-frame", _frame, _read, (decode, FrameReader.next), (FrameRefused,), with_lengths),
    Target("client-route", _route, _use_route, (parse_route, parse_body), (FrameRefused,), text=True),
    Target("client-clusters", _clusters, parse_clusters, (parse_clusters,), (FrameRefused,), text=True),
    Target(
        "client-name-server",
        _name_server,
        parse_cluster_info,
        (parse_cluster_info,),
        (FrameRefused,),
        text=True,
    ),
    Target("client-locks", _locked, parse_locked, (parse_locked,), (FrameRefused,), text=True),
    Target("client-notice", _notice, parse_topic_list, (parse_topic_list,), (FrameRefused,), text=True),
    Target("client-members", _members, parse_members, (parse_members,), (FrameRefused,), text=True),
    Target(
        "client-admin",
        _admin,
        _read_admin,
        (
            parse_offset_table,
            parse_topic_stats,
            parse_consume_stats,
            parse_topics,
            parse_topic,
            parse_groups,
            parse_runtime,
        ),
        (FrameRefused,),
        text=True,
    ),
    Target("compressed-body", _compressed, _use_compressed, (decompress,), (StoredDataDamaged,)),
    Target("client-messages", _records, _use_messages, (first_messages, decode_one), (StoredDataDamaged,)),
)
