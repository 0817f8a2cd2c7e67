"""Hosts as message records and message ids hold them: an address of 4 or 16 bytes and a port of 4."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

MAX_PORT = 0xFFFF


class Host(NamedTuple):
    """An IPv4 (4 bytes) or IPv6 (16 bytes) address and a port."""

    address: bytes
    port: int

    @classmethod
    def parse(cls, text: str) -> Host:
        """`10.0.0.1:10911` or `[fd00::1]:10911`. ValueError for anything else, names of hosts included."""
        address, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
            raise ValueError(f"{text!r}: a host is address:port, with a port of 0 to {MAX_PORT}")
        bracketed = address.startswith("[") and address.endswith("]")
        try:
            ip = ip_address(address[1:-1] if bracketed else address)
        except ValueError:
            raise ValueError(f"{text!r}: {address!r} is no IP address") from None
        if bracketed != (ip.version == 6):
            raise ValueError(f"{text!r}: an IPv6 address stands in brackets, an IPv4 address does not")
        if getattr(ip, "scope_id", None) is not None:
            raise ValueError(f"{text!r}: a record has no place for the zone of an address")
        return cls(ip.packed, int(port))

    @property
    def is_v6(self) -> bool:
        return len(self.address) == 16

    def problem(self) -> str | None:
        """What is wrong with this host, None if nothing is."""
        if len(self.address) not in (4, 16):
            return f"an address has 4 or 16 bytes, not {len(self.address)}"
        if not 0 <= self.port <= MAX_PORT:
            return f"port {self.port} is not within 0 and {MAX_PORT}"
        return None

    def __str__(self) -> str:
        ip = ip_address(self.address)
        return f"[{ip}]:{self.port}" if self.is_v6 else f"{ip}:{self.port}"


#: 0.0.0.0:0, for a host that nobody has told.
NO_HOST = Host(bytes(4), 0)


@lru_cache(1_024)
def known_host(text: str) -> Host:
    """Of a client, as records have it: always of IPv4, since clients in C++ and JavaScript read no others.
    0.0.0.0 stands for other addresses of IPv6, NO_HOST for what is no address: what the transport says of a
    client is no reason to refuse."""
    try:
        host = Host.parse(text)
    except ValueError:
        return NO_HOST
    if not host.is_v6:
        return host
    mapped = IPv6Address(host.address).ipv4_mapped
    return Host(bytes(4) if mapped is None else mapped.packed, host.port)
