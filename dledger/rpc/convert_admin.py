"""Converts the status model to and from protobuf. Both have the same field names, so one table describes both
directions."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from dledger.core.membership_change import MAX_STEPS, ChangeKind, MembershipChange, MemberStep, is_node_id
from dledger.core.values import Base
from dledger.errors import InvalidRequest
from dledger.infra.addresses import can_be_member
from dledger.rpc.ports import BackupHead, ScrubProgress
from dledger.status.model import DamagedRange, ElectionEvent, FollowerStatus, MemberAddress, NodeStatus
from dledger.v1 import admin_pb2 as pb

_NESTED = ("members", "followers", "elections", "limits_hit", "damaged", "owner", "clocks")
_PLAIN = tuple(f.name for f in fields(NodeStatus) if f.name not in _NESTED)
_MEMBER = tuple(f.name for f in fields(MemberAddress))
_FOLLOWER = tuple(f.name for f in fields(FollowerStatus))
_DAMAGED = tuple(f.name for f in fields(DamagedRange))
_ELECTION = tuple(f.name for f in fields(ElectionEvent))


def node_status_to_pb(status: NodeStatus) -> pb.NodeStatus:
    message = pb.NodeStatus(
        members=[pb.MemberAddress(**{n: getattr(m, n) for n in _MEMBER}) for m in status.members],
        followers=[pb.FollowerStatus(**{n: getattr(f, n) for n in _FOLLOWER}) for f in status.followers],
        elections=[pb.ElectionEvent(**{n: getattr(e, n) for n in _ELECTION}) for e in status.elections],
        limits_hit=status.limits_hit,
        clocks=status.clocks,
        damaged=[damaged_to_pb(d) for d in status.damaged],
        owner=json.dumps(status.owner) if status.owner else "",
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
        clocks=dict(message.clocks),
        damaged=tuple(damaged_from_pb(d) for d in message.damaged),
        owner=_owner_from_pb(message.owner),
        **{name: getattr(message, name) for name in _PLAIN},
    )


def _owner_from_pb(text: str) -> dict[str, Any]:
    """Return {} if the value is not a JSON object, because the other fields of the status are still
    useful."""
    try:
        owner = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def damaged_to_pb(damage: DamagedRange) -> pb.DamagedRange:
    return pb.DamagedRange(**{name: getattr(damage, name) for name in _DAMAGED})


def damaged_from_pb(message: pb.DamagedRange) -> DamagedRange:
    return DamagedRange(**{name: getattr(message, name) for name in _DAMAGED})


def change_to_pb(group: str, change: MembershipChange) -> pb.ChangeMembersRequest:
    steps = [pb.MemberStep(kind=s.kind.value, node_id=s.node_id, address=s.address) for s in change.steps]
    return pb.ChangeMembersRequest(group=group, steps=steps, force=change.force)


def change_from_pb(request: pb.ChangeMembersRequest) -> MembershipChange:
    """Convert a change. Raises InvalidRequest, which names the step."""
    if not 0 < len(request.steps) <= MAX_STEPS:
        raise InvalidRequest(f"a change of the members has {len(request.steps)} steps; 1 to {MAX_STEPS}")
    return MembershipChange(tuple(map(_step_from_pb, request.steps)), force=request.force)


def _step_from_pb(step: pb.MemberStep) -> MemberStep:
    try:
        kind = ChangeKind(step.kind)
    except ValueError:
        kinds = ", ".join(kind.value for kind in ChangeKind)
        raise InvalidRequest(f"{step.kind!r:.100} is no step of a change; one of {kinds}") from None
    if not is_node_id(step.node_id):
        raise InvalidRequest(f"{step.node_id!r:.300} is no node id: 1 to 255 printable characters")
    if kind in (ChangeKind.ADD, ChangeKind.MOVE) and not can_be_member(step.address):
        raise InvalidRequest(
            f"{step.address!r:.300} is not an address of the form host:port that others can connect to"
        )
    return MemberStep(kind, step.node_id, step.address)


def scrub_to_pb(progress: ScrubProgress) -> pb.ScrubResponse:
    return pb.ScrubResponse(
        next_index=progress.next_index,
        ledger_end_index=progress.ledger_end_index,
        bytes_read=progress.bytes_read,
        found=[damaged_to_pb(d) for d in progress.found],
        done=progress.done,
    )


def scrub_from_pb(message: pb.ScrubResponse) -> ScrubProgress:
    return ScrubProgress(
        message.next_index,
        message.ledger_end_index,
        message.bytes_read,
        tuple(damaged_from_pb(d) for d in message.found),
        message.done,
    )


def backup_head_to_pb(head: BackupHead) -> pb.BackupHead:
    return pb.BackupHead(
        cluster_id=head.cluster_id,
        group=head.group,
        node_id=head.node_id,
        data_file_size=head.data_file_size,
        flush_mode=head.flush_mode,
        base_index=head.base.index,
        base_term=head.base.term,
        base_pos=head.base.pos,
        base_chain_crc=head.base.chain_crc,
        last_index=head.last_index,
        image=head.image,
    )


def backup_head_from_pb(message: pb.BackupHead) -> BackupHead:
    return BackupHead(
        message.cluster_id,
        message.group,
        message.node_id,
        message.data_file_size,
        message.flush_mode,
        Base(message.base_index, message.base_term, message.base_pos, message.base_chain_crc),
        message.last_index,
        message.image,
    )
