"""The lexer of SQL92 filters, following RocketMQ's SelectorParser.jj."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: Maximum number of words. Compilation blocks the event loop for about 4 µs per word.
MAX_WORDS = 4_096
#: Maximum number of digits in a number. No double has more digits before its decimal point.
MAX_DIGITS = 309


class SqlError(ValueError):
    """An expression that is invalid or too large. The text contains the position and the reason."""


class Token(NamedTuple):
    kind: str  # word, name, integer, float, string, sign, end
    text: str
    at: int


_BLANK = r"[\x20\t\n\r\f]++|/\*[^*]*+(?:\*(?!/)[^*]*+)*\*/"
#: A line comment needs a line end. Without one, two minus signs are operators.
_BLANK_IN_LINES = rf"{_BLANK}|--[^\n\r]*+[\n\r]"
_STRING = "'[^']*+(?:''[^']*+)*'"
_WORD = rf"""(?P<endless>[0-9]{{{MAX_DIGITS + 1}}})
  | (?P<float>[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?|\.[0-9]++(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++)
  | (?P<integer>0|[1-9][0-9]*[lL]?)
  | (?P<string>{_STRING})
  | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
  | (?P<sign><>|<=|>=|[=<>(),+-])
  | (?P<end>\Z)
"""
_PATTERN = re.compile(rf"(?:{_BLANK})*(?:{_WORD})", re.VERBOSE)
_PATTERN_IN_LINES = re.compile(rf"(?:{_BLANK_IN_LINES})*(?:{_WORD})", re.VERBOSE)
_PARTS = re.compile(rf"{_STRING}|{_BLANK_IN_LINES}")
_LIST = re.compile("S\\(S'(?:S,S')*S\\)".replace("S", f"(?:{_BLANK_IN_LINES})*").replace("'", _STRING))
TEXT_WORDS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
NEGATED: Final = ("BETWEEN", "IN", *TEXT_WORDS)
_WORDS = frozenset({"AND", "OR", "NOT", "IS", "NULL", "TRUE", "FALSE", *NEGATED})


class Tokens:
    """A lazy tokenizer. It does not read beyond the end of the expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        self._ahead: list[Token] = []
        self.count = 0

    def peek(self, distance: int = 0) -> Token:
        while len(self._ahead) <= distance:
            self._ahead.append(self._read())
        return self._ahead[distance]

    def next(self) -> Token:
        token = self.peek()
        del self._ahead[0]
        return token

    def _read(self) -> Token:
        self.count += 1
        if self.count > MAX_WORDS:
            raise SqlError(f"the expression has more than {MAX_WORDS} words")
        pattern = _PATTERN if self._at > self._last_line_end else _PATTERN_IN_LINES
        match = pattern.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise SqlError(f"character {self._at + 1}: not a valid word: {self._text[self._at :][:16]!r}")
        kind, text, at = match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)
        if kind == "endless":
            raise SqlError(f"character {at + 1}: the number has more than {MAX_DIGITS} digits")
        self._at = match.end()
        if kind == "name" and text.upper() in _WORDS:
            kind, text = "word", text.upper()
        elif kind == "string":
            text = _unquoted(text)
        return Token(kind, text, at)

    def next_strings(self) -> frozenset[str]:
        """Read a list of strings in parentheses.

        The list counts as one word, because evaluating it takes one lookup per message.
        """
        match = _LIST.match(self._text, self._at)
        if match is None:
            raise SqlError(f"character {self._at + 1}: expected a list of quoted strings in parentheses")
        self._at = match.end()
        return frozenset(_unquoted(one) for one in _PARTS.findall(match[0]) if one[0] == "'")


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def unexpected(token: Token, expected: str) -> SqlError:
    found = repr(token.text[:32]) if token.kind != "end" else "the end"
    return SqlError(f"character {token.at + 1}: expected {expected}, found {found}")
