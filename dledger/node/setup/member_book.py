"""Addresses of the members, which follow the configuration in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from dledger.core.values import Membership
from dledger.infra.logs import get_logger

_log = get_logger("node")

#: Nothing listens here. The first members of a group can include some that the configuration no longer names.
NO_ADDRESS = "0.0.0.0:0"


class MemberBook(Mapping[str, str]):
    """Address of each member by node id, as clients use it. The configuration file counts until the log has
    another configuration."""

    def __init__(self, configured: Mapping[str, str], peer_addresses: Mapping[str, str]) -> None:
        """`peer_addresses`: where this node reaches members on another network, by node id."""
        self._addresses = dict(configured)
        self._peer_addresses = dict(peer_addresses)
        self._former: dict[str, str] = {}
        self._listeners: list[Callable[[], None]] = []

    def __getitem__(self, node_id: str) -> str:
        return self._addresses[node_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def peer_address(self, node_id: str) -> str:
        """Return the address at which this node reaches another member, or NO_ADDRESS."""
        known = (self._peer_addresses, self._addresses, self._former)
        return next((book[node_id] for book in known if book.get(node_id)), NO_ADDRESS)

    def has_named(self, node_id: str) -> bool:
        """Return True for current and former members, and for nodes of the configuration file."""
        return any(node_id in book for book in (self._addresses, self._former, self._peer_addresses))

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the event loop after each change."""
        self._listeners.append(listener)

    def update(self, membership: Membership, earlier: Iterable[Membership] = ()) -> None:
        """Take over the members of a configuration. Those of `earlier` ones, and former members, keep their
        addresses as peers."""
        for known in earlier:
            self._former |= _addresses(known)
        addresses = _addresses(membership)
        if addresses != self._addresses:
            self._former |= self._addresses
            self._addresses = addresses
            for listener in self._listeners:
                listener()


def warn_of_other_address(node_id: str, configured: str, membership: Membership) -> None:
    """Log that the log of this node has another address for it than its configuration file."""
    known = _addresses(membership).get(node_id, configured)
    if known != configured:
        _log.warning(
            "the log of this node has another address for it, at which others may look for it: unless it has "
            "moved already, run `dledger member move`",
            configured=configured,
            in_log=known,
        )


def _addresses(membership: Membership) -> dict[str, str]:
    return {member.node_id: member.address for member in membership.identities}
