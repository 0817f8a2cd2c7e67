"""The status model as protobuf and back. Field names are the same on both sides, so one table serves both."""

from __future__ import annotations

from dataclasses import fields

from dledger.status.model import ElectionEvent, FollowerStatus, MemberAddress, NodeStatus
from dledger.v1 import admin_pb2 as pb

_NESTED = ("members", "followers", "elections", "limits_hit")
_PLAIN = tuple(f.name for f in fields(NodeStatus) if f.name not in _NESTED)
_MEMBER = tuple(f.name for f in fields(MemberAddress))
_FOLLOWER = tuple(f.name for f in fields(FollowerStatus))
_ELECTION = tuple(f.name for f in fields(ElectionEvent))


def node_status_to_pb(status: NodeStatus) -> pb.NodeStatus:
    message = pb.NodeStatus(
        members=[pb.MemberAddress(**{n: getattr(m, n) for n in _MEMBER}) for m in status.members],
        followers=[pb.FollowerStatus(**{n: getattr(f, n) for n in _FOLLOWER}) for f in status.followers],
        elections=[pb.ElectionEvent(**{n: getattr(e, n) for n in _ELECTION}) for e in status.elections],
        limits_hit=status.limits_hit,
    )
    for name in _PLAIN:
        setattr(message, name, getattr(status, name))
    return message


def node_status_from_pb(message: pb.NodeStatus) -> NodeStatus:
    return NodeStatus(
        members=tuple(MemberAddress(**{n: getattr(m, n) for n in _MEMBER}) for m in message.members),
        followers=tuple(FollowerStatus(**{n: getattr(f, n) for n in _FOLLOWER}) for f in message.followers),
        elections=tuple(ElectionEvent(**{n: getattr(e, n) for n in _ELECTION}) for e in message.elections),
        limits_hit=dict(message.limits_hit),
        **{name: getattr(message, name) for name in _PLAIN},
    )
