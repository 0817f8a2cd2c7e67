"""Inputs of `RaftCore.step`: the closed set of events."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.membership_change import MembershipChange
from dledger.core.messages import Message
from dledger.core.values import Base, MembershipAt, OwnerFitness


@dataclass(slots=True)
class Tick:
    """Time has passed. Timers use the `now_ms` that accompanies every event.

    `fsync_began_ms` is the start of the running fsync on the same clock, None if no fsync is running.
    """

    fsync_began_ms: int | None = None


@dataclass(slots=True)
class MessageReceived:
    """A message from a peer. For a COMPARE, `chain_matches` is True if the stored chain checksum at its index
    equals the one in the message (None: the log has no such entry). `memberships`: configurations among the
    entries of an APPEND.
    """

    peer: str
    message: Message
    chain_matches: bool | None = None
    memberships: tuple[MembershipAt, ...] = ()


@dataclass(slots=True)
class EntriesAppended:
    """The leader appended a range to its own log. The range is not durable yet."""

    first_index: int
    last_index: int
    term: int
    byte_size: int
    memberships: tuple[MembershipAt, ...] = ()  # the configurations among them


@dataclass(slots=True)
class EntriesStored:
    """The log up to last_index (of `term`) is durable. `generation` is the generation of the write."""

    last_index: int
    term: int
    generation: int


@dataclass(slots=True)
class UidAssigned:
    """A member knows this node, which has no uid yet, as the member with this uid."""

    uid: int


@dataclass(slots=True)
class DirectorySeen:
    """A member uses a directory that supersedes the known one; see dledger.core.directories."""

    peer: str
    number: int


@dataclass(slots=True)
class StreamUp:
    """On a leader, a push stream to `peer` is open and its handshake is complete. stream_id never repeats."""

    peer: str
    stream_id: int
    incarnation: int


@dataclass(slots=True)
class StreamDown:
    """On a leader, that push stream has ended."""

    peer: str
    stream_id: int


@dataclass(slots=True)
class LeaderStreamLost:
    """On a follower, the push stream from `leader_id` ended without a GOODBYE (docs/guarantees.md rule 5)."""

    leader_id: str
    stream_id: int


@dataclass(slots=True)
class EntriesPushed:
    """On a leader, a PushRange completed and the range was passed to the stream. An empty range (last <
    first) means that the entries could not be read. The leader then probes the peer again.
    """

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
    """A request to hand over leadership, from an operator or for a graceful stop. If `to` is None, leadership
    goes to the best peer."""

    request_id: int
    to: str | None


@dataclass(slots=True)
class ChangeRequest:
    """A request to change the members."""

    request_id: int
    change: MembershipChange


@dataclass(slots=True)
class FitnessChanged:
    """The fitness of this node changed.

    A node does not campaign while its log has damage below its end, its disk is full, its state is being
    rebuilt, or it waits for a state image. If this applies to a leader, it hands over to a peer with free
    disk space. `owner`: fitness reported by the owning program, None if it reported none.
    """

    may_lead: bool
    has_room: bool
    owner: OwnerFitness | None = None


@dataclass(slots=True)
class LogPurged:
    """A committed PURGE is being executed: the log now starts after `base`."""

    base: Base


@dataclass(slots=True)
class CommitSettled:
    """On a leader, all appends that waited for a commit are now appended and pushed. Followers that received
    no push since the commit now receive the committed index.
    """


Event = (
    Tick
    | MessageReceived
    | EntriesAppended
    | EntriesStored
    | StreamUp
    | StreamDown
    | LeaderStreamLost
    | EntriesPushed
    | ReadIndexRequest
    | TransferRequest
    | ChangeRequest
    | CommitSettled
    | FitnessChanged
    | LogPurged
    | DirectorySeen
    | UidAssigned
)
