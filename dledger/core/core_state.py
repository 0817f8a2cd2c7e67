"""The node state that all parts of the core share, and the operations that they request from the core.

`RaftCore` is the only subclass. `Leadership`, `Follower` and `RejoinProcess` depend on this interface only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from dledger.core.commit_stall import CommitStallGuard
from dledger.core.effects import CommitAdvanced, Effect, Fatal, SendMessage
from dledger.core.election import Candidacy, Shortcut
from dledger.core.leader_silence import LeaderSilence
from dledger.core.log_view import LogView
from dledger.core.member_clocks import MemberClocks
from dledger.core.messages import Message
from dledger.core.values import CoreConfig, HardState, OwnerFitness, Role
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
        self.membership = config.membership
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
        self.stall_guard = CommitStallGuard(self.timing)
        self.silence = LeaderSilence(self.timing)
        self.may_lead = True  # False while damaged, out of disk space, or waiting for a state image
        self.has_room = True
        self.owner: OwnerFitness | None = None  # reported by the program that owns this node
        self.member_clocks = MemberClocks()
        self.campaigned_ms = LONG_AGO_MS  # when this node last requested votes
        self.fsync_began_ms: int | None = None
        self.stopped: Fatal | None = None
        self._effects: list[Effect] = []
        log.verified_index = self.committed_index

    @property
    def term(self) -> int:
        return self.hard_state.term

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
    def await_successor(self, request_id: int, to: str, deadline_ms: int) -> None:
        """Report a transfer once a leader is known, which may be a node other than the requested one."""

    @abstractmethod
    def change_hard_state(self, hard_state: HardState) -> None:
        """Persist the state after `RejoinProcess` has changed it. Keeps the vote."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Report the durable index to the leader, even if unchanged."""
