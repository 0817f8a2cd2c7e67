"""A damage of which other members have purged a part: what this node may still lead with (rule 10)."""

from __future__ import annotations

from dledger.core.values import Base
from dledger.store.api import Damage
from dledger.testing.memory_store import MemoryLogStore
from tests.replica.replica_world import Host
from tests.replica.test_retention_parts import host_about_to_purge


def purging_host() -> tuple[Host, MemoryLogStore, Base]:
    """A leader that is about to purge up to a base, with entries before and after it."""
    host, job = host_about_to_purge()
    assert isinstance(host.store, MemoryLogStore)
    return host, host.store, job.base


def know(store: MemoryLogStore, first_index: int, last_index: int) -> Damage:
    """Let this be the only damage that the store knows."""
    damage = Damage(first_index, last_index, "memory", 0, "corrupt")
    store._damages = [damage]
    return damage


def may_lead(host: Host) -> bool:
    host.pass_time(20)
    may: bool = host.core.may_lead
    return may


def test_rule_10_a_damage_that_others_have_purged_keeps_no_node_from_leading() -> None:
    host, store, base = purging_host()
    damage = know(store, base.index - 3, base.index)
    assert not may_lead(host)
    host.replica.purged_elsewhere(host.now, damage)
    assert may_lead(host)


def test_rule_10_a_damage_that_grows_beyond_what_others_have_purged() -> None:
    host, store, base = purging_host()
    host.replica.purged_elsewhere(host.now, know(store, base.index - 3, base.index))
    assert may_lead(host)
    know(store, base.index - 3, base.index + 4)
    assert not may_lead(host), "the others have the second half"


def test_rule_10_what_a_purge_leaves_of_a_damage_is_not_taken_for_purged_elsewhere() -> None:
    """Others were asked for its first entry, which they had purged. They may have what is left of it."""
    host, store, base = purging_host()
    damage = know(store, base.index - 3, base.index + 4)
    host.replica.purged_elsewhere(host.now, damage)
    assert may_lead(host)
    while store.base != base:
        host.one_job()
    rest = know(store, base.index + 1, base.index + 4)
    assert not may_lead(host)
    host.replica.purged_elsewhere(host.now, damage)
    assert not may_lead(host), "an answer to a question from before the purge says nothing of the rest"
    host.replica.purged_elsewhere(host.now, rest)
    assert may_lead(host)
