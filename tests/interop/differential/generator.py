"""Make a sequence of legal requests from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .steps import RESTART, Step

_TAGS = ("", "red", "green", "blue")
_EXPRESSIONS = ("*", "red", "red || green", "blue", "yellow")
_SQL = ("n > 2", "colour = 'ünï'", "n is null", "TAGS = 'red'")
_KEYS = ("", "k0", "k1", "k0 k1", "k2")


class Generator:
    """`steps()` of one sequence. It keeps a model of topics and of what was sent, to make legal requests that
    mostly concern something."""

    def __init__(self, seed: int, length: int, has_restarts: bool = False) -> None:
        self._has_restarts = has_restarts
        self._pending: list[str] = []  # topics whose one message is delayed across a restart
        self._retryable: list[Step] = []
        self._random = random.Random(seed)
        self._length = length
        self._steps: list[Step] = []
        self._topics: dict[str, int] = {}  # queues
        self._sends: list[Step] = []  # that store messages, by `send` or `batch`
        self._halves: list[Step] = []
        self._groups = ["G0", "G1"]
        self._returned: set[str] = set()  # groups to which messages were sent back

    def steps(self) -> list[Step]:
        for number in range(self._random.choice((1, 2, 2, 3))):
            self._create_topic(f"T{number}")
        for group in self._groups:
            if self._chance(0.8):
                self._add("setup_group", group=group)
            else:  # created by use
                self._add("pull", group=group, topic="T0", queue=0, offset=0, count=1)
        choices: dict[Callable[[], None], int] = {
            self._send: 30,
            self._batch: 5,
            self._repeated_send: 5,
            self._pull: 15,
            self._read_offsets: 8,
            self._search: 8,
            self._query: 8,
            self._view: 4,
            self._query_offset: 6,
            self._commit: 8,
            self._reset: 3,
            self._ask_administration: 6,
        }
        if self._chance(0.5):  # each of these takes seconds
            choices |= {self._delayed: 3, self._half: 5, self._end_half: 5, self._send_back: 3}
        if self._chance(0.5):
            choices |= {self._change_topic: 4, self._recreate_topic: 2, self._change_group: 3}
        actions, weights = list(choices), list(choices.values())
        restarts = {self._length // 2, self._length * 3 // 4} if self._has_restarts else set()
        while len(self._steps) < self._length:
            self._random.choices(actions, weights)[0]()
            if due := {at for at in restarts if at <= len(self._steps)}:
                restarts -= due
                self._restart()
        for topic in self._pending:
            self._add("wait_for_end", topic=topic, queue=0, end=1)
            self._add("drain", topic=topic, queues=1)
        for topic, queues in self._topics.items():
            self._add("drain", topic=topic, queues=queues)
            for group in self._groups:
                self._add("drain_offsets", topic=topic, queues=queues, group=group)
        for group in sorted(self._returned):
            self._add("drain", topic=f"%RETRY%{group}", queues=1)
            self._add("drain", topic=f"%DLQ%{group}", queues=1)
        return self._steps

    def _add(self, kind: str, **args: Any) -> Step:
        step = Step(len(self._steps), kind, args)
        self._steps.append(step)
        return step

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _stored(self, step: Step) -> None:
        self._sends.append(step)
        self._retryable.append(step)

    def _restart(self) -> None:
        """Two of three sequences with restarts exchange directories. Ids that show retries belong
        to the broker: RocketMQ's directory has none."""
        for _ in range(2):
            topic = f"D{len(self._pending)}"
            self._pending.append(topic)
            self._add("setup_topic", topic=topic, read=1, write=1)
            message = self._message(f"p{len(self._steps)}")
            # 5 s or 10 s: due while the brokers are down, or after it.
            message["properties"] = {"DELAY": self._random.choice(("2", "3"))}
            self._add("send_delayed", topic=topic, queue=0, arrives=False, **message)
        exchange = {"exchange": True} if self._chance(0.67) else {}
        self._add(RESTART, how=self._random.choice(("stop", "kill")), **exchange)
        self._retryable = []
        for group in self._groups:  # RocketMQ takes no commits of a group that nobody has used there
            self._add("pull", group=group, topic="T0", queue=0, offset=0, count=1)

    def _topic(self) -> str:
        return self._random.choice(list(self._topics))

    def _queue(self, topic: str) -> int:
        return self._random.randrange(self._topics[topic])

    # -- sends --------------------------------------------------------------------------------------------

    def _create_topic(self, name: str) -> None:
        queues = self._random.choice((1, 2, 4))
        self._topics[name] = queues
        self._add("setup_topic", topic=name, read=queues, write=queues)

    def _message(self, label: str) -> dict[str, Any]:
        body = f"{label} " + "x" * self._random.choice((0, 0, 10, 40, 3_000))
        args: dict[str, Any] = {"body": body, "id": f"{len(self._steps):04}{label[-4:]}".replace(".", "E")}
        if tag := self._random.choice(_TAGS):
            args["tags"] = tag
        if keys := self._random.choice(_KEYS):
            args["keys"] = keys
        if self._chance(0.2):
            args["properties"] = {"colour": "ünï", "n": str(self._random.randrange(5))}
        return args

    def _send(self) -> None:
        topic = self._topic()
        message = self._message(f"s{len(self._steps)}")
        if self._chance(0.1):
            message["flag"] = self._random.choice((1, -1, 1 << 20))
        step = self._add("send", topic=topic, queue=self._queue(topic), **message)
        self._stored(step)

    def _batch(self) -> None:
        topic = self._topic()
        label = f"b{len(self._steps)}"
        messages = [self._message(f"{label}.{number}") for number in range(self._random.randint(1, 5))]
        step = self._add(
            "batch",
            topic=topic,
            queue=self._queue(topic),
            messages=messages,
            id=f"{len(self._steps):04}BA",
        )
        self._stored(step)

    def _repeated_send(self) -> None:
        """A client's retry; the program sends again after more than the span of retries; or one object that
        is filled anew and sent again, with its old id."""
        if not self._retryable:
            return
        of = self._random.choice(self._retryable[-5:])
        kind = self._random.choice(("retry", "later", "refilled"))
        if kind == "retry":
            self._add("retry_send", of=of.number, later_ms=self._random.choice((0, 3_000)))
        elif kind == "later":
            later_ms = self._random.choice((20_000, 3_600_000))
            step = self._add("repeat_send", of=of.number, topic=of.args["topic"], later_ms=later_ms)
            # From now on, retries are retries of this send.
            self._retryable[self._retryable.index(of)] = step
        elif of.kind == "send":
            args = {**of.args, "body": f"r{len(self._steps)} refilled"}
            self._stored(self._add("send", **args))

    # -- reads --------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        topic = self._topic()
        args: dict[str, Any] = {
            "group": self._random.choice(self._groups),
            "topic": topic,
            "queue": self._queue(topic),
            "offset": self._random.choice((0, 0, 0, 1, 2, 5)),
            "count": self._random.choice((1, 2, 8, 32)),
        }
        if self._chance(0.2):
            args |= {"from_end": True, "offset": self._random.choice((-2, -1, 0, 1, 5))}
        elif self._chance(0.5):
            args["expression"] = self._random.choice(_EXPRESSIONS)
            if self._chance(0.2):
                args |= {"expression": self._random.choice(_SQL), "type": "SQL92"}
            self._add("pull_filtered", **args)
            return
        self._add("pull", **args)

    def _read_offsets(self) -> None:
        topic = self._topic()
        kind = self._random.choice(("max_offset", "min_offset", "earliest_time"))
        self._add(kind, topic=topic, queue=self._queue(topic))

    def _search(self) -> None:
        boundary = self._random.choice((None, "LOWER", "UPPER"))
        args: dict[str, Any] = {"boundary": boundary} if boundary else {}
        if self._sends and self._chance(0.8):
            of = self._random.choice(self._sends)
            args |= {
                "of": of.number,
                "topic": of.args["topic"],
                "delta_ms": self._random.choice((-1, 0, 0, 1)),
            }
            is_same = self._chance(0.7)
            args["queue"] = of.args["queue"] if is_same else self._queue(of.args["topic"])
        else:
            topic = self._topic()
            args |= {"topic": topic, "queue": self._queue(topic)}
            args["when_ms"] = self._random.choice((0, 1, 1_000_000_000_000, 1 << 43))
        self._add("search", **args)

    def _query(self) -> None:
        if self._sends and self._chance(0.5):
            of = self._random.choice(self._sends)
            if of.kind == "send":
                self._add("query_key", topic=of.args["topic"], of=of.number, count=32)
        else:
            key = self._random.choice(("k0", "k1", "k2", "k9"))
            self._add("query_key", topic=self._topic(), key=key, count=32)

    def _view(self) -> None:
        if self._sends:
            self._add("view", of=self._random.choice(self._sends).number)

    # -- offsets of groups --------------------------------------------------------------------------------

    def _of_group(self) -> dict[str, Any]:
        topic = self._topic()
        return {"group": self._random.choice(self._groups), "topic": topic, "queue": self._queue(topic)}

    def _query_offset(self) -> None:
        zero = self._random.choice((None, True, False))
        self._add("query_offset", **self._of_group(), **({} if zero is None else {"zero": zero}))

    def _commit(self) -> None:
        self._add("commit", **self._of_group(), offset=self._random.choice((0, 1, 1, 2, 3, 4, 8)))

    def _reset(self) -> None:
        args = self._of_group()
        if self._sends and self._chance(0.5):
            of = self._random.choice(self._sends)
            del args["queue"]
            args |= {"topic": of.args["topic"], "of": of.number, "delta_ms": 0}
        elif self._chance(0.5):
            args["offset"] = self._random.choice((0, 0, 1, 2))
        else:
            del args["queue"]
            args["when_ms"] = self._random.choice((0, -1, 1 << 43))
        self._add("reset", **args, force=self._chance(0.7))

    # -- delays and transactions --------------------------------------------------------------------------

    def _delayed(self) -> None:
        topic = self._topic()
        message = self._message(f"d{len(self._steps)}")
        delays = [
            ({"DELAY": "1"}, True),
            ({"DELAY": "0"}, True),
            ({"TIMER_DELAY_MS": "500"}, True),
            ({"TIMER_DELAY_SEC": "1"}, True),
            ({"TIMER_DELIVER_MS": "+800"}, True),
            ({"TIMER_DELIVER_MS": "@-5000"}, True),
            ({"TIMER_DELAY_MS": "0"}, True),
            ({"DELAY": "99"}, False),
            ({"TIMER_DELAY_SEC": "3600"}, False),
            ({"DELAY": "1", "TIMER_DELIVER_MS": "@-5000"}, True),
            ({"DELAY": "-1"}, True),
            ({"TIMER_DELAY_MS": "-5"}, True),
            ({"TIMER_DELAY_SEC": "-1"}, True),
            ({"TIMER_DELIVER_MS": "-1"}, True),
        ]
        properties, arrives = self._random.choice(delays)
        message["properties"] = {**message.get("properties", {}), **properties}
        self._add("send_delayed", topic=topic, queue=self._queue(topic), arrives=arrives, **message)

    def _half(self) -> None:
        topic = self._topic()
        message = self._message(f"h{len(self._steps)}")
        self._halves.append(self._add("half", topic=topic, queue=self._queue(topic), **message))

    def _end_half(self) -> None:
        """Once, mostly; after a check, sometimes."""
        if not self._halves:
            return
        of = self._random.choice(self._halves)
        if self._chance(0.8):
            self._halves.remove(of)
        resolution = self._random.choice(("commit", "commit", "rollback", "unknown"))
        is_checked = self._chance(0.15)
        self._add(
            "end_half", half=of.number, resolution=resolution, **({"checked": True} if is_checked else {})
        )

    def _send_back(self) -> None:
        group = self._random.choice(self._groups)
        self._returned.add(group)
        if self._chance(0.3):
            times = self._random.choice((1, 2, 3))
            self._add(
                "send_to_retry",
                group=group,
                origin=self._topic(),
                body=f"f{len(self._steps)}",
                id=f"{len(self._steps):04}FA",
                times=times,
                most=2,
            )
        elif self._sends:
            of = self._random.choice(self._sends)
            args: dict[str, Any] = {"of": of.number, "group": group, "level": self._random.choice((1, 1, -1))}
            if self._chance(0.3):
                args["most"] = self._random.choice((0, 3))
            self._add("send_back", **args)

    # -- administration -----------------------------------------------------------------------------------

    def _ask_administration(self) -> None:
        kind = self._random.choice(
            ("topic_config", "group_config", "topic_stats", "consume_stats", "groups_of_topic", "all_offsets")
        )
        args: dict[str, Any] = {}
        if kind in ("topic_config", "topic_stats", "consume_stats", "groups_of_topic"):
            args["topic"] = self._topic()
        if kind in ("group_config", "consume_stats"):
            args["group"] = self._random.choice(self._groups)
        if kind == "group_config" and not self._is_set_up(args["group"]):
            return  # RocketMQ creates a group for a pull; ours for a heartbeat, a commit or a lock
        self._add(kind, **args)

    def _is_set_up(self, group: str) -> bool:
        kinds = ("setup_group", "put_group")
        return any(step.kind in kinds and step.args["group"] == group for step in self._steps)

    def _change_topic(self) -> None:
        """More queues, an attribute, an order. The request carries all settings, as clients' do."""
        topic = self._topic()
        queues = self._topics[topic] = self._topics[topic] + self._random.choice((0, 0, 1, 2))
        args: dict[str, Any] = {"topic": topic, "read": queues, "write": queues}
        if self._chance(0.4):
            args["attributes"] = "+message.type=" + self._random.choice(("NORMAL", "FIFO", "DELAY"))
        if self._chance(0.2):
            args["order"] = True
        self._add("put_topic", **args)
        self._add("topic_config", topic=topic)

    def _recreate_topic(self) -> None:
        topic = self._topic()
        self._add("delete_topic", topic=topic)
        self._sends = [step for step in self._sends if step.args["topic"] != topic]
        self._retryable = [step for step in self._retryable if step.args["topic"] != topic]
        self._halves = [step for step in self._halves if step.args["topic"] != topic]
        queues = self._topics[topic] = self._random.choice((1, 2, 4))
        self._add("put_topic", topic=topic, read=queues, write=queues)
        if self._has_restarts:
            # Without a message of the new topic, a log of RocketMQ has no sign of the deletion: ours shows
            # the deleted messages again then (docs/classic.md).
            for queue in range(queues):
                label = f"n{len(self._steps)}"
                self._stored(self._add("send", topic=topic, queue=queue, **self._message(label)))

    def _change_group(self) -> None:
        group = self._random.choice(self._groups)
        if self._chance(0.3):
            # mqadmin leaves the offsets, unless it is told to clean.
            self._add("delete_group", group=group, clean=self._chance(0.5))
            self._add("put_group", group=group)
            return
        settings = {
            "retryMaxTimes": self._random.choice((16, 3)),
            "consumeMessageOrderly": self._chance(0.3),
            "consumeBroadcastEnable": self._chance(0.8),
        }
        self._add("put_group", group=group, settings=settings)
        self._add("group_config", group=group)
