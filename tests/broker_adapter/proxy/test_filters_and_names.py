"""Filter expressions, and names of topics and groups with their namespaces."""

from __future__ import annotations

import pytest

from broker_adapter.pop.api import Filter
from broker_adapter.proxy.messages.filters import MAX_TAGS, filter_of
from broker_adapter.proxy.messages.names import group_of, topic_of
from broker_adapter.proxy.messages.rejected import Code, Rejected
from broker_adapter.proxy.v2 import definition_pb2 as pb
from tests.broker_adapter.proxy.world import resource

TAG, SQL = pb.FilterType.TAG, pb.FilterType.SQL


def expression(text: str, kind: int = TAG) -> pb.FilterExpression:
    return pb.FilterExpression(type=kind, expression=text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "*", " * "])
def test_all_messages(text: str) -> None:
    assert filter_of(expression(text)) == Filter()


def test_tags() -> None:
    assert filter_of(expression("a || b||c")).tags == {"a", "b", "c"}
    assert filter_of(expression("a", pb.FilterType.FILTER_TYPE_UNSPECIFIED)).tags == {"a"}


def test_sql_is_compiled_once() -> None:
    found = filter_of(expression("a = 1", SQL))
    assert found.matches is not None
    assert found.matches({"a": "1"}) and not found.matches({"a": "2"})
    assert filter_of(expression("a = 1", SQL)).matches is found.matches


@pytest.mark.parametrize(
    "wrong",
    [
        expression("a ||"),
        expression("a || *"),
        expression("a | b"),
        expression(" || ".join(str(i) for i in range(MAX_TAGS + 1))),
        expression("a" * 5_000),
        expression("a = ", SQL),
        expression("a", 9),
    ],
)
def test_what_is_no_filter_is_refused(wrong: pb.FilterExpression) -> None:
    with pytest.raises(Rejected) as caught:
        filter_of(wrong)
    assert caught.value.code == Code.ILLEGAL_FILTER_EXPRESSION


def test_the_namespace_is_of_the_resource_or_else_of_the_call() -> None:
    """Quirk: clients in Node.js leave it out of most resources."""
    assert topic_of(resource("t"), "") == "t"
    assert topic_of(resource("t", "a"), "") == topic_of(resource("t"), "a") == "a%t"
    assert topic_of(resource("t", "a"), "b") == "a%t"
    assert group_of(resource("g"), "a") == "a%g"


def test_derived_topics_keep_their_prefix_and_full_names_stay() -> None:
    assert topic_of(resource("%DLQ%g"), "a") == "%DLQ%a%g"
    assert topic_of(resource("%DLQ%a%g"), "a") == "%DLQ%a%g"
    assert topic_of(resource("a%t"), "a") == "a%t"


@pytest.mark.parametrize("name", ["", "a b", "x" * 128, "DLEDGER_SYS_METADATA", "tä"])
def test_illegal_topics(name: str) -> None:
    with pytest.raises(Rejected) as caught:
        topic_of(resource(name), "")
    assert caught.value.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", "a b", "x" * 121])
def test_illegal_groups(name: str) -> None:
    with pytest.raises(Rejected) as caught:
        group_of(resource(name), "")
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP


def test_the_longest_names() -> None:
    assert topic_of(resource("x" * 127), "") and group_of(resource("x" * 120), "")
