"""What has to go on while something stays broken, or is being started: not only once all is healed."""

from __future__ import annotations

import pytest

from dledger.core.values import Role
from dledger.infra.files.disk import CrashKind
from dledger.testing.profile import SIM_TIMING
from tests.sim.cluster import KINDS, SOON_MS, Cluster

HIGH, LOW = 1 << 30, 1 << 20


def _hand_over(c: Cluster, to: str) -> None:
    """`to` leads, and commits what it is given; asked again as long as it cannot take over yet."""

    def leads() -> bool:
        core = c.process(to).replica.core
        return core.role is Role.LEADER and core.committed_index >= (core.barrier_index or 0)

    for _ in range(SOON_MS // 100):
        if c.leader() == to:
            break
        leader = c.elect()
        process = c.process(leader)
        process.post(lambda process=process: process.transfer(to, lambda _: None))  # type: ignore[misc]
        c.run_for(100)
    c.run_until(leads, limit_ms=SOON_MS)


@pytest.mark.parametrize("incarnation", [LOW, HIGH + LOW], ids=["lower", "higher"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_leader_that_lost_its_disk_leads_again_whatever_its_incarnation(
    incarnation: int, on_disk: bool
) -> None:
    """It handed over and was replaced by an empty machine. Those that followed it follow it again."""
    c = Cluster(on_disk=on_disk)
    c.begin()
    victim = "n1"
    for each in (HIGH, incarnation):
        assert c.lose_disk(victim, each)
        c.boot(victim)
        c.run_until(c.is_settled, limit_ms=2 * SOON_MS)
        _hand_over(c, victim)
        c.must_store(victim, 2)
        _hand_over(c, "n0")  # GOODBYE to all
        c.run_until(c.is_settled, limit_ms=SOON_MS)
    _hand_over(c, victim)
    term = c.term(victim)
    for _ in range(5):
        c.must_store(victim)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    assert c.leader() == victim and c.term(victim) == term
    c.end()


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_majority_goes_on_while_a_minority_is_gone_for_good(nodes: int, kind: CrashKind) -> None:
    """The leader among them; and the others restart, too, one after the other."""
    c = Cluster(nodes)
    leader = c.begin()
    c.must_store(leader)
    c.gone = {leader, *c.others(leader)[: nodes // 2 - 1]}
    for node_id in c.gone:
        c.crash(node_id, kind)
    c.must_store()
    left = [n for n in c.profile.node_ids if n not in c.gone]
    for node_id in left:
        c.run_until(c.is_settled, limit_ms=SOON_MS)
        c.crash(node_id, kind)
        c.boot(node_id)
        c.must_store(count=2)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    c.gone.clear()
    c.end()


#: A leader that commits nothing for so long steps down: the others would hide what it does not do.
BEFORE_A_STALL_MS = SIM_TIMING.commit_stall_ms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_node_that_restarts_in_any_phase_of_anothers_restart(kind: CrashKind, on_disk: bool) -> None:
    """Whatever the first one has come to: its store is open, it looks for the leader, it catches up."""
    c = Cluster(on_disk=on_disk, fsync_min_ms=2, fsync_max_ms=10)
    leader = c.begin()
    for delay_ms in (0, 1, 2, 5, 10, 20, 40, 60, 100, 150, 200, 300, 450):
        first, second = c.others(leader)
        c.crash(first, kind)
        for _ in range(3):
            c.write(leader, 2)
        c.run_for(50)
        c.boot(first)
        c.run_for(delay_ms)
        c.crash(second if delay_ms % 20 else leader, kind)
        c.run_for(delay_ms)
        c.heal()
        c.store_soon(BEFORE_A_STALL_MS)
        c.run_until(c.is_settled, limit_ms=SOON_MS)
        leader = c.elect()
    c.end()
