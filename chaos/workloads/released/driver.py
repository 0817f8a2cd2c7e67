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
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, TextIO

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

_REQUEST_TIMEOUT_S = 3
#: RocketMQ's status code.
OK = 20000

Fields = dict[str, Any]


def keep_places() -> None:
    """Have messages that are received remember where they stand: the client reads that and drops it."""
    plain = Message.fromProtobuf

    def with_place(self: Message, message: Any) -> Message:
        system = message.system_properties
        self.place = (system.queue_id, system.queue_offset)
        return plain(self, message)

    Message.fromProtobuf = with_place


class Handover(MessageListener):  # type: ignore[misc]
    """Hands over what a push consumer has received, and waits to be told what became of it."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[Message] = SimpleQueue()

    def consume(self, message: Message) -> ConsumeResult:
        # In a group that consumes in order the client tries again automatically, and counts that nowhere.
        message.tries = getattr(message, "tries", 0) + 1
        message.is_done, message.acked = Future(), Future()
        self.messages.put(message)
        return ConsumeResult.SUCCESS if message.is_done.result() else ConsumeResult.FAILURE


class HeardPushConsumer(PushConsumer):  # type: ignore[misc]
    """Tells what the server answered to the first ack of a message; the client repeats it automatically."""

    def _ack(self, message: Message) -> None:
        try:
            super()._ack(message)
        except Exception as error:
            if not message.acked.done():
                message.acked.set_exception(error)
            raise
        if not message.acked.done():
            message.acked.set_result(None)


class Checker(TransactionChecker):  # type: ignore[misc]
    """Hands over the halves that the server asks about, and waits to be told how they end."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self._checked = threading.local()

    def check(self, message: Message) -> TransactionResolution:
        message.is_commit, message.ended = Future(), Future()
        self.messages.put(message)
        is_commit = message.is_commit.result()
        self._checked.message = message
        return TransactionResolution.COMMIT if is_commit else TransactionResolution.ROLLBACK

    def listen(self, client: Any) -> None:
        """Have what the server answers to the end of a checked half told: the client logs it only. It ends
        one in the thread that has checked it."""
        plain = client.rpc_client.end_transaction_async

        def end_transaction_async(*about: Any, **more: Any) -> Any:
            answer = plain(*about, **more)
            message, self._checked.message = getattr(self._checked, "message", None), None
            if message is not None:
                answer.add_done_callback(lambda answer: tell(answer, message.ended))
            return answer

        client.rpc_client.end_transaction_async = end_transaction_async


def tell(answer: Any, ended: Future[None]) -> None:
    try:
        status = answer.result().status
    except Exception as error:
        ended.set_exception(error)
        return
    if status.code != OK:
        ended.set_exception(EndRefused(status.message, status.code))
    else:
        ended.set_result(None)


class EndRefused(Exception):
    """As the client raises of ends that its user asked for."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Driver:
    """The client of this process: one at a time, which may be closed and followed by another one."""

    def __init__(self, address: str) -> None:
        self._configuration = ClientConfiguration(
            address, Credentials(), "", request_timeout=_REQUEST_TIMEOUT_S
        )
        self._client: Any = None
        self._held: dict[int, Any] = {}  # messages and transactions, until they are done with
        self._handles = count()
        self._handover, self._checker = Handover(), Checker()

    def producer(self, topics: list[str]) -> Fields:
        self._start(Producer(self._configuration, topics, checker=self._checker))
        self._checker.listen(self._client)
        return {}

    def consumer(self, group: str, topics: list[str], filter: str, wait_s: int) -> Fields:
        wanted = {topic: FilterExpression(filter) for topic in topics}
        self._start(SimpleConsumer(self._configuration, group, wanted, wait_s))
        return {}

    def push(self, group: str, topics: list[str], filter: str) -> Fields:
        wanted = {topic: FilterExpression(filter) for topic in topics}
        self._handover = Handover()
        self._start(HeardPushConsumer(self._configuration, group, self._handover, wanted))
        return {}

    def send(self, message_group: str = "", due_ms: int = 0, **about: str) -> Fields:
        """`due_ms`: Unix time of whole seconds; 0: it is not delayed."""
        message = message_of(**about)
        if message_group:
            message.message_group = message_group
        if due_ms:
            message.delivery_timestamp = due_ms // 1000
        receipt = self._client.send(message)
        told = {"offset": receipt.offset, "message_id": receipt.message_id}
        return told | ({"recall_handle": receipt.recall_handle} if due_ms else {})

    def recall(self, topic: str, recall_handle: str) -> Fields:
        self._client.recall_message(topic, recall_handle)
        return {}

    def half(self, **about: str) -> Fields:
        """A message in a transaction of its own."""
        transaction = self._client.begin_transaction()
        self._client.send(message_of(**about), transaction)
        return {"handle": self._hold(transaction)}

    def end(self, handle: int, commit: bool) -> Fields:
        transaction = self._held.pop(handle)
        (transaction.commit if commit else transaction.rollback)()
        return {}

    def checks(self, wait_s: float) -> Fields:
        """Halves that the server has asked about."""
        asked = some_of(self._checker.messages, 1, wait_s)
        return {"messages": [{"handle": self._hold(one), "body": text_of(one)} for one in asked]}

    def decide(self, handle: int, commit: bool) -> Fields:
        """How such a half ends."""
        message = self._held.pop(handle)
        message.is_commit.set_result(commit)
        message.ended.result()
        return {}

    def receive(self, most: int, invisible_s: int) -> Fields:
        return {"messages": [self._told(one) for one in self._client.receive(most, invisible_s)]}

    def take(self, most: int, wait_s: float) -> Fields:
        """What a push consumer has handed over."""
        return {"messages": [self._told(one) for one in some_of(self._handover.messages, most, wait_s)]}

    def settle(self, handle: int, is_done: bool) -> Fields:
        """What became of that. If it is done: until the client was answered to its first ack."""
        message = self._held.pop(handle)
        message.is_done.set_result(is_done)
        if is_done:
            message.acked.result()
        return {}

    def ack(self, handle: int) -> Fields:
        self._client.ack(self._held.pop(handle))
        return {}

    def change(self, handle: int, invisible_s: int) -> Fields:
        self._client.change_invisible_duration(self._held[handle], invisible_s)
        return {}

    def forget(self, handle: int) -> Fields:
        """The message, or the transaction, is left alone."""
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

    def _hold(self, what: Any) -> int:
        handle = next(self._handles)
        self._held[handle] = what
        return handle

    def _told(self, message: Message) -> Fields:
        queue_id, offset = message.place
        return {
            "handle": self._hold(message),
            "topic": message.topic,
            "q": queue_id,
            "qoff": offset,
            "attempt": message.delivery_attempt + getattr(message, "tries", 1) - 1,
            "tag": message.tag or "",
            "keys": " ".join(sorted(message.keys)),
            "body": text_of(message),
        }


def message_of(topic: str, body: str, tag: str, key: str) -> Message:
    message = Message()
    message.topic, message.body, message.tag, message.keys = topic, b64decode(body), tag, key
    return message


def text_of(message: Message) -> str:
    return b64encode(message.body).decode()


def some_of(messages: SimpleQueue[Message], most: int, wait_s: float) -> list[Message]:
    """Up to so many; none if none comes in time."""
    found: list[Message] = []
    try:
        found.append(messages.get(timeout=wait_s))
        while len(found) < most:
            found.append(messages.get_nowait())
    except Empty:
        pass
    return found


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
