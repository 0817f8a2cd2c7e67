"""Named histories: each is a story that once went wrong somewhere, told to a simulated cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core.messages import (
    Append,
    HeartbeatResponse,
    Message,
    PushResponse,
    PushType,
    Truncate,
    VoteRequest,
)
from dledger.core.values import HardState, Role
from dledger.errors import Code, Refused
from dledger.infra.files.disk import CrashKind
from dledger.replica.shell import AppendOutcome
from dledger.testing import QUIET, check_end
from dledger.testing.virtual.sim_disk import CrashPoint
from tests.sim.cluster import KINDS, SOON_MS, Cluster


def test_figure_8_of_the_raft_paper() -> None:
    """An entry of an old term on a majority is not committed by that, and may still be overwritten."""
    c = Cluster(5, max_push_bytes=1)
    for node, terms, term in (
        ("n0", [1, 2], 3),
        ("n1", [1, 2], 3),
        ("n2", [1], 3),
        ("n3", [1], 3),
        ("n4", [1, 3], 3),
    ):
        c.preload(node, terms, HardState(term, None, 0))

    def gate(source: str, target: str, message: Message) -> bool:
        if isinstance(message, VoteRequest):
            return source == "n0"
        # The no-op of term 4 reaches nobody; the entry of term 2 reaches n2.
        return not (isinstance(message, Append) and (message.runs[-1].term >= 4 or target != "n2"))

    c.network.gate = gate
    c.network.cut("n0", "n4")
    c.start()
    c.run_until(lambda: c.leader() == "n0" and c.end_of("n2") == 1, limit_ms=SOON_MS)
    c.run_for(100)
    holders = [n for n in c.profile.node_ids if c.process(n).replica.core.log.holds(1, 2)]
    assert holders == ["n0", "n1", "n2"]
    assert c.committed("n0") == -1, "an entry of term 2 was committed by counting in term 4"
    c.crash("n0", CrashKind.PROCESS)
    c.network.heal_all()
    c.only("n4")
    assert c.elect() == "n4"
    assert all(c.process(n).replica.core.log.holds(1, 3) for n in ("n4",))
    c.end()
    assert c.process("n1").replica.core.log.holds(1, 3), "the entry of term 2 gave way"


@pytest.mark.parametrize("winner", ["n1", "n2", "n3", "n4"])
def test_five_nodes_question(winner: str) -> None:
    """Five nodes, the leader is lost, the followers end at 100, 120, 90 and 90. Who may win?

    With five nodes a commit needs three copies: at most 100 entries can have been acknowledged. n1 (100) wins
    with n3 and n4, n2 (120) with anybody; n3 and n4 (90) only with each other and themselves, which is no
    majority. If n1 wins, entries 101 to 120 of n2 are cut: their producers saw a time-out.
    """
    c = Cluster(5)
    for node, length in (("n0", 120), ("n1", 100), ("n2", 120), ("n3", 90), ("n4", 90)):
        c.preload(node, [1] * length, HardState(1, "n0", 0))
    c.only(winner)
    c.start()
    c.crash("n0", CrashKind.POWER)
    if winner in ("n3", "n4"):
        c.run_for(SOON_MS)
        assert c.leader() is None, f"{winner} won with a shorter log than a majority"
        return
    if winner == "n1":
        c.network.cut("n1", "n2")  # n2 would refuse, and it is not needed
    assert c.elect() == winner
    c.network.heal_all()
    c.run_until(lambda: c.end_of("n3") == c.end_of(winner) == c.end_of("n2"), limit_ms=SOON_MS)
    kept = 100 if winner == "n1" else 120
    log = c.process("n2").replica.core.log
    assert log.last_index_of_term(1) == kept - 1
    assert log.end_index == kept, "the winner's no-op follows what it had"
    c.end()


def _deliver_truncate(c: Cluster, to: str, leader: str, term: int, stream_id: int, index: int) -> None:
    entry_term = c.process(to).replica.core.log.term_at(index)
    c.process(to).deliver(leader, Truncate(term, leader, stream_id, -1, index, entry_term), None)


def test_delayed_truncate_of_the_current_leader() -> None:
    """A TRUNCATE that comes again, when the entry there is the leader's own by now, changes nothing."""
    c = Cluster()
    leader = c.begin()
    follower = c.others(leader)[0]
    c.must_store(leader, 3)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    before = c.end_of(follower)
    _deliver_truncate(c, follower, leader, c.term(leader), c.stream_id(leader, follower), before - 2)
    assert c.end_of(follower) == before
    c.end()


