"""What a hostile process is told when it starts, and what it says of itself: lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

#: All topics and groups of hostile clients begin so: what is in them is nothing that good ones have sent.
PREFIX = "hostile-"


@dataclass(frozen=True, slots=True)
class Orders:
    """`clients`: how many at a time. `rate`: what all of them begin in a second; 0: as fast as they are
    answered. `nodes`: node id -> address of its gRPC port; `http`: status ports, also of the NameServer;
    `namesrv`: of the NameServer, empty without brokers. `topics`: of the good clients."""

    kind: str
    seed: int
    clients: int
    rate: float
    cluster_id: str
    group: str
    nodes: Mapping[str, str]
    http: tuple[str, ...]
    namesrv: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    @property
    def addresses(self) -> list[str]:
        """gRPC ports of the nodes."""
        return list(self.nodes.values())

    @property
    def ports(self) -> list[str]:
        """All ports there are."""
        return [*self.addresses, *self.namesrv, *self.http]

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Self:
        content: dict[str, Any] = json.loads(line)
        lists = {name: tuple(content[name]) for name in ("http", "namesrv", "topics")}
        return cls(**{**content, **lists})


def counts_to_line(counts: Mapping[str, int]) -> bytes:
    return json.dumps(dict(counts)).encode() + b"\n"


def counts_of_line(line: bytes) -> dict[str, int]:
    content: dict[str, int] = json.loads(line)
    return content
