"""Filter expressions, and names of topics and groups with their namespaces."""

from __future__ import annotations

import pytest

from broker_adapter.delivery.api import Filter
from broker_adapter.endpoints.filters import filters
from broker_adapter.endpoints.filters.filters import MAX_TAGS, filter_from, filter_of
from broker_adapter.endpoints.filters.sql92 import MAX_LENGTH
from broker_adapter.endpoints.names import group_of, topic_of
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.v2 import definition_pb2 as pb
from tests.broker_adapter.v5.world import resource

TAG, SQL = pb.FilterType.TAG, pb.FilterType.SQL


def expression(text: str, kind: int = TAG) -> pb.FilterExpression:
    return pb.FilterExpression(type=kind, expression=text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "*", " * ", " ", "||", " || * || "])
def test_an_expression_without_a_tag_selects_all_messages(text: str) -> None:
    assert filter_of(expression(text)) == filter_from(text, "TAG") == Filter()


def test_a_missing_expression_selects_all_messages() -> None:
    assert filter_of(expression("", SQL)) == filter_of(expression("", 9)) == Filter()


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("TagA", {"TagA"}),
        ("a || b||c", {"a", "b", "c"}),
        (" TagA  ||  TagB ", {"TagA", "TagB"}),
        ("TagA ||", {"TagA"}),
        ("|| TagA", {"TagA"}),
        ("TagA || || TagB", {"TagA", "TagB"}),
        ("TagA || *", {"TagA", "*"}),
        ("* || TagA", {"TagA", "*"}),
        ("a|b", {"a|b"}),
        ("red | blue", {"red | blue"}),
        ("a|||b", {"a", "|b"}),
        ("\u3000a\n", {"\u3000a"}),
    ],
)
def test_tags(text: str, tags: set[str]) -> None:
    assert filter_of(expression(text)).tags == tags
    assert filter_of(expression(text, pb.FilterType.FILTER_TYPE_UNSPECIFIED)).tags == tags
    assert filter_from(text, "").tags == filter_from(text, "TAG").tags == tags


@pytest.mark.parametrize("count", [65, 1_000, 5_000])
def test_many_tags(count: int) -> None:
    """RocketMQ has no limit."""
    assert len(filter_of(expression(" || ".join(f"tag{i}" for i in range(count)))).tags) == count


def test_sql_is_compiled_once() -> None:
    found = filter_of(expression("a = 1", SQL))
    assert found.matches is not None
    assert found.matches({"a": "1"}) and not found.matches({"a": "2"})
    assert filter_of(expression("a = 1", SQL)).matches is found.matches


@pytest.mark.parametrize(
    "wrong",
    [
        expression("||".join(str(i) for i in range(MAX_TAGS + 1))),
        expression("a" * (MAX_LENGTH + 1)),
        expression("a = ", SQL),
        expression("a", 9),
    ],
)
def test_an_invalid_filter_is_refused(wrong: pb.FilterExpression) -> None:
    with pytest.raises(Rejected) as caught:
        filter_of(wrong)
    assert caught.value.code == Code.ILLEGAL_FILTER_EXPRESSION


def test_a_filter_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(Rejected, match="FOO"):
        filter_from("a", "FOO")


def test_compiled_filters_are_bounded_by_their_words() -> None:
    """With a bound of their number, large expressions would take gigabytes."""
    cache = filters._FilterCache(filters._compile_sql, 1_000)
    first = cache.get("a = 0")
    large = " or ".join(f"a = {i}" for i in range(100))
    for i in range(5):
        cache.get(f"{large} or b = {i}")
        assert cache.get("a = 0") is first, "it was used since"
    assert len(cache._filters) == 3
    assert cache._words_left >= 0
    with pytest.raises(Rejected):
        cache.get("a =")
    assert len(cache._filters) == 3


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
