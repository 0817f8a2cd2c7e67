"""Configurations as JSON: in configuration entries, hard states and messages. Pure."""

from __future__ import annotations

import json

from dledger.core.directories import MAX_DIRECTORY
from dledger.core.membership_change import MAX_MEMBERS, is_node_id
from dledger.core.values import (
    MAX_RECOVERIES,
    MAX_SESSION_OFFSET,
    MAX_UID,
    NO_RECOVERY,
    UNKNOWN_UID,
    Member,
    Membership,
    Recovery,
)

#: A joint configuration may also contain all members of the one before.
_MOST = 2 * MAX_MEMBERS


def encode_membership(membership: Membership) -> bytes:
    values: dict[str, object] = {
        "voters": membership.voters,
        "outgoing": membership.outgoing,
        "learners": membership.learners,
        "members": [list(member) for member in membership.identities],
    }
    if membership.recovery.number:
        values["recovery"] = membership.recovery
    return json.dumps(values, separators=(",", ":")).encode()


def decode_membership(data: bytes) -> Membership | None:
    """Return None if this is no configuration, or one that no change can lead to."""
    try:
        values = json.loads(data)
        voters, outgoing, learners = (_names(values[key]) for key in ("voters", "outgoing", "learners"))
        members = tuple(map(_member, _list(values["members"])))
        recovery = Recovery(*map(_number, _list(values.get("recovery", []))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_recovered = 0 < recovery.number <= MAX_RECOVERIES and 0 < recovery.session_offset <= MAX_SESSION_OFFSET
    if recovery != NO_RECOVERY and not is_recovered:
        return None
    if len({member.node_id for member in members}) < len(members):
        return None
    if not voters or set(voters) & set(learners):
        return None
    return Membership(voters, outgoing, learners, members, recovery)


def _list(value: object) -> list[object]:
    """Raises ValueError, as all functions below do."""
    if not isinstance(value, list) or len(value) > _MOST:
        raise ValueError("not a list, or too long")
    return value


def _names(value: object) -> tuple[str, ...]:
    names = tuple(map(_name, _list(value)))
    if len(set(names)) < len(names):
        raise ValueError("a member is named twice")
    return names


def _name(value: object) -> str:
    if not isinstance(value, str) or not is_node_id(value):
        raise ValueError("no node id")
    return value


def _number(value: object) -> int:
    if type(value) is not int:  # a bool is an int
        raise ValueError("no number")
    return value


def _member(value: object) -> Member:
    name, uid, address, directory = _list(value)
    if not isinstance(address, str):
        raise ValueError("no address")
    address.encode()  # messages and channels cannot contain half of a surrogate pair
    member = Member(_name(name), _number(uid), address, _number(directory))
    if not (UNKNOWN_UID <= member.uid <= MAX_UID and 0 <= member.directory <= MAX_DIRECTORY):
        raise ValueError("a number is out of range")
    return member