def test_delayed_truncate_of_a_deposed_leader() -> None:
    """Also if the entry there has another term: who no longer leads truncates nothing."""
    c = Cluster()
    old = c.begin()
    old_term, follower = c.term(old), c.others(old)[0]
    stream_id = c.stream_id(old, follower)
    c.crash(old, CrashKind.PROCESS)
    new = c.elect()
    c.must_store(new, 3)
    c.boot(old)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    before = c.end_of(follower)
    c.process(follower).deliver(old, Truncate(old_term, old, stream_id, -1, before, old_term), None)
    assert c.end_of(follower) == before
    c.end()


def test_leader_that_restarts_campaigns_in_a_higher_term() -> None:
    c = Cluster()
    leader = c.begin()
    term = c.term(leader)
    c.only(leader)
    c.crash(leader, CrashKind.PROCESS)
    c.boot(leader)
    c.run_until(lambda: c.leader() == leader, limit_ms=SOON_MS)
    assert c.term(leader) > term
    c.end()


def test_isolated_node_with_a_higher_term_is_taken_back() -> None:
    """DLedger issue 325: the answer with the higher term has to be acted on, or the node is orphaned."""
    c = Cluster()
    for node, term in (("n0", 3), ("n1", 3), ("n2", 9)):
        c.preload(node, [1, 1, 1] if node != "n2" else [1], HardState(term, None, 0))
    c.start()
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    assert c.term("n2") > 9
    c.must_store()
    c.end()


def test_isolated_node_disturbs_nobody() -> None:
    """Pre-vote: a node that was cut off for long comes back without an election."""
    c = Cluster()
    leader = c.begin()
    term, lonely = c.term(leader), c.others(leader)[0]
    c.isolate(lonely)
    c.run_for(SOON_MS)
    assert c.term(lonely) == term
    c.end()
    assert c.leader() == leader and c.term(leader) == term


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [False, True])
def test_one_way_partition_makes_no_endless_elections(deaf: bool) -> None:
    """DLedger issues 7 and 25: a follower that hears nobody, or is heard by nobody."""
    c = Cluster()
    leader = c.begin()
    victim = c.others(leader)[0]
    for other in c.others(victim):
        c.network.cut(*((other, victim) if deaf else (victim, other)))
    begin = c.term(leader)
    c.run_for(10 * SOON_MS)
    now = c.elect()
    assert c.term(now) <= begin + 1
    c.must_store(now)
    c.end()


def test_one_way_partition_of_the_leader_is_left_behind() -> None:
    """A leader that can send but hears nobody steps down, and another leads."""
    c = Cluster()
    leader = c.begin()
    for other in c.others(leader):
        c.network.cut(other, leader)
    c.run_until(lambda: c.leader() not in (None, leader), limit_ms=SOON_MS)
    c.must_store()
    c.end()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", list(CrashPoint))
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_crash_around_every_disk_operation(kind: CrashKind, point: CrashPoint, role: str) -> None:
    """Down before, inside and after each disk operation of an append, and nothing acknowledged is lost."""
    for operation in range(1, 13):
        c = Cluster(on_disk=True, data_file_size=1024)
        leader = c.begin()
        c.must_store(leader, 3)
        victim = leader if role == "leader" else c.others(leader)[0]
        node = c.nodes[victim]
        node.crash_kind, node.restart_after_ms = kind, 50
        assert node.host.crash_within(operation, point)
        attempts = []
        for _ in range(6):
            if c.nodes[leader].process is not None:
                attempts.append(c.write(leader, 2))
            c.run_for(10)
        c.end()
        assert any(a.is_acknowledged for a in attempts) or role == "leader"
        c.must_store()


@pytest.mark.parametrize("kind", KINDS)
def test_batch_is_whole_or_absent_after_a_crash_in_it(kind: CrashKind) -> None:
    """Wherever a write of a batch of five is torn, all of it is there after the restart, or none of it."""
    for point in CrashPoint:
        for seed in range(20):
            c = Cluster(1, on_disk=True)
            c.nodes["n0"].rng.seed(seed)
            leader = c.begin()
            c.must_store(leader, 2)
            before = c.end_of(leader)
            node = c.nodes[leader]
            node.crash_kind, node.restart_after_ms = kind, 10
            assert node.host.crash_within(1, point)
            attempt = c.write(leader, 5)
            c.run_for(500)
            assert not attempt.is_acknowledged or point is CrashPoint.AFTER
            log = c.process(leader).replica.core.log
            noop_and_batch = [before + 1, before + 6]
            assert log.last_index_of_term(1) in (before, before + 5), (log, noop_and_batch)


