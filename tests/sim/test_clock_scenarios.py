"""Cluster time in a simulated group whose machines' clocks are wrong, or that was stopped. Rule 12.

`Simulation.cluster_time` checks after every step that no node reads more than the newest stamp counts to.
"""

from __future__ import annotations

import pytest

from dledger.core.messages import Append, PositionResponse, VoteRequest, VoteResponse
from dledger.infra.files.disk import CrashKind
from dledger.replica import clock_keeper
from dledger.replica.retention import RetentionLimits
from dledger.testing.world import EPOCH_MS
from tests.sim.cluster import SOON_MS, Cluster

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
#: Elections add the owners' interval and messages are delayed; within a second, time is corrected slowly.
CLOSE_MS = 1000


class Group(Cluster):
    def off_ms(self, node_id: str | None = None) -> int:
        """How far cluster time is ahead of the true time, as a node reads it."""
        process = self.process(node_id or self.elect())
        clock = process.replica.admission.state.clock
        return clock.read(process.now_ms(), 0) - EPOCH_MS - self.clock.now_ms

    def set_clocks(self, **off_ms: int) -> None:
        for node_id, offset_ms in off_ms.items():
            self.nodes[node_id].wall_offset_ms = offset_ms

    def stop_all(self, for_ms: int) -> None:
        for node_id in self.profile.node_ids:
            if self.nodes[node_id].process is not None:
                self.crash(node_id, CrashKind.PROCESS)
        self.clock.run_until(self.clock.now_ms + for_ms)

    def lead_with(self, node_id: str) -> None:
        """Have this node win the next election."""
        self.only(node_id)
        if self.leader() not in (None, node_id):
            leader = self.leader()
            assert leader is not None
            self.crash(leader, CrashKind.PROCESS)
            self.clock.after(100, lambda: self.boot_if_down(leader))
        self.run_until(lambda: self.leader() == node_id, limit_ms=SOON_MS)
        self.network.gate = None
        self.elect()


def grown(**clocks: int) -> Group:
    """A group that has stored something while all clocks were right."""
    group = Group(stamp_every_ms=20)
    group.must_store(group.begin())
    group.set_clocks(**clocks)
    return group


@pytest.mark.slow
@pytest.mark.parametrize("stopped_ms", [150_000, 8 * HOUR_MS])
def test_rule_12_time_is_right_again_after_a_stop_and_the_idle_time_before_it(stopped_ms: int) -> None:
    group = grown()
    for _ in range(2):
        group.run_for(20_000)
        group.stop_all(stopped_ms)
        group.start()
        assert abs(group.off_ms()) <= CLOSE_MS
    group.run_until(group.is_settled, limit_ms=SOON_MS)
    steps_ms = {p.replica.admission.state.clock.steps_ms for p in group.processes()}
    assert len(steps_ms) == 1 and min(steps_ms) > 2 * stopped_ms
    group.end()


@pytest.mark.slow
@pytest.mark.parametrize("wrong_ms", [DAY_MS, -DAY_MS])
@pytest.mark.parametrize("up", [2, 3])
@pytest.mark.parametrize("leads", [True, False])
def test_rule_12_one_clock_wrong_by_a_day_moves_nothing(wrong_ms: int, up: int, leads: bool) -> None:
    group = grown(n0=wrong_ms)
    if up == 2:
        group.crash("n2", CrashKind.PROCESS)
    group.lead_with("n0" if leads else "n1")
    for _ in range(10):
        group.must_store()
        group.run_for(1000)
    assert abs(group.off_ms()) <= CLOSE_MS
    group.end()


@pytest.mark.parametrize("wrong_ms", [DAY_MS, -DAY_MS])
def test_rule_12_after_a_stop_one_wrong_clock_of_three_holds_nothing_up(wrong_ms: int) -> None:
    """Also if the first leader has the wrong clock: the third member's arrives a heartbeat later."""
    group = grown(n0=wrong_ms)
    group.stop_all(8 * HOUR_MS)
    group.start()
    group.lead_with("n0")
    group.run_for(SOON_MS)
    assert abs(group.off_ms()) <= CLOSE_MS


def test_rule_12_with_two_of_three_up_a_clock_that_is_behind_holds_back_the_step_after_a_stop() -> None:
    group = grown(n0=-DAY_MS)
    group.stop_all(8 * HOUR_MS)
    for node_id in ("n0", "n1"):
        group.boot(node_id)
    group.elect()
    group.run_for(MINUTE_MS)
    assert -8 * HOUR_MS - MINUTE_MS < group.off_ms() < -7 * HOUR_MS
    group.boot("n2")
    group.run_for(SOON_MS)
    assert abs(group.off_ms()) <= CLOSE_MS


@pytest.mark.parametrize("wrong_ms", [DAY_MS, -DAY_MS])
def test_rule_12_an_empty_log_begins_with_the_time_of_a_majority(wrong_ms: int) -> None:
    group = Group()
    group.set_clocks(n0=wrong_ms)
    group.only("n0")
    group.begin()
    assert abs(group.off_ms()) <= CLOSE_MS


