"""Who sends and who is meant: made for every peer message, checked before one is acted on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from dledger.errors import Code, DLedgerError, InvalidRequest
from dledger.rpc.cluster_secret import ClusterSecret
from dledger.v1 import peer_pb2 as pb

#: 2: whoever gets the message compares the lists of members. A version that does not, refuses 2.
PROTOCOL_VERSION = 2
#: Sent where nodes may still run a version that does not know 2.
_WITHOUT_MEMBERS = 1


@dataclass(frozen=True)
class Identity:
    """What a node says of itself to its peers, and whom it expects to hear from."""

    cluster_id: str
    group: str
    node_id: str
    members: Collection[str]
    incarnation: int
    #: False: senders of an older version, which do not say whom they count as members, are believed.
    compares_members: bool = True
    #: None: whoever speaks for a member is believed, as far as no certificate is compared.
    secret: ClusterSecret | None = field(default=None, repr=False, compare=False)

    @cached_property
    def member_list(self) -> list[str]:
        return sorted(self.members)

    def envelope(self, remote_id: str) -> pb.Envelope:
        return pb.Envelope(
            version=PROTOCOL_VERSION if self.compares_members else _WITHOUT_MEMBERS,
            cluster_id=self.cluster_id,
            group=self.group,
            local_id=self.node_id,
            remote_id=remote_id,
            incarnation=self.incarnation,
            members=self.member_list,
            secret=b"" if self.secret is None else self.secret.sent,
        )

    def check(self, envelope: pb.Envelope) -> str:
        """The sender's node id. InvalidRequest says, with DLedger's number, why the message is not for us."""
        if envelope.version not in (_WITHOUT_MEMBERS, PROTOCOL_VERSION):
            raise InvalidRequest(
                f"protocol version {envelope.version}; this node speaks {PROTOCOL_VERSION}",
                code=Code.UNSUPPORTED_VERSION,
            )
        if self.secret is not None and not self.secret.accepts(envelope.secret):
            raise InvalidRequest(
                f"{'not the' if envelope.secret else 'no'} secret of the cluster: cluster_secret_file must "
                "hold the same on all nodes",
                code=Code.SECRET_REFUSED,
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
        self._check_members(envelope)
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

    def _check_members(self, envelope: pb.Envelope) -> None:
        """Two lists of members can have majorities without a common node, and so two leaders."""
        if list(envelope.members) == self.member_list or self.is_unlisted(envelope):
            return
        theirs = ", ".join(envelope.members) or "members that it does not name: its version is too old"
        raise InvalidRequest(
            f"{envelope.local_id} counts {theirs}; {self.node_id} counts {', '.join(self.member_list)}: "
            "`members` must name the same ids on all nodes",
            code=Code.MEMBERS_DIFFER,
        )

    def is_unlisted(self, envelope: pb.Envelope) -> bool:
        """Whether the sender does not name its members, and need not."""
        return not envelope.members and envelope.version == _WITHOUT_MEMBERS and not self.compares_members


def refusal(error: DLedgerError) -> pb.Refusal:
    return pb.Refusal(code=int(error.code), message=error.message)
