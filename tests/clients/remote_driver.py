"""A released client of another language: a program in that language does what the scenarios want of it.

    python remote_driver.py NAME PROGRAM ADDRESS SCENARIO [OPTIONS AS JSON]

PROGRAM is its command as JSON; "{home}" in it becomes HOME. To the program goes one line of JSON for each
request, `{"id": 1, "do": "send", ...}`. Its answers are `{"id": 1, "ok": ...}`, or "error" and "text", in any
order. It asks `{"ask": 2, "message": ...}` what became of a message that it was given, and is told
`{"answer": 2, "result": ...}`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import scenarios

#: No request takes so long.
_REQUEST_S = 120.0


class Program:
    """The client's process."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._lock = threading.Lock()
        self._count = self._opened = 0
        self._waiting: dict[int, Future[Any]] = {}
        self._asked: dict[int, Callable[[Any], object]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def request(self, do: str, **fields: Any) -> Any:
        """What it answers; an error that is named as that of the client."""
        with self._lock:
            self._count += 1
            number = self._count
            answer = self._waiting[number] = Future[Any]()
        self._say({"id": number, "do": do, **fields})
        found = answer.result(_REQUEST_S)
        if "error" in found:
            raise type(found["error"].rpartition(".")[2], (Exception,), {})(found["text"])
        return found.get("ok")

    def open(self, kind: str, asked: Callable[[Any], object] | None = None, **fields: Any) -> int:
        """A client's number; `asked` is called with each message that it asks about."""
        with self._lock:
            self._opened += 1
            opening = self._opened
        if asked is not None:
            self._asked[opening] = asked
        client: int = self.request(kind, client=opening, **fields)
        return client

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                found = json.loads(line)
            except ValueError:
                print(line, end="", file=sys.stderr)  # some clients speak there, too
                continue
            if "ask" in found:
                threading.Thread(target=self._tell, args=(found,), daemon=True).start()
            else:
                self._waiting.pop(found["id"]).set_result(found)
        for answer in list(self._waiting.values()):
            answer.set_exception(EOFError(f"the client's process has ended: {self._process.wait()}"))

    def _tell(self, question: dict[str, Any]) -> None:
        result = self._asked[question["client"]](received(question["message"]))
        self._say({"answer": question["ask"], "result": result})


def received(found: dict[str, Any]) -> Any:
    """A message as scenarios know it; what the client does not tell is None."""
    nothing = dict.fromkeys(("tag", "message_group", "priority", "corrupted"))
    properties = found["properties"] or {}
    return SimpleNamespace(
        **nothing | found | {"properties": properties, "body": base64.b64decode(found["body"])}
    )


class Session:
    """Implements `scenarios.Session`."""

    def __init__(self, name: str, program: Program, address: str, options: dict[str, Any]) -> None:
        self.name = name
        self.options = options
        self.namespace = ""
        self._program = program
        self._address = address
        self._clients: list[int] = []

    def message(self, topic: str, body: bytes, **more: Any) -> dict[str, Any]:
        return {"topic": topic, "body": base64.b64encode(body).decode(), "properties": {}, **more}

    def producer(self, *topics: str, check: Callable[[Any], str] | None = None) -> Producer:
        client = self._open("producer", check, topics=topics, checks=check is not None)
        return Producer(self._program, client)

    def simple(self, group: str, topic: str, expression: str = "*", *, sql: bool = False) -> Consumer:
        client = self._open("simple", group=group, topic=topic, expression=expression, sql=sql)
        return Consumer(self._program, client)

    def push(self, group: str, topic: str, consume: Callable[[Any], bool]) -> int:
        return self._open("push", consume, group=group, topic=topic, expression="*", sql=False)

    def close(self) -> None:
        for client in reversed(self._clients):
            self._program.request("close", client=client)
        self._program.end()

    def _open(self, kind: str, asked: Callable[[Any], object] | None = None, **fields: Any) -> int:
        options = {key: self.options[key] for key in ("account",) if key in self.options}
        fields |= {"address": self._address, "namespace": self.namespace, **options}
        client = self._program.open(kind, asked, tls=bool(self.options.get("tls")), **fields)
        self._clients.append(client)
        return client


class Producer:
    def __init__(self, program: Program, client: int) -> None:
        self._program = program
        self._client = client

    def send(self, message: dict[str, Any], transaction: Transaction | None = None) -> Any:
        more = {} if transaction is None else {"transaction": transaction.number}
        found = self._program.request("send", client=self._client, message=message, **more)
        return SimpleNamespace(**{"transaction_id": None} | found)

    def begin_transaction(self) -> Transaction:
        return Transaction(self._program, self._program.request("begin", client=self._client))

    def recall_message(self, topic: str, handle: str) -> Any:
        return self._program.request("recall", client=self._client, topic=topic, handle=handle)


class Transaction:
    def __init__(self, program: Program, number: int) -> None:
        self._program = program
        self.number = number

    def commit(self) -> None:
        self._program.request("commit", transaction=self.number)

    def rollback(self) -> None:
        self._program.request("rollback", transaction=self.number)


class Consumer:
    def __init__(self, program: Program, client: int) -> None:
        self._program = program
        self._client = client

    def receive(self, most: int, invisible_s: int) -> list[Any]:
        found = self._program.request("receive", client=self._client, most=most, invisible_s=invisible_s)
        return [received(one) for one in found]

    def ack(self, message: Any) -> None:
        self._program.request("ack", client=self._client, message=message.number)

    def change_invisible_duration(self, message: Any, seconds: int) -> None:
        self._program.request("change", client=self._client, message=message.number, invisible_s=seconds)


def main() -> None:
    name, program, address, scenario, *more = sys.argv[1:]
    command = [word.replace("{home}", os.environ["HOME"]) for word in json.loads(program)]
    session = Session(name, Program(command), address, json.loads(more[0]) if more else {})
    scenarios.run(session, scenario)


if __name__ == "__main__":
    main()
