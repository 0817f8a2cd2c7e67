"""Limits shared by client addresses: `Quota` refuses requests, `FairQueue` makes them wait.

The same rule applies to all addresses. An address that already uses a part of a limit may use at most three
quarters, rounded up, of the amount that other addresses do not use. An address that uses nothing yet may use
any free amount. A single address thus leaves a quarter for new addresses, and a new address always finds a
free amount, however many other addresses use as much as they may (dynamic thresholds: Choudhury and Hahne,
1998). Amounts are bytes, or objects of size 1 such as calls and streams. The address "" has no share and may
use any free amount. Use a quota on one event loop only.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from urllib.parse import unquote

from dledger.infra.addresses import host_of
from dledger.infra.counts import decrement


def is_within_share(size: int, own: int, used: int, total: int) -> bool:
    """Return True if an address that uses `own` of the `used` part of a limit may have `size` more."""
    available = total - (used - own)
    return own <= 0 or own + size <= available - available // 4


def fits(size: int, own: int, used: int, total: int) -> bool:
    """Like `Quota.fits`, for amounts counted elsewhere. `size` must not exceed `total`."""
    return used + size <= total and is_within_share(size, own, used, total)


class Quota:
    """An amount that addresses share. A request that exceeds the total is granted while nothing else is in
    use."""

    def __init__(self, total: int, what: str = "in use", advice: str = "try again later") -> None:
        """`what` and `advice` complete the texts of refusals, such as "streams are open" and "close some"."""
        self.total = total
        self.used = 0
        self._what = what
        self._advice = advice
        self._of: dict[str, int] = {}

    def is_free(self, size: int) -> bool:
        """Return True if the amount is free, regardless of shares."""
        return self.used <= 0 or self.used + size <= self.total

    def is_within_share(self, address: str, size: int = 1) -> bool:
        own = self._of.get(address, 0)
        return not own or is_within_share(size, own, self.used, self.total)

    def fits(self, address: str, size: int = 1) -> bool:
        return self.is_free(size) and self.is_within_share(address, size)

    def refusal(self, address: str, size: int = 1) -> str | None:
        """Return why the amount is refused to the address now, or None if it fits."""
        if not self.is_free(size):
            return f"{self.used} {self._what}; {self._advice}"
        if not self.is_within_share(address, size):
            own = f"{self._of[address]} of {self.total} {self._what} for {address}"
            return f"{own}, which leaves the rest to others; {self._advice}"
        return None

    def acquire(self, address: str, size: int = 1) -> None:
        """Count the amount as used, without a check. Call `fits` or `refusal` first, unless the amount is
        used in any case."""
        self.used += size
        if address:
            self._of[address] = self._of.get(address, 0) + size

    def release(self, address: str, size: int = 1) -> None:
        self.used -= size
        assert self.used >= 0, "more was released than acquired"
        if address and size:
            own = self._of.get(address, 0) - size
            if own:
                self._of[address] = own
            else:
                del self._of[address]

    def resize(self, address: str, before: int, after: int) -> bool:
        """Replace the acquired amount `before` with `after`. Returns False if a larger `after` does not
        fit."""
        if after > before and not self.fits(address, after - before):
            return False
        self.release(address, before - after)
        return True

    @contextmanager
    def holding(self, address: str, size: int = 1) -> Iterator[None]:
        """Hold the amount within a `with` block."""
        self.acquire(address, size)
        try:
            yield
        finally:
            self.release(address, size)


class FairQueue:
    """A quota for which requests wait. Addresses are served in rotation, and the requests of each address in
    order. A request within the share of its address is never overtaken; a request beyond it waits without
    delaying other addresses."""

    def __init__(self, total: int) -> None:
        self._quota = Quota(total)
        self._waiting: dict[str, dict[Callable[[], None], int]] = {}  # sizes; the next address first
        self._resuming = Counter[str]()  # callers of `acquire` that have the amount and have not run yet
        self._is_granting = False

    @property
    def used(self) -> int:
        return self._quota.used

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return sum(map(len, self._waiting.values()))

    def try_acquire(self, address: str = "", size: int = 1) -> bool:
        """Acquire the amount if that is possible without waiting."""
        if self._waiting and (address in self._waiting or self._next_due() is not None):
            return False
        if not self._quota.fits(address, size):
            return False
        self._quota.acquire(address, size)
        return True

    def request(self, granted: Callable[[], None], address: str = "", size: int = 1) -> bool:
        """Acquire the amount and return True, or return False and call `granted` once it is acquired."""
        if self.try_acquire(address, size):
            return True
        self._waiting.setdefault(address, {})[granted] = size
        return False

    def withdraw(self, granted: Callable[[], None], address: str = "") -> None:
        """Cancel a waiting request. No-op if it is not waiting."""
        requests = self._waiting.get(address, {})
        if requests.pop(granted, None) is not None:
            if not requests:
                del self._waiting[address]
            self._grant()

    async def acquire(self, address: str = "", size: int = 1) -> None:
        """Wait until the amount is acquired. A cancelled caller has acquired nothing. Callers with one
        address run in the order of their calls."""
        if address not in self._resuming and self.try_acquire(address, size):
            return
        granted = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if granted.done():
                self.release(address, size)  # the caller is cancelled
            else:
                granted.set_result(None)
                self._resuming[address] += 1

        self._waiting.setdefault(address, {})[grant] = size
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self.withdraw(grant, address)
            else:
                self.release(address, size)
            raise
        finally:
            if granted.done() and not granted.cancelled():
                decrement(self._resuming, address)
                self._grant()

    def release(self, address: str = "", size: int = 1) -> None:
        """Release the amount. A negative size acquires more without waiting, for an object that is larger
        than expected."""
        self._quota.release(address, size)
        self._grant()

    @asynccontextmanager
    async def holding(self, address: str = "", size: int = 1) -> AsyncIterator[None]:
        """Hold the amount within an `async with` block."""
        await self.acquire(address, size)
        try:
            yield
        finally:
            self.release(address, size)

    def _grant(self) -> None:
        """Grant waiting requests. The loop also handles releases that granted requests cause, which avoids
        recursion."""
        if self._is_granting:
            return
        self._is_granting = True
        try:
            self._grant_all()
        finally:
            self._is_granting = False

    def _grant_all(self) -> None:
        while self._waiting and (address := self._next_due()) is not None:
            requests = self._waiting[address]
            granted, size = next(iter(requests.items()))
            if not self._quota.is_free(size):
                return
            del self._waiting[address], requests[granted]
            if requests:
                self._waiting[address] = requests  # move the address to the end of the order
            self._quota.acquire(address, size)
            granted()

    def _next_due(self) -> str | None:
        """Return the first address whose next request is within its share."""
        for address, requests in self._waiting.items():
            if self._quota.is_within_share(address, next(iter(requests.values()))):
                return address
        return None


@lru_cache(maxsize=4096)
def peer_host(peer: str) -> str:
    """Convert gRPC's name of a caller ("ipv4:...", "ipv6:%5B...%5D:...") to host:port, or to "" if it
    contains no IP address."""
    kind, _, address = peer.partition(":")
    return unquote(address) if kind in {"ipv4", "ipv6"} else ""


def client_of(remote: str) -> str:
    """Return the address to which limits apply for a connection from host:port, or "" for "". Pass the
    address of the connection, never one that a client claims to have."""
    return client_address(host_of(remote)) if remote else ""


@lru_cache(maxsize=4096)
def client_address(host: str) -> str:
    """Return the unit to which limits apply: for IPv6 the /64 network, which one client usually controls."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
    return str(address)
