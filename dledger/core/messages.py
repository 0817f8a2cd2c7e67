"""Value types for the messages between the nodes of a group.

Messages contain no entry bytes: an Append names a range, and the transport attaches the bytes of that range.
`term` is the sender's current term, except in a pre-vote request, where it is the term of the intended
candidacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from dledger.core.cluster_clock import CountedTime
from dledger.core.values import FEATURES, Base, MembershipAt, OwnerFitness, TermRun, VoteResult
from dledger.errors import Code


class PushType(IntEnum):
    """Kinds of leader-to-follower messages, with DLedger's names (GOODBYE is an addition)."""

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
    transfer: bool  # the leader requested this candidacy (TakeLeadership): stickiness does not apply
    round: int  # number chosen by the candidate, echoed in responses: older rounds are dropped
    wall_ms: int | None = None  # the sender's clock, see `CLOCKED`


@dataclass(slots=True)
class VoteResponse:
    term: int
    voter_id: str
    result: VoteResult
    pre_vote: bool
    round: int
    wall_ms: int | None = None
    cluster_time: CountedTime | None = None  # count of the voter


@dataclass(slots=True)
class Heartbeat:
    term: int
    leader_id: str
    round: int  # increases with every round of this leader; confirms reads requested before it
    committed_index: int
    wall_ms: int | None = None
    cluster_time: CountedTime | None = None  # count of the leader
    image_index: int = -1  # mark of the leader's newest state image


@dataclass(slots=True)
class HeartbeatResponse:
    term: int
    node_id: str
    round: int
    success: bool  # False: the sender's term is higher, or the message was not from its leader
    counts: bool = True  # False: a rejoining node, whose response counts for no majority (rule 11)
    has_room: bool = True  # False: its disk is full; leadership is not handed to it (rule 9)
    owner: OwnerFitness | None = None  # None: not reported, perhaps by an older version
    stored_all: bool = False  # all pushed entries are durable; False from an older version, too (rule 14)
    wall_ms: int | None = None
    features: int = FEATURES  # of the sender's release
    image_index: int = -1  # mark of the sender's newest state image, which is durable


@dataclass(slots=True)
class Compare:
    """A probe: does the follower's log contain (index, index_term) with this chain checksum? Index -1 always
    matches."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    index: int
    index_term: int
    chain_crc: int = 0  # filled in from the log by the sending shell


@dataclass(slots=True)
class Truncate:
    """Delete `index` and all later entries, but only if the term of the entry at `index` differs from
    `index_term`."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    index: int
    index_term: int


@dataclass(slots=True)
class Append:
    """Entries first_index..last_index, which follow (prev_index, prev_term). `runs`: their terms, never
    empty.
    """

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
    """Ends a push stream intentionally, so that the follower does not suspect that the leader has failed."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    reason: str


@dataclass(slots=True)
class InstallBase:
    """Replace the follower's log, which ends before the leader's log starts, with an empty log after
    `base`, where `membership` is in force."""

    term: int
    leader_id: str
    stream_id: int
    committed_index: int
    base: Base
    membership: MembershipAt | None = None  # None: from an older version, whose configuration never changes


PushMessage = Compare | Truncate | Append | Commit | Goodbye | InstallBase


@dataclass(slots=True)
class PushResponse:
    """Response on a push stream.

    SUCCESS: `index` matches (COMPARE, TRUNCATE) or is durable and verified (APPEND).
    INCONSISTENT_STATE: `index` is the probe that failed; `conflict_term` is the term of the follower's entry
    there (-1: it has none), `conflict_index` the first index it holds of that term (or its end + 1).
    EXPIRED_TERM: `term` is higher than the leader's.
    DATA_DAMAGED: `conflict_index` is the first entry of the damage, -1 if not known yet.
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
    counts: bool = True  # False: the node is barred; its log counts for no majority (rule 11)
    awaits_new_term: bool = False  # holds everything it must hold, and will count from the next term on
    has_room: bool = True  # like HeartbeatResponse.has_room, and known before entries in flight fill the rest
    owner: OwnerFitness | None = None


@dataclass(slots=True)
class PositionRequest:
    """Query from a rejoining node to every other member: up to which index may the log have been
    acknowledged?"""

    term: int
    node_id: str
    round: int
    directory: int = 0  # number of its directory (dledger.core.directories); 0: an older version
    uid: int = 0  # of the sender; UNKNOWN_UID: it has none yet
    features: int = FEATURES  # of the sender's release


@dataclass(slots=True)
class PositionResponse:
    term: int
    node_id: str
    round: int
    ledger_end_term: int
    ledger_end_index: int
    rejoining: bool = False  # the sender lost its log as well, so its end is meaningless
    directories: tuple[tuple[str, int], ...] = ()  # the sender's HardState.directories
    # The sender's newest committed configuration and all later ones; empty: from an older version.
    memberships: tuple[MembershipAt, ...] = ()


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


#: Messages that carry the sender's wall clock (rule 12), in ms since the Unix epoch, read when they leave the
#: node. None: from version 0.1.0, or the sender's clock shows an impossible time.
CLOCKED = (VoteRequest, VoteResponse, Heartbeat, HeartbeatResponse)
#: The subset that also carries the sender's count of cluster time, read at the same moment.
COUNTED = (VoteResponse, Heartbeat)

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
