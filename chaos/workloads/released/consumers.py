"""Consumer groups of released clients, which receive, acknowledge, release, leave and crash.

A crash kills the member's process, which then sends nothing more to the servers or the trace. Messages that
it held are redelivered after their invisible time. The same happens to messages that a member leaves
unacknowledged on purpose.
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
from chaos.workloads.closing import close_in_time
from chaos.workloads.messages import digest, number_of
from chaos.workloads.released.process import ClientProcess
from chaos.workloads.released.topics import PredictableTopics
from chaos.workloads.spec import Setting
from chaos.workloads.tally import LoadTally

#: Limits of one receive: messages, wait and invisible time in seconds.
MOST, WAIT_S, _INVISIBLE_S = 16, 1, 4
_PAUSE_S = 0.2
#: Lifetime of a member in seconds, and the share of members that crash instead of leaving.
_LIFE_S = (4.0, 12.0)
_CRASHES = 0.4
#: Share of receives in which one message is left unacknowledged or released early.
_LEFT = 0.1
_SOON_S = 1


@dataclass(frozen=True, slots=True)
class ReleasedGroupPlan:
    """Name, mode and subscription of a group. `mode`: see the schema of traces. `tags`: deliver only messages
    with one of these tags; empty: all messages. `is_push`: members are push consumers."""

    name: str
    mode: Literal["shared", "fifo"]
    tags: tuple[str, ...] = ()
    is_push: bool = False

    def topics_of(self, topics: PredictableTopics) -> Sequence[str]:
        if self.mode == "shared":
            return topics.normal
        return [topics.lanes if self.is_push else topics.fifo]


GROUPS = (
    ReleasedGroupPlan("shared", "shared"),
    ReleasedGroupPlan("in-order", "fifo"),
    ReleasedGroupPlan("tagged", "shared", ("a", "b")),
)


class ReleasedGroup:
    """One consumer group. `new_client(name)` creates a client process without starting it. `new_member`:
    class of the members; the default is ReleasedMember."""

    def __init__(
        self,
        plan: ReleasedGroupPlan,
        setting: Setting,
        topics: PredictableTopics,
        new_client: Callable[[str], ClientProcess],
        new_member: type[ReleasedMember] | None = None,
    ) -> None:
        self.plan = plan
        self.topics = plan.topics_of(topics)
        self._setting = setting
        self._new_client = new_client
        self._new_member = new_member or ReleasedMember

    async def live(self, number: int, stop: asyncio.Event, drained: asyncio.Event) -> None:
        """Run members in succession. The member present at `stop` continues until `drained`."""
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
        self, member: ReleasedMember, rng: Random, stop: asyncio.Event, drained: asyncio.Event
    ) -> bool:
        """Run one member; return True if its process can be reused."""
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
    """Wait until `event` is set or `task` ends; raise the exception of `task`, if any."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if task.done():
        task.result()


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that a client holds. `attempt`: 0 for the first delivery. `received_ns`: the monotonic time
    when the client had it."""

    handle: int
    mid: int
    digest: str
    where: dict[str, int | str]
    offset: int
    attempt: int
    tag: str
    key: str
    received_ns: int

    @classmethod
    def of(cls, fields: dict[str, Any]) -> HeldMessage:
        """Parse a message as the driver reports it."""
        body = b64decode(fields["body"])
        where = {"topic": fields["topic"], "q": fields["q"]}
        about = (fields["qoff"], fields["attempt"] - 1, fields["tag"], fields["keys"], fields["received_ns"])
        return cls(fields["handle"], number_of(body), digest(body), where, *about)


class ReleasedMember:
    """One member, from its start until it leaves or crashes. After `stop` it acknowledges every message."""

    #: Time in ms during which its messages are invisible to other members, unless it releases them or leaves.
    _held_ms = _INVISIBLE_S * 1000

    def __init__(
        self,
        name: str,
        group: ReleasedGroup,
        client: ClientProcess,
        writer: TraceWriter,
        numbers: Numbers,
        tally: LoadTally,
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
        """Start the client; return True on success."""
        plan = self._group.plan
        how = {"mode": plan.mode, "filter": "||".join(plan.tags) or "*", "from_start": True}
        for topic in self._group.topics:
            self._writer.write(Ev.MEMBER, {"e": "join", **self._who, "topic": topic, **how})
        subscription = {"topics": list(self._group.topics), "filter": " || ".join(plan.tags) or "*"}
        try:
            await self._start(group=plan.name, **subscription)
        except ClientError:
            self._left()
            return False
        return True

    async def consume(self, over: asyncio.Event) -> None:
        """Consume until `over`, and until the received messages are acknowledged."""
        while not over.is_set():
            received = await self._receive()
            unacked = self._draw(received)
            async with asyncio.TaskGroup() as tasks:
                for message in received:
                    tasks.create_task(
                        self._leave_alone(message) if message is unacked else self._ack(message)
                    )

    def crash(self) -> None:
        """Kill the process. Operations in flight never end, and nothing is written after this."""
        self._writer.write(Ev.MEMBER, {"e": "crash", **self._who})
        self._client.kill()

    async def leave(self) -> bool:
        """Close the client; return True on success."""
        try:
            return await self._close()
        except ClientError:
            return False
        finally:
            self._left()

    async def _close(self) -> bool:
        return await close_in_time(self._name, self._client.request("close"), self._writer, self._tally)

    async def _start(self, **subscription: Any) -> None:
        await self._client.request("consumer", wait_s=WAIT_S, **subscription)

    async def _fetch(self) -> dict[str, Any]:
        return await self._client.request("receive", most=MOST, invisible_s=_INVISIBLE_S)

    def _left(self) -> None:
        self._writer.write(Ev.MEMBER, {"e": "leave", **self._who})

    def _process(self) -> Process:
        return Process(self._writer, self._numbers)

    async def _receive(self) -> list[HeldMessage]:
        self._receiving.invoke("receive", delay_ms=self._held_ms, **self._who)
        try:
            answer = await self._fetch()
        except ClientError as error:
            self._receiving.failed(error)
            await asyncio.sleep(_PAUSE_S)
            return []
        received = [HeldMessage.of(fields) for fields in answer["messages"]]
        for i, one in enumerate(received):
            about = {**self._who, **one.where, "attempt": one.attempt, "tag": one.tag, "key": one.key}
            about["since"] = one.received_ns  # a push consumer also receives while its member is busy
            self._receiving.delivered(i, one.mid, one.digest, qoff=one.offset, **about)
        self._receiving.ok(count=len(received))
        return received

    def _draw(self, received: Sequence[HeldMessage]) -> HeldMessage | None:
        """Choose a message that will not be acknowledged. Returns None for most receives, and always after
        `stop`."""
        if not received or self._stop.is_set() or self._rng.random() >= _LEFT:
            return None
        return self._rng.choice(received)

    async def _ack(self, one: HeldMessage) -> None:
        """Acknowledge the message. It counts as processed even if the ack fails."""
        self._done(one, "ok")
        self._tally.count_read(self._writer.now(), 1)
        await self._settle(one)

    async def _settle(self, one: HeldMessage) -> None:
        await self._request("ack", one)

    async def _leave_alone(self, one: HeldMessage) -> None:
        """Leave the message for redelivery after its invisible time. Shorten that time for half of the
        messages, chosen at random."""
        self._done(one, "retry")
        if self._rng.random() < 0.5:
            await self._request("change", one, "change_invisible", invisible_s=_SOON_S)
        await self._client.request("forget", handle=one.handle)

    async def _request(self, do: str, one: HeldMessage, f: str = "", **more: int) -> None:
        process = self._free.pop() if self._free else self._process()
        process.invoke(f or do, mid=one.mid, **self._who, **one.where)
        try:
            await self._client.request(do, handle=one.handle, **more)
        except ClientError as error:
            process.failed(error)
        else:
            process.ok()
        self._free.append(process)

    def _done(self, one: HeldMessage, code: str) -> None:
        about = {**self._who, **one.where, "qoff": one.offset, "attempt": one.attempt}
        self._writer.write(Ev.DONE, {"mid": one.mid, "code": code, **about})