def test_repeated_and_overlapping_pushes() -> None:
    """DLedger issues 251, 320, 331: entries that are here already are skipped and acknowledged."""
    c = Cluster()
    leader = c.begin()
    follower = c.others(leader)[0]
    seen: list[tuple[Append, bytes | None]] = []
    receive = c.process(follower).shell.receive

    def record(peer: str, message: Message, payload: bytes | None) -> None:
        if isinstance(message, Append):
            seen.append((message, payload))
        receive(peer, message, payload)

    c.process(follower).shell.receive = record  # type: ignore[method-assign]
    for _ in range(4):
        c.must_store(leader, 2)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    before, fsyncs = c.end_of(follower), c.counts["fsyncs"]
    assert len(seen) >= 4
    for message, payload in [seen[-1], seen[0], seen[-2]]:
        c.process(follower).deliver(leader, message, payload)
    joined = replace(seen[-2][0], last_index=seen[-1][0].last_index)
    payload = (seen[-2][1] or b"") + (seen[-1][1] or b"")
    c.process(follower).deliver(leader, joined, payload)
    c.run_for(100)
    assert c.end_of(follower) == before and c.counts["fsyncs"] == fsyncs
    c.end()


def test_answer_of_an_older_stream_is_not_counted() -> None:
    """An acknowledgement from a former stream says nothing: what it was about may be gone."""
    c = Cluster()
    leader = c.begin()
    follower = c.others(leader)[0]
    c.must_store(leader)
    old = c.stream_id(leader, follower)
    for other in c.others(leader):
        c.network.cut(leader, other)
    lost = c.write(leader, 2)
    before = c.committed(leader)
    c.run_for(20)
    end = c.end_of(leader)
    assert end == before + 2
    claim = PushResponse(c.term(leader), follower, old - 1, Code.SUCCESS, PushType.APPEND, end, 0, end)
    c.process(leader).deliver(follower, claim, None)
    c.run_for(20)
    assert c.committed(leader) == before and not lost.is_acknowledged
    c.end()


def test_completion_of_an_older_generation_is_void() -> None:
    """The disk reports a write from before a truncation: what stands there now is not durable by that."""
    c = Cluster()
    for node, terms in (("n0", [1] * 6), ("n1", [1]), ("n2", [1])):
        c.preload(node, terms, HardState(1, None, 0))
    c.isolate("n0")
    c.start()
    leader = c.elect()
    assert leader != "n0"
    for _ in range(8):
        c.must_store(leader, 2)
    late = c.process("n0")
    late.disk_stuck_until_ms = c.clock.now_ms + SOON_MS // 2
    for other in c.others("n0"):
        c.network.heal(other, "n0")
        c.network.heal("n0", other)
    c.run_until(lambda: late.replica.core.log.generation == 1 and c.end_of("n0") > 6, limit_ms=SOON_MS)
    durable = late.replica.core.log.durable_index
    assert durable < 5
    late.post(lambda: late.replica.stored(late.now_ms(), 0, 5, 1))
    assert late.replica.core.log.durable_index == durable
    c.end()


def test_completion_of_an_older_generation_acknowledges_no_append() -> None:
    """The leader's disk reports a write from before a truncation, while one follower has an append that
    replaced it: the append has one durable copy."""
    c = Cluster()
    for node, terms in (("n0", [1] * 6), ("n1", [1]), ("n2", [1])):
        c.preload(node, terms, HardState(1, None, 0))
    c.isolate("n0")
    c.start()
    c.must_store(c.elect(), 1)
    c.heal()
    c.only("n0")
    old = c.leader()
    assert old is not None
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    leader = c.process("n0")
    assert leader.replica.core.log.generation > 0, "its own entries were truncated"
    c.crash(old, CrashKind.PROCESS)
    assert c.elect() == "n0"
    leader.disk_stuck_until_ms = c.clock.now_ms + SOON_MS // 4
    before, attempt = c.end_of("n0"), c.write("n0")
    (follower,) = (node for node in c.others("n0") if node != old)
    c.run_until(lambda: c.match_of("n0", follower) > before, limit_ms=SOON_MS)
    late = leader.replica
    leader.post(lambda: late.stored(leader.now_ms(), 0, late.core.log.end_index, 1))
    c.run_for(1)
    assert attempt.answer is None and late.core.committed_index == before
    c.end()


