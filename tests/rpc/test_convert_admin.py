"""The status of a node survives the wire."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from dledger.rpc.convert_admin import node_status_from_pb, node_status_to_pb
from dledger.status.model import ElectionEvent, FollowerStatus, MemberAddress, NodeStatus
from dledger.v1 import admin_pb2

small = st.integers(-1, 2**40)
_BY_TYPE = {"int": small, "str": st.text(max_size=8), "bool": st.booleans()}


def plain(cls: type) -> dict[str, st.SearchStrategy[object]]:
    return {f.name: _BY_TYPE[f.type] for f in fields(cls) if f.type in _BY_TYPE}


statuses = st.builds(
    NodeStatus,
    **plain(NodeStatus),
    members=st.lists(st.builds(MemberAddress, **plain(MemberAddress)), max_size=2).map(tuple),
    followers=st.lists(st.builds(FollowerStatus, **plain(FollowerStatus)), max_size=2).map(tuple),
    elections=st.lists(st.builds(ElectionEvent, **plain(ElectionEvent)), max_size=2).map(tuple),
    limits_hit=st.dictionaries(st.text(max_size=5), small, max_size=3),
)


@given(statuses)
def test_statuses_round_trip(status: NodeStatus) -> None:
    wire = node_status_to_pb(status).SerializeToString()
    assert node_status_from_pb(admin_pb2.NodeStatus.FromString(wire)) == status
