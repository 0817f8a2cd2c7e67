"""Scenarios with the released Python client of RocketMQ 5, in a process of its own: its generated modules and
ours cannot live in one.

    python python_driver.py ADDRESS SCENARIO

Prints one JSON object of what was seen. Run with the interpreter that has `rocketmq-python-client`, and with
HOME in a directory of the test's: the client writes logs there.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

INVISIBLE_S = 15
PATIENCE_S = 30.0


def configuration(address: str) -> ClientConfiguration:
    return ClientConfiguration(address, Credentials(), request_timeout=3)


def message(topic: str, body: bytes, **more: Any) -> Message:
    made = Message()
    made.topic, made.body = topic, body
    for name, value in more.pop("properties", {}).items():
        made.add_property(name, value)
    if keys := more.pop("keys", None):
        made.keys = keys
    for name, value in more.items():
        setattr(made, name, value)
    return made


class Session:
    """One client process: clients are started when they are made, and shut down in the end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._clients: list[Any] = []

    def producer(self, *topics: str, **more: Any) -> Producer:
        return self._started(Producer(configuration(self.address), list(topics), **more))

    def simple(self, group: str, topic: str, expression: str | FilterExpression = "*") -> SimpleConsumer:
        wanted = FilterExpression(expression) if isinstance(expression, str) else expression
        return self._started(SimpleConsumer(configuration(self.address), group, {topic: wanted}, 2))

    def push(self, group: str, topic: str, consume: Callable[[Message], ConsumeResult]) -> PushConsumer:
        class Listener(MessageListener):
            def consume(self, message: Message) -> ConsumeResult:
                return consume(message)

        subscription = {topic: FilterExpression("*")}
        return self._started(PushConsumer(configuration(self.address), group, Listener(), subscription))

    def close(self) -> None:
        for client in reversed(self._clients):
            client.shutdown()

    def _started(self, client: Any) -> Any:
        client.startup()
        self._clients.append(client)
        return client


def take(consumer: SimpleConsumer, count: int, *, ack: bool = True) -> list[Message]:
    """So many messages, or what came within the time."""
    found: list[Message] = []
    end = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < end:
        got = consumer.receive(32, INVISIBLE_S)
        found += got
        for one in got if ack else ():
            consumer.ack(one)
    return found


def bodies(messages: list[Message]) -> list[str]:
    return [one.body.decode() for one in messages]


# -- scenarios: what they return is printed


def normal(s: Session) -> Any:
    producer = s.producer("py-normal")
    receipts = [
        producer.send(message("py-normal", b"%d" % i, tag="a", keys="k1", properties={"n": str(i)}))
        for i in range(20)
    ]
    found = take(s.simple("py-normal-g", "py-normal"), 20)
    return {
        "sent": sorted(receipt.message_id for receipt in receipts),
        "received": sorted(one.message_id for one in found),
        "same_ids": all(receipt.message_id == receipt.transaction_id for receipt in receipts),
        "corrupted": [one.corrupted for one in found if one.corrupted],
        "tags": sorted({one.tag for one in found}),
        "properties": sorted(int(one.properties["n"]) for one in found),
        "attempts": sorted({one.delivery_attempt for one in found}),
        "left": bodies(s.simple("py-normal-g", "py-normal").receive(32, INVISIBLE_S)),
    }


def fifo(s: Session) -> Any:
    producer = s.producer("py-fifo")
    for i in range(10):
        producer.send(message("py-fifo", b"%d" % i, message_group="one"))
    found = take(s.simple("py-fifo-g", "py-fifo"), 10)
    return {"bodies": bodies(found), "groups": sorted({one.message_group for one in found})}


def delay(s: Session) -> Any:
    producer = s.producer("py-delay")
    due = int(time.time()) + 3
    producer.send(message("py-delay", b"late", delivery_timestamp=due))
    later = producer.send(message("py-delay", b"never", delivery_timestamp=due + 2))
    recalled = producer.recall_message("py-delay", later.recall_handle)
    consumer = s.simple("py-delay-g", "py-delay")
    found = take(consumer, 1)
    early = time.time() < due
    return {
        "bodies": bodies(found),
        "early": early,
        "recalled": recalled.message_id if hasattr(recalled, "message_id") else recalled,
        "id": later.message_id,
        "then": bodies(consumer.receive(32, INVISIBLE_S) + consumer.receive(32, INVISIBLE_S)),
    }


