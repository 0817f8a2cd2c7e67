"""One released Python client of RocketMQ 5, driven over standard input and output.

  python driver.py THREADS ADDRESSES

Run by an interpreter that has `rocketmq-python-client`; it imports nothing else of this project. Each input
line is a JSON request, `{"id": 1, "do": "send", ...}`. Each gets one output line with the same id, in any
order: `{"id": 1, "ok": {...}}`, or `{"id": 1, "error": {"type", "code", "text"}}` with the exception of the
client. The first output line is `{"ready": true}`. At the end of input the process exits without notifying
the servers, like a killed client.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
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
    """Patch received messages so that they keep their queue id and offset, which the client parses and
    discards, and the time."""
    plain = Message.fromProtobuf

    def with_place(self: Message, message: Any) -> Message:
        system = message.system_properties
        self.place = (system.queue_id, system.queue_offset)
        self.received_ns = time.monotonic_ns()
        return plain(self, message)

    Message.fromProtobuf = with_place


class MessageHandover(MessageListener):  # type: ignore[misc]
    """Queues the messages of a push consumer, and waits for the harness to settle each one."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[Message] = SimpleQueue()

    def consume(self, message: Message) -> ConsumeResult:
        # In a FIFO group the client retries by itself and does not count the attempts.
        message.tries = getattr(message, "tries", 0) + 1
        if message.tries > 1:
            message.received_ns = time.monotonic_ns()
        message.is_done, message.acked = Future(), Future()
        self.messages.put(message)
        return ConsumeResult.SUCCESS if message.is_done.result() else ConsumeResult.FAILURE


class AckReportingPushConsumer(PushConsumer):  # type: ignore[misc]
    """A push consumer that reports the server's answer to the first ack of a message. The client repeats acks
    itself."""

    def _ack(self, message: Message) -> None:
        try:
            super()._ack(message)
        except Exception as error:
            if not message.acked.done():
                message.acked.set_exception(error)
            raise
        if not message.acked.done():
            message.acked.set_result(None)


class HandoverChecker(TransactionChecker):  # type: ignore[misc]
    """Queues the half messages that the server checks, and waits for the harness to decide each one."""

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
        """Report the server's answer when a checked transaction ends, which the client only logs. It ends a
        transaction in the thread that checked it."""
        plain = client.rpc_client.end_transaction_async

        def end_transaction_async(*about: Any, **more: Any) -> Any:
            answer = plain(*about, **more)
            message, self._checked.message = getattr(self._checked, "message", None), None
            if message is not None:
                answer.add_done_callback(lambda answer: forward_outcome(answer, message.ended))
            return answer

        client.rpc_client.end_transaction_async = end_transaction_async


def forward_outcome(answer: Any, ended: Future[None]) -> None:
    try:
        status = answer.result().status
    except Exception as error:
        ended.set_exception(error)
        return
    if status.code != OK:
        ended.set_exception(EndRefused(status.message, status.code))
    else:
        ended.set_result(None)


#: One in this number of answers to sends is lost, which the client notices after this time (seconds). It then
#: repeats the send under the same message id.
_LOST_EVERY, _LOST_S = 40, 1.0


class AnswerLost(Exception):
    """Raised in place of an answer to a send."""


def lose_answers(client: Any) -> None:
    """Withhold some answers to sends that the server has answered, so that retries arrive late."""
    plain, numbers = client.rpc_client.send_message_async, count(1)

    def send_message_async(*about: Any, **more: Any) -> Any:
        answer = plain(*about, **more)
        if next(numbers) % _LOST_EVERY:
            return answer
        lost: Future[Any] = Future()

        def lose(_answer: Any) -> None:
            threading.Timer(_LOST_S, lost.set_exception, [AnswerLost("the answer was lost")]).start()

        answer.add_done_callback(lose)
        return lost

    client.rpc_client.send_message_async = send_message_async


