"""Released clients that repeat sends, and programs that send a message object again: what is stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from broker_adapter.client import Admin, Message, Producer, PullConsumer
from dledger.cli.local.local_cluster import LocalCluster

from . import faults, genuine, ours

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

_COUNT, _PAUSE_MS, _BEFORE = 500, 10, 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    genuine.require()
    with ours.cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module", params=["4.9.8", "5.5.0"])
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> genuine.Client:
    genuine.require()
    return genuine.java_client(request.param, tmp_path_factory.mktemp("java"), "Repeats")


def servers(cluster: LocalCluster) -> str:
    return cluster.plan.companions[0].address


async def _make(server: str, topic: str) -> None:
    async with Admin(server) as admin:
        await admin.create_topic(topic, queues=4)


async def _stored(server: str, topic: str) -> Counter[str]:
    found = Counter[str]()
    async with PullConsumer("readers", server) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                found.update(message.body.decode() for message in pulled.messages)
                offset = pulled.next_offset
    return found


def stored(cluster: LocalCluster, topic: str) -> Counter[str]:
    """How often each body is in the queues of a topic."""
    return asyncio.run(_stored(servers(cluster), topic))


def topic_for(cluster: LocalCluster, client: genuine.Client, what: str) -> str:
    topic = f"{what}{client.slug}"
    asyncio.run(_make(servers(cluster), topic))
    return topic


def through_a_killed_master(
    cluster: LocalCluster, client: genuine.Client, topic: str, *arguments: str
) -> list[str]:
    with client.begin(*arguments) as sending:
        sending.wait_for(f"sent {_BEFORE} ")
        sending.read_beside()
        faults.kill_master(cluster)
        return sending.finish()


def check_once(lines: list[str], found: Counter[str], *more: str) -> None:
    """Every acknowledged message is there once, and none twice."""
    sent = [line.split()[1] for line in lines if line.startswith("sent ")]
    assert len(sent) > _COUNT // 2
    assert {body for body, times in found.items() if times != 1} == set()
    assert {body + end for body in sent for end in ("", *more)} <= set(found)


def test_a_java_program_that_sends_one_object_again(cluster: LocalCluster, java: genuine.Client) -> None:
    topic = topic_for(cluster, java, "objects")
    said = java.run("objects", servers(cluster), topic)
    assert said.count("filled SEND_OK") == said.count("same SEND_OK") == 3
    assert stored(cluster, topic) == {"filled0": 1, "filled1": 1, "filled2": 1, "same": 1}


def test_a_java_program_that_sends_what_it_consumes(cluster: LocalCluster, java: genuine.Client) -> None:
    topic = topic_for(cluster, java, "resend")
    said = java.run("resend", servers(cluster), topic, f"resend{java.slug}")
    assert said.count("resent SEND_OK") == 3
    assert stored(cluster, topic) == {"origin": 4}


def test_a_java_program_that_begins_a_transaction_again(cluster: LocalCluster, java: genuine.Client) -> None:
    topic = topic_for(cluster, java, "transaction")
    said = java.run("transaction", servers(cluster), topic)
    assert said.count("half COMMIT_MESSAGE") == 1

    async def committed() -> bool:
        return await _stored(servers(cluster), topic) == {"half": 1}

    asyncio.run(genuine.eventually(committed))


@pytest.mark.parametrize("how", ["sync", "async", "traced", "batch"])
def test_a_java_client_whose_master_is_killed(cluster: LocalCluster, java: genuine.Client, how: str) -> None:
    topic = topic_for(cluster, java, how)
    lines = through_a_killed_master(
        cluster, java, topic, "stream", servers(cluster), topic, str(_COUNT), str(_PAUSE_MS), how
    )
    (tries,) = [int(line.split()[1]) for line in lines if line.startswith("tries ")]
    print(f"\n| {java.name} | {how} | {_COUNT} sends | {tries} tries |")
    check_once(lines, stored(cluster, topic), *(["b"] if how == "batch" else []))


def test_a_go_client_whose_master_is_killed(
    cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It writes tag and keys in any order."""
    client = genuine.go_client(tmp_path_factory.mktemp("go"))
    topic = topic_for(cluster, client, "go")
    lines = through_a_killed_master(
        cluster, client, topic, "send", servers(cluster), topic, str(_COUNT), str(_PAUSE_MS)
    )
    check_once(lines, stored(cluster, topic))


@pytest.mark.parametrize("is_batch", [False, True])
def test_our_client_whose_master_is_killed(cluster: LocalCluster, is_batch: bool) -> None:
    topic, server, lines = f"ours{is_batch}", servers(cluster), list[str]()
    asyncio.run(_make(server, topic))

    async def send(producer: Producer, number: int) -> None:
        messages = [Message(topic, str(number).encode()), Message(topic, f"{number}b".encode())]
        if is_batch:
            await producer.send_batch(messages, timeout=20)
        else:
            await producer.send(messages[0], timeout=20)
        lines.append(f"sent {number} SEND_OK")

    async def run() -> None:
        async with Producer("producers", server) as producer:
            killing: asyncio.Future[None] | None = None
            for number in range(_COUNT):
                if number == _BEFORE:
                    killing = asyncio.ensure_future(asyncio.to_thread(faults.kill_master, cluster))
                await send(producer, number)
                await genuine.pace(_PAUSE_MS / 1000)
            assert killing is not None
            await killing

    asyncio.run(run())
    check_once(lines, stored(cluster, topic), *(["b"] if is_batch else []))
