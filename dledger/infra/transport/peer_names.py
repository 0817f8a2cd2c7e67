"""Authorization of members by certificate names.

Any certificate of the CA authenticates a client. To act as node X, the certificate must also contain a name
of X, so that neither a client nor another node can vote, push or take leadership as X.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping

from dledger.errors import Code, InvalidRequest
from dledger.infra.addresses import host_of

_log = logging.getLogger(__name__)

_NAME_PROPERTIES = ("x509_subject_alternative_name", "x509_common_name")
_MAX_LOGGED = 64


class PeerNames:
    """The accepted certificate names of each member. `configured` (node id -> name) overrides the names that
    are derived from id and address."""

    def __init__(self, members: Mapping[str, str], configured: Mapping[str, str]) -> None:
        """`members`: address by node id, read at each check, because members come and go."""
        self._members = members
        self._configured = configured
        self._logged: set[tuple[str, tuple[str, ...]]] = set()

    def server_name(self, node: str) -> str:
        """Return the name that the certificate of a member must contain when this node connects to it. ""
        stands for the host of its address."""
        if node in self._configured:
            return self._configured[node]
        _, host = self._accepted(node)
        return node if host is None else ""

    def _accepted(self, node: str) -> tuple[str | None, str | None]:
        """Return the name that must match exactly, and the host that may have any spelling. None: none."""
        if node in self._configured:
            return None, _normal(self._configured[node])
        hosts = {member: _host(address) for member, address in self._members.items()}
        # A host that several members share identifies none of them.
        is_alone = node in hosts and list(hosts.values()).count(hosts[node]) == 1
        return node, hosts[node] if is_alone else None

    def check(self, node: str, auth_context: Mapping[str, Iterable[bytes]]) -> None:
        """Raise InvalidRequest (CERTIFICATE_REFUSED) unless the connection's certificate is one of `node`."""
        names = tuple(names_of(auth_context))
        as_id, as_host = self._accepted(node)
        if self._are_of(node, names):
            return
        shown = ", ".join(names) or "no name"
        required = " or ".join(name for name in (as_id, as_host) if name is not None)
        if (node, names) not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add((node, names))
            _log.error("refused a certificate of %s that claims to be node %s", shown, node)
        raise InvalidRequest(
            f"the certificate names {shown}; to act as node {node!r} it must name {required}",
            code=Code.CERTIFICATE_REFUSED,
        )

    def are_of_a_member(self, names: Iterable[str]) -> bool:
        """Return True if these names identify some member."""
        presented = tuple(names)
        return any(self._are_of(node, presented) for node in self._members)

    def _are_of(self, node: str, names: tuple[str, ...]) -> bool:
        as_id, as_host = self._accepted(node)
        return any(name == as_id or _normal(name) == as_host for name in names)


class AdminNames:
    """Authorizes operators. Accepts the certificates of members and certificates that contain one of
    `names`."""

    def __init__(self, names: Iterable[str], members: PeerNames) -> None:
        self._names = frozenset(_normal(name) for name in names)
        self._members = members

    def check(self, auth_context: Mapping[str, Iterable[bytes]]) -> None:
        """Raise InvalidRequest (CERTIFICATE_REFUSED) unless the connection's certificate is one of these."""
        presented = names_of(auth_context)
        if any(_normal(name) in self._names for name in presented) or self._members.are_of_a_member(
            presented
        ):
            return
        shown = ", ".join(presented) or "no name"
        _log.warning("refused an operator request with a certificate of %s", shown)
        raise InvalidRequest(
            f"the certificate names {shown}, but this call needs a name from tls.admin_names or the name "
            "of a member",
            code=Code.CERTIFICATE_REFUSED,
        )


def certificate_names(auth_context: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """Return all normalized names in the certificate of a connection, or an empty result if it has no
    certificate."""
    return frozenset(map(_normal, names_of(auth_context)))


def normal_name(name: str) -> str:
    """Normalize a name as in certificate_names."""
    return _normal(name)


def names_of(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Return subject alternative names and common name, as reported by gRPC after it verified the
    certificate."""
    names = [
        value.decode(errors="replace") for name in _NAME_PROPERTIES for value in auth_context.get(name, ())
    ]
    return list(dict.fromkeys(names))


def _host(address: str) -> str:
    return _normal(host_of(address))


def _normal(name: str) -> str:
    """Normalize the spelling of addresses and host names."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower()
