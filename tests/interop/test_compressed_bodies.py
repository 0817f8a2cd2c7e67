"""Bodies that RocketMQ's Java clients compress are read by ours, and the reverse, at a broker of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from broker_adapter.client import (
    Admin,
    ClientOptions,
    CompressionType,
    ConsumeFromWhere,
    Message,
    Producer,
    PullConsumer,
)
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.v4.asker import LISTEN

from . import genuine
from .test_java_clients import java

__all__ = ["java"]

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

#: Below and above the blocks of LZ4 (64 KiB, 256 KiB), and many buffers of the Java readers.
SIZES = (4096, 100_000, 1_000_000)


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[tuple[str, BrokerProgram]]:
    """Address of a NameServer, and its broker."""
    async with (
        name_server(tmp_path / "names") as server,
        brokers(tmp_path / "nodes", 1, {**LISTEN, "namesrv": [server.address]}) as cluster,
    ):
        yield server.address, await cluster.master()


@pytest.mark.parametrize("method", CompressionType)
async def test_each_reads_what_the_other_has_compressed(
    names: tuple[str, BrokerProgram], java: genuine.Client, method: CompressionType
) -> None:
    address, program = names
    async with Admin(address) as admin:
        for topic in ("from-java", "from-python"):
            await admin.create_topic(topic, queues=1)

    sizes = ",".join(map(str, SIZES))
    lines = await asyncio.to_thread(java.run, "compressed", address, "from-java", method.name, sizes)
    said = [line.split() for line in lines if line.startswith("body")]
    assert [words[2] for words in said] == ["SEND_OK"] * len(SIZES)
    sums = [words[1] for words in said]
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    bodies: list[bytes] = []
    async with PullConsumer("python", address, consume_from=first) as consumer:
        consumer.assign(await consumer.queues("from-java"))
        async with asyncio.timeout(60):
            while len(bodies) < len(SIZES):
                bodies += [message.body for message in await consumer.poll()]
    assert [f"{len(body)}:{crc32(body)}" for body in bodies] == sums

    options = ClientOptions(timeout=60.0, compress_type=method)
    sent = [bytes(size // 2) + Random(size).randbytes(size // 2) for size in SIZES]
    async with Producer("python", address, options=options) as producer:
        for body in sent:
            await producer.send(Message("from-python", body))
    lines = await asyncio.to_thread(java.run, "bodies", address, "from-python", "java", str(len(SIZES)))
    read = {line.split()[1] for line in lines if line.startswith("body")}
    assert read == {f"{len(body)}:{crc32(body)}" for body in sent}

    for topic in ("from-java", "from-python"):
        for offset, size in enumerate(SIZES):
            pulled = await program.broker.pull(topic, 0, offset, max_messages=1, max_bytes=4 << 20)
            record = decode(pulled.records[0])
            assert record.sys_flag == method.sys_flag and len(record.body) < size
