"""Requests of the remoting protocol, valid or nearly so: each code that somebody answers, with its fields."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from random import Random

from broker_adapter.errors import FrameRefused
from broker_adapter.namesrv.remoting_bodies import DataVersion, encode_register_body
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import HeaderForm, RemotingCommand, encode
from broker_adapter.wire.properties import join_properties
from tests.broker_adapter.namesrv.helpers import ORDERS, PAYMENTS
from tests.fuzz.mutation import NUMBERS, WORDS, mutated
from tests.fuzz.targets_remoting import with_lengths

_ODD = ("", " ", "-1", "x", "null", "true", "9" * 30, "%RETRY%g", "a" * 300, "\x01\x02", "\ud800", "1e9")
_NUMBERS = ("0", "1", "2", "32", "1700000000000")
_VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("topic", "b", "originTopic"), ("T", "T", "U", "%RETRY%g", "never-made", "TBW102")),
    **dict.fromkeys(("consumerGroup", "producerGroup", "group", "groupName", "a"), ("g", "h")),
    **dict.fromkeys(("queueId", "e"), ("0", "1", "3", "-1")),
    **dict.fromkeys(("k", "m", "batch", "order", "isForce", "compressed"), ("true", "false")),
    **dict.fromkeys(("defaultTopic", "c"), ("TBW102",)),
    **dict.fromkeys(("properties", "i"), tuple(map(join_properties, ({}, {"KEYS": "k", "TAGS": "a"})))),
    "subscription": ("*", "a || b", "a > 1 AND b IN ('x')"),
    "expressionType": ("TAG", "SQL92"),
    "suspendTimeoutMillis": ("0", "10"),
    "sysFlag": ("0", "4", "6", "2"),
    "clientID": ("client@1",),
    "brokerName": ("broker-a", "java-a"),
    "brokerAddr": ("10.0.0.1:10911", "10.0.0.2:10911"),
    "haServerAddr": ("10.0.0.1:10912",),
    "clusterName": ("main", "DefaultCluster"),
    "cluster": ("main", "DefaultCluster"),
    "brokerId": ("0", "1"),
    "namespace": ("ORDER_TOPIC_CONFIG", "n"),
    "key": ("k", "T"),
    "value": ("broker-a:4",),
    "attributes": ("", "+message.type=FIFO"),
    "transactionId": ("x", "7F00000100002A9F0000000000000000@T"),
    "commitOrRollback": ("8", "12", "0"),
}
_SEND = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "m")
_QUEUE = ("topic", "queueId")
_SEND_V1 = (*("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),)
_TOPIC = ("topic", "defaultTopic", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag", "order")
_PULL = (
    *("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset"),
    *("suspendTimeoutMillis", "subscription", "subVersion", "expressionType"),
)
_BROKER = ("brokerName", "brokerAddr", "clusterName", "brokerId", "haServerAddr")
#: Request codes of brokers, and the fields that they look at.
OF_BROKERS: dict[RequestCode, tuple[str, ...]] = {
    RequestCode.SEND_MESSAGE_V2: _SEND,
    RequestCode.SEND_BATCH_MESSAGE: _SEND,
    RequestCode.SEND_MESSAGE: (*_SEND_V1, "bornTimestamp", "flag", "properties", "reconsumeTimes", "batch"),
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.CONSUMER_SEND_MSG_BACK: ("offset", "group", "delayLevel", "originTopic", "maxReconsumeTimes"),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("consumerGroup", *_QUEUE, "commitOffset"),
    RequestCode.QUERY_CONSUMER_OFFSET: ("consumerGroup", *_QUEUE),
    RequestCode.END_TRANSACTION: ("producerGroup", "transactionId", "commitOrRollback", "msgId"),
    RequestCode.QUERY_MESSAGE: ("topic", "key", "maxNum", "beginTimestamp", "endTimestamp"),
    RequestCode.VIEW_MESSAGE_BY_ID: ("offset",),
    RequestCode.GET_MAX_OFFSET: _QUEUE,
    RequestCode.GET_MIN_OFFSET: _QUEUE,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (*_QUEUE, "timestamp"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _QUEUE,
    RequestCode.HEART_BEAT: (),
    RequestCode.CHECK_CLIENT_CONFIG: (),
    RequestCode.LOCK_BATCH_MQ: (),
    RequestCode.UNLOCK_BATCH_MQ: (),
    RequestCode.UNREGISTER_CLIENT: ("clientID", "producerGroup", "consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ("consumerGroup",),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (*_TOPIC, "attributes"),
    RequestCode.GET_ALL_TOPIC_CONFIG: (),
    RequestCode.GET_TOPIC_CONFIG: ("topic",),
    RequestCode.GET_TOPIC_STATS_INFO: ("topic",),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: ("group",),
    RequestCode.GET_CONSUME_STATS: ("consumerGroup", "topic"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: ("topic",),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ("topic", "group", "timestamp", "isForce"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ("consumerGroup",),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ("producerGroup",),
    RequestCode.GET_BROKER_CONFIG: (),
    RequestCode.GET_BROKER_RUNTIME_INFO: (),
    RequestCode.POP_MESSAGE: ("consumerGroup", *_QUEUE, "maxMsgNums", "invisibleTime", "pollTime"),
    RequestCode.ACK_MESSAGE: ("consumerGroup", *_QUEUE, "extraInfo", "offset"),
    RequestCode.PEEK_MESSAGE: ("consumerGroup", *_QUEUE, "maxMsgNums"),
    RequestCode.NOTIFICATION: ("consumerGroup", *_QUEUE, "pollTime"),
    RequestCode.POLLING_INFO: ("consumerGroup", *_QUEUE),
    RequestCode.BATCH_ACK_MESSAGE: (),
    RequestCode.SEND_REPLY_MESSAGE_V2: _SEND,
}
#: Likewise, of NameServers.
OF_NAME_SERVERS: dict[RequestCode, tuple[str, ...]] = {
    RequestCode.REGISTER_BROKER: (*_BROKER, "compressed", "bodyCrc32", "heartbeatTimeoutMillis"),
    RequestCode.UNREGISTER_BROKER: _BROKER,
    RequestCode.QUERY_DATA_VERSION: _BROKER,
    RequestCode.BROKER_HEARTBEAT: _BROKER,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: ("topic",),
    RequestCode.GET_BROKER_CLUSTER_INFO: (),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (),
    RequestCode.GET_TOPICS_BY_CLUSTER: ("cluster",),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: (),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ("brokerName",),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ("brokerName",),
    RequestCode.PUT_KV_CONFIG: ("namespace", "key", "value"),
    RequestCode.GET_KV_CONFIG: ("namespace", "key"),
    RequestCode.DELETE_KV_CONFIG: ("namespace", "key"),
    RequestCode.GET_KVLIST_BY_NAMESPACE: ("namespace",),
    RequestCode.GET_NAMESRV_CONFIG: (),
}
FIELDS = {**OF_BROKERS, **OF_NAME_SERVERS}
_CODES = tuple(FIELDS)


def request(rng: Random, opaque: int, codes: Sequence[RequestCode] = _CODES) -> RemotingCommand:
    """One that may be meant so, mostly. `codes`: those that the other end knows."""
    code = rng.choice(codes if rng.random() < 0.97 else _CODES)
    fields = {}
    for name in FIELDS[code]:
        if rng.random() < 0.97:
            fields[name] = rng.choice(_VALUES.get(name, _NUMBERS))
        if rng.random() < 0.04:
            fields[name] = rng.choice((*_ODD, str(rng.choice(NUMBERS)), rng.choice(WORDS)))
    number = int(code) if rng.random() < 0.98 else rng.choice((0, -1, 9999, 32_767, 32_768, 200_050))
    return RemotingCommand(
        number,
        fields,
        _body(rng, code),
        opaque,
        rng.choice((0,) * 40 + (1, 2, 3)),
        form=rng.choice(list(HeaderForm)),
    )


def frame(rng: Random, opaque: int, kept: tuple[bytes, ...], codes: Sequence[RequestCode]) -> bytes:
    """The bytes of one, changed or not; or what was kept, changed; or nonsense."""
    chance = rng.random()
    if chance < 0.01:
        return rng.randbytes(rng.choice((1, 8, 60, 400)))
    if chance < 0.05 and kept:
        data = rng.choice(kept)
    else:
        try:
            data = encode(request(rng, opaque, codes))
        except (FrameRefused, UnicodeEncodeError):
            return rng.randbytes(20)
    if rng.random() < 0.5:
        data = mutated(data, rng, text=rng.random() < 0.3, others=kept)
        if rng.random() < 0.97:
            data = with_lengths(data)
    return data


def _body(rng: Random, code: RequestCode) -> bytes:
    if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
        return rng.randbytes(rng.choice((1, 20, 300)))
    if code is RequestCode.SEND_BATCH_MESSAGE:
        return b"".join(_batched(rng) for _ in range(rng.randrange(4)))
    if code is RequestCode.REGISTER_BROKER:
        return encode_register_body([ORDERS, PAYMENTS][: rng.randrange(3)], DataVersion(0, 1, 1))
    if code is RequestCode.QUERY_DATA_VERSION:
        return json.dumps(DataVersion(0, 1, 1).to_json()).encode()
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 1}
    subscription = {"topic": "T", "subString": rng.choice(("*", "a")), "subVersion": 1}
    consumer = {"groupName": "g", "subscriptionDataSet": [subscription] * rng.randrange(3)}
    bodies = {
        RequestCode.HEART_BEAT: {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []},
        RequestCode.CHECK_CLIENT_CONFIG: {"clientId": "c", "group": "g", "subscriptionData": subscription},
        RequestCode.LOCK_BATCH_MQ: {"clientId": "c", "consumerGroup": "g", "mqSet": [queue]},
        RequestCode.UNLOCK_BATCH_MQ: {"clientId": "c", "consumerGroup": "g", "mqSet": [queue]},
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "h", "retryMaxTimes": 3},
    }
    return json.dumps(bodies[code]).encode() if code in bodies else b""


def _batched(rng: Random) -> bytes:
    body, properties = rng.randbytes(rng.randrange(20)), b"a\x01b\x02" * rng.randrange(3)
    head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 1, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties
