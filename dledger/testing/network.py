"""The network between simulated nodes: calls and push streams.

Calls (votes, heartbeats, transfers) are lost, delayed, duplicated and reordered. Push streams keep their
order, as TCP does, until they break. Data in flight when a stream breaks may still arrive, and each end
notices the break at its own time. The nodes handle both with their real code; see `peer_transport`.
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
from dledger.rpc.envelope import PeerClaims, PeerIdentity
from dledger.rpc.peer_transport import Answer, PeerUnreachable, Question
from dledger.rpc.ports import FetchedFrames, ImageChunk, ImageQuestion
from dledger.testing.profile import Profile
from dledger.testing.virtual.clock import VirtualClock
from dledger.testing.virtual.event_loop import VirtualLoop
from dledger.testing.virtual.trace import Trace

RETRANSMIT_MS = 15  # retransmission interval of a stream over a cut link

Payload = bytes | memoryview | None
#: Item of a stream: a push or the response to it; the follower's incarnation, which it sends first; the
#: reason for which the follower ends the stream; or None, the end.
Carried = tuple[Message, Payload] | int | InvalidRequest | None


@dataclass(frozen=True, slots=True)
class SimFetch:
    """Requests entries from a member."""

    first_index: int
    last_index: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SimFetched:
    """Answer to `SimFetch`."""

    frames: FetchedFrames = field(repr=False)


#: Request, outcome and callback of a call.
Request = Question | SimFetch | ImageQuestion
Outcome = Answer | SimFetched | ImageChunk | DLedgerError | PeerUnreachable
OnAnswer = Callable[[Outcome], None]


class Endpoint(Protocol):
    """The part of a process that the network uses."""

    node_id: str
    incarnation: int
    identity: PeerIdentity
    alive: bool
    loop: VirtualLoop

    def post(self, action: Callable[[], object]) -> None:
        """Run the action in a turn of the process."""

    def after(self, delay_ms: int, action: Callable[[], object]) -> None: ...

    def serve(
        self,
        peer: str,
        claims: PeerClaims,
        message: Request,
        deadline_ms: int,
        answer: Callable[[Outcome], None],
    ) -> None:
        """Handle a request in a turn of the process. `claims`: as in PeerIdentity, when it was sent."""

    def serve_push(self, stream: SimPushStream) -> None:
        """Handle a push stream in turns of the process."""

    def push_refused(self, error: DLedgerError) -> None:
        """Handle the refusal of a push by the process itself."""


class SimNetwork:
    """Carries calls and streams between processes, over links that may be cut. `process_of` looks up a node's
    process."""

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
        self.streams: list[SimPushStream] = []
        #: Hook for tests to inspect, drop or hold back single messages and pushes. It returns False to drop
        #: one.
        self.gate: (
            Callable[[str, str, Message | SimFetch | SimFetched | ImageQuestion | ImageChunk], bool] | None
        ) = None
        self._cut: dict[tuple[str, str], int] = {}  # cut one-way links, with the number of the cut
        self._cuts = 0

    # -- links

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def cut(self, source: str, target: str) -> None:
        """Cut the link from source to target. Streams over the link break if the link remains cut."""
        if source == target or (source, target) in self._cut:
            return
        self._cuts += 1
        self._cut[source, target] = number = self._cuts

        def break_streams() -> None:
            if self._cut.get((source, target)) == number:
                for stream in self.streams_between(source, target):
                    stream.break_off(self.rng.randint(0, 20), self.rng.randint(0, 20))

        self.clock.after(self.profile.keepalive_ms, break_streams)

    def heal(self, source: str, target: str) -> None:
        self._cut.pop((source, target), None)

    def heal_all(self) -> None:
        """End all cuts, loss, duplication and latency spikes. Data in flight is not affected."""
        self._cut.clear()
        self.loss = self.duplication = self.spike = 0.0

    def delay_ms(self) -> int:
        rng = self.rng
        if self.spike and rng.random() < self.spike:
            return rng.randint(0, self.profile.spike_max_ms)
        return rng.randint(self.profile.delay_min_ms, self.profile.delay_max_ms)

    # -- calls

    def request(
        self, source: Endpoint, target: str, message: Request, deadline_ms: int, on_answer: OnAnswer
    ) -> None:
        """Send a request to a process. `on_answer` is called in a turn of the source: once, twice or
        never."""
        if self._is_lost(source.node_id, target, message):
            return
        claims = source.identity.claims(target)

        def arrive() -> None:
            process = self.process_of(target)
            if self.is_cut(source.node_id, target):
                self.counts["messages lost"] += 1
            elif process is not None:
                process.post(lambda: process.serve(source.node_id, claims, message, deadline_ms, back))
            else:
                # A running machine reports that the port is closed; a stopped one does not respond.
                self.counts["messages lost"] += 1
                if self.rng.random() < 0.5:
                    back(PeerUnreachable(f"{target} is not listening"))

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

    def _is_lost(
        self, source: str, target: str, message: Message | SimFetch | SimFetched | ImageQuestion | ImageChunk
    ) -> bool:
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
        self, leader: Endpoint, peer: str, stream_id: int, on_stream: Callable[[SimPushStream | None], None]
    ) -> None:
        """Open a stream to `peer`. `on_stream` is called in a turn of the leader, with None if that fails."""
        claims = leader.identity.claims(peer)

        def reach_follower() -> None:
            follower = self.process_of(peer)
            is_cut = self.is_cut(leader.node_id, peer) or self.is_cut(peer, leader.node_id)
            if follower is None or is_cut or not leader.alive:
                leader.after(self.delay_ms(), lambda: on_stream(None))
                return
            stream = SimPushStream(self, stream_id, leader, follower, claims)
            self.streams.append(stream)
            follower.post(lambda: follower.serve_push(stream))
            leader.post(lambda: on_stream(stream))
            # The follower's process may be paused, so the handshake has a time limit.
            handshake_ms = self.profile.keepalive_ms + self.profile.spike_max_ms
            self.clock.after(handshake_ms, lambda: None if stream.is_up else stream.break_off(0, 0))

        self.clock.after(self.delay_ms(), reach_follower)

    def streams_between(self, first: str, second: str) -> list[SimPushStream]:
        pair = {first, second}
        return [s for s in self.streams if {s.leader.node_id, s.follower.node_id} == pair]

    def streams_of(self, node_id: str) -> list[SimPushStream]:
        return [s for s in self.streams if node_id in (s.leader.node_id, s.follower.node_id)]


class SimStreamBroken(Exception):
    """Raised when this end has noticed that the stream is broken."""


class StreamEnd:
    """Items that have arrived at one end of a stream, until the process reads them."""

    def __init__(self, process: Endpoint) -> None:
        self._process = process
        self._items: deque[Carried] = deque()
        self._reader: asyncio.Future[None] | None = None
        self.is_broken = False
        self.is_ended = False  # the other end has ended the stream

    def put(self, item: Carried) -> None:
        self._items.append(item)
        self.is_ended = item is None
        self._wake()

    def notice(self, *, keeps: bool) -> None:
        """Mark the stream as broken. If `keeps` is set, items that have arrived can still be read."""
        self.is_broken = True
        if not keeps:
            self._items.clear()
        self._wake()

    async def read(self) -> Carried:
        while not self._items:
            if self.is_broken:
                raise SimStreamBroken
            self._reader = self._process.loop.create_future()
            await self._reader
        return self._items.popleft()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class SimPushStream:
    """One push stream from a leader's process to a follower's process. It ends with either of them."""

    def __init__(
        self,
        network: SimNetwork,
        stream_id: int,
        leader: Endpoint,
        follower: Endpoint,
        claims: PeerClaims,
    ) -> None:
        """`claims`: in the leader's handshake, as in PeerIdentity."""
        self.network = network
        self.stream_id = stream_id
        self.claims = claims
        self.leader = leader
        self.follower = follower
        self.is_up = False  # the leader has been notified
        self.broken = False  # or closed by the leader
        self.leader_end = StreamEnd(leader)
        self.follower_end = StreamEnd(follower)
        self.on_follower_notices: Callable[[], object] = lambda: None
        self._down = StreamDirection(self, leader, follower)
        self._up = StreamDirection(self, follower, leader)

    def push(self, carried: Carried) -> None:
        """Send from leader to follower. None means that the leader ends the stream in an orderly way."""
        if not self.broken:
            self._down.send(carried)

    def answer(self, carried: Carried) -> None:
        """Send from follower to leader. None means that the follower's handler has returned."""
        if not self.broken:
            self._up.send(carried)

    def leave(self) -> None:
        """End the leader's call, in an orderly way or not. Notifies the follower's end if it still serves the
        stream."""
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
        """Break the stream. Each end notices after its delay; None means that its process has died."""
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

    def arrived(self, way: StreamDirection, carried: Carried) -> None:
        """Deliver an item from one direction, in a turn of the receiving process."""
        (self.leader_end if way is self._up else self.follower_end).put(carried)


class StreamDirection:
    """One direction of a stream: first in, first out."""

    def __init__(self, stream: SimPushStream, source: Endpoint, target: Endpoint) -> None:
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
        """Drop the items in flight. With `survives`, a random prefix of them is kept."""
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
