"""Named histories of nodes that lost their logs (rule 11), several at once among them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core.messages import Message, PositionRequest, PositionResponse, VoteRequest
from dledger.core.values import HardState
from dledger.infra.files.disk import CrashKind
from dledger.testing import QUIET, Profile, RunOptions, run_seed
from tests.sim.cluster import SOON_MS, Cluster

#: Lost disks that return after their nodes have rejoined.
RETURNED = Profile(
    faults=("lose_disk", "return_disk", "return_disk", "isolate", "crash_process"),
    fault_every_ms=200,
    delay_max_ms=20,
    spike=0.05,
    late_delivery=0.9,
    keepalive_ms=80,
    think_max_ms=5,
    duplication=0.1,
)


def _is_rejoining(c: Cluster, node_id: str) -> bool:
    process = c.nodes[node_id].process
    return process is None or process.replica.core.hard_state.is_barred


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("with_leader", [False, True], ids=["two followers", "the leader and a follower"])
def test_two_of_five_that_rejoin_at_once_both_get_back(with_leader: bool, on_disk: bool) -> None:
    """Three members remember everything: those that lost their logs need not wait for each other."""
    c = Cluster(5, on_disk=on_disk)
    leader = c.begin()
    attempts = [c.must_store(leader, 3) for _ in range(5)]
    others = c.others(leader)
    lost = [leader, others[0]] if with_leader else others[:2]
    for node_id in lost:
        assert c.lose_disk(node_id)
    assert not c.lose_disk(others[2]), "a third one would be a majority"
    for node_id in lost:
        c.boot(node_id)
    c.store_soon()  # the new leader may campaign again, in a term in which the two can vote
    c.run_until(lambda: not any(_is_rejoining(c, n) for n in lost), limit_ms=2 * SOON_MS)
    # They count again: with two of the others gone, the three that are left commit.
    gone = [n for n in c.profile.node_ids if n not in lost][:2]
    for node_id in gone:
        c.isolate(node_id)
    # One of the two may lead still, and not know yet that it has no majority any more.
    c.run_until(lambda: c.leader() not in (None, *gone), limit_ms=2 * SOON_MS)
    c.must_store(c.leader())
    assert all(a.is_acknowledged for a in attempts)
    c.end()


def test_one_of_five_is_back_before_the_other_begins() -> None:
    """It waited for the lost one, and is told by it, when it comes, that it knows nothing."""
    c = Cluster(5)
    leader = c.begin()
    c.must_store(leader, 3)
    one, two = c.others(leader)[:2]
    assert c.lose_disk(one) and c.lose_disk(two)
    c.boot(one)
    c.run_for(SOON_MS)
    assert _is_rejoining(c, one), "nobody knows what the other one knows"
    c.boot(two)
    c.run_until(lambda: not _is_rejoining(c, one) and not _is_rejoining(c, two), limit_ms=2 * SOON_MS)
    c.end()


def test_two_of_three_that_rejoin_at_once_wait_for_each_other() -> None:
    """The third one may not have what the two acknowledged: nothing may be taken for certain."""
    c = Cluster()
    leader = c.begin()
    c.must_store(leader, 3)
    one, two = c.others(leader)
    for node_id in (one, two):
        c.crash(node_id, c.nodes[node_id].crash_kind)
        c.invariants.wiped(node_id, c.nodes[node_id].host.replace_disk(1 << 20))
        c.boot(node_id)
    c.run_for(3 * SOON_MS)
    assert _is_rejoining(c, one) and _is_rejoining(c, two)
    assert c.leader() is None, "one of three is no majority"
    assert all(c.process(n).replica.core.hard_state.rejoining for n in (one, two))


def test_a_lost_vote_for_itself_that_nobody_heard_of_may_go_to_another() -> None:
    """Who was to be elected by it is no more, and cannot be elected: only its new life gets answers."""
    c = Cluster()
    for node_id in c.profile.node_ids:
        c.preload(node_id, [], HardState(3, None, 0))

    def n1_is_heard_before_the_vote_and_not_in_it(source: str, target: str, message: Message) -> bool:
        return not isinstance(message, VoteRequest) or (source == "n1" and message.pre_vote)

    c.network.gate = n1_is_heard_before_the_vote_and_not_in_it
    c.start()
    c.run_until(lambda: c.process("n1").replica.core.hard_state.voted_for == "n1", limit_ms=SOON_MS)
    c.run_for(20)  # it is durable, and told to nobody
    assert c.term("n1") == 4
    assert c.lose_disk("n1")

    def n0_asks_n1_alone(source: str, target: str, message: Message) -> bool:
        return not isinstance(message, VoteRequest) or (source, target) == ("n0", "n1")

    c.network.gate = n0_asks_n1_alone
    c.boot("n1")
    c.run_until(lambda: c.leader() == "n0", limit_ms=5 * SOON_MS)
    assert c.term("n0") == 4
    c.network.gate = None
    c.must_store("n0")
    c.end()


def test_two_lost_votes_of_one_term_make_no_second_leader() -> None:
    """n0 votes for n1 and loses its disk; n1 wins with that vote and n2's, and loses its disk, too.

    n2 alone remembers the term, and not yet when n0 asked it first: asked again, it does."""
    timing = replace(QUIET.timing, heartbeat_ms=900, election_min_ms=2_000, election_max_ms=4_000)
    c = Cluster(5, timing=timing)
    for node_id in c.profile.node_ids:
        c.preload(node_id, [], HardState(5, None, 0))
    delayed: list[Message] = []

    def first_n0_alone_is_asked(source: str, target: str, message: Message) -> bool:
        if isinstance(message, VoteRequest) and not message.pre_vote and target != "n0":
            if target == "n2":
                delayed.append(message)
            return False
        return not isinstance(message, VoteRequest) or source == "n1"

    c.network.gate = first_n0_alone_is_asked
    c.start()
    c.run_until(lambda: c.process("n0").replica.core.hard_state.voted_for == "n1", limit_ms=5 * SOON_MS)
    c.run_for(20)  # its vote is on its way; n1 needs one more
    assert c.term("n1") == c.term("n0") == 6
    assert c.lose_disk("n0")

    def what_n1_does_is_known_to_n2_alone(source: str, target: str, message: Message) -> bool:
        if isinstance(message, PositionRequest | PositionResponse):
            return "n1" not in (source, target)
        return {source, target} == {"n1", "n2"}

    c.network.gate = what_n1_does_is_known_to_n2_alone
    c.boot("n0")
    rejoining = c.process("n0").replica.core.rejoining
    c.run_until(lambda: set(rejoining._reports) == {"n2", "n3", "n4"}, limit_ms=200)
    c.process("n2").deliver("n1", delayed[0], None)
    c.run_until(lambda: c.leader() == "n1", limit_ms=200)
    assert c.lose_disk("n1")

    def n2_only_answers(source: str, target: str, message: Message) -> bool:
        if isinstance(message, PositionRequest | PositionResponse):
            return source == "n0" or target == "n0"
        return "n1" not in (source, target) and "n2" not in (source, target)

    c.network.gate = n2_only_answers
    c.boot("n1")
    c.run_for(10 * SOON_MS)  # n3 and n4 would elect one of them in n1's term, if n0 voted once more
    c.network.gate = None
    for stream in list(c.network.streams):
        stream.break_off(0, 0)  # the gate took something out of their middle
    c.heal()
    c.run_until(c.is_settled, limit_ms=20 * SOON_MS)


def _is_down(c: Cluster, node_id: str) -> bool:
    return c.nodes[node_id].process is None


def rejoin(c: Cluster, node_id: str) -> None:
    assert c.lose_disk(node_id)
    c.boot(node_id)
    c.run_until(lambda: not _is_rejoining(c, node_id), limit_ms=2 * SOON_MS)


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_lost_disk_that_returns_elects_no_leader_without_the_entries_of_the_newer_one(
    on_disk: bool,
) -> None:
    """n1 acknowledged entries that n2 alone has as well. With its earlier disk and n0 it is a majority."""
    c = Cluster(on_disk=on_disk)
    c.only("n2")
    c.begin()
    c.must_store("n2")
    rejoin(c, "n1")
    c.store_soon()
    c.crash("n0", CrashKind.POWER)
    stored = c.must_store("n2")
    c.crash("n2", CrashKind.POWER)
    c.return_disk("n1")
    c.network.gate = None
    c.boot("n0")
    c.boot("n1")
    c.run_for(10 * SOON_MS)
    assert _is_down(c, "n1"), "it is told that it has another disk"
    assert c.leader() is None, "one of three is no majority"
    c.restore_newest_disk("n1")
    c.boot("n1")
    assert c.elect() == "n1", "n0 lacks what n1 and n2 acknowledged"
    c.boot("n2")
    c.end()
    assert stored.is_acknowledged


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "is asked"])
def test_a_lost_disk_that_returns_is_refused_whoever_speaks_first(asks: bool) -> None:
    c = Cluster()
    leader = c.begin()
    c.must_store(leader)
    old = c.others(leader)[0]
    rejoin(c, old)
    c.store_soon()
    for node_id in c.profile.node_ids:
        c.crash(node_id, CrashKind.POWER)
    c.return_disk(old)
    c.network.gate = lambda source, _target, _message: (source == old) is asks
    c.boot(leader)
    c.boot(old)
    c.run_until(lambda: _is_down(c, old), limit_ms=5 * SOON_MS)
    c.network.gate = None
    c.restore_newest_disk(old)
    for node_id in c.others(leader):
        c.boot(node_id)
    c.must_store()
    c.end()


def test_a_lost_disk_that_returns_is_refused_by_a_member_that_rejoined_later() -> None:
    """n2 was told by n0 which disk of n1 is the newest. n1 has never asked it for anything."""
    c = Cluster()

    def n1_asks_n2_for_nothing(source: str, target: str, message: Message) -> bool:
        if isinstance(message, VoteRequest):
            return source == "n0"
        return (source, target) != ("n1", "n2") or isinstance(message, PositionResponse)

    c.network.gate = n1_asks_n2_for_nothing
    c.begin()
    c.must_store("n0")
    c.network.gate = lambda source, _target, message: not isinstance(message, VoteRequest) or source == "n0"
    rejoin(c, "n1")
    c.network.gate = n1_asks_n2_for_nothing
    c.store_soon()
    rejoin(c, "n2")
    c.store_soon()
    for node_id in c.profile.node_ids:
        c.crash(node_id, CrashKind.POWER)
    c.return_disk("n1")
    c.network.gate = None
    c.boot("n2")
    c.boot("n1")
    c.run_until(lambda: _is_down(c, "n1"), limit_ms=5 * SOON_MS)
    c.restore_newest_disk("n1")
    c.boot("n1")
    c.must_store()
    c.boot("n0")
    c.end()


def test_the_report_of_a_lost_disk_that_returns_does_not_count() -> None:
    """n1 and n2 alone acknowledged an entry. n2 loses its disk, and asks n1, which has its earlier one,
    before n0 tells it that there is a newer one."""
    c = Cluster()
    c.only("n2")
    c.begin()
    c.must_store("n2")
    rejoin(c, "n1")
    c.store_soon()
    c.crash("n0", CrashKind.POWER)
    stored = c.must_store("n2")
    c.crash("n1", CrashKind.POWER)
    assert c.lose_disk("n2")
    c.return_disk("n1")
    c.network.gate = lambda source, target, _message: {source, target} == {"n1", "n2"}
    c.boot("n0")
    c.boot("n1")
    c.boot("n2")
    c.run_until(lambda: "n1" in c.process("n2").replica.core.rejoining._reports, limit_ms=SOON_MS)
    c.network.gate = lambda source, target, _message: "n1" not in (source, target)
    c.run_for(10 * SOON_MS)
    assert _is_rejoining(c, "n2") and c.process("n2").replica.core.rejoining.missing == ("n1",)
    c.network.gate = None
    c.run_until(lambda: _is_down(c, "n1"), limit_ms=5 * SOON_MS)
    c.restore_newest_disk("n1")
    c.boot("n1")
    c.must_store()
    c.end()
    assert stored.is_acknowledged


def test_a_lost_disk_may_rejoin_itself() -> None:
    """A node that lost its disk twice, and gets the first new one back, which had not rejoined: as good as an
    empty one. It takes a number above that of the second one, which is refused from then on."""
    c = Cluster()
    leader = c.begin()
    c.must_store(leader)
    node_id, other = c.others(leader)
    c.crash(other, CrashKind.POWER)  # it would have to answer
    assert c.lose_disk(node_id)
    c.boot(node_id)
    c.run_for(SOON_MS)
    assert _is_rejoining(c, node_id)
    assert c.lose_disk(node_id)
    c.boot(other)
    c.boot(node_id)
    c.run_until(lambda: not _is_rejoining(c, node_id), limit_ms=2 * SOON_MS)
    c.must_store()
    c.return_disk(node_id)
    c.boot(node_id)
    c.run_until(lambda: not _is_rejoining(c, node_id), limit_ms=2 * SOON_MS)
    c.must_store()
    newest = c.nodes[node_id].later
    assert newest is not None
    c.nodes[node_id].earlier, c.nodes[node_id].later = newest, None
    c.return_disk(node_id)
    c.boot(node_id)
    c.run_until(lambda: _is_down(c, node_id), limit_ms=5 * SOON_MS)
    c.restore_newest_disk(node_id)
    c.boot(node_id)
    c.must_store()
    c.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(6, 60, 6))]
)
def test_seeds_in_which_lost_disks_return(first: int) -> None:
    returned = 0
    for seed in range(first, first + 6):
        profile = replace(RETURNED, nodes=5 if seed % 3 == 1 else 3, on_disk=seed % 3 == 2)
        result = run_seed(seed, RunOptions(profile=profile))
        assert result.failure is None, result.failure
        returned += result.counts["lost disks returned"]
    assert returned > 0
