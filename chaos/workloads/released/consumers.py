"""Consumer groups whose members are released clients: they receive, acknowledge, give back, go and crash.

A member that crashes is a process that is killed, and says nothing any more, to the servers or the trace.
What it held comes again when its time is over. So does what a member leaves on purpose, now and then.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Literal

from chaos.trace.operations import Numbers, Process
from chaos.trace.outcomes import ClientError
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from chaos.workloads.messages import digest, number_of
from chaos.workloads.released.process import ClientProcess
from chaos.workloads.released.topics import Topics
from chaos.workloads.spec import Setting
from chaos.workloads.tally import Tally

#: Of one receive, in messages and seconds.
MOST, WAIT_S, _INVISIBLE_S = 16, 1, 4
_PAUSE_S = 0.2
#: How long a member lives, in seconds, and how many of them do not leave but crash.
_LIFE_S = (4.0, 12.0)
_CRASHES = 0.4
#: Of all receives: one message of them is left alone, or given back.
_LEFT = 0.1
_SOON_S = 1


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`mode`: see the schema of traces. `tags`: only messages with one of these; none: all. `is_push`: of
    push consumers."""

    name: str
    mode: Literal["shared", "fifo"]
    tags: tuple[str, ...] = ()
    is_push: bool = False

    def topics_of(self, topics: Topics) -> Sequence[str]:
        if self.mode == "shared":
            return topics.normal
        return [topics.lanes if self.is_push else topics.fifo]


GROUPS = (
    GroupPlan("shared", "shared"),
    GroupPlan("in-order", "fifo"),
    GroupPlan("tagged", "shared", ("a", "b")),
)


