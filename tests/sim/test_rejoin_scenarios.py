"""Named histories of nodes that lost their logs (rule 11), several at once among them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core.messages import Message, PositionRequest, PositionResponse, VoteRequest
from dledger.core.values import HardState
from dledger.testing import QUIET
from tests.sim.cluster import SOON_MS, Cluster


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
    c.must_store()
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
