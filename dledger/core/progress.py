"""The leader's state for one follower, with flow control of the push stream."""

from __future__ import annotations

from collections import deque
from enum import Enum

from dledger.core.values import OwnerFitness


class PushState(Enum):
    DISCONNECTED = "DISCONNECTED"  # no push stream
    COMPARE = "COMPARE"  # looking for the last entry both logs hold; one probe at a time
    APPEND = "APPEND"  # pipelined pushes from next_index on


class FollowerProgress:
    """The state of one follower in the view of the current leader."""

    __slots__ = (
        "acked_pushed_ms",
        "acked_round",
        "awaits_new_term",
        "committed_sent",
        "counts",
        "has_room",
        "image_index",
        "incarnation",
        "inflight",
        "inflight_bytes",
        "last_active_ms",
        "last_contact_ms",
        "loading",
        "match_index",
        "next_index",
        "owner",
        "peer",
        "probe_due_ms",
        "probe_index",
        "state",
        "stored_index",
        "stream_id",
    )

    def __init__(self, peer: str, now_ms: int) -> None:
        self.peer = peer
        self.state = PushState.DISCONNECTED
        self.stream_id = -1  # newest stream; responses on older streams are dropped
        self.incarnation = -1
        self.match_index = -1  # durable there, equal to our log, and counting for a majority
        self.stored_index = -1  # like match_index, for a node that does not count yet (rule 11)
        self.counts = True
        self.awaits_new_term = False
        self.has_room = True
        self.owner: OwnerFitness | None = None
        self.image_index = -1  # mark of its newest state image
        self.acked_pushed_ms = -1  # push time of the newest acknowledged entries
        self.next_index = 0  # first index not yet pushed on this stream
        self.probe_index = -1
        self.probe_due_ms: int | None = None  # the probe at probe_index waits until then
        self.loading = False  # a PushRange is pending, without its EntriesPushed event
        # (last_index, bytes, push time) of unacknowledged pushes
        self.inflight: deque[tuple[int, int, int]] = deque()
        self.inflight_bytes = 0
        self.committed_sent = -1
        self.acked_round = -1  # highest heartbeat round that the follower answered
        self.last_contact_ms = now_ms
        # Last time it acknowledged something new, or had a reason not to, such as a busy disk (rule 14).
        self.last_active_ms = now_ms

    @property
    def owner_is_fit(self) -> bool:
        """Return True unless the owning program is unfit. A node without an owning program is fit."""
        return self.owner is None or self.owner.fit

    def stream_up(self, stream_id: int, incarnation: int) -> None:
        """Start a new stream, in state COMPARE. Discard the acknowledgments of a previous incarnation,
        which may have lost the entries (docs/guarantees.md rule 11).
        """
        assert stream_id > self.stream_id, f"stream id {stream_id} after {self.stream_id}"
        if incarnation != self.incarnation:
            self.match_index = self.stored_index = -1
            self.incarnation = incarnation
        self.stream_id = stream_id
        self._reset(PushState.COMPARE)

    def stream_down(self) -> None:
        self._reset(PushState.DISCONNECTED)

    def probe_again(self) -> None:
        assert self.state is not PushState.DISCONNECTED
        self._reset(PushState.COMPARE)

    def _reset(self, state: PushState) -> None:
        self.state = state
        self.probe_due_ms = None
        self.loading = False
        self.inflight.clear()
        self.inflight_bytes = 0
        self.committed_sent = -1

    def is_answer_to_probe(self, index: int) -> bool:
        return self.state is PushState.COMPARE and index == self.probe_index

    def matched(self, index: int) -> None:
        """Start pushing after `index`, where the probe matched."""
        assert self.state is PushState.COMPARE
        self.state = PushState.APPEND
        self.probe_due_ms = None
        self.next_index = index + 1

    def accepts_direct_push(self, first_index: int, max_inflight_bytes: int) -> bool:
        """Return True if a new batch at `first_index` can be pushed directly, without a read of the log."""
        return (
            self.next_index == first_index
            and self.state is PushState.APPEND
            and not self.loading
            and self.inflight_bytes < max_inflight_bytes
        )

    def keeps_pace(self, end_index: int, since_ms: int) -> bool:
        """Return True if the whole log has been pushed, and everything pushed before `since_ms` acknowledged.

        With `since_ms` one election time-out ago, this is the rule of the Raft thesis (section 4.2.1): the
        last round of catching up took less than an election time-out.
        """
        is_pushed = self.state is PushState.APPEND and not self.loading and self.next_index > end_index
        return is_pushed and (not self.inflight or self.inflight[0][2] >= since_ms)

    def pushed(self, last_index: int, byte_size: int, now_ms: int) -> None:
        assert self.state is PushState.APPEND and last_index >= self.next_index
        self.next_index = last_index + 1
        self.inflight.append((last_index, byte_size, now_ms))
        self.inflight_bytes += byte_size

    def acknowledged(self, index: int, now_ms: int, *, counts: bool = True) -> bool:
        """Record that the follower holds entries up to `index`, durable and verified.

        Returns True if this advances its match index.
        """
        while self.inflight and self.inflight[0][0] <= index:
            _, byte_size, self.acked_pushed_ms = self.inflight.popleft()
            self.inflight_bytes -= byte_size
        assert self.inflight_bytes >= 0
        if index > self.stored_index:
            self.stored_index = index
            self.last_active_ms = now_ms
        if not counts or index <= self.match_index:
            return False
        self.match_index = index
        return True
