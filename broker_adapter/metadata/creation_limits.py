"""Limits on automatic creation of topics and groups: in total, per client, and per second.

The remaining capacity is reserved for administrators. Only the current master knows the number of creations
per client; the next master starts counting at zero. Callers pass the time.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from broker_adapter.errors import BrokerError, Status, error_for


@dataclass(frozen=True, slots=True)
class Rate:
    """Token bucket, defined by its capacity and the number of tokens added per second."""

    burst: float
    per_second: float


ALL_CLIENTS = Rate(500, 5)
EACH_CLIENT = Rate(100, 1)
#: Maximum number of clients tracked; the least recently active one is dropped.
MAX_CLIENTS = 4_096


class _Bucket:
    __slots__ = ("at_s", "rate", "tokens")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self.rate = rate
        self.tokens = rate.burst
        self.at_s = now_s

    def fill(self, now_s: float) -> bool:
        """Refill the bucket. Return True if it has a token."""
        self.tokens = min(self.rate.burst, self.tokens + max(0.0, now_s - self.at_s) * self.rate.per_second)
        self.at_s = now_s
        return self.tokens >= 1


class CreationLimits:
    """Limits for one kind of object.

    `what`: "topics" or "groups", for error texts. `status`: the error number of a refusal. `limit`: total
    at which clients may not create more. `per_client`: maximum per client.
    """

    def __init__(self, what: str, status: Status, limit: int, per_client: int) -> None:
        self._what = what
        self._status = status
        self._limit = limit
        self._per_client = per_client
        self._all: _Bucket | None = None
        self._clients: dict[str, tuple[_Bucket, set[str]]] = {}

    def count_creation(
        self, client: str, name: str, existing: Container[str], count: int, now_s: float
    ) -> None:
        """Count one creation by `client` (an address, or "" if unknown).

        `existing`: the existing names, `count` in number. Raises Busy.
        """
        if count >= self._limit:
            raise self._busy(
                f"the limit of {self._limit} {self._what} is reached: only administrators may create more"
            )
        every = self._all = self._all or _Bucket(ALL_CLIENTS, now_s)
        own, created = self._of(client, now_s) if client else (every, set())
        if len(created) >= self._per_client:
            created.intersection_update([name for name in created if name in existing])
        if len(created) >= self._per_client:
            raise self._busy(
                f"{client} has already created {self._per_client} {self._what}, the limit for one client"
            )
        if not own.fill(now_s):
            raise self._busy(f"{client or 'clients'} creates {self._what} too fast")
        if not every.fill(now_s):
            raise self._busy(f"clients create {self._what} too fast")
        if own is not every:
            own.tokens -= 1
        every.tokens -= 1
        created.add(name)

    def _of(self, client: str, now_s: float) -> tuple[_Bucket, set[str]]:
        entry = self._clients.pop(client, None) or (_Bucket(EACH_CLIENT, now_s), set[str]())
        self._clients[client] = entry  # move to the end
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        return entry

    def _busy(self, problem: str) -> BrokerError:
        return error_for(self._status, problem)
