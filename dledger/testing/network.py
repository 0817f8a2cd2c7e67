"""The network between simulated nodes: calls, and push streams.

Questions and answers (votes, heartbeats, transfers) are lost, delayed, repeated and overtake each other. Push
streams keep their order, as TCP does, until they break; what is under way when one breaks may still arrive,
and each end learns of the break at a time of its own. What nodes make of both is their own code; see
`peer_transport`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from dledger.core.messages import Message
from dledger.errors import DLedgerError, InvalidRequest
from dledger.rpc.peer_transport import Answer, PeerUnreachable, Question
from dledger.rpc.ports import FetchedFrames
from dledger.testing.profile import Profile
from dledger.testing.virtual.clock import VirtualClock
from dledger.testing.virtual.event_loop import VirtualLoop
from dledger.testing.virtual.trace import Trace

RETRANSMIT_MS = 15  # how often a stream over a link that is cut tries again

Payload = bytes | memoryview | None
#: A push or its answer; the incarnation of the follower, which it says first; why it ends the stream; None:
#: the end.
Carried = tuple[Message, Payload] | int | InvalidRequest | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks a member for entries."""

    first_index: int
    last_index: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Answers `Fetch`."""

    frames: FetchedFrames = field(repr=False)


#: Of a call.
Request = Question | Fetch
Outcome = Answer | Fetched | DLedgerError | PeerUnreachable
OnAnswer = Callable[[Outcome], None]


class Endpoint(Protocol):
    """A process, as far as the network knows it."""

    node_id: str
    incarnation: int
    alive: bool
    loop: VirtualLoop

    def post(self, action: Callable[[], object]) -> None:
        """Run in a turn of the process."""

    def after(self, delay_ms: int, action: Callable[[], object]) -> None: ...

    def serve(self, peer: str, message: Request, deadline_ms: int, answer: Callable[[Outcome], None]) -> None:
        """Answer a question. In a turn."""

    def serve_push(self, stream: PushStream) -> None:
        """In a turn."""

    def push_refused(self, error: DLedgerError) -> None:
        """The process has refused a push of this stream."""


class Network:
    """Carries calls and streams between the processes that `process_of` finds, over links that may be cut."""

    def __init__(
        self,
        clock: VirtualClock,
        rng: Random,
        profile: Profile,
        trace: Trace,
        counts: Counter[str],
        process_of: Callable[[str], Endpoint | None],
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.profile = profile
        self.trace = trace
        self.counts = counts
        self.process_of = process_of
        self.loss = profile.loss
        self.duplication = profile.duplication
        self.spike = profile.spike
        self.streams: list[PushStream] = []
        #: Tests look at, drop or hold back single messages and pushes here: False means that it is not sent.
        self.gate: Callable[[str, str, Message | Fetch | Fetched], bool] | None = None
        self._cut: dict[tuple[str, str], int] = {}  # one-way links that are cut, and the number of that cut
        self._cuts = 0

    # -- links

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def cut(self, source: str, target: str) -> None:
        """Nothing from source reaches target any more. Streams over the link break if it stays so."""
        if source == target or (source, target) in self._cut:
            return
        self._cuts += 1
        self._cut[source, target] = number = self._cuts

        def give_up() -> None:
            if self._cut.get((source, target)) == number:
                for stream in self.streams_between(source, target):
                    stream.break_off(self.rng.randint(0, 20), self.rng.randint(0, 20))

        self.clock.after(self.profile.keepalive_ms, give_up)

    def heal(self, source: str, target: str) -> None:
        self._cut.pop((source, target), None)

    def heal_all(self) -> None:
        """No cuts, no loss, no duplicates, no spikes; what is under way stays under way."""
        self._cut.clear()
        self.loss = self.duplication = self.spike = 0.0

    def delay_ms(self) -> int:
        rng = self.rng
        if self.spike and rng.random() < self.spike:
            return rng.randint(0, self.profile.spike_max_ms)
        return rng.randint(self.profile.delay_min_ms, self.profile.delay_max_ms)

    # -- calls

    def ask(
        self, source: Endpoint, target: str, message: Request, deadline_ms: int, on_answer: OnAnswer
    ) -> None:
        """Let a process answer a question. `on_answer` is called in a turn of the source: perhaps twice, or
        never."""
        if self._is_lost(source.node_id, target, message):
            return

        def arrive() -> None:
            process = self.process_of(target)
            if self.is_cut(source.node_id, target):
                self.counts["messages lost"] += 1
            elif process is not None:
                process.post(lambda: process.serve(source.node_id, message, deadline_ms, back))
            else:
                # A machine that is up says that nobody listens; one that is down says nothing.
                self.counts["messages lost"] += 1
                if self.rng.random() < 0.5:
                    back(PeerUnreachable(f"{target} does not listen"))

        def back(outcome: Outcome) -> None:
            if not isinstance(outcome, DLedgerError | PeerUnreachable) and self._is_lost(
                target, source.node_id, outcome
            ):
                return
            self._fly(target, source.node_id, lambda: source.post(lambda: on_answer(outcome)))

        self._fly(source.node_id, target, arrive)
        if self.duplication and self.rng.random() < self.duplication:
            self.counts["messages repeated"] += 1
            self._fly(source.node_id, target, arrive)

    def _is_lost(self, source: str, target: str, message: Message | Fetch | Fetched) -> bool:
        if self.gate is not None and not self.gate(source, target, message):
            return True
        if self.is_cut(source, target) or (self.loss and self.rng.random() < self.loss):
            self.counts["messages lost"] += 1
            self.trace.add(self.clock.now_ms, source, "lost ->", target, message)
            return True
        return False

    def _fly(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        def arrived() -> None:
            if self.is_cut(source, target):
                self.counts["messages lost"] += 1
            else:
                arrive()

        self.clock.after(self.delay_ms(), arrived)

    # -- push streams

    def connect(
        self, leader: Endpoint, peer: str, stream_id: int, on_stream: Callable[[PushStream | None], None]
    ) -> None:
        """Begin a stream to `peer`. `on_stream` is called in a turn of the leader: None: not now."""

        def reach_follower() -> None:
            follower = self.process_of(peer)
            is_cut = self.is_cut(leader.node_id, peer) or self.is_cut(peer, leader.node_id)
            if follower is None or is_cut or not leader.alive:
                leader.after(self.delay_ms(), lambda: on_stream(None))
                return
            stream = PushStream(self, stream_id, leader, follower)
            self.streams.append(stream)
            follower.post(lambda: follower.serve_push(stream))
            leader.post(lambda: on_stream(stream))
            # The follower's process may be stopped: a handshake has a time limit.
            patience_ms = self.profile.keepalive_ms + self.profile.spike_max_ms
            self.clock.after(patience_ms, lambda: None if stream.is_up else stream.break_off(0, 0))

        self.clock.after(self.delay_ms(), reach_follower)

    def streams_between(self, one: str, other: str) -> list[PushStream]:
        pair = {one, other}
        return [s for s in self.streams if {s.leader.node_id, s.follower.node_id} == pair]

    def streams_of(self, node_id: str) -> list[PushStream]:
        return [s for s in self.streams if node_id in (s.leader.node_id, s.follower.node_id)]


class Broken(Exception):
    """The stream has, and this end has noticed."""


class StreamEnd:
    """What has come to one end of a stream, until the process there reads it."""

    def __init__(self, process: Endpoint) -> None:
        self._process = process
        self._items: deque[Carried] = deque()
        self._reader: asyncio.Future[None] | None = None
        self.is_broken = False
        self.is_ended = False  # the other end has said so

    def put(self, item: Carried) -> None:
        self._items.append(item)
        self.is_ended = item is None
        self._wake()

    def notice(self, *, keeps: bool) -> None:
        """The stream has broken. `keeps`: what has come, and is not read yet, can still be."""
        self.is_broken = True
        if not keeps:
            self._items.clear()
        self._wake()

    async def read(self) -> Carried:
        while not self._items:
            if self.is_broken:
                raise Broken
            self._reader = self._process.loop.create_future()
            await self._reader
        return self._items.popleft()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class PushStream:
    """One push stream from a leader's process to a follower's. Survives neither of them."""

    def __init__(self, network: Network, stream_id: int, leader: Endpoint, follower: Endpoint) -> None:
        self.network = network
        self.stream_id = stream_id
        self.leader = leader
        self.follower = follower
        self.is_up = False  # the leader has been told
        self.broken = False  # or left by the leader
        self.leader_end = StreamEnd(leader)
        self.follower_end = StreamEnd(follower)
        self.on_follower_notices: Callable[[], object] = lambda: None
        self._down = OneWay(self, leader, follower)
        self._up = OneWay(self, follower, leader)

    def push(self, carried: Carried) -> None:
        """Leader to follower; None: the leader ends the stream, in order."""
        if not self.broken:
            self._down.send(carried)

    def answer(self, carried: Carried) -> None:
        """Follower to leader; None: the follower's handler has returned."""
        if not self.broken:
            self._up.send(carried)

    def leave(self) -> None:
        """The leader's call is over, in order or not: the follower's end is told, if it still serves."""
        if self.broken:
            return
        network = self.network
        if self.leader_end.is_ended:
            self._drop()
            return
        is_cut = network.is_cut(self.leader.node_id, self.follower.node_id)
        keepalive_ms = network.profile.keepalive_ms
        self._break(None, network.rng.randint(0, keepalive_ms) if is_cut else network.delay_ms())

    def break_off(self, leader_after_ms: int | None, follower_after_ms: int | None) -> None:
        """The stream is dead; each end notices after so long (None: its process is gone)."""
        if not self.broken:
            self.network.counts["streams broken"] += 1
            self._break(leader_after_ms, follower_after_ms)

    def _break(self, leader_after_ms: int | None, follower_after_ms: int | None) -> None:
        network = self.network
        self._drop()
        survives = network.rng.random() < network.profile.late_delivery
        self._down.break_off(survives)
        self._up.break_off(survives)
        keeps = network.rng.random() < 0.5
        if leader_after_ms is not None:
            notice = partial(self.leader_end.notice, keeps=keeps)
            network.clock.after(leader_after_ms, lambda: self.leader.post(notice))
        if follower_after_ms is not None:
            network.clock.after(
                follower_after_ms, lambda: self.follower.post(lambda: self.on_follower_notices())
            )

    def _follower_notices(self) -> None:
        self.on_follower_notices()

    def _drop(self) -> None:
        self.broken = True
        self.network.streams.remove(self)

    def arrived(self, way: OneWay, carried: Carried) -> None:
        """One thing has arrived from one way, in a turn of the receiving process."""
        (self.leader_end if way is self._up else self.follower_end).put(carried)


