"""SQL92 filters with the semantics of RocketMQ 5.5. They are expressions over the properties of a message.

    a = 'x' AND (n BETWEEN 1 AND 10 OR NOT (TAGS IN ('t', 'u'))) AND b IS NOT NULL

Operators from the lowest to the highest precedence: OR; AND; = <> IS [NOT] NULL; < <= > >= [NOT] BETWEEN, IN,
CONTAINS, STARTSWITH, ENDSWITH; NOT + -. So `NOT s IS NULL` is `(NOT s) IS NULL`. Keywords ignore case,
property names do not. As in RocketMQ, parsing stops at the first word that cannot continue the expression, so
`n = 3d` is `n = 3`.

A property is text, or NULL if the message lacks it. A comparison with a number or a Boolean converts the
text. A comparison with NULL is UNKNOWN, with three exceptions: two NULLs are equal, a value never equals a
NULL on its right, and CONTAINS, STARTSWITH and ENDSWITH of NULL are FALSE, even if NOT precedes the operator.
A message matches if the expression is TRUE. `tests/interop/test_filters.py` compares these rules with
RocketMQ.

RocketMQ drops a message if a comparison throws an exception. In this module, such a comparison is UNKNOWN, or
has a result (`i > 2` with "10.5", `TRUE = b`, `NOT s = 'a'`). See docs/deviations.md.

An expression is compiled into a program for a stack machine. Neither the parser nor the machine is recursive,
and the machine executes each word once. The number of words therefore bounds the cost of an expression of any
depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from math import isinf
from typing import NamedTuple

from broker_adapter.endpoints.filters import sql_instructions as instructions
from broker_adapter.endpoints.filters.sql_instructions import Instruction, Properties, Value, is_number
from broker_adapter.endpoints.filters.sql_tokens import (
    NEGATED,
    TEXT_WORDS,
    SqlError,
    Token,
    Tokens,
    unexpected,
)

#: Maximum length of an expression, in characters. Clients may send it with each receive or pull.
MAX_LENGTH = 64 << 10
_MAX_LONG, _LONG_DIGITS = (1 << 63) - 1, 19


class Compiled(NamedTuple):
    """A compiled expression. `steps`: maximum cost of one call of `matches`, in words of the expression."""

    matches: Callable[[Properties], bool]
    steps: int


def compile_sql(text: str) -> Compiled:
    """Compile an expression. Raises SqlError if it is invalid."""
    if len(text) > MAX_LENGTH:
        raise SqlError(f"the expression has {len(text)} characters; the limit is {MAX_LENGTH}")
    tokens = Tokens(text)
    program = tuple(_Parser(tokens).program())

    def matches(properties: Properties) -> bool:
        stack: list[Value] = []
        for instruction in program:
            instruction(stack, properties)
        return stack[0] is True

    return Compiled(matches, tokens.count)


class _Kind(Enum):
    PROPERTY = auto()
    CONSTANT = auto()  # a number or a string
    TRUTH = auto()  # TRUE, FALSE, NULL
    CONDITION = auto()  # the result of an operator that can be TRUE
    NEGATED = auto()  # the result of a minus


class _Operand(NamedTuple):
    kind: _Kind
    at: int
    value: Value = None  # of a constant
    property: str | None = None
    negated_property: str | None = None  # the property, if the operand is NOT of a property


class _Pending(NamedTuple):
    """An operator whose right operand is still missing, or an open parenthesis."""

    word: str
    level: int
    at: int


_GROUP, _OR, _AND, _EQUALITY, _COMPARISON, _UNARY = range(6)
_LEVELS = {"OR": _OR, "AND": _AND, "=": _EQUALITY, "<>": _EQUALITY, "IS": _EQUALITY}
_LEVELS |= dict.fromkeys(["<", "<=", ">", ">=", "NOT", *NEGATED], _COMPARISON)
#: BETWEEN before and after its lower bound.
_LOW, _NOT_LOW, _HIGH, _NOT_HIGH = "BETWEEN", "NOT BETWEEN", "BETWEEN AND", "NOT BETWEEN AND"
_NEXT_BOUND = {_LOW: _HIGH, _NOT_LOW: _NOT_HIGH}


class _Parser:
    """An operator precedence parser. It emits instructions in postfix order."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._program: list[Instruction] = []
        self._operands: list[_Operand] = []
        self._pending: list[_Pending] = []
        self._open = 0  # parentheses

    def program(self) -> list[Instruction]:
        self._read_operand()
        while self._read_operators():
            self._read_operand()
        self._reduce(_OR)
        if self._pending:
            raise unexpected(self._tokens.peek(), "a closing parenthesis")
        self._cast_to_condition()
        return self._program

    def _read_operand(self) -> None:
        while True:
            token = self._tokens.next()
            is_operator = token.kind in {"sign", "word"}
            if is_operator and token.text in {"-", "NOT"}:
                self._pending.append(_Pending(token.text, _UNARY, token.at))
            elif is_operator and token.text == "(":
                self._pending.append(_Pending("(", _GROUP, token.at))
                self._open += 1
            elif not (is_operator and token.text == "+"):
                break
        if token.kind == "name":
            self._program.append(instructions.push_property(token.text))
            self._operands.append(_Operand(_Kind.PROPERTY, token.at, property=token.text))
        else:
            value, kind = _constant(token)
            self._program.append(instructions.push_constant(value))
            self._operands.append(_Operand(kind, token.at, value))
        self._reduce(_UNARY)

    def _read_operators(self) -> bool:
        """Read operators up to one that needs a right operand. Return False at the end of the expression."""
        strongest = _COMPARISON
        while True:
            if self._pending and self._pending[-1].word in _NEXT_BOUND:
                word, level, at = self._pending.pop()
                self._expect("word", "AND", "AND of BETWEEN")
                self._pending.append(_Pending(_NEXT_BOUND[word], level, at))
                return True
            token = self._tokens.peek()
            level = _LEVELS.get(token.text, 0) if token.kind in {"sign", "word"} else 0
            if token.kind == "sign" and token.text == ")" and self._open:
                self._close_group()
                strongest = _COMPARISON
            elif not _GROUP < level <= strongest:
                return False
            elif self._read_operator(level):
                return True
            else:
                strongest = level

    def _close_group(self) -> None:
        self._tokens.next()
        self._reduce(_OR)
        self._pending.pop()
        self._open -= 1
        self._reduce(_UNARY)

    def _read_operator(self, level: int) -> bool:
        """Read an operator. Return True if a right operand follows."""
        token = self._tokens.next()
        word, is_negated = token.text, False
        if word == "NOT":
            token, is_negated = self._tokens.next(), True
            word = token.text
            if token.kind != "word" or word not in NEGATED:
                raise unexpected(token, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
        self._reduce(level)
        if word in TEXT_WORDS:
            self._program.append(instructions.compare_texts(word, self._string(), is_negated=is_negated))
        elif word == "IN":
            if self._operands[-1].kind is not _Kind.PROPERTY:
                raise SqlError(f"character {token.at + 1}: the left side of IN must be a property")
            self._program.append(instructions.find_in(self._tokens.next_strings(), is_negated=is_negated))
        elif word == "IS":
            if self._tokens.peek().text == "NOT" and self._tokens.peek().kind == "word":
                self._tokens.next()
                is_negated = True
            self._expect("word", "NULL", "NULL after IS")
            self._program.append(instructions.is_not_null if is_negated else instructions.is_null)
        else:
            if word in {"AND", "OR"}:
                self._cast_to_condition()
            word = _NOT_LOW if is_negated else word
            self._pending.append(_Pending(word, level, token.at))
            return True
        self._operands[-1] = _Operand(_Kind.CONDITION, token.at)
        return False

    def _reduce(self, level: int) -> None:
        """Apply the pending operators with this precedence or a higher one."""
        while self._pending and self._pending[-1].level >= level:
            word, _, at = self._pending.pop()
            if word == "NOT":
                operand = self._operands[-1]
                self._cast_to_condition()
                self._program.append(instructions.negate)
                self._replace(1, _Kind.CONDITION, at, operand.property)
            elif word == "-":
                self._program.append(instructions.change_sign)
                self._replace(1, _Kind.NEGATED, at)
            elif word in {"AND", "OR"}:
                self._cast_to_condition()
                self._program.append(instructions.both if word == "AND" else instructions.either)
                self._replace(2, _Kind.CONDITION, at)
            elif word in {_HIGH, _NOT_HIGH}:
                self._reduce_between(at, is_negated=word == _NOT_HIGH)
            else:
                self._reduce_comparison(word, at)

    def _reduce_between(self, at: int, *, is_negated: bool) -> None:
        operands = self._operands[-3:]
        for operand in operands:
            _check_ordered(operand)
        low, high = operands[1].value, operands[2].value
        if (
            not is_negated
            and is_number(low)
            and is_number(high)
            and not instructions.compare_ordered(low, high, instructions.ORDERS["<="])
        ):
            raise SqlError(
                f"character {at + 1}: BETWEEN {low} AND {high}: the lower bound exceeds the upper bound"
            )
        self._program.append(instructions.compare_outside if is_negated else instructions.compare_range)
        self._replace(3, _Kind.CONDITION, at)

    def _reduce_comparison(self, word: str, at: int) -> None:
        left, right = self._operands[-2:]
        if word not in {"=", "<>"}:
            _check_ordered(left)
            _check_ordered(right)
            self._program.append(instructions.compare_order(instructions.ORDERS[word]))
        else:
            for operand in (left, right):
                if operand.kind is _Kind.TRUTH and operand.value is None:
                    raise SqlError(f"character {operand.at + 1}: use IS NULL to compare with NULL")
            if left.kind is _Kind.TRUTH and right.kind is _Kind.CONSTANT:
                raise SqlError(f"character {at + 1}: {left.value} and {right.value!r} cannot be compared")
            name = left.negated_property
            self._program.append(
                instructions.compare_equal if name is None else instructions.compare_with_negated(name)
            )
            if word == "<>":
                self._program.append(instructions.negate)
        self._replace(2, _Kind.CONDITION, at)

    def _replace(self, count: int, kind: _Kind, at: int, negated_property: str | None = None) -> None:
        self._operands[-count:] = [_Operand(kind, at, negated_property=negated_property)]

    def _cast_to_condition(self) -> None:
        """Convert the last operand to a condition, which is TRUE, FALSE or UNKNOWN."""
        kind, at, *_ = self._operands[-1]
        if kind in {_Kind.CONSTANT, _Kind.NEGATED}:
            raise SqlError(f"character {at + 1}: neither a condition nor a property")
        if kind is _Kind.PROPERTY:
            self._program.append(instructions.cast_to_condition)
            self._operands[-1] = _Operand(_Kind.CONDITION, at)

    def _expect(self, kind: str, text: str, expected: str) -> None:
        token = self._tokens.next()
        if (token.kind, token.text) != (kind, text):
            raise unexpected(token, expected)

    def _string(self) -> str:
        token = self._tokens.next()
        if token.kind != "string":
            raise unexpected(token, "a text in quotes")
        return token.text


def _constant(token: Token) -> tuple[Value, _Kind]:
    if token.kind == "string":
        return token.text, _Kind.CONSTANT
    if token.kind == "integer":
        return _integer(token), _Kind.CONSTANT
    if token.kind == "float":
        return _float(token), _Kind.CONSTANT
    if token.kind == "word" and token.text in {"TRUE", "FALSE"}:
        return token.text == "TRUE", _Kind.TRUTH
    if token.kind == "word" and token.text == "NULL":
        return None, _Kind.TRUTH
    raise unexpected(token, "a property or a constant")


def _integer(token: Token) -> int:
    digits = token.text.rstrip("lL")
    number = int(digits) if len(digits) <= _LONG_DIGITS else _MAX_LONG + 1
    if number > _MAX_LONG:
        raise SqlError(f"character {token.at + 1}: {digits[:32]} exceeds the maximum {_MAX_LONG}")
    return number


def _float(token: Token) -> float:
    """Parse a float. Rejects numbers outside the range of a double. RocketMQ also rejects 0.0."""
    number = float(token.text)
    mantissa = re.split("[eE]", token.text)[0]
    if isinf(number) or (number == 0 and mantissa.strip("0.")):
        raise SqlError(f"character {token.at + 1}: {token.text[:32]} is outside the range of numbers")
    return number


def _check_ordered(operand: _Operand) -> None:
    kind, at, value, *_ = operand
    is_constant = kind in {_Kind.CONSTANT, _Kind.TRUTH}
    if kind is _Kind.CONDITION or (is_constant and not is_number(value)):
        raise SqlError(f"character {at + 1}: only numbers and properties can be compared with < or >")
