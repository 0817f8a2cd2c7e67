"""Places that clients share by address, so that one that takes all it can get leaves places for others."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import unquote

from dledger.addresses import host_of


class SharedPlaces:
    """A bounded number of streams or calls that last as long as their client likes.

    An address has at most three quarters, rounded up, of what all others leave: one alone leaves a quarter,
    and as long as there is a place, an address without one gets it. "" is a client without a share.
    """

    def __init__(self, most: int, what: str, advice: str) -> None:
        """`what` and `advice` are for texts of refusals, as in "streams are open" and "close some"."""
        self.taken = 0
        self._most = most
        self._what = what
        self._advice = advice
        self._of: Counter[str] = Counter()

    def refusal(self, address: str) -> str | None:
        """Why the address gets no further place now; None: it gets one."""
        if self.taken >= self._most:
            return f"{self._most} {self._what}; {self._advice}"
        own = self._of[address] if address else 0
        left = self._most - self.taken + own
        if own and own >= left - left // 4:
            text = f"{own} of {self._most} {self._what} for {address}, which leaves the rest to others"
            return f"{text}; {self._advice}"
        return None

    def take(self, address: str) -> None:
        """Without asking: ask `refusal` first."""
        self.taken += 1
        self._of[address] += 1

    def give_back(self, address: str) -> None:
        """One that the address has taken."""
        self.taken -= 1
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]

    @contextmanager
    def taking(self, address: str) -> Iterator[None]:
        """Hold a place, as `take` and `give_back`."""
        self.take(address)
        try:
            yield
        finally:
            self.give_back(address)


@lru_cache(maxsize=4096)
def peer_host(peer: str) -> str:
    """host:port of a caller as gRPC names it ("ipv4:...", "ipv6:%5B...%5D:..."); "" for one without an IP
    address."""
    kind, _, address = peer.partition(":")
    return unquote(address) if kind in {"ipv4", "ipv6"} else ""


def client_of(remote: str) -> str:
    """What limits go by: the address in host:port, "" for "". What clients say of themselves proves
    nothing."""
    return client_address(host_of(remote)) if remote else ""


@lru_cache(maxsize=4096)
def client_address(host: str) -> str:
    """What counts as one address: of IPv6 the network of 64 bits that a client usually has to itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
    return str(address)
