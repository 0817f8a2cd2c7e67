"""A simulation without random faults, and the words that the named scenarios are told in."""

from __future__ import annotations

from dataclasses import replace

from dledger.core.messages import VoteRequest
from dledger.infra.files.disk import CrashKind
from dledger.replica.shell import AppendOutcome
from dledger.testing import QUIET, Attempt, Profile, Simulation, check_end
from dledger.testing.durable import MakeMachine

SOON_MS = 3_000  # ten of the longest election time-outs
KINDS = [CrashKind.PROCESS, CrashKind.POWER]


class Cluster(Simulation):
    """A simulation without random faults, and the words that the scenarios are told in."""

    def __init__(
        self, nodes: int = 3, *, durable_machine: MakeMachine | None = None, **changes: object
    ) -> None:
        profile: Profile = replace(QUIET, nodes=nodes, **changes)  # type: ignore[arg-type]
        super().__init__(profile, seed=nodes, durable_machine=durable_machine)
        self._bodies_made = 0

    def begin(self) -> str:
        self.start()
        return self.elect()

    def elect(self, limit_ms: int = SOON_MS) -> str:
        """Run until somebody leads and its no-op is committed."""
        self.run_until(self._is_led, limit_ms=limit_ms)
        leader = self.leader()
        assert leader is not None
        return leader

    def _is_led(self) -> bool:
        leader = self.leader()
        if leader is None or self.process(leader).is_paused:
            return False
        core = self.process(leader).replica.core
        barrier = core.barrier_index
        return barrier is not None and core.committed_index >= barrier

    def others(self, node_id: str) -> list[str]:
        return [n for n in self.profile.node_ids if n != node_id]

    def write(self, node_id: str, count: int = 1, **options: object) -> Attempt:
        """Append a batch of new bodies."""
        self._bodies_made += 1
        bodies = [b"body %d.%d" % (self._bodies_made, i) for i in range(count)]
        return self.append(node_id, *bodies, **options)  # type: ignore[arg-type]

    def must_store(self, node_id: str | None = None, count: int = 1) -> Attempt:
        attempt = self.write(node_id or self.elect(), count)
        self.run_until(lambda: attempt.is_acknowledged, limit_ms=SOON_MS)
        return attempt

    def store_soon(self, limit_ms: int = SOON_MS) -> None:
        """An append is taken in bounded time; one that failed is made again, as a client does it."""
        attempts: list[Attempt] = []

        def is_stored() -> bool:
            if not attempts or attempts[-1].answer is not None:
                leader = self.leader()
                if leader is not None:
                    attempts.append(self.write(leader))
            return any(attempt.is_acknowledged for attempt in attempts)

        self.run_until(is_stored, limit_ms=limit_ms)

    def only(self, candidate: str) -> None:
        """Nobody else may ask for votes."""
        self.network.gate = lambda source, _target, message: (
            not isinstance(message, VoteRequest) or source == candidate
        )

    def open_session(self) -> int:
        attempt = self.append(self.elect(), open_session=True)
        self.run_until(lambda: attempt.answer is not None, limit_ms=SOON_MS)
        assert isinstance(attempt.answer, AppendOutcome)
        return attempt.answer.index

    def end(self) -> None:
        """Heal, settle, and check all that is checked at the end of a run."""
        self.network.gate = None
        self.heal()
        self.run_until(self.is_settled, limit_ms=SOON_MS)
        check_end(self)

    def committed(self, node_id: str) -> int:
        return self.process(node_id).replica.core.committed_index

    def end_of(self, node_id: str) -> int:
        return self.process(node_id).replica.core.log.end_index

    def match_of(self, leader: str, follower: str) -> int:
        leadership = self.process(leader).replica.core.leadership
        return -1 if leadership is None else leadership.progress[follower].match_index

    def term(self, node_id: str) -> int:
        return self.process(node_id).replica.core.term

    def stream_id(self, leader: str, follower: str) -> int:
        return next(
            s.stream_id
            for s in self.network.streams_between(leader, follower)
            if s.leader.node_id == leader and s.is_up
        )
