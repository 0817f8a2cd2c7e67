"""How many topics, or groups, come into being because clients use them: in all, for each, and how fast.

The table keeps room for those that an admin creates. What was created for a client is known to one master:
the next one begins to count anew. Pure: callers say what time it is.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from broker_adapter.errors import BrokerError, Status, error_for


@dataclass(frozen=True, slots=True)
class Rate:
    """So many at once, then so many a second."""

    burst: float
    per_second: float


ALL_CLIENTS = Rate(500, 5)
EACH_CLIENT = Rate(100, 1)
#: Clients that are remembered; whoever was heard of longest ago is forgotten.
MAX_CLIENTS = 4_096


class _Bucket:
    __slots__ = ("at_s", "left", "rate")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self.rate = rate
        self.left = rate.burst
        self.at_s = now_s

    def fill(self, now_s: float) -> bool:
        """Whether one more is allowed."""
        self.left = min(self.rate.burst, self.left + max(0.0, now_s - self.at_s) * self.rate.per_second)
        self.at_s = now_s
        return self.left >= 1


class CreationLimits:
    """`what`: topics or groups; `status`: of a refusal; `most`: so many may there be for clients to add one;
    `each`: so many of one client."""

    def __init__(self, what: str, status: Status, most: int, each: int) -> None:
        self._what = what
        self._status = status
        self._most = most
        self._each = each
        self._all: _Bucket | None = None
        self._clients: dict[str, tuple[_Bucket, set[str]]] = {}

    def take(self, client: str, name: str, there: Container[str], count: int, now_s: float) -> None:
        """One more, for `client`: an address, "" if it is not known. `there`: the names of all, `count` of
        them. Busy."""
        if count >= self._most:
            raise self._busy(f"there are {count} {self._what}: further ones are for admins to create")
        every = self._all = self._all or _Bucket(ALL_CLIENTS, now_s)
        own, created = self._of(client, now_s) if client else (every, set())
        if len(created) >= self._each:
            created.intersection_update([one for one in created if one in there])
        if len(created) >= self._each:
            raise self._busy(f"{self._each} {self._what} were created for {client}")
        if not own.fill(now_s):
            raise self._busy(f"{self._what} are created for {client or 'clients'} too fast")
        if not every.fill(now_s):
            raise self._busy(f"{self._what} are created for clients too fast")
        if own is not every:
            own.left -= 1
        every.left -= 1
        created.add(name)

    def _of(self, client: str, now_s: float) -> tuple[_Bucket, set[str]]:
        found = self._clients.pop(client, None) or (_Bucket(EACH_CLIENT, now_s), set[str]())
        self._clients[client] = found  # the last one now
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        return found

    def _busy(self, problem: str) -> BrokerError:
        return error_for(self._status, problem)
