"""Stands for the released client, as far as the driver uses it: answers without any server.

A body tells what its send does: `refuse` raises with a code, `die` ends the process, `hang` never returns.
Half messages are asked about at once, and a push consumer has two messages: it repeats what fails, and its
second ack is refused.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future
from enum import Enum
from types import SimpleNamespace
from typing import Any


class RefusedException(Exception):
    code = 40002


class ConsumeResult(Enum):
    SUCCESS = 0
    FAILURE = 1


class TransactionResolution(Enum):
    COMMIT = 1
    ROLLBACK = 2


class MessageListener:
    pass


class TransactionChecker:
    pass


class Credentials:
    pass


class FilterExpression:
    def __init__(self, expression: str) -> None:
        self.expression = expression


class ClientConfiguration:
    def __init__(self, endpoints: str, credentials: Any, namespace: str, request_timeout: int) -> None:
        self.endpoints = endpoints


class Message:
    def __init__(self) -> None:
        self.keys: Any = set()

    def fromProtobuf(self, message: Any) -> Message:  # noqa: N802
        self.topic, self.body, self.tag = message.topic, message.body, None
        self.delivery_attempt = 2
        return self


class _Client:
    def __init__(self, configuration: ClientConfiguration, *about: Any) -> None:
        self.endpoints, self.about = configuration.endpoints, about

    def startup(self) -> None:
        print("what a client prints is no answer")
        assert self.endpoints == "somewhere"

    def shutdown(self) -> None:
        return


class _Rpc:
    def send_message_async(self, name: str) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(name)
        return answer

    def end_transaction_async(self, resolution: TransactionResolution) -> Future[Any]:
        answer: Future[Any] = Future()
        is_done = resolution is TransactionResolution.COMMIT
        status = SimpleNamespace(code=20000 if is_done else 40000, message="rolled back before")
        answer.set_result(SimpleNamespace(status=status))
        return answer


class _Transaction:
    def commit(self) -> None:
        return

    def rollback(self) -> None:
        raise RefusedException("no such transaction")


class Producer(_Client):
    def __init__(self, *about: Any, checker: Any) -> None:
        super().__init__(*about)
        self.rpc_client = _Rpc()
        self._checker = checker

    def begin_transaction(self) -> _Transaction:
        return _Transaction()

    def recall_message(self, topic: str, handle: str) -> None:
        if handle != "handle of 1700000000":
            raise RefusedException(handle)

    def _check(self, message: Message) -> None:
        self.rpc_client.end_transaction_async(self._checker.check(message))

    def send(self, message: Message, transaction: _Transaction | None = None) -> Any:
        if transaction is not None:
            threading.Thread(target=self._check, args=[message], daemon=True).start()
        if message.body == b"refuse":
            raise RefusedException("no such topic")
        if message.body == b"die":
            sys.stderr.write("something terrible\n")
            sys.stderr.flush()
            os._exit(3)
        if message.body == b"hang":
            threading.Event().wait()
        handle = f"handle of {getattr(message, 'delivery_timestamp', None)}"
        try:
            message_id = self.rpc_client.send_message_async("id").result()
        except Exception:
            message_id = self.rpc_client.send_message_async("id again").result()
        return SimpleNamespace(offset=len(message.body), message_id=message_id, recall_handle=handle)


def _received() -> Message:
    system = SimpleNamespace(queue_id=3, queue_offset=70)
    return Message().fromProtobuf(SimpleNamespace(system_properties=system, topic="t", body=b"5 \xff"))


class PushConsumer(_Client):
    def startup(self) -> None:
        super().startup()
        self._acks = 0
        threading.Thread(target=self._consume, daemon=True).start()

    def _consume(self) -> None:
        for message in (_received(), _received()):
            while self.about[1].consume(message) is not ConsumeResult.SUCCESS:
                pass
            try:
                self._ack(message)
            except RefusedException:
                self._ack(message)

    def _ack(self, message: Message) -> None:
        self._acks += 1
        if self._acks == 2:
            raise RefusedException("no such handle")


class SimpleConsumer(_Client):
    def receive(self, most: int, invisible_s: int) -> list[Message]:
        return [_received() for _ in range(most)]

    def ack(self, message: Message) -> None:
        assert message.body == b"5 \xff"

    def change_invisible_duration(self, message: Message, seconds: int) -> None:
        raise RefusedException(f"not {seconds}")
