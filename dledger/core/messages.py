"""Messages between the nodes of a group, as values.

Entry bytes are not here: an Append names a range, and whoever carries the message attaches the bytes of that
range. `term` is always the sender's current term, except in a pre-vote request, where it is the term that the
sender would campaign in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from dledger.core.values import Base, OwnerFitness, TermRun, VoteResult
from dledger.errors import Code


class PushType(IntEnum):
    """Kinds of leader-to-follower messages, in DLedger's words (GOODBYE is ours)."""

    APPEND = 1
    COMMIT = 2
    COMPARE = 3
    TRUNCATE = 4
    INSTALL_BASE = 5
    GOODBYE = 6


@dataclass(slots=True)
class VoteRequest:
    term: int
    candidate_id: str
    ledger_end_index: int
    ledger_end_term: int
    pre_vote: bool
    transfer: bool  # the leader asked for this candidacy (TakeLeadership): stickiness does not apply
    round: int  # of the candidate, returned: answers to older rounds are dropped


@dataclass(slots=True)
class VoteResponse:
    term: int
    voter_id: str
    result: VoteResult
    pre_vote: bool
    round: int


@dataclass(slots=True)
class Heartbeat:
    term: int
    leader_id: str
    round: int  # grows with every round of this leader; confirms reads that were asked for before it
    committed_index: int


@dataclass(slots=True)
class HeartbeatResponse:
    term: int
    node_id: str
    round: int
    success: bool  # False: the sender's term is higher, or the message was not from its leader
    counts: bool = True  # False: a rejoining node; its answer is no part of any majority (rule 11)
    has_room: bool = True  # False: its disk is full; leadership is not handed to it (rule 9)
    owner: OwnerFitness | None = None  # None: nothing was said, perhaps by an older version
    stored_all: bool = (
        False  # all that was pushed to it is durable; False from an older version, too (rule 14)
    )


@dataclass(slots=True)
class Compare:
    """Does your log hold (index, index_term), and with this chain? index -1 always matches."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    index: int
    index_term: int
    chain_crc: int = 0  # filled in from the log by whoever sends it


@dataclass(slots=True)
class Truncate:
    """Delete from `index` on, if and only if the entry there has another term than `index_term`."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    index: int
    index_term: int


@dataclass(slots=True)
class Append:
    """Entries first_index..last_index follow (prev_index, prev_term). `runs`: their terms, never empty."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    prev_index: int
    prev_term: int
    first_index: int
    last_index: int
    runs: tuple[TermRun, ...]

    def __post_init__(self) -> None:
        assert self.prev_index + 1 == self.first_index <= self.last_index
        assert self.runs and self.runs[0].first_index == self.first_index


@dataclass(slots=True)
class Commit:
    term: int
    leader_id: str
    stream_id: int
    committed_index: int


@dataclass(slots=True)
class Goodbye:
    """The leader ends this push stream on purpose: its end is no sign that the leader died."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    reason: str


@dataclass(slots=True)
class InstallBase:
    """Your log ends before mine begins: forget it and begin after `base`."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    base: Base


PushMessage = Compare | Truncate | Append | Commit | Goodbye | InstallBase


@dataclass(slots=True)
class PushResponse:
    """Answer on a push stream.

    SUCCESS: `index` matches (COMPARE, TRUNCATE) or is durable and verified (APPEND).
    INCONSISTENT_STATE: `index` is the probe that failed; `conflict_term` is the term of the follower's entry
    there (-1: it has none), `conflict_index` the first index it holds of that term (or its end + 1).
    EXPIRED_TERM: `term` is higher than the leader's.
    DATA_DAMAGED: `conflict_index` is the first entry of the damage that was met, -1 if that is not known yet.
    """

    term: int
    node_id: str
    stream_id: int
    code: Code
    type: PushType
    index: int
    ledger_begin_index: int
    ledger_end_index: int
    conflict_term: int = -1
    conflict_index: int = -1
    counts: bool = True  # False: the node is barred; what it stores is no part of any majority (rule 11)
    awaits_new_term: bool = False  # it has all it must have, and will count from the next term on
    has_room: bool = True  # as in a HeartbeatResponse, and known before what is in flight has filled the rest
    owner: OwnerFitness | None = None


@dataclass(slots=True)
class PositionRequest:
    """A rejoining node asks every other member how far the log may have been acknowledged."""

    term: int
    node_id: str
    round: int


@dataclass(slots=True)
class PositionResponse:
    term: int
    node_id: str
    round: int
    ledger_end_term: int
    ledger_end_index: int
    rejoining: bool = False  # it lost its log as well: where that ended now says nothing


@dataclass(slots=True)
class TakeLeadership:
    term: int
    leader_id: str
    take_leadership_index: int  # the leader's ledger_end_index


@dataclass(slots=True)
class TakeLeadershipResponse:
    term: int
    node_id: str
    code: Code


Message = (
    VoteRequest
    | VoteResponse
    | Heartbeat
    | HeartbeatResponse
    | PushMessage
    | PushResponse
    | PositionRequest
    | PositionResponse
    | TakeLeadership
    | TakeLeadershipResponse
)
