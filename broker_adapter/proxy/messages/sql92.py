"""RocketMQ's SQL92 filters: an expression over the properties of a message, compiled once.

    a = 'x' AND (n BETWEEN 1 AND 10 OR NOT TAGS IN ('t', 'u')) AND b IS NOT NULL

Operators, the weakest first: OR; AND; NOT; and = <> < <= > >=, [NOT] BETWEEN .. AND .., [NOT] IN (..),
IS [NOT] NULL, [NOT] CONTAINS, STARTSWITH, ENDSWITH. Words are written in any case; names of properties are
not. A quote in a string is doubled.

Properties are text. Beside a number they are read as one, beside TRUE and FALSE as one of these; what cannot
be read so, and what is not there, makes a comparison UNKNOWN. AND, OR and NOT know three values, and a
message matches if the whole is TRUE (SQL92, 8.12).

Comparisons do not chain: `a = b = c` is none, `(a = b) = c` is. So every word of an expression is looked at
once at most for a message, and the length of the text bounds what that costs.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

MAX_LENGTH = 4_096
MAX_DEPTH = 64
#: An expression is compiled in one step of the event loop.
MAX_WORDS = 1_024
#: A message is looked at by nested calls, one for each.
MAX_OPERATORS = 256

Properties: TypeAlias = Mapping[str, str]
#: None: NULL, or UNKNOWN.
Value: TypeAlias = str | int | float | bool | None
Node: TypeAlias = Callable[[Properties], Value]


class SqlError(ValueError):
    """The expression is none, or larger than allowed; the message says where and why."""


class Compiled(NamedTuple):
    """`matches`: whether a message with these properties does. `steps`: what that costs at most, in words."""

    matches: Callable[[Properties], bool]
    steps: int


def compile_sql(text: str) -> Compiled:
    """SqlError."""
    if len(text) > MAX_LENGTH:
        raise SqlError(f"an expression of {len(text)} characters; at most {MAX_LENGTH} are allowed")
    tokens = _tokens(text)
    parser = _Parser(tokens)
    node = parser.expression(0, 0)
    parser.expect("end", "the end of the expression")
    return Compiled(lambda properties: _truth(node(properties)) is True, len(tokens))


# -- words


class _Token(NamedTuple):
    kind: str  # word, name, number, string, sign, end
    text: str
    at: int


_PATTERN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
      | '(?P<string>(?:[^']|'')*)'
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<sign><>|<=|>=|[=<>(),+-])
    )""",
    re.VERBOSE,
)
_WORDS = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)


def _tokens(text: str) -> list[_Token]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _PATTERN.match(text, at)
        kind = match.lastgroup if match is not None else None
        if match is None or kind is None:
            raise SqlError(f"character {at + 1}: {text[at : at + 16]!r} is nothing of an expression")
        value, start = match[kind], match.start(kind)
        if kind == "name" and value.upper() in _WORDS:
            kind, value = "word", value.upper()
        found.append(_Token(kind, value, start))
        if len(found) > MAX_WORDS:
            raise SqlError(f"more than {MAX_WORDS} words")
        at = match.end()
    return [*found, _Token("end", "", end)]


# -- the parser

_OR, _AND, _NOT, _COMPARISON = 1, 2, 3, 4
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_POWER = {"OR": _OR, "AND": _AND, "NOT": _COMPARISON, "BETWEEN": _COMPARISON, "IN": _COMPARISON}
_POWER |= {"IS": _COMPARISON} | dict.fromkeys([*_COMPARE, *_TEXT], _COMPARISON)