def test_round_from_before_a_read_does_not_confirm_it() -> None:
    """A deposed leader gets late answers to its last heartbeat: they say who led then, not who leads now."""
    timing = replace(QUIET.timing, heartbeat_ms=900, election_min_ms=2_000, election_max_ms=4_000)
    c = Cluster(timing=timing)
    c.start()
    old = c.elect(limit_ms=20_000)
    c.must_store(old)
    c.run_until(c.is_settled, limit_ms=20_000)
    delayed: list[tuple[str, Message]] = []

    def hold(source: str, target: str, message: Message) -> bool:
        if target == old and isinstance(message, HeartbeatResponse):
            delayed.append((source, message))
            return False
        return True

    c.network.gate = hold
    c.run_until(lambda: len(delayed) == 2, limit_ms=SOON_MS)
    c.isolate(old)
    for stream in c.network.streams_of(old):
        stream.break_off(10_000, 0)
    c.run_until(lambda: c.leader() not in (None, old), limit_ms=600)
    new = c.leader()
    assert new is not None
    c.must_store(new)
    answers: list[object] = []
    process = c.process(old)
    assert process.replica.core.role is Role.LEADER, "it does not know yet"
    process.post(lambda: process.read_index(answers.append))
    for source, message in delayed:
        process.deliver(source, message, None)
    c.run_for(50)
    assert not [a for a in answers if isinstance(a, int)], "a stale read"
    c.network.gate = None
    c.heal()
    c.run_until(c.is_settled, limit_ms=20_000)
    check_end(c)


def test_idle_cluster_commits_after_an_election() -> None:
    """DLedger issue 305: without traffic, the no-op of the new leader commits what the old one left."""
    c = Cluster()
    for node in c.profile.node_ids:
        c.preload(node, [1] * 5, HardState(1, None, 0))
    leader = c.begin()
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    assert {c.committed(n) for n in c.profile.node_ids} == {5}
    assert c.end_of(leader) == 5


def test_retry_meets_its_first_try_on_a_new_leader() -> None:
    """The first try is in the new leader's log, and not committed: the retry waits for it, and is it."""
    c = Cluster()
    leader = c.begin()
    session = c.open_session()
    heir = c.others(leader)[0]

    def no_answers(source: str, target: str, message: Message) -> bool:
        return not isinstance(message, PushResponse)

    before = c.end_of(leader)
    c.network.gate = no_answers
    first = c.write(leader, 3, session=(session, 1))
    c.run_until(lambda: before < c.end_of(leader) == c.end_of(heir), limit_ms=SOON_MS)
    tried_end = c.end_of(leader)
    c.crash(leader, CrashKind.POWER)
    assert not first.is_acknowledged
    c.only(heir)
    c.run_until(lambda: c.leader() == heir, limit_ms=SOON_MS)
    again = c.append(heir, again=first.append, session=(session, 1))
    c.run_until(lambda: again.answer is not None, limit_ms=SOON_MS)
    assert isinstance(again.answer, AppendOutcome) and again.answer.duplicate
    assert again.answer.index + 2 == tried_end, "not stored a second time"
    c.end()


