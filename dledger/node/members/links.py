"""The links to the other members, which follow the configuration in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from dledger.node.members.peers import PeerLink


class PeerLinks(Mapping[str, PeerLink]):
    """Links by node id. A link remains until the configuration no longer has its member."""

    def __init__(self, make: Callable[[str, int], PeerLink], peers: Sequence[str]) -> None:
        """`make` creates the link to a node whose stream ids follow a number. `peers`: the members known at
        the start."""
        self._make = make
        self._links = {peer: make(peer, 0) for peer in peers}
        self._last_stream_ids: dict[str, int] = {}  # of members that have left
        self._leads = False
        self._is_running = False

    def __getitem__(self, peer: str) -> PeerLink:
        return self._links[peer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def run(self) -> None:
        """Connect now, and new links at once."""
        self._is_running = True
        for link in self._links.values():
            link.connect()

    def keep_only(self, peers: Sequence[str], address_of: Callable[[str], str]) -> list[PeerLink]:
        """Create the links that are missing. Returns those that are no longer needed, or lead to a former
        address, to be closed."""
        gone = [
            self._links.pop(peer)
            for peer, link in list(self._links.items())
            if peer not in peers or link.address != address_of(peer)
        ]
        self._last_stream_ids |= {link.peer: link.last_stream_id for link in gone}
        for peer in peers:
            if peer not in self._links:
                link = self._links[peer] = self._make(peer, self._last_stream_ids.pop(peer, 0))
                if self._is_running:
                    link.connect()
                if self._leads:
                    link.lead()
        return gone

    def set_leading(self, leads: bool) -> None:
        """Open push streams, new ones if there are some already, or finish them."""
        self._leads = leads
        for link in self._links.values():
            if leads:
                link.lead()
            else:
                link.follow()