class _Parser:
    """A Pratt parser: every operator binds what stands to its left with a power."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._operators = 0

    def expression(self, power: int, depth: int) -> Node:
        """All that binds more tightly than `power`."""
        if depth > MAX_DEPTH:
            raise SqlError(f"more than {MAX_DEPTH} expressions within each other")
        left = self._prefix(depth + 1)
        is_comparison = False
        while (binds := self._power()) > power:
            if is_comparison and binds == _COMPARISON:
                raise self._wrong(self._next(), "AND, OR or the end, as comparisons do not chain")
            left = self._infix(left, binds, depth + 1)
            is_comparison = binds == _COMPARISON
        return left

    def expect(self, text: str, what: str) -> None:
        token = self._next()
        if text not in ((token.text,) if token.kind in {"word", "sign"} else (token.kind,)):
            raise self._wrong(token, what)

    def _prefix(self, depth: int) -> Node:
        token = self._next()
        if token.text == "NOT" and token.kind == "word":
            return _not(self.expression(_NOT, depth))
        if token.text == "(" and token.kind == "sign":
            inner = self.expression(0, depth)
            self.expect(")", "a closing parenthesis")
            return inner
        if token.kind == "name":
            name = token.text
            return lambda properties: properties.get(name)
        constant = self._constant(token)
        return lambda _: constant

    def _infix(self, left: Node, binds: int, depth: int) -> Node:
        token = self._next()
        word = token.text
        self._operators += 1
        if self._operators > MAX_OPERATORS:
            raise SqlError(f"more than {MAX_OPERATORS} operators")
        if word == "OR":
            return _or(left, self.expression(binds, depth))
        if word == "AND":
            return _and(left, self.expression(binds, depth))
        if word == "NOT":
            behind = self._next()
            word = behind.text
            if behind.kind != "word" or word not in {"BETWEEN", "IN", *_TEXT}:
                raise self._wrong(token, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH behind NOT")
            return _not(self._predicate(word, left, binds, depth))
        return self._predicate(word, left, binds, depth)

    def _predicate(self, word: str, left: Node, binds: int, depth: int) -> Node:
        match word:
            case "BETWEEN":
                low = self.expression(_COMPARISON, depth)
                self.expect("AND", "AND of BETWEEN")
                high = self.expression(binds, depth)
                return _between(left, low, high)
            case "IN":
                return _one_of(left, self._list())
            case "IS":
                return self._is_null(left)
            case _ if word in _TEXT:
                return _text_compared(left, self.expression(binds, depth), _TEXT[word])
        return _compared(left, self.expression(binds, depth), _COMPARE[word])

    def _is_null(self, left: Node) -> Node:
        token = self._tokens[self._at]
        is_negated = token.kind == "word" and token.text == "NOT"
        self._at += is_negated
        self.expect("NULL", "NULL behind IS")
        return lambda properties: (left(properties) is None) != is_negated

    def _list(self) -> list[Value]:
        self.expect("(", "a list in parentheses")
        found = [self._constant(self._next())]
        while (token := self._next()).text == "," and token.kind == "sign":
            found.append(self._constant(self._next()))
        if token.text != ")" or token.kind != "sign":
            raise self._wrong(token, "a comma or a closing parenthesis")
        return found

    def _constant(self, token: _Token) -> Value:
        sign = 1
        if token.kind == "sign" and token.text in "+-":
            sign = -1 if token.text == "-" else 1
            token = self._next()
            if token.kind != "number":
                raise self._wrong(token, "a number")
        if token.kind == "number":
            return sign * _number(token.text)
        if token.kind == "string":
            return token.text.replace("''", "'")
        if token.kind == "word" and token.text in {"TRUE", "FALSE"}:
            return token.text == "TRUE"
        raise self._wrong(token, "a property or a constant")

    def _power(self) -> int:
        token = self._tokens[self._at]
        return _POWER.get(token.text, 0) if token.kind in {"word", "sign"} else 0

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    @staticmethod
    def _wrong(token: _Token, expected: str) -> SqlError:
        found = repr(token.text[:32]) if token.kind != "end" else "the end"
        return SqlError(f"character {token.at + 1}: expected {expected}, found {found}")


# -- values

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\Z", re.ASCII)
_LONGEST_TRUTH = len("false")
_MAX_DIGITS = 64  # of one number: longer ones would take their time


def _number(text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise SqlError(f"{text[:16]}...: a number has at most {_MAX_DIGITS} digits")
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _read_as(text: str, model: Value) -> Value:
    """The text of a property as a value like `model`."""
    if isinstance(model, str):
        return text
    if isinstance(model, bool):
        return _truth(text)
    return _number(text) if len(text) <= _MAX_DIGITS and _NUMBER.match(text) else None


def _apply(compare: Callable[[Any, Any], bool], a: Value, b: Value) -> bool | None:
    if isinstance(a, str):
        a = _read_as(a, b)
    elif isinstance(b, str):
        b = _read_as(b, a)
    if a is None or b is None:
        return None
    if isinstance(a, bool) != isinstance(b, bool):
        return None
    # Texts and truth have no order.
    if isinstance(a, str | bool) and compare not in (operator.eq, operator.ne):
        return None
    return compare(a, b)


def _compared(left: Node, right: Node, compare: Callable[[Any, Any], bool]) -> Node:
    def evaluate(properties: Properties) -> Value:
        a, b = left(properties), right(properties)
        return None if a is None or b is None else _apply(compare, a, b)

    return evaluate


def _between(node: Node, low: Node, high: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = node(properties)
        if value is None:
            return None
        least, most = low(properties), high(properties)
        above = None if least is None else _apply(operator.ge, value, least)
        below = None if most is None else _apply(operator.le, value, most)
        if above is False or below is False:
            return False
        return None if above is None or below is None else True

    return evaluate


def _text_compared(left: Node, right: Node, compare: Callable[[str, str], bool]) -> Node:
    def evaluate(properties: Properties) -> Value:
        a, b = left(properties), right(properties)
        return compare(a, b) if isinstance(a, str) and isinstance(b, str) else None

    return evaluate


def _one_of(left: Node, values: list[Value]) -> Node:
    def evaluate(properties: Properties) -> Value:
        found = left(properties)
        if found is None:
            return None
        results = [_apply(operator.eq, found, value) for value in values]
        return True if True in results else (None if None in results else False)

    return evaluate


def _truth(value: Value) -> bool | None:
    """What stands where a condition is expected: a property of this text, or a condition."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower()) if len(value) <= _LONGEST_TRUTH else None
    return value if isinstance(value, bool) else None


def _not(node: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = _truth(node(properties))
        return None if value is None else not value

    return evaluate


def _and(left: Node, right: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        a = _truth(left(properties))
        if a is False:
            return False
        b = _truth(right(properties))
        return False if b is False else (None if a is None or b is None else True)

    return evaluate


def _or(left: Node, right: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        a = _truth(left(properties))
        if a is True:
            return True
        b = _truth(right(properties))
        return True if b is True else (None if a is None or b is None else False)

    return evaluate
