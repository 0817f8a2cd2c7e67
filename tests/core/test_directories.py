"""Which directory of a node replaces which, and who is told (rule 11)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.directories import (
    FIRST_REJOINED,
    MAX_DIRECTORY,
    next_number,
    supersedes,
    with_own_directory,
)
from dledger.core.effects import PersistHardState, SendMessage
from dledger.core.events import DirectorySeen
from dledger.core.messages import PositionRequest, PositionResponse
from dledger.core.values import HardState
from tests.core.driver import Node

OWN = FIRST_REJOINED + 7


@pytest.mark.parametrize(
    ("number", "known", "replaces"),
    [
        (5, 0, True),
        (OWN, 0, True),
        (5, 5, False),
        (6, 5, False),  # a first directory that was initialized again
        (5, 6, False),
        (OWN, 6, True),
        (6, OWN, False),
        (OWN + 1, OWN, True),
        (OWN, OWN, False),
        (OWN, OWN + 1, False),
        (0, 0, False),
        (0, 5, False),
    ],
)
def test_rule_11_which_directory_replaces_which(number: int, known: int, replaces: bool) -> None:
    assert supersedes(number, known) is replaces


@given(st.integers(0, MAX_DIRECTORY - 2 * FIRST_REJOINED), st.integers(0, MAX_DIRECTORY))
def test_rule_11_the_next_number_is_above_a_known_one(known: int, own: int) -> None:
    number = next_number(own, known)
    assert supersedes(number, known) and number < known + 2 * FIRST_REJOINED
    assert number % FIRST_REJOINED == own % FIRST_REJOINED


def test_rule_11_a_directory_gets_its_number_once() -> None:
    first = with_own_directory(HardState(incarnation=9), "a")
    assert first.directory_of("a") == 9
    assert with_own_directory(replace(first, incarnation=10), "a").directory_of("a") == 9
    rejoining = with_own_directory(HardState(incarnation=9, rejoining=True), "a")
    assert rejoining.directory_of("a") == FIRST_REJOINED + 9


def numbered(*, rejoining: bool) -> Node:
    node = Node()
    node.core.hard_state = replace(
        node.core.hard_state, rejoining=rejoining, directories=(("a", OWN), ("b", 3))
    )
    node.pass_time(1)
    return node


def reports(node: Node, peer: str, **numbers: int) -> None:
    first_round = node.core.hard_state.incarnation << 32
    node.receive(peer, PositionResponse(0, peer, first_round, -1, -1, False, tuple(numbers.items())))


def test_rule_11_a_number_is_durable_before_the_report_leaves() -> None:
    node = numbered(rejoining=False)
    node.forget()
    effects = node.receive("b", PositionRequest(0, "b", 1, OWN))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(PersistHardState) < kinds.index(SendMessage)
    assert dict(node.last_sent(PositionResponse).directories) == {"a": OWN, "b": OWN}
    assert node.core.hard_state.directory_of("b") == OWN


def test_rule_11_an_earlier_number_is_not_recorded_but_answered_with_the_known_one() -> None:
    node = numbered(rejoining=False)
    node.step(DirectorySeen("b", OWN + 1))
    node.forget()
    node.receive("b", PositionRequest(0, "b", 1, OWN))
    assert dict(node.last_sent(PositionResponse).directories)["b"] == OWN + 1
    assert not node.all_effects(PersistHardState)


def test_rule_11_a_rejoining_node_takes_a_higher_number_and_asks_all_again() -> None:
    node = numbered(rejoining=True)
    reports(node, "b", a=OWN, b=3, c=4)
    assert node.core.hard_state.directory_of("c") == 4
    assert node.core.rejoining.missing == ("c",)
    asked_in = node.last_sent(PositionRequest).round
    node.forget()
    reports(node, "c", a=OWN + 5)
    assert node.core.hard_state.rejoining and node.core.rejoining.missing == ("b", "c")
    node.pass_time(1)
    asked = node.all_sent(PositionRequest)
    number = node.core.hard_state.directory_of("a")
    assert supersedes(number, OWN + 5)
    assert [(m.directory, m.round > asked_in) for m in asked] == [(number, True)] * 2
    for peer in "bc":
        own = (("a", number), (peer, {"b": 3, "c": 4}[peer]))
        node.receive(peer, PositionResponse(0, peer, asked[0].round, -1, -1, False, own))
    assert not node.core.hard_state.rejoining and node.core.hard_state.directory_of("a") == number


def test_rule_11_a_node_with_its_log_asks_until_all_have_answered_and_keeps_its_number() -> None:
    node = numbered(rejoining=False)
    assert {peer for peer, m in node.sent if isinstance(m, PositionRequest)} == {"b", "c"}
    reports(node, "b", a=OWN + 5, b=3, c=4)
    assert (node.core.hard_state.directory_of("a"), node.core.hard_state.directory_of("c")) == (OWN, 4)
    node.forget()
    node.pass_time(node.core.timing.election_max_ms)
    assert {peer for peer, m in node.sent if isinstance(m, PositionRequest)} == {"c"}
    reports(node, "c", c=4)
    node.forget()
    node.pass_time(node.core.timing.election_max_ms)
    assert not node.all_sent(PositionRequest)


def test_rule_11_reports_of_earlier_directories_do_not_count() -> None:
    node = numbered(rejoining=True)
    reports(node, "c", c=4)
    assert node.core.rejoining.missing == ("b",)
    reports(node, "b", b=3, c=OWN)
    assert node.core.rejoining.missing == ("c",)
    reports(node, "c", c=4)
    assert node.core.rejoining.missing == ("c",) and node.core.hard_state.directory_of("c") == OWN
    reports(node, "c", c=OWN)
    assert not node.core.hard_state.rejoining
