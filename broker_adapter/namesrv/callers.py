"""Who may change what at a NameServer, by the names in certificates.

Every certificate of the CA may ask. To register a broker, a certificate needs one of the configured names of
brokers, and a name of the node that it registers: so neither a client nor another node takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from broker_adapter.errors import NameServerRefused, Status
from dledger.platform import certificate_names, get_logger, host_of, normal_name

_log = get_logger("namesrv")

AuthContext: TypeAlias = Mapping[str, Iterable[bytes]]
_MAX_NOTED = 64
_SHOWN = 255


class Callers:
    """For mutual TLS. Without it nobody shows a certificate, and everybody may do everything."""

    def __init__(self, broker_names: Iterable[str], admin_names: Iterable[str]) -> None:
        self._brokers = frozenset(map(normal_name, broker_names))
        self._admins = frozenset(map(normal_name, admin_names))
        self._noted: set[tuple[str, frozenset[str]]] = set()

    def check_register(self, context: AuthContext, node_id: str, address: str) -> None:
        """NameServerRefused (NAMESRV_NOT_ALLOWED) unless a broker speaks for itself."""
        names = certificate_names(context)
        node_id, address = node_id[:_SHOWN], address[:_SHOWN]  # nothing was checked yet
        if not names & self._brokers:
            self._refuse(names, f"register {node_id}", "one of tls.broker_names")
        host = host_of(address)
        if not names & {normal_name(node_id), normal_name(host)}:
            self._refuse(names, f"register {node_id} at {address}", f"{node_id} or {host} in it")

    def check_unregister(self, context: AuthContext, node_id: str) -> None:
        """NameServerRefused (NAMESRV_NOT_ALLOWED) unless an operator, or the broker itself, asks."""
        names = certificate_names(context)
        is_itself = bool(names & self._brokers) and normal_name(node_id) in names
        if not is_itself and not names & self._admins:
            self._refuse(names, f"un-register {node_id[:_SHOWN]}", "its own name, or one of tls.admin_names")

    def check_change(self, context: AuthContext, what: str) -> None:
        """NameServerRefused (NAMESRV_NOT_ALLOWED) unless an operator or a broker asks."""
        names = certificate_names(context)
        if not names & (self._admins | self._brokers):
            self._refuse(names, what, "one of tls.admin_names or tls.broker_names")

    def _refuse(self, names: frozenset[str], what: str, needed: str) -> None:
        shown = ", ".join(sorted(names)) or "nobody"
        if (what, names) not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add((what, names))
            _log.warning("not allowed", certificate=shown, what=what)
        raise NameServerRefused(
            Status.NAMESRV_NOT_ALLOWED, f"a certificate of {shown} may not {what}: that needs {needed}"
        )
