"""Which certificates may speak as which member.

Any certificate of the CA makes a client. To speak as node X it must also carry a name of X: so neither a
client nor another node can vote, push or take leadership in X's name.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from dledger.addresses import host_of
from dledger.errors import Code, InvalidRequest

_log = logging.getLogger(__name__)

_NAME_PROPERTIES = ("x509_subject_alternative_name", "x509_common_name")
_MAX_NOTED = 64


class PeerNames:
    """The names of each member. `given` (node id -> name) replaces what follows from id and address."""

    def __init__(self, members: Mapping[str, str], given: Mapping[str, str]) -> None:
        hosts = {node: _host(address) for node, address in members.items()}
        used = Counter(hosts.values())
        self._ids: dict[str, str] = {}  # what a name must equal to the letter
        self._hosts: dict[str, str] = {}  # ... or as a host: in any case, in any spelling of an address
        self._server_names: dict[str, str] = {}
        for node, host in hosts.items():
            if node in given:
                self._hosts[node] = _normal(given[node])
                self._server_names[node] = given[node]
            elif used[host] == 1:
                self._ids[node], self._hosts[node] = node, host
                self._server_names[node] = ""
            else:
                # A host that several members share tells nobody apart.
                self._ids[node] = node
                self._server_names[node] = node
        self._noted: set[tuple[str, tuple[str, ...]]] = set()

    def server_name(self, node: str) -> str:
        """What this member's certificate must name when we connect to it; "": the host of its address."""
        return self._server_names[node]

    def check(self, node: str, auth_context: Mapping[str, Iterable[bytes]]) -> None:
        """InvalidRequest (CERTIFICATE_REFUSED) unless the connection's certificate is one of `node`."""
        found = tuple(names_of(auth_context))
        as_id, as_host = self._ids.get(node), self._hosts.get(node)
        if self._are_of(node, found):
            return
        shown = ", ".join(found) or "nobody"
        wanted = " or ".join(name for name in (as_id, as_host) if name is not None)
        if (node, found) not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add((node, found))
            _log.error("a certificate of %s spoke as node %s, and was refused", shown, node)
        raise InvalidRequest(
            f"the certificate names {shown}; to speak as node {node!r} it must name {wanted}",
            code=Code.CERTIFICATE_REFUSED,
        )

    def are_of_a_member(self, found: Iterable[str]) -> bool:
        """Whether these are the names in a certificate of some member."""
        names = tuple(found)
        return any(self._are_of(node, names) for node in self._hosts.keys() | self._ids.keys())

    def _are_of(self, node: str, found: tuple[str, ...]) -> bool:
        as_id, as_host = self._ids.get(node), self._hosts.get(node)
        return any(name == as_id or _normal(name) == as_host for name in found)


class AdminNames:
    """Which certificates may tell a node what to do: those of members, and those with one of `names`."""

    def __init__(self, names: Iterable[str], members: PeerNames) -> None:
        self._names = frozenset(_normal(name) for name in names)
        self._members = members

    def check(self, auth_context: Mapping[str, Iterable[bytes]]) -> None:
        """InvalidRequest (CERTIFICATE_REFUSED) for all others."""
        found = names_of(auth_context)
        if any(_normal(name) in self._names for name in found) or self._members.are_of_a_member(found):
            return
        shown = ", ".join(found) or "nobody"
        _log.warning("a certificate of %s asked for what only operators may, and was refused", shown)
        raise InvalidRequest(
            f"the certificate names {shown}; this needs one of tls.admin_names, or a member's",
            code=Code.CERTIFICATE_REFUSED,
        )


def certificate_names(auth_context: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """All names in the certificate of a connection, in one spelling; none if it showed none."""
    return frozenset(map(_normal, names_of(auth_context)))


def normal_name(name: str) -> str:
    """As certificate_names spells it."""
    return _normal(name)


def names_of(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Subject alternative names and common name, as gRPC reports them after it checked the certificate."""
    found = [
        value.decode(errors="replace") for name in _NAME_PROPERTIES for value in auth_context.get(name, ())
    ]
    return list(dict.fromkeys(found))


def _host(address: str) -> str:
    return _normal(host_of(address))


def _normal(name: str) -> str:
    """Addresses and host names in one spelling."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower()
