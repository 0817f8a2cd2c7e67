"""The members of the groups, and when a group needs a new generation. On the master only; pure.

Leases and subscriptions live here, in the memory of one master; who has which queues lives in the log. The
coordinator compares what the group should look like with what the log says, and as long as they differ it has
a `NewGeneration` to propose. Nothing is in force before it has been applied: until then members keep the
assignment of the log, and their commits under its generation count.

A new master begins with no members. Each group that had some gets one new generation, once all of them have
come back, or when `collect_ms` have passed since the first one did, or `orphan_ms` without any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from broker_adapter.api import Assignment, TopicConfig
from broker_adapter.errors import Status, error_for
from broker_adapter.metadata.assignment import assign
from broker_adapter.metadata.commands import (
    MAX_MEMBERS_PER_GROUP,
    NewGeneration,
    Queues,
    check_group_name,
    check_member_id,
    check_subscription,
)
from broker_adapter.metadata.values import Group


class CoordinatorConfig(NamedTuple):
    """Times in milliseconds."""

    min_lease_ms: int = 1_000
    max_lease_ms: int = 300_000
    collect_ms: int = 1_000  # a new master waits so long for the other members of a group
    orphan_ms: int = 30_000  # a new master waits so long for the first one
    rejoin_ms: int = 100  # members come back after this while their group changes
    max_members: int = 10_000  # of all groups


class Pending(NamedTuple):
    """The member is known, but has no assignment in the log yet: come back after `retry_ms`."""

    retry_ms: int


class Catalog(Protocol):
    """What the log says (MetadataState)."""

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """Another mapping after each change."""

    def group(self, name: str) -> Group | None: ...

    def groups(self) -> list[Group]: ...


class _Member(NamedTuple):
    topics: frozenset[str]
    lease_ms: int
    expires_ms: int


@dataclass(slots=True)
class _Group:
    inherited: bool  # an earlier master gave the assignment that is in the log
    deadline_ms: int  # of waiting for its members
    members: dict[str, _Member] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)  # since the newest assignment: not to be waited for
    proposing: bool = False
    # What the assignment was last computed from; None: compute it again.
    computed_from: Mapping[str, TopicConfig] | None = None
    wanted: dict[str, Queues] = field(default_factory=dict)
    agreed: Mapping[str, Queues] | None = None  # the members in the log that were found equal to `wanted`


class GroupCoordinator:
    """One object per time as master. Times are monotonic milliseconds, all of one clock.

    For each command that it returns `settled` must be called once. A group has one at a time.
    """

    def __init__(self, catalog: Catalog, config: CoordinatorConfig | None = None) -> None:
        self._catalog = catalog
        self._config = config or CoordinatorConfig()
        self._groups: dict[str, _Group] = {}
        self._member_count = 0

    def join(
        self, group: str, member_id: str, topics: Iterable[str], lease_ms: int, now_ms: int
    ) -> Assignment | Pending:
        """Become a member, or stay one: a heartbeat, which may change the subscription.

        GroupRefused (GROUP_UNKNOWN); IllegalMessage for names, lease or subscription that are not allowed;
        Busy (TOO_MANY_MEMBERS).
        """
        check_group_name(group)
        check_member_id(member_id)
        subscription = frozenset(topics)
        check_subscription(subscription)
        config = self._config
        if not config.min_lease_ms <= lease_ms <= config.max_lease_ms:
            raise error_for(
                Status.FIELD_OUT_OF_RANGE,
                f"lease_ms {lease_ms} is not within {config.min_lease_ms} and {config.max_lease_ms}",
            )
        stored = self._stored(group)
        local = self._groups.get(group) or _Group(bool(stored.members), now_ms + config.collect_ms)
        self._admit(local, member_id, subscription)
        if local.inherited and not local.members:
            local.deadline_ms = min(local.deadline_ms, now_ms + config.collect_ms)
        self._groups[group] = local
        self._put(local, member_id, _Member(subscription, lease_ms, now_ms + lease_ms))
        return self.answer(group, member_id)

    def answer(self, group: str, member_id: str) -> Assignment | Pending:
        """What the log says to a member that has joined. GroupRefused (GROUP_UNKNOWN, NOT_A_MEMBER)."""
        stored, local = self._stored(group), self._groups.get(group)
        member = local.members.get(member_id) if local else None
        if local is None or member is None:
            raise _no_member(group, member_id)
        queues = stored.members.get(member_id)
        if queues is None or any(topic not in member.topics for topic, _ in queues):
            return Pending(self._config.rejoin_ms)
        in_step = not local.inherited and not local.proposing and self._agrees(local, stored)
        heartbeat_ms = member.lease_ms // 3 if in_step else min(self._config.rejoin_ms, member.lease_ms // 3)
        return Assignment(stored.generation, queues, len(stored.members), heartbeat_ms)

    def leave(self, group: str, member_id: str, now_ms: int) -> None:
        """Give up membership; the queues go to the others. GroupRefused (GROUP_UNKNOWN, NOT_A_MEMBER)."""
        stored, local = self._stored(group), self._groups.get(group)
        if local is not None and member_id in local.members:
            self._remove(local, member_id)
        elif member_id not in stored.members or not (local is None or local.inherited):
            raise _no_member(group, member_id)
        if local is None:
            local = self._groups[group] = self._orphan(now_ms)
        local.left.add(member_id)

    def tick(self, now_ms: int) -> list[NewGeneration]:
        """What is to be proposed now, of all groups."""
        for stored in self._catalog.groups():
            if stored.members and stored.name not in self._groups:
                self._groups[stored.name] = self._orphan(now_ms)
        found = (self.proposal(group, now_ms) for group in list(self._groups))
        return [command for command in found if command is not None]

    def proposal(self, group: str, now_ms: int) -> NewGeneration | None:
        """What is to be proposed for one group now, so that a join need not wait for the next tick."""
        local, stored = self._groups.get(group), self._catalog.group(group)
        if local is None or local.proposing:
            return None
        if stored is None:
            self._forget(group)
            return None
        self._expire(local, now_ms)
        if local.inherited:
            awaited = stored.members.keys() - local.members.keys() - local.left
            if awaited and now_ms < local.deadline_ms:
                return None
        elif self._agrees(local, stored):
            if not local.members:
                self._forget(group)
            return None
        local.proposing = True
        return NewGeneration(group, self._wanted(local))

    def settled(self, group: str, *, applied: bool) -> None:
        """The command of this group was applied; or it was refused, or nobody knows what became of it."""
        local = self._groups.get(group)
        if local is None:
            return
        local.proposing = False
        if applied:
            local.inherited = False
            local.left.clear()

    # -- members ------------------------------------------------------------------------------------------

    def _admit(self, local: _Group, member_id: str, subscription: frozenset[str]) -> None:
        """Busy or IllegalMessage if the group or the broker cannot have this member, or this subscription."""
        known = local.members.get(member_id)
        if known is not None and known.topics == subscription:
            return
        if known is None and len(local.members) >= MAX_MEMBERS_PER_GROUP:
            raise error_for(Status.TOO_MANY_MEMBERS, f"the group has {MAX_MEMBERS_PER_GROUP} members")
        if known is None and self._member_count >= self._config.max_members:
            raise error_for(Status.TOO_MANY_MEMBERS, f"the broker has {self._config.max_members} members")
        others = (member.topics for other, member in local.members.items() if other != member_id)
        check_subscription(subscription.union(*others))

    def _put(self, local: _Group, member_id: str, member: _Member) -> None:
        before = local.members.get(member_id)
        local.members[member_id] = member
        local.left.discard(member_id)
        if before is None:
            self._member_count += 1
        if before is None or before.topics != member.topics:
            local.computed_from = None

    def _remove(self, local: _Group, member_id: str) -> None:
        del local.members[member_id]
        self._member_count -= 1
        local.computed_from = None

    def _expire(self, local: _Group, now_ms: int) -> None:
        for member_id in [key for key, member in local.members.items() if member.expires_ms <= now_ms]:
            self._remove(local, member_id)
            local.left.add(member_id)

    # -- groups -------------------------------------------------------------------------------------------

    def _stored(self, group: str) -> Group:
        if (stored := self._catalog.group(group)) is None:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r}")
        return stored

    def _orphan(self, now_ms: int) -> _Group:
        return _Group(inherited=True, deadline_ms=now_ms + self._config.orphan_ms)

    def _forget(self, group: str) -> None:
        self._member_count -= len(self._groups.pop(group).members)

    def _wanted(self, local: _Group) -> dict[str, Queues]:
        topics = self._catalog.topics
        if local.computed_from is not topics:
            local.wanted = assign({key: member.topics for key, member in local.members.items()}, topics)
            local.computed_from = topics
            local.agreed = None
        return local.wanted

    def _agrees(self, local: _Group, stored: Group) -> bool:
        """Whether the log says what the members and topics of now lead to. Dear only after a change."""
        wanted = self._wanted(local)
        if local.agreed is stored.members:
            return True
        if wanted == stored.members:
            local.agreed = stored.members
            return True
        return False


def _no_member(group: str, member_id: str) -> Exception:
    return error_for(Status.NOT_A_MEMBER, f"{member_id[:255]!r} is no member of group {group!r}")
