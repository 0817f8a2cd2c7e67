"""What loads write down: of every operation one beginning and one end, and where a group may go back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import cast

import pytest

from broker_adapter.api import QueueOffset
from broker_adapter.client import Message, MessageQueue, NameServerRoutes
from broker_adapter.errors import BrokerError, NotMaster, Status, error_for
from chaos.trace.operations import Numbers
from chaos.workloads import groups
from chaos.workloads.appenders import Appender, Way
from chaos.workloads.groups import GROUPS, Group, Member, Rewinds
from chaos.workloads.spec import LoadSpec
from dledger.client import AppendResult, AsyncClient
from dledger.errors import Indeterminate, NotLeader
from tests.chaos.load_world import Lines, World


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


@pytest.mark.parametrize("way", Way)
async def test_an_appender_begins_and_ends_every_operation_once(world: World, way: Way) -> None:
    log = Log()
    appender = Appender(world.setting, cast("AsyncClient", log), world.setting.sender("p0"), Random(2), way)
    worked = [await step() for step in [appender.worker()] * 20]
    lines = [line for line in world.lines() if line["ev"] == "op"]
    begun = Counter(line["op"] for line in lines if line["type"] == "invoke")
    ended = Counter(line["op"] for line in lines if line["type"] != "invoke")
    assert begun == ended and set(begun.values()) == {1}
    assert {line["type"] for line in lines} == {"invoke", "ok", "fail", "info"}
    kinds = {line["f"] for line in lines}
    assert kinds == ({"append"} if way is Way.STREAM else {"append", "send_batch"})
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
    assert way is Way.STREAM or worked.count(True) == tally.operations


async def test_what_a_client_repeats_inside_an_operation_is_written_down(world: World) -> None:
    trace = world.setting.sender("p0")

    class Repeating(Log):
        async def append_many(self, bodies: Sequence[bytes]) -> list[AppendResult]:
            for number in (1, 2, 3):
                trace.note(bodies, number)
            return await super().append_many(bodies)

    appender = Appender(world.setting, cast("AsyncClient", Repeating()), trace, Random(2), Way.PLAIN)
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

    def __init__(self, routes: object, *, broker: str) -> None:
        pass

    async def __aenter__(self) -> DeadBrokers:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def offsets(self, group: str) -> tuple[int, list[QueueOffset]]:
        return 1, [QueueOffset("t", q, 700) for q in range(9)]

    async def reset_offsets(self, group: str, offsets: Sequence[QueueOffset]) -> None:
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
    group = Group(GROUPS[1], world.setting, cast("NameServerRoutes", None), ["t"])
    stop, drained = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(group.rewind(stop, drained))
        await DeadBrokers.asked_three_times.wait()
        stop.set()
        drained.set()


QUEUE = MessageQueue("t", "b", 2)


def message(offset: int) -> Message:
    return Message("t", 2, offset, 0, b"%d x" % offset, "", 0, (b"\x7f\x00\x00\x01", 1), 0)


def member(world: World, seed: int = 1) -> Member:
    writer, numbers = world.writer("client:g-0"), Numbers(3)
    return Member("g-0.0", GROUPS[0], Rewinds("g"), writer, numbers, world.setting, Random(seed))


def committed(one: Member, error: BrokerError | None, sent: int = 1) -> None:
    offsets: Mapping[MessageQueue, int] = {QUEUE: 2}
    one.committing(offsets, 5)
    for number in range(2, sent + 1):
        one.commit_repeated(offsets, number)
    one.committed(offsets, error)


async def test_a_member_tells_of_its_queue_its_messages_and_its_commits(world: World) -> None:
    one = member(world)
    one.join(["t"])
    one.assigned(QUEUE, 0, 5)
    for offset in range(2):
        await one.handle(message(offset))
    committed(one, None, sent=3)
    committed(one, error_for(Status.GENERATION_STALE, "x"))
    one.revoked(QUEUE)
    one.leave()
    lines = world.lines()
    assert [line["e"] for line in lines if line["ev"] == "member"] == ["join", "assign", "revoke", "leave"]
    assert {line["epoch"] for line in lines if line["ev"] in ("dlv", "done")} == {5}
    done = [(line["f"], line["type"]) for line in lines if line["ev"] == "op" and line["type"] != "invoke"]
    assert done == [("commit_off", "ok"), ("commit_off", "info"), ("pull", "ok")]
    [first, *_] = [line["op"] for line in lines if line.get("f") == "commit_off"]
    attempts = [(line["op"], line["retry_no"]) for line in lines if line["ev"] == "attempt"]
    assert attempts == [(first, 1), (first, 2)]


async def test_a_crashed_member_writes_nothing_more_and_one_that_stays_does_not_leave(world: World) -> None:
    one = member(world)
    one.assigned(QUEUE, 0, 5)
    one.crash()
    one.revoked(QUEUE)
    one.leave()
    other = Member(
        "x", GROUPS[0], Rewinds("g"), world.writer("client:x"), Numbers(4), world.setting, Random(1)
    )
    other.stays = True
    other.leave()
    assert [line["e"] for line in world.lines() if line["ev"] == "member"] == ["assign", "crash"]


async def test_a_message_whose_handler_failed_is_another_attempt(world: World) -> None:
    one = member(world)
    one.assigned(QUEUE, 0, 5)
    failures = 0
    for offset in range(3000):
        while True:
            try:
                await one.handle(message(offset))
            except Exception:
                failures += 1
            else:
                break
    assert failures
    done = [line for line in world.lines() if line["ev"] == "done"]
    assert sum(line["code"] == "retry" for line in done) == failures
    assert {line["attempt"] for line in done if line["code"] == "retry"} >= {0}
    assert sum(line["attempt"] for line in done if line["code"] == "ok") == failures


def test_every_topic_has_two_groups_and_one_topic_has_all() -> None:
    topics = ["t0", "t1", "t2"]
    assert [plan.topics_of(topics) for plan in GROUPS] == [topics, ["t0", "t2"], ["t1"]]
    assert [plan.topics_of(["t0"]) for plan in GROUPS] == [["t0"]] * 3
