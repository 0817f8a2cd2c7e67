"""Everything that can happen to a Raft core. The closed set of inputs of `RaftCore.step`."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.messages import Message
from dledger.core.values import Base, OwnerFitness


@dataclass(slots=True)
class Tick:
    """Time has passed. Timers are judged by the `now_ms` that goes with every event. `fsync_began_ms`: when
    the fsync that is under way began, on the same clock; None: none is."""

    fsync_began_ms: int | None = None


@dataclass(slots=True)
class Receive:
    """A message from a peer. `chain_matches` answers, for a COMPARE, whether the chain checksum stored here
    at its index equals the one in the message (None: no such entry here)."""

    peer: str
    message: Message
    chain_matches: bool | None = None


@dataclass(slots=True)
class Appended:
    """The leader's own node put a range after the end of its log (not yet durable)."""

    first_index: int
    last_index: int
    term: int
    byte_size: int


@dataclass(slots=True)
class Stored:
    """The log up to last_index (of `term`) is durable. `generation` is that of the write."""

    last_index: int
    term: int
    generation: int


@dataclass(slots=True)
class StreamUp:
    """Leader: a push stream to `peer` is open and the handshake is done. stream_id never repeats."""

    peer: str
    stream_id: int
    incarnation: int


@dataclass(slots=True)
class StreamDown:
    """Leader: that push stream has ended."""

    peer: str
    stream_id: int


@dataclass(slots=True)
class LeaderStreamLost:
    """Follower: the push stream from `leader_id` ended without a GOODBYE (docs/guarantees.md rule 5)."""

    leader_id: str
    stream_id: int


@dataclass(slots=True)
class Pushed:
    """Leader: the answer to a PushRange. The range was handed to the stream; an empty range (last < first)
    says that nothing could be read and the peer is to be probed again."""

    peer: str
    stream_id: int
    first_index: int
    last_index: int
    byte_size: int


@dataclass(slots=True)
class ReadIndexRequest:
    request_id: int


@dataclass(slots=True)
class TransferRequest:
    """An operator, or a graceful stop, asks this leader to hand over. to=None: to the best peer."""

    request_id: int
    to: str | None


@dataclass(slots=True)
class Fitness:
    """What this node is fit for has changed: damaged below its end, without room, or waiting for a state
    image, it does not campaign; a leader without room hands over to a peer that has some. `owner`: what the
    program says that owns it, None: nothing."""

    may_lead: bool
    has_room: bool
    owner: OwnerFitness | None = None


@dataclass(slots=True)
class Purged:
    """A committed PURGE is being carried out: the log begins after `base` now."""

    base: Base


@dataclass(slots=True)
class Settled:
    """Leader: all that a commit released has been appended and pushed. Followers that nothing was pushed to
    are told the committed index now."""


Event = (
    Tick
    | Receive
    | Appended
    | Stored
    | StreamUp
    | StreamDown
    | LeaderStreamLost
    | Pushed
    | ReadIndexRequest
    | TransferRequest
    | Settled
    | Fitness
    | Purged
)