def transaction(s: Session) -> Any:
    checked: list[str] = []

    class Checker(TransactionChecker):
        def check(self, message: Message) -> TransactionResolution:
            checked.append(message.body.decode())
            return TransactionResolution.COMMIT

    producer = s.producer("py-tx", checker=Checker())
    for name in ("commit", "rollback", "orphan"):
        begun = producer.begin_transaction()
        producer.send(message("py-tx", name.encode()), begun)
        if name != "orphan":
            getattr(begun, name)()
    found = take(s.simple("py-tx-g", "py-tx"), 2)
    return {
        "bodies": sorted(bodies(found)),
        "checked": checked,
        "with_id": all(one.properties.get("__transactionId__") for one in found),
    }


def priority(s: Session) -> Any:
    s.producer("py-priority").send(message("py-priority", b"first", priority=3))
    found = take(s.simple("py-priority-g", "py-priority"), 1)
    return {"bodies": bodies(found), "priority": [one.priority for one in found]}


def filters(s: Session) -> Any:
    from rocketmq.grpc_protocol import FilterType

    producer = s.producer("py-filter")
    for tag in ("a", "b", "c"):
        producer.send(message("py-filter", tag.encode(), tag=tag, properties={"n": str(ord(tag))}))
    sql = FilterExpression("n > 97 AND TAGS <> 'c'", FilterType.SQL)
    return {
        "tags": sorted(bodies(take(s.simple("py-filter-1", "py-filter", "a || c"), 2))),
        "sql": bodies(take(s.simple("py-filter-2", "py-filter", sql), 1)),
    }


def handles(s: Session) -> Any:
    s.producer("py-handle").send(message("py-handle", b"x"))
    consumer = s.simple("py-handle-g", "py-handle")
    (first,) = take(consumer, 1, ack=False)
    old = first.receipt_handle
    consumer.change_invisible_duration(first, 2)
    new, first.receipt_handle = first.receipt_handle, old
    try:
        consumer.ack(first)
        refused = ""
    except Exception as error:
        refused = type(error).__name__
    (second,) = take(consumer, 1)
    return {"changed": new != old, "refused": refused, "attempts": second.delivery_attempt}


def push(s: Session) -> Any:
    """The second message fails once."""
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def consume(one: Message) -> ConsumeResult:
        seen.append((one.body.decode(), one.delivery_attempt))
        fails = one.body == b"1" and one.delivery_attempt == 1
        if len(seen) == 4:
            done.set()
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    producer = s.producer("py-push")
    s.push("py-push-g", "py-push", consume)
    for i in range(3):
        producer.send(message("py-push", b"%d" % i))
    done.wait(PATIENCE_S)
    return {"seen": sorted(seen)}


def push_fifo(s: Session) -> Any:
    """In a group that consumes in order, the first message never succeeds: it becomes a dead letter."""
    seen: list[str] = []
    done = threading.Event()

    def consume(one: Message) -> ConsumeResult:
        seen.append(one.body.decode())
        if one.body == b"2":
            done.set()
        return ConsumeResult.FAILURE if one.body == b"0" else ConsumeResult.SUCCESS

    producer = s.producer("py-push-fifo")
    for i in range(3):
        producer.send(message("py-push-fifo", b"%d" % i, message_group="one"))
    s.push("py-orderly", "py-push-fifo", consume)
    done.wait(PATIENCE_S)
    dead = take(s.simple("py-dead-g", "%DLQ%py-orderly"), 1)
    return {"seen": seen, "dead": bodies(dead)}


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (normal, fifo, delay, transaction, priority, filters, handles, push, push_fifo)
}


def main() -> None:
    address, name = sys.argv[1:]
    session = Session(address)
    try:
        print(json.dumps(SCENARIOS[name](session)), flush=True)
    finally:
        session.close()


if __name__ == "__main__":
    main()
