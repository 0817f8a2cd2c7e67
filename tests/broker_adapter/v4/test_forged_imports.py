"""Records of an import (request 910002) that no broker would have stored: refused, or applied everywhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from broker_adapter.errors import BrokerError, ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, encode
from tests.broker_adapter.cluster import BrokerCluster, brokers, in_step
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking
from tests.broker_adapter.v4.test_remoting_consumers import beat, pull, records

_ROUNDS = 150
_I8, _I4 = (1 << 63) - 1, (1 << 31) - 1
_V6 = Host(bytes(15) + b"\1", 1)
_CHOICES: dict[str, tuple[object, ...]] = {
    "topic": (
        "t",
        "t",
        "t",
        "%RETRY%g",
        "%DLQ%g",
        "SCHEDULE_TOPIC_XXXX",
        "DLEDGER_SYS_METADATA",
        "gone",
        "\0",
        "",
    ),
    "queue_id": (0, 0, 0, 1, 3, 4, _I4),
    "queue_offset": (0, 1, _I8 - 1, _I8),
    "flag": (0, -1 - _I4, _I4),
    "sys_flag": (0, 1, 4, 8, 12, 0x40, _I4, -1, 1 << 30),
    "born_timestamp": (0, -1, _I8, -1 - _I8),
    "store_timestamp": (0, 1, -1, _I8, -1 - _I8, 1 << 41, 1 << 53),
    "reconsume_times": (0, -1, _I4, -1 - _I4),
    "prepared_transaction_offset": (0, -1, _I8),
    "physical_offset": (0, _I8),
    "born_host": (Host(bytes(4), 0), Host(b"\xff" * 4, 65_535), _V6),
    "store_host": (Host(bytes(4), 0), _V6),
    "body": (b"", b"x", bytes(60_000)),
    "properties": (
        "",
        "KEYS\1a b c\2UNIQ_KEY\1u\2",
        "KEYS\1" + " ".join(map(str, range(4_000))) + "\2",
        "TAGS\1" + "x" * 30_000 + "\2",
        "\1\2\1\2",
        "KEYS\1\2UNIQ_KEY\1\2TAGS\1\2",
        "DELAY\0019\2TIMER_DELIVER_MS\19999999999999999999999\2",
        "__SHARDINGKEY\1s\2RECONSUME_TIME\19999999999\2TRAN_MSG\1true\2PGROUP\1p\2",
        "INNER_NUM\1-1\2WAIT\1?\2INNER_BASE\1x\2",
        "a\2b\1c",
    ),
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 3, LISTEN) as cluster:
        await cluster.master()
        yield cluster


def forged(rng: Random, offset: int) -> bytes:
    """A record with one or two odd fields, the next one of queue 0 of topic t otherwise; sometimes with a bit
    that is not what it was."""
    odd = {name: rng.choice(_CHOICES[name]) for name in rng.sample(sorted(_CHOICES), rng.randint(1, 2))}
    message = MessageRecord("t", b"body", queue_offset=offset)._replace(**odd)  # type: ignore[arg-type]
    try:
        record = encode(message)
    except BrokerError:
        return b""
    if rng.random() < 0.2:
        record[rng.randrange(len(record))] ^= 1 << rng.randrange(8)
    return bytes(record)


async def next_offset(asker: Asker) -> int:
    return int((await asker.get(RequestCode.GET_MAX_OFFSET, topic="t", queueId=0))["offset"])


@pytest.mark.slow
async def test_no_forged_record_stops_a_node_or_is_set_aside(cluster: BrokerCluster) -> None:
    rng = Random(7)
    stored = refused = 0
    async with asking((await cluster.master()).remoting.address) as asker:
        fields = {"topic": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        await asker.get(RequestCode.HEART_BEAT, beat("c1", "g", "t"))
        for _ in range(_ROUNDS):
            offset = await next_offset(asker)
            several = [forged(rng, offset + n) for n in range(rng.choice((1, 1, 1, 3)))]
            answer = await asker.ask(RequestCode.IMPORT_MESSAGES, b"".join(several))
            if answer.code == ResponseCode.SUCCESS:
                stored += 1
            else:
                refused += 1
                assert answer.remark and answer.remark.split()[0].isdecimal(), answer
        assert stored > 10 and refused > 10, (stored, refused)
        # What was stored can be read, looked for by time and key, and goes on.
        end = int((await asker.send("t", b"last", 0))["queueOffset"])
        at = 0
        while at <= end:
            found = await pull(asker, "t", at)
            assert found.code == ResponseCode.SUCCESS, found
            assert records(found.body)
            at = int(found.fields["nextBeginOffset"])
        for when in (0, 1 << 41, _I8):
            await asker.get(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="t", queueId=0, timestamp=when)
        await asker.ask(
            RequestCode.QUERY_MESSAGE, topic="t", key="a", maxNum=32, beginTimestamp=0, endTimestamp=_I8
        )
        await asker.get(RequestCode.GET_TOPIC_STATS_INFO, topic="t")
    programs = list(cluster.programs.values())
    await in_step(*programs)
    for program in programs:
        assert program.dispatcher.figures().set_aside.number == 0, program.dispatcher.figures()


async def test_queues_begin_within_reason(cluster: BrokerCluster) -> None:
    """The next message of a queue that begins at the last offset of all could have none."""
    async with asking((await cluster.master()).remoting.address) as asker:
        fields = {"topic": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        await asker.get(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
        for queue_id, offset in ((0, _I8), (0, -1), (4, 1), (-1, 1), (0, 1 << 62)):
            answer = await asker.ask(RequestCode.BEGIN_QUEUE, topic="t", queueId=queue_id, offset=offset)
            assert answer.code != ResponseCode.SUCCESS, json.dumps([queue_id, offset])
        sent = await asker.send("t", b"first", 0)
        assert sent["queueOffset"] == "0"
