"""Which messages of a topic a consumer wants: an expression of tags. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker_adapter.client.core.values import MessageExt
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.format.java_hash import java_hash

ALL: Final = "*"
_MAX_TAGS = 1024


@dataclass(frozen=True, slots=True)
class Subscription:
    """`expression`: `*`, or tags with `||` between them. `version`: ms since 1970, brokers keep
    the newest."""

    topic: str
    expression: str = ALL
    version: int = 0

    def __post_init__(self) -> None:
        """IllegalMessage (REQUEST_MALFORMED) for an expression without tags or with too many."""
        if self.expression != ALL and not 0 < len(self.tags) <= _MAX_TAGS:
            raise IllegalMessage(
                Status.REQUEST_MALFORMED,
                f"{self.expression[:100]!r} is neither * nor tags with ||",
            )

    @property
    def tags(self) -> tuple[str, ...]:
        """Empty: all."""
        if self.expression == ALL:
            return ()
        return tuple(tag for part in self.expression.split("||") if (tag := part.strip()))

    def wants(self, message: MessageExt) -> bool:
        """Brokers compare hashes of tags only."""
        return self.expression == ALL or message.tags in self.tags

    def to_json(self) -> dict[str, object]:
        """RocketMQ's SubscriptionData."""
        return {
            "classFilterMode": False,
            "codeSet": [java_hash(tag) for tag in self.tags],
            "expressionType": "TAG",
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }
