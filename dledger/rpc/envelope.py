"""Adds sender and recipient to every peer message, and checks them before a message is processed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from dledger.core.membership_change import is_node_id
from dledger.core.values import FEATURES, RULES_VERSION, UNKNOWN_UID
from dledger.errors import Code, DLedgerError, InvalidRequest
from dledger.rpc.cluster_secret import ClusterSecret
from dledger.v1 import peer_pb2 as pb

#: 3: messages carry the rules version. Release 0.1.0, which sends none, speaks 2 (or 1) and refuses 3.
FIRST_VERSION = 3
#: 4: the members have changed, or the sender was added. Release 0.2 speaks 3 and refuses 4: it would count
#: the first members. Both versions have the same messages.
PROTOCOL_VERSION = 4
_OF_0_1_0 = (1, 2)
_SHOWN = 32  # names of a foreign list of members in an error


class PeerClaims(NamedTuple):
    """What the sender of a message knows of itself and of its receiver."""

    uid: int  # as which member the sender was added; UNKNOWN_UID: it does not know yet
    receiver_uid: int  # of the receiver; UNKNOWN_UID: in no configuration that the sender knows
    directory: int  # number of the sender's directory; 0 while it is rejoining
    receiver_directory: int  # the newest one of the receiver that the sender knows; 0: none


@dataclass(frozen=True)
class PeerIdentity:
    """The identity that a node sends to its peers, and the peers that it accepts."""

    cluster_id: str
    group: str
    node_id: str
    members: Collection[str]  # of the new group; empty: this node was added later and does not know them
    incarnation: int
    #: None: any sender in the name of a member is accepted, unless certificates are compared.
    secret: ClusterSecret | None = field(default=None, repr=False, compare=False)
    #: Returns the number of a node's newest known directory, also of this node; 0: none is known.
    directory_of: Callable[[str], int] = field(default=lambda node_id: 0, repr=False, compare=False)
    #: Returns the uid of a member, also of this node, or UNKNOWN_UID.
    uid_of: Callable[[str], int] = field(default=lambda node_id: 0, repr=False, compare=False)
    #: Returns True if a sender without the secret may be a member. It may lead by a configuration that this
    #: node does not have yet, but any client can call itself a member that was added.
    may_be_member: Callable[[str], bool] = field(default=lambda node_id: True, repr=False, compare=False)
    #: Returns True once this node has something that release 0.2 does not know.
    has_changed: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)

    @cached_property
    def member_list(self) -> list[str]:
        return sorted(self.members)

    def claims(self, remote_id: str) -> PeerClaims:
        return PeerClaims(
            self.uid_of(self.node_id),
            self.uid_of(remote_id),
            self.directory_of(self.node_id),
            self.directory_of(remote_id),
        )

    def envelope(self, remote_id: str) -> pb.Envelope:
        claims = self.claims(remote_id)
        return pb.Envelope(
            version=PROTOCOL_VERSION if self.has_changed() else FIRST_VERSION,
            features=FEATURES,
            cluster_id=self.cluster_id,
            group=self.group,
            local_id=self.node_id,
            remote_id=remote_id,
            incarnation=self.incarnation,
            members=self.member_list,
            secret=b"" if self.secret is None else self.secret.sent,
            rules_version=RULES_VERSION,
            directory=claims.directory,
            known_directory=claims.receiver_directory,
            uid=claims.uid,
            known_uid=claims.receiver_uid,
        )

    def check(self, envelope: pb.Envelope) -> str:
        """Return the sender's node id. Raises InvalidRequest if the message has another version, cluster,
        group or list of members, or no accepted secret, or if it is not from another member to this node."""
        self._check_version(envelope)
        if self.secret is not None and not self.secret.accepts(envelope.secret):
            raise InvalidRequest(
                f"{'not the' if envelope.secret else 'no'} secret of the cluster: cluster_secret_file must "
                "contain the same secret on all nodes",
                code=Code.SECRET_REFUSED,
            )
        if envelope.cluster_id != self.cluster_id:
            raise InvalidRequest(
                f"the message is for cluster {envelope.cluster_id!r:.300}; this node belongs to "
                f"{self.cluster_id!r}",
                code=Code.UNKNOWN_CLUSTER,
            )
        if envelope.group != self.group:
            raise InvalidRequest(
                f"the message is for group {envelope.group!r:.300}; this node serves {self.group!r}",
                code=Code.UNKNOWN_GROUP,
            )
        self._check_members(envelope)
        is_other = is_node_id(envelope.local_id) and envelope.local_id != self.node_id
        if not is_other or not self._may_know(envelope):
            raise InvalidRequest(
                f"sender {envelope.local_id!r:.300} is not one of the other members: add it with "
                "`dledger member add`, or correct the address of this node",
                code=Code.UNKNOWN_MEMBER,
            )
        if not self._may_trust(envelope.local_id):
            raise InvalidRequest(
                f"sender {envelope.local_id!r:.300} is in no configuration that {self.node_id} knows: set "
                f"cluster_secret_file on all nodes, or name it in `members` of {self.node_id} and restart",
                code=Code.UNKNOWN_MEMBER,
            )
        if envelope.remote_id != self.node_id:
            raise InvalidRequest(
                f"the message is for node {envelope.remote_id!r:.300}; this node is {self.node_id!r}",
                code=Code.UNEXPECTED_MEMBER,
            )
        return envelope.local_id

    def _may_know(self, envelope: pb.Envelope) -> bool:
        """Return True if the sender is, or may have become, a member.

        The sender can lead by a configuration that this node does not have yet, or not any more. It was then
        added, or it is one of the first members.
        """
        if envelope.uid == UNKNOWN_UID:
            return self.uid_of(envelope.local_id) != UNKNOWN_UID
        first = self.members or envelope.members
        return envelope.uid > 0 or not first or envelope.local_id in first

    def _may_trust(self, node_id: str) -> bool:
        """Return True if the sender has proved more than a name, or the name is that of a member."""
        return self.secret is not None or node_id in self.members or self.may_be_member(node_id)

    def _check_members(self, envelope: pb.Envelope) -> None:
        """Reject another list of first members: majorities of two lists need not share a node, so two leaders
        could win."""
        if not self.members or not envelope.members or list(envelope.members) == self.member_list:
            return
        theirs = ", ".join(envelope.members[:_SHOWN])
        raise InvalidRequest(
            f"the member lists differ: {envelope.local_id:.300} has {theirs:.300}; {self.node_id} has "
            f"{', '.join(self.member_list)}: `members` must name the same ids, those of the first members, "
            "on all nodes that `dledger init` has initialized; start an added node with --join instead",
            code=Code.MEMBERS_DIFFER,
        )

    def _check_version(self, envelope: pb.Envelope) -> None:
        """Reject other versions: nodes with different rules would derive different states from the same
        log."""
        is_spoken = FIRST_VERSION <= envelope.version <= PROTOCOL_VERSION
        is_older = envelope.features < 1
        if is_spoken and envelope.rules_version == RULES_VERSION and not (is_older and self.has_changed()):
            return
        if is_spoken and envelope.rules_version == RULES_VERSION:
            theirs = "runs release 0.2, which cannot be used after a purge or a change of members by 0.3"
        elif envelope.version in _OF_0_1_0:
            theirs = "runs release 0.1.0 (rules version 1)"
        elif is_spoken:
            theirs = f"has rules version {envelope.rules_version}"
        else:
            theirs = f"speaks protocol version {envelope.version}"
        raise InvalidRequest(
            f"{envelope.local_id:.300} {theirs}; {self.node_id} has rules version {RULES_VERSION} (protocol "
            f"version {PROTOCOL_VERSION}): stop all nodes, install the same release, and start them again",
            code=Code.UNSUPPORTED_VERSION,
        )


def refusal(error: DLedgerError) -> pb.Refusal:
    return pb.Refusal(code=int(error.code), message=error.message)
