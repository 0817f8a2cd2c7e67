"""Named histories of leaders that are in contact with everybody and commit nothing (rule 14)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dledger.core.messages import Append, Commit, Compare, InstallBase, Message, Truncate
from dledger.core.values import Role
from dledger.testing import QUIET
from tests.sim.cluster import SOON_MS, Cluster

STALL_MS = QUIET.timing.commit_stall_ms
ELECTION_MS = QUIET.timing.election_max_ms
PUSHES = (Append, Compare, Commit, Truncate, InstallBase)
#: A stalled leader goes, the others elect one of them, and that one commits.
REPLACED_MS = STALL_MS + 3 * ELECTION_MS


class Mute(Cluster):
    """Some nodes can be heard, but what they push as leaders is lost. Their streams stay up."""

    def mute(self, *nodes: str, only: tuple[type, ...] = PUSHES) -> None:
        def passes(source: str, _target: str, message: Message) -> bool:
            return source not in nodes or not isinstance(message, only)

        self.network.gate = passes

    @property
    def step_downs(self) -> list[tuple[int, str]]:
        return [(at, node) for at, node, notice in self.roles if notice.cause == "commit-stalled"]

    def times_led(self, node_id: str, begin_ms: int) -> int:
        """For how many milliseconds since then the node led."""
        led, since = 0, None
        for at, node, notice in self.roles:
            if node != node_id:
                continue
            if since is not None:
                led += max(at, begin_ms) - max(since, begin_ms)
            since = at if notice.role is Role.LEADER else None
        return led + (self.clock.now_ms - max(since, begin_ms) if since is not None else 0)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("lost", ["all pushes", "appends"])
def test_leader_whose_pushes_are_lost_while_its_heartbeats_pass_is_replaced(nodes: int, lost: str) -> None:
    c = Mute(nodes)
    leader = c.begin()
    c.must_store(leader)
    if lost == "appends":
        c.mute(leader, only=(Append,))
    else:
        c.mute(leader)
    c.write(leader)
    took = c.run_until(lambda: c.leader() not in (None, leader), limit_ms=REPLACED_MS)
    assert took >= STALL_MS
    c.must_store()
    c.run_for(10 * STALL_MS)
    assert c.leader() != leader and len(c.step_downs) == 1, "one step down is enough"
    c.end()


def test_new_leader_whose_no_op_reaches_nobody_is_replaced() -> None:
    """As with a leader that rejoined, the streams of which nobody accepted."""
    c = Mute()
    first = c.begin()
    mute = c.others(first)[0]
    c.mute(mute)
    process = c.process(first)
    process.post(lambda: process.transfer(mute, lambda _: None))
    c.run_until(lambda: c.leader() == mute, limit_ms=SOON_MS)
    c.run_until(lambda: c.leader() not in (None, mute), limit_ms=REPLACED_MS)
    c.must_store()
    c.end()


@pytest.mark.slow
def test_stalled_leader_that_nobody_can_replace_gives_up_less_and_less_often() -> None:
    """The third node is gone, and the log of the other is shorter: only the stalled one can be elected."""
    c = Mute()
    leader = c.begin()
    other, gone = c.others(leader)
    c.isolate(gone)
    c.run_for(SOON_MS)
    leader = c.elect()
    other = next(node for node in c.others(leader) if node != gone)
    c.network.gate = None
    c.mute(leader)
    c.write(leader)
    c.run_for(40 * STALL_MS)
    assert {node for _, node in c.step_downs} == {leader}
    times = [at for at, _ in c.step_downs]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert len(pauses) >= 3
    assert all(later > 1.5 * earlier for earlier, later in pairwise(pauses))
    c.network.gate = None
    c.run_until(lambda: c.committed(other) == c.end_of(leader) >= 0, limit_ms=40 * STALL_MS)
    c.end()


@pytest.mark.slow
def test_preferred_leader_that_commits_nothing_is_not_tried_over_and_over() -> None:
    """Whoever leads hands over to it. It can be elected, and costs the others a stall each time."""
    c = Mute(preferred_leaders=("n0",))
    c.begin()
    c.mute("n0")
    begin_ms = c.clock.now_ms
    for _ in range(100 * STALL_MS // 50):
        c.run_for(50)
        leader = c.leader()
        if leader is not None:
            c.write(leader)
    led = c.times_led("n0", begin_ms)
    assert led > STALL_MS, "it was tried"
    assert led < 15 * STALL_MS
    c.end()


def test_all_nodes_on_one_disk_that_hangs_do_not_blame_their_leader() -> None:
    """With what the leader has pushed stored, too, and with disks that hang at the others only."""
    c = Mute()
    leader = c.begin()
    for stuck in (c.profile.node_ids, c.others(leader)):
        for node in stuck:
            c.process(node).disk_stuck_until_ms = c.clock.now_ms + 10 * STALL_MS
        c.write(leader)
        c.run_for(10 * STALL_MS)
        assert c.leader() == leader and not c.step_downs
        c.run_for(SOON_MS)
    c.end()
