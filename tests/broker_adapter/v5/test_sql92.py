"""SQL92 filters: which messages match, as in RocketMQ 5.5, which expressions are refused, and the cost."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.endpoints.filters.sql92 import MAX_LENGTH, compile_sql
from broker_adapter.endpoints.filters.sql_instructions import MAX_NUMBER_LENGTH
from broker_adapter.endpoints.filters.sql_tokens import MAX_DIGITS, MAX_WORDS, SqlError

#: The three tables are compared with RocketMQ by tests/interop/test_filters.py.
MATCHING: list[tuple[str, dict[str, str]]] = [
    # comparisons
    ("a = 'x'", {"a": "x"}),
    ("a = 'it''s'", {"a": "it's"}),
    ("a = '10'", {"a": "10"}),
    ("a <> 'x'", {"a": "y"}),
    ("$x = 1 AND _y = 2", {"$x": "1", "_y": "2"}),
    ("TAGS = 't'", {"TAGS": "t"}),
    ("n > 5", {"n": "6"}),
    ("5 < n", {"n": "6"}),
    ("n >= 5 and n <= 5", {"n": "5"}),
    ("n >= 5.0", {"n": "5"}),
    ("n > 3L", {"n": "5"}),
    ("n > 999.0", {"n": "1e3"}),
    ("n < -1.5", {"n": "-2"}),
    ("n = - -1", {"n": "1"}),
    ("n = +1", {"n": "1"}),
    ("n = 3", {"n": "+3"}),
    ("n = 3", {"n": "003"}),
    ("n = 3", {"n": "0" * 400 + "3"}),
    ("n = 9223372036854775807", {"n": "9223372036854775807"}),
    ("n > 3000000000", {"n": "99999999999"}),
    ("n = 3.0", {"n": " 3 "}),
    ("n = 3.0", {"n": "3d"}),
    ("n = 3.0", {"n": "3f"}),
    ("n = 2.0", {"n": "0x1p1"}),
    ("n > 3.0", {"n": "Infinity"}),
    ("n > 3.0", {"n": "NaN"}),
    ("n > 3.0", {"n": "1e999"}),
    ("1 = 1.0", {}),
    ("'a' = 'a'", {}),
    # two properties: texts are equal as texts, and ordered as numbers
    ("a > b", {"a": "10", "b": "9"}),
    ("a < b", {"a": "-0.0", "b": "0.0"}),
    ("a = b", {"a": "x", "b": "x"}),
    ("a <> b", {"a": "1", "b": "1.0"}),
    # NULL
    ("a is null", {}),
    ("a IS NOT NULL", {"a": "x"}),
    ("a = 1 IS NULL", {}),
    ("NULL IS NULL", {}),
    ("i = i", {}),
    ("i = s", {}),
    ("1 <> b", {}),
    ("NOT (TRUE = b)", {}),
    ("-a is null", {"a": "1"}),
    # ranges and lists
    ("n between 1 and 3", {"n": "3"}),
    ("n not between 4 and 1", {"n": "2"}),
    ("n not between 1 and 3", {"n": "4"}),
    ("n BETWEEN -10 AND -1", {"n": "-5"}),
    ("n between 1 and 3 and a = 'x'", {"n": "2", "a": "x"}),
    ("a BETWEEN b AND 11", {"a": "10", "b": "9"}),
    ("a in ('x', 'y')", {"a": "y"}),
    ("a not in ('x', 'y')", {"a": "z"}),
    ("+a in ('it''s')", {"a": "it's"}),
    ("a in ( /* ' */ 'x'\n,'y' )", {"a": "y"}),
    ("a in ('x') is not null", {"a": "z"}),
    # texts
    ("a contains 'bc'", {"a": "abcd"}),
    ("a startswith 'ab' and a endswith 'cd' and a not contains 'x'", {"a": "abcd"}),
    ("'abc' contains 'b'", {}),
    ("NOT (s CONTAINS 'a')", {}),
    ("NOT (s NOT CONTAINS 'a')", {}),
    ("NOT (s STARTSWITH 'a')", {}),
    ("NOT (s ENDSWITH 'a')", {}),
    ("NOT (s NOT CONTAINS '')", {"s": "x"}),
    # truth
    ("TRUE", {}),
    ("b = true", {"b": "TRUE"}),
    ("b <> FALSE", {"b": "true"}),
    ("b = FALSE", {"b": "no"}),
    ("NOT b", {"b": "true"}),
    ("NOT b = TRUE", {"b": "true"}),
    ("(a = 1) = (b = 1)", {"a": "2", "b": "3"}),
    ("a = (b = 1)", {"a": "true", "b": "1"}),
    ("1 <> TRUE", {}),
    # precedence
    ("not (a = 'x' or a = 'y')", {"a": "z"}),
    ("a = 'x' or b = 'y' and c = 'z'", {"a": "x"}),
    ("NOT s IS NULL", {}),
    ("a = 1 = TRUE", {"a": "1"}),
    ("a = b > 1", {"a": "true", "b": "2"}),
    # comments, blanks, the end
    ("a = 'x' -- note", {"a": "x"}),
    ("a -- note = 1\n = 'x'", {"a": "x"}),
    ("a = /* note */ 'x'", {"a": "x"}),
    ("a/**/=/***/1/* * / */", {"a": "1"}),
    ("n = 3d", {"n": "3"}),
    ("n = 0x10", {"n": "0"}),
    ("n > 010", {"n": "1"}),
    ("a = 1)", {"a": "1"}),
    ("a = 1 b ;", {"a": "1"}),
    ("a is null > 3", {}),
]
NOT_MATCHING: list[tuple[str, dict[str, str]]] = [
    ("a = 'x'", {}),
    ("a <> 'x'", {}),
    ("NOT (b = 'x')", {"a": "x"}),
    ("a not in ('x')", {}),
    ("n not between 1 and 3", {}),
    ("a < b", {"a": "10", "b": "9"}),
    ("a = ''", {}),
    ("A = 'x'", {"a": "x"}),
    ("a = 2.0", {"a": "2.5"}),
    ("b", {"b": "true"}),
    ("NOT a", {}),
    ("NULL", {}),
    ("b = TRUE", {"b": "1"}),
    ("1 = TRUE", {}),
    ("NOT NOT a = TRUE", {"a": "true"}),
    ("NOT s IS NULL", {"s": "x"}),
    ("FALSE", {}),
    ("a CONTAINS ''", {"a": "x"}),
    ("a NOT CONTAINS ''", {"a": "x"}),
    ("a STARTSWITH ''", {"a": "x"}),
    ("s NOT CONTAINS 'a'", {}),
    ("1 contains '1'", {}),
    ("-a = -1", {"a": "1"}),
    ("a-b = 1", {"a": "1"}),
    ("n = 3.0", {"n": "NaN"}),
    ("s like 'h%'", {"s": "hello"}),
]
#: RocketMQ's evaluator throws, and its broker drops the message.
RECORDED_DIFFERENCES: list[tuple[str, dict[str, str], bool]] = [
    ("i > 2", {"i": "10.5"}, True),
    ("d = 2", {"d": "2.0"}, True),
    ("n = 3", {"n": " 3 "}, True),
    ("n > 2", {"n": "99999999999"}, True),
    ("n > 2 OR a = 'x'", {"n": "abc", "a": "x"}, True),
    ("NOT (n > 2)", {"n": "abc"}, False),
    ("a <> 5", {"a": "abc"}, False),
    ("a > b", {"a": "x", "b": "1"}, False),
    ("TRUE = a", {"a": "true"}, True),
    ("TRUE <> a", {"a": "no"}, True),
    ("(a = 1) = b", {"a": "1", "b": "true"}, True),
    ("NOT s = 'a'", {"s": "b"}, True),
    ("NOT s = 'a'", {"s": "a"}, False),
    ("NOT s <> 'a'", {"s": "a"}, True),
    ("n > 0.0", {"n": "1"}, True),
    ("n = 3", {"n": " " * MAX_NUMBER_LENGTH + "3"}, False),
]
REFUSED = [
    "",
    "a =",
    "= 1",
    "a = 'x",
    "(a = 1",
    "a in ()",
    "a in ('x',)",
    "a in (b)",
    "a in (3)",
    "a in 'x'",
    "-a in ('x')",
    "5 in ('x')",
    "a < 1 not in ('2')",
    "a between 1",
    "a between 1 or 2",
    "a between 4 and 1",
    "a between 2.5 and 1",
    "a between '1' and '2'",
    "a between 1 and NULL",
    "a between 1 and 2 between 3 and 4",
    "a > 'b'",
    "a < TRUE",
    "(a = 1) > 1",
    "NOT a > 5",
    "a = NULL",
    "NULL <> a",
    "TRUE = 1",
    "TRUE = 'true'",
    "a contains b",
    "a contains 1",
    "a not like 'x'",
    "a = 1 not b",
    "a not = 1",
    "a is 1",
    "a is 'NOT' null",
    "a not 'IN' ('x')",
    "and",
    "a = 1 and",
    "a = 1 and 2",
    "a = 1 or -b",
    "NOT 'x'",
    "'x'",
    "1",
    "a = ; 1",
    "a = 1 ;",
    "n > 2;",
    "n != 3",
    "a == 1",
    "a.b = 1",
    "é = 1",
    's = "x"',
    "a = 1 /* x",
    "a /*/ = 1",
    "a = 9223372036854775808",
    "a = 1e400",
    "a = 1e-400",
]


def matches(text: str, /, **properties: str) -> bool:
    return compile_sql(text).matches(properties)


@pytest.mark.parametrize(("text", "properties"), MATCHING)
def test_matches(text: str, properties: dict[str, str]) -> None:
    assert compile_sql(text).matches(properties)


@pytest.mark.parametrize(("text", "properties"), NOT_MATCHING)
def test_does_not_match(text: str, properties: dict[str, str]) -> None:
    assert not compile_sql(text).matches(properties)


@pytest.mark.parametrize(("text", "properties", "is_match"), RECORDED_DIFFERENCES)
def test_a_value_that_does_not_fit_makes_one_comparison_unknown(
    text: str, properties: dict[str, str], is_match: bool
) -> None:
    assert compile_sql(text).matches(properties) == is_match


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


@pytest.mark.parametrize("text", REFUSED)
def test_an_invalid_expression_is_refused(text: str) -> None:
    with pytest.raises(SqlError):
        compile_sql(text)


def test_the_error_names_the_position() -> None:
    with pytest.raises(SqlError, match="character 6: expected NULL after IS, found 'b'"):
        compile_sql("a is b")


@pytest.mark.parametrize(
    "text",
    [
        "a = 1" + " " * MAX_LENGTH,
        "a = " + "1" * (MAX_DIGITS + 1),
        "a = 0." + "0" * 400 + "1",
        "NOT " * (MAX_WORDS + 1) + "a",
        "a" + " OR a" * (MAX_WORDS // 2),
    ],
)
def test_limits(text: str) -> None:
    with pytest.raises(SqlError):
        compile_sql(text)


DEPTH = MAX_WORDS // 2 - 2


@pytest.mark.parametrize(
    "text",
    [
        "(" * DEPTH + "TRUE" + ")" * DEPTH,
        "NOT " * DEPTH * 2 + "TRUE",
        "FALSE" + " OR FALSE" * DEPTH + " OR TRUE",
        "TRUE" + " AND (FALSE OR TRUE" * (DEPTH // 3) + ")" * (DEPTH // 3),
    ],
    ids=["parentheses", "NOT", "OR", "nested"],
)
def test_an_expression_may_be_as_deep_as_its_words_allow(text: str) -> None:
    assert matches(text)


def test_long_lists_and_many_conditions() -> None:
    """RocketMQ has no limits: applications generate such expressions from lists of keys."""
    keys = ",".join(f"'tag{i}'" for i in range(5_000))
    assert matches(f"TAGS in ({keys})", TAGS="tag4999")
    assert compile_sql(f"TAGS in ({keys})").steps < 10, "a list is one look-up"
    text = " OR ".join(f"n = {i}" for i in range(1_000))
    assert matches(text, n="999") and not matches(text, n="1000")


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


@given(st.text(alphabet="0123456789.eEdxXpP+-aNIfity ", max_size=12))
def test_no_text_of_a_property_raises(text: str) -> None:
    for expression in ("a > 1", "a > 1.0", "a = 1", "a < b", "TRUE = a"):
        assert matches(expression, a=text, b=text) in (True, False)


class CountedReads(dict[str, str]):
    """Properties that count how often they are read."""

    reads = 0

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.reads += 1
        return super().get(name, default)


def test_each_operand_is_evaluated_once() -> None:
    properties = CountedReads(a="5")
    assert compile_sql("a between 1 and 9 and a >= 1").matches(properties)
    assert properties.reads == 2


@given(st.lists(_WORDS, max_size=30))
def test_steps_bound_the_cost_of_a_message(words: list[str]) -> None:
    properties = CountedReads(a="1", b="x")
    with suppress(SqlError):
        compiled = compile_sql(" ".join(words))
        compiled.matches(properties)
        assert properties.reads <= compiled.steps <= len(words) + 1
