"""Candidacies, the wait for a successor, and the comparison of logs in a vote request.

Rules 3 and 5 of docs/guarantees.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.core.effects import TransferEnded
from dledger.core.log_view import LogView
from dledger.core.messages import VoteRequest
from dledger.core.quorum import can_still_win, is_majority
from dledger.core.values import Membership, VoteResult
from dledger.errors import Code


@dataclass(slots=True)
class Candidacy:
    """One round of vote requests. A pre-vote requests term + 1 without adopting it."""

    membership: Membership
    pre_vote: bool
    transfer: bool
    term: int  # the term campaigned in
    round: int
    cause: str
    deadline_ms: int
    granted: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    leader_alive: bool = False  # some voter refused because it is in contact with a live leader

    @property
    def won(self) -> bool:
        return is_majority(self.membership, self.granted)

    @property
    def lost(self) -> bool:
        return not can_still_win(self.membership, self.refused)

    def count(self, voter_id: str, result: VoteResult) -> None:
        """Count a response to this round. Repeated responses of one voter count once."""
        if result is VoteResult.ACCEPT:
            self.granted.add(voter_id)
        else:
            self.refused.add(voter_id)
            self.leader_alive |= result is VoteResult.REJECT_ALREADY_HAS_LEADER


@dataclass(slots=True)
class Shortcut:
    """Early pre-votes of a follower whose leader is silent, or whose stream from the leader broke without
    GOODBYE (guarantees.md rule 5).
    """

    leader_id: str
    next_ms: int  # time of the next attempt
    cause: str
    attempts: int = 0  # attempts so far


@dataclass(slots=True)
class SuccessorWait:
    """A transfer after this node has stepped down for it: it ends once a leader is known, which may be a
    node other than the requested one."""

    request_id: int
    to: str
    due_ms: int  # when this node gives up

    def overdue(self) -> TransferEnded:
        text = f"{self.to} campaigned, but no leader is known yet"
        return TransferEnded(self.request_id, Code.TAKE_LEADERSHIP_FAILED, text)

    def elected(self, leader_id: str, term: int) -> TransferEnded:
        if leader_id == self.to:
            return TransferEnded(self.request_id, Code.SUCCESS, f"{leader_id} leads term {term}")
        text = f"{leader_id} was elected in place of {self.to}"
        return TransferEnded(self.request_id, Code.TAKE_LEADERSHIP_FAILED, text)


def compare_logs(request: VoteRequest, log: LogView) -> VoteResult:
    """Decide whether a voter with `log` may elect this candidate, by (ledger_end_term, ledger_end_index).

    ledger_end_term is the stored term of the last entry. Comparing the node's current term instead lost
    data in DLedger (issues 52, 53).
    """
    if request.ledger_end_term < log.end_term:
        return VoteResult.REJECT_EXPIRED_LEDGER_TERM
    if request.ledger_end_term == log.end_term and request.ledger_end_index < log.end_index:
        return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    return VoteResult.ACCEPT
