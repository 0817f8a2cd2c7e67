"""Histories of other systems, sound and with one defect each: what their own checkers say of such, and ours.

They restate what the tests of Jepsen (workload kafka, checkers set, set-full, queue, total-queue), Knossos
and Porcupine are about, and what those leave out. Each is shorter than what a verdict needs; `padded` adds
operations beside which nothing is wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: (process, type, name, value), and what else the operation says.
Event = tuple[Any, ...]
History = list[Event]


@dataclass(frozen=True, slots=True)
class Case:
    """`theirs`: the verdict of its own checker; `ours`: ours, when it is padded, and the checks that fire."""

    model: str
    theirs: str
    ours: str
    fires: str
    history: History


CASES: dict[str, Case] = {}


def case(name: str, model: str, theirs: str, fires: str = "", *, ours: str = "") -> Callable[..., None]:
    def add(*parts: History) -> None:
        assert name not in CASES
        CASES[name] = Case(model, theirs, ours or theirs, fires, [event for part in parts for event in part])

    return add


def op(process: int, name: str, begun: Any, how: str, ended: Any = None, **about: Any) -> History:
    """An operation and its end, one right after the other. Without `ended` it ends with what it began."""
    return [
        (process, "invoke", name, begun),
        (process, how, name, begun if ended is None else ended, about),
    ]


def begun(process: int, name: str, value: Any) -> History:
    return [(process, "invoke", name, value)]


def ended(process: int, name: str, how: str, value: Any) -> History:
    return [(process, how, name, value)]


# -- kafka -------------------------------------------------------------------------------------------------


def send(process: int, how: str, *messages: tuple[Any, ...]) -> History:
    """`messages`: key, value and, if it was answered with one, offset."""
    asked = [["send", key, value] for key, value, *_ in messages]
    answer = [["send", key, [*offset, value] if offset else value] for key, value, *offset in messages]
    return op(process, "send" if len(messages) == 1 else "txn", asked, how, answer)


def poll(
    process: int, shown: Mapping[str, Sequence[tuple[int, Any]]], how: str = "ok", **about: Any
) -> History:
    return op(process, "poll", [["poll"]], how, [["poll", dict(shown)]], **about)


def take(process: int, *keys: str, f: str = "assign", how: str = "ok", **about: Any) -> History:
    return op(process, f, list(keys), how, **about)


def txn(asked: Any, answer: Any) -> tuple[list[Any], list[Any]]:
    return asked, answer


def sent(count: int, key: str = "x", process: int = 0) -> History:
    """Messages 0, 1, ... of a key, at offsets of the same number, by one operation."""
    return send(process, "ok", *((key, number, number) for number in range(count)))


def numbers(*values: int) -> list[tuple[int, int]]:
    return [(value, value) for value in values]


_CONFLICT = [
    *send(0, "info", ("x", "p", 3), ("y", "p")),
    *send(1, "ok", ("x", "q", 3)),
    *poll(2, {"x": [(3, "q")]}),
]
case("kafka-unknown-send-conflicts", "kafka", "valid")(_CONFLICT)
case("kafka-unknown-send-that-was-read-conflicts", "kafka", "invalid", "H20 H25")(
    _CONFLICT, send(4, "ok", ("y", "r", 9)), poll(3, {"y": [(8, "p"), (9, "r")]})
)
case("kafka-offset-answered-twice", "kafka", "invalid", "H20 H25 H26")(
    send(0, "ok", ("x", 41, 7)), send(1, "ok", ("x", 45, 7)), poll(2, {"x": [(7, 45)]})
)
case("kafka-aborted-read", "kafka", "invalid", "H23")(
    send(0, "fail", ("x", "p"), ("y", "q")), poll(1, {"x": [(0, "p")]})
)
case("kafka-aborted-message-in-a-failed-poll", "kafka", "valid")(
    sent(1), send(1, "fail", ("x", "p")), poll(2, {"x": [(0, 0)]}), poll(3, {"x": [(0, 0), (1, "p")]}, "fail")
)
case("kafka-polled-without-a-send", "kafka", "invalid", "H22")(
    sent(2), poll(1, {"x": [*numbers(0, 1), (2, 9)]})
)
case("kafka-polled-before-its-send", "kafka", "invalid", "H22")(
    sent(1), poll(1, {"x": numbers(0, 1)}), send(0, "ok", ("x", 1, 1))
)
case("kafka-own-message", "kafka", "invalid", "H24")(
    op(0, "txn", [["send", "x", 1], ["poll"]], "ok", [["send", "x", [0, 1]], ["poll", {"x": [[0, 1]]}]])
)
case("kafka-own-message-of-a-failed-transaction", "kafka", "invalid", "H24")(
    op(0, "txn", [["send", "x", 1], ["poll"]], "fail", [["send", "x", 1], ["poll", {"x": [[0, 1]]}]])
)
case("kafka-lost-below-what-was-read", "kafka", "invalid", "H25 H26")(
    send(0, "ok", ("x", "p", 0)), send(1, "info", ("x", "q")), poll(2, {"x": [(4, "q")]})
)
case("kafka-lost-in-a-conflict", "kafka", "invalid", "H20 H25 H26 H32")(
    send(0, "ok", ("x", "p", 0)),
    send(0, "ok", ("x", "q", 0), ("x", "r", 2)),
    poll(1, {"x": [(0, "q"), (2, "r")]}),
)
_HALF = [
    *send(0, "info", ("x", "p"), ("y", "q", 0)),
    *send(1, "info", ("y", "r")),
    *poll(2, {"y": [(1, "r")]}),
]
case("kafka-unknown-transaction-not-read", "kafka", "valid")(_HALF)
case("kafka-half-of-a-transaction-lost", "kafka", "invalid", "H25")(_HALF, poll(3, {"x": [(0, "p")]}))
case("kafka-read-by-a-failed-transaction-only", "kafka", "invalid", "H25 H26")(
    sent(3), poll(1, {"x": numbers(0, 1)}, "fail"), poll(2, {"x": numbers(2)})
)
case("kafka-tail-never-read", "kafka", "invalid", "W8 H26", ours="unknown")(
    sent(3), poll(1, {"x": numbers(0, 1)})
)
case("kafka-duplicate", "kafka", "invalid", "H21")(
    send(0, "ok", ("x", "p", 1)), send(1, "info", ("x", "q")), poll(2, {"x": [(1, "p"), (2, "q"), (3, "p")]})
)
case("kafka-duplicate-in-a-failed-poll", "kafka", "invalid", "H21")(
    send(0, "ok", ("x", "p", 1)), poll(1, {"x": [(1, "p")]}), poll(2, {"x": [(6, "p")]}, "fail")
)
case("kafka-holes-of-transactions", "kafka", "valid")(
    send(0, "ok", ("x", 1, 1), ("x", 2, 2)),
    send(0, "ok", ("x", 3, 7)),
    poll(1, {"x": [(1, 1), (2, 2), (7, 3)]}),
)

# Where a process goes on.
_ON = [*sent(6), *poll(1, {"x": numbers(0)}), *poll(9, {"x": numbers(0, 1, 2, 3, 4, 5)})]
case("kafka-skips-between-polls", "kafka", "invalid", "H29")(_ON, poll(1, {"x": numbers(2, 3)}))
case("kafka-goes-back-between-polls", "kafka", "invalid", "H30")(
    _ON, poll(1, {"x": numbers(1, 2)}), poll(1, {"x": numbers(2, 3)})
)
for _f in ("assign", "subscribe"):
    case(f"kafka-{_f}-without-the-key-allows-a-skip", "kafka", "valid")(
        _ON, take(1, "y", f=_f), poll(1, {"x": numbers(2, 3)})
    )
case("kafka-assign-without-outcome-allows-a-skip", "kafka", "valid")(
    _ON, take(1, "y", how="info"), poll(1, {"x": numbers(2, 3)})
)
case("kafka-assign-with-the-key-allows-no-skip", "kafka", "invalid", "H29")(
    _ON, take(1, "x", "y"), poll(1, {"x": numbers(2, 3)})
)
case("kafka-assign-that-failed-allows-no-skip", "kafka", "invalid", "H29")(
    _ON, take(1, "y", how="fail"), poll(1, {"x": numbers(2, 3)})
)
case("kafka-assign-from-the-beginning", "kafka", "valid")(
    _ON, take(1, "x", **{"seek-to-beginning?": True}), poll(1, {"x": numbers(0, 1)})
)
case("kafka-subscription-may-skip-between-polls", "kafka", "valid")(
    _ON, take(1, "x", f="subscribe"), poll(1, {"x": numbers(2)}), poll(1, {"x": numbers(4)})
)
case("kafka-failed-polls-go-back", "kafka", "valid")(
    _ON,
    poll(1, {"x": numbers(1, 2)}, "fail"),
    poll(1, {"x": numbers(1, 2)}, "fail"),
    poll(1, {"x": numbers(1)}),
    poll(1, {"x": numbers(2)}, "info"),
)
case("kafka-failed-poll-does-not-go-back", "kafka", "invalid", "H29")(
    _ON, poll(1, {"x": numbers(1, 2)}, "fail"), poll(1, {"x": numbers(3)}, "fail")
)
case("kafka-unknown-poll-after-a-failed-one-does-not-go-back", "kafka", "invalid", "H29")(
    _ON, poll(1, {"x": numbers(1, 2)}, "fail"), poll(1, {"x": numbers(3)}, "info")
)
case("kafka-skips-within-a-poll", "kafka", "invalid", "H27")(
    sent(4), poll(1, {"x": numbers(0, 1, 2, 3)}), poll(2, {"x": numbers(0, 3)})
)
case("kafka-skips-within-an-operation", "kafka", "invalid", "H27")(
    sent(4),
    poll(1, {"x": numbers(0, 1, 2, 3)}),
    op(2, "txn", [["poll"], ["poll"]], "ok", [["poll", {"x": [[0, 0]]}], ["poll", {"x": [[2, 2]]}]]),
)
case("kafka-skips-in-a-failed-poll", "kafka", "invalid", "H27")(
    sent(4), poll(1, {"x": numbers(0, 1, 2, 3)}), poll(2, {"x": numbers(0, 3)}, "fail")
)
case("kafka-goes-back-within-a-poll", "kafka", "invalid", "H28")(
    sent(3), poll(1, {"x": numbers(0, 1, 2)}), poll(2, {"x": numbers(1, 0)})
)
case("kafka-repeats-within-an-operation", "kafka", "invalid", "H28")(
    sent(3),
    poll(1, {"x": numbers(0, 1, 2)}),
    op(2, "txn", [["poll"], ["poll"]], "ok", [["poll", {"x": [[0, 0], [1, 1]]}], ["poll", {"x": [[1, 1]]}]]),
)
_REBALANCED = {"rebalance-log": [{"keys": ["x"], "type": "assigned"}]}
case("kafka-rebalanced-within-a-poll", "kafka", "valid")(
    sent(4),
    poll(1, {"x": numbers(0, 1, 2, 3)}),
    take(2, "x", f="subscribe"),
    poll(2, {"x": numbers(0, 3)}, **_REBALANCED),
)
case("kafka-another-key-rebalanced-within-a-poll", "kafka", "invalid", "H27")(
    sent(4),
    poll(1, {"x": numbers(0, 1, 2, 3)}),
    take(2, "x", "y", f="subscribe"),
    poll(2, {"x": numbers(0, 3)}, **{"rebalance-log": [{"keys": ["y"]}]}),
)
# The order of sends.
case("kafka-sends-of-a-process-out-of-order", "kafka", "invalid", "H32 H35")(
    send(0, "ok", ("x", 3, 3), ("x", 4, 4)),
    send(0, "ok", ("x", 1, 1), ("x", 2, 2)),
    poll(1, {"x": numbers(1, 2, 3, 4)}),
)
case("kafka-sends-of-an-operation-out-of-order", "kafka", "invalid", "H31")(
    send(0, "ok", ("x", 3, 3), ("x", 1, 1)), poll(1, {"x": numbers(1, 3)})
)
case("kafka-sends-of-an-unknown-operation-out-of-order", "kafka", "invalid", "H31")(
    send(0, "info", ("x", 3), ("x", 1)), poll(1, {"x": numbers(1, 3)})
)
case("kafka-sends-against-time", "kafka", "valid", "H35", ours="invalid")(
    send(0, "ok", ("x", 3, 3)), send(1, "ok", ("x", 1, 1)), poll(2, {"x": numbers(1, 3)})
)
case("kafka-sends-of-others-between", "kafka", "valid", "H34")(
    begun(0, "txn", [["send", "x", 0], ["send", "x", 2]]),
    begun(1, "txn", [["send", "x", 1], ["send", "x", 3]]),
    ended(0, "txn", "ok", [["send", "x", [0, 0]], ["send", "x", [2, 2]]]),
    ended(1, "txn", "ok", [["send", "x", [1, 1]], ["send", "x", [3, 3]]]),
    poll(2, {"x": numbers(0, 1, 2, 3)}),
)
case("kafka-send-of-another-between", "kafka", "valid", "H34")(
    begun(0, "txn", [["send", "x", 0], ["send", "x", 2]]),
    send(1, "ok", ("x", 1, 1)),
    ended(0, "txn", "ok", [["send", "x", [0, 0]], ["send", "x", 2]]),
    poll(2, {"x": numbers(0, 1, 2)}),
)
# Circles.
case("kafka-two-orders-of-two-transactions", "kafka", "valid", "H34")(
    begun(0, "txn", [["send", "x", 1], ["send", "y", 1]]),
    begun(1, "txn", [["send", "x", 2], ["send", "y", 2]]),
    ended(0, "txn", "ok", [["send", "x", [0, 1]], ["send", "y", [1, 1]]]),
    ended(1, "txn", "ok", [["send", "x", [1, 2]], ["send", "y", [0, 2]]]),
    poll(2, {"x": [(0, 1), (1, 2)], "y": [(0, 2), (1, 1)]}),
)
case("kafka-two-transactions-saw-each-other", "kafka", "invalid", "H33 H34")(
    begun(0, "txn", [["send", "x", 1], ["poll"]]),
    begun(1, "txn", [["send", "y", 2], ["poll"]]),
    ended(0, "txn", "ok", [["send", "x", [0, 1]], ["poll", {"y": [[0, 2]]}]]),
    ended(1, "txn", "ok", [["send", "y", [0, 2]], ["poll", {"x": [[0, 1]]}]]),
)
case("kafka-three-transactions-saw-each-other", "kafka", "invalid", "H33 H34")(
    *(begun(n, "txn", [["send", key, n], ["poll"]]) for n, key in enumerate("xyz")),
    *(
        ended(n, "txn", "ok", [["send", key, [0, n]], ["poll", {"zxy"[n]: [[0, (n + 2) % 3]]}]])
        for n, key in enumerate("xyz")
    ),
)
case("kafka-saw-one-before-which-it-sent", "kafka", "valid", "H34")(
    begun(0, "txn", [["send", "x", 1], ["send", "y", 3]]),
    begun(1, "txn", [["poll"], ["send", "y", 2]]),
    ended(0, "txn", "ok", [["send", "x", [0, 1]], ["send", "y", [2, 3]]]),
    ended(1, "txn", "ok", [["poll", {"x": [[0, 1]]}], ["send", "y", [1, 2]]]),
    poll(2, {"y": [(1, 2), (2, 3)]}),
)
#: Process 1 polls, at last, what begins when another one has read what process 1 sends.
case("kafka-a-chain-ends-before-it-begins", "kafka", "invalid", "H33")(
    begun(1, "txn", [["send", "y", 1], ["poll"]]),
    poll(2, {"y": [(0, 1)]}),
    send(0, "ok", ("x", 1, 0)),
    ended(1, "txn", "ok", [["send", "y", [0, 1]], ["poll", {"x": [[0, 1]]}]]),
)
case("kafka-ends-what-it-has-not-begun", "kafka", "invalid", "W2", ours="unknown")(
    ended(5, "poll", "ok", [["poll", {"x": [[0, 1]]}]])
)

# -- sets --------------------------------------------------------------------------------------------------


def add(process: int, value: Any, how: str = "ok") -> History:
    return op(process, "add", value, how)


def read(process: int, *values: Any, how: str = "ok") -> History:
    return [(process, "invoke", "read", None), (process, how, "read", list(values))]


case("set-all-read", "set", "valid")(add(0, 1), add(0, 2, "info"), add(1, 3, "fail"), read(2, 1, 2))
case("set-lost", "set", "invalid", "H3 H7")(add(0, 1), add(0, 2), read(1, 1))
case("set-never-added", "set", "invalid", "H1")(add(0, 1), read(1, 1, 7))
case("set-failed-add-read", "set", "valid", "H2", ours="invalid")(add(0, 1), add(0, 2, "fail"), read(1, 1, 2))
case("set-not-read", "set", "unknown", "W8")(add(0, 1))
case("set-read-at-the-same-time", "set", "unknown", "W8")(
    begun(0, "add", 1), begun(1, "read", None), ended(0, "add", "ok", 1), ended(1, "read", "ok", [])
)
case("set-shown-while-it-is-added", "set", "valid")(
    begun(1, "read", None), begun(0, "add", 1), ended(1, "read", "ok", [1]), ended(0, "add", "ok", 1)
)
case("set-missing-for-a-while", "set", "valid", "H7")(add(0, 1), read(1), read(1, 1))
case("set-gone-again", "set", "invalid", "H3 H7")(
    begun(0, "add", 1), read(1, 1), ended(0, "add", "ok", 1), read(1)
)
case("set-shows-one-twice", "set", "invalid", "H5")(add(0, 1), read(1, 1, 1))

# -- queues ------------------------------------------------------------------------------------------------


def enqueue(process: int, value: Any, how: str = "ok") -> History:
    return op(process, "enqueue", value, how)


def dequeue(process: int, value: Any = None, how: str = "ok") -> History:
    return [(process, "invoke", "dequeue", None), (process, how, "dequeue", value)]


def drain(process: int, *values: Any, how: str = "ok") -> History:
    return [(process, "invoke", "drain", None), (process, how, "drain", list(values))]


case("queue-taken-by-several", "queue", "valid")(
    begun(0, "enqueue", 1), enqueue(1, 2), dequeue(2, 1), dequeue(2, 2), drain(3)
)
case("queue-all-taken-without-a-drain", "queue", "valid")(enqueue(0, 1), enqueue(0, 2, "info"), dequeue(1, 1))
case("queue-taken-while-it-goes-in", "queue", "valid")(
    begun(1, "dequeue", None), begun(0, "enqueue", 1), ended(1, "dequeue", "ok", 1), drain(3)
)
case("queue-taken-without-having-gone-in", "queue", "invalid", "H1")(
    enqueue(0, 1), dequeue(1, 9), drain(2, 1)
)
case("queue-taken-before-it-goes-in", "queue", "valid", "H1", ours="invalid")(
    dequeue(1, 9), enqueue(0, 9), drain(2)
)
case("queue-lost", "queue", "invalid", "H3")(enqueue(0, 1), enqueue(0, 2), dequeue(1, 2), drain(2))
case("queue-lost-and-taken-twice", "queue", "invalid", "H1 H3 H4")(
    begun(0, "enqueue", 1),
    enqueue(1, 2),
    enqueue(2, 3),
    dequeue(3, 9),
    dequeue(4, 3),
    dequeue(5, 3),
    drain(6),
)
case("queue-may-be-with-a-reader-who-never-said", "queue", "invalid", "H0", ours="unknown")(
    enqueue(0, 1), dequeue(1, how="info"), drain(2)
)
case("queue-more-lost-than-readers-who-never-said", "queue", "invalid", "H3")(
    enqueue(0, 1), enqueue(0, 2), dequeue(1, how="info"), drain(2)
)
case("queue-taken-twice", "queue", "valid", "H4")(enqueue(0, 1), dequeue(1, 1), dequeue(1, 1), drain(2))
case("queue-failed-enqueue-taken", "queue", "valid", "H2", ours="invalid")(
    enqueue(0, 1, "fail"), dequeue(1, 1), drain(2)
)
case("queue-not-drained", "queue", "invalid", "W8", ours="unknown")(
    enqueue(0, 1), enqueue(0, 2), dequeue(1, 1)
)
case("queue-ends-a-dequeue-that-had-not-begun", "queue", "invalid", "W2", ours="unknown")(
    ended(1, "dequeue", "ok", 9), drain(2)
)
case("queue-ends-an-enqueue-that-had-not-begun", "queue", "valid", "W2", ours="unknown")(
    ended(1, "enqueue", "ok", 9), drain(2)
)

# -- registers ---------------------------------------------------------------------------------------------


def write(process: int, value: Any, how: str = "ok") -> History:
    return op(process, "write", value, how)


def compare(process: int, old: Any, new: Any, how: str = "ok") -> History:
    return op(process, "cas", [old, new], how)


def look(process: int, value: Any, how: str = "ok") -> History:
    return [(process, "invoke", "read", None), (process, how, "read", value)]


case("register-values-repeat", "register", "valid")(
    write(0, 1), write(0, 2), look(1, 2), write(0, 1), look(1, 1), compare(1, 1, 2), look(0, 2)
)
case("register-stale", "register", "invalid", "H8")(write(0, 1), write(0, 2), look(1, 1), look(1, 2))
case("register-compared-with-another-value", "register", "invalid", "H8")(write(0, 1), compare(1, 2, 3))
case("register-unknown-write-is-seen-later", "register", "valid")(
    write(0, 1), write(1, 2, "info"), look(2, 1), write(0, 3), look(2, 3), look(2, 2)
)
case("register-unknown-write-is-seen-twice", "register", "invalid", "H8")(
    write(0, 1), write(1, 2, "info"), look(2, 2), write(0, 3), look(2, 3), look(2, 2)
)
case("register-failed-write-is-seen", "register", "invalid", "H8")(
    write(0, 1), write(1, 2, "fail"), look(2, 2)
)
case("register-began-with-a-value", "register", "valid", "H9", ours="unknown")(
    look(0, 7), write(0, 1), look(1, 1)
)
case("register-failed-comparison-says-nothing", "register", "valid")(write(0, 1), compare(1, 1, 2, "fail"))
case("register-read-of-nothing-says-nothing", "register", "valid")(write(0, 1), look(1, None), look(1, 1))
case("register-ends-what-it-has-not-begun", "register", "invalid", "W2", ours="unknown")(
    write(0, 1), ended(1, "read", "ok", 7)
)

# -- stores ------------------------------------------------------------------------------------------------


def put(process: int, key: str, text: str, how: str = "ok") -> History:
    return op(process, "put", (key, text), how)


def append(process: int, key: str, text: str, how: str = "ok") -> History:
    return op(process, "append", (key, text), how)


def get(process: int, key: str, text: str) -> History:
    return [(process, "invoke", "get", (key, None)), (process, "ok", "get", (key, text))]


case("store-put-then-append", "store", "valid")(
    append(0, "k", "a"), put(0, "k", "b"), append(1, "k", "c"), get(2, "k", "bc"), get(2, "other", "")
)
case("store-equal-texts-twice", "store", "valid")(append(0, "k", "a"), append(1, "k", "a"), get(2, "k", "aa"))
case("store-texts-that-can-be-cut-in-two-ways", "store", "valid")(
    append(0, "k", "ab"),
    append(0, "k", "a"),
    append(0, "k", "b"),
    append(0, "k", "ab"),
    get(1, "k", "abababab"[:6]),
)
case("store-one-append-twice", "store", "invalid", "H8")(append(0, "k", "a"), get(2, "k", "aa"))
case("store-unknown-append-seen", "store", "valid")(
    append(0, "k", "a"),
    begun(1, "append", ("k", "b")),
    append(0, "k", "c"),
    get(2, "k", "ac"),
    get(2, "k", "acb"),
)
case("store-unknown-append-not-seen", "store", "valid")(
    append(0, "k", "a"), begun(1, "append", ("k", "b")), append(0, "k", "c"), get(2, "k", "ac")
)
case("store-unknown-append-gone-again", "store", "invalid", "H8")(
    append(0, "k", "a"), begun(1, "append", ("k", "b")), get(2, "k", "ab"), get(2, "k", "a")
)
case("store-append-lost-by-a-put-before-it", "store", "invalid", "H8")(
    put(0, "k", "a"), append(1, "k", "b"), get(2, "k", "a")
)
case("store-appends-in-two-orders", "store", "invalid", "H8")(
    begun(0, "append", ("k", "a")),
    begun(1, "append", ("k", "b")),
    get(2, "k", "ab"),
    get(3, "k", "ba"),
    ended(0, "append", "ok", ("k", "a")),
    ended(1, "append", "ok", ("k", "b")),
)
case("store-never-put", "store", "invalid", "H8")(get(0, "k", "x"))
case("store-ends-what-it-has-not-begun", "store", "invalid", "W2", ours="unknown")(
    ended(0, "get", "ok", ("k", "x"))
)


# -- changes that make no verdict better -------------------------------------------------------------------


def _good(model: str, rounds: int) -> list[History]:
    """Operations beside which nothing is wrong, of keys and processes of their own, or of elements."""
    if model == "kafka":
        sends = [send(700, "ok", ("pad", n, n)) for n in range(rounds)]
        return [*sends, poll(701, {"pad": numbers(*range(rounds))})]
    if model == "store":
        ops = [append(700, "pad", f"{n};") for n in range(rounds)]
        return [*ops, get(701, "pad", "".join(f"{n};" for n in range(rounds)))]
    if model == "set":
        return [add(700, 1_000 + n) for n in range(rounds)]
    if model == "queue":
        return [part for n in range(rounds) for part in (enqueue(700, 1_000 + n), dequeue(701, 1_000 + n))]
    return [part for n in range(rounds) for part in (write(700, 1_000 + n), look(701, 1_000 + n))]


def padded(one: Case, rng: random.Random | None = None, rounds: int = 6) -> History:
    """With good operations before it, or, by `rng`, among it.

    A register is one key, whose value they change, so they come behind; what a set held is shown by its later
    reads.
    """
    good = _good(one.model, rounds)
    if one.model == "register":
        return one.history + [event for part in good for event in part]
    if rng is None:
        history = [event for part in good for event in part] + one.history
    else:
        places = sorted(rng.randint(0, len(one.history)) for _ in good)
        history, at = [], 0
        for place, part in zip(places, good, strict=True):
            history += [*one.history[at:place], *part]
            at = place
        history += one.history[at:]
    if one.model != "set":
        return history
    return [_with_padding(event, history[: history.index(event)]) for event in history]


def _with_padding(event: Event, before: History) -> Event:
    if event[1:3] != ("ok", "read"):
        return event
    shown = [one[3] for one in before if one[:3] == (700, "ok", "add")]
    return (*event[:3], [*event[3], *shown], *event[4:])


def renamed(history: History, rng: random.Random) -> History:
    """With other names of processes."""
    names = sorted({event[0] for event in history})
    others = dict(zip(names, rng.sample(range(2_000, 3_000), len(names)), strict=True))
    return [(others[event[0]], *event[1:]) for event in history]


def beside(one: Case, other: Case, rng: random.Random) -> History:
    """Two histories at once, of different keys and processes, if they have any."""
    first, second = padded(one), [_elsewhere(event) for event in padded(other)]
    merged = []
    while first or second:
        source = first if first and (not second or rng.random() < 0.5) else second
        merged.append(source.pop(0))
    return merged


def _elsewhere(event: Event) -> Event:
    process, how, name, value, *about = event
    return (process + 5_000, how, name, _moved(value), *about)


def _moved(value: Any) -> Any:
    """Values of kafka and of stores, with other keys."""
    if isinstance(value, tuple):
        return (f"{value[0]}'", value[1])
    if isinstance(value, dict):
        return {f"{key}'": shown for key, shown in value.items()}
    if isinstance(value, list):
        if value and value[0] == "send":
            return ["send", f"{value[1]}'", *value[2:]]
        return [f"{one}'" if isinstance(one, str) and one != "poll" else _moved(one) for one in value]
    return value


# -- files -------------------------------------------------------------------------------------------------


def write_history(path: Path, model: str, history: History) -> Path:
    """As JSON lines of Jepsen's, or as a log of Porcupine's. The path with its suffix."""
    if model != "store":
        path = path.with_name(f"{path.name}.jsonl")
        lines = []
        for process, how, name, value, *about in history:
            more = about[0] if about else {}
            lines.append(json.dumps({"process": process, "type": how, "f": name, "value": value, **more}))
    else:
        path = path.with_name(f"{path.name}.log")
        lines = [
            f'{{:process {process}, :type :{how}, :f :{name}, :key "{value[0]}", :value {_edn(value[1])}}}'
            for process, how, name, value, *_ in history
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _edn(text: str | None) -> str:
    return "nil" if text is None else json.dumps(text)
