"""INSTALL_BASE: a follower forgets its log only if it does not hold the base, and never what is committed."""

from __future__ import annotations

import pytest

from dledger.core.effects import ResetLog, TruncateLog
from dledger.core.events import LogPurged
from dledger.core.messages import Append, InstallBase, PushResponse, PushType
from dledger.core.values import Base
from dledger.errors import Code
from tests.core.driver import Node, compare, push


def install(index: int, index_term: int, *, term: int = 3, committed: int = -1) -> InstallBase:
    return InstallBase(term, "b", 1, committed, Base(index, index_term, (index + 1) * 1024, 7))


def answers(node: Node) -> list[tuple[Code, PushType, int]]:
    return [(m.code, m.type, m.index) for m in node.all_sent(PushResponse, "b")]


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_log_that_holds_the_base_keeps_what_follows_it(index: int) -> None:
    """What follows may have been acknowledged: after a restart nobody here knows how far that went."""
    terms = [1, 1, 2, 2]
    node = Node(terms=terms, term=3)
    node.receive("b", install(index, terms[index], committed=index))
    assert node.all_effects(ResetLog) == [] and node.all_effects(TruncateLog) == []
    assert node.terms == terms and node.core.log.durable_index == 3
    assert (node.core.log.verified_index, node.core.committed_index) == (index, index)
    assert answers(node) == [(Code.SUCCESS, PushType.INSTALL_BASE, index)]


@pytest.mark.parametrize(("index", "index_term"), [(4, 2), (9, 3), (2, 3), (1, 2)])
def test_a_log_without_the_base_begins_after_it(index: int, index_term: int) -> None:
    node = Node(terms=[1, 1, 2, 2], term=3)
    node.receive("b", install(index, index_term))
    (reset,) = node.all_effects(ResetLog)
    log = node.core.log
    assert (reset.base, reset.generation) == (log.base, log.generation)
    assert (log.base.index, log.base.term, log.end_index, log.end_term) == (
        index, index_term, index, index_term,
    )  # fmt: skip
    assert log.verified_index == node.core.committed_index == index
    assert answers(node) == [(Code.SUCCESS, PushType.INSTALL_BASE, index)]


def test_a_base_that_is_installed_again_keeps_what_came_after_it() -> None:
    node = Node(terms=[1], term=3)
    node.receive("b", install(4, 2))
    node.receive("b", push(3, 4, 2, [3, 3]))
    node.forget()
    node.receive("b", install(4, 2))
    assert node.all_effects(ResetLog) == [] and node.terms == [3, 3]


def test_a_base_before_our_own_changes_nothing() -> None:
    node = Node(terms=[1], term=3)
    node.receive("b", install(4, 2))
    node.receive("b", push(3, 4, 2, [3, 3]))
    node.forget()
    node.receive("b", install(2, 1))
    assert node.all_effects(ResetLog) == [] and node.terms == [3, 3] and node.core.log.base.index == 4


def test_rule_6_a_base_that_contradicts_what_is_committed_stops_the_node() -> None:
    node = Node(terms=[1, 1, 2], term=3, committed=2)
    node.receive("b", install(2, 3))
    assert node.fatal is not None and node.fatal.code is Code.INCONSISTENT_INDEX
    assert node.all_effects(ResetLog) == [] and node.terms == [1, 1, 2]


def test_rule_6_a_base_of_an_older_leader_changes_nothing() -> None:
    node = Node(terms=[1, 1, 2], term=4)
    node.receive("b", install(9, 3))
    assert node.all_effects(ResetLog) == [] and node.terms == [1, 1, 2]
    assert answers(node) == [(Code.EXPIRED_TERM, PushType.INSTALL_BASE, -1)]


def test_rule_6_a_base_on_an_older_stream_changes_nothing() -> None:
    node = Node(terms=[1, 1, 2], term=3)
    node.receive("b", compare(3, 2, 2, stream=2))
    node.forget()
    node.receive("b", install(9, 3))
    assert node.all_effects(ResetLog) == [] and node.terms == [1, 1, 2] and answers(node) == []


def test_a_follower_whose_missing_entries_are_purged_is_given_the_base_and_others_are_not() -> None:
    leader = Node(terms=[1, 1, 1, 1], committed=3).become_leader()
    leader.connect_equal("c", stream_id=2)
    probe = leader.connect("b")
    behind = PushResponse(
        leader.core.term, "b", 1, Code.INCONSISTENT_STATE, PushType.COMPARE, probe.index, 0, 0, -1, 1
    )
    leader.receive("b", behind)
    leader.forget()
    base = Base(2, 1, 3 * 1024, 7)
    leader.step(LogPurged(base))
    assert [m.base for m in leader.all_sent(InstallBase, "b")] == [base]
    assert leader.all_sent(InstallBase, "c") == []
    leader.receive("b", PushResponse(
        leader.core.term, "b", 1, Code.SUCCESS, PushType.INSTALL_BASE, base.index, 3, 2
    ))  # fmt: skip
    assert [(m.prev_index, m.last_index) for m in leader.all_sent(Append, "b")] == [(2, 4)]


def test_a_probe_before_our_own_begin_is_answered_with_it() -> None:
    """The leader's log may begin earlier than ours; that is no other history."""
    node = Node(terms=[1], term=3)
    node.receive("b", install(4, 2))
    node.receive("b", compare(3, 2, 1))
    (answer,) = [m for m in node.all_sent(PushResponse, "b") if m.type is PushType.COMPARE]
    assert (answer.code, answer.ledger_begin_index) == (Code.INDEX_LESS_THAN_LOCAL_BEGIN, 5)
    assert node.fatal is None
