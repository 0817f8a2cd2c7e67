"""NodeStatus to JSON and back; its fields are those of the proto."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.status.encoding import node_status_from_json, node_status_to_json
from dledger.status.model import ElectionEvent, FollowerStatus, MemberAddress, NodeStatus
from tests.status.fakes import FakeSource, make_status

PROTO = Path(__file__).resolve().parents[2] / "proto" / "dledger" / "v1" / "admin.proto"

# Surrogates are no characters; JSON would carry them, UTF-8 does not.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_INTEGERS = st.integers(-1, 2**62)


@given(
    st.builds(
        NodeStatus,
        **{
            f.name: {"int": _INTEGERS, "str": _TEXT}[str(f.type)]
            for f in fields(NodeStatus)
            if f.type in ("int", "str")
        },
        members=st.lists(st.builds(MemberAddress, _TEXT, _TEXT, _TEXT), max_size=3).map(tuple),
        followers=st.lists(
            st.builds(
                FollowerStatus,
                _TEXT,
                st.booleans(),
                _TEXT,
                _INTEGERS,
                _INTEGERS,
                _INTEGERS,
                _INTEGERS,
                _INTEGERS,
            ),
            max_size=3,
        ).map(tuple),
        elections=st.lists(
            st.builds(ElectionEvent, _INTEGERS, _INTEGERS, _TEXT, _TEXT, _TEXT), max_size=3
        ).map(tuple),
        limits_hit=st.dictionaries(_TEXT, _INTEGERS, max_size=3),
    )
)
def test_round_trip(status: NodeStatus) -> None:
    text = json.dumps(node_status_to_json(status)).encode()
    assert node_status_from_json(json.loads(text)) == status


def test_fields_of_a_newer_node_are_ignored() -> None:
    data = node_status_to_json(FakeSource().node_status())
    data["from_the_future"] = 1
    data["followers"][0]["mood"] = "good"
    assert node_status_from_json(data) == node_status_from_json(
        node_status_to_json(node_status_from_json(data))
    )


def test_what_has_a_default_may_be_missing() -> None:
    data = node_status_to_json(make_status())
    for name in ("members", "followers", "elections", "limits_hit", "health"):
        del data[name]
    status = node_status_from_json(data)
    assert (status.members, status.limits_hit, status.health) == ((), {}, "ok")


def test_a_missing_field_is_named() -> None:
    data = node_status_to_json(make_status())
    del data["term"]
    with pytest.raises(ValueError, match="NodeStatus: missing fields: term"):
        node_status_from_json(data)


@pytest.mark.parametrize(
    ("name", "value"),
    [("elections", [None]), ("members", 7), ("limits_hit", []), ("limits_hit", {"a": float("inf")})],
)
def test_a_field_of_another_kind_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="not a node status"):
        node_status_from_json({**node_status_to_json(make_status()), name: value})


@pytest.mark.parametrize("cls", [NodeStatus, FollowerStatus, ElectionEvent, MemberAddress])
def test_names_are_those_of_the_proto(cls: type) -> None:
    """gRPC and HTTP show the same facts under the same names."""
    (body,) = re.findall(
        rf"^message {cls.__name__} {{$(.*?)^}}$", PROTO.read_text(), re.MULTILINE | re.DOTALL
    )
    assert re.findall(r"(\w+) = \d+;", body) == [f.name for f in fields(cls)]
