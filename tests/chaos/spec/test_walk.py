"""The specification accepts what a correct cluster may do, and refuses each thing that it may not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.checker.synthetic import clean_trace
from chaos.spec.reading import read_trace
from chaos.spec.walk import Verdict, walk
from tests.chaos.spec.hand import ALL, Hand, settled

Case = Callable[[], Hand]
GOOD: list[Case] = []
BAD: list[tuple[Case, str]] = []


def good(case: Case) -> Case:
    GOOD.append(case)
    return case


def bad(why: str) -> Callable[[Case], Case]:
    """`why`: words of the guard that does not hold."""

    def register(case: Case) -> Case:
        BAD.append((case, why))
        return case

    return register


# -- what may happen -----------------------------------------------------------------------------------


@good
def a_leader_is_elected_and_commits() -> Hand:
    return settled()


@good
def a_node_alone_leads_and_commits() -> Hand:
    hand = Hand(("n1",))
    hand.raft("n1", "candidate", term=1)
    hand.raft("n1", "leader", term=1, ended=-1)
    hand.append("n1", 0, 1)
    hand.raft("n1", "term_vote", term=1, vote="n1")
    hand.raft("n1", "vote", term=1, candidate="n1", last_index=-1, last_term=-1)
    hand.flush("n1")
    hand.commit(1, 0, "n1")
    return hand


@good
def a_leader_is_replaced_and_its_tail_truncated() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.flush("n1")
    hand.raft("n2", "candidate", term=1)  # a pre-vote
    hand.elect("n2", 2, "n3")
    hand.put(2, 4, "n2", "n3")
    hand.commit(2, 4, "n2", "n3")
    hand.raft("n1", "follower", term=2)
    hand.truncate("n1", 4, 1)
    hand.put(2, 4, "n1")
    hand.raft("n1", "term_vote", term=2)
    hand.commit(2, 4, "n1")
    return hand


@good
def a_follower_is_killed_and_finds_more_than_was_durable() -> Hand:
    hand = settled()
    hand.append("n1", 9, 1)
    hand.append("n2", 9, 1)
    hand.start("n2", term=1, vote="n1", ended=6, committed=2)
    hand.append("n2", 9, 1, first=7)
    hand.flush("n2", "n1")
    hand.commit(1, 9, "n1", "n2")
    return hand


@good
def a_candidate_is_killed_before_its_vote_is_durable_and_votes_for_another() -> Hand:
    hand = settled()
    hand.raft("n3", "candidate", term=2)
    hand.start("n3", term=1, ended=3, committed=3)
    hand.elect("n2", 2, "n3")
    return hand


@good
def a_pre_vote_in_a_term_that_the_node_has_just_heard_of() -> Hand:
    """It looks like a candidate of that term, and then votes for the real one: the search must go back."""
    hand = settled()
    hand.stand("n2", 2)
    hand.raft("n3", "candidate", term=2)
    hand.vote("n3", 2, "n2")
    hand.raft("n2", "leader", term=2, ended=3)
    return hand


@good
def a_truncation_was_not_carried_out_when_the_power_failed() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.flush("n1")
    hand.elect("n2", 2, "n3")
    hand.append("n2", 4, 2)
    hand.raft("n1", "follower", term=2)
    hand.truncate("n1", 4, 1)
    hand.start("n1", term=1, vote="n1", ended=5, committed=1)
    hand.ends["n1"] = (1, 5)
    hand.raft("n1", "follower", term=2)
    hand.truncate("n1", 4, 1)
    hand.append("n1", 4, 2)
    return hand


@good
def a_wiped_node_rejoins_and_votes_in_a_later_term() -> Hand:
    hand = settled()
    hand.start("n3", term=0, ended=-1, committed=-1, wiped=True)
    hand.ends["n3"] = (-1, -1)
    hand.raft("n3", "follower", term=1)
    hand.put(1, 3, "n3")
    hand.elect("n2", 2, "n3")
    hand.put(2, 4, "n2", "n3")
    hand.commit(2, 4, "n2", "n3")
    return hand


@good
def the_log_is_purged_and_a_follower_that_was_away_begins_there() -> Hand:
    hand = settled()
    hand.put(1, 9, "n1", "n2")
    hand.commit(1, 9, "n1", "n2")
    for node in ("n1", "n2"):
        hand.raft(node, "load", lidx=7)
        hand.store(node, "purge", lidx=7)
    hand.store("n3", "install", lidx=7)
    hand.ends["n3"] = (1, 7)
    hand.put(1, 9, "n3")
    hand.commit(1, 9, "n3")
    hand.raft("n3", "load", lidx=8)
    hand.raft("n3", "apply", lidx=9, last=9)
    return hand


@good
def a_follower_that_was_paused_gets_what_the_leader_has_purged_since() -> Hand:
    hand = settled()
    hand.put(1, 9, "n1", "n2")
    hand.commit(1, 9, "n1", "n2")
    hand.store("n1", "purge", lidx=7)
    hand.put(1, 11, "n1", "n2")
    hand.append("n3", 6, 1)
    return hand


@good
def clocks_of_nodes_that_differ_change_nothing() -> Hand:
    hand = Hand()
    hand.elect("n1", 1, "n2")
    with hand.earlier(9):
        hand.raft("n3", "follower", term=1)
        hand.append("n1", 3, 1)
    with hand.earlier(14):
        hand.put(1, 3, "n2", "n3")
        hand.commit(1, 3, "n2")
    hand.flush("n1")
    hand.commit(1, 3, "n1", "n3")
    return hand


@good
def clients_are_answered_and_read_what_is_committed() -> Hand:
    hand = settled()
    hand.other("p", "op", f="append", op=1, type="invoke", mid=7)
    hand.other("p", "op", f="append", op=1, type="ok", lidx=2)
    hand.other("q", "dlv", op=2, lidx=2, mid=7, eterm=1)
    hand.raft("n1", "ack", term=1, lidx=2)
    return hand


# -- elections -----------------------------------------------------------------------------------------


@bad("has a leader already")
def two_lead_one_term() -> Hand:
    hand = settled()
    hand.elect("n2", 2, "n3")
    hand.raft("n1", "follower", term=2)
    hand.raft("n1", "leader", term=2, ended=3)
    return hand


@bad("it voted for n2 in term 2")
def a_node_votes_twice_in_a_term() -> Hand:
    hand = settled()
    hand.stand("n2", 2)
    hand.stand("n1", 2)
    hand.vote("n3", 2, "n2")
    hand.raft("n3", "vote", term=2, candidate="n1")
    return hand


@bad("has the votes of n2 only")
def a_leader_without_a_majority() -> Hand:
    hand = settled()
    hand.elect("n2", 2)
    return hand


@bad("behind")
def a_vote_for_a_candidate_whose_log_is_behind() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.append("n2", 5, 1)
    hand.stand("n3", 2)
    hand.raft("n2", "term_vote", term=2, vote="n3")
    hand.raft("n2", "vote", term=2, candidate="n3")
    return hand


@bad("which ended with 5 (term 1)")
def a_voter_that_says_that_its_log_is_shorter() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.append("n2", 5, 1)
    hand.ends["n2"] = (1, 3)
    hand.elect("n3", 2, "n2")
    return hand


@bad("is not durable")
def a_vote_that_leaves_before_it_is_durable() -> Hand:
    hand = settled()
    hand.stand("n2", 2)
    hand.raft("n3", "vote", term=2, candidate="n2")
    hand.raft("n2", "leader", term=2, ended=3)
    return hand


@bad("vote for None in term 1")
def a_restart_forgets_the_vote() -> Hand:
    hand = settled()
    hand.start("n2", term=1, ended=3, committed=3)
    return hand


@bad("starts in term 0")
def a_restart_forgets_the_term() -> Hand:
    hand = settled()
    hand.start("n2", term=0, ended=3, committed=3)
    return hand


@bad("would fall to 1")
def a_term_falls() -> Hand:
    hand = settled()
    hand.elect("n2", 2, "n3")
    hand.raft("n3", "follower", term=1)
    return hand


@bad("it lost its log")
def a_wiped_node_votes_before_it_has_its_log_back() -> Hand:
    hand = settled()
    hand.start("n3", term=0, ended=-1, committed=-1, wiped=True)
    hand.stand("n2", 2)
    hand.raft("n3", "term_vote", term=2, vote="n2")
    return hand


@bad("may vote after term 1 only")
def a_wiped_node_votes_in_a_term_of_its_former_life() -> Hand:
    hand = settled()
    hand.start("n3", term=0, ended=-1, committed=-1, wiped=True)
    hand.ends["n3"] = (-1, -1)
    hand.raft("n3", "follower", term=1)
    hand.put(1, 3, "n3")
    hand.raft("n3", "term_vote", term=1, vote="n1")
    return hand


# -- the log -------------------------------------------------------------------------------------------


@bad("its log ends at 3, and it appends 5 to 6")
def a_follower_appends_past_a_gap() -> Hand:
    hand = settled()
    hand.append("n1", 6, 1)
    hand.append("n2", 6, 1, first=5)
    return hand


@bad("no leader has sent entries 4 to 6")
def a_follower_appends_what_no_leader_has() -> Hand:
    hand = settled()
    hand.append("n2", 6, 1)
    return hand


@bad("histories aaaa and bbbb")
def an_entry_has_two_histories() -> Hand:
    hand = settled()
    hand.append("n1", 6, 1, chain="aaaa")
    hand.append("n2", 6, 1, chain="bbbb")
    return hand


@bad("3 is committed here")
def what_is_committed_is_truncated() -> Hand:
    hand = settled()
    hand.elect("n2", 2, "n3")
    hand.append("n2", 4, 2)
    hand.raft("n1", "follower", term=2)
    hand.truncate("n1", 3, 1)
    return hand


@bad("no leader has another entry")
def a_follower_truncates_what_no_leader_contradicts() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.append("n2", 5, 1)
    hand.truncate("n2", 4, 1)
    return hand


@bad("removes entries of its log")
def a_leader_truncates() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.truncate("n1", 4, 1)
    return hand


@bad("durable on n1 only")
def a_commit_without_a_majority() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.append("n2", 5, 1)
    hand.flush("n1")
    hand.commit(1, 5, "n1")
    return hand


@bad("commits entry 5 of term 1 by counting")
def an_entry_of_an_older_term_is_committed_by_counting() -> Hand:
    hand = settled()
    hand.put(1, 5, "n1", "n2")
    hand.elect("n2", 2, "n1")
    hand.append("n2", 6, 2)
    hand.commit(2, 5, "n2")
    return hand


@bad("leader of term 1 has not committed 5")
def a_follower_commits_what_its_leader_has_not() -> Hand:
    hand = settled()
    hand.put(1, 5, "n1", "n2")
    hand.commit(1, 5, "n2")
    return hand


@bad("durable on n1 only")
def a_node_that_lost_its_log_counts() -> Hand:
    hand = settled()
    hand.start("n3", term=0, ended=-1, committed=-1, wiped=True)
    hand.ends["n3"] = (-1, -1)
    hand.raft("n3", "follower", term=1)
    hand.put(1, 3, "n3")
    hand.put(1, 4, "n1", "n3")
    hand.commit(1, 4, "n1")
    return hand


@bad("commits 3; committed was 3")
def a_commit_does_not_rise() -> Hand:
    hand = settled()
    hand.commit(1, 3, "n2")
    return hand


@bad("durable of a log that ended at 3")
def a_restart_lacks_what_was_durable() -> Hand:
    hand = settled()
    hand.start("n2", term=1, vote="n1", ended=2, committed=1)
    return hand


# -- what is applied, answered, purged -----------------------------------------------------------------


@bad("applies 0 to 4")
def entries_are_applied_beyond_the_commit() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.raft("n1", "apply", lidx=0, last=4)
    return hand


@bad("goes on with 3")
def an_entry_is_left_out() -> Hand:
    hand = settled()
    hand.raft("n1", "apply", lidx=0, last=1)
    hand.raft("n1", "apply", lidx=3, last=3)
    return hand


@bad("answers an append of 5")
def an_append_is_answered_before_its_commit() -> Hand:
    hand = settled()
    hand.append("n1", 5, 1)
    hand.raft("n1", "ack", term=1, lidx=5)
    return hand


@bad("its term was 2 and would fall to 1")
def an_append_is_answered_in_a_term_that_has_ended() -> Hand:
    hand = settled()
    hand.elect("n2", 2, "n3")
    hand.raft("n1", "follower", term=2)
    hand.raft("n1", "ack", term=1, lidx=2)
    return hand


@bad("accepts a request in term 1")
def a_follower_accepts_a_request() -> Hand:
    hand = settled()
    hand.raft("n2", "accept", term=1)
    return hand


@bad("purges up to 3")
def a_purge_reaches_what_is_not_known_to_be_behind_a_commit() -> Hand:
    hand = settled()
    hand.store("n1", "purge", lidx=3)
    return hand


@bad("has applied 1")
def a_purge_without_an_image() -> Hand:
    hand = settled()
    hand.raft("n1", "apply", lidx=0, last=1)
    hand.store("n1", "purge", lidx=2)
    return hand


@bad("nobody's log begins after 7")
def a_base_that_no_leader_has() -> Hand:
    hand = settled()
    hand.put(1, 9, "n1", "n2")
    hand.commit(1, 9, "n1", "n2")
    hand.store("n3", "install", lidx=7)
    return hand


# -- clients -------------------------------------------------------------------------------------------


def sent(*answers: tuple[str, int]) -> Hand:
    """Message 7 is sent in as many operations as there are answers."""
    hand = settled()
    for op, (how, index) in enumerate(answers):
        hand.other("p", "op", f="append", op=op, type="invoke", mid=7)
        place = {"lidx": index} if index >= 0 else {}
        hand.other("p", "op", f="append", op=op, type=how, **place)
    return hand


@bad("entry 9 is answered or read")
def an_answer_names_an_entry_that_is_not_committed() -> Hand:
    return sent(("ok", 9))


@bad("stored at 2, and again at 3")
def a_retry_is_stored_twice() -> Hand:
    hand = sent(("ok", 2))
    hand.other("q", "dlv", op=5, lidx=3, mid=7)
    return hand


@bad("was refused, and is stored at 2")
def what_was_refused_is_stored() -> Hand:
    hand = sent(("fail", -1))
    hand.other("q", "dlv", op=5, lidx=2, mid=7)
    return hand


@bad("nobody has sent message 8")
def what_nobody_sent_is_read() -> Hand:
    hand = sent(("ok", 2))
    hand.other("q", "dlv", op=5, lidx=3, mid=8)
    return hand


@bad("committed with 1")
def the_files_hold_another_term_than_was_committed() -> Hand:
    hand = settled()
    hand.other("dump", "dump", node="n1", lidx=2, eterm=2, is_committed=True)
    return hand


# -- tests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.__name__)
def test_what_a_correct_cluster_may_do_is_accepted(case: Case) -> None:
    outcome = case().walk()
    assert outcome.verdict is Verdict.ACCEPTED, (outcome.line, outcome.why, outcome.state)


@pytest.mark.parametrize(("case", "why"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_what_it_may_not_is_refused_with_the_guard_that_does_not_hold(case: Case, why: str) -> None:
    hand = case()
    outcome = hand.walk()
    assert outcome.verdict is Verdict.REFUSED and outcome.line is not None
    assert why in outcome.why, outcome.why
    assert outcome.state.count("\n") == len(ALL) and outcome.explained < outcome.lines


@pytest.mark.parametrize(("case", "why"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_clocks_that_tell_nothing_excuse_nothing(case: Case, why: str) -> None:
    """All lines at one time: the search alone finds an order, or that there is none."""
    trace = case().trace()
    for lines in trace.streams:
        lines[:] = [line._replace(event={**line.event, "mono": 0}) for line in lines]
    assert walk(trace).verdict is Verdict.REFUSED


# What others told a node that rejoins is taken from the order of time.
@pytest.mark.parametrize("case", [c for c in GOOD if "wiped" not in c.__name__], ids=lambda c: c.__name__)
def test_clocks_that_tell_nothing_make_nothing_bad(case: Case) -> None:
    trace = case().trace()
    for lines in trace.streams:
        lines[:] = [line._replace(event={**line.event, "mono": 0}) for line in lines]
    outcome = walk(trace)
    assert outcome.verdict is Verdict.ACCEPTED, (outcome.line, outcome.why, outcome.state)


def test_a_search_that_is_bounded_says_that_it_does_not_know() -> None:
    outcome = walk(settled().trace(), most_looks=5)
    assert outcome.verdict is Verdict.UNKNOWN and "bound" in outcome.why


@pytest.mark.parametrize("broker", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_traces_that_were_made_without_a_cluster_are_accepted(
    tmp_path: Path, broker: bool, seed: int
) -> None:
    clean_trace("made", broker=broker, seed=seed, rounds=12).write(tmp_path)
    outcome = walk(read_trace(tmp_path))
    assert outcome.verdict is Verdict.ACCEPTED, (outcome.line, outcome.why, outcome.state)
