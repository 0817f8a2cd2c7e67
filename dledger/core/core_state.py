"""The node state that all parts of the core share, and the operations that they request from the core.

`RaftCore` is the only subclass. `Leadership`, `Follower` and `RejoinProcess` depend on this interface only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from dledger.core.commit_stall import CommitStallGuard
from dledger.core.directories import newer_of
from dledger.core.effects import CommitAdvanced, Effect, Fatal, SendMessage
from dledger.core.election import Candidacy, Shortcut, SuccessorWait
from dledger.core.leader_silence import LeaderSilence
from dledger.core.log_view import LogView
from dledger.core.member_clocks import MemberClocks
from dledger.core.messages import Message
from dledger.core.values import (
    MAX_TERM,
    UNKNOWN_UID,
    CoreConfig,
    HardState,
    Membership,
    MembershipAt,
    OwnerFitness,
    Role,
    member_key,
)
from dledger.errors import Code

ROLE_EPOCHS_PER_INCARNATION = 1 << 32
ROUNDS_PER_INCARNATION = 1 << 32
LONG_AGO_MS = -(1 << 60)


class CoreState(ABC):
    def __init__(
        self,
        config: CoreConfig,
        hard_state: HardState,
        log: LogView,
        committed_index: int,
        random_ms: Callable[[int, int], int],
    ) -> None:
        """Start from the checkpoint's committed_index, limited to the range of the log (rule 8)."""
        self.config = config
        self.node_id = config.node_id
        self.timing = config.timing
        self.random_ms = random_ms
        self.hard_state = hard_state
        self.log = log
        self.committed_index = max(log.base.index, min(committed_index, log.end_index))
        self.role = Role.FOLLOWER
        self.leader_id: str | None = None
        self.role_epoch = hard_state.incarnation * ROLE_EPOCHS_PER_INCARNATION
        self.now_ms = 0
        self.last_leader_contact_ms = LONG_AGO_MS
        self.stickiness_dropped = False
        self.election_deadline_ms = 0
        # Responses to a previous incarnation must not match a round of this one.
        self.vote_round = hard_state.incarnation * ROUNDS_PER_INCARNATION
        self.candidacy: Candidacy | None = None
        # The real candidacy of this term. Its votes count until the term ends, even if pre-votes follow.
        self.standing: Candidacy | None = None
        self.shortcut: Shortcut | None = None
        self.successor_awaited: SuccessorWait | None = None
        self.stall_guard = CommitStallGuard(self.timing)
        self.silence = LeaderSilence(self.timing)
        self.may_lead = True  # False while damaged, out of disk space, or waiting for a state image
        self.has_room = True
        self.owner: OwnerFitness | None = None  # reported by the program that owns this node
        self.image_index = -1  # mark of this node's newest state image
        self.announced_image = -1  # mark of the newest one of the leader
        self.lacks_image = (
            False  # the log starts at an installed base, and no image of what is before has come
        )
        #: Base of the newest committed PURGE. This log may still start before it, but those of others do not.
        self.purged_index = -1
        self.images_in_files = False  # release 0.2 looks for them in the log only
        self.member_clocks = MemberClocks()
        self.features: dict[str, int] = {}  # by node id: announced since this process started
        self.campaigned_ms = LONG_AGO_MS  # when this node last requested votes
        self.fsync_began_ms: int | None = None
        self.stopped: Fatal | None = None
        self._effects: list[Effect] = []
        log.verified_index = self.committed_index

    @property
    def term(self) -> int:
        return self.hard_state.term

    @property
    def membership(self) -> Membership:
        return self.log.membership

    @property
    def members_have_changed(self) -> bool:
        """Return True once the log, or that of the group, has a change of the members."""
        return self.log.membership_index >= 0 or self.hard_state.uid != 0

    @property
    def excludes_release_0_2(self) -> bool:
        """Return True once the group has something that release 0.2 does not know."""
        return self.members_have_changed or self.images_in_files

    def outdated_members(self) -> list[str]:
        """Other members that are not known to run release 0.3 or later."""
        if self.excludes_release_0_2:
            return []
        return [p for p in self.membership.others(self.node_id) if self.features.get(p, 0) < 1]

    @property
    def is_member(self) -> bool:
        """Return True if the configuration in force has this node."""
        return self.hard_state.uid == self.membership.uid_of(self.node_id) != UNKNOWN_UID

    def known_uid(self, node_id: str) -> int:
        """Return the uid of a member of the configuration in force, or of this node; or UNKNOWN_UID."""
        return self.hard_state.uid if node_id == self.node_id else self.membership.uid_of(node_id)

    def key_of(self, node_id: str) -> str:
        return member_key(node_id, self.known_uid(node_id))

    def directory_of(self, node_id: str) -> int:
        """Return the number of the newest known directory of a member, also of this node; 0: unknown."""
        recorded = self.hard_state.directory_of(self.key_of(node_id))
        member = self.membership.member(node_id)
        if member is None or node_id == self.node_id:
            return recorded
        return newer_of(recorded, member.directory)

    def known_directories(self) -> tuple[tuple[str, int], ...]:
        """Return the numbers of the newest known directories by member_key, also those of the entry of the
        configuration in force."""
        in_force = {
            self.key_of(node): self.directory_of(node) for node in self.membership.others(self.node_id)
        }
        newest = {key: number for key, number in in_force.items() if number}
        return self.hard_state.with_directories(newest).directories

    def announced_uid(self, node_id: str) -> int:
        """Return the uid as which this node addresses a member, also of this node; or UNKNOWN_UID.

        The uid of a learner is announced once its addition is committed: a node keeps the first uid that it
        receives, and an addition that is undone would leave it with a uid that no configuration has.
        """
        if node_id == self.node_id or node_id in self.membership.electors:
            return self.known_uid(node_id)
        committed = self.log.memberships_from(min(self.committed_index, self.log.end_index))[0]
        uid = committed.membership.uid_of(node_id)
        return uid if uid == self.known_uid(node_id) else UNKNOWN_UID

    @property
    def disk_is_stuck(self) -> bool:
        """Return True if an fsync has run for fsync_stall_ms. Until it returns, nothing becomes durable on
        this node.
        """
        began = self.fsync_began_ms
        return began is not None and self.now_ms - began >= self.timing.fsync_stall_ms

    @property
    def silence_due_ms(self) -> int | None:
        """Return the time at which the leader's silence becomes suspicious, or None if it cannot."""
        if self.role is not Role.FOLLOWER or self.leader_id is None:
            return None
        if self.shortcut or self.stickiness_dropped or not self.silence.is_bounded:
            return None
        return max(self.last_leader_contact_ms + self.silence.bound_ms, self.stall_guard.candidate_from_ms)

    @property
    def may_campaign(self) -> bool:
        """Return True if this node may lead. If not, it leaves elections to the others (rules 9 to 11)."""
        able = self.may_lead and self.has_room and not self.hard_state.rejoining
        return able and self._is_electable and not self.disk_is_stuck and not self.term_is_exhausted

    @property
    def _is_electable(self) -> bool:
        """Return True if this node votes in a configuration that may be the one in force.

        A node whose removal is not committed may be the only one with enough entries to be elected (Raft
        thesis, section 4.2.2).
        """
        known = self.log.memberships_from(min(self.committed_index, self.log.membership_index))
        return any(
            self.node_id in at.membership.electors
            and at.membership.uid_of(self.node_id) == self.hard_state.uid  # not an earlier member
            for at in known
        )

    @property
    def next_term(self) -> int:
        """Term of the next candidacy. Skips terms in which a previous incarnation may
        have voted (rule 11).
        """
        return max(self.term, self.hard_state.barred_term) + 1

    @property
    def term_is_exhausted(self) -> bool:
        """Return True if there is no higher term. An operator must then set the term (docs/operations.md)."""
        return self.next_term > MAX_TERM

    # -- effects of this step -----------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """Return the pending effects and clear them."""
        effects, self._effects = self._effects, []
        return effects

    def fatal(self, code: Code, reason: str) -> None:
        """Stop the node because of a safety violation, and drop the other effects of this step."""
        self.stopped = Fatal(code, reason)
        self._effects = [self.stopped]

    def send(self, peer: str, message: Message) -> None:
        self.emit(SendMessage(peer, message))

    def commit_to(self, index: int) -> None:
        assert index <= self.log.end_index
        if index > self.committed_index:
            self.committed_index = index
            self.stall_guard.committed()
            self.emit(CommitAdvanced(index))

    # -- implemented by RaftCore --------------------------------------------------------------------------

    @property
    @abstractmethod
    def leads(self) -> bool:
        """Return True if this node is the leader."""

    @abstractmethod
    def on_leader_contact(self, leader_id: str, term: int) -> bool:
        """Process contact from a leader of `term`; return True if it is now the current leader."""

    @abstractmethod
    def step_down(self, cause: str, detail: str = "") -> None:
        """Give up leadership in the current term. Only a higher term can regain it."""

    @abstractmethod
    def campaign(self, cause: str, *, transfer: bool) -> None:
        """Stand for election in a term higher than any this node has stored (rule 3)."""

    @abstractmethod
    def change_hard_state(self, hard_state: HardState) -> None:
        """Persist the state after `RejoinProcess` has changed it. Keeps the vote."""

    @abstractmethod
    def note_memberships(self, new: MembershipAt | None = None) -> None:
        """Record the configurations of the log, and `new` if the log is about to be reset."""

    @abstractmethod
    def announce_peers(self) -> None:
        """Tell the shell which members this node must be connected to."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Report the durable index to the leader, even if unchanged."""
