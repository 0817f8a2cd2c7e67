"""What producers and consumers of released clients write down, with clients that are made up here."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from broker_adapter.wire.java_hash import java_hash
from chaos.trace.outcomes import ClientError
from chaos.workloads.released.consumers import GROUPS, ReleasedGroup, ReleasedMember
from chaos.workloads.released.process import ClientDied, ClientProcess
from chaos.workloads.released.topics import PredictableTopics
from chaos.workloads.released.workload import PushMember, ReleasedProducer, TransactionOutcomes
from chaos.workloads.spec import LoadSpec
from tests.chaos.workloads.load_world import World

TOPICS = PredictableTopics.of(2, 3)
SHARED, IN_ORDER, TAGGED = GROUPS


class MadeUpClient:
    """Stands for ClientProcess. Has `messages` to be received, three at a time, and fails as it is told."""

    def __init__(self, messages: int = 0) -> None:
        self.messages = messages
        self.asked: Counter[str] = Counter()
        self.fails: dict[str, Callable[[int], Exception | None]] = {}
        self.sent: list[dict[str, Any]] = []
        self.held: set[int] = set()
        self.is_killed = False
        self.received_ns = 0
        self.none_left = asyncio.Event()

    async def start(self) -> None:
        return

    def kill(self) -> None:
        self.is_killed = True

    async def wait(self) -> None:
        return

    async def request(self, do: str, **fields: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.asked[do] += 1
        if error := self.fails.get(do, lambda number: None)(self.asked[do]):
            raise error
        if do == "send":
            self.sent.append(fields)
            return {"offset": len(self.sent), "message_id": "id"}
        if do in ("receive", "take"):
            return {"messages": self._received()}
        if do in ("ack", "forget", "settle"):
            self.held.remove(fields["handle"])
        return {}

    def _received(self) -> list[dict[str, Any]]:
        count = min(3, self.messages)
        self.messages -= count
        if not count:
            self.none_left.set()
        handles = range(100 * self.asked["receive"], 100 * self.asked["receive"] + count)
        self.held |= set(handles)
        return [
            {
                "handle": handle,
                "topic": "normal-0",
                "q": 0,
                "qoff": handle,
                "attempt": 1,
                "tag": "a",
                "keys": "k",
                "body": b64encode(b"%d x" % handle).decode(),
                "received_ns": self.received_ns,
            }
            for handle in handles
        ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, LoadSpec(max_bytes=20))


def unavailable(number: int) -> Exception | None:
    return ClientError("InternalErrorException", 50002, "701 no master") if number % 3 == 0 else None


async def test_a_producer_says_in_which_queue_a_message_has_to_be(world: World) -> None:
    client = MadeUpClient()
    client.fails["send"] = unavailable
    made = cast("ClientProcess", client)
    producer = ReleasedProducer(world.setting, made, "p0", Random(2), TOPICS, no_transactions(world))
    await producer.start()
    step = producer.worker()
    worked = [await step() for _ in range(60)]
    ops = [line for line in world.lines() if line["ev"] == "op"]
    invoked = {line["op"]: line for line in ops if line["type"] == "invoke"}
    assert len(invoked) == 60 and Counter(line["type"] for line in ops if line["op"] in invoked) == {
        "invoke": 60,
        "ok": 40,
        "info": 20,
    }, "a refusal says nothing of what the client had tried before"
    assert worked.count(True) == 40
    for sent in client.sent:
        mid = int(b64decode(sent["body"]).partition(b" ")[0])
        [line] = [line for line in invoked.values() if line["mid"] == mid]
        group = sent["message_group"]
        assert (line["topic"], line["tag"]) == (sent["topic"], sent["tag"])
        assert (line["topic"] == "fifo") == bool(group)
        assert line["q"] == (java_hash(group) % 3 if group else 0)
    assert {line["q"] for line in invoked.values() if line["topic"] == "fifo"} == {0, 1, 2}


def no_transactions(world: World) -> TransactionOutcomes:
    return TransactionOutcomes(world.setting.tally)


def member(
    world: World, client: MadeUpClient, stop: asyncio.Event, kind: type[ReleasedMember] = ReleasedMember
) -> ReleasedMember:
    group = ReleasedGroup(SHARED, world.setting, TOPICS, lambda name: cast("ClientProcess", client))
    writer, numbers = world.setting.client("shared-0")
    made = cast("ClientProcess", client)
    return kind("shared-0.0", group, made, writer, numbers, world.setting.tally, Random(3), stop)


async def consume(one: ReleasedMember, client: MadeUpClient) -> None:
    over = asyncio.Event()
    consuming = asyncio.create_task(one.consume(over))
    await client.none_left.wait()
    over.set()
    await consuming


async def test_a_member_is_through_with_a_message_before_it_acknowledges_it(world: World) -> None:
    client, stop = MadeUpClient(300), asyncio.Event()
    client.fails["ack"] = unavailable
    one = member(world, client, stop)
    assert await one.join()
    await consume(one, client)
    assert await one.leave()
    lines = world.lines()
    given = [line["mid"] for line in lines if line["ev"] == "dlv"]
    done = {
        code: [e["mid"] for e in lines if e["ev"] == "done" and e["code"] == code] for code in ("ok", "retry")
    }
    assert len(given) == 300 and sorted(done["ok"] + done["retry"]) == sorted(given)
    acks = [line for line in lines if line.get("f") == "ack"]
    assert [line["mid"] for line in acks if line["type"] == "invoke"] == done["ok"]
    assert {line["type"] for line in acks} == {"invoke", "ok", "fail"}
    back = [line["mid"] for line in lines if line.get("f") == "change_invisible" and "mid" in line]
    assert back and set(back) < set(done["retry"]), "some are given back, others left to their time"
    assert client.asked["forget"] == len(done["retry"])
    events = [line["e"] for line in lines if line["ev"] == "member"]
    assert events == ["join", "join", "leave"]


async def test_in_the_end_nothing_is_left_alone(world: World) -> None:
    client, stop = MadeUpClient(300), asyncio.Event()
    stop.set()
    await consume(member(world, client, stop), client)
    assert not [line for line in world.lines() if line["ev"] == "done" and line["code"] != "ok"]
    assert client.asked["ack"] == 300 and not client.held


async def test_a_receive_that_fails_is_followed_by_another_one(world: World) -> None:
    client = MadeUpClient(9)
    client.fails["receive"] = unavailable
    await consume(member(world, client, asyncio.Event()), client)
    receives = [line for line in world.lines() if line.get("f") == "receive"]
    begun = Counter(line["op"] for line in receives if line["type"] == "invoke")
    assert begun == Counter(line["op"] for line in receives if line["type"] != "invoke")
    assert {line["type"] for line in receives} == {"invoke", "ok", "fail"}


async def test_a_client_that_dies_by_itself_ends_the_load(world: World) -> None:
    client = MadeUpClient(9)
    client.fails["ack"] = lambda number: ClientDied("gone") if number == 2 else None
    with pytest.raises(BaseExceptionGroup) as several:
        await member(world, client, asyncio.Event()).consume(asyncio.Event())
    assert several.group_contains(ClientDied)


async def test_members_leave_crash_and_stay_to_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who crashes says no more, and its process is gone; who stays does not leave."""
    monkeypatch.setattr("chaos.workloads.released.consumers._LIFE_S", (0.0, 0.0))
    clients: list[MadeUpClient] = []
    stop, drained, enough = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def new_client(name: str) -> ClientProcess:
        clients.append(MadeUpClient(5))
        if len(clients) == 4:
            stop.set()
            enough.set()
        return cast("ClientProcess", clients[-1])

    group = ReleasedGroup(IN_ORDER, world.setting, TOPICS, new_client)
    living = asyncio.create_task(group.live(0, stop, drained))
    await enough.wait()
    await clients[-1].none_left.wait()
    drained.set()
    await living
    assert [client.is_killed for client in clients] == [True, True, True, False]
    lines = world.lines()
    last: dict[str, str] = {}
    for line in lines:
        if "consumer" in line:
            assert last.get(line["consumer"]) not in ("crash", "leave"), "nobody writes after the end"
            last[line["consumer"]] = line.get("e", line["ev"])
    ends = Counter(last.values())
    assert ends["crash"] == 3 and last[list(last)[-1]] not in ("crash", "leave")
    joins = [line for line in lines if line.get("e") == "join"]
    assert {(line["topic"], line["mode"], line["filter"]) for line in joins} == {("fifo", "fifo", "*")}


