"""Compiled filter expressions of consumers, used by both protocols."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from broker_adapter.delivery.api import Filter
from broker_adapter.endpoints.filters.sql92 import MAX_LENGTH, compile_sql
from broker_adapter.endpoints.filters.sql_instructions import BLANKS
from broker_adapter.endpoints.filters.sql_tokens import SqlError
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.v2 import definition_pb2 as pb

#: RocketMQ's ExpressionType. An empty type is TAG.
TAG, SQL92 = "TAG", "SQL92"
#: Maximum number of tags, because every pull hashes each tag.
MAX_TAGS = 8_192
#: Maximum number of words in all cached filters. A word takes about 200 bytes.
MAX_KEPT_WORDS = 1 << 18
_CHARACTERS_PER_WORD = 16
_ALL = Filter()
_TYPES = {pb.FilterType.FILTER_TYPE_UNSPECIFIED: TAG, pb.FilterType.TAG: TAG, pb.FilterType.SQL: SQL92}


def filter_of(expression: pb.FilterExpression) -> Filter:
    """Compile an expression. An empty expression matches all messages.

    Raises Rejected (ILLEGAL_FILTER_EXPRESSION).
    """
    return filter_from(expression.expression or "*", _TYPES.get(expression.type, str(expression.type)))


def filter_from(text: str, expression_type: str) -> Filter:
    """Compile an expression.

    Raises Rejected (ILLEGAL_FILTER_EXPRESSION) if it is invalid or its type is unknown.
    """
    if text == "*":
        return _ALL
    if len(text) > MAX_LENGTH:
        raise _illegal(f"the expression has {len(text)} characters; the limit is {MAX_LENGTH}")
    if expression_type == SQL92:
        return _sql_filters.get(text)
    if expression_type not in ("", TAG):
        raise _illegal(f"filter type {expression_type[:64]} is unknown")
    return _tag_filters.get(text)


def split_tags(text: str) -> list[str]:
    """Split `a || b` as RocketMQ's FilterAPI does. A single `|` or a `*` is part of a tag."""
    return [tag for part in text.split("||") if (tag := part.strip(BLANKS))]


def _compile_tags(text: str) -> Filter:
    """Compile a tag filter. If it has no tag, or only `*`, it matches all messages.

    This includes an expression of blanks, which matches no message in RocketMQ.
    """
    tags = frozenset(split_tags(text))
    if len(tags) > MAX_TAGS:
        raise _illegal(f"the expression has {len(tags)} tags; the limit is {MAX_TAGS}")
    return _ALL if tags <= {"*"} else Filter(tags)


def _compile_sql(text: str) -> Filter:
    try:
        matches, steps = compile_sql(text)
    except SqlError as error:
        raise _illegal(str(error)) from error
    return Filter(matches=matches, steps=steps)


def _illegal(problem: str) -> Rejected:
    return Rejected(Code.ILLEGAL_FILTER_EXPRESSION, problem)


class _FilterCache:
    """A cache of compiled filters by expression. Consumers send their expression with each receive."""

    def __init__(self, compile_filter: Callable[[str], Filter], max_words: int) -> None:
        self._compile = compile_filter
        self._words_left = max_words
        self._filters: OrderedDict[str, Filter] = OrderedDict()
        self._lock = Lock()

    def get(self, text: str) -> Filter:
        """Return the compiled filter. May evict the least recently used filters.

        Raises Rejected for an invalid expression.
        """
        with self._lock:
            found = self._filters.get(text)
            if found is None:
                found = self._filters[text] = self._compile(text)
                self._words_left -= _words(text, found)
                while self._words_left < 0:
                    self._words_left += _words(*self._filters.popitem(last=False))
            else:
                self._filters.move_to_end(text)
            return found


def _words(text: str, found: Filter) -> int:
    return 8 + len(found.tags) + found.steps + len(text) // _CHARACTERS_PER_WORD


_sql_filters = _FilterCache(_compile_sql, MAX_KEPT_WORDS)
_tag_filters = _FilterCache(_compile_tags, MAX_KEPT_WORDS)
