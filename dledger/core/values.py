"""Values shared by the Raft core and the log store: positions, terms and ranges, without entry bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import NamedTuple

#: Upper limits of received numbers. All are 64 bits wide on the wire and on disk. Values derived from a
#: number within its limit (the next term, the end of an entry, an epoch) still fit.
MAX_TERM = 1 << 62
MAX_INDEX = 1 << 62
MAX_POS = 1 << 62
#: role_epoch and vote rounds start at the incarnation times 2^32.
MAX_INCARNATION = (1 << 31) - 1
MAX_UID = (1 << 63) - 1
MAX_RECOVERIES = 1 << 31  # forced recoveries in the history of a log
MAX_SESSION_OFFSET = 1 << 62  # of a forced recovery
MAX_STREAM_ID = (1 << 63) - 1  # starts at a role_epoch, like vote rounds
#: Version of the rules for applying committed entries. Raised when an existing entry or command changes
#: its meaning. Nodes with different rules refuse each other. Release 0.1.0 has 1 and does not send it.
RULES_VERSION = 3
#: What this release can do in addition to release 0.2, which announces 0. 1: changes of the members. A
#: feature is used once all members have announced it; from then on, older releases are refused.
FEATURES = 1
#: Bytes in front of the body of every entry, in files, in positions and between nodes (docs/formats.md).
ENTRY_HEADER_SIZE = 48


class Role(Enum):
    """Raft role of a node (DLedger's MemberState.Role)."""

    UNKNOWN = "UNKNOWN"
    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


class OwnerFitness(NamedTuple):
    """Fitness reported by the program that owns a node."""

    lag_bytes: int  # committed bytes of the log that it has yet to apply
    fit: bool  # False: it should preferably not lead


class FlushMode(Enum):
    """Determines when an append is acknowledged. It is part of a cluster's identity and must be equal on all
    nodes."""

    SYNC_FLUSH = "SYNC_FLUSH"  # durable (fdatasync returned) on a majority
    ASYNC_FLUSH = "ASYNC_FLUSH"  # written but not flushed on a majority


class TermRun(NamedTuple):
    """Entries of one term are contiguous: `first_index` is the first entry stored with `term`."""

    term: int
    first_index: int


class Base(NamedTuple):
    """The last purged entry, where a log starts. The empty log starts at NO_BASE."""

    index: int  # type: ignore[assignment]  # index of the last purged entry, -1 when nothing was purged
    term: int  # its term, -1 likewise
    pos: int  # position of the first byte that is kept
    chain_crc: int  # its chain checksum, 0 likewise


NO_BASE = Base(-1, -1, 0, 0)


class Tail(NamedTuple):
    """The end of a log, with everything needed to append to it."""

    index: int  # type: ignore[assignment]  # ledger_end_index, -1 when empty
    term: int  # ledger_end_term: the stored term of that entry, -1 when empty
    pos: int  # byte position after its last byte
    chain_crc: int  # its chain checksum, 0 when empty


EMPTY_TAIL = Tail(-1, -1, 0, 0)


#: The uid of a new member that no leader has contacted yet, or of a node that is no member.
UNKNOWN_UID = -1


def member_key(node_id: str, uid: int) -> str:
    """Return the key of a member in tables that also contain earlier members with its node id."""
    return node_id if uid == 0 else f"{node_id}\\{uid}"


class Member(NamedTuple):
    """A member of a configuration. Its uid tells it from earlier members with the same node id."""

    node_id: str
    uid: int  # 0: a member since the log began; otherwise unique, and greater than those before it
    address: str
    #: Number of its newest directory that the leader knew when it wrote the entry (dledger.core.directories).
    directory: int = 0


class Recovery(NamedTuple):
    """A forced recovery, which founded a new cluster on one member's log (dledger.store.offline.recover)."""

    number: int = 0  # of forced recoveries in the history of the log; 0: none
    #: Added to the index of an OPEN entry to give the id of its session. It is greater than all ids of former
    #: clusters, which may have opened sessions in entries that are lost, and partly random.
    session_offset: int = 0


NO_RECOVERY = Recovery()


@dataclass(frozen=True, slots=True)
class Membership:
    """A configuration: who votes and who receives the log.

    While the voters change, it is *joint*: decisions need a majority of `voters` and one of `outgoing`, the
    voters before the change (Raft thesis, section 4.3). Learners receive the log and count nowhere. Quorums
    are computed from these sets, never from a number of nodes.
    """

    voters: tuple[str, ...]
    outgoing: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()  # while joint, also the outgoing voters that become learners
    identities: tuple[Member, ...] = ()  # of all members, by node id
    recovery: Recovery = NO_RECOVERY  # the last one; all later configurations repeat it

    def __post_init__(self) -> None:
        assert self.voters, "a cluster has at least one voter"
        for names in (self.voters, self.outgoing, self.learners):
            assert len(set(names)) == len(names), f"duplicate member in {names}"
        assert not set(self.voters) & set(self.learners), f"voters and learners: {self}"

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def halves(self) -> tuple[tuple[str, ...], ...]:
        """The sets of voters of which each needs a majority."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)

    @property
    def electors(self) -> tuple[str, ...]:
        """All whose votes and acknowledgments count."""
        return self.voters if not self.outgoing else tuple(dict.fromkeys((*self.voters, *self.outgoing)))

    @property
    def nodes(self) -> tuple[str, ...]:
        """All that receive the log."""
        return tuple(dict.fromkeys((*self.electors, *self.learners)))

    def role_of(self, node_id: str) -> str:
        """Return "voter", "leaving" (a voter until the change is committed) or "learner"."""
        if node_id in self.voters:
            return "voter"
        return "leaving" if node_id in self.outgoing else "learner"

    def member(self, node_id: str) -> Member | None:
        return next((member for member in self.identities if member.node_id == node_id), None)

    def uid_of(self, node_id: str) -> int:
        """Return the uid of a member, or UNKNOWN_UID."""
        member = self.member(node_id)
        return UNKNOWN_UID if member is None else member.uid

    def others(self, node_id: str) -> tuple[str, ...]:
        """All that receive the log, without this node."""
        return tuple(node for node in self.nodes if node != node_id)


class MembershipAt(NamedTuple):
    """A configuration, with index and term of its entry; -1: it is in force from the beginning of the log."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    membership: Membership


@dataclass(frozen=True, slots=True)
class HardState:
    """State that must be durable before any message that depends on it leaves (docs/guarantees.md rule 2)."""

    term: int = 0
    voted_for: str | None = None
    incarnation: int = 0
    # docs/guarantees.md rule 11. A node that lost its log, or the end of it, neither votes nor counts while
    # it is `rejoining`, nor later in any term up to `barred_term`: it may have voted or acknowledged there.
    rejoining: bool = False
    barred_term: int = -1
    floor_term: int = -1  # (floor_term, floor_index): the known end of its damaged log
    floor_index: int = -1
    # By member_key, sorted: the number of the member's newest known directory (dledger.core.directories).
    # Includes this node.
    directories: tuple[tuple[str, int], ...] = ()
    # The configuration at the base and all later ones, in log order. Each is here before its entry is in the
    # log, so those that do not agree with the log count for nothing.
    memberships: tuple[MembershipAt, ...] = ()
    # As which member the node was added. UNKNOWN_UID until the leader that added it says so; it never changes
    # afterwards. A machine that was replaced keeps its uid, and is thereby told from its successor.
    uid: int = 0

    def directory_of(self, key: str) -> int:
        """Return the number of a member's newest known directory, 0 if none is known."""
        return next((number for member, number in self.directories if member == key), 0)

    def with_directories(self, numbers: Mapping[str, int]) -> HardState:
        return replace(self, directories=tuple(sorted({**dict(self.directories), **numbers}.items())))

    @property
    def is_barred(self) -> bool:
        """Return True if the node may neither vote nor count in its current term."""
        return self.rejoining or self.term <= self.barred_term


class VoteResult(IntEnum):
    """The subset of DLedger's vote results that Raft with pre-vote uses."""

    ACCEPT = 0
    REJECT_EXPIRED_LEDGER_TERM = 1  # the voter's last entry has a higher term
    REJECT_SMALL_LEDGER_END_INDEX = 2  # same last term, but the voter's log is longer
    REJECT_EXPIRED_VOTE_TERM = 3  # the voter's term is higher
    REJECT_ALREADY_VOTED = 4
    REJECT_ALREADY_HAS_LEADER = 5  # stickiness: this voter is in contact with a live leader
    REJECT_UNKNOWN_MEMBER = 6
    REJECT_NOT_READY = 7  # the voter lost its log and may have voted in this term before (rule 11)


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in milliseconds of monotonic time."""

    heartbeat_ms: int = 150
    election_min_ms: int = 1000
    election_max_ms: int = 2000
    # docs/guarantees.md rule 5: minimum silence of the leader after which a follower starts an early
    # pre-vote; 0: none.
    silence_ms: int = 0
    transfer_timeout_ms: int = 1000
    preferred_check_ms: int = 1000
    # docs/guarantees.md rule 5: a follower whose stream from the leader broke without GOODBYE starts an early
    # pre-vote.
    shortcut_max_wait_ms: int = 100
    shortcut_retry_min_ms: int = 20
    shortcut_retry_max_ms: int = 60
    shortcut_retries: int = 3
    # Rule 9: a leader whose oldest fsync takes longer steps down, if the disks of the others work.
    fsync_stall_ms: int = 4000
    # Rule 14: a leader with uncommitted entries that commits nothing for this time steps down.
    commit_stall_ms: int = 10_000

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ms * 2 <= self.election_min_ms < self.election_max_ms


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Settings of a core."""

    node_id: str
    timing: Timing = field(default_factory=Timing)
    flush_mode: FlushMode = FlushMode.SYNC_FLUSH
    preferred_leaders: tuple[str, ...] = ()
    max_inflight_bytes: int = 16 << 20  # pushed but unacknowledged, per follower
    max_push_bytes: int = 1 << 20
    max_transfer_lag: int = 1000  # entries: a transfer to a peer further behind is refused (DLedger's number)
