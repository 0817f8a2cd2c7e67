"""One released Python client of RocketMQ 5, driven over its standard input and output.

    python driver.py THREADS ADDRESSES

Run by an interpreter that has `rocketmq-python-client`; needs nothing else of this project. Each line that it
reads is a request as JSON, `{"id": 1, "do": "send", ...}`, and is answered by one line, in any order, with
that id: `{"id": 1, "ok": {...}}`, or `{"id": 1, "error": {"type", "code", "text"}}` with what the client
raised. The first line that it writes is `{"ready": true}`. It ends when its input ends, as a client does that
is killed: nothing is said to the servers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, TextIO

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

_REQUEST_TIMEOUT_S = 3

Fields = dict[str, Any]


def keep_places() -> None:
    """Have messages that are received remember where they stand: the client reads that and drops it."""
    plain = Message.fromProtobuf

    def with_place(self: Message, message: Any) -> Message:
        system = message.system_properties
        self.place = (system.queue_id, system.queue_offset)
        return plain(self, message)

    Message.fromProtobuf = with_place


class Driver:
    """The client of this process: one at a time, which may be closed and followed by another one."""

    def __init__(self, address: str) -> None:
        self._configuration = ClientConfiguration(
            address, Credentials(), "", request_timeout=_REQUEST_TIMEOUT_S
        )
        self._client: Any = None
        self._held: dict[int, Message] = {}  # what was received, until it is done with
        self._handles = count()

    def producer(self, topics: list[str]) -> Fields:
        self._start(Producer(self._configuration, topics))
        return {}

    def consumer(self, group: str, topics: list[str], filter: str, wait_s: int) -> Fields:
        wanted = {topic: FilterExpression(filter) for topic in topics}
        self._start(SimpleConsumer(self._configuration, group, wanted, wait_s))
        return {}

    def send(self, topic: str, body: str, tag: str, key: str, message_group: str = "") -> Fields:
        message = Message()
        message.topic, message.body, message.tag, message.keys = topic, b64decode(body), tag, key
        if message_group:
            message.message_group = message_group
        receipt = self._client.send(message)
        return {"offset": receipt.offset, "message_id": receipt.message_id}

    def receive(self, most: int, invisible_s: int) -> Fields:
        return {"messages": [self._told(one) for one in self._client.receive(most, invisible_s)]}

    def ack(self, handle: int) -> Fields:
        self._client.ack(self._held.pop(handle))
        return {}

    def change(self, handle: int, invisible_s: int) -> Fields:
        self._client.change_invisible_duration(self._held[handle], invisible_s)
        return {}

    def forget(self, handle: int) -> Fields:
        """The message is left alone."""
        del self._held[handle]
        return {}

    def close(self) -> Fields:
        """Says farewell to the servers. Without a client: nothing."""
        client, self._client = self._client, None
        if client is not None:
            client.shutdown()
        self._held.clear()
        return {}

    def _start(self, client: Any) -> None:
        client.startup()
        self._client = client

    def _told(self, message: Message) -> Fields:
        handle = next(self._handles)
        self._held[handle] = message
        queue_id, offset = message.place
        return {
            "handle": handle,
            "topic": message.topic,
            "q": queue_id,
            "qoff": offset,
            "attempt": message.delivery_attempt,
            "tag": message.tag or "",
            "keys": " ".join(sorted(message.keys)),
            "body": b64encode(message.body).decode(),
        }


class Answers:
    """Lines from several threads, one at a time."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def write(self, answer: Fields) -> None:
        line = json.dumps(answer) + "\n"
        with self._lock:
            self._out.write(line)
            self._out.flush()


def answer(driver: Driver, request: Fields, answers: Answers) -> None:
    number, name = request.pop("id"), request.pop("do")
    try:
        do: Callable[..., Fields] = getattr(driver, name)
        answers.write({"id": number, "ok": do(**request)})
    except Exception as error:  # whatever the client raises is what its user sees
        answers.write({"id": number, "error": error_of(error)})


def error_of(error: Exception) -> Fields:
    """`code`: of RocketMQ's status codes; 0: the client gave none."""
    code = getattr(error, "code", None)
    return {
        "type": type(error).__name__,
        "code": int(code) if isinstance(code, int) else 0,
        "text": str(error)[:500],
    }


def main() -> None:
    threads, address = int(sys.argv[1]), sys.argv[2]
    answers = Answers(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a client prints is no answer
    keep_places()
    driver, pool = Driver(address), ThreadPoolExecutor(threads)
    answers.write({"ready": True})
    for line in sys.stdin:
        pool.submit(answer, driver, json.loads(line), answers)
    os._exit(0)


if __name__ == "__main__":
    main()
