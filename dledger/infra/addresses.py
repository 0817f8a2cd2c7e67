"""Addresses in their textual form: host:port, with an IPv6 host in brackets."""

from __future__ import annotations


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
    is_one = host != "" and not any(separator in host for separator in ",; /")
    return is_one and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536


def check_address(address: object) -> None:
    """Raise ValueError unless `is_address`."""
    if not is_address(address):
        raise ValueError(f"{address!r} is not an address of the form host:port")


def host_of(address: str) -> str:
    return split_address(address)[0]


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
