"""Converts the status model to and from protobuf. Both have the same field names, so one table describes both
directions."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from dledger.core.values import Base
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
    )
