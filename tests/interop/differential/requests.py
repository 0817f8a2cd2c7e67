"""Requests as RocketMQ's Java client writes them, with the fields of its request headers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from broker_adapter.client.core.requests import batch_body
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.properties import join_properties

PRODUCERS = "producers"
#: Bits of a pull's sysFlag: the request carries its subscription.
_SUBSCRIPTION = 4
_FOREVER_MS = 1 << 50


def request(code: RequestCode, **fields: object) -> RemotingCommand:
    """Without a body; see `request_with`."""
    return request_with(code, b"", fields)


def request_with(code: RequestCode, body: bytes, fields: Mapping[str, object]) -> RemotingCommand:
    """Booleans become Java's words; None leaves the field out."""
    texts = {}
    for name, value in fields.items():
        if value is not None:
            texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return RemotingCommand(code, texts, body)


def send(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: Mapping[str, str],
    *,
    group: str = PRODUCERS,
    born_ms: int,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
    is_batch: bool = False,
) -> RemotingCommand:
    """SEND_MESSAGE_V2, or SEND_BATCH_MESSAGE with a body of `batch_of`."""
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    command = request(
        code,
        a=group,
        b=topic,
        c="TBW102",
        d=4,
        e=queue_id,
        f=sys_flag,
        g=born_ms,
        h=flag,
        i=join_properties(properties),
        j=reconsume_times,
        k=False,
        l=max_reconsume_times,
        m=is_batch,
    )
    command.body = body
    return command


def batch_of(messages: Sequence[tuple[bytes, Mapping[str, str], int]]) -> bytes:
    """(body, properties, flag) of each message."""
    return batch_body(messages)


def pull(
    group: str, topic: str, queue_id: int, offset: int, count: int, expression: str = "*", kind: str = "TAG"
) -> RemotingCommand:
    """A pull that does not wait for messages."""
    return request(
        RequestCode.PULL_MESSAGE,
        consumerGroup=group,
        topic=topic,
        queueId=queue_id,
        queueOffset=offset,
        maxMsgNums=count,
        sysFlag=_SUBSCRIPTION,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription=expression,
        expressionType=kind,
        subVersion=1,
    )


def of_queue(code: RequestCode, topic: str, queue_id: int, **more: object) -> RemotingCommand:
    return request(code, topic=topic, queueId=queue_id, **more)


def query(topic: str, key: str, count: int, *, is_unique: bool) -> RemotingCommand:
    """QUERY_MESSAGE over all times."""
    return request(
        RequestCode.QUERY_MESSAGE,
        topic=topic,
        key=key,
        maxNum=count,
        beginTimestamp=0,
        endTimestamp=_FOREVER_MS,
        _UNIQUE_KEY_QUERY=is_unique,
    )


def put_topic(
    topic: str, read_queues: int, write_queues: int, perm: int, attributes: str, order: bool
) -> RemotingCommand:
    return request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=read_queues,
        writeQueueNums=write_queues,
        perm=perm,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=order,
        attributes=attributes or None,
    )


def put_group(group: str, settings: Mapping[str, object]) -> RemotingCommand:
    """`settings`: fields of RocketMQ's SubscriptionGroupConfig."""
    body = json.dumps({"groupName": group, **settings}).encode()
    return request_with(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body, {})


def producer_heartbeat(client_id: str, group: str) -> RemotingCommand:
    body = {"clientID": client_id, "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
    return request_with(RequestCode.HEART_BEAT, json.dumps(body).encode(), {})


def end_transaction(
    topic: str,
    fields: Mapping[str, object],
    resolution: int,
    *,
    from_check: bool,
    is_oneway: bool,
) -> RemotingCommand:
    """`fields`: places and ids, from the answer to the half or from a check. RocketMQ does not answer
    UNKNOWN."""
    command = request(
        RequestCode.END_TRANSACTION,
        topic=topic,
        producerGroup=PRODUCERS,
        commitOrRollback=resolution,
        fromTransactionCheck=from_check,
        **fields,
    )
    return RemotingCommand.oneway(command.code, command.fields) if is_oneway else command
