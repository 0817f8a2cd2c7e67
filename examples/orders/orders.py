"""A small service: orders arrive as messages, and each is billed once.

The broker delivers a message again if it does not know that the consumer has processed it, for example after
a failover. The service therefore remembers the ids of the orders that it has billed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from broker_adapter.client import (
    BlockingProducer,
    BlockingPushConsumer,
    ConsumeFromWhere,
    Message,
    MessageExt,
)


@dataclass(frozen=True)
class Order:
    number: str
    cents: int


class Shop:
    """Sends orders."""

    def __init__(self, name_server: str, topic: str) -> None:
        self._producer = BlockingProducer("shop", name_server)
        self._topic = topic

    def __enter__(self) -> Shop:
        self._producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def order(self, order: Order) -> None:
        """Return once the order is stored. Raises PutIndeterminate if it may be stored."""
        body = json.dumps(asdict(order)).encode()
        self._producer.send(Message(self._topic, body, keys=(order.number,)))


class Billing:
    """Bills each order once."""

    def __init__(self, name_server: str, topic: str) -> None:
        self.billed: dict[str, int] = {}
        self._changed = threading.Condition()
        self._consumer = BlockingPushConsumer(
            "billing", name_server, self._bill, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        )
        self._consumer.subscribe(topic)

    def __enter__(self) -> Billing:
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _bill(self, messages: Sequence[MessageExt]) -> None:
        with self._changed:
            for message in messages:
                order = Order(**json.loads(message.body))
                self.billed.setdefault(order.number, order.cents)
            self._changed.notify_all()

    def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Wait until `count` orders are billed. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.billed) >= count, seconds):
                raise TimeoutError(f"{len(self.billed)} of {count} orders are billed")