async def test_a_member_that_cannot_join_leaves_and_its_process_is_not_used_again(world: World) -> None:
    client = MadeUpClient()
    client.fails["consumer"] = lambda number: ClientError("Timeout", 0, "no route")
    one = member(world, client, asyncio.Event())
    assert not await one.join()
    assert [line["e"] for line in world.lines() if line["ev"] == "member"] == ["join", "join", "leave"]


async def test_the_time_when_a_push_consumer_had_a_message_is_written(world: World) -> None:
    client, over = MadeUpClient(3), asyncio.Event()
    client.received_ns = 5
    one = member(world, client, asyncio.Event(), PushMember)
    consuming = asyncio.create_task(one.consume(over))
    await client.none_left.wait()
    client.messages, client.received_ns = 3, 7
    while client.messages:
        await asyncio.sleep(0)
    over.set()
    await consuming
    assert [line.get("since") for line in world.lines() if line["ev"] == "dlv"] == [5, 5, 5, 7, 7, 7]


async def test_a_push_consumer_acknowledges_by_itself_and_goes_when_it_is_through(world: World) -> None:
    client, stop = MadeUpClient(300), asyncio.Event()
    client.fails["settle"] = lambda number: ClientError("AioRpcError", 0, "gone") if number == 1 else None
    one = member(world, client, stop, PushMember)
    assert await one.join()
    over = asyncio.Event()
    consuming = asyncio.create_task(one.consume(over))
    while client.messages > 150:
        await asyncio.sleep(0)
    over.set()
    await consuming
    client.fails["close"] = lambda number: None
    left = asyncio.create_task(one.leave())
    assert await left
    lines = world.lines()
    assert client.asked["push"] == 1 and client.asked["consumer"] == client.asked["ack"] == 0
    assert {line["delay_ms"] for line in lines if line.get("f") == "receive" and "delay_ms" in line} == {
        3_000
    }
    given = [line["mid"] for line in lines if line["ev"] == "dlv"]
    assert Counter(given) == Counter(line["mid"] for line in lines if line["ev"] == "done")
    acks = [line for line in lines if line.get("f") == "ack"]
    done = [line["mid"] for line in lines if line["ev"] == "done" and line["code"] == "ok"]
    assert [line["mid"] for line in acks if line["type"] == "invoke"] == done
    assert Counter(line["type"] for line in acks)["info"] == 1
    assert "retry" in {line["code"] for line in lines if line["ev"] == "done"}
    assert lines[-1]["e"] == "leave"


def test_each_queue_of_the_topic_for_push_consumers_has_a_message_group_of_its_own() -> None:
    topics = PredictableTopics.of(1, 4, push=True)
    assert [topics.queue_of(topics.lane(queue)) for queue in range(4)] == [0, 1, 2, 3]
    assert topics.names == ["normal-0", "fifo", "lanes"] and TOPICS.names == ["normal-0", "normal-1", "fifo"]


def test_tags_are_those_of_the_producers() -> None:
    assert TAGGED.tags == ("a", "b") and TAGGED.topics_of(TOPICS) == TOPICS.normal
