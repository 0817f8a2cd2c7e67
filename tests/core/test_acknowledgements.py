"""What a follower acknowledges to whom: each leader, and each stream, is told anew from where logs match."""

from __future__ import annotations

import pytest

from dledger.core.messages import PushResponse, PushType
from dledger.errors import Code
from tests.core.driver import Node, compare, push


def acknowledged(node: Node, to: str) -> list[int]:
    sent = node.all_sent(PushResponse, to)
    return [m.index for m in sent if m.type is PushType.APPEND and m.code is Code.SUCCESS]


@pytest.mark.parametrize(("leader", "term", "stream"), [("c", 4, 1), ("b", 3, 2)])
def test_a_new_leader_or_stream_is_told_what_another_one_was_told_before(
    leader: str, term: int, stream: int
) -> None:
    """Else the entries count on a majority only once the log is longer than it ever was."""
    node = Node(terms=[1, 1], term=3)
    node.receive("b", compare(3, 1, 1))
    node.receive("b", push(3, 1, 1, [3, 3]))
    assert acknowledged(node, "b") == [1, 3]
    node.forget()
    node.receive(leader, compare(term, 1, 1, leader, stream=stream))
    if term == 4:
        assert acknowledged(node, leader) == [1], "not what only the old leader is known to have"
        node.receive(leader, push(term, 1, 1, [4], leader, stream=stream))
        assert node.terms == [1, 1, 4] and acknowledged(node, leader) == [1, 2]
    else:
        assert acknowledged(node, leader) == [3]


def test_a_comparison_on_the_same_stream_is_followed_by_an_acknowledgement() -> None:
    node = Node(terms=[1, 1], term=3)
    for _ in range(2):
        node.forget()
        node.receive("b", compare(3, 1, 1))
        assert acknowledged(node, "b") == [1]
