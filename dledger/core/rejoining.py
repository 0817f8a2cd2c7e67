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
"""

from __future__ import annotations

from dataclasses import replace

from dledger.core.core_state import CoreState
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

    def tick(self) -> None:
        core = self.core
        if not core.hard_state.rejoining:
            return
        if core.now_ms >= self._next_request_ms:
            self._next_request_ms = core.now_ms + core.timing.heartbeat_ms
            for peer in core.membership.others(core.node_id):
                if peer not in self._reports:
                    core.send(peer, PositionRequest(core.term, core.node_id, self._round))
        self._finish_if_complete()

    def on_request(self, peer: str, request: PositionRequest) -> None:
        core, log = self.core, self.core.log
        if request.node_id == peer:
            core.send(
                peer,
                PositionResponse(
                    core.term,
                    core.node_id,
                    request.round,
                    log.end_term,
                    log.end_index,
                    rejoining=core.hard_state.rejoining,
                ),
            )

    def on_response(self, peer: str, response: PositionResponse) -> None:
        core = self.core
        if not core.hard_state.rejoining or response.node_id != peer or response.round != self._round:
            return
        if not response.rejoining:
            self._lost.discard(peer)
            self._reports.setdefault(peer, response)
        elif peer not in self._lost:
            self._lost.add(peer)
            self._reports.clear()
            self._round += 1
            self._next_request_ms = core.now_ms
        self._finish_if_complete()

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
