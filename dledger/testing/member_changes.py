"""Changes of the members in random runs: which steps a leader is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from dledger.core.membership_change import (
    ChangeKind,
    ChangeRefused,
    MembershipChange,
    MemberStep,
    target_of,
)
from dledger.core.values import UNKNOWN_UID, Membership, MembershipAt
from dledger.testing.simulator import Simulation
from dledger.testing.world import NodeLife

#: Chance of a random step between those of a series.
_RANDOM_STEP = 0.2


class MemberChanges:
    """Asks the leader of a simulation for changes, most of them sensible."""

    def __init__(self, sim: Simulation, rng: Random) -> None:
        self._sim = sim
        self._rng = rng
        self._sizes = list(sim.profile.voter_counts)  # still to be reached, in this order
        self._counts = sim.counts
        # The leader of a change that has not ended, and its configuration before.
        self._asked: tuple[NodeLife, Membership] | None = None

    def ask(self) -> None:
        """Ask the leader, if there is one, for one change."""
        leader = self._sim.leader()
        if leader is None:
            return
        process = self._sim.process(leader)
        membership = process.replica.core.membership
        steps = self._steps(leader, membership)
        if self._sim.profile.loses_members and (process.is_paused or self._is_unsafe(membership, steps)):
            return
        self._prepare(process, {step.node_id for step in steps if step.kind is ChangeKind.ADD})
        steps = [step for step in steps if step.kind is not ChangeKind.ADD or self._can_join(step.node_id)]
        if not steps:
            return

        def ended(outcome: object) -> None:
            self._asked = None
            result = "done" if outcome is None else getattr(outcome, "code", outcome)
            self._counts[f"changes of members: {result}"] += 1

        change = MembershipChange(tuple(map(self._with_directory, steps)), force=self._may_force())
        self._asked = (process, membership)
        process.post(lambda: process.change_members(change, ended))

    def _is_unsafe(self, membership: Membership, steps: Sequence[MemberStep]) -> bool:
        """Return True if half of the voters after the change, or more, have lost their logs. The leader may
        not know it yet, and such voters wait forever."""
        lost = self._sim.invariants.lost_nodes
        try:
            voters = target_of(membership, steps, 1).voters
        except ChangeRefused:
            return False
        return bool(lost) and 2 * len(lost & set(voters)) >= len(voters)

    def lose_disk(self, node_id: str) -> bool:
        """Replace the disk of a member by an empty one, with which it rejoins. Returns False, without a
        change, if the guarantees would not apply, or if no majority could say as which member it rejoins."""
        sim = self._sim
        if self._is_asked():
            return False
        newest = self._newest_known_to_others(node_id)
        member = None if newest is None else newest.membership.member(node_id)
        if newest is None or member is None or member.uid == UNKNOWN_UID or sim.nodes[node_id].later:
            return False
        lost = {*sim.invariants.lost_nodes, node_id}
        for membership in self._possible():
            for voters in (membership.voters, membership.outgoing):
                if node_id in voters and 2 * len(lost & set(voters)) >= len(voters):
                    return False
        is_learner = node_id in newest.membership.learners
        self._counts["disks of learners lost" if is_learner else "disks of voters lost"] += 1
        sim.wipe_disk(node_id, uid=None if newest.index < 0 else member.uid)
        return True

    def _is_asked(self) -> bool:
        """Return True if a leader is about to append a change, which may make any node a voter."""
        if self._asked is None:
            return False
        process, before = self._asked
        return process.alive and process.replica.core.log.membership is before

    def _newest_known_to_others(self, node_id: str) -> MembershipAt | None:
        """Return the newest configuration of the other running nodes, like `dledger server --rejoin`."""
        cores = [p.replica.core for p in self._sim.processes() if p.node_id != node_id and not p.is_paused]
        answers = {core.node_id: core.log.memberships[-1] for core in cores if core.is_member}
        if not answers:
            return None
        newest = max(answers.values(), key=lambda at: at.index)
        voters = set(newest.membership.voters)
        answered = voters & set(answers)
        is_enough = 2 * len(answered) > len(voters) or answered == voters - {node_id}
        return newest if is_enough else None

    def _possible(self) -> list[Membership]:
        """Return the newest committed configuration, and all that any node has recorded or has in its log
        after it."""
        sim, committed = self._sim, self._sim.invariants.committed
        known = {at for mirror in sim.invariants.mirrors.values() for at in mirror.hard_state.memberships}
        known |= {at for process in sim.processes() for at in process.replica.core.log.memberships}

        def is_committed(at: MembershipAt) -> bool:
            batch = committed.holding(at.index)
            return at.index < 0 or (batch is not None and batch.term == at.term)

        last = max((at.index for at in known if is_committed(at)), default=-1)
        return [at.membership for at in known if at.index > committed.end_index or at.index == last]

    def _may_force(self) -> bool:
        """A forced change can make a majority of members that lost their logs, which then wait forever."""
        is_drawn = self._rng.random() < 0.3
        return is_drawn and not (self._sim.profile.loses_members and self._sim.invariants.lost_nodes)

    def _steps(self, leader: str, membership: Membership) -> list[MemberStep]:
        if not self._sizes or self._rng.random() < _RANDOM_STEP:
            return [self._random_step(membership) for _ in range(self._rng.choice((1, 1, 2, 4)))]
        return self._series_steps(leader, membership)

    def _random_step(self, membership: Membership) -> MemberStep:
        spare = self._spares(membership)
        choices = [
            (ChangeKind.ADD, spare),
            (ChangeKind.PROMOTE, list(membership.learners)),
            (ChangeKind.PROMOTE, list(membership.learners)),
            (ChangeKind.DEMOTE, list(membership.voters)),
            (ChangeKind.REMOVE, list(membership.nodes)),
            (ChangeKind.MOVE, list(membership.nodes)),
        ]
        kind, nodes = self._rng.choice([choice for choice in choices if choice[1]])
        node_id = self._rng.choice(nodes)
        return MemberStep(kind, node_id, node_id)

    def _series_steps(self, leader: str, membership: Membership) -> list[MemberStep]:
        """Return steps toward the next number of voters. Once it is reached, the leader or another voter is
        replaced by a learner in the same change, or the next number is the goal."""
        rng, voters, learners = self._rng, list(membership.voters), list(membership.learners)
        if len(voters) == self._sizes[0] and len(self._sizes) > 1:
            self._counts[f"numbers of voters reached: {self._sizes[0]}"] += 1
            self._sizes.append(self._sizes.pop(0))
        goal = self._sizes[0]
        if len(voters) > goal:
            leaving = self._leaving(leader, voters, rng.randint(1, len(voters) - goal))
            kind = rng.choice((ChangeKind.REMOVE, ChangeKind.REMOVE, ChangeKind.DEMOTE))
            return [MemberStep(kind, node_id, node_id) for node_id in leaving]
        wanted = max(1, goal - len(voters))
        if len(learners) < wanted:
            spare = self._spares(membership)[: wanted - len(learners)]
            return [MemberStep(ChangeKind.ADD, node_id, node_id) for node_id in spare]
        promoted = rng.sample(learners, rng.randint(1, wanted))
        steps = [MemberStep(ChangeKind.PROMOTE, node_id, node_id) for node_id in promoted]
        if len(voters) == goal:
            steps += [MemberStep(ChangeKind.REMOVE, n, n) for n in self._leaving(leader, voters, 1)]
        return steps

    def _leaving(self, leader: str, voters: Sequence[str], count: int) -> list[str]:
        """Choose voters, the leader itself more often than others."""
        chosen = self._rng.sample(voters, count)
        if leader in voters and leader not in chosen and self._rng.random() < self._sim.profile.leader_leaves:
            chosen[0] = leader
        return chosen

    def _spares(self, membership: Membership) -> list[str]:
        return [node_id for node_id in self._sim.profile.node_ids if node_id not in membership.nodes]

    def _can_join(self, node_id: str) -> bool:
        process = self._sim.nodes[node_id].process
        return process is not None and process.replica.core.hard_state.uid == UNKNOWN_UID

    def _with_directory(self, step: MemberStep) -> MemberStep:
        """Add what the leader of a real group asks the new node for."""
        if step.kind is not ChangeKind.ADD:
            return step
        directory = self._sim.process(step.node_id).replica.core.directory_of(step.node_id)
        return replace(step, directory=directory)

    def _prepare(self, leader: NodeLife, added: set[str]) -> None:
        """Replace the machines that were members before, unless they may still count."""
        core, sim = leader.replica.core, self._sim
        known = list(core.log.memberships_from(core.committed_index))
        for node_id in known[0].membership.nodes:
            known += sim.invariants.mirrors[node_id].hard_state.memberships[-1:]
        may_count = {node_id for at in known for node_id in at.membership.nodes}
        for node_id in sorted(added - may_count):
            node = sim.nodes[node_id]
            if sim.invariants.mirrors[node_id].hard_state.uid != UNKNOWN_UID and node.later is None:
                sim.replace_machine(node_id)
