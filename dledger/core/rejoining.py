"""A node that lost its log, or the end of it, comes back without doing harm (docs/guarantees.md rule 11).

What it lost it may have acknowledged, and it may have voted in terms that it does not remember. So it stores
what it is sent, but neither votes nor counts, until every other member has said how far its log reaches and
in which term it is, and until it holds the greatest of these ends. After that it counts from the first term
on that nobody had heard of when it asked; the leader begins one for it.

Members that are rejoining themselves have nothing to say. They are done without as long as those who lost
their logs are fewer than a majority: whatever was committed, and whoever was elected, one of the others had a
part in it and remembers. But what the others said before that loss may be older than what this node did for
the lost one (its vote, in a term of which only the two knew then), so they are all asked again.
"""

from __future__ import annotations

from dataclasses import replace

from dledger.core.messages import PositionRequest, PositionResponse
from dledger.core.node_state import NodeState


class Rejoining:
    def __init__(self, core: NodeState) -> None:
        self.core = core
        self._heard: dict[str, PositionResponse] = {}  # in this round
        self._lost: set[str] = set()  # members that said that they are rejoining, too
        self._round = core.vote_round  # never repeats over restarts: answers to a former life do not fit
        self._next_ask_ms = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """Members whose answers are needed and have not come. Any of them may hold the only other copy."""
        membership = self.core.membership
        without = self._lost if len(self._lost) + 1 < membership.majority else set()
        return tuple(
            p for p in membership.others(self.core.node_id) if p not in self._heard and p not in without
        )

    def tick(self) -> None:
        core = self.core
        if not core.hard_state.rejoining:
            return
        if core.now_ms >= self._next_ask_ms:
            self._next_ask_ms = core.now_ms + core.timing.heartbeat_ms
            for peer in core.membership.others(core.node_id):
                if peer not in self._heard:
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
            self._heard.setdefault(peer, response)
        elif peer not in self._lost:
            self._lost.add(peer)
            self._heard.clear()
            self._round += 1
            self._next_ask_ms = core.now_ms
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        core, log = self.core, self.core.log
        if self.missing:
            return
        state = core.hard_state
        ends = [(r.ledger_end_term, r.ledger_end_index) for r in self._heard.values()]
        must_hold = max([*ends, (state.floor_term, state.floor_index)])
        stored = min(log.durable_index, log.verified_index)
        if stored < log.base.index or (log.term_at(stored), stored) < must_hold:
            return
        barred = max([state.barred_term, state.floor_term, *(r.term for r in self._heard.values())])
        core.change_hard_state(
            replace(state, rejoining=False, barred_term=barred, floor_term=-1, floor_index=-1)
        )
        # The leader learns of it now: on an idle cluster nothing else would be acknowledged.
        core.acknowledge()
