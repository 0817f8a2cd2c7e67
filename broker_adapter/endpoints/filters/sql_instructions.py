"""The instructions of a compiled SQL92 filter. They compare values like RocketMQ's ComparisonExpression."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import copysign, inf
from typing import Any, TypeAlias

#: Maximum length of a property that is read as a number. A longer one would cost more than a step per KiB.
MAX_NUMBER_LENGTH = 1_024

Properties: TypeAlias = Mapping[str, str]
#: None: NULL, or UNKNOWN.
Value: TypeAlias = str | int | float | bool | None
Instruction: TypeAlias = Callable[[list[Value], Properties], None]

_INTEGER = re.compile(r"(?P<sign>[+-]?)(?=\d)0*+(?P<digits>\d*+)")
_DOUBLE = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<nan>NaN)|(?P<infinity>Infinity)"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?"
    r"|(?P<decimal>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?)"
)
#: The characters that Java's String.trim removes.
BLANKS = "".join(map(chr, range(ord(" ") + 1)))

Order: TypeAlias = Callable[[Any, Any], bool]
ORDERS: dict[str, Order] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_double(text: str) -> float | None:
    """Convert text like Java's Double.valueOf. Return None where Java throws NumberFormatException."""
    match = _DOUBLE.fullmatch(text.strip(BLANKS))
    if match is None:
        return None
    if match["nan"]:
        return float("nan")
    if match["infinity"]:
        number = inf
    elif match["hex"]:
        try:
            number = float.fromhex(match["hex"])
        except OverflowError:
            number = inf
    else:
        number = float(match["decimal"])
    return -number if match["sign"] == "-" else number


def _to_number(text: str, model: Value) -> int | float | None:
    """Convert text to the numeric type of `model`. For an integer `model`, the result may also be a float."""
    if len(text) > MAX_NUMBER_LENGTH:
        return None
    if isinstance(model, int) and (match := _INTEGER.fullmatch(text)):
        number = int(match["digits"] or "0")
        return -number if match["sign"] == "-" else number
    return _to_double(text)


def _sort_key(number: float) -> tuple[bool, float, float]:
    """Return a sort key for the order of Double.compareTo, in which -0.0 is less than 0.0, and NaN equals
    itself and is the largest value.
    """
    return (False, number, copysign(1, number)) if number == number else (True, 0, 0)


def compare_ordered(left: Value, right: Value, order: Order) -> bool | None:
    """Compare two values by `order`. Return None if either value is NULL or not a number."""
    if left is None or right is None:
        return None
    if isinstance(left, str):
        left = _to_number(left, right)
    if isinstance(right, str):
        right = _to_number(right, left)
    if left is None or right is None or isinstance(left, str):
        return None
    if isinstance(left, int) and isinstance(right, int):
        return order(left, right)
    return order(_sort_key(float(left)), _sort_key(float(right)))


def push_constant(value: Value) -> Instruction:
    return lambda stack, _: stack.append(value)


def push_property(name: str) -> Instruction:
    return lambda stack, properties: stack.append(properties.get(name))


def cast_to_condition(stack: list[Value], _: Properties) -> None:
    """Convert a property to a condition. The result is FALSE or NULL, because properties are text."""
    if stack[-1] is not None:
        stack[-1] = False


def negate(stack: list[Value], _: Properties) -> None:
    if stack[-1] is not None:
        stack[-1] = not stack[-1]


def change_sign(stack: list[Value], _: Properties) -> None:
    value = stack[-1]
    stack[-1] = -value if isinstance(value, int | float) and not isinstance(value, bool) else None


def both(stack: list[Value], _: Properties) -> None:
    right = stack.pop()
    if right is False or stack[-1] is True:
        stack[-1] = right
    elif stack[-1] is not False:
        stack[-1] = None


def either(stack: list[Value], _: Properties) -> None:
    right = stack.pop()
    if right is True or stack[-1] is False:
        stack[-1] = right
    elif stack[-1] is not True:
        stack[-1] = None


def is_null(stack: list[Value], _: Properties) -> None:
    stack[-1] = stack[-1] is None


def is_not_null(stack: list[Value], _: Properties) -> None:
    stack[-1] = stack[-1] is not None


def compare_texts(word: str, sought: str, *, is_negated: bool) -> Instruction:
    """Build a text comparison.

    If the property is NULL or `sought` is empty, the result is FALSE, even if the comparison is negated.
    """
    tests: dict[str, Callable[[str], bool]] = {
        "CONTAINS": lambda text: sought in text,
        "STARTSWITH": lambda text: text.startswith(sought),
        "ENDSWITH": lambda text: text.endswith(sought),
    }
    is_found = tests[word]

    def test(stack: list[Value], _: Properties) -> None:
        value = stack[-1]
        stack[-1] = bool(sought) and isinstance(value, str) and is_found(value) != is_negated

    return test


def find_in(values: frozenset[str], *, is_negated: bool) -> Instruction:
    def test(stack: list[Value], _: Properties) -> None:
        if stack[-1] is not None:
            stack[-1] = (stack[-1] in values) != is_negated

    return test


def compare_equal(stack: list[Value], _: Properties) -> None:
    right = stack.pop()
    stack[-1] = _are_equal(stack[-1], right)


def compare_with_negated(name: str) -> Instruction:
    """Evaluate `NOT s = 'a'`.

    RocketMQ parses this as `(NOT s) = 'a'`, which throws an exception for each message that has the property
    `s`.
    """

    def test(stack: list[Value], properties: Properties) -> None:
        right = stack.pop()
        is_text = isinstance(right, str) and stack[-1] is not None
        stack[-1] = properties.get(name) != right if is_text else _are_equal(stack[-1], right)

    return test


def _are_equal(left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return True if right is left else (None if left is None else False)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        truths = [value.lower() == "true" if isinstance(value, str) else value for value in (left, right)]
        return truths[0] is truths[1]
    return compare_ordered(left, right, operator.eq)


def compare_order(order: Order) -> Instruction:
    def test(stack: list[Value], _: Properties) -> None:
        right = stack.pop()
        stack[-1] = compare_ordered(stack[-1], right, order)

    return test


def compare_range(stack: list[Value], properties: Properties) -> None:
    high, low, value = stack.pop(), stack.pop(), stack[-1]
    stack[-1] = compare_ordered(value, low, operator.ge)
    stack.append(compare_ordered(value, high, operator.le))
    both(stack, properties)


def compare_outside(stack: list[Value], properties: Properties) -> None:
    high, low, value = stack.pop(), stack.pop(), stack[-1]
    stack[-1] = compare_ordered(value, low, operator.lt)
    stack.append(compare_ordered(value, high, operator.gt))
    either(stack, properties)
