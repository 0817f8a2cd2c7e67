"""The network between simulated nodes: single messages, and push streams.

Single messages (votes, heartbeats, transfers) are lost, delayed, repeated and overtake each other. Push
streams keep their order, as TCP does, until they break; what is under way when one breaks may still arrive,
and each end learns of the break at a time of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from dledger.core.messages import Goodbye, Message
from dledger.testing.clock import VirtualClock
from dledger.testing.profile import Profile
from dledger.testing.trace import Trace

if TYPE_CHECKING:
    from dledger.testing.process import SimProcess

RETRANSMIT_MS = 15  # how often a stream over a link that is cut tries again

Carried = tuple[Message, bytes | memoryview | None]


class Network:
    """Carries messages between the processes that `process_of` finds, over links that may be cut."""

    def __init__(
        self,
        clock: VirtualClock,
        rng: Random,
        profile: Profile,
        trace: Trace,
        counts: Counter[str],
        process_of: Callable[[str], SimProcess | None],
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
        self.gate: Callable[[str, str, Message], bool] | None = None
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
        """No cuts, no loss, no repetition, no spikes; what is under way stays under way."""
        self._cut.clear()
        self.loss = self.duplication = self.spike = 0.0

    def delay_ms(self) -> int:
        rng = self.rng
        if self.spike and rng.random() < self.spike:
            return rng.randint(0, self.profile.spike_max_ms)
        return rng.randint(self.profile.delay_min_ms, self.profile.delay_max_ms)

    # -- single messages

    def send(self, source: str, target: str, message: Message) -> None:
        if self.gate is not None and not self.gate(source, target, message):
            return
        if self.is_cut(source, target) or (self.loss and self.rng.random() < self.loss):
            self.counts["messages lost"] += 1
            self.trace.add(self.clock.now_ms, source, "lost ->", target, message)
            return
        self._fly(source, target, message)
        if self.duplication and self.rng.random() < self.duplication:
            self.counts["messages repeated"] += 1
            self._fly(source, target, message)

    def _fly(self, source: str, target: str, message: Message) -> None:
        def arrive() -> None:
            process = self.process_of(target)
            if process is None or self.is_cut(source, target):
                self.counts["messages lost"] += 1
                return
            process.deliver(source, message, None)

        self.clock.after(self.delay_ms(), arrive)

    # -- push streams

    def open_stream(self, leader: SimProcess, peer: str, stream_id: int) -> None:
        """Shake hands with `peer`; `leader.stream_opened` or `leader.stream_failed` says how it went."""

        is_settled = [False]

        def fail() -> None:
            if not is_settled[0]:
                is_settled[0] = True
                leader.post(lambda: leader.stream_failed(peer, stream_id))

        def reach_follower() -> None:
            follower = self.process_of(peer)
            if follower is None or self.is_cut(leader.node_id, peer):
                self.clock.after(self.delay_ms(), fail)
                return
            stream = PushStream(self, stream_id, leader, follower)
            follower.post(lambda: accept(stream))

        def accept(stream: PushStream) -> None:
            if is_settled[0]:
                return
            stream.follower.inbound[leader.node_id, stream_id] = stream
            self.streams.append(stream)
            self.clock.after(self.delay_ms(), lambda: reach_leader(stream))

        def reach_leader(stream: PushStream) -> None:
            if self.is_cut(peer, leader.node_id) or is_settled[0]:
                stream.break_off(0, self.rng.randint(0, self.profile.keepalive_ms))
            if stream.broken:
                fail()
                return
            is_settled[0] = True
            leader.post(lambda: leader.stream_opened(stream))

        self.clock.after(self.delay_ms(), reach_follower)
        # The follower's process may be stopped, or die before it answers: a handshake has a time limit.
        self.clock.after(self.profile.keepalive_ms + self.profile.spike_max_ms, fail)

    def streams_between(self, one: str, other: str) -> list[PushStream]:
        pair = {one, other}
        return [s for s in self.streams if {s.leader.node_id, s.follower.node_id} == pair]

    def streams_of(self, node_id: str) -> list[PushStream]:
        return [s for s in self.streams if node_id in (s.leader.node_id, s.follower.node_id)]


class PushStream:
    """One push stream from a leader's process to a follower's. Survives neither of them."""

    def __init__(self, network: Network, stream_id: int, leader: SimProcess, follower: SimProcess) -> None:
        self.network = network
        self.stream_id = stream_id
        self.leader = leader
        self.follower = follower
        self.is_up = False  # the leader has been told
        self.broken = False
        self.said_goodbye = False  # ... and the follower has seen it
        self.leader_knows = False  # of the break
        self.follower_knows = False
        self._down = Lane(self, leader, follower)
        self._up = Lane(self, follower, leader)

    def push(self, message: Message, payload: bytes | memoryview | None) -> None:
        """Leader to follower."""
        if not self.broken:
            self._down.send((message, payload))

    def answer(self, message: Message) -> None:
        """Follower to leader."""
        if not self.broken:
            self._up.send((message, None))

    def finish(self) -> None:
        """The leader closes the stream; the follower sees its end after all that was pushed."""
        self.leader_knows = True
        if not self.broken:
            self._down.send(None)

    def break_off(self, leader_after_ms: int | None, follower_after_ms: int | None) -> None:
        """The stream is dead; each end notices after so long (None: its process is gone)."""
        if self.broken:
            return
        self.broken = True
        network = self.network
        network.counts["streams broken"] += 1
        network.streams.remove(self)
        survives = network.rng.random() < network.profile.late_delivery
        self._down.break_off(survives)
        self._up.break_off(survives)
        if leader_after_ms is not None:
            network.clock.after(leader_after_ms, lambda: self.leader.post(self._leader_notices))
        if follower_after_ms is not None:
            network.clock.after(follower_after_ms, lambda: self.follower.post(self._follower_notices))

    def _leader_notices(self) -> None:
        if not self.leader_knows:
            self.leader_knows = True
            self.leader.stream_ended(self)

    def _follower_notices(self) -> None:
        if self.follower_knows:
            return
        self.follower_knows = True
        self.follower.inbound.pop((self.leader.node_id, self.stream_id), None)
        if not self.said_goodbye:
            self.follower.leader_stream_lost(self.leader.node_id, self.stream_id)

    def arrived(self, lane: Lane, carried: Carried | None) -> None:
        """One thing has come out of a lane, in a turn of the receiving process."""
        if lane is self._up:
            # Also after the leader has noticed the break: its handler may have had it in hand already.
            self.leader.receive(self.follower.node_id, *(carried or (None, None)))
            return
        if self.follower_knows:
            return
        if carried is None:
            if not self.broken:
                self.broken = True
                self.network.streams.remove(self)
            self._follower_notices()
            return
        if isinstance(carried[0], Goodbye):
            self.said_goodbye = True
        self.follower.receive(self.leader.node_id, *carried)


class Lane:
    """One direction of a stream: first in, first out."""

    def __init__(self, stream: PushStream, source: SimProcess, target: SimProcess) -> None:
        self._stream = stream
        self._source = source
        self._target = target
        self._network = stream.network
        self._queue: deque[tuple[int, Carried | None]] = deque()
        self._last_ready_ms = 0
        self._is_retrying = False

    def send(self, carried: Carried | None) -> None:
        network = self._network
        now_ms = network.clock.now_ms
        if carried is not None and network.gate is not None:
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
