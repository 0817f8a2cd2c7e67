"""Configurations as JSON: in configuration entries, hard states and messages. Pure."""

from __future__ import annotations

import json

from dledger.core.values import MAX_SESSION_OFFSET, NO_RECOVERY, Member, Membership, Recovery


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
    """Return None if this is no configuration."""
    try:
        values = json.loads(data)
        sets = [tuple(map(str, values[key])) for key in ("voters", "outgoing", "learners")]
        members = tuple(Member(str(a), int(b), str(c), int(d)) for a, b, c, d in values["members"])
        recovery = Recovery(*map(int, values.get("recovery", ())))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    voters, outgoing, learners = sets
    is_recovered = recovery.number > 0 and 0 < recovery.session_offset <= MAX_SESSION_OFFSET
    if recovery != NO_RECOVERY and not is_recovered:
        return None
    repeats = any(len(set(names)) != len(names) for names in sets)
    if not voters or repeats or set(voters) & set(learners):
        return None
    return Membership(voters, outgoing, learners, members, recovery)
