"""The released Python client of RocketMQ 5, in a process of its own: its generated modules and ours cannot
live in one.

    python python_driver.py ADDRESS SCENARIO [OPTIONS AS JSON]

Run with the interpreter that has `rocketmq-python-client`, and with HOME in a directory of the test's: the
client writes logs there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import scenarios
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
from rocketmq.grpc_protocol import FilterType


class Session:
    """Implements `scenarios.Session`."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.name = "py"
        self.address = address
        self.options = options
        self.namespace = ""
        self._tls = {"tls_enable": bool(options.get("tls"))}
        self._clients: list[Any] = []

    def message(self, topic: str, body: bytes, **more: Any) -> Message:
        made = Message()
        made.topic, made.body = topic, body
        for name, value in more.pop("properties", {}).items():
            made.add_property(name, value)
        if keys := more.pop("keys", None):
            made.keys = keys
        for name, value in more.items():
            setattr(made, name, value)
        return made

    def producer(self, *topics: str, check: Callable[[Message], str] | None = None) -> Producer:
        more = {} if check is None else {"checker": _Checker(check)}
        return self._started(Producer(self._configuration(), list(topics), **more, **self._tls))

    def simple(self, group: str, topic: str, expression: str = "*", *, sql: bool = False) -> SimpleConsumer:
        wanted = FilterExpression(expression, FilterType.SQL) if sql else FilterExpression(expression)
        return self._started(SimpleConsumer(self._configuration(), group, {topic: wanted}, 2, **self._tls))

    def push(self, group: str, topic: str, consume: Callable[[Message], bool]) -> PushConsumer:
        subscription = {topic: FilterExpression("*")}
        made = PushConsumer(self._configuration(), group, _Listener(consume), subscription, **self._tls)
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


class _Listener(MessageListener):
    def __init__(self, consume: Callable[[Message], bool]) -> None:
        self._consume = consume

    def consume(self, message: Message) -> ConsumeResult:
        return ConsumeResult.SUCCESS if self._consume(message) else ConsumeResult.FAILURE


class _Checker(TransactionChecker):
    def __init__(self, check: Callable[[Message], str]) -> None:
        self._check = check

    def check(self, message: Message) -> TransactionResolution:
        return getattr(TransactionResolution, self._check(message).upper())


def main() -> None:
    address, scenario, *more = sys.argv[1:]
    scenarios.run(Session(address, json.loads(more[0]) if more else {}), scenario)


if __name__ == "__main__":
    main()
