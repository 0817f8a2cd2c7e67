"""Changes of a configuration, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from dledger.core.values import UNKNOWN_UID, Member, Membership
from dledger.errors import Code

#: Steps of one change.
MAX_STEPS = 16
#: Members after a change that adds some. Each has connections to all others.
MAX_MEMBERS = 128
#: The uids of added members start here. Brokers use smaller numbers for the first members of a group.
_FIRST_UID = 1 << 20
MAX_NAME = 255


def is_node_id(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text.isprintable() and "\\" not in text


class ChangeKind(Enum):
    ADD = "add"  # as a learner
    PROMOTE = "promote"  # a learner becomes a voter
    DEMOTE = "demote"  # a voter becomes a learner
    REMOVE = "remove"
    MOVE = "move"  # to another address


def first_members(addresses: Mapping[str, str]) -> Membership:
    """Return the configuration of a new group."""
    identities = tuple(Member(node_id, 0, addresses[node_id]) for node_id in sorted(addresses))
    return Membership(tuple(addresses), identities=identities)


def unknown_members(addresses: Mapping[str, str], node_id: str) -> Membership:
    """Return the configuration that a node assumes which is added to a group, until it has the log.

    The node is a learner. The others are voters, whose uids it does not know.
    """
    identities = tuple(Member(known, UNKNOWN_UID, addresses[known]) for known in sorted(addresses))
    others = tuple(known for known in addresses if known != node_id)
    return Membership(others, learners=(node_id,), identities=identities)


@dataclass(frozen=True, slots=True)
class MemberStep:
    kind: ChangeKind
    node_id: str
    address: str = ""  # for ADD and MOVE
    directory: int = 0  # for ADD: number of the node's directory


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """Steps that take effect together."""

    steps: tuple[MemberStep, ...]
    force: bool = False  # even if it leaves no majority of live members, or a learner lags


class ChangeRefused(Exception):
    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def first_new_uid(index: int) -> int:
    """Return the uid of the first member that a change adds whose entry has this index, or a later one.

    It is greater than those of all changes in the log before it. A uid of a change that is undone may be
    given again, because no node learns its uid before its addition is committed. Every entry takes at least
    ENTRY_HEADER_SIZE bytes of MAX_POS, so that an index is below 2^57, and a uid below MAX_UID.
    """
    return _FIRST_UID + MAX_STEPS * index


def target_of(current: Membership, steps: Sequence[MemberStep], uid: int) -> Membership:
    """Return the configuration after these steps; `uid`: of the first member that they add.

    Returns `current` itself if the steps change nothing. Raises ChangeRefused.
    """
    named = [step.node_id for step in steps]
    if len(set(named)) < len(named):
        raise ChangeRefused(Code.CHANGE_REFUSED, "a change has one step for each node")
    voters, learners = list(current.voters), list(current.learners)
    members = {member.node_id: member for member in current.identities}
    for step in steps:
        node_id = step.node_id
        _check_free(members, step)
        is_member = node_id in voters or node_id in learners
        match step.kind:
            case ChangeKind.ADD if is_member:
                _check_address(members, step)
            case ChangeKind.ADD:
                learners.append(node_id)
                members[node_id] = Member(node_id, uid, step.address, step.directory)
                uid += 1
            case ChangeKind.REMOVE:
                voters = [voter for voter in voters if voter != node_id]
                learners = [learner for learner in learners if learner != node_id]
                members.pop(node_id, None)
            case _ if not is_member:
                known = ", ".join([*voters, *learners])
                raise ChangeRefused(Code.UNKNOWN_MEMBER, f"{node_id} is not a member; members: {known}")
            case ChangeKind.PROMOTE if node_id in learners:
                learners.remove(node_id)
                voters.append(node_id)
            case ChangeKind.DEMOTE if node_id in voters:
                voters.remove(node_id)
                learners.append(node_id)
            case ChangeKind.MOVE:
                members[node_id] = members[node_id]._replace(address=step.address)
            case _:
                pass  # it has this role already
    if not voters:
        raise ChangeRefused(Code.CHANGE_REFUSED, "the group would have no voter left")
    if len(members) > max(MAX_MEMBERS, len(current.identities)):
        text = f"the group would have {len(members)} members; the limit is {MAX_MEMBERS}"
        raise ChangeRefused(Code.CHANGE_REFUSED, text)
    identities = tuple(members[node_id] for node_id in sorted(members))
    target = Membership(
        _ordered(current.voters, voters),
        (),
        _ordered(current.learners, learners),
        identities,
        current.recovery,
    )
    return current if target == current else target


def _check_free(members: dict[str, Member], step: MemberStep) -> None:
    if step.kind in (ChangeKind.ADD, ChangeKind.MOVE):
        for member in members.values():
            if member.address == step.address and member.node_id != step.node_id:
                text = f"{step.address} is the address of {member.node_id}"
                raise ChangeRefused(Code.CHANGE_REFUSED, text)


def _check_address(members: dict[str, Member], step: MemberStep) -> None:
    known = members[step.node_id].address
    if step.address not in ("", known):
        raise ChangeRefused(Code.CHANGE_REFUSED, f"{step.node_id} is a member already, at {known}")


def _ordered(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return the names of `after`. If both have the same names, the order does not change."""
    return tuple(before) if set(before) == set(after) else tuple(after)


def first_entry(current: Membership, target: Membership) -> Membership:
    """Return the configuration that starts the change: a joint one if the voters change."""
    if set(current.voters) == set(target.voters):
        return target
    gone = {member.node_id: member for member in current.identities}
    known = {**gone, **{member.node_id: member for member in target.identities}}
    identities = tuple(known[node_id] for node_id in sorted(known))
    return Membership(target.voters, current.voters, target.learners, identities, current.recovery)


def last_entry(joint: Membership) -> Membership:
    """Return the configuration that ends a change."""
    remain = {*joint.voters, *joint.learners}
    identities = tuple(member for member in joint.identities if member.node_id in remain)
    return replace(joint, outgoing=(), identities=identities)