@pytest.mark.parametrize("how", ["dead", "cut off"])
def test_preferred_leader_blocks_nothing(how: str) -> None:
    """DLedger issues 39 and 85: a preferred leader that is away holds up neither elections nor writes."""
    c = Cluster(preferred_leaders=("n2",))
    c.start()
    if how == "dead":
        c.crash("n2", CrashKind.POWER)
    else:
        c.isolate("n2")
    for _ in range(5):
        leader = c.elect()
        assert leader != "n2"
        c.must_store(leader)
        c.run_for(SOON_MS // 2)
    c.end()
    c.run_until(lambda: c.leader() == "n2" and c.is_settled(), limit_ms=2 * SOON_MS)
    c.must_store("n2")


@pytest.mark.parametrize("how", ["dead", "lagging", "stops when asked"])
def test_transfer_to_a_bad_target_is_bounded(how: str) -> None:
    """The transfer ends, one way or the other, and the cluster takes writes again."""
    c = Cluster(max_transfer_lag=3)
    leader = c.begin()
    target = c.others(leader)[0]
    if how == "dead":
        c.crash(target, CrashKind.POWER)
    elif how == "lagging":
        c.process(target).disk_stuck_until_ms = c.clock.now_ms + SOON_MS
        for _ in range(8):
            c.must_store(leader)
    else:
        c.pause(target)
    outcome: list[object] = []
    process = c.process(leader)
    process.post(lambda: process.transfer(target, outcome.append))
    took = c.run_until(lambda: bool(outcome), limit_ms=SOON_MS)
    assert took <= 2 * c.profile.timing.transfer_timeout_ms
    assert outcome[0] is not None, "it cannot have worked"
    c.must_store()
    c.end()


def test_transfer_to_a_good_target_loses_nothing() -> None:
    c = Cluster()
    leader = c.begin()
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    target = c.others(leader)[0]
    attempts = [c.write(leader) for _ in range(5)]
    outcome: list[object] = []
    process = c.process(leader)
    process.post(lambda: process.transfer(target, outcome.append))
    refused = c.write(leader)
    c.run_until(lambda: bool(outcome) and c.leader() == target, limit_ms=SOON_MS)
    assert outcome == [None]
    assert isinstance(refused.answer, Refused)
    c.run_until(lambda: all(a.answer is not None for a in attempts), limit_ms=SOON_MS)
    c.end()


def test_killed_leader_is_replaced_long_before_the_time_out() -> None:
    """Rule 5: streams that end without GOODBYE start an election after at most 100 ms."""
    timing = replace(QUIET.timing, heartbeat_ms=200, election_min_ms=5_000, election_max_ms=10_000)
    took = []
    for seed in range(10):
        c = Cluster(timing=timing)
        c.nodes["n0"].rng.seed(seed)
        c.start()
        leader = c.elect(limit_ms=60_000)
        c.run_until(c.is_settled, limit_ms=60_000)
        c.crash(leader, CrashKind.PROCESS)
        took.append(c.run_until(lambda c=c, leader=leader: c.leader() is not None, limit_ms=1_000))  # type: ignore[misc]
    assert max(took) < 500, took


def test_loss_of_one_stream_deposes_nobody() -> None:
    """A broken stream of a leader that lives: the others refuse, and the follower goes on following."""
    c = Cluster()
    leader = c.begin()
    term, follower = c.term(leader), c.others(leader)[0]

    def is_up() -> bool:
        return any(stream.is_up for stream in c.network.streams_between(leader, follower))

    for _ in range(10):
        c.run_until(is_up, limit_ms=SOON_MS)
        c.network.streams_between(leader, follower)[0].break_off(0, 0)
        c.must_store(leader)
        c.run_for(200)
    assert c.leader() == leader and c.term(leader) == term
    c.end()


def test_power_loss_of_all_nodes_at_once_loses_nothing() -> None:
    for wait_ms in range(12):
        c = Cluster(on_disk=wait_ms % 2 == 1)
        leader = c.begin()
        attempts = [c.write(leader, 2) for _ in range(3)]
        c.run_for(wait_ms)
        for node in c.profile.node_ids:
            c.crash(node, CrashKind.POWER)
        c.end()
        c.must_store()
        assert c.process(c.elect()).replica.core.role is Role.LEADER
        assert all(a.answer is None or a.is_acknowledged for a in attempts)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_cluster_time_outlives_a_restart_with_wrong_clocks(jump_ms: int) -> None:
    """All that carries a stamp is covered by the stored session table: that has to know the time, too. Time
    never goes back, and steps forward to what a majority of the clocks shows after a stop."""
    cluster = Cluster()
    cluster.write(cluster.begin())
    cluster.run_for(1000)
    first_ms = cluster.invariants.housekeeping.last_stamp_ms
    for node_id in cluster.profile.node_ids:
        cluster.crash(node_id, CrashKind.PROCESS)
        cluster.nodes[node_id].wall_offset_ms = jump_ms
    cluster.start()
    cluster.elect()
    stepped_ms = max(0, jump_ms)
    gained_ms = cluster.invariants.housekeeping.last_stamp_ms - first_ms - stepped_ms
    assert 0 <= gained_ms <= cluster.clock.now_ms
