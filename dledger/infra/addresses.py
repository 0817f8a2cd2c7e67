"""Addresses in their textual form: host:port, with an IPv6 host in brackets."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_MAX_NAME: Final = 253


def split_address(address: str) -> tuple[str, str]:
    """Split an address into host, without brackets, and port. Neither is validated. If there is no colon, the
    host is empty."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def is_address(address: object) -> bool:
    """Return True for a text with a host and a port from 1 to 65535."""
    if not isinstance(address, str):
        return False
    host, port = split_address(address)
    if address.startswith("[") != ("]:" in address):
        return False
    is_one = host != "" and not any(separator in host for separator in ",; /")
    return is_one and port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536


def check_address(address: object) -> None:
    """Raise ValueError unless `is_address`."""
    if not is_address(address):
        raise ValueError(f"{address!r} is not an address of the form host:port")


def is_destination(host: str) -> bool:
    """Return True for a host that clients may be able to connect to: a host name, or an IP address without
    brackets that is not 0.0.0.0 or ::."""
    try:
        return not ipaddress.ip_address(host).is_unspecified and "%" not in host
    except ValueError:
        labels = host.removesuffix(".").split(".")
    # Resolvers read a name with a last label of digits as an IPv4 address.
    is_name = len(host) <= _MAX_NAME and not labels[-1].isdecimal()
    return is_name and all(_LABEL.fullmatch(label) for label in labels)


def host_of(address: str) -> str:
    return split_address(address)[0]


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def can_be_member(address: str) -> bool:
    """Return True for an address at which other machines may reach a member."""
    return is_address(address) and is_destination(host_of(address))
