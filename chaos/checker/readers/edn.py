"""Reads EDN, the notation of Jepsen's histories, form by form.

What a history holds, and no more: keywords and symbols become text (keywords without their colon), sets and
lists become lists, the tag of a tagged value is dropped.
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


#: Of a number: more than any history has, and fewer than Python refuses.
_MOST_DIGITS = 1000
#: Collections within each other. Histories have a few; what writes values is recursive.
MAX_DEPTH = 200


class EdnError(ValueError):
    """This is no EDN; the text names the line."""


def forms(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """(line on which it begins, value) of every form. One vector or list around all of them is looked
    through.

    Holds one form at a time, however long the text is.

    Raises:
        EdnError: the text is no EDN, or ends within a form.
    """
    reader = _Reader()
    number = 0
    for number, line in enumerate(lines, 1):
        at = 0
        while at < len(line):
            match = _TOKEN.match(line, at)
            if match is None:
                raise EdnError(f"line {number}: cannot read {line[at : at + 20]!r}")
            at = match.end()
            assert match.lastgroup is not None
            if match.lastgroup != "blank" and (found := reader.take(match.lastgroup, match[0], number)):
                yield found
    reader.end(number)


class _Open:
    """A collection that is not closed yet."""

    def __init__(self, bracket: str, line: int, discards: int) -> None:
        self.bracket = bracket
        self.line = line
        self.items: list[Any] = []
        #: How many values were to be dropped (`#_`) when it began: it is the first of them.
        self.discards = discards


class _Reader:
    def __init__(self) -> None:
        self._stack: list[_Open] = []
        self._around: str | None = None
        self._begun = False
        self._discards = 0

    def take(self, kind: str, text: str, line: int) -> tuple[int, Any] | None:
        """One token; a form that it completes, and the line on which that began."""
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
                raise EdnError(f"line {line}: more than {MAX_DEPTH} collections within each other")
            self._stack.append(_Open(text, line, self._discards))
            self._discards = 0
            return None
        if kind == "close":
            return self._close(text, line)
        self._begun = True
        return self._value(_atom(kind, text, line), line)

    def _close(self, text: str, line: int) -> tuple[int, Any] | None:
        if not self._stack:
            if self._around is None or _CLOSING[self._around] != text:
                raise EdnError(f"line {line}: {text} closes nothing")
            self._around = None
            return None
        opened = self._stack.pop()
        if _CLOSING[opened.bracket] != text:
            raise EdnError(f"line {line}: {text} closes {opened.bracket} of line {opened.line}")
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
            raise EdnError(f"line {line}: the text ends within a form")


def _collection(opened: _Open, line: int) -> Any:
    if opened.bracket != "{":
        return opened.items
    if len(opened.items) % 2:
        raise EdnError(f"line {line}: a map with a key and no value")
    keys = [tuple(key) if isinstance(key, list) else key for key in opened.items[::2]]
    try:
        return dict(zip(keys, opened.items[1::2], strict=True))
    except TypeError as error:
        raise EdnError(f"line {line}: a map with a key that is none: {error}") from None


def _atom(kind: str, text: str, line: int) -> Any:
    if kind == "string":
        try:
            return json.loads(text, strict=False)
        except ValueError:
            raise EdnError(f"line {line}: cannot read the string {text[:40]}") from None
    if kind == "character":
        name = text[1:]
        return chr(int(name[1:], 16)) if len(name) == 5 and name[0] == "u" else _CHARACTERS.get(name, name)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            raise EdnError(f"line {line}: a number of {len(text)} digits")
        return int(text.rstrip("N"))
    if _NUMBER.fullmatch(text):
        return float(text.rstrip("M"))
    return text.removeprefix(":")
