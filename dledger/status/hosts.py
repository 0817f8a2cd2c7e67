"""Which names a request may give this server in its Host header."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

ANY = "*"


class AllowedHosts:
    """Names without ports; ".example.com" stands for that name and all below it, "*" for any name.

    Addresses and localhost are always allowed: no page of another site is known by one of these.
    """

    def __init__(self, names: Iterable[str]) -> None:
        lowered = {_plain(name) for name in names if name}
        self._any = ANY in lowered
        self._names = {name.removeprefix(".") for name in lowered} | {"localhost"}
        self._suffixes = tuple(name for name in lowered if name.startswith("."))

    def allow(self, header: str) -> bool:
        """Whether the value of a Host header is allowed."""
        if self._any:
            return True
        host = _without_port(header)
        return host in self._names or host.endswith(self._suffixes) or _is_address(host)


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return _plain(text.partition(":")[0])


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
