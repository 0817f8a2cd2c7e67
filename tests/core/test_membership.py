"""Changes of the members (docs/guarantees.md rule 15), on one core at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dledger.core.directories import FIRST_REJOINED, MAX_DIRECTORY
from dledger.core.effects import AppendMembership, ChangeEnded, MembershipChanged
from dledger.core.events import (
    ChangeRequest,
    DirectorySeen,
    EntriesAppended,
    LogPurged,
    MessageReceived,
    StreamDown,
)
from dledger.core.log_view import confirmed_memberships
from dledger.core.membership_change import (
    MAX_MEMBERS,
    MAX_STEPS,
    ChangeKind,
    ChangeRefused,
    MembershipChange,
    MemberStep,
    first_entry,
    first_members,
    first_new_uid,
    last_entry,
    target_of,
)
from dledger.core.membership_json import decode_membership, encode_membership
from dledger.core.messages import (
    Commit,
    Goodbye,
    HeartbeatResponse,
    InstallBase,
    PositionRequest,
    PositionResponse,
    TakeLeadership,
    Truncate,
)
from dledger.core.messages import VoteResponse as Vote
from dledger.core.values import (
    ENTRY_HEADER_SIZE,
    FEATURES,
    MAX_POS,
    MAX_TERM,
    MAX_UID,
    NO_BASE,
    UNKNOWN_UID,
    Base,
    HardState,
    Member,
    Membership,
    MembershipAt,
    Recovery,
    Role,
    VoteResult,
)
from dledger.errors import Code
from tests.core.driver import ENTRY_BYTES, Node, compare, heartbeat, push, runs_of, vote_request

REQUEST = 7


def members(*node_ids: str, uid: int = 0) -> tuple[Member, ...]:
    return tuple(Member(node_id, uid, f"{node_id}:1") for node_id in sorted(node_ids))


def steps(text: str) -> tuple[MemberStep, ...]:
    """`add d` or `promote d remove a`."""
    words = text.split()
    return tuple(
        MemberStep(ChangeKind(kind), node_id, f"{node_id}:1")
        for kind, node_id in zip(words[::2], words[1::2], strict=True)
    )


def change(node: Node, text: str, *, force: bool = False) -> None:
    node.step(ChangeRequest(REQUEST, MembershipChange(steps(text), force)))


def ended(node: Node) -> list[Code]:
    return [effect.code for effect in node.all_effects(ChangeEnded)]


def leader(*learners: str, voters: Sequence[str] = ("a", "b", "c")) -> Node:
    """Node a leads; its voters, and these learners, hold all of its log, which is committed."""
    node = Node(voters=voters)
    node.core.log._memberships[0] = MembershipAt(
        -1, -1, Membership(tuple(voters), (), learners, members(*voters, *learners))
    )
    node.become_leader()
    node.core.leadership.members_changed() if node.core.leadership else None
    for peer in node.core.membership.others("a"):
        node.core.features[peer] = FEATURES
        node.connect_equal(peer)
    node.forget()
    return node


def acknowledge(node: Node, *peers: str) -> None:
    """These have stored the whole log of the leader."""
    for peer in peers:
        node.receive(peer, node.ack(peer, node.core.log.end_index))


def follower_with(*known: Membership, terms: Sequence[int] = (1,)) -> Node:
    """Node a, which has stored these configurations from leader b, one after the other."""
    node = Node(terms=terms, term=terms[-1])
    for membership in known:
        end, term = node.core.log.end_index, node.core.term
        message = push(term, end, node.core.log.end_term, [term])
        node.step(MessageReceived("b", message, None, (MembershipAt(end + 1, term, membership),)))
    return node


def with_voters(*voters: str, outgoing: Sequence[str] = (), learners: Sequence[str] = ()) -> Membership:
    return Membership(voters, tuple(outgoing), tuple(learners), members(*voters, *outgoing, *learners))


# -- what a change makes of a configuration


def test_a_change_of_the_voters_is_joint_and_then_ends() -> None:
    before = with_voters("a", "b", "c", learners=["d"])
    target = target_of(before, steps("promote d remove a"), 1)
    joint = first_entry(before, target)
    assert (joint.voters, joint.outgoing) == (("b", "c", "d"), ("a", "b", "c"))
    assert {member.node_id for member in joint.identities} == {"a", "b", "c", "d"}
    assert last_entry(joint) == target
    assert {member.node_id for member in target.identities} == {"b", "c", "d"}


@pytest.mark.parametrize("text", ["add d", "move a"])
def test_a_change_that_leaves_the_voters_takes_one_entry(text: str) -> None:
    before = Membership(("a", "b", "c"), identities=(Member("a", 0, "old:1"), *members("b", "c")))
    target = target_of(before, steps(text), 1)
    assert target is not before and first_entry(before, target) is target


@pytest.mark.parametrize("text", ["add a", "promote a", "demote d", "remove x"])
def test_a_change_that_is_in_force_changes_nothing(text: str) -> None:
    before = with_voters("a", "b", "c", learners=["d"])
    assert target_of(before, steps(text), 1) is before


def test_an_added_member_has_a_new_uid() -> None:
    before = with_voters("a", "b", "c", learners=["d"])
    after = target_of(target_of(before, steps("remove d"), 1), steps("add d add e"), 41)
    assert [member.uid for member in after.identities] == [0, 0, 0, 41, 42]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("promote x", Code.UNKNOWN_MEMBER),
        ("demote x", Code.UNKNOWN_MEMBER),
        ("move x", Code.UNKNOWN_MEMBER),
        ("remove a", Code.CHANGE_REFUSED),
        ("demote a", Code.CHANGE_REFUSED),
        ("add d promote d", Code.CHANGE_REFUSED),
        ("remove a add a promote a", Code.CHANGE_REFUSED),
    ],
)
def test_an_impossible_change_is_refused(text: str, code: Code) -> None:
    with pytest.raises(ChangeRefused) as refusal:
        target_of(with_voters("a"), steps(text), 1)
    assert refusal.value.code is code


@pytest.mark.parametrize("term", [1, 1 << 43, 1 << 44, MAX_TERM - 1])
def test_a_uid_is_within_its_bounds_in_every_term(term: int) -> None:
    node = Node(voters=["a"], terms=[term - 1], term=term - 1, committed=0).become_leader()
    assert node.core.term == term
    uids = []
    for text in ("add d add e", "remove d remove e", "add e add d"):
        change(node, text)
        membership = node.core.membership
        uids += [membership.uid_of(node_id) for node_id in "de" if membership.member(node_id)]
    assert uids[:2] == sorted(uids[:2]) and max(uids[:2]) < min(uids[2:]) and max(uids) <= MAX_UID


def test_the_greatest_uid_is_within_its_bounds() -> None:
    most_entries = MAX_POS // ENTRY_HEADER_SIZE
    assert first_new_uid(most_entries) + MAX_STEPS <= MAX_UID


def test_a_member_is_not_added_at_another_address() -> None:
    with pytest.raises(ChangeRefused) as refusal:
        target_of(with_voters("a", "b"), [MemberStep(ChangeKind.ADD, "b", "elsewhere:1")], 1)
    assert refusal.value.code is Code.CHANGE_REFUSED


@pytest.mark.parametrize("kind", [ChangeKind.ADD, ChangeKind.MOVE])
def test_two_members_do_not_have_one_address(kind: ChangeKind) -> None:
    before = with_voters("a", "b", "c")
    node_id = "d" if kind is ChangeKind.ADD else "c"
    with pytest.raises(ChangeRefused, match="b:1 is the address of b") as refusal:
        target_of(before, [MemberStep(kind, node_id, "b:1")], 1)
    assert refusal.value.code is Code.CHANGE_REFUSED


@pytest.mark.parametrize("text", ["promote d", "remove c", "remove d", "move c"])
def test_every_entry_of_a_change_keeps_what_a_forced_recovery_has_given(text: str) -> None:
    """Otherwise sessions of the former cluster would be taken for those of the new one."""
    before = replace(with_voters("a", "b", "c", learners=["d"]), recovery=Recovery(2, 1 << 50))
    moved = [replace(step, address="new:1") if text == "move c" else step for step in steps(text)]
    first = first_entry(before, target_of(before, moved, 1))
    assert first.recovery == last_entry(first).recovery == before.recovery


# -- the leader


def test_a_learner_receives_the_log_and_counts_nowhere() -> None:
    node = leader()
    change(node, "add d")
    acknowledge(node, "b")
    assert ended(node) == [Code.SUCCESS]
    node.connect_equal("d")
    node.append()
    node.store()
    assert node.core.committed_index < node.core.log.end_index
    acknowledge(node, "d")
    assert node.core.committed_index < node.core.log.end_index
    acknowledge(node, "b")
    assert node.core.committed_index == node.core.log.end_index


def test_a_joint_configuration_commits_with_a_majority_of_both_halves() -> None:
    node = leader("d", "e")
    change(node, "promote d promote e")  # a, b, c, d, e
    joint = node.core.log.end_index
    acknowledge(node, "d", "e")  # three of five, but one of three
    assert node.core.committed_index < joint and not ended(node)
    acknowledge(node, "b")
    assert node.core.committed_index == joint and not node.core.membership.is_joint
    assert node.core.log.end_index == joint + 1, "the entry that ends the change follows at once"
    assert not ended(node)
    acknowledge(node, "d", "e")  # three of five suffice now
    assert node.core.committed_index == joint + 1 and ended(node) == [Code.SUCCESS]


def test_a_configuration_is_in_force_once_it_is_appended() -> None:
    node = leader("d", "e", "f", "g")
    change(node, "promote d promote e promote f promote g")
    joint = node.core.log.end_index
    acknowledge(node, "b", "c")  # all before the change, but three of seven
    assert node.core.committed_index < joint
    acknowledge(node, "d")
    assert node.core.committed_index == joint


def test_a_leader_commits_an_entry_of_its_term_before_a_change() -> None:
    """Without this, changes of two leaders can have disjoint majorities (raft-dev, July 2015)."""
    node = Node(terms=[1, 1], term=1).become_leader()
    change(node, "remove c", force=True)
    assert ended(node) == [Code.CHANGE_RUNNING] and not node.core.membership.is_joint
    node.connect_equal("b")
    change(node, "remove c", force=True)
    assert node.core.membership.is_joint


def test_one_change_at_a_time() -> None:
    node = leader("d")
    change(node, "promote d")
    for _ in range(2):  # while it is joint, and while its last entry is not committed
        change(node, "remove c")
        assert ended(node)[-1] is Code.CHANGE_RUNNING
        acknowledge(node, "b", "c")
    assert ended(node)[-1] is Code.SUCCESS
    change(node, "remove c")
    assert node.core.membership.is_joint


def test_a_change_that_waits_for_its_place_in_the_log_runs_already() -> None:
    node = leader("d")
    assert node.core.leadership is not None
    changes = node.core.leadership.changes
    for number, text in enumerate(("promote d", "remove c")):
        changes.request(number, MembershipChange(steps(text)))
    effects = node.core.take_effects()
    assert sum(isinstance(effect, AppendMembership) for effect in effects) == 1
    [refused] = [effect for effect in effects if isinstance(effect, ChangeEnded)]
    assert (refused.request_id, refused.code) == (1, Code.CHANGE_RUNNING)


def test_no_change_during_a_transfer_of_leadership() -> None:
    node = leader("d")
    node.append()
    assert node.core.leadership is not None
    node.core.leadership.handing_over.transfer(1, "b")
    change(node, "promote d")
    assert ended(node) == [Code.CHANGE_RUNNING]


def test_only_a_leader_changes_members() -> None:
    node = Node()
    change(node, "add d")
    assert ended(node) == [Code.NOT_LEADER]


def test_a_change_that_is_in_force_succeeds_without_an_entry() -> None:
    node = leader("d")
    end = node.core.log.end_index
    change(node, "add d")
    change(node, "remove x")
    assert ended(node) == [Code.SUCCESS, Code.SUCCESS] and node.core.log.end_index == end


@pytest.mark.parametrize("lags", ["not connected", "does not answer", "has not everything"])
def test_a_learner_is_promoted_once_it_has_caught_up(lags: str) -> None:
    node = leader("d")
    if lags == "not connected":
        node.step(StreamDown("d", 1))
    node.append()
    if lags == "has not everything":
        node.pass_time(node.core.timing.election_min_ms // 2)
        acknowledge(node, "b", "c")
        node.receive("d", node.ack("d", 0))
        node.pass_time(node.core.timing.election_min_ms // 2 + 1)
        for peer in ("b", "c", "d"):
            node.receive(peer, node.beat_back(peer))
    elif lags == "does not answer":
        acknowledge(node, "d")
        for _ in range(3):
            node.pass_time(node.core.timing.election_min_ms // 2)
            for peer in ("b", "c"):
                node.receive(peer, node.beat_back(peer))
    change(node, "promote d")
    assert ended(node) == [Code.LEARNER_NOT_READY] and not node.core.membership.is_joint
    change(node, "promote d", force=True)
    assert node.core.membership.is_joint


def test_a_learner_that_is_rejoining_is_named_as_such() -> None:
    node = leader("d")
    assert node.core.leadership is not None
    node.core.leadership.progress["d"].counts = False
    change(node, "promote d")
    assert [effect.message for effect in node.all_effects(ChangeEnded)] == ["d is rejoining"]


def purged(node: Node, *holders: str) -> None:
    """The log of the leader a starts behind its first entry, of which it and these members have an image."""
    core = node.core
    assert core.leadership is not None and core.committed_index >= 1
    node.step(LogPurged(Base(0, core.log.term_at(0), 64, 0)))
    core.image_index = 1
    for peer in holders:
        core.leadership.progress[peer].image_index = 1


def test_a_learner_without_an_image_of_what_was_purged_is_not_promoted() -> None:
    node = leader("d")
    node.append()
    acknowledge(node, "b", "c", "d")
    purged(node, "b", "c")
    assert node.core.leadership is not None
    for older in (-1, 0):
        node.core.leadership.progress["d"].image_index = older
        change(node, "promote d")
        assert ended(node)[-1] is Code.LEARNER_NOT_READY and not node.core.membership.is_joint
    node.core.leadership.progress["d"].image_index = 1
    change(node, "promote d")
    assert node.core.membership.is_joint


def test_a_leader_that_has_not_executed_a_purge_promotes_no_learner_without_its_image() -> None:
    """An earlier leader, which had executed it, may have given the learner its base."""
    node = leader("d")
    node.append()
    acknowledge(node, "b", "c", "d")
    node.core.purged_index = 0
    assert node.core.leadership is not None
    for peer in ("b", "c"):
        node.core.leadership.progress[peer].image_index = 1
    change(node, "promote d")
    assert ended(node) == [Code.LEARNER_NOT_READY] and not node.core.membership.is_joint
    node.core.leadership.progress["d"].image_index = 1
    change(node, "promote d")
    assert node.core.membership.is_joint


def test_voters_remain_of_which_a_majority_has_an_image_of_what_was_purged() -> None:
    node = leader()
    node.append()
    acknowledge(node, "b", "c")
    purged(node, "b")
    change(node, "remove b")  # of a and c, only a has an image
    assert ended(node) == [Code.LEARNER_NOT_READY] and not node.core.membership.is_joint
    change(node, "remove c")
    assert node.core.membership.is_joint


def test_a_change_that_leaves_no_majority_in_contact_is_refused_unless_forced() -> None:
    node = leader()
    for _ in range(3):  # c is silent
        node.pass_time(node.core.timing.election_min_ms // 2)
        node.receive("b", node.beat_back("b"))
    change(node, "remove b")  # of a and c, c is down
    assert ended(node) == [Code.NO_LIVE_MAJORITY]
    change(node, "remove c")
    assert node.core.membership.is_joint
    acknowledge(node, "b")
    acknowledge(node, "b")
    assert ended(node)[-1] is Code.SUCCESS
    change(node, "remove b", force=True)
    assert node.core.membership.is_joint


def test_a_voter_that_is_rejoining_is_none_of_a_majority() -> None:
    node = leader()
    assert node.core.leadership is not None
    node.core.leadership.progress["c"].counts = False
    change(node, "remove b")
    assert ended(node) == [Code.NO_LIVE_MAJORITY]
    change(node, "remove c")
    assert node.core.membership.is_joint


def test_a_leader_that_removes_itself_leads_until_the_change_is_committed() -> None:
    node = leader()
    change(node, "remove a")
    acknowledge(node, "b")  # joint: two of a, b, c, but one of b, c
    assert node.core.membership.is_joint
    acknowledge(node, "c")
    assert node.core.membership.voters == ("b", "c") and not node.core.membership.is_joint
    acknowledge(node, "b")
    assert node.core.role is Role.LEADER, "its own copy counts for nothing"
    acknowledge(node, "c")
    assert node.core.role is Role.FOLLOWER and ended(node) == [Code.SUCCESS]
    assert node.last_sent(Commit).committed_index == node.core.log.end_index
    assert node.all_sent(TakeLeadership)
    node.pass_time(10 * node.core.timing.election_max_ms)
    assert node.roles[-1] is Role.FOLLOWER, "it does not stand again"


def test_a_demoted_leader_steps_down() -> None:
    node = leader()
    change(node, "demote a")
    acknowledge(node, "b", "c")
    acknowledge(node, "b", "c")
    assert node.core.membership.learners == ("a",) and node.core.role is Role.FOLLOWER


def test_a_removed_member_learns_it_and_is_then_let_go() -> None:
    node = leader()
    change(node, "remove c")
    acknowledge(node, "b")
    acknowledge(node, "b")
    assert ended(node) == [Code.SUCCESS] and node.core.leadership is not None
    node.pass_time(1)
    assert "c" in node.core.leadership.progress and not node.all_sent(Goodbye)
    acknowledge(node, "c")
    node.pass_time(1)
    assert node.all_sent(Commit, "c")[-1].committed_index == node.core.log.end_index
    assert node.all_sent(Goodbye, "c") and "c" not in node.core.leadership.progress
    assert node.all_effects(MembershipChanged)[-1].peers == ("b",)


def test_a_removed_member_that_does_not_answer_is_let_go_in_time() -> None:
    node = leader()
    change(node, "remove c")
    acknowledge(node, "b")
    acknowledge(node, "b")
    for _ in range(5):
        node.pass_time(node.core.timing.election_min_ms // 2)
        node.receive("b", node.beat_back("b"))
    assert node.core.leadership is not None and "c" not in node.core.leadership.progress


def test_a_new_leader_ends_a_change_that_it_finds() -> None:
    joint = with_voters("b", "c", "a", "d", outgoing=["a", "b", "c"])
    node = follower_with(joint)
    node.become_leader()
    for peer in ("b", "c", "d"):
        node.connect_equal(peer)
    appended = [effect.membership for effect in node.all_effects(AppendMembership)]
    assert appended == [last_entry(joint)]
    acknowledge(node, "b", "c")
    assert not node.core.membership.is_joint


def test_a_change_is_in_doubt_if_its_leader_loses_its_office() -> None:
    node = leader("d")
    change(node, "promote d")
    node.receive("b", heartbeat(node.core.term + 1))
    assert ended(node) == [Code.CHANGE_UNKNOWN]


# -- votes


def test_a_candidate_needs_both_halves_of_a_joint_configuration() -> None:
    node = follower_with(with_voters("a", "d", "e", outgoing=["a", "b", "c"]))
    request = node.become_candidate()
    asked = {peer for peer, message in node.sent if message is request or message == request}
    assert asked == {"b", "c", "d", "e"}

    def grant(peer: str) -> None:
        node.receive(peer, Vote(request.term - 1, peer, VoteResult.ACCEPT, True, request.round))

    grant("d")
    assert node.core.candidacy is not None and node.core.candidacy.pre_vote
    grant("b")
    assert node.core.standing is not None and not node.core.standing.pre_vote


def test_a_learner_does_not_stand() -> None:
    node = follower_with(with_voters("b", "c", learners=["a"]))
    node.receive("b", heartbeat(1, committed=node.core.log.end_index))
    node.pass_time(10 * node.core.timing.election_max_ms)
    assert Role.CANDIDATE not in node.roles


def test_a_learner_answers_vote_requests() -> None:
    """The candidate may have a configuration in which it votes, and may need this vote."""
    node = follower_with(with_voters("b", "c", learners=["a"]))
    node.pass_time(10 * node.core.timing.election_max_ms)
    [answer] = node.ask("b", vote_request(5, 9, 1))
    assert isinstance(answer, Vote) and answer.result is VoteResult.ACCEPT


def test_a_voter_elects_a_candidate_that_it_does_not_know() -> None:
    node = Node(terms=[1], term=1)
    answers = node.ask("x", vote_request(2, 5, 1, "x"))
    assert [answer.result for answer in answers if isinstance(answer, Vote)] == [VoteResult.ACCEPT]
    node.receive("x", heartbeat(2, "x"))
    assert node.core.leader_id == "x"
    assert node.ask("x", compare(2, 0, 1, "x"))


def test_a_removed_member_does_not_disturb_a_working_leader() -> None:
    node = follower_with(with_voters("a", "b"))
    node.receive("b", heartbeat(1))
    [answer] = node.ask("c", vote_request(9, 99, 1, "c"))
    assert isinstance(answer, Vote) and answer.result is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert node.core.term == 1


def test_a_member_stands_until_its_removal_is_committed() -> None:
    """It may be the only one whose log is long enough to be elected."""
    node = follower_with(with_voters("b", "c", outgoing=["a", "b", "c"]), with_voters("b", "c"), terms=(1, 1))
    node.become_candidate()
    assert node.core.role is Role.CANDIDATE
    node = follower_with(with_voters("b", "c", outgoing=["a", "b", "c"]), with_voters("b", "c"))
    node.receive("b", heartbeat(1, committed=node.core.log.end_index))
    node.pass_time(10 * node.core.timing.election_max_ms)
    assert Role.CANDIDATE not in node.roles


# -- logs


def test_a_truncation_undoes_a_change() -> None:
    node = follower_with(with_voters("a", "b", "d", outgoing=["a", "b", "c"]))
    assert node.core.membership.is_joint
    node.receive("c", heartbeat(2, "c"))
    node.receive("c", compare(2, 0, 1, "c"))
    node.receive("c", Truncate(2, "c", 1, -1, 1, 2))
    assert node.core.membership == first_members({name: f"{name}:1" for name in ("a", "b", "c")})
    assert node.all_effects(MembershipChanged)[-1].in_force.index == -1
    assert node.core.hard_state.memberships[-1].index == -1


def test_a_configuration_is_recorded_before_its_entry_is_stored() -> None:
    node = follower_with(with_voters("a", "b", "c", "d", outgoing=["a", "b", "c"]))
    kinds = [type(effect).__name__ for effect in node.effects]
    assert kinds.index("PersistHardState") < kinds.index("StoreEntries")
    assert node.core.hard_state.memberships[-1] == MembershipAt(
        1, 1, with_voters("a", "b", "c", "d", outgoing=["a", "b", "c"])
    )


def test_recorded_configurations_that_the_log_does_not_have_count_for_nothing() -> None:
    founders, second, third = (MembershipAt(i, t, with_voters("a")) for i, t in ((-1, -1), (2, 1), (4, 2)))
    recorded = [founders, second, third]
    assert confirmed_memberships(recorded, NO_BASE, runs_of([1, 1, 1, 1, 2]), 4) == recorded
    assert confirmed_memberships(recorded, NO_BASE, runs_of([1, 1, 1, 1, 3]), 4) == [founders, second]
    assert confirmed_memberships(recorded, NO_BASE, runs_of([1, 1]), 1) == [founders]
    base = Base(3, 1, 0, 0)
    assert confirmed_memberships(recorded, base, runs_of([2], 4), 4) == [second, third]


def test_a_log_that_starts_at_a_base_has_the_configuration_of_that_base() -> None:
    node = Node(terms=[1], term=1)
    known = MembershipAt(7, 2, with_voters("a", "b", "d"))
    node.receive("b", InstallBase(3, "b", 1, 9, Base(9, 2, 900, 5), known))
    assert node.core.membership == known.membership and node.core.log.base.index == 9
    kinds = [type(effect).__name__ for effect in node.effects]
    assert kinds.index("PersistHardState") < kinds.index("ResetLog")


def test_a_purge_keeps_the_configuration_in_force() -> None:
    node = leader()
    change(node, "add d")
    acknowledge(node, "b", "c")
    node.append(3)
    node.step(EntriesAppended(node.core.log.end_index + 1, node.core.log.end_index + 1, 1, ENTRY_BYTES))
    node.store()
    in_force = node.core.log.memberships[-1]
    node.core.log.purge(Base(node.core.log.end_index - 1, 1, 0, 0))
    assert node.core.log.memberships == (in_force,)


# -- rule 11


def test_the_directory_of_a_new_member_is_not_that_of_an_earlier_one_with_its_name() -> None:
    node = follower_with(with_voters("a", "b", "c"))
    state = node.core.hard_state.with_directories({"a": 1, "b": 2, "c": 3})
    node.core.change_hard_state(state)
    end = node.core.log.end_index
    for index, membership in (
        (end + 1, with_voters("a", "b")),
        (end + 2, Membership(("a", "b"), (), ("c",), (*members("a", "b"), Member("c", 9, "c:1", 7)))),
    ):
        message = push(1, index - 1, 1, [1])
        node.step(MessageReceived("b", message, None, (MembershipAt(index, 1, membership),)))
    known = node.core.directory_of("c")
    assert known == 7, "the number in the entry that added it"


def test_a_configuration_has_the_newest_directories_that_its_leader_knows() -> None:
    """A learner becomes a voter by this entry: it has not reported to members that rejoined before."""
    node = leader("d")
    rejoined, added = FIRST_REJOINED + 3, Member("d", 9, "d:1", 7)
    first = node.core.log._memberships[0]
    known = replace(first.membership, identities=(*members("a", "b", "c"), added))
    node.core.log._memberships[0] = first._replace(membership=known)
    node.core.change_hard_state(node.core.hard_state.with_directories({"a": 5, "b": rejoined}))
    change(node, "promote d")
    [joint] = node.all_effects(AppendMembership)
    acknowledge(node, "b", "c", "d")
    last = node.all_effects(AppendMembership)[-1]
    for entry in (joint, last):
        numbers = {member.node_id: member.directory for member in entry.membership.identities}
        assert numbers == {"a": 5, "b": rejoined, "c": 0, "d": 7}, entry


def test_a_promoted_learner_knows_and_reports_the_directories_of_the_entry() -> None:
    rejoined = FIRST_REJOINED + 3
    now = Membership(("a", "b"), identities=(*members("a"), Member("b", 0, "b:1", rejoined)))
    node = follower_with(now)
    node.core.change_hard_state(node.core.hard_state.with_directories({"a": 5, "b": 4}))
    assert node.core.directory_of("b") == rejoined
    node.step(DirectorySeen("b", FIRST_REJOINED + 2))
    assert node.core.directory_of("b") == rejoined, "an earlier directory of b"
    report = node.ask("b", PositionRequest(1, "b", 1, FIRST_REJOINED + 2))[-1]
    assert isinstance(report, PositionResponse)
    assert dict(report.directories) == {"a": 5, "b": rejoined}


def test_a_rejoining_node_does_not_wait_for_members_of_a_change_that_was_undone() -> None:
    """Member d is to come with entry 5 of term 1. A leader of term 2 has other entries there."""
    node = Node("c", incarnation=1)
    node.core.hard_state = HardState(0, None, 1, rejoining=True)
    node.pass_time(1)
    undone = MembershipAt(5, 1, with_voters("a", "b", "d", outgoing=["a", "b", "c"]))
    founders = MembershipAt(-1, -1, with_voters("a", "b", "c"))
    for peer, known in (("a", (founders,)), ("b", (founders, undone))):
        response = PositionResponse(1, peer, node.core.rejoining._round, 1, 3, memberships=known)
        node.receive(peer, response)
    assert node.core.rejoining.missing == ("d",)
    node.receive("a", push(1, -1, -1, [1] * 5, leader="a", committed=4))
    assert node.core.rejoining.missing == ("d",), "the change can follow"
    node.receive("b", push(2, 4, 1, [2], leader="b", committed=4))
    assert node.core.rejoining.missing == ("d",), "entry 5 of term 2 can be undone itself"
    node.receive("b", push(2, 5, 2, [2], leader="b", committed=5))
    assert node.core.rejoining.missing == ()
    node.pass_time(1)
    assert not node.core.hard_state.rejoining


def test_a_change_that_is_undone_by_a_shorter_log_counts_no_more() -> None:
    node = Node("c", incarnation=1)
    node.core.hard_state = HardState(0, None, 1, rejoining=True)
    node.pass_time(1)
    undone = MembershipAt(9, 1, with_voters("a", "b", "d", outgoing=["a", "b", "c"]))
    founders = MembershipAt(-1, -1, with_voters("a", "b", "c"))
    for peer in "ab":
        response = PositionResponse(1, peer, node.core.rejoining._round, 1, 3, memberships=(founders, undone))
        node.receive(peer, response)
    node.receive("a", push(2, -1, -1, [1, 1, 1, 2], leader="a", committed=3))
    assert node.core.rejoining.missing == (), "entry 9 of term 1 cannot follow entry 3 of term 2"


def test_a_rejoining_node_does_not_wait_for_a_member_that_was_removed_meanwhile() -> None:
    node = Node("c", incarnation=1)
    node.core.hard_state = HardState(0, None, 1, rejoining=True)
    node.pass_time(1)
    founders = MembershipAt(-1, -1, with_voters("a", "b", "c"))
    response = PositionResponse(1, "b", node.core.rejoining._round, 1, 0, memberships=(founders,))
    node.receive("b", response)
    assert node.core.rejoining.missing == ("a",)
    node.receive("b", push(1, -1, -1, [1], committed=-1))
    changes = tuple(
        MembershipAt(index, 1, membership)
        for index, membership in enumerate(
            (with_voters("b", "c", outgoing=["a", "b", "c"]), with_voters("b", "c")), start=1
        )
    )
    node.step(MessageReceived("b", push(1, 0, 1, [1, 1], committed=1), None, changes))
    assert node.core.rejoining.missing == ("a",)
    node.receive("b", Commit(1, "b", 1, 2))
    assert node.core.rejoining.missing == ()


def test_a_rejoining_node_waits_for_all_members_of_every_configuration_that_may_be_in_force() -> None:
    node = Node("c", incarnation=1)
    node.core.hard_state = HardState(0, None, 1, rejoining=True)
    assert set(node.core.rejoining.missing) == {"a", "b"}
    node.pass_time(1)
    joint = MembershipAt(5, 1, with_voters("a", "b", "d", outgoing=["a", "b", "c"]))
    committed = MembershipAt(3, 1, with_voters("a", "b", "c"))
    round_ = node.core.rejoining._round
    node.receive("b", PositionResponse(1, "b", round_, 1, 6, memberships=(committed, joint)))
    assert set(node.core.rejoining.missing) == {"a", "d"}
    later = MembershipAt(6, 1, with_voters("b", "c", "d"))
    node.receive("d", PositionResponse(1, "d", round_, 1, 6, memberships=(later,)))
    assert node.core.rejoining.missing == (), "a left with a committed change, and b and d have reported"


def test_a_rejoining_node_tells_its_directory_to_electors_only() -> None:
    """A learner would keep the number of a directory that never counted."""
    node = Node("c", incarnation=1)
    node.core.hard_state = HardState(0, None, 1, rejoining=True)
    known = with_voters("a", "b", "c", learners=["d"])
    node.core.log._memberships[0] = MembershipAt(-1, -1, known)
    node.pass_time(1)
    assert {peer for peer, m in node.sent if isinstance(m, PositionRequest)} == {"a", "b"}
    node.core.hard_state = HardState(0, None, 1)
    node.pass_time(node.core.timing.election_max_ms)
    assert {peer for peer, m in node.sent if isinstance(m, PositionRequest)} == {"a", "b", "d"}


def test_a_new_leader_has_links_to_the_members_of_its_configuration_only() -> None:
    """As a follower that does not know yet that the removal of d is committed, it has a link to d."""
    node = follower_with(
        with_voters("a", "b", "c", learners=["d"]),
        with_voters("a", "b", "c"),
    )
    assert set(node.core.peers) == {"b", "c", "d"}
    node.forget()
    node.become_leader()
    assert [set(effect.peers) for effect in node.all_effects(MembershipChanged)] == [{"b", "c"}]


def test_members_do_not_change_before_all_have_announced_that_they_can() -> None:
    """One may run the release before, which would count the first members."""
    node = leader()
    for announced in ({}, {"c": 0}):
        node.core.features.pop("c", None)
        node.core.features |= announced
        change(node, "add d")
        assert ended(node)[-1] is Code.MEMBER_OUTDATED and not node.all_effects(AppendMembership)
    node.receive("c", HeartbeatResponse(1, "c", 1, True))
    assert not node.core.excludes_release_0_2
    change(node, "add d")
    assert node.all_effects(AppendMembership) and node.core.excludes_release_0_2


def test_an_added_member_refuses_release_0_2_before_it_has_the_log() -> None:
    node = Node()
    assert not node.core.excludes_release_0_2
    node.core.hard_state = replace(node.core.hard_state, uid=5)
    assert node.core.excludes_release_0_2
    node.core.features.clear()
    assert not node.core.outdated_members(), "a member that is down for long does not stop purging"


def test_force_excuses_a_member_with_an_unknown_release_only_if_it_is_down() -> None:
    node = leader()
    node.core.features["c"] = 0
    change(node, "add d", force=True)
    assert ended(node) == [Code.MEMBER_OUTDATED] and not node.all_effects(AppendMembership)
    for _ in range(3):
        node.pass_time(node.core.timing.election_min_ms // 2)
        node.receive("b", node.beat_back("b"))
    change(node, "add d")
    assert ended(node)[-1] is Code.MEMBER_OUTDATED
    change(node, "add d", force=True)
    assert node.all_effects(AppendMembership)


def test_a_leader_whose_file_lacks_an_address_makes_no_first_change() -> None:
    """The entry would tell all members that there is none."""
    node = leader()
    identities = (*members("a", "b"), Member("c", 0, ""))
    membership = replace(node.core.membership, identities=identities)
    node.core.log._memberships[0] = MembershipAt(-1, -1, membership)
    change(node, "add d")
    [refusal] = node.all_effects(ChangeEnded)
    assert refusal.code is Code.CHANGE_REFUSED and "no address of c" in refusal.message


def test_a_configuration_is_read_as_it_was_written_or_not_at_all() -> None:
    membership = replace(with_voters("a", "b", "c"), recovery=Recovery(2, 1 << 50))
    text = encode_membership(membership)
    assert decode_membership(text) == membership
    for value in ("[Infinity,0]", "[-1,0]", "[1,-1]", "[0,5]", f"[1,{1 << 63}]", "[1]", "7", "[1,2,3]"):
        changed = text.replace(b"[2,1125899906842624]", value.encode())
        assert changed != text and decode_membership(changed) is None


def test_a_group_has_a_largest_size() -> None:
    full = first_members({f"n{number}": f"h:{number + 1}" for number in range(MAX_MEMBERS)})
    more = MemberStep(ChangeKind.ADD, "one", "h:1000")
    with pytest.raises(ChangeRefused, match="the limit is 128") as caught:
        target_of(full, [more], 1 << 20)
    assert caught.value.code is Code.CHANGE_REFUSED
    less = MemberStep(ChangeKind.REMOVE, "n0")
    assert len(target_of(full, [more, less], 1 << 20).identities) == MAX_MEMBERS
    larger = first_members({f"n{number}": f"h:{number + 1}" for number in range(MAX_MEMBERS + 9)})
    assert target_of(larger, [less], 1 << 20) != larger, "a larger one shrinks, if it exists"


WRONG_CONFIGURATIONS: list[dict[str, object]] = [
    {"voters": []},
    {"voters": "abc"},
    {"voters": {"a": 1}},
    {"voters": ["a", ["b"]]},
    {"voters": ["a", 7]},
    {"voters": ["a", ""]},
    {"voters": ["a", "b\\5"]},
    {"voters": ["a", "\ud800"]},
    {"voters": ["a", "b\n"]},
    {"voters": ["a", "b" * 256]},
    {"voters": ["a", "a"]},
    {"learners": ["a"]},
    {"outgoing": None},
    {"members": [["a", 0, "h:1"]]},
    {"members": [["a", 0, "h:1", 0, 0]]},
    {"members": [["a", 0, "h:1", 0], ["a", 5, "h:2", 0]]},
    {"members": [["a", UNKNOWN_UID - 1, "h:1", 0]]},
    {"members": [["a", MAX_UID + 1, "h:1", 0]]},
    {"members": [["a", "5", "h:1", 0]]},
    {"members": [["a", 0.5, "h:1", 0]]},
    {"members": [["a", True, "h:1", 0]]},
    {"members": [["a", 0, "h:1", -1]]},
    {"members": [["a", 0, "h:1", MAX_DIRECTORY + 1]]},
    {"members": [["a", 0, 5, 0]]},
    {"members": [["a", 0, "\ud800:1", 0]]},
    {"members": [["", 0, "h:1", 0]]},
    {"members": {"a": 0}},
    {"recovery": [1 << 70, 1]},
    {"recovery": "12"},
    {"recovery": None},
    {"learners": [f"l{number}" for number in range(10_000)]},
    {"members": [[f"l{number}", 0, "h:1", 0] for number in range(10_000)]},
]


@pytest.mark.parametrize("change", WRONG_CONFIGURATIONS, ids=lambda change: str(change)[:40])
def test_an_impossible_configuration_is_none(change: dict[str, object]) -> None:
    """Ids and numbers go into messages to other members, which would refuse them, or could not contain
    them."""
    fields = json.loads(encode_membership(with_voters("a", "b", "c")))
    assert decode_membership(json.dumps(fields).encode()) is not None
    assert decode_membership(json.dumps(fields | change).encode()) is None


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"7", b"\xff", b"{}", b"[" * 100_000], ids=len)
def test_garbage_is_no_configuration(text: bytes) -> None:
    assert decode_membership(text) is None


def test_a_machine_does_not_stand_as_the_earlier_member_with_its_name() -> None:
    """While it receives the log, configurations are in force in which that one voted."""
    node = follower_with(with_voters("a", "b", "c"))
    node.core.hard_state = replace(node.core.hard_state, uid=9)
    node.pass_time(10 * node.core.timing.election_max_ms)
    assert Role.CANDIDATE not in node.roles and not node.core.is_member


def test_a_report_of_the_machine_before_a_member_is_not_that_of_the_member() -> None:
    node = Node(terms=[])
    node.core.change_hard_state(replace(node.core.hard_state, rejoining=True))
    now = Membership(("a", "b", "c"), identities=(*members("a", "b"), Member("c", 9, "c:1", 7)))
    known = (MembershipAt(5, 1, now),)
    reports = {"b": (("b", 3),), "c": (("c", 4),)}
    for peer, own in reports.items():
        response = PositionResponse(1, peer, node.core.rejoining._round, 1, 8, False, own, known)
        node.receive(peer, response)
    assert node.core.rejoining.missing == ("c",)
    assert node.core.rejoining._unreported == ["c"], "the member is asked again"
    own = (("c\\9", 7),)
    node.receive("c", PositionResponse(1, "c", node.core.rejoining._round, 1, 8, False, own, known))
    assert node.core.rejoining.missing == ()


def test_the_uid_of_a_member_is_announced_only_while_no_other_configuration_is_in_force() -> None:
    """A new machine would take the uid of the one before it, together with its own directory."""
    old, new = Member("c", 0, "c:1"), Member("c", 9, "c:1", 7)
    node = follower_with(
        Membership(("a", "b"), identities=members("a", "b")),
        Membership(("a", "b"), (), ("c",), (*members("a", "b"), new)),
    )
    first = node.core.log._memberships[0]
    node.core.log._memberships[0] = first._replace(
        membership=Membership(("a", "b", "c"), identities=(*members("a", "b"), old))
    )
    assert node.core.committed_index == -1 and node.core.announced_uid("c") == UNKNOWN_UID
