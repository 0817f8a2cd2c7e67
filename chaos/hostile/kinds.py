"""Kinds of hostile clients, and the counts that prove their effects. Imports only the trace schema, because
scenarios import this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chaos.trace.schema import HOSTILE


@dataclass(frozen=True, slots=True)
class HostileKind:
    """One kind of hostile client. `proof`: the client was effective if all these counts are above 0.
    `on_brokers`, `on_tls`: the client needs brokers, or ports with TLS. `clients`, `rate`: defaults for
    scenarios."""

    proof: tuple[str, ...]
    on_brokers: bool = False
    on_tls: bool = False
    clients: int = 8
    rate: float = 50.0


KINDS: dict[str, HostileKind] = {
    # Servers close idle connections, so clients open many more than are open at a time.
    "connection_floods": HostileKind(("accepted", "open_most"), clients=400, rate=400),
    "handshake_floods": HostileKind(
        ("half", "half_open_most", "abandoned", "turned_away"), on_tls=True, clients=200, rate=200
    ),
    "exhausted_descriptors": HostileKind(("accepted", "open_most", "handshakes"), clients=3_000, rate=1_500),
    "half_requests": HostileKind(("half_http", "half_calls"), clients=120, rate=100),
    "garbage": HostileKind(("sent", "ended"), clients=16, rate=100),
    "unread_streams": HostileKind(("unread",), clients=60, rate=60),
    "expensive_filters": HostileKind(("answered",), on_brokers=True, clients=24),
    "telemetry_floods": HostileKind(("streams",), on_brokers=True, clients=100, rate=50),
    # Every queue of a topic takes several files on each node.
    "topic_floods": HostileKind(("routes", "created"), on_brokers=True, rate=10),
    "repeated_calls": HostileKind(("sent", "received", "repeated"), on_brokers=True, clients=4),
    "abandoned_groups": HostileKind(("held",), on_brokers=True, clients=4),
    "dying_clients": HostileKind(("killed", "held"), on_brokers=True, clients=2, rate=4),
    "forged_peers": HostileKind(("refused",)),
    "forged_registrations": HostileKind(("refused",), on_brokers=True, clients=2),
    "registration_floods": HostileKind(("registered",), on_brokers=True, clients=4),
}
assert set(KINDS) == set(HOSTILE)


def achieved(kind: str, counts: Mapping[str, int]) -> bool:
    """Return True if the counts prove that a hostile client of this kind was effective."""
    return all(counts.get(name, 0) > 0 for name in KINDS[kind].proof)
