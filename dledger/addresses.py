"""Addresses as people write them: host:port, an IPv6 host in brackets."""

from __future__ import annotations


def split_address(address: str) -> tuple[str, str]:
    """Host, without brackets, and port; what is in them is not looked at. No colon: the host is empty."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def host_of(address: str) -> str:
    return split_address(address)[0]


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
