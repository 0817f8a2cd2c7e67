"""Who sends and who is meant: made for every peer message, checked before one is acted on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dledger.errors import Code, InvalidRequest
from dledger.v1 import peer_pb2 as pb

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What a node says of itself to its peers, and whom it expects to hear from."""

    cluster_id: str
    group: str
    node_id: str
    members: Collection[str]
    incarnation: int

    def envelope(self, remote_id: str) -> pb.Envelope:
        return pb.Envelope(
            version=PROTOCOL_VERSION,
            cluster_id=self.cluster_id,
            group=self.group,
            local_id=self.node_id,
            remote_id=remote_id,
            incarnation=self.incarnation,
        )

    def check(self, envelope: pb.Envelope) -> str:
        """The sender's node id. InvalidRequest says, with DLedger's number, why the message is not for us."""
        if envelope.version != PROTOCOL_VERSION:
            raise InvalidRequest(
                f"protocol version {envelope.version}; this node speaks {PROTOCOL_VERSION}",
                code=Code.UNSUPPORTED_VERSION,
            )
        if envelope.cluster_id != self.cluster_id:
            raise InvalidRequest(
                f"cluster {envelope.cluster_id!r}; this node belongs to {self.cluster_id!r}",
                code=Code.UNKNOWN_CLUSTER,
            )
        if envelope.group != self.group:
            raise InvalidRequest(
                f"group {envelope.group!r}; this node serves {self.group!r}", code=Code.UNKNOWN_GROUP
            )
        if envelope.local_id not in self.members or envelope.local_id == self.node_id:
            raise InvalidRequest(
                f"sender {envelope.local_id!r} is no other member of {sorted(self.members)}",
                code=Code.UNKNOWN_MEMBER,
            )
        if envelope.remote_id != self.node_id:
            raise InvalidRequest(
                f"a message for {envelope.remote_id!r}; this node is {self.node_id!r}",
                code=Code.UNEXPECTED_MEMBER,
            )
        return envelope.local_id


def refusal(error: InvalidRequest) -> pb.Refusal:
    return pb.Refusal(code=int(error.code), message=error.message)
