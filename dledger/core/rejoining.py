"""Safe return of a node that lost its log, or the end of it (docs/guarantees.md rule 11).

The node may have acknowledged the lost entries, and it may have voted in terms that it does not remember. It
therefore stores pushed entries, but neither votes nor counts toward a majority, until every other member has
reported its term and the end of its log, and until the node holds all entries up to the greatest of these
ends. It then counts from the first term that no member knew at the time of that member's report. The leader
starts such a term for this purpose.

Members that are rejoining themselves cannot report. The node proceeds without them while the members that
lost their logs are fewer than a majority: at least one of the remaining members took part in every commit and
every election, and still has its records. Reports from before such a loss are discarded and requested again.
They may predate something that this node did together with the member that lost its log, such as a vote in a
term that only the two knew.

Before a member reports, it records the number of this node's directory, so that an earlier directory of this
node cannot return (dledger.core.directories). If the member knows a number that this one does not supersede,
the node takes a higher number and requests all reports again.

A node that has its log requests one report of every member after its start, so that both know each other's
directories. A member refuses the request of an earlier directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dledger.core.core_state import CoreState
from dledger.core.directories import newer_of, next_number, supersedes
from dledger.core.messages import PositionRequest, PositionResponse
from dledger.core.quorum import can_still_win
from dledger.core.values import UNKNOWN_UID, Membership, member_key


class RejoinProcess:
    def __init__(self, core: CoreState) -> None:
        self.core = core
        self._reports: dict[str, PositionResponse] = {}  # reports of this round
        self._lost: set[str] = set()  # members that reported that they are rejoining, too
        # unique across restarts: responses to a previous incarnation never match
        self._round = core.vote_round
        self._next_request_ms = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """Members whose report is still needed. Any of them may hold the only other copy.

        They are the electors of the newest configuration that any member knows to be committed, and of all
        later ones: any of these may have been in force for a commit or an election.
        """
        missing: dict[str, None] = {}
        for membership in self._memberships():
            lost = {*self._lost, self.core.node_id}
            without = lost if can_still_win(membership, lost) else {self.core.node_id}
            missing |= dict.fromkeys(
                p for p in membership.electors if p not in without and not self._has_report(p, membership)
            )
        return tuple(missing)

    def _has_report(self, peer: str, membership: Membership) -> bool:
        """Return True if this member has reported, and not an earlier one with its node id.

        Every report has the number of the sender's own directory.
        """
        report = self._reports.get(peer)
        if report is None:
            return False
        known = dict(report.directories)
        return not known or member_key(peer, membership.uid_of(peer)) in known

    @property
    def _unreported(self) -> list[str]:
        """Members that must receive a request. A rejoining node sends requests to electors only, because it
        waits for no others.

        Suppose it announced the number of its directory to a learner, and lost that directory before it
        announced the number to the electors. The number of its next directory might be lower, and the learner
        would refuse the node.
        """
        core = self.core
        peers = [
            peer
            for known in self._memberships()
            for peer in (known.electors if core.hard_state.rejoining else known.nodes)
            if peer != core.node_id and not self._has_report(peer, known)
        ]
        return list(dict.fromkeys(peers))

    def _memberships(self) -> list[Membership]:
        """The newest configuration known to be committed, and all later ones, here and in the reports.

        A report may be old. The member may have lost a configuration in a truncation since, or it may have
        been replaced by a committed one. Its entry is then not in this log, and before an entry committed
        here in the order of (term, index), so that it can never be in force again.
        """
        log, committed_index = self.core.log, min(self.core.committed_index, self.core.log.end_index)
        own = log.memberships_from(committed_index)
        passed = (log.term_at(committed_index), committed_index)
        reports = [report.memberships for report in self._reports.values() if report.memberships]
        committed = max(history[0].index for history in (own, *reports))
        reported = [
            at for history in reports for at in history if at.index < 0 or (at.term, at.index) > passed
        ]
        known = {at.membership: None for at in (*own, *reported) if at.index >= committed}
        return list(known)

    @property
    def next_request_ms(self) -> int | None:
        """Time of the next requests; None if all members have reported."""
        return self._next_request_ms if self._unreported else None

    def tick(self) -> None:
        core = self.core
        state = core.hard_state
        rejoining, own = state.rejoining, core.directory_of(core.node_id)
        if core.now_ms >= self._next_request_ms:
            pause_ms = core.timing.heartbeat_ms if rejoining else core.timing.election_max_ms
            self._next_request_ms = core.now_ms + pause_ms
            for peer in self._unreported:
                core.send(
                    peer, PositionRequest(core.term, core.node_id, self._round, own, core.hard_state.uid)
                )
        if rejoining:
            self._finish_if_complete()

    def announced_directory(self, node_id: str) -> int:
        """Return the number of a node's newest known directory; 0: none is known. The number of this node is
        not final while it is rejoining, and counts as unknown."""
        core, state = self.core, self.core.hard_state
        return 0 if node_id == core.node_id and state.rejoining else core.directory_of(node_id)

    def learn(self, directories: Mapping[str, int]) -> None:
        """Durably record newer directories of other members, by member_key."""
        core = self.core
        state = core.hard_state
        others = {
            member_key(node, known.uid_of(node)): member.directory if (member := known.member(node)) else 0
            for known in self._memberships()
            for node in known.others(core.node_id)
        }
        newer = {
            key: number
            for key, number in directories.items()
            if key in others and supersedes(number, newer_of(state.directory_of(key), others[key]))
        }
        if newer:
            core.change_hard_state(state.with_directories(newer))
        for peer in list(self._reports):
            if core.key_of(peer) in newer:
                del self._reports[peer]  # of an earlier directory

    def uid_assigned(self, uid: int) -> None:
        """Record as which member this node was added."""
        core, state = self.core, self.core.hard_state
        if state.uid == UNKNOWN_UID:
            own = state.directory_of(core.key_of(core.node_id))
            state = state.with_directories({member_key(core.node_id, uid): own})
            core.change_hard_state(replace(state, uid=uid))

    def on_request(self, peer: str, request: PositionRequest) -> None:
        core, log = self.core, self.core.log
        # A member that is new to this node gets a report later, because its directory could not be recorded.
        if request.node_id == peer and request.uid == core.known_uid(peer):
            self.learn({core.key_of(peer): request.directory})
            core.send(
                peer,
                PositionResponse(
                    core.term,
                    core.node_id,
                    request.round,
                    log.end_term,
                    log.end_index,
                    rejoining=core.hard_state.rejoining,
                    directories=core.known_directories(),
                    memberships=log.memberships_from(core.committed_index),
                ),
            )

    def on_response(self, peer: str, response: PositionResponse) -> None:
        core = self.core
        if response.node_id != peer or response.round != self._round:
            return
        directories = dict(response.directories)
        self.learn(directories)
        state = core.hard_state
        own_key, peer_key = core.key_of(core.node_id), core.key_of(peer)
        known, own = directories.get(own_key, 0), state.directory_of(own_key)
        theirs = directories.get(peer_key, 0)
        if not response.rejoining and theirs not in (0, core.directory_of(peer)):
            return  # an earlier directory of the peer: what its newest one contains is unknown
        if not state.rejoining:
            self._reports[peer] = response
            return
        if known not in (0, own) and not supersedes(own, known):
            core.change_hard_state(state.with_directories({own_key: next_number(own, known)}))
            self._lost.clear()
            self._request_again()
        elif not response.rejoining:
            self._lost.discard(peer)
            if peer not in self._reports or not self._has_report(peer, core.membership):
                self._reports[peer] = response
        elif peer not in self._lost:
            self._lost.add(peer)
            self._request_again()
        self._finish_if_complete()

    def _request_again(self) -> None:
        self._reports.clear()
        self._round += 1
        self._next_request_ms = self.core.now_ms

    def _finish_if_complete(self) -> None:
        core, log = self.core, self.core.log
        # Without an image, this log is no copy of the entries before its base.
        if self.missing or core.lacks_image:
            return
        state = core.hard_state
        ends = [(r.ledger_end_term, r.ledger_end_index) for r in self._reports.values()]
        must_hold = max([*ends, (state.floor_term, state.floor_index)])
        stored = min(log.durable_index, log.verified_index)
        if stored < log.base.index or (log.term_at(stored), stored) < must_hold:
            return
        barred = max([state.barred_term, state.floor_term, *(r.term for r in self._reports.values())])
        core.change_hard_state(
            replace(state, rejoining=False, barred_term=barred, floor_term=-1, floor_index=-1)
        )
        # Acknowledge now, because on an idle cluster no push would trigger an acknowledgment.
        core.acknowledge()
