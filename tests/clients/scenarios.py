"""What users do with a client of RocketMQ 5, in terms that all clients have: a driver gives each scenario a
Session on its client.

Only the standard library is imported here: drivers run in the interpreter that has the client.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

INVISIBLE_S = 15
PATIENCE_S = 30.0


class Session(Protocol):
    """One client process: clients are started when they are made, and shut down in the end.

    A producer has `send(message, transaction)`, `begin_transaction()` and `recall_message(topic, handle)`, a
    consumer `receive(most, invisible_s)`, `ack(message)` and `change_invisible_duration(message, seconds)`.
    Times are whole seconds, bodies bytes. What a client does not tell is None.
    """

    name: str  # with which names of topics and groups begin
    namespace: str
    options: dict[str, Any]

    def message(self, topic: str, body: bytes, **more: Any) -> Any:
        """`more`: tag, keys, properties, message_group, delivery_timestamp, priority."""

    def producer(self, *topics: str, check: Callable[[Any], str] | None = None) -> Any:
        """`check`: of a message whose transaction is orphaned: commit, rollback or unknown."""

    def simple(self, group: str, topic: str, expression: str = "*", *, sql: bool = False) -> Any: ...

    def push(self, group: str, topic: str, consume: Callable[[Any], bool]) -> Any:
        """`consume`: whether it succeeded."""

    def close(self) -> None: ...


def take(consumer: Any, count: int, *, ack: bool = True) -> list[Any]:
    """So many messages, or what came within the time."""
    found: list[Any] = []
    end = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < end:
        got = consumer.receive(32, INVISIBLE_S)
        found += got
        for one in got if ack else ():
            consumer.ack(one)
    return found


def bodies(messages: list[Any]) -> list[str]:
    return [one.body.decode() for one in messages]


# -- scenarios: what they return is printed


def normal(s: Session) -> Any:
    producer = s.producer(f"{s.name}-normal")
    receipts = [
        producer.send(s.message(f"{s.name}-normal", b"%d" % i, tag="a", keys="k1", properties={"n": str(i)}))
        for i in range(20)
    ]
    found = take(s.simple(f"{s.name}-normal-g", f"{s.name}-normal"), 20)
    return {
        "sent": sorted(receipt.message_id for receipt in receipts),
        "received": sorted(one.message_id for one in found),
        "same_ids": all(receipt.message_id == receipt.transaction_id for receipt in receipts),
        "corrupted": [one.corrupted for one in found if one.corrupted],
        "tags": sorted({one.tag for one in found}),
        "properties": sorted(int(one.properties["n"]) for one in found),
        "attempts": sorted({one.delivery_attempt for one in found}),
        "left": bodies(s.simple(f"{s.name}-normal-g", f"{s.name}-normal").receive(32, INVISIBLE_S)),
    }


def fifo(s: Session) -> Any:
    producer = s.producer(f"{s.name}-fifo")
    for i in range(10):
        producer.send(s.message(f"{s.name}-fifo", b"%d" % i, message_group="one"))
    found = take(s.simple(f"{s.name}-fifo-g", f"{s.name}-fifo"), 10)
    return {"bodies": bodies(found), "groups": sorted({one.message_group for one in found})}


def delay(s: Session) -> Any:
    producer = s.producer(f"{s.name}-delay")
    due = int(time.time()) + 3
    producer.send(s.message(f"{s.name}-delay", b"late", delivery_timestamp=due))
    later = producer.send(s.message(f"{s.name}-delay", b"never", delivery_timestamp=due + 2))
    recalled = producer.recall_message(f"{s.name}-delay", later.recall_handle)
    again = refusal_of(lambda: producer.recall_message(f"{s.name}-delay", later.recall_handle))
    consumer = s.simple(f"{s.name}-delay-g", f"{s.name}-delay")
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

    def check(one: Any) -> str:
        checked.append(one.body.decode())
        return "commit"

    producer = s.producer(f"{s.name}-tx", check=check)
    for name in ("commit", "rollback", "orphan"):
        begun = producer.begin_transaction()
        producer.send(s.message(f"{s.name}-tx", name.encode()), begun)
        if name != "orphan":
            getattr(begun, name)()
    found = take(s.simple(f"{s.name}-tx-g", f"{s.name}-tx"), 2)
    return {
        "bodies": sorted(bodies(found)),
        "checked": checked,
        "with_id": all(one.properties.get("__transactionId__") for one in found),
    }


def priority(s: Session) -> Any:
    s.producer(f"{s.name}-priority").send(s.message(f"{s.name}-priority", b"first", priority=3))
    found = take(s.simple(f"{s.name}-priority-g", f"{s.name}-priority"), 1)
    return {"bodies": bodies(found), "priority": [one.priority for one in found]}


def filters(s: Session) -> Any:
    producer = s.producer(f"{s.name}-filter")
    for tag in ("a", "b", "c"):
        producer.send(s.message(f"{s.name}-filter", tag.encode(), tag=tag, properties={"n": str(ord(tag))}))
    return {
        "tags": sorted(bodies(take(s.simple(f"{s.name}-filter-1", f"{s.name}-filter", "a || c"), 2))),
        "sql": bodies(
            take(s.simple(f"{s.name}-filter-2", f"{s.name}-filter", "n > 97 AND TAGS <> 'c'", sql=True), 1)
        ),
        "none": bodies(s.simple(f"{s.name}-filter-3", f"{s.name}-filter", "d").receive(32, INVISIBLE_S)),
    }


def handles(s: Session) -> Any:
    s.producer(f"{s.name}-handle").send(s.message(f"{s.name}-handle", b"x"))
    consumer = s.simple(f"{s.name}-handle-g", f"{s.name}-handle")
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

    def consume(one: Any) -> bool:
        seen.append((one.body.decode(), one.delivery_attempt))
        fails = one.body == b"1" and one.delivery_attempt == 1
        if len(seen) == 4:
            done.set()
        return not fails

    producer = s.producer(f"{s.name}-push")
    s.push(f"{s.name}-push-g", f"{s.name}-push", consume)
    for i in range(3):
        producer.send(s.message(f"{s.name}-push", b"%d" % i))
    done.wait(PATIENCE_S)
    return {"seen": sorted(seen)}


def push_fifo(s: Session) -> Any:
    """In a group that consumes in order, the first message never succeeds: it becomes a dead letter."""
    seen: list[str] = []
    done = threading.Event()

    def consume(one: Any) -> bool:
        seen.append(one.body.decode())
        if one.body == b"2":
            done.set()
        return bool(one.body != b"0")

    producer = s.producer(f"{s.name}-push-fifo")
    for i in range(3):
        producer.send(s.message(f"{s.name}-push-fifo", b"%d" % i, message_group="one"))
    s.push(f"{s.name}-orderly", f"{s.name}-push-fifo", consume)
    done.wait(PATIENCE_S)
    dead = take(s.simple(f"{s.name}-dead-g", f"%DLQ%{s.name}-orderly"), 1)
    return {"seen": seen, "dead": bodies(dead)}


def fifo_failures(s: Session) -> Any:
    """Of two message groups; the second message of each fails twice."""
    succeeded: dict[str, list[str]] = {"a": [], "b": []}
    failures: dict[str, int] = {}
    done = threading.Event()

    def consume(one: Any) -> bool:
        text = one.body.decode()
        if text.endswith("1") and failures.get(text, 0) < 2:
            failures[text] = failures.get(text, 0) + 1
            return False
        succeeded[text[0]].append(text)
        if sum(map(len, succeeded.values())) == 10:
            done.set()
        return True

    producer = s.producer(f"{s.name}-failures")
    for i in range(5):
        for group in ("a", "b"):
            producer.send(s.message(f"{s.name}-failures", f"{group}{i}".encode(), message_group=group))
    s.push(f"{s.name}-failures-g", f"{s.name}-failures", consume)
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
    s.producer(f"{s.name}-expired").send(s.message(f"{s.name}-expired", b"x"))
    consumer = s.simple(f"{s.name}-expired-g", f"{s.name}-expired")
    first: list[Any] = []
    while not first:
        first = consumer.receive(1, 1)
    (second,) = take(consumer, 1, ack=False)
    refused = refusal_of(lambda: consumer.ack(first[0]))
    consumer.ack(second)
    return {"attempts": [first[0].delivery_attempt, second.delivery_attempt], "refused": refused}


def many(s: Session) -> Any:
    """By thirties."""
    producer = s.producer(f"{s.name}-many")
    count = s.options["count"]
    sent = [producer.send(s.message(f"{s.name}-many", b"%d" % i)).message_id for i in range(count)]
    consumer = s.simple(f"{s.name}-many-g", f"{s.name}-many")
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

    def consume(one: Any) -> bool:
        attempts.append(one.delivery_attempt)
        times.append(time.monotonic())
        return False

    sent = s.producer(f"{s.name}-dead").send(s.message(f"{s.name}-dead", b"bad"))
    s.push(f"{s.name}-retries", f"{s.name}-dead", consume)
    dead = take(s.simple(f"{s.name}-dead-letters", f"%DLQ%{s.name}-retries"), 1)
    return {
        "attempts": attempts,
        "pause_ms": round(1000 * (times[-1] - times[0])),
        "dead": bodies(dead),
        "same_id": [one.message_id for one in dead] == [sent.message_id],
    }


def shared(s: Session) -> Any:
    """Two consumers of one group, and one of another."""
    producer = s.producer(f"{s.name}-shared")
    for i in range(40):
        producer.send(s.message(f"{s.name}-shared", b"%d" % i))
    consumers = [s.simple(f"{s.name}-shared-1", f"{s.name}-shared") for _ in range(2)]
    got: list[list[str]] = [[], []]
    end = time.monotonic() + PATIENCE_S
    while sum(map(len, got)) < 40 and time.monotonic() < end:
        for consumer, mine in zip(consumers, got, strict=True):
            for one in consumer.receive(4, INVISIBLE_S):
                mine.append(one.body.decode())
                consumer.ack(one)
    other = take(s.simple(f"{s.name}-shared-2", f"{s.name}-shared"), 40)
    return {
        "each": [len(set(mine)) for mine in got],
        "all": sorted(map(int, got[0] + got[1])),
        "other": len(set(bodies(other))),
    }


def limits(s: Session) -> Any:
    """`max_body` bytes of body and 16 KiB of properties, and one byte more of each."""
    producer, most = s.producer(f"{s.name}-limits"), s.options["max_body"]

    def send(body: bytes, **properties: str) -> str:
        return refusal_of(lambda: producer.send(s.message(f"{s.name}-limits", body, properties=properties)))

    made = {
        "body": send(b"x" * most),
        "larger_body": send(b"x" * (most + 1)),
        "properties": send(b"p", k="v" * (16384 - 1)),
        "larger_properties": send(b"p", k="v" * 16384),
    }
    found = take(s.simple(f"{s.name}-limits-g", f"{s.name}-limits"), 2)
    return {
        **made,
        "bodies": sorted(len(one.body) for one in found),
        "values": sorted(len(v) for one in found for v in one.properties.values()),
    }


def names(s: Session) -> Any:
    """Such as the client lets through and the server does not."""
    producer = s.producer(f"{s.name}-names")
    return {
        "topic": refusal_of(lambda: producer.send(s.message("t" * 128, b"x"))),
        "message_group": refusal_of(
            lambda: producer.send(s.message(f"{s.name}-names", b"x", message_group="g" * 65))
        ),
        "property": refusal_of(
            lambda: producer.send(s.message(f"{s.name}-names", b"x", properties={"UNIQ_KEY": "mine"}))
        ),
        "consumer_group": refusal_of(lambda: s.simple("g" * 121, f"{s.name}-names").receive(1, INVISIBLE_S)),
    }


def late(s: Session) -> Any:
    """A group that comes when the messages have been there for long gets them all."""
    producer = s.producer(f"{s.name}-late")
    for i in range(5):
        producer.send(s.message(f"{s.name}-late", b"%d" % i))
    first = bodies(take(s.simple(f"{s.name}-late-1", f"{s.name}-late"), 5))
    return {
        "first": sorted(first),
        "second": sorted(bodies(take(s.simple(f"{s.name}-late-2", f"{s.name}-late"), 5))),
    }


def namespaces(s: Session) -> Any:
    """The same names in two namespaces are two topics and two groups."""
    found = {}
    for s.namespace in ("one", "two"):
        s.producer(f"{s.name}-space").send(s.message(f"{s.name}-space", s.namespace.encode()))
    for s.namespace in ("one", "two"):
        consumer = s.simple(f"{s.name}-space-g", f"{s.name}-space")
        found[s.namespace] = bodies(take(consumer, 1) + consumer.receive(32, INVISIBLE_S))
    return found


def of_topic(s: Session) -> Any:
    """What a consumer finds in `topic`, and what becomes of a send to it."""
    topic = s.options["topic"]
    found = s.simple(f"{s.name}-late-g", topic).receive(32, INVISIBLE_S)
    return {
        "received": bodies(found),
        "send": refusal_of(lambda: s.producer(topic).send(s.message(topic, b"x"))),
    }


def calls(s: Session) -> Any:
    """What becomes of a send to `topic`, and of a receive of `group` from it."""
    topic, group = s.options["topic"], s.options["group"]
    return {
        "send": error_of(lambda: s.producer(topic).send(s.message(topic, b"x"))),
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
    consumer, producer, over = (
        s.simple(f"{s.name}-steady-g", f"{s.name}-steady"),
        s.producer(f"{s.name}-steady"),
        told(),
    )
    sent: list[str] = []
    failed: list[str] = []
    number, begin, error = 0, time.monotonic(), ""
    while not over.wait(max(0.0, begin + number / 50 - time.monotonic())):
        body = b"%d" % number
        error = error_of(
            lambda body=body: sent.append(producer.send(s.message(f"{s.name}-steady", body)).message_id)
        )
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


def reset(s: Session) -> Any:
    """Ten messages, until each has come twice; it has begun when they have come once."""
    producer, consumer = s.producer(f"{s.name}-reset"), s.simple(f"{s.name}-reset-g", f"{s.name}-reset")
    for i in range(10):
        producer.send(s.message(f"{s.name}-reset", b"%d" % i))
    times = dict.fromkeys(bodies(take(consumer, 10)), 1)
    print("begun", flush=True)
    end = time.monotonic() + 2 * PATIENCE_S
    while min(times.values()) < 2 and time.monotonic() < end:
        for one in consumer.receive(32, INVISIBLE_S):
            times[one.body.decode()] += 1
            consumer.ack(one)
    return {"times": times}


def ordered(s: Session) -> Any:
    """Messages of three groups in turn, and a push consumer that gets each group in order."""
    producer, over, pause = s.producer(f"{s.name}-ordered"), told(), threading.Event()
    acknowledged: dict[str, list[int]] = {group: [] for group in "abc"}
    consumed: dict[str, list[int]] = {group: [] for group in "abc"}

    def consume(one: Any) -> bool:
        consumed[one.message_group].append(int(one.body))
        return True

    s.push(f"{s.name}-ordered-g", f"{s.name}-ordered", consume)
    number, failed = 0, 0
    while not over.wait(0.02):
        group, body = "abc"[number % 3], b"%d" % number
        if error_of(
            lambda g=group, b=body: producer.send(s.message(f"{s.name}-ordered", b, message_group=g))
        ):
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
    producer, over, begun = s.producer(f"{s.name}-retried"), told(), threading.Event()
    tries: list[str] = []

    def consume(one: Any) -> bool:
        begun.set()
        tries.append(one.body.decode())
        return bool(one.body != b"bad")

    s.push(f"{s.name}-retried-g", f"{s.name}-retried", consume)
    producer.send(s.message(f"{s.name}-retried", b"good", message_group="one"))
    begun.wait(PATIENCE_S)
    print("begun", flush=True)
    over.wait()
    producer.send(s.message(f"{s.name}-retried", b"bad", message_group="one"))
    dead = take(s.simple(f"{s.name}-retried-dead", f"%DLQ%{s.name}-retried-g"), 1)
    return {"tries": tries.count("bad"), "dead": bodies(dead)}


def orphan(s: Session) -> Any:
    """A transaction that nobody ends; its checker knows nothing before the input ends."""
    over = told()
    answers: list[str] = []

    def check(_: Any) -> str:
        answers.append("commit" if over.is_set() else "unknown")
        return answers[-1]

    producer = s.producer(f"{s.name}-orphan", check=check)
    producer.send(s.message(f"{s.name}-orphan", b"orphan"), producer.begin_transaction())
    print("begun", flush=True)
    over.wait()
    return {
        "bodies": bodies(take(s.simple(f"{s.name}-orphan-g", f"{s.name}-orphan"), 1)),
        "answer": answers[-1],
    }


def held(s: Session) -> Any:
    """What is held when the streams of telemetry are cut is held afterwards: a message that is consumed until
    `seconds` after the end of the input, and one that waits so long for its acknowledgement."""
    over = told()
    begun, done = threading.Event(), threading.Event()
    attempts: list[int] = []

    def consume(one: Any) -> bool:
        attempts.append(one.delivery_attempt)
        begun.set()
        over.wait()
        done.wait(s.options["seconds"])
        done.set()
        return True

    producer = s.producer(f"{s.name}-held")
    producer.send(s.message(f"{s.name}-held", b"long"))
    consumer = s.simple(f"{s.name}-held-simple", f"{s.name}-held")
    mine = consumer.receive(1, INVISIBLE_S + 2 * int(s.options["seconds"]) + 60)
    s.push(f"{s.name}-held-push", f"{s.name}-held", consume)
    begun.wait(PATIENCE_S)
    print("begun", flush=True)
    over.wait()
    refused, number = [], 0
    while not done.wait(s.options["seconds"] / 75):
        body = b"%d" % number
        refused.append(error_of(lambda body=body: producer.send(s.message(f"{s.name}-held-2", body))))
        number += 1
    acks = [error_of(lambda one=one: consumer.ack(one)) for one in mine]
    other = take(s.simple(f"{s.name}-held-2-g", f"{s.name}-held-2"), number)
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
        *(
            fifo_failures,
            expired,
            many,
            dead_letters,
            shared,
            limits,
            names,
            late,
            namespaces,
            of_topic,
            calls,
        ),
        *(steady, reset, ordered, retried, orphan, held),
    )
}


def run(session: Session, scenario: str) -> None:
    """Prints one JSON object of what was seen."""
    try:
        print(json.dumps(SCENARIOS[scenario](session)), flush=True)
    finally:
        session.close()
