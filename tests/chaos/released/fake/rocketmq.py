"""Stands for the released client, as far as the driver uses it: answers without any server.

A body tells what its send does: `refuse` raises with a code, `die` ends the process, `hang` never returns.
"""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any


class RefusedException(Exception):
    code = 40002


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


class Producer(_Client):
    def send(self, message: Message) -> Any:
        if message.body == b"refuse":
            raise RefusedException("no such topic")
        if message.body == b"die":
            sys.stderr.write("something terrible\n")
            sys.stderr.flush()
            os._exit(3)
        if message.body == b"hang":
            threading.Event().wait()
        return SimpleNamespace(offset=len(message.body), message_id="id")


class SimpleConsumer(_Client):
    def receive(self, most: int, invisible_s: int) -> list[Message]:
        system = SimpleNamespace(queue_id=3, queue_offset=70)
        told = SimpleNamespace(system_properties=system, topic="t", body=b"5 \xff")
        return [Message().fromProtobuf(told) for _ in range(most)]

    def ack(self, message: Message) -> None:
        assert message.body == b"5 \xff"

    def change_invisible_duration(self, message: Message, seconds: int) -> None:
        raise RefusedException(f"not {seconds}")
