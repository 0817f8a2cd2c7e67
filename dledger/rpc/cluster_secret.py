"""Authentication of members without certificates: a secret shared by all nodes of a cluster.

It is part of the envelope of every request between nodes, so it is only as confidential as the network. It
excludes clients that can reach a port but cannot eavesdrop. It appears in no status, log, error or repr.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence


class ClusterSecret:
    """One secret, or two during a rotation. Only the first is sent; both are accepted."""

    def __init__(self, accepted: Sequence[bytes]) -> None:
        assert accepted
        self._accepted = tuple(accepted)

    @property
    def sent(self) -> bytes:
        return self._accepted[0]

    def accepts(self, candidate: bytes) -> bool:
        """Return True if `candidate` is accepted, in constant time."""
        return sum(hmac.compare_digest(candidate, known) for known in self._accepted) > 0

    def proof_of(self, data: bytes) -> bytes:
        """Prove knowledge of the secret to another holder without transmitting it: a MAC of `data`."""
        return hmac.digest(self.sent, data, "sha256")

    def accepts_proof(self, data: bytes, candidate: bytes) -> bool:
        """Return True if `candidate` is a proof for `data` that was made with either secret. Takes constant
        time."""
        proofs = (hmac.digest(known, data, "sha256") for known in self._accepted)
        return sum(hmac.compare_digest(candidate, expected) for expected in proofs) > 0

    def __repr__(self) -> str:
        return f"<ClusterSecret, {len(self._accepted)} accepted>"