@pytest.mark.parametrize(("wrong_ms", "starts_ms"), [(DAY_MS, 0), (-DAY_MS, -DAY_MS)])
def test_rule_12_an_empty_log_of_two_of_three_starts_with_the_earlier_clock(
    wrong_ms: int, starts_ms: int
) -> None:
    """Nothing shows which of them is right before the third member is there."""
    group = Group(stamp_every_ms=20)
    group.set_clocks(n0=wrong_ms)
    for node_id in ("n0", "n1"):
        group.boot(node_id)
    group.must_store()
    assert abs(group.off_ms() - starts_ms) <= CLOSE_MS
    group.boot("n2")
    group.run_for(SOON_MS)
    assert abs(group.off_ms()) <= CLOSE_MS


def test_rule_12_a_group_of_two_steps_over_a_stop_when_the_clock_that_is_behind_is_corrected() -> None:
    group = Group(2, stamp_every_ms=20)
    group.must_store(group.begin())
    group.set_clocks(n0=-DAY_MS)
    group.stop_all(HOUR_MS)
    group.start()
    group.must_store()
    assert group.off_ms() < -HOUR_MS // 2
    group.set_clocks(n0=0)
    group.run_for(SOON_MS)
    assert abs(group.off_ms()) <= CLOSE_MS


