"""Named scenarios: members that lose their disks while the members change."""

from __future__ import annotations

import pytest

from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.core.messages import Message, VoteRequest
from dledger.errors import Refused
from dledger.infra.files.disk import CrashKind
from tests.sim.cluster import SOON_MS, Cluster


class Group(Cluster):
    """Three voters, n0 to n2, and n3, which can be added."""

    def __init__(self, *, on_disk: bool) -> None:
        super().__init__(4, spares=1, on_disk=on_disk, faults=())
        self.only("n2")

    def change(self, *steps: tuple[ChangeKind, str]) -> None:
        """Change the members; ends when the change is committed."""
        leader = self.process(self.elect())
        known = {n: self.process(n).replica.core.directory_of(n) for n in self.profile.node_ids}
        asked = MembershipChange(tuple(MemberStep(kind, n, n, known[n]) for kind, n in steps))
        outcomes: list[object] = []

        def is_done() -> bool:
            if not outcomes or isinstance(outcomes[-1], Refused):  # the learner may lag for a moment
                outcomes.append("asked")
                leader.post(lambda: leader.change_members(asked, outcomes.append))
            return None in outcomes

        self.run_until(is_done, limit_ms=SOON_MS)

    def rejoin(self, node_id: str) -> None:
        """Lose the disk of a first member, and wait until it counts again."""
        self.wipe_disk(node_id, uid=0)
        self.boot(node_id)
        core = self.process(node_id).replica.core
        self.run_until(lambda: not core.hard_state.is_barred, limit_ms=2 * SOON_MS)


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_promoted_learner_refuses_a_disk_that_was_lost_before_its_promotion(on_disk: bool) -> None:
    """n1 rejoins while n3 is a learner and out of its reach. Then n3 takes the place of n0. The earlier disk
    of n1 returns, and finds n3 alone: together they would be a majority."""
    c = Group(on_disk=on_disk)
    c.begin()
    c.must_store("n2")
    c.change((ChangeKind.ADD, "n3"))
    c.must_store("n2")

    def n1_does_not_reach_n3(source: str, target: str, message: Message) -> bool:
        is_vote_of_others = isinstance(message, VoteRequest) and source != "n2"
        return {source, target} != {"n1", "n3"} and not is_vote_of_others

    c.network.gate = n1_does_not_reach_n3
    c.rejoin("n1")
    c.store_soon()
    c.change((ChangeKind.PROMOTE, "n3"), (ChangeKind.REMOVE, "n0"))
    stored = c.must_store()
    c.run_until(lambda: c.end_of("n3") == c.end_of("n1") == c.end_of("n2"), limit_ms=SOON_MS)
    for node_id in c.profile.node_ids:
        c.crash(node_id, CrashKind.POWER)
    c.run_for(SOON_MS)  # no message of n2 is on its way any more
    c.return_disk("n1")
    c.network.gate = None
    c.boot("n3")
    c.boot("n1")
    c.run_until(lambda: c.nodes["n1"].process is None, limit_ms=5 * SOON_MS)
    assert c.counts["earlier disks refused"] == 1
    c.restore_newest_disk("n1")
    c.boot("n1")
    c.boot("n2")
    c.must_store()
    c.end()
    assert stored.is_acknowledged
