"""Filter expressions of consumers, as the delivery wants them."""

from __future__ import annotations

from functools import lru_cache

from broker_adapter.pop.api import Filter
from broker_adapter.proxy.messages.rejected import Code, Rejected
from broker_adapter.proxy.messages.sql92 import SqlError, compile_sql
from broker_adapter.proxy.v2 import definition_pb2 as pb

MAX_TAGS = 64
MAX_EXPRESSION_LENGTH = 4_096
#: Expressions that are kept compiled: consumers repeat theirs with every receive.
_KEPT = 1_024
_ALL = Filter()


def filter_of(expression: pb.FilterExpression) -> Filter:
    """Rejected (ILLEGAL_FILTER_EXPRESSION)."""
    is_sql = expression.type == pb.FilterType.SQL
    is_known = is_sql or expression.type in (pb.FilterType.TAG, pb.FilterType.FILTER_TYPE_UNSPECIFIED)
    if not is_known and expression.expression not in ("", "*"):
        raise _illegal(f"filters of the type {expression.type} are not known")
    return filter_from(expression.expression, is_sql=is_sql)


def filter_from(text: str, *, is_sql: bool) -> Filter:
    """An expression of SQL92, or of tags. Rejected (ILLEGAL_FILTER_EXPRESSION)."""
    if not text or text == "*":
        return _ALL
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise _illegal(f"{len(text)} characters, more than {MAX_EXPRESSION_LENGTH}")
    return _sql(text) if is_sql else _tags(text)


@lru_cache(_KEPT)
def _tags(text: str) -> Filter:
    tags = [part.strip() for part in text.split("||")]
    if tags == ["*"]:
        return _ALL
    if len(tags) > MAX_TAGS or any(not tag or tag == "*" or "|" in tag for tag in tags):
        raise _illegal(f'tags are "*" or "a || b", at most {MAX_TAGS}; found {text[:64]!r}')
    return Filter(frozenset(tags))


@lru_cache(_KEPT)
def _sql(text: str) -> Filter:
    try:
        matches, steps = compile_sql(text)
        return Filter(matches=matches, steps=steps)
    except SqlError as error:
        raise _illegal(str(error)) from error


def _illegal(problem: str) -> Rejected:
    return Rejected(Code.ILLEGAL_FILTER_EXPRESSION, problem)
