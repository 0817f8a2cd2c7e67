"""A key-value store on the replicated log in a hundred lines, as an example of a state machine.

Writes are entries of the log, which every node applies to a dict in the same order. A linearizable read
determines the committed end of the log, waits until this node has applied it, and reads the dict.

Run three nodes with this state machine, each in its own terminal::

    dledger server --config n1.toml --state-machine examples.kv:KeyValueStore

Any client can write through the log, and read the log to compute the state that a node would have::

    python -m examples.kv --servers 127.0.0.1:20911 put colour blue
    python -m examples.kv --servers 127.0.0.1:20911 get colour
    python -m examples.kv --servers 127.0.0.1:20911 delete colour

A program can also run the node and the store in its own process; `get` below then reads the local store.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterable, Sequence

from dledger import AppliedEntry, Client, DLedgerError, NodeServer


class KeyValueStore:
    """Implements dledger.StateMachine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the node applies entries on another thread
        self._values: dict[str, str] = {}

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        with self._lock:
            for entry in entries:
                apply_command(self._values, entry.body)

    def save(self) -> Iterable[bytes]:
        with self._lock:
            yield json.dumps(self._values, sort_keys=True).encode()

    def load(self, chunks: Iterable[bytes]) -> None:
        state = b"".join(chunks)
        with self._lock:
            self._values = json.loads(state) if state else {}

    def get(self, key: str) -> str | None:
        """Return the value as of the entries applied so far; see `get` below for a linearizable read."""
        with self._lock:
            return self._values.get(key)

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)


def put_command(key: str, value: str) -> bytes:
    return json.dumps(["put", key, value]).encode()


def delete_command(key: str) -> bytes:
    return json.dumps(["delete", key]).encode()


def apply_command(values: dict[str, str], body: bytes) -> None:
    """Apply a command; ignore an invalid one. An exception would stop every node, again after
    each restart.
    """
    try:
        name, key, *rest = json.loads(body)
    except (ValueError, TypeError):
        return
    if name == "put" and len(rest) == 1:
        values[key] = rest[0]
    elif name == "delete":
        values.pop(key, None)


async def get(node: NodeServer, store: KeyValueStore, key: str) -> str | None:
    """Read linearizably: the result includes every write acknowledged before the call."""
    await node.wait_applied()
    return store.get(key)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.kv", description=__doc__.partition("\n")[0])
    parser.add_argument("--servers", required=True, help="host:port,...")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, fields in (("put", ("key", "value")), ("get", ("key",)), ("delete", ("key",))):
        command = commands.add_parser(name)
        for field in fields:
            command.add_argument(field)
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except DLedgerError as error:
        print(f"error {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    with Client(options.servers.split(",")) as client:
        if options.command == "put":
            client.append(put_command(options.key, options.value))
        elif options.command == "delete":
            client.append(delete_command(options.key))
        else:
            # Without a local node, replay the log, which must not have been purged.
            values: dict[str, str] = {}
            for entry in client.read(0):
                apply_command(values, entry.body)
            if options.key not in values:
                print(f"key not found: {options.key}", file=sys.stderr)
                return 1
            print(values[options.key])
    return 0


if __name__ == "__main__":
    sys.exit(main())
