"""Outputs of `RaftCore.step`: the closed set of effects, executed in order."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.messages import Append, Message
from dledger.core.values import Base, HardState, Membership, MembershipAt, Role
from dledger.errors import Code


@dataclass(slots=True)
class PersistHardState:
    """Make the hard state durable. No later SendMessage or push effect may leave the node before that."""

    hard_state: HardState


@dataclass(slots=True)
class SendMessage:
    """Send to `peer`, in order with other messages to that peer. The shell sets the chain_crc of a
    COMPARE."""

    peer: str
    message: Message


@dataclass(slots=True)
class PushAppended:
    """Send `message` on its stream with the bytes of the range just appended, which it covers completely.
    The core counts the range as pushed.
    """

    peer: str
    message: Append


@dataclass(slots=True)
class PushRange:
    """Read whole batches starting at first_index: at least one, at most max_bytes in total, and none after
    last_index. Send them as an Append on the stream and report the range with an EntriesPushed event.
    """

    peer: str
    stream_id: int
    first_index: int
    last_index: int
    max_bytes: int
    prev_term: int


@dataclass(slots=True)
class AppendNoop:
    """On a new leader, append an empty internal entry of this term immediately, in a separate group, and
    report it with an EntriesAppended event.
    """

    term: int


@dataclass(slots=True)
class AppendMembership:
    """On a leader, append a configuration entry and report it with an EntriesAppended event."""

    membership: Membership


@dataclass(slots=True)
class StoreEntries:
    """On a follower, write the entries of `message` starting at first_index. All earlier entries are already
    stored.
    """

    message: Append
    first_index: int


@dataclass(slots=True)
class TruncateLog:
    """Delete all entries after `last_index`. Reports of writes of older generations are ignored."""

    last_index: int
    generation: int


@dataclass(slots=True)
class ResetLog:
    """Drop the whole log and start after `base`. Reports of writes of older generations are ignored."""

    base: Base
    generation: int


@dataclass(slots=True)
class CommitAdvanced:
    committed_index: int


@dataclass(slots=True)
class RoleChanged:
    """The role, the term or the known leader changed. role_epoch increases only if the role changed."""

    role: Role
    term: int
    role_epoch: int
    leader_id: str | None
    # start, timeout, stream-lost, leader-silent, transfer, rejoined-peer, higher-term, quorum-lost,
    # disk-stalled, commit-stalled, leader-seen, won
    cause: str
    detail: str = ""  # details for the log; may be empty


@dataclass(slots=True)
class MembershipChanged:
    """Another configuration is in force. `peers`: the members to be connected to, which may include some that
    the configuration no longer has."""

    in_force: MembershipAt
    peers: tuple[str, ...]


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
    code: Code  # SUCCESS: `to` leads; otherwise the reason for the failure
    message: str


@dataclass(slots=True)
class ChangeEnded:
    """A change of the members has ended. SUCCESS: it is committed."""

    request_id: int
    code: Code
    message: str


@dataclass(slots=True)
class MessageRefused:
    """The core ignored the message. Report the reason to the peer and to the operator."""

    peer: str
    message: Message
    reason: str


@dataclass(slots=True)
class Fatal:
    """A safety violation. The node must stop, report it prominently, and change nothing more."""

    code: Code
    reason: str


Effect = (
    PersistHardState
    | SendMessage
    | PushAppended
    | PushRange
    | AppendNoop
    | AppendMembership
    | MembershipChanged
    | StoreEntries
    | TruncateLog
    | ResetLog
    | CommitAdvanced
    | RoleChanged
    | ReadReady
    | ReadRefused
    | TransferEnded
    | ChangeEnded
    | MessageRefused
    | Fatal
)


def without_overtaken_state(effects: list[Effect]) -> list[Effect]:
    """Drop a pending PersistHardState, which a newer one replaces, if only announcements follow it.

    A higher term and the vote in that term then take one write instead of two, which matters on a slow disk.
    No other effect depends on the replaced state.
    """
    for position in range(len(effects) - 1, -1, -1):
        if isinstance(effects[position], PersistHardState):
            return effects[:position] + effects[position + 1 :]
        if not isinstance(effects[position], RoleChanged):
            break
    return effects
