"""The status of a node survives the wire."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.values import Base
from dledger.rpc.convert_admin import (
    backup_head_from_pb,
    backup_head_to_pb,
    node_status_from_pb,
    node_status_to_pb,
    scrub_from_pb,
    scrub_to_pb,
)
from dledger.rpc.ports import BackupHead, ScrubProgress
from dledger.status.model import DamagedRange, ElectionEvent, FollowerStatus, MemberAddress, NodeStatus
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
    damaged=st.lists(st.builds(DamagedRange, **plain(DamagedRange)), max_size=2).map(tuple),
    limits_hit=st.dictionaries(st.text(max_size=5), small, max_size=3),
    owner=st.dictionaries(st.text(max_size=5), st.none() | small | st.lists(st.text(max_size=5)), max_size=3),
)


@given(statuses)
def test_statuses_round_trip(status: NodeStatus) -> None:
    wire = node_status_to_pb(status).SerializeToString()
    assert node_status_from_pb(admin_pb2.NodeStatus.FromString(wire)) == status


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "[" * 100_000])
def test_what_an_owner_says_that_is_no_object_says_nothing(text: str) -> None:
    assert node_status_from_pb(admin_pb2.NodeStatus(node_id="n1", owner=text)).owner == {}


def test_backups_and_scrubs_round_trip() -> None:
    head = BackupHead("c", "g", "n1", 1 << 20, "SYNC_FLUSH", Base(7, 2, 4096, 0xFFFFFFFF), 99)
    assert backup_head_from_pb(backup_head_to_pb(head)) == head
    found = (DamagedRange(3, 4, "data/0", 17, "crc"),)
    progress = ScrubProgress(5, 9, 4096, found, done=False)
    assert scrub_from_pb(scrub_to_pb(progress)) == progress
