"""The cases of the benchmark `broker-loads`, and the command line options that select them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.common import BODY_SIZE

REPLICATED, CLASSIC = "replicated", "classic"
REMOTING, GRPC = "remoting", "grpc"
SENDS, BATCHES, RECEIVE = "sends", "batches", "receive"
_WITHOUT, _WITH = "without", "with"
#: Requests in flight for each load, unless an option selects others.
_IN_FLIGHT = {SENDS: (64, 1), BATCHES: (8,), RECEIVE: (4,)}
_MAX_QUEUES = 16


@dataclass(frozen=True, slots=True)
class Case:
    """One load on one kind of broker.

    `in_flight`: requests, which may contain several messages. `size`: bytes of a body. `keys`: each message
    has a key.
    """

    store: str
    protocol: str
    load: str
    in_flight: int
    size: int
    queues: int
    keys: bool

    def __str__(self) -> str:
        keys = " with keys" if self.keys else ""
        return (
            f"{self.store} {self.protocol} {self.load}: {self.in_flight} in flight, {self.size} B{keys}, "
            f"{self.queues} queue{'s' if self.queues > 1 else ''}"
        )

    @property
    def topic(self) -> str:
        """The topic of all cases with such messages."""
        return f"Bench-{self.size}-{self.queues}{'-keys' if self.keys else ''}"

    @property
    def file_name(self) -> str:
        """The case as part of the name of a file."""
        return f"{self.store}-{self.protocol}-{self.load}-{self.in_flight}{self.topic.removeprefix('Bench')}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The options' values."""

    store: tuple[str, ...] = (REPLICATED, CLASSIC)
    protocol: tuple[str, ...] = (REMOTING, GRPC)
    load: tuple[str, ...] = (SENDS, BATCHES, RECEIVE)
    in_flight: tuple[int, ...] = ()
    size: tuple[int, ...] = (BODY_SIZE,)
    queues: tuple[int, ...] = (8,)
    keys: tuple[str, ...] = (_WITHOUT,)
    against: Path | None = None
    pairs: int = 3
    profile: Path | None = None

    def cases(self, store: str) -> Iterator[Case]:
        """Return the selected cases with a store. RocketMQ 5 clients have no batches."""
        for protocol, load in product(self.protocol, self.load):
            if (protocol, load) == (GRPC, BATCHES):
                continue
            in_flight = self.in_flight or _IN_FLIGHT[load]
            for row in product(in_flight, self.size, self.queues, self.keys):
                yield Case(store, protocol, load, *row[:-1], keys=row[-1] == _WITH)


def _choice(name: str, values: tuple[str, ...], text: str) -> Any:
    default = list(getattr(Selection(), name))
    return click.option(
        f"--{name}", multiple=True, type=click.Choice(values), default=default, show_default=True, help=text
    )


def _numbers(name: str, limit: int, text: str) -> Any:
    default = list(getattr(Selection(), name.replace("-", "_")))
    kind = click.IntRange(1, limit)
    return click.option(f"--{name}", multiple=True, type=kind, default=default, show_default=True, help=text)


_OPTIONS = (
    _choice("store", (REPLICATED, CLASSIC), "broker-loads: kind of log; these options may be repeated."),
    _choice("protocol", (REMOTING, GRPC), "broker-loads: protocol of the client."),
    _choice("load", (SENDS, BATCHES, RECEIVE), "broker-loads: batches of 256; receive also acknowledges."),
    _numbers("in-flight", 1024, "broker-loads: requests. Default: sends 64 and 1, batches 8, receive 4."),
    _numbers("size", 1 << 20, "broker-loads: bytes of a body."),
    _numbers("queues", _MAX_QUEUES, "broker-loads: queues of the topic."),
    _choice("keys", (_WITHOUT, _WITH), "broker-loads: each message has a key, or no message."),
    click.option(
        "--against",
        type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
        help="broker-loads: another checkout with its own .venv, measured in turns with this one.",
    ),
    click.option(
        "--pairs", default=3, type=click.IntRange(1), show_default=True, help="Pairs with --against."
    ),
    click.option(
        "--profile",
        type=click.Path(file_okay=False, path_type=Path),
        help="broker-loads: write a flame graph of the master to this folder for each case (needs py-spy).",
    ),
)


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which receives them as one `selection`."""
    names = [field.name for field in fields(Selection)]

    @wraps(command)
    def collecting(**values: Any) -> None:
        selection = Selection(**{name: values.pop(name) for name in names})
        command(selection=selection, **values)

    decorated: Callable[..., None] = collecting
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