class ReleasedGroup:
    """One group. `new_client(name)`: a client that was not started. `new_member`: the class of its members,
    if it is not Member."""

    def __init__(
        self,
        plan: GroupPlan,
        setting: Setting,
        topics: Topics,
        new_client: Callable[[str], ClientProcess],
        new_member: type[Member] | None = None,
    ) -> None:
        self.plan = plan
        self.topics = plan.topics_of(topics)
        self._setting = setting
        self._new_client = new_client
        self._new_member = new_member or Member

    async def live(self, number: int, stop: asyncio.Event, drained: asyncio.Event) -> None:
        """Members one after the other; the one that is there at `stop` stays until `drained`."""
        place = f"{self.plan.name}-{number}"
        writer, numbers = self._setting.client(place)
        rng = Random(self._setting.rng.random())
        client: ClientProcess | None = None
        for life in count():
            if drained.is_set():
                return
            if client is None:
                client = self._new_client(f"{place}-{life}")
                await client.start()
            about = (client, writer, numbers, self._setting.tally, rng, stop)
            member = self._new_member(f"{place}.{life}", self, *about)
            is_reusable = await self._one_life(member, rng, stop, drained)
            if not is_reusable:
                client.kill()
                await client.wait()
                client = None

    async def _one_life(
        self, member: Member, rng: Random, stop: asyncio.Event, drained: asyncio.Event
    ) -> bool:
        """Whether its process can be used for another one."""
        if not await member.join():
            await asyncio.sleep(_PAUSE_S)
            return False
        over = asyncio.Event()
        consuming = asyncio.create_task(member.consume(over))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(*_LIFE_S)):
                    await _first_of(drained, consuming)
            if stop.is_set():
                await _first_of(drained, consuming)
                over.set()
                await consuming
                return True
            if not consuming.done() and rng.random() < _CRASHES:
                await _cancelled(consuming)
                member.crash()
                return False
            over.set()
            await consuming
            return await member.leave()
        finally:
            await _cancelled(consuming)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _first_of(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Until `event`; what the task raises before, if it ends, is raised."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if task.done():
        task.result()


@dataclass(frozen=True, slots=True)
class Received:
    """A message that a client holds. `attempt`: 0 for the first."""

    handle: int
    mid: int
    digest: str
    where: dict[str, int | str]
    offset: int
    attempt: int
    tag: str
    key: str

    @classmethod
    def of(cls, told: dict[str, Any]) -> Received:
        """Of what the driver tells."""
        body = b64decode(told["body"])
        where = {"topic": told["topic"], "q": told["q"]}
        about = (told["qoff"], told["attempt"] - 1, told["tag"], told["keys"])
        return cls(told["handle"], number_of(body), digest(body), where, *about)


class Member:
    """One life of one member. At `stop` it begins to acknowledge everything."""

    #: For so long nobody else is given what it has received, unless it gives it back or goes.
    _held_ms = _INVISIBLE_S * 1000

    def __init__(
        self,
        name: str,
        group: ReleasedGroup,
        client: ClientProcess,
        writer: TraceWriter,
        numbers: Numbers,
        tally: Tally,
        rng: Random,
        stop: asyncio.Event,
    ) -> None:
        self._name = name
        self._group = group
        self._client = client
        self._writer = writer
        self._numbers = numbers
        self._tally = tally
        self._rng = rng
        self._stop = stop
        self._receiving = self._process()
        self._free: list[Process] = []
        self._who = {"group": group.plan.name, "consumer": name}

    async def join(self) -> bool:
        """Whether the client has started."""
        plan = self._group.plan
        how = {"mode": plan.mode, "filter": "||".join(plan.tags) or "*", "from_start": True}
        for topic in self._group.topics:
            self._writer.write(Ev.MEMBER, {"e": "join", **self._who, "topic": topic, **how})
        wanted = {"topics": list(self._group.topics), "filter": " || ".join(plan.tags) or "*"}
        try:
            await self._start(group=plan.name, **wanted)
        except ClientError:
            self._left()
            return False
        return True

    async def consume(self, over: asyncio.Event) -> None:
        """Until `over`, and until what was received is acknowledged."""
        while not over.is_set():
            received = await self._receive()
            left = self._draw(received)
            async with asyncio.TaskGroup() as tasks:
                for one in received:
                    tasks.create_task(self._leave_alone(one) if one is left else self._ack(one))

    def crash(self) -> None:
        """What was under way never ends, and the process is gone. Nothing is written after this."""
        self._writer.write(Ev.MEMBER, {"e": "crash", **self._who})
        self._client.kill()

    async def leave(self) -> bool:
        """Says farewell; whether the client could."""
        try:
            await self._client.ask("close")
        except ClientError:
            return False
        finally:
            self._left()
        return True

    async def _start(self, **wanted: Any) -> None:
        await self._client.ask("consumer", wait_s=WAIT_S, **wanted)

    async def _fetch(self) -> dict[str, Any]:
        return await self._client.ask("receive", most=MOST, invisible_s=_INVISIBLE_S)

    def _left(self) -> None:
        self._writer.write(Ev.MEMBER, {"e": "leave", **self._who})

    def _process(self) -> Process:
        return Process(self._writer, self._numbers)

    async def _receive(self) -> list[Received]:
        self._receiving.invoke("receive", delay_ms=self._held_ms, **self._who)
        try:
            answer = await self._fetch()
        except ClientError as error:
            self._receiving.failed(error)
            await asyncio.sleep(_PAUSE_S)
            return []
        received = [Received.of(told) for told in answer["messages"]]
        for i, one in enumerate(received):
            about = {**self._who, **one.where, "attempt": one.attempt, "tag": one.tag, "key": one.key}
            self._receiving.delivered(i, one.mid, one.digest, qoff=one.offset, **about)
        self._receiving.ok(count=len(received))
        return received

    def _draw(self, received: Sequence[Received]) -> Received | None:
        """The one that is not acknowledged. In the end there is none."""
        if not received or self._stop.is_set() or self._rng.random() >= _LEFT:
            return None
        return self._rng.choice(received)

    async def _ack(self, one: Received) -> None:
        """The message is processed, whatever becomes of the ack."""
        self._done(one, "ok")
        self._tally.took(self._writer.now(), 1)
        await self._settle(one)

    async def _settle(self, one: Received) -> None:
        await self._ask("ack", one)

    async def _leave_alone(self, one: Received) -> None:
        """It comes again when its time is over; every other one is given back, to come sooner."""
        self._done(one, "retry")
        if self._rng.random() < 0.5:
            await self._ask("change", one, "change_invisible", invisible_s=_SOON_S)
        await self._client.ask("forget", handle=one.handle)

    async def _ask(self, do: str, one: Received, f: str = "", **more: int) -> None:
        process = self._free.pop() if self._free else self._process()
        process.invoke(f or do, mid=one.mid, **self._who, **one.where)
        try:
            await self._client.ask(do, handle=one.handle, **more)
        except ClientError as error:
            process.failed(error)
        else:
            process.ok()
        self._free.append(process)

    def _done(self, one: Received, code: str) -> None:
        about = {**self._who, **one.where, "qoff": one.offset, "attempt": one.attempt}
        self._writer.write(Ev.DONE, {"mid": one.mid, "code": code, **about})
