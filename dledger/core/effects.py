"""Everything a Raft core can ask for: the closed set of outputs of `RaftCore.step`, executed in order."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.messages import Append, Message
from dledger.core.values import Base, HardState, Role
from dledger.errors import Code


@dataclass(slots=True)
class PersistHardState:
    """Make this durable. No Send or Push effect that comes after it may leave the node before that."""

    hard_state: HardState


@dataclass(slots=True)
class Send:
    """Send to `peer`, in order with other sends to it. A COMPARE gets its chain_crc filled in."""

    peer: str
    message: Message


@dataclass(slots=True)
class PushAppended:
    """Send `message` on its stream with the bytes of the range that was just appended: it is the whole of it.
    The core counts it as pushed."""

    peer: str
    message: Append


@dataclass(slots=True)
class PushRange:
    """Read whole batches from first_index on, at least one, at most max_bytes, none past last_index; send
    them as an Append on the stream, and report the range with a Pushed event."""

    peer: str
    stream_id: int
    first_index: int
    last_index: int
    max_bytes: int
    prev_term: int


@dataclass(slots=True)
class AppendNoop:
    """A new leader: put an empty internal entry of this term after the end of the log, as a group of its
    own, at once, and report it with an Appended event."""

    term: int


@dataclass(slots=True)
class StoreEntries:
    """Follower: write the entries of `message` from first_index on (all before it are here already)."""

    message: Append
    first_index: int


@dataclass(slots=True)
class TruncateLog:
    """Delete everything above `last_index`. Completions of writes of older generations are void."""

    last_index: int
    generation: int


@dataclass(slots=True)
class ResetLog:
    """Forget the whole log and begin after `base`. Completions of older generations are void."""

    base: Base
    generation: int


@dataclass(slots=True)
class CommitAdvanced:
    committed_index: int


@dataclass(slots=True)
class RoleChanged:
    """Role, term or known leader changed. role_epoch grows with every change of role (not of leader)."""

    role: Role
    term: int
    role_epoch: int
    leader_id: str | None
    # start, timeout, stream-lost, transfer, rejoined-peer, higher-term, quorum-lost, disk-stalled,
    # commit-stalled, leader-seen, won
    cause: str
    detail: str = ""  # for the log, where the cause does not say it all


@dataclass(slots=True)
class ReadReady:
    """The read may be served once this node's committed index has reached read_index."""

    request_id: int
    read_index: int


@dataclass(slots=True)
class ReadRefused:
    request_id: int
    code: Code


@dataclass(slots=True)
class TransferEnded:
    request_id: int
    code: Code  # SUCCESS: `to` leads; otherwise why not
    message: str


@dataclass(slots=True)
class MessageRefused:
    """The message changed nothing, and gets no answer of the core: tell the peer and the operator why."""

    peer: str
    message: Message
    reason: str


@dataclass(slots=True)
class Fatal:
    """A safety rule would have been broken. The node must stop, loudly, and change nothing more."""

    code: Code
    reason: str


Effect = (
    PersistHardState
    | Send
    | PushAppended
    | PushRange
    | AppendNoop
    | StoreEntries
    | TruncateLog
    | ResetLog
    | CommitAdvanced
    | RoleChanged
    | ReadReady
    | ReadRefused
    | TransferEnded
    | MessageRefused
    | Fatal
)


def without_overtaken_state(effects: list[Effect]) -> list[Effect]:
    """A higher term and the vote in it are one write, if nothing but announcements came between: a slow disk
    has to do with one sync then, and nothing has left that depended on the first."""
    for at in range(len(effects) - 1, -1, -1):
        if isinstance(effects[at], PersistHardState):
            return effects[:at] + effects[at + 1 :]
        if not isinstance(effects[at], RoleChanged):
            break
    return effects
