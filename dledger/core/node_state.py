"""The state of one node of a group that all parts of the core share, and what a part may ask of the whole.

`RaftCore` is the one class made of it. `Leadership`, `Following` and `Rejoining` know no more of the core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from dledger.core.commit_stall import CommitStall
from dledger.core.effects import CommitAdvanced, Effect, Fatal, Send
from dledger.core.election import Candidacy, Shortcut
from dledger.core.log_view import LogView
from dledger.core.messages import Message
from dledger.core.values import CoreConfig, HardState, OwnerFitness, Role
from dledger.errors import Code

ROLE_EPOCHS_PER_INCARNATION = 1 << 32
ROUNDS_PER_INCARNATION = 1 << 32
LONG_AGO_MS = -(1 << 60)


class NodeState(ABC):
    def __init__(
        self,
        config: CoreConfig,
        hard_state: HardState,
        log: LogView,
        committed_index: int,
        random_ms: Callable[[int, int], int],
    ) -> None:
        """committed_index is the one of the checkpoint; it is bounded by what the log holds (rule 8)."""
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
        # Answers to a former life must not fit a round of this one.
        self.vote_round = hard_state.incarnation * ROUNDS_PER_INCARNATION
        self.candidacy: Candidacy | None = None
        # The real one of this term: its votes are good until the term ends, whatever is asked meanwhile.
        self.standing: Candidacy | None = None
        self.shortcut: Shortcut | None = None
        self.stall = CommitStall(self.timing)
        self.may_lead = True  # not so while damaged, without room, or waiting for a state image
        self.has_room = True
        self.owner: OwnerFitness | None = None  # what the program says that owns this node
        self.fsync_began_ms: int | None = None
        self.stopped: Fatal | None = None
        self._effects: list[Effect] = []
        log.verified_index = self.committed_index

    @property
    def term(self) -> int:
        return self.hard_state.term

    @property
    def disk_is_stuck(self) -> bool:
        """An fsync has been under way for too long. Until one returns, nothing here becomes durable."""
        began = self.fsync_began_ms
        return began is not None and self.now_ms - began >= self.timing.fsync_stall_ms

    # -- effects of this step -----------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """What is still to be carried out."""
        effects, self._effects = self._effects, []
        return effects

    def fatal(self, code: Code, reason: str) -> None:
        """A safety rule would be broken: stop, and drop what else this step wanted to do."""
        self.stopped = Fatal(code, reason)
        self._effects = [self.stopped]

    def send(self, peer: str, message: Message) -> None:
        self.emit(Send(peer, message))

    def commit_to(self, index: int) -> None:
        assert index <= self.log.end_index
        if index > self.committed_index:
            self.committed_index = index
            self.stall.committed()
            self.emit(CommitAdvanced(index))

    # -- what only the whole can do -----------------------------------------------------------------------

    @property
    @abstractmethod
    def leads(self) -> bool:
        """Is there a leadership of this node?"""

    @abstractmethod
    def hear_leader(self, leader_id: str, term: int) -> bool:
        """A message of a leader of `term` has come. True if it is our leader now, and current."""

    @abstractmethod
    def step_down(self, cause: str, detail: str = "") -> None:
        """Give up leadership in the same term. It can be taken again only in a higher one."""

    @abstractmethod
    def campaign(self, cause: str, *, transfer: bool) -> None:
        """Stand for election in a term higher than any this node has stored (rule 3)."""

    @abstractmethod
    def await_successor(self, request_id: int, to: str, deadline_ms: int) -> None:
        """The transfer took our leadership; whether it gave it to the right node shows when one leads."""

    @abstractmethod
    def change_hard_state(self, hard_state: HardState) -> None:
        """For rejoining: bars and floors change, votes do not."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Tell the leader how far the log is durable here, even if it may know."""
