"""The status of a node survives the wire."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.membership_change import MAX_STEPS, ChangeKind, MembershipChange, MemberStep
from dledger.core.values import Base
from dledger.errors import InvalidRequest
from dledger.rpc.convert_admin import (
    backup_head_from_pb,
    backup_head_to_pb,
    change_from_pb,
    change_to_pb,
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


NO_ADDRESSES = [
    "",
    "h",
    "h:",
    ":1",
    "h:0",
    "h:65536",
    "h:-1",
    "h:\u0663",
    "h:1\n",
    "a b:1",
    "a\nb:1",
    "\0:1",
    "a/b:1",
    "a,b:1",
    "a@b:1",
    "a?b:1",
    "#:1",
    "%00:1",
    "[x:1",
    "x]:1",
    "[x]y:1",
    "h\u00e9:1",
    "0.0.0.0:1",
    "[::]:1",
    "a" * 10_000 + ":1",
    "http://h:1",
]


@pytest.mark.parametrize("address", NO_ADDRESSES, ids=lambda address: repr(address)[:20])
@pytest.mark.parametrize("kind", ["add", "move"])
def test_members_are_at_addresses_that_others_can_connect_to(kind: str, address: str) -> None:
    step = admin_pb2.MemberStep(kind=kind, node_id="n4", address=address)
    with pytest.raises(InvalidRequest, match="is not an address") as caught:
        change_from_pb(admin_pb2.ChangeMembersRequest(steps=[step]))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("address", ["h:1", "a-b.c_d:65535", "unix:1", "10.0.0.1:1", "[::1]:1", "::1:1"])
def test_the_address_of_a_member_remains_as_it_is(address: str) -> None:
    change = MembershipChange((MemberStep(ChangeKind.ADD, "n4", address),), force=True)
    assert change_from_pb(change_to_pb("g", change)) == change


@pytest.mark.parametrize("node_id", ["", "a\\b", "a\nb", "\u202e", "a\0", "n" * 256])
@pytest.mark.parametrize("kind", ["add", "promote", "demote", "remove", "move"])
def test_steps_name_possible_nodes(kind: str, node_id: str) -> None:
    step = admin_pb2.MemberStep(kind=kind, node_id=node_id, address="h:1")
    with pytest.raises(InvalidRequest, match="is no node id"):
        change_from_pb(admin_pb2.ChangeMembersRequest(steps=[step]))


@pytest.mark.parametrize("kind", ["", "ADD", "add ", "x" * 10_000])
def test_steps_have_known_kinds(kind: str) -> None:
    step = admin_pb2.MemberStep(kind=kind, node_id="n4", address="h:1")
    with pytest.raises(InvalidRequest, match="is no step") as caught:
        change_from_pb(admin_pb2.ChangeMembersRequest(steps=[step]))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("count", [0, MAX_STEPS + 1])
def test_a_change_has_some_steps_and_not_many(count: int) -> None:
    steps = [admin_pb2.MemberStep(kind="remove", node_id=f"n{number}") for number in range(count)]
    with pytest.raises(InvalidRequest, match=f"has {count} steps"):
        change_from_pb(admin_pb2.ChangeMembersRequest(steps=steps))
