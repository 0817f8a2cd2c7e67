"""What loads write down: of every operation one beginning and one end, and where a group may go back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import cast

import pytest

from broker_adapter.client import ClientOptions, ConsumeStatus, MessageExt, MessageQueue
from broker_adapter.errors import BrokerError, NotMaster, Status, error_for
from chaos.trace.operations import Numbers
from chaos.workloads import groups
from chaos.workloads.groups import GROUPS, Rewinds, TracedGroup, TracedMember
from chaos.workloads.log import AppendMode, LogAppender
from chaos.workloads.spec import LoadSpec
from dledger.client import AppendResult, AsyncClient
from dledger.errors import Indeterminate, NotLeader
from tests.chaos.workloads.load_world import Lines, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, LoadSpec(max_batch=3))


class Log:
    """Stands for `AsyncClient`: answers in turn with positions, a refusal, and silence."""

    def __init__(self) -> None:
        self.appender = object()
        self.appended: list[bytes] = []
        self._calls = 0

    async def append_many(self, bodies: Sequence[bytes]) -> list[AppendResult]:
        self._calls += 1
        if self._calls % 5 == 0:
            raise NotLeader("x")
        if self._calls % 5 == 4:
            raise Indeterminate("x")
        first = len(self.appended)
        self.appended += bodies
        return [AppendResult(first + i, 1, 0) for i in range(len(bodies))]

    async def submit(self, body: bytes) -> asyncio.Task[AppendResult]:
        async def one() -> AppendResult:
            [result] = await self.append_many([body])
            return result

        return asyncio.create_task(one())


@pytest.mark.parametrize("way", AppendMode)
async def test_an_appender_begins_and_ends_every_operation_once(world: World, way: AppendMode) -> None:
    log = Log()
    appender = LogAppender(
        world.setting, cast("AsyncClient", log), world.setting.sender("p0"), Random(2), way
    )
    worked = [await step() for step in [appender.worker()] * 20]
    lines = [line for line in world.lines() if line["ev"] == "op"]
    begun = Counter(line["op"] for line in lines if line["type"] == "invoke")
    ended = Counter(line["op"] for line in lines if line["type"] != "invoke")
    assert begun == ended and set(begun.values()) == {1}
    assert {line["type"] for line in lines} == {"invoke", "ok", "fail", "info"}
    kinds = {line["f"] for line in lines}
    assert kinds == ({"append"} if way is AppendMode.STREAM else {"append", "send_batch"})
    tally = world.setting.tally
    assert tally.acknowledged == len(log.appended) == len(set(log.appended))
    # A process has one operation at a time, and none after one that nobody knows the end of.
    open_now: set[str] = set()
    for line in lines:
        if line["type"] == "invoke":
            assert line["proc"] not in open_now
            open_now.add(line["proc"])
        elif line["type"] != "info":
            open_now.remove(line["proc"])
    assert way is AppendMode.STREAM or worked.count(True) == tally.operations


async def test_what_a_client_repeats_inside_an_operation_is_written_down(world: World) -> None:
    trace = world.setting.sender("p0")

    class Repeating(Log):
        async def append_many(self, bodies: Sequence[bytes]) -> list[AppendResult]:
            for number in (1, 2, 3):
                trace.note(bodies, number)
            return await super().append_many(bodies)

    appender = LogAppender(
        world.setting, cast("AsyncClient", Repeating()), trace, Random(2), AppendMode.PLAIN
    )
    step = appender.worker()
    for _ in range(5):
        await step()
    trace.note([b"1 "], 4)  # of one that ended for certain: nobody asks any more
    lines = world.lines()
    begun = [line["op"] for line in lines if line.get("type") == "invoke"]
    attempts = [(line["op"], line["retry_no"]) for line in lines if line["ev"] == "attempt"]
    assert attempts == [(op, number) for op in begun for number in (1, 2)]


def resets(lines: Lines) -> list[int]:
    return [line["off"] for line in lines if line.get("e") == "reset"]


def test_a_rewind_is_told_before_and_after_and_whenever_it_may_have_shown(world: World) -> None:
    rewinds, writer, place, other = Rewinds("g"), world.writer("client:r"), ("t", 0), ("t", 1)
    rewinds.on_assigned(writer, place, 90)
    before = rewinds.resets_of(place)
    rewinds.begin(writer, place, 10)
    rewinds.on_assigned(writer, other, 91)
    rewinds.on_assigned(writer, place, 11)
    rewinds.end(writer, place, 12)
    rewinds.on_assigned(writer, place, 92)
    rewinds.on_committed(writer, place, 13, before)
    rewinds.on_committed(writer, place, 93, rewinds.resets_of(place))
    assert resets(world.lines()) == [10, 11, 12, 13]


class DeadBrokers:
    """Stands for `Admin`: an offset is to be had, and then nobody is there any more."""

    asked_three_times = asyncio.Event()
    _times = 0

    def __init__(self, name_servers: object, *, options: ClientOptions) -> None:
        pass

    async def __aenter__(self) -> DeadBrokers:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def committed(self, group: str, queue: MessageQueue) -> int:
        return 700

    async def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self._times += 1
        if self._times == 3:
            self.asked_three_times.set()
        raise NotMaster("x")


async def test_a_rewind_of_brokers_that_never_come_back_ends_with_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "Admin", DeadBrokers)
    monkeypatch.setattr(groups, "_REWIND_S", (0, 0))
    monkeypatch.setattr(groups, "_PAUSE_S", 0.001)
    group = TracedGroup(GROUPS[1], world.setting, ["127.0.0.1:1"], ["t"])
    stop, drained = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(group.rewind(stop, drained))
        await DeadBrokers.asked_three_times.wait()
        stop.set()
        drained.set()


QUEUE = MessageQueue("t", "b", 2)


def message(offset: int) -> MessageExt:
    return MessageExt("t", b"%d x" % offset, QUEUE, offset, 0, "", {}, 0, 0)


def member(world: World, seed: int = 1) -> TracedMember:
    writer, numbers = world.writer("client:g-0"), Numbers(3)
    about = (GROUPS[0], Rewinds("g"), count(5))
    return TracedMember("g-0.0", *about, writer, numbers, world.setting, Random(seed))


def committed(one: TracedMember, error: BrokerError | None) -> None:
    one.committing(QUEUE, 2)
    one.committed(QUEUE, 2, error)


async def test_a_member_tells_of_its_queue_its_messages_and_its_commits(world: World) -> None:
    one = member(world)
    one.join(["t"])
    one.assigned(QUEUE, 0)
    retries = QUEUE._replace(topic="%RETRY%g")
    one.assigned(retries, 0)
    for offset in range(2):
        await one.handle([message(offset)])
    committed(one, None)
    committed(one, error_for(Status.ANSWER_MISSING, "x"))
    one.revoked(QUEUE)
    one.revoked(retries)
    one.leave()
    lines = world.lines()
    assert [line["e"] for line in lines if line["ev"] == "member"] == ["join", "assign", "revoke", "leave"]
    assert {line["epoch"] for line in lines if line["ev"] in ("dlv", "done")} == {5}
    done = [(line["f"], line["type"]) for line in lines if line["ev"] == "op" and line["type"] != "invoke"]
    assert done == [("commit_off", "ok"), ("commit_off", "info"), ("pull", "ok")]
    assert not [line for line in lines if line.get("f") == "commit_off" and "epoch" in line]


async def test_a_crashed_member_writes_nothing_more_and_one_that_stays_does_not_leave(world: World) -> None:
    one = member(world)
    one.assigned(QUEUE, 0)
    one.crash()
    assert await one.handle([message(0)]) is ConsumeStatus.RECONSUME_LATER
    one.revoked(QUEUE)
    # Its client may still have been about to take a queue.
    one.assigned(QUEUE._replace(queue_id=3), 0)
    one.revoked(QUEUE._replace(queue_id=3))
    one.leave()
    assert [line["f"] for line in world.lines() if line["ev"] == "op"] == ["pull"]
    about = (GROUPS[0], Rewinds("g"), count(1))
    other = TracedMember("x", *about, world.writer("client:x"), Numbers(4), world.setting, Random(1))
    other.stays = True
    other.leave()
    lines = [line for line in world.lines() if line["ev"] in ("member", "dlv", "done")]
    assert [line.get("e") for line in lines] == ["assign", "crash"]


async def test_a_message_whose_handler_failed_is_another_attempt(world: World) -> None:
    one = member(world)
    one.assigned(QUEUE, 0)
    failures = 0
    for offset in range(3000):
        while await one.handle([message(offset)]) is ConsumeStatus.RECONSUME_LATER:
            failures += 1
    assert failures
    done = [line for line in world.lines() if line["ev"] == "done"]
    assert sum(line["code"] == "retry" for line in done) == failures
    assert {line["attempt"] for line in done if line["code"] == "retry"} >= {0}
    assert sum(line["attempt"] for line in done if line["code"] == "ok") == failures


def test_every_topic_has_two_groups_and_one_topic_has_all() -> None:
    topics = ["t0", "t1", "t2"]
    assert [plan.topics_of(topics) for plan in GROUPS] == [topics, ["t0", "t2"], ["t1"]]
    assert [plan.topics_of(["t0"]) for plan in GROUPS] == [["t0"]] * 3
