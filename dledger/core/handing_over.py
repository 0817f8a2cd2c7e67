"""Handing leadership over, on request or of the leader's own accord (docs/guarantees.md rules 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.core.core_state import CoreState
from dledger.core.effects import TransferEnded
from dledger.core.election import SuccessorWait
from dledger.core.messages import TakeLeadership, TakeLeadershipResponse
from dledger.core.progress import FollowerProgress, PushState
from dledger.core.values import OwnerFitness
from dledger.errors import Code

NO_REQUEST = -1  # request_id of a transfer to a preferred leader


@dataclass(slots=True)
class LeadershipTransfer:
    """A leadership transfer in progress. Appends fail with LEADER_TRANSFERRING until it ends."""

    request_id: int
    to: str
    deadline_ms: int
    prompted: bool = False  # TakeLeadership has been sent


class Leader(Protocol):
    """What a handover needs of the leadership."""

    @property
    def noop_is_committed(self) -> bool: ...
    @property
    def progress(self) -> Mapping[str, FollowerProgress]: ...
    def in_contact(self) -> Sequence[str]: ...


class HandingOver:
    def __init__(self, core: CoreState, leader: Leader) -> None:
        self._core = core
        self._leader = leader
        self.next_check_ms = core.now_ms + core.timing.preferred_check_ms
        self.running: LeadershipTransfer | None = None

    def resign(self, reason: str) -> None:
        core = self._core
        handover, self.running = self.running, None
        if handover and handover.request_id != NO_REQUEST:
            if handover.prompted:
                due_ms = handover.deadline_ms + core.timing.election_max_ms
                core.successor_awaited = SuccessorWait(handover.request_id, handover.to, due_ms)
            else:
                core.emit(TransferEnded(handover.request_id, Code.TAKE_LEADERSHIP_FAILED, reason))

    def tick(self) -> None:
        core = self._core
        if self.running and core.now_ms >= self.running.deadline_ms:
            self.fail(Code.TAKE_LEADERSHIP_FAILED, f"{self.running.to} did not take over in time")
        if core.now_ms >= self.next_check_ms:
            self.next_check_ms = core.now_ms + core.timing.preferred_check_ms
            if core.may_lead and core.has_room:
                self._hand_over_to_preferred()
            else:
                self._hand_over_to_able_peer()

    def members_changed(self) -> None:
        if self.running is not None and self.running.to not in self._core.membership.voters:
            self.fail(Code.UNKNOWN_MEMBER, f"{self.running.to} is no longer a voter")

    def transfer(self, request_id: int, to: str | None) -> None:
        core = self._core
        target = to if to is not None else self._most_complete_peer()
        problem = self._why_not(target)
        if target == core.node_id:
            core.emit(TransferEnded(request_id, Code.SUCCESS, "already leads"))
        elif problem:
            core.emit(TransferEnded(request_id, *problem))
        else:
            assert target is not None
            self.running = LeadershipTransfer(
                request_id, target, core.now_ms + core.timing.transfer_timeout_ms
            )
            self.advance()

    def _why_not(self, target: str | None) -> tuple[Code, str] | None:
        """Return why leadership cannot go to this member now, or None."""
        core = self._core
        if self.running:
            return Code.LEADER_TRANSFERRING, f"a transfer to {self.running.to} is under way"
        if target is None:
            return Code.TAKE_LEADERSHIP_FAILED, "no other member is connected"
        if target not in core.membership.voters:
            return (
                Code.UNKNOWN_MEMBER,
                f"{target} is not a member; members: {', '.join(core.membership.voters)}",
            )
        if target == core.node_id:
            return None
        p = self._leader.progress[target]
        if not p.counts or not p.has_room:
            return Code.ILLEGAL_MEMBER_STATE, f"{target} is rejoining, or its disk is full"
        if p.state is not PushState.APPEND or target not in self._leader.in_contact():
            return Code.FALL_BEHIND_TOO_MUCH, f"{target} is not connected, or has not been compared yet"
        lag = core.log.end_index - p.match_index
        if lag > core.config.max_transfer_lag:
            return Code.FALL_BEHIND_TOO_MUCH, f"{target} is {lag} entries behind, more than max_transfer_lag"
        return None

    def _most_complete_peer(self) -> str | None:
        """Return the peer with the highest match index among those that can lead. Peers whose owner is fit
        take precedence."""
        contact = self._leader.in_contact()
        able = [
            p
            for p in self._leader.progress.values()
            if p.state is PushState.APPEND and p.peer in contact and p.counts and p.has_room
            if p.peer in self._core.membership.voters
        ]
        if not able:
            return None
        preferred = self._core.config.preferred_leaders
        return max(able, key=lambda p: (p.owner_is_fit, p.match_index, p.peer in preferred)).peer

    def peer_with_least_backlog(self, mine: OwnerFitness | None) -> str | None:
        """Return the peer whose program has the least backlog, if that is less than ours or ours is unfit.

        Peers that have not reported their fitness are ignored. `mine` is the current fitness of this node's
        own program, which the core otherwise learns with the next tick.
        """
        mine = mine or OwnerFitness(0, True)
        able = [
            (p.owner.lag_bytes, -p.match_index, p.peer)
            for p in self._leader.progress.values()
            if p.owner is not None
            and p.owner.fit
            and (p.owner.lag_bytes < mine.lag_bytes or not mine.fit)
            and self._why_not(p.peer) is None
        ]
        return min(able)[2] if able else None

    def advance(self) -> None:
        handover, core = self.running, self._core
        if handover is None or handover.prompted:
            return
        if self._leader.progress[handover.to].match_index == core.log.end_index:
            handover.prompted = True
            core.send(handover.to, TakeLeadership(self._core.term, core.node_id, core.log.end_index))

    def on_response(self, peer: str, response: TakeLeadershipResponse) -> None:
        handover = self.running
        if handover and handover.to == peer and handover.prompted and response.code is not Code.SUCCESS:
            self.fail(Code.TAKE_LEADERSHIP_FAILED, f"{peer} answered {response.code.name}")

    def fail(self, code: Code, message: str) -> None:
        handover, self.running = self.running, None
        assert handover is not None
        # Give a preferred peer that failed time to recover before the next attempt.
        self.next_check_ms = self._core.now_ms + 10 * self._core.timing.preferred_check_ms
        if handover.request_id != NO_REQUEST:
            self._core.emit(TransferEnded(handover.request_id, code, message))

    def prompt_successor(self) -> None:
        """Send TakeLeadership to the most complete peer before this node steps down, so that no follower
        waits for its election timeout.
        """
        core, successor = self._core, self._most_complete_peer()
        if successor is not None:
            match_index = self._leader.progress[successor].match_index
            core.send(successor, TakeLeadership(self._core.term, core.node_id, match_index))

    def _hand_over_to_able_peer(self) -> None:
        """Hand over from a damaged or full node to a peer that has disk space, if one is caught up (rules 9
        and 10).
        """
        peer = self._most_complete_peer()
        if peer is not None and self._leader.noop_is_committed and self._why_not(peer) is None:
            self.transfer(NO_REQUEST, peer)

    def _hand_over_to_preferred(self) -> None:
        core = self._core
        preferred = core.config.preferred_leaders
        if not preferred or core.node_id in preferred or self.running or not self._leader.noop_is_committed:
            return
        for peer in preferred:
            p = self._leader.progress.get(peer)
            if p is not None and p.owner_is_fit and self._why_not(peer) is None:
                self.transfer(NO_REQUEST, peer)
                return
