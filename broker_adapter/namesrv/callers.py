"""Authorization at a NameServer, by the names in client certificates.

Holders of any certificate from the CA may read. To register a broker, a certificate must contain one of the
configured broker names and a name of the registered node. Therefore neither clients nor other nodes can
register in place of that node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from broker_adapter.errors import NameServerRefused, Status
from dledger.infra.addresses import host_of
from dledger.infra.logs import get_logger
from dledger.infra.transport.peer_names import certificate_names, normal_name

_log = get_logger("namesrv")

AuthContext: TypeAlias = Mapping[str, Iterable[bytes]]
_MAX_NOTED = 64
_SHOWN = 255


class Callers:
    """Authorizes callers under mutual TLS. Without mutual TLS, all callers may do everything."""

    def __init__(self, broker_names: Iterable[str], admin_names: Iterable[str]) -> None:
        self._brokers = frozenset(map(normal_name, broker_names))
        self._admins = frozenset(map(normal_name, admin_names))
        self._noted: set[tuple[str, frozenset[str]]] = set()

    def check_register(self, context: AuthContext, node_id: str, address: str) -> None:
        """Raise NameServerRefused (NAMESRV_NOT_ALLOWED) unless the caller is the broker that is to be
        registered.
        """
        names = certificate_names(context)
        node_id, address = node_id[:_SHOWN], address[:_SHOWN]  # these are not validated yet
        if not names & self._brokers:
            self._refuse(names, f"register {node_id}", "one of tls.broker_names")
        host = host_of(address)
        if not names & {normal_name(node_id), normal_name(host)}:
            self._refuse(names, f"register {node_id} at {address}", f"the name {node_id} or {host}")

    def check_unregister(self, context: AuthContext, node_id: str) -> None:
        """Raise NameServerRefused (NAMESRV_NOT_ALLOWED) unless the caller is an operator or the broker
        itself.
        """
        names = certificate_names(context)
        is_itself = bool(names & self._brokers) and normal_name(node_id) in names
        if not is_itself and not names & self._admins:
            self._refuse(names, f"un-register {node_id[:_SHOWN]}", "its own name, or one of tls.admin_names")

    def check_change(self, context: AuthContext, what: str) -> None:
        """Raise NameServerRefused (NAMESRV_NOT_ALLOWED) unless the caller is an operator or a broker."""
        names = certificate_names(context)
        if not names & (self._admins | self._brokers):
            self._refuse(names, what, "one of tls.admin_names or tls.broker_names")

    def _refuse(self, names: frozenset[str], what: str, needed: str) -> None:
        shown = ", ".join(sorted(names)) or "no name"
        if (what, names) not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add((what, names))
            _log.warning("not allowed", certificate=shown, what=what)
        raise NameServerRefused(
            Status.NAMESRV_NOT_ALLOWED, f"the certificate for {shown} may not {what}: this requires {needed}"
        )
