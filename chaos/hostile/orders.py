"""Protocol between the harness and a hostile process: lines of JSON with orders for the process, and with its
counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

#: Prefix of all topics and groups of hostile clients, which keeps their messages apart from regular
#: ones.
PREFIX = "hostile-"


@dataclass(frozen=True, slots=True)
class HostileOrders:
    """Orders of a hostile process. `clients`: number of concurrent clients. `rate`: operations per second of
    all of them; 0: no limit. `nodes`: node id -> gRPC address. `http`: status ports, including the
    NameServer's. `namesrv`: NameServer addresses, empty without brokers. `topics`: used by the regular
    clients."""

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
        """All ports of the cluster."""
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
