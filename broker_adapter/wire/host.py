"""Hosts in message records and message ids: an address of 4 or 16 bytes and a port of 4 bytes."""

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
        """Parse `10.0.0.1:10911` or `[fd00::1]:10911`.

        Raises ValueError for any other text, including host names.
        """
        address, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
            raise ValueError(f"{text!r}: expected address:port with a port of 0 to {MAX_PORT}")
        bracketed = address.startswith("[") and address.endswith("]")
        try:
            ip = ip_address(address[1:-1] if bracketed else address)
        except ValueError:
            raise ValueError(f"{text!r}: {address!r} is not an IP address") from None
        if bracketed != (ip.version == 6):
            raise ValueError(f"{text!r}: brackets are required for IPv6 addresses and not allowed for IPv4")
        if getattr(ip, "scope_id", None) is not None:
            raise ValueError(f"{text!r}: a record cannot store an address zone")
        return cls(ip.packed, int(port))

    @property
    def is_v6(self) -> bool:
        return len(self.address) == 16

    def problem(self) -> str | None:
        """Return a description of the first problem of this host, or None if it is valid."""
        if len(self.address) not in (4, 16):
            return f"an address has 4 or 16 bytes, not {len(self.address)}"
        if not 0 <= self.port <= MAX_PORT:
            return f"port {self.port} is not within 0 and {MAX_PORT}"
        return None

    def __str__(self) -> str:
        ip = ip_address(self.address)
        return f"[{ip}]:{self.port}" if self.is_v6 else f"{ip}:{self.port}"


#: The address 0.0.0.0:0 of an unknown host.
NO_HOST = Host(bytes(4), 0)


@lru_cache(1_024)
def known_host(text: str) -> Host:
    """Return a client's host in the form in which records store it.

    It is always IPv4, because C++ and JavaScript clients cannot read IPv6. An IPv6 address becomes 0.0.0.0
    unless it maps to IPv4. Text that is not an address becomes NO_HOST, because a message must not be
    rejected for the name that the transport gives to its client.
    """
    try:
        host = Host.parse(text)
    except ValueError:
        return NO_HOST
    if not host.is_v6:
        return host
    mapped = IPv6Address(host.address).ipv4_mapped
    return Host(bytes(4) if mapped is None else mapped.packed, host.port)
