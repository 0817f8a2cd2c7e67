"""Scenarios with the released Python client of RocketMQ 5, in a process of its own: its generated modules and
ours cannot live in one.

    python python_driver.py ADDRESS SCENARIO [OPTIONS AS JSON]

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

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.address = address
        self.options = options
        self.namespace = ""
        self._tls = {"tls_enable": bool(options.get("tls"))}
        self._clients: list[Any] = []

    def producer(self, *topics: str, **more: Any) -> Producer:
        return self._started(Producer(self._configuration(), list(topics), **more, **self._tls))

    def simple(self, group: str, topic: str, expression: str | FilterExpression = "*") -> SimpleConsumer:
        wanted = FilterExpression(expression) if isinstance(expression, str) else expression
        return self._started(SimpleConsumer(self._configuration(), group, {topic: wanted}, 2, **self._tls))

    def push(self, group: str, topic: str, consume: Callable[[Message], ConsumeResult]) -> PushConsumer:
        class Listener(MessageListener):
            def consume(self, message: Message) -> ConsumeResult:
                return consume(message)

        subscription = {topic: FilterExpression("*")}
        made = PushConsumer(self._configuration(), group, Listener(), subscription, **self._tls)
        return self._started(made)

    def close(self) -> None:
        for client in reversed(self._clients):
            client.shutdown()

    def _configuration(self) -> ClientConfiguration:
        """Options: `account`, with its secret, and `tls`."""
        credentials = Credentials(*self.options.get("account", ()))
        return ClientConfiguration(self.address, credentials, self.namespace, request_timeout=3)

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
    again = refusal_of(lambda: producer.recall_message("py-delay", later.recall_handle))
    consumer = s.simple("py-delay-g", "py-delay")
    found = take(consumer, 1)
    early = time.time() < due
    return {
        "bodies": bodies(found),
        "early": early,
        "recalled": recalled.message_id if hasattr(recalled, "message_id") else recalled,
        "id": later.message_id,
        "again": again,
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
        "none": bodies(s.simple("py-filter-3", "py-filter", "d").receive(32, INVISIBLE_S)),
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


def fifo_failures(s: Session) -> Any:
    """Of two message groups; the second message of each fails twice."""
    succeeded: dict[str, list[str]] = {"a": [], "b": []}
    failures: dict[str, int] = {}
    done = threading.Event()

    def consume(one: Message) -> ConsumeResult:
        text = one.body.decode()
        if text.endswith("1") and failures.get(text, 0) < 2:
            failures[text] = failures.get(text, 0) + 1
            return ConsumeResult.FAILURE
        succeeded[text[0]].append(text)
        if sum(map(len, succeeded.values())) == 10:
            done.set()
        return ConsumeResult.SUCCESS

    producer = s.producer("py-failures")
    for i in range(5):
        for group in ("a", "b"):
            producer.send(message("py-failures", f"{group}{i}".encode(), message_group=group))
    s.push("py-failures-g", "py-failures", consume)
    done.wait(PATIENCE_S)
    return {"succeeded": succeeded, "failures": failures}


def refusal_of(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return ""


def expired(s: Session) -> Any:
    """A message that came back when its time was over: the handle of the first delivery is worth nothing."""
    s.producer("py-expired").send(message("py-expired", b"x"))
    consumer = s.simple("py-expired-g", "py-expired")
    first: list[Message] = []
    while not first:
        first = consumer.receive(1, 1)
    (second,) = take(consumer, 1, ack=False)
    refused = refusal_of(lambda: consumer.ack(first[0]))
    consumer.ack(second)
    return {"attempts": [first[0].delivery_attempt, second.delivery_attempt], "refused": refused}


def many(s: Session) -> Any:
    """By thirties."""
    producer = s.producer("py-many")
    count = s.options["count"]
    sent = [producer.send(message("py-many", b"%d" % i)).message_id for i in range(count)]
    consumer = s.simple("py-many-g", "py-many")
    received: list[str] = []
    most = 0
    end = time.monotonic() + PATIENCE_S
    while len(received) < count and time.monotonic() < end:
        got = consumer.receive(30, INVISIBLE_S)
        most = max(most, len(got))
        received += [one.message_id for one in got]
        for one in got:
            consumer.ack(one)
    return {
        "sent": len(set(sent)),
        "received": len(received),
        "same": set(sent) == set(received),
        "most": most,
    }


def dead_letters(s: Session) -> Any:
    attempts: list[int] = []
    times: list[float] = []

    def consume(one: Message) -> ConsumeResult:
        attempts.append(one.delivery_attempt)
        times.append(time.monotonic())
        return ConsumeResult.FAILURE

    sent = s.producer("py-dead").send(message("py-dead", b"bad"))
    s.push("py-retries", "py-dead", consume)
    dead = take(s.simple("py-dead-letters", "%DLQ%py-retries"), 1)
    return {
        "attempts": attempts,
        "pause_ms": round(1000 * (times[-1] - times[0])),
        "dead": bodies(dead),
        "same_id": [one.message_id for one in dead] == [sent.message_id],
    }


def shared(s: Session) -> Any:
    """Two consumers of one group, and one of another."""
    producer = s.producer("py-shared")
    for i in range(40):
        producer.send(message("py-shared", b"%d" % i))
    consumers = [s.simple("py-shared-1", "py-shared") for _ in range(2)]
    got: list[list[str]] = [[], []]
    end = time.monotonic() + PATIENCE_S
    while sum(map(len, got)) < 40 and time.monotonic() < end:
        for consumer, mine in zip(consumers, got, strict=True):
            for one in consumer.receive(4, INVISIBLE_S):
                mine.append(one.body.decode())
                consumer.ack(one)
    other = take(s.simple("py-shared-2", "py-shared"), 40)
    return {
        "each": [len(set(mine)) for mine in got],
        "all": sorted(map(int, got[0] + got[1])),
        "other": len(set(bodies(other))),
    }


def limits(s: Session) -> Any:
    """`max_body` bytes of body and 16 KiB of properties, and one byte more of each."""
    producer, most = s.producer("py-limits"), s.options["max_body"]

    def send(body: bytes, **properties: str) -> str:
        return refusal_of(lambda: producer.send(message("py-limits", body, properties=properties)))

    made = {
        "body": send(b"x" * most),
        "larger_body": send(b"x" * (most + 1)),
        "properties": send(b"p", k="v" * (16384 - 1)),
        "larger_properties": send(b"p", k="v" * 16384),
    }
    found = take(s.simple("py-limits-g", "py-limits"), 2)
    return {
        **made,
        "bodies": sorted(len(one.body) for one in found),
        "values": sorted(len(v) for one in found for v in one.properties.values()),
    }


def names(s: Session) -> Any:
    """Such as the client lets through and the server does not."""
    producer = s.producer("py-names")
    return {
        "topic": refusal_of(lambda: producer.send(message("t" * 128, b"x"))),
        "message_group": refusal_of(lambda: producer.send(message("py-names", b"x", message_group="g" * 65))),
        "property": refusal_of(
            lambda: producer.send(message("py-names", b"x", properties={"UNIQ_KEY": "mine"}))
        ),
        "consumer_group": refusal_of(lambda: s.simple("g" * 121, "py-names").receive(1, INVISIBLE_S)),
    }


def late(s: Session) -> Any:
    """A group that comes when the messages have been there for long gets them all."""
    producer = s.producer("py-late")
    for i in range(5):
        producer.send(message("py-late", b"%d" % i))
    first = bodies(take(s.simple("py-late-1", "py-late"), 5))
    return {"first": sorted(first), "second": sorted(bodies(take(s.simple("py-late-2", "py-late"), 5)))}


def namespaces(s: Session) -> Any:
    """The same names in two namespaces are two topics and two groups."""
    found = {}
    for s.namespace in ("one", "two"):
        s.producer("py-space").send(message("py-space", s.namespace.encode()))
    for s.namespace in ("one", "two"):
        consumer = s.simple("py-space-g", "py-space")
        found[s.namespace] = bodies(take(consumer, 1) + consumer.receive(32, INVISIBLE_S))
    return found


def calls(s: Session) -> Any:
    """What becomes of a send to `topic`, and of a receive of `group` from it."""
    topic, group = s.options["topic"], s.options["group"]
    return {
        "send": error_of(lambda: s.producer(topic).send(message(topic, b"x"))),
        "receive": error_of(lambda: s.simple(group, topic).receive(1, INVISIBLE_S)),
    }


# -- scenarios under faults: "begun" is printed when they have begun, and they go on until the input ends


def told() -> threading.Event:
    """Set when the input ends."""
    event = threading.Event()

    def read() -> None:
        sys.stdin.read()
        event.set()

    threading.Thread(target=read, daemon=True).start()
    return event


def error_of(act: Callable[[], Any]) -> str:
    """What the user sees of whatever the client raises."""
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def steady(s: Session) -> Any:
    """50 messages a second; then everything is read."""
    consumer, producer, over = s.simple("py-steady-g", "py-steady"), s.producer("py-steady"), told()
    sent: list[str] = []
    failed: list[str] = []
    number, begin, error = 0, time.monotonic(), ""
    while not over.wait(max(0.0, begin + number / 50 - time.monotonic())):
        body = b"%d" % number
        error = error_of(lambda body=body: sent.append(producer.send(message("py-steady", body)).message_id))
        failed += [f"{number}: {error}"] if error else []
        if number == 0:
            print("begun", flush=True)
        number += 1
    missing = set(sent)
    end = time.monotonic() + PATIENCE_S
    while missing and time.monotonic() < end:
        try:
            missing -= {one.message_id for one in consumer.receive(32, INVISIBLE_S)}
        except Exception as error:
            print(f"receive: {error}", file=sys.stderr)
    return {"sent": len(sent), "failed": failed, "lost": sorted(missing), "last": error}


def ordered(s: Session) -> Any:
    """Messages of three groups in turn, and a push consumer that gets each group in order."""
    producer, over, pause = s.producer("py-ordered"), told(), threading.Event()
    acknowledged: dict[str, list[int]] = {group: [] for group in "abc"}
    consumed: dict[str, list[int]] = {group: [] for group in "abc"}

    def consume(one: Message) -> ConsumeResult:
        consumed[one.message_group].append(int(one.body))
        return ConsumeResult.SUCCESS

    s.push("py-ordered-g", "py-ordered", consume)
    number, failed = 0, 0
    while not over.wait(0.02):
        group, body = "abc"[number % 3], b"%d" % number
        if error_of(lambda g=group, b=body: producer.send(message("py-ordered", b, message_group=g))):
            failed += 1
        else:
            acknowledged[group].append(number)
        if consumed["a"] and not number % 10:
            print("begun", flush=True)
        number += 1
    end = time.monotonic() + PATIENCE_S
    while any(set(acknowledged[g]) - set(consumed[g]) for g in "abc") and time.monotonic() < end:
        pause.wait(0.1)
    return {"acknowledged": acknowledged, "consumed": consumed, "failed": failed}


def retried(s: Session) -> Any:
    """How often a consumer in order tries a message that it fails at, sent when the input has ended."""
    producer, over, begun = s.producer("py-retried"), told(), threading.Event()
    tries: list[str] = []

    def consume(one: Message) -> ConsumeResult:
        begun.set()
        tries.append(one.body.decode())
        return ConsumeResult.FAILURE if one.body == b"bad" else ConsumeResult.SUCCESS

    s.push("py-retried-g", "py-retried", consume)
    producer.send(message("py-retried", b"good", message_group="one"))
    begun.wait(PATIENCE_S)
    print("begun", flush=True)
    over.wait()
    producer.send(message("py-retried", b"bad", message_group="one"))
    dead = take(s.simple("py-retried-dead", "%DLQ%py-retried-g"), 1)
    return {"tries": tries.count("bad"), "dead": bodies(dead)}


def orphan(s: Session) -> Any:
    """A transaction that nobody ends; its checker knows nothing before the input ends."""
    over = told()
    answers: list[str] = []

    class Checker(TransactionChecker):
        def check(self, message: Message) -> TransactionResolution:
            answers.append("commit" if over.is_set() else "unknown")
            return TransactionResolution.COMMIT if over.is_set() else TransactionResolution.UNKNOWN

    producer = s.producer("py-orphan", checker=Checker())
    producer.send(message("py-orphan", b"orphan"), producer.begin_transaction())
    print("begun", flush=True)
    over.wait()
    return {"bodies": bodies(take(s.simple("py-orphan-g", "py-orphan"), 1)), "answer": answers[-1]}


def held(s: Session) -> Any:
    """What is held when the streams of telemetry are cut is held afterwards: a message that is consumed until
    `seconds` after the end of the input, and one that waits so long for its acknowledgement."""
    over = told()
    begun, done = threading.Event(), threading.Event()
    attempts: list[int] = []

    def consume(one: Message) -> ConsumeResult:
        attempts.append(one.delivery_attempt)
        begun.set()
        over.wait()
        done.wait(s.options["seconds"])
        done.set()
        return ConsumeResult.SUCCESS

    producer = s.producer("py-held")
    producer.send(message("py-held", b"long"))
    consumer = s.simple("py-held-simple", "py-held")
    mine = consumer.receive(1, INVISIBLE_S + 2 * int(s.options["seconds"]) + 60)
    s.push("py-held-push", "py-held", consume)
    begun.wait(PATIENCE_S)
    print("begun", flush=True)
    over.wait()
    refused, number = [], 0
    while not done.wait(s.options["seconds"] / 75):
        body = b"%d" % number
        refused.append(error_of(lambda body=body: producer.send(message("py-held-2", body))))
        number += 1
    acks = [error_of(lambda one=one: consumer.ack(one)) for one in mine]
    other = take(s.simple("py-held-2-g", "py-held-2"), number)
    return {
        "attempts": attempts,
        "acks": acks,
        "refused": [r for r in refused if r],
        "other": number - len(other),
    }


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        *(normal, fifo, delay, transaction, priority, filters, handles, push, push_fifo),
        *(fifo_failures, expired, many, dead_letters, shared, limits, names, late, namespaces, calls),
        *(steady, ordered, retried, orphan, held),
    )
}


def main() -> None:
    address, name, *more = sys.argv[1:]
    session = Session(address, json.loads(more[0]) if more else {})
    try:
        print(json.dumps(SCENARIOS[name](session)), flush=True)
    finally:
        session.close()


if __name__ == "__main__":
    main()