class OneWay:
    """One direction of a stream: first in, first out."""

    def __init__(self, stream: PushStream, source: Endpoint, target: Endpoint) -> None:
        self._stream = stream
        self._source = source
        self._target = target
        self._network = stream.network
        self._queue: deque[tuple[int, Carried]] = deque()
        self._last_ready_ms = 0
        self._is_retrying = False

    def send(self, carried: Carried) -> None:
        network = self._network
        now_ms = network.clock.now_ms
        if isinstance(carried, tuple) and network.gate is not None:
            gate = network.gate
            if not gate(self._source.node_id, self._target.node_id, carried[0]):
                return
        ready_ms = max(self._last_ready_ms, now_ms + network.delay_ms())
        self._last_ready_ms = ready_ms
        self._queue.append((ready_ms, carried))
        network.clock.after(ready_ms - now_ms, self._pump)

    def break_off(self, survives: bool) -> None:
        """A prefix of what is under way still arrives, if it survives at all."""
        keep = self._network.rng.randint(0, len(self._queue)) if survives else 0
        while len(self._queue) > keep:
            self._queue.pop()

    def _pump(self) -> None:
        network = self._network
        if self._queue and network.is_cut(self._source.node_id, self._target.node_id):
            if not self._is_retrying:
                self._is_retrying = True
                network.clock.after(RETRANSMIT_MS, self._retry)
            return
        while self._queue and self._queue[0][0] <= network.clock.now_ms:
            carried = self._queue.popleft()[1]
            self._target.post(lambda c=carried: self._stream.arrived(self, c))  # type: ignore[misc]

    def _retry(self) -> None:
        self._is_retrying = False
        self._pump()
