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
from dledger.core.directories import next_number, supersedes
from dledger.core.messages import PositionRequest, PositionResponse


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
        """Members whose report is still needed. Any of them may hold the only other copy."""
        membership = self.core.membership
        without = self._lost if len(self._lost) + 1 < membership.majority else set()
        return tuple(
            p for p in membership.others(self.core.node_id) if p not in self._reports and p not in without
        )

    @property
    def _unreported(self) -> list[str]:
        return [p for p in self.core.membership.others(self.core.node_id) if p not in self._reports]

    @property
    def next_request_ms(self) -> int | None:
        """Time of the next requests; None if all members have reported."""
        return self._next_request_ms if self._unreported else None

    def tick(self) -> None:
        core = self.core
        rejoining, own = core.hard_state.rejoining, core.hard_state.directory_of(core.node_id)
        if core.now_ms >= self._next_request_ms:
            pause_ms = core.timing.heartbeat_ms if rejoining else core.timing.election_max_ms
            self._next_request_ms = core.now_ms + pause_ms
            for peer in self._unreported:
                core.send(peer, PositionRequest(core.term, core.node_id, self._round, own))
        if rejoining:
            self._finish_if_complete()

    def announced_directory(self, node_id: str) -> int:
        """Return the number of a node's newest known directory; 0: none is known. The number of this node is
        not final while it is rejoining, and counts as unknown."""
        state = self.core.hard_state
        return 0 if node_id == self.core.node_id and state.rejoining else state.directory_of(node_id)

    def learn(self, directories: Mapping[str, int]) -> None:
        """Durably record newer directories of other members."""
        core = self.core
        state = core.hard_state
        others = core.membership.others(core.node_id)
        newer = {
            peer: number
            for peer, number in directories.items()
            if peer in others and supersedes(number, state.directory_of(peer))
        }
        if newer:
            core.change_hard_state(state.with_directories(newer))
        for peer in newer:
            self._reports.pop(peer, None)  # of an earlier directory

    def on_request(self, peer: str, request: PositionRequest) -> None:
        core, log = self.core, self.core.log
        if request.node_id == peer:
            self.learn({peer: request.directory})
            core.send(
                peer,
                PositionResponse(
                    core.term,
                    core.node_id,
                    request.round,
                    log.end_term,
                    log.end_index,
                    rejoining=core.hard_state.rejoining,
                    directories=core.hard_state.directories,
                ),
            )

    def on_response(self, peer: str, response: PositionResponse) -> None:
        core = self.core
        if response.node_id != peer or response.round != self._round:
            return
        directories = dict(response.directories)
        self.learn(directories)
        state = core.hard_state
        known, own = directories.get(core.node_id, 0), state.directory_of(core.node_id)
        theirs = directories.get(peer, 0)
        if not response.rejoining and theirs not in (0, state.directory_of(peer)):
            return  # an earlier directory of the peer: what its newest one contains is unknown
        if not state.rejoining:
            self._reports.setdefault(peer, response)
            return
        if known not in (0, own) and not supersedes(own, known):
            core.change_hard_state(state.with_directories({core.node_id: next_number(own, known)}))
            self._lost.clear()
            self._request_again()
        elif not response.rejoining:
            self._lost.discard(peer)
            self._reports.setdefault(peer, response)
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
        if self.missing:
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
