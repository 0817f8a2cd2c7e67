"""Streaming reader for EDN, the notation of Jepsen's histories.

Supports the subset that occurs in histories. Keywords and symbols become strings (keywords without their
colon), sets and lists become lists, and tags are dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

_TOKEN = re.compile(
    r"""(?P<blank>[\s,]+|;[^\n]*)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<open>\#\{|[(\[{])
    |(?P<close>[)\]}])
    |(?P<discard>\#_)
    |(?P<tag>\#[A-Za-z][\w./-]*)
    |(?P<character>\\(?:newline|space|tab|return|u[0-9a-fA-F]{4}|\S))
    |(?P<atom>[^\s,;"()\[\]{}\\]+)""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"[+-]?\d+N?")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?M?")
_CLOSING = {"(": ")", "[": "]", "{": "}", "#{": "}"}
_CONSTANTS = {"nil": None, "true": True, "false": False}
_CHARACTERS = {"newline": "\n", "space": " ", "tab": "\t", "return": "\r"}


#: Maximum number of digits of a number, below the limit of Python's `int`.
_MAX_DIGITS = 1000
#: Maximum nesting of collections. Histories need a few levels; code that prints values is recursive.
MAX_DEPTH = 200


class EdnError(ValueError):
    """Raised if the text is not valid EDN. The message names the line."""


def forms(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Yield (line at which it starts, value) for every form. A single vector or list around all forms is
    ignored.

    Only one form is in memory at a time.

    Raises:
        EdnError: the text is not valid EDN, or ends within a form.
    """
    reader = _FormReader()
    number = 0
    for number, line in enumerate(lines, 1):
        offset = 0
        while offset < len(line):
            match = _TOKEN.match(line, offset)
            if match is None:
                raise EdnError(f"line {number}: cannot read {line[offset : offset + 20]!r}")
            offset = match.end()
            assert match.lastgroup is not None
            if match.lastgroup != "blank" and (form := reader.add_token(match.lastgroup, match[0], number)):
                yield form
    reader.end(number)


class _OpenCollection:
    """A collection that is not yet closed."""

    def __init__(self, bracket: str, line: int, discards: int) -> None:
        self.bracket = bracket
        self.line = line
        self.items: list[Any] = []
        #: Number of pending discards (`#_`) at its start; the collection is subject to the first.
        self.discards = discards


class _FormReader:
    def __init__(self) -> None:
        self._stack: list[_OpenCollection] = []
        self._around: str | None = None
        self._begun = False
        self._discards = 0

    def add_token(self, kind: str, text: str, line: int) -> tuple[int, Any] | None:
        """Process a token. Return the form that it completes, with the line of its start."""
        if kind == "tag":
            return None
        if kind == "discard":
            self._discards += 1
            return None
        if kind == "open":
            if not self._begun and text in "[(":
                self._begun, self._around = True, text
                return None
            self._begun = True
            if len(self._stack) >= MAX_DEPTH:
                raise EdnError(f"line {line}: collections are nested more than {MAX_DEPTH} levels deep")
            self._stack.append(_OpenCollection(text, line, self._discards))
            self._discards = 0
            return None
        if kind == "close":
            return self._close(text, line)
        self._begun = True
        return self._value(_atom(kind, text, line), line)

    def _close(self, text: str, line: int) -> tuple[int, Any] | None:
        if not self._stack:
            if self._around is None or _CLOSING[self._around] != text:
                raise EdnError(f"line {line}: {text} has no matching opening bracket")
            self._around = None
            return None
        opened = self._stack.pop()
        if _CLOSING[opened.bracket] != text:
            raise EdnError(f"line {line}: {text} does not match {opened.bracket} on line {opened.line}")
        self._discards = opened.discards
        return self._value(_collection(opened, line), opened.line)

    def _value(self, value: Any, line: int) -> tuple[int, Any] | None:
        if self._discards:
            self._discards -= 1
            return None
        if self._stack:
            self._stack[-1].items.append(value)
            return None
        return line, value

    def end(self, line: int) -> None:
        if self._stack or self._around is not None:
            raise EdnError(f"line {line}: the text ends within an unclosed form")


def _collection(opened: _OpenCollection, line: int) -> Any:
    if opened.bracket != "{":
        return opened.items
    if len(opened.items) % 2:
        raise EdnError(f"line {line}: a map has a key without a value")
    keys = [tuple(key) if isinstance(key, list) else key for key in opened.items[::2]]
    try:
        return dict(zip(keys, opened.items[1::2], strict=True))
    except TypeError as error:
        raise EdnError(f"line {line}: invalid key in a map: {error}") from None


def _atom(kind: str, text: str, line: int) -> Any:
    if kind == "string":
        try:
            return json.loads(text, strict=False)
        except ValueError:
            raise EdnError(f"line {line}: invalid string {text[:40]}") from None
    if kind == "character":
        name = text[1:]
        return chr(int(name[1:], 16)) if len(name) == 5 and name[0] == "u" else _CHARACTERS.get(name, name)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise EdnError(f"line {line}: a number has too many digits ({len(text)})")
        return int(text.rstrip("N"))
    if _NUMBER.fullmatch(text):
        return float(text.rstrip("M"))
    return text.removeprefix(":")
