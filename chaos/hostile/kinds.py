"""The kinds of hostile clients, and what each must have achieved. No dependencies: scenarios look here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chaos.trace.schema import HOSTILE


@dataclass(frozen=True, slots=True)
class Kind:
    """`proof`: counts of which none may be 0, or the hostile client achieved nothing. `on_brokers`, `on_tls`:
    it needs them, or ports with TLS. `clients`, `rate`: unless a scenario says otherwise."""

    proof: tuple[str, ...]
    on_brokers: bool = False
    on_tls: bool = False
    clients: int = 8
    rate: float = 50.0


KINDS: dict[str, Kind] = {
    # A server closes those that say nothing, so many more are made than are open at a time.
    "connection_floods": Kind(("accepted", "open_most"), clients=400, rate=400),
    "handshake_floods": Kind(
        ("half", "half_open_most", "abandoned", "turned_away"), on_tls=True, clients=200, rate=200
    ),
    "exhausted_descriptors": Kind(("accepted", "open_most", "handshakes"), clients=3_000, rate=1_500),
    "half_requests": Kind(("half_http", "half_calls"), clients=120, rate=100),
    "garbage": Kind(("sent", "ended"), clients=16, rate=100),
    "unread_streams": Kind(("unread",), clients=60, rate=60),
    "expensive_filters": Kind(("answered",), on_brokers=True, clients=24),
    "telemetry_floods": Kind(("streams",), on_brokers=True, clients=100, rate=50),
    # Every queue of a topic is some files at each node.
    "topic_floods": Kind(("routes", "created"), on_brokers=True, rate=10),
    "repeated_calls": Kind(("sent", "received", "repeated"), on_brokers=True, clients=4),
    "abandoned_groups": Kind(("held",), on_brokers=True, clients=4),
    "dying_clients": Kind(("killed", "held"), on_brokers=True, clients=2, rate=4),
    "forged_peers": Kind(("refused",)),
    "forged_registrations": Kind(("refused",), on_brokers=True, clients=2),
    "registration_floods": Kind(("registered",), on_brokers=True, clients=4),
}
assert set(KINDS) == set(HOSTILE)


def achieved(kind: str, counts: Mapping[str, int]) -> bool:
    """Whether these counts show that a hostile client did what it was there for."""
    return all(counts.get(name, 0) > 0 for name in KINDS[kind].proof)
