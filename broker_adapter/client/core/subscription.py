"""The message filter of a consumer: tags, or an SQL92 condition. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from broker_adapter.client.core.checks import check_type
from broker_adapter.client.core.values import MessageExt
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.wire.java_hash import java_hash

ALL: Final = "*"
TAG, SQL92 = "TAG", "SQL92"
_MAX_TAGS = 1024


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """An SQL92 condition on properties of messages, such as `price > 10 AND region = 'west'`.

    The broker evaluates it (RocketMQ: `enablePropertyFilter`).
    """

    condition: str


#: `*`, tags separated by `||`, or an SQL condition.
Expression: TypeAlias = str | SqlFilter


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and its filter. `version`: ms since 1970; brokers keep the newest."""

    topic: str
    expression: Expression = ALL
    version: int = 0

    def __post_init__(self) -> None:
        """Validate the expression.

        Raises IllegalMessage (REQUEST_MALFORMED) if it is not an expression, has no tags or too many, or if
        the SQL condition is empty.
        """
        check_type("an expression", self.text, str)
        if self.kind == SQL92:
            if not self.text.strip():
                raise IllegalMessage(Status.REQUEST_MALFORMED, "the SQL condition is empty")
        elif self.expression != ALL and not 0 < len(self.tags) <= _MAX_TAGS:
            raise IllegalMessage(
                Status.REQUEST_MALFORMED,
                f"the expression {self.text[:100]!r} is neither * nor a list of tags separated by ||",
            )

    @property
    def kind(self) -> str:
        """RocketMQ's ExpressionType."""
        return SQL92 if isinstance(self.expression, SqlFilter) else TAG

    @property
    def text(self) -> str:
        return self.expression.condition if isinstance(self.expression, SqlFilter) else self.expression

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the filter. Empty: the client accepts all messages that the broker sends."""
        if self.expression == ALL or self.kind == SQL92:
            return ()
        return tuple(tag for part in self.text.split("||") if (tag := part.strip()))

    def wants(self, message: MessageExt) -> bool:
        """Return True if the message matches. Needed because brokers compare only hashes of tags."""
        return not self.tags or message.tags in self.tags

    def to_json(self) -> dict[str, object]:
        """Encode RocketMQ's SubscriptionData."""
        return {
            "classFilterMode": False,
            "codeSet": [java_hash(tag) for tag in self.tags],
            "expressionType": self.kind,
            "subString": self.text,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }
