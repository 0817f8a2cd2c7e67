"""SQL92 filters: what matches, in three values, and what is no expression."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.proxy.messages.sql92 import (
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_OPERATORS,
    MAX_WORDS,
    SqlError,
    compile_sql,
)


def matches(text: str, /, **properties: str) -> bool:
    return compile_sql(text).matches(properties)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a = 'x'", {"a": "x"}),
        ("a='it''s'", {"a": "it's"}),
        ("a <> 'x'", {"a": "y"}),
        ("n > 5", {"n": "6"}),
        ("n >= 5 and n <= 5", {"n": "5"}),
        ("n < -1.5", {"n": "-2"}),
        ("5 < n", {"n": "5.5"}),
        ("n = 1e3", {"n": "1000"}),
        ("n between 1 and 3", {"n": "3"}),
        ("n not between 1 and 3", {"n": "4"}),
        ("n between 1 and 3 and a = 'x'", {"n": "2", "a": "x"}),
        ("a in ('x', 'y')", {"a": "y"}),
        ("n in (1, 2)", {"n": "2"}),
        ("a not in ('x', 'y')", {"a": "z"}),
        ("a is null", {}),
        ("a IS NOT NULL", {"a": "x"}),
        ("b = true", {"b": "TRUE"}),
        ("b <> FALSE", {"b": "true"}),
        ("TRUE", {}),
        ("b", {"b": "true"}),
        ("not (a = 'x' or a = 'y')", {"a": "z"}),
        ("a = 'x' or b = 'y' and c = 'z'", {"a": "x"}),  # AND binds more tightly
        ("a contains 'bc'", {"a": "abcd"}),
        ("a startswith 'ab' and a endswith 'cd' and a not contains 'x'", {"a": "abcd"}),
        ("TAGS = 't'", {"TAGS": "t"}),
        ("not not a = 1", {"a": "1"}),
    ],
)
def test_matches(text: str, properties: dict[str, str]) -> None:
    assert compile_sql(text).matches(properties)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a = 'x'", {}),
        ("a <> 'x'", {}),  # unknown, not true
        ("not a = 'x'", {}),
        ("a not in ('x')", {}),
        ("n not between 1 and 3", {}),
        ("n > 5", {"n": "many"}),
        ("not n > 5", {"n": "many"}),
        ("a < 'b'", {"a": "a"}),  # texts have no order
        ("b = TRUE", {"b": "1"}),
        ("TRUE = 1", {}),
        ("FALSE", {}),
        ("a", {"a": "x"}),
        ("a = ''", {}),
        ("A = 'x'", {"a": "x"}),
        ("n = 1", {"n": "1" * 100}),
    ],
)
def test_does_not_match(text: str, properties: dict[str, str]) -> None:
    assert not compile_sql(text).matches(properties)


_THREE = {"true": "TRUE", "false": "FALSE", "unknown": "nothing = 1"}


@pytest.mark.parametrize("a", _THREE)
@pytest.mark.parametrize("b", _THREE)
def test_unknown_is_neither_true_nor_false(a: str, b: str) -> None:
    value = {"true": 1.0, "false": 0.0, "unknown": 0.5}
    left, right = _THREE[a], _THREE[b]
    for text, expected in (
        (f"{left} AND {right}", min(value[a], value[b])),
        (f"{left} OR {right}", max(value[a], value[b])),
        (f"NOT ({left})", 1 - value[a]),
    ):
        assert matches(text) == (expected == 1)
        assert matches(f"NOT ({text})") == (expected == 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a =",
        "= 1",
        "a b",
        "a = 'x",
        "(a = 1",
        "a = 1)",
        "a in ()",
        "a in (b)",
        "a in 'x'",
        "a between 1",
        "a between 1 or 2",
        "a not like 'x'",
        "a not = 1",
        "a is 1",
        "a is 'NOT' null",
        "a not 'IN' ('x')",
        "a not 'CONTAINS' 'x'",
        "and",
        "a = 1 and",
        "a = ; 1",
        "a = -'x'",
        "a = " + "1" * 100,
        "a in (1, 2",
        "a = b = c",
        "a between 1 and 2 between 3 and 4",
        "a is null is null",
        "a < 1 not in (2)",
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(SqlError):
        compile_sql(text)


def test_the_error_says_where() -> None:
    with pytest.raises(SqlError, match="character 7: expected"):
        compile_sql("a = 1 b")


@pytest.mark.parametrize(
    "text",
    [
        "a = 1" + " " * MAX_LENGTH,
        "(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1),
        "NOT " * (MAX_DEPTH + 1) + "a",
        "a" + " OR a" * (MAX_OPERATORS + 1),
        "a in (" + "1," * (MAX_WORDS // 2) + "1)",
    ],
)
def test_limits(text: str) -> None:
    with pytest.raises(SqlError):
        compile_sql(text)


def test_as_many_words_as_are_allowed_and_not_one_more() -> None:
    text = "a not in (" + "1," * (MAX_WORDS // 2 - 3) + "1)"
    assert compile_sql(text).steps == MAX_WORDS + 1  # with the end
    with pytest.raises(SqlError, match="words"):
        compile_sql(text + " b")


def test_the_longest_chain_can_be_evaluated() -> None:
    assert matches("a" + " OR a" * (MAX_OPERATORS - 1) + " OR TRUE")


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_a_sql_error(text: str) -> None:
    try:
        found: Any = compile_sql(text).matches({"a": "1"})
    except SqlError:
        return
    assert found in (True, False)


#: Words out of which hypothesis makes expressions that are nearly right.
_WORDS = st.sampled_from(
    ["a", "b", "1", "'x'", "TRUE", "AND", "OR", "NOT", "=", "<", "(", ")", "IN", ",", "IS", "NULL", "BETWEEN"]
)


@given(st.lists(_WORDS, max_size=12))
def test_nearly_right_expressions_raise_nothing_else(words: list[str]) -> None:
    with suppress(SqlError):
        assert compile_sql(" ".join(words)).matches({"a": "1", "b": "x"}) in (True, False)


class Counted(dict[str, str]):
    """Properties that count how often they are asked."""

    asked = 0

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.asked += 1
        return super().get(name, default)


@pytest.mark.parametrize("depth", [1, 10, 25])
def test_each_operand_is_evaluated_once(depth: int) -> None:
    """BETWEEN evaluated its left side twice: 22 within each other took 8.7 s."""
    properties = Counted(a="5")
    text = "(" * depth + "a" + " between 1 and 9)" * depth
    compile_sql(text).matches(properties)
    assert properties.asked == 1
    properties = Counted(a="5")
    assert compile_sql("a between 1 and 9 and not a not between 1 and 9 and a >= 1").matches(properties)
    assert properties.asked == 3


def test_steps_bound_what_is_evaluated() -> None:
    properties = Counted(a="5")
    compiled = compile_sql(" or ".join(["a = 1 and a = 2"] * 30))
    compiled.matches(properties)
    assert properties.asked <= compiled.steps


@given(st.lists(_WORDS, max_size=30))
def test_no_expression_looks_at_more_than_its_words(words: list[str]) -> None:
    properties = Counted(a="1", b="x")
    with suppress(SqlError):
        compiled = compile_sql(" ".join(words))
        compiled.matches(properties)
        assert properties.asked <= compiled.steps == len(words) + 1
