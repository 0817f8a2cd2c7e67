"""What tells members from others where no certificate does: a secret that all nodes of a cluster are given.

It travels in the envelope of every question between nodes, so it is as safe from eavesdroppers as the network
is. It keeps away those who can reach a port and cannot listen. It appears in no status, log, error or repr.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence


class ClusterSecret:
    """One secret, or two while it is changed: the first is sent, both are accepted."""

    def __init__(self, accepted: Sequence[bytes]) -> None:
        assert accepted
        self._accepted = tuple(accepted)

    @property
    def sent(self) -> bytes:
        return self._accepted[0]

    def accepts(self, given: bytes) -> bool:
        """In a time that does not depend on how much of it is right."""
        return sum(hmac.compare_digest(given, known) for known in self._accepted) > 0

    def proof_of(self, data: bytes) -> bytes:
        """That who made `data` knows the secret, for whoever does, too: the secret does not travel."""
        return hmac.digest(self.sent, data, "sha256")

    def accepts_proof(self, data: bytes, given: bytes) -> bool:
        """Likewise of `data`, made with either secret."""
        made = (hmac.digest(known, data, "sha256") for known in self._accepted)
        return sum(hmac.compare_digest(given, one) for one in made) > 0

    def __repr__(self) -> str:
        return f"<ClusterSecret, {len(self._accepted)} accepted>"