@pytest.mark.slow
def test_rule_12_a_corrected_lag_of_minutes_is_made_up_at_double_speed() -> None:
    group = grown(n0=MINUTE_MS, n1=MINUTE_MS, n2=MINUTE_MS)
    group.run_for(MINUTE_MS // 2)
    assert 25_000 < group.off_ms() < MINUTE_MS // 2 + CLOSE_MS
    group.run_for(MINUTE_MS)
    assert abs(group.off_ms() - MINUTE_MS) <= CLOSE_MS
    steps_ms = {p.replica.admission.state.clock.steps_ms for p in group.processes()}
    assert steps_ms == {0}
    group.end()


@pytest.mark.slow
def test_rule_12_time_that_is_ahead_runs_at_half_speed_and_never_goes_back() -> None:
    group = grown(n0=-MINUTE_MS, n1=-MINUTE_MS, n2=-MINUTE_MS)
    before_ms = EPOCH_MS + group.clock.now_ms + group.off_ms()
    group.run_for(MINUTE_MS)
    now_ms = EPOCH_MS + group.clock.now_ms + group.off_ms()
    assert before_ms + 29_000 < now_ms < before_ms + 33_000
    group.run_for(MINUTE_MS + MINUTE_MS // 4)
    assert abs(group.off_ms() + MINUTE_MS) <= CLOSE_MS
    group.end()


def test_rule_12_all_nodes_read_the_same_time_while_it_is_slewed() -> None:
    group = grown(n0=MINUTE_MS, n1=MINUTE_MS, n2=MINUTE_MS)
    for _ in range(20):
        group.run_for(2_000)
        readings = [group.off_ms(node_id) for node_id in group.profile.node_ids]
        assert max(readings) - min(readings) <= 100


@pytest.mark.parametrize("wrong_ms", [DAY_MS, -DAY_MS])
def test_rule_12_the_clock_of_a_rejoining_member_does_not_count(wrong_ms: int) -> None:
    """With it, two of three clocks would show the wrong day."""
    group = grown()
    group.lead_with("n0")
    assert group.lose_disk("n2")
    group.set_clocks(n1=wrong_ms, n2=wrong_ms)
    group.network.gate = lambda _source, _target, message: not isinstance(message, PositionResponse)
    group.boot("n2")
    for _ in range(10):
        group.must_store("n0")
        group.run_for(1000)
    assert group.process("n2").replica.core.hard_state.rejoining
    assert abs(group.off_ms("n0")) <= CLOSE_MS
    group.set_clocks(n1=0)
    group.end()


def test_rule_12_a_rejoined_member_continues_from_the_stamps_of_the_log() -> None:
    group = grown()
    group.stop_all(8 * HOUR_MS)
    group.start()
    leader = group.elect()
    lost = group.others(leader)[0]
    assert group.lose_disk(lost)
    group.set_clocks(**{lost: DAY_MS})
    group.boot(lost)
    group.run_until(group.is_settled, limit_ms=SOON_MS)
    assert abs(group.off_ms(lost)) <= CLOSE_MS
    steps_ms = {p.replica.admission.state.clock.steps_ms for p in group.processes()}
    assert len(steps_ms) == 1 and min(steps_ms) > 0
    group.end()


@pytest.mark.slow
@pytest.mark.parametrize("wrong_ms", [-DAY_MS, 0])
def test_rule_12_a_member_that_restarts_in_an_idle_time_reads_the_leaders_time_and_keeps_it(
    wrong_ms: int,
) -> None:
    """The newest stamp in its log is minutes old, and the clocks that are up do not show more."""
    group = grown(n0=wrong_ms)
    group.crash("n2", CrashKind.PROCESS)
    group.lead_with("n0")
    group.must_store()
    group.run_for(2 * MINUTE_MS)
    group.crash("n1", CrashKind.PROCESS)
    group.run_for(100)
    group.boot("n1")
    group.run_for(3000)
    assert abs(group.off_ms("n1")) <= CLOSE_MS
    group.lead_with("n1")
    group.must_store()
    assert abs(group.off_ms("n1")) <= CLOSE_MS
    group.end()


def drop_time(vote: VoteResponse) -> bool:
    """False: the vote itself is delivered."""
    vote.cluster_time = None
    return False


@pytest.mark.slow
def test_rule_12_a_restarted_candidate_learns_the_time_from_the_votes() -> None:
    """It hears of no leader before it is elected, and one of the two clocks that are up is a day behind."""
    group = grown()
    group.lead_with("n0")
    group.must_store()
    group.run_for(2 * MINUTE_MS)
    group.set_clocks(n1=-DAY_MS)
    group.crash("n1", CrashKind.PROCESS)
    group.crash("n0", CrashKind.PROCESS)
    # No pre-vote shows it either: the vote that elects it is the first message that does.
    group.network.gate = lambda source, _target, message: (
        source == "n1"
        if isinstance(message, VoteRequest)
        else not (isinstance(message, VoteResponse) and message.pre_vote and drop_time(message))
    )
    group.boot("n1")
    group.run_until(lambda: group.leader() == "n1", limit_ms=SOON_MS)
    group.must_store("n1")
    assert abs(group.off_ms("n1")) <= CLOSE_MS
    group.network.gate = None
    group.boot("n0")
    group.end()


def test_rule_12_a_step_that_was_not_committed_is_undone_with_its_entry() -> None:
    group = grown()
    leader = group.elect()
    group.network.gate = lambda _source, _target, message: not isinstance(message, Append)
    group.set_clocks(**dict.fromkeys(group.profile.node_ids, DAY_MS))
    clock = group.process(leader).replica.admission.state.clock
    group.run_until(lambda: clock.steps_ms > 0, limit_ms=SOON_MS)
    group.set_clocks(**dict.fromkeys(group.profile.node_ids, 0))
    group.isolate(leader)
    group.network.gate = None
    others = group.others(leader)
    group.run_until(lambda: group.leader() in others, limit_ms=SOON_MS)
    group.must_store(group.leader())
    group.heal()
    group.run_until(group.is_settled, limit_ms=SOON_MS)
    assert clock.steps_ms == clock.pause_ms == 0
    assert abs(group.off_ms(leader)) <= CLOSE_MS
    group.end()


class Purging(Group):
    """Every entry older than two hours may go; the pause after a step is a minute."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(clock_keeper, "PAUSE_MS", MINUTE_MS)
        policy = RetentionLimits(max_age_ms=2 * HOUR_MS, check_ms=100)
        super().__init__(retention=policy, stamp_every_ms=20)
        self.begin()
        while not self.process(self.elect()).store.borders():
            self.must_store(count=5)
        self.run_for(1000)
        self.must_store()  # with a stamp behind the border

    @property
    def purged(self) -> int:
        return self.counts["purges committed"]

    def keep_running(self, for_ms: int) -> None:
        """With appends, as images and purges are made of a log that grows."""
        end_ms = self.clock.now_ms + for_ms
        while self.clock.now_ms < end_ms:
            self.must_store()
            self.run_for(min(1000, end_ms - self.clock.now_ms))


@pytest.mark.slow
def test_rule_12_purging_by_age_pauses_after_a_long_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All entries look old then, whether they are or the clocks are wrong: there is time to notice."""
    group = Purging(monkeypatch)
    group.stop_all(8 * HOUR_MS)
    group.start()
    group.elect()
    group.keep_running(50_000)
    assert group.purged == 0
    leader = group.process(group.elect())
    keeper = leader.replica.clock_keeper
    assert keeper.age_purge_step_ms > 7 * HOUR_MS
    assert 0 < keeper.pause_left_ms(leader.now_ms()) <= MINUTE_MS
    group.keep_running(20_000)
    assert group.purged > 0
    assert keeper.age_purge_step_ms == 0
    group.end()


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_rule_12_a_failover_within_the_pause_begins_it_again(
    monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """Though the new leader has made no long step itself, and also if all nodes restart."""
    group = Purging(monkeypatch)
    group.stop_all(8 * HOUR_MS)
    group.start()
    group.elect()
    group.keep_running(50_000)
    if restart:
        group.stop_all(10)
        group.start()
    else:
        leader = group.elect()
        group.crash(leader, CrashKind.PROCESS)
        group.run_until(lambda: group.leader() not in (None, leader), limit_ms=SOON_MS)
        group.boot(leader)
    group.elect()
    group.keep_running(50_000)
    assert group.purged == 0
    group.keep_running(20_000)
    assert group.purged > 0
    group.end()


@pytest.mark.slow
def test_rule_12_a_pause_that_is_over_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Purging(monkeypatch)
    group.stop_all(8 * HOUR_MS)
    group.start()
    group.elect()
    group.keep_running(70_000)
    group.stop_all(10)
    group.start()
    assert group.process(group.elect()).replica.clock_keeper.age_purge_step_ms == 0
    group.end()