class EndRefused(Exception):
    """Raised for a refused end of a checked transaction, like the client's own exception for requested
    ends."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Driver:
    """Runs the client of this process. At most one is open; a closed client may be followed by another."""

    def __init__(self, address: str) -> None:
        self._configuration = ClientConfiguration(
            address, Credentials(), "", request_timeout=_REQUEST_TIMEOUT_S
        )
        self._client: Any = None
        self._held: dict[int, Any] = {}  # messages and transactions in use
        self._handles = count()
        self._handover, self._checker = MessageHandover(), HandoverChecker()

    def producer(self, topics: list[str]) -> Fields:
        self._start(Producer(self._configuration, topics, checker=self._checker))
        self._checker.listen(self._client)
        lose_answers(self._client)
        return {}

    def consumer(self, group: str, topics: list[str], filter: str, wait_s: int) -> Fields:
        filters = {topic: FilterExpression(filter) for topic in topics}
        self._start(SimpleConsumer(self._configuration, group, filters, wait_s))
        return {}

    def push(self, group: str, topics: list[str], filter: str) -> Fields:
        filters = {topic: FilterExpression(filter) for topic in topics}
        self._handover = MessageHandover()
        self._start(AckReportingPushConsumer(self._configuration, group, self._handover, filters))
        return {}

    def send(self, message_group: str = "", due_ms: int = 0, **about: str) -> Fields:
        """Send a message. `due_ms`: Unix time in ms of a whole second; 0: no delay."""
        message = message_of(**about)
        if message_group:
            message.message_group = message_group
        if due_ms:
            message.delivery_timestamp = due_ms // 1000
        receipt = self._client.send(message)
        fields = {"offset": receipt.offset, "message_id": receipt.message_id}
        return fields | ({"recall_handle": receipt.recall_handle} if due_ms else {})

    def recall(self, topic: str, recall_handle: str) -> Fields:
        self._client.recall_message(topic, recall_handle)
        return {}

    def half(self, **about: str) -> Fields:
        """Send a half message in its own transaction."""
        transaction = self._client.begin_transaction()
        self._client.send(message_of(**about), transaction)
        return {"handle": self._hold(transaction)}

    def end(self, handle: int, commit: bool) -> Fields:
        transaction = self._held.pop(handle)
        (transaction.commit if commit else transaction.rollback)()
        return {}

    def checks(self, wait_s: float) -> Fields:
        """Return half messages that the server has checked."""
        checked = some_of(self._checker.messages, 1, wait_s)
        return {"messages": [{"handle": self._hold(one), "body": text_of(one)} for one in checked]}

    def decide(self, handle: int, commit: bool) -> Fields:
        """Decide the outcome of a checked half message."""
        message = self._held.pop(handle)
        message.is_commit.set_result(commit)
        message.ended.result()
        return {}

    def receive(self, most: int, invisible_s: int) -> Fields:
        return {"messages": [self._fields(one) for one in self._client.receive(most, invisible_s)]}

    def take(self, most: int, wait_s: float) -> Fields:
        """Return messages that the push consumer received."""
        return {"messages": [self._fields(one) for one in some_of(self._handover.messages, most, wait_s)]}

    def settle(self, handle: int, is_done: bool) -> Fields:
        """Settle a message of the push consumer. If the message is to be acknowledged, wait for the answer to
        the client's first ack."""
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
        """Drop the message or transaction without ending it."""
        del self._held[handle]
        return {}

    def close(self) -> Fields:
        """Shut the client down, so that it notifies the servers. Does nothing if there is no client."""
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

    def _fields(self, message: Message) -> Fields:
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
            "received_ns": message.received_ns,
        }


def message_of(topic: str, body: str, tag: str, key: str) -> Message:
    message = Message()
    message.topic, message.body, message.tag, message.keys = topic, b64decode(body), tag, key
    return message


def text_of(message: Message) -> str:
    return b64encode(message.body).decode()


def some_of(messages: SimpleQueue[Message], most: int, wait_s: float) -> list[Message]:
    """Return up to `most` messages. Returns none if no message arrives within `wait_s`."""
    taken: list[Message] = []
    try:
        taken.append(messages.get(timeout=wait_s))
        while len(taken) < most:
            taken.append(messages.get_nowait())
    except Empty:
        pass
    return taken


class Answers:
    """Writes lines from several threads, one at a time."""

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
    except Exception as error:  # users of the client would see the exception as well
        answers.write({"id": number, "error": error_of(error)})


def error_of(error: Exception) -> Fields:
    """Describe an exception. `code`: RocketMQ's status code; 0 if the client gave none."""
    code = getattr(error, "code", None)
    return {
        "type": type(error).__name__,
        "code": int(code) if isinstance(code, int) else 0,
        "text": str(error)[:500],
    }


def main() -> None:
    threads, address = int(sys.argv[1]), sys.argv[2]
    answers = Answers(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints of the client must not mix with the answers
    keep_places()
    driver, pool = Driver(address), ThreadPoolExecutor(threads)
    answers.write({"ready": True})
    for line in sys.stdin:
        pool.submit(answer, driver, json.loads(line), answers)
    os._exit(0)


if __name__ == "__main__":
    main()
