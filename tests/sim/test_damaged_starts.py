"""Named histories of clusters whose nodes were all down, and find damage when they are back (rule 10).

What is committed is not known then: no checkpoint was written since the entries were. Every entry is intact
on a majority, or not committed.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dledger.infra.files.disk import CrashKind
from dledger.testing.virtual.sim_disk import CrashPoint
from tests.sim.cluster import KINDS, SOON_MS
from tests.sim.test_damage_scenarios import Damaged

NEVER_MS = 1 << 40
#: Index records are written again by the start, and durable only with the next checkpoint.
WHERE = ["header", "body"]


class Restarted(Damaged):
    """No checkpoint is written, not even at the border of a file: a start looks at the whole log."""

    def __init__(self, nodes: int = 3, **changes: object) -> None:
        options = {"checkpoint_every_ms": NEVER_MS, "scrub_every_ms": 0, "data_file_size": 64 << 10} | changes
        super().__init__(nodes, **options)

    def lose_power(self) -> None:
        for node_id in self.profile.node_ids:
            self.crash(node_id, CrashKind.POWER)
        self.network.heal_all()

    def boot_all(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            self.boot(node_id)

    def must_lead_and_store(self) -> None:
        self.run_until(lambda: self.leader() is not None, limit_ms=SOON_MS)
        self.must_store()


class Down(Restarted):
    """All nodes have the same entries, and have lost power."""

    def __init__(self, nodes: int = 3, entries: int = 12) -> None:
        super().__init__(nodes)
        self.begin_with(entries)
        self.lose_power()


@pytest.mark.parametrize("where", WHERE)
def test_a_damaged_node_and_a_good_one_of_three_go_on(where: str) -> None:
    for index in (3, 9, 15):
        c = Down()
        c.flip("n0", c.batch_of("n0", index), where)
        c.boot_all(["n0", "n1"])
        c.must_lead_and_store()
        c.must_be_whole()


@pytest.mark.slow
@pytest.mark.parametrize("others", [[], ["n2"]])
@pytest.mark.parametrize("where", WHERE)
def test_two_nodes_with_different_damage_go_on(where: str, others: list[str]) -> None:
    for first, second in ((3, 15), (15, 3), (9, 11), (11, 9)):
        c = Down()
        c.flip("n0", c.batch_of("n0", first), where)
        c.flip("n1", c.batch_of("n1", second), where)
        c.boot_all(["n0", "n1", *others])
        c.must_lead_and_store()
        c.must_be_whole()


@pytest.mark.parametrize("on_first", [(3, 7, 11), (5, 9, 13)])
@pytest.mark.parametrize("where", WHERE)
def test_two_nodes_whose_damages_lie_between_each_others_go_on(where: str, on_first: tuple[int, ...]) -> None:
    c = Down()
    on_second = [index for index in (3, 5, 7, 9, 11, 13) if index not in on_first]
    for index in on_first:
        c.flip("n0", c.batch_of("n0", index), where)
    for index in on_second:
        c.flip("n1", c.batch_of("n1", index), where)
    c.boot_all(["n0", "n1"])
    c.must_lead_and_store()
    c.must_be_whole()


def test_three_of_five_nodes_each_with_damage_of_its_own_go_on() -> None:
    c = Down(5)
    for number in range(3):
        for index in range(1 + 2 * number, 20, 6):
            c.flip(f"n{number}", c.batch_of(f"n{number}", index), WHERE[number % 2])
    c.boot_all(["n0", "n1", "n2"])
    c.must_lead_and_store()
    c.must_be_whole()


def test_a_wiped_node_rejoins_while_the_others_repair_each_other() -> None:
    c = Down()
    c.flip("n0", c.batch_of("n0", 5))
    c.flip("n1", c.batch_of("n1", 15))
    c.invariants.wiped("n2", c.nodes["n2"].host.replace_disk(1 << 20))
    c.boot_all(["n2", "n0", "n1"])
    c.must_lead_and_store()
    c.must_be_whole()


@pytest.mark.parametrize("beyond", [0, 1])
def test_uncommitted_entries_of_another_term_repair_nothing(beyond: int) -> None:
    """The only member there has another batch at this place. Where the logs part it chains from the good
    entry before the damage, and not to the one after it."""
    c = Restarted()
    old = c.begin_with(5)
    parting = c.end_of(old) + 1
    damaged, good = c.others(old)
    c.isolate(old)
    c.write(old)  # where the others will have a no-op: so the batches after it begin at the same entries
    for _ in range(4):
        c.write(old, 2)
    c.run_for(200)
    c.run_until(lambda: c.leader() not in (None, old), limit_ms=SOON_MS)
    new = c.leader()
    for _ in range(5):
        c.must_store(new, 2)
    c.run_until(lambda: c.end_of(damaged) == c.end_of(good), limit_ms=SOON_MS)
    c.run_for(200)
    index = parting + beyond
    assert c.batch_of(old, index).first_index == c.batch_of(damaged, index).first_index == index
    assert c.batch_of(old, index).chain_crc != c.batch_of(damaged, index).chain_crc
    c.lose_power()
    c.flip(damaged, c.batch_of(damaged, index))
    c.boot_all([damaged, old])
    c.run_until(lambda: c.counts["repairs refused"] > 3, limit_ms=SOON_MS)
    assert c.process(damaged).store.damages and c.leader() is None
    c.boot(good)
    c.run_until(lambda: not c.bit_flips.nodes, limit_ms=SOON_MS)
    c.end()
    assert c.bit_flips.check_all_repaired()


def test_damage_in_what_only_its_node_had_is_cut_by_a_leader_that_needs_its_vote() -> None:
    """Nobody can repair it: its batches were never committed, and the others have gone on without them."""
    c = Restarted()
    old = c.begin_with(5)
    other, gone = c.others(old)
    c.isolate(old)
    for _ in range(4):
        c.write(old, 2)
    c.run_for(200)
    end = c.end_of(old)
    c.run_until(lambda: c.leader() not in (None, old), limit_ms=SOON_MS)
    c.must_store(c.leader())
    c.run_until(lambda: c.end_of(other) == c.end_of(gone), limit_ms=SOON_MS)
    c.run_for(200)
    c.lose_power()
    c.flip(old, c.batch_of(old, end - 4))
    c.boot_all([old, other])
    assert c.process(old).store.damages
    c.must_lead_and_store()
    assert c.leader() == other and c.counts["truncations"] == 1
    c.boot(gone)
    c.run_until(lambda: not c.bit_flips.nodes, limit_ms=SOON_MS)
    c.end()
    assert c.bit_flips.check_all_repaired()


class Parted(Restarted):
    """One node has entries that were never committed, and all have lost power. On it, one damage reaches
    from what all have into what only it has; `shared`: so many batches of the former."""

    def __init__(self, where: str, shared: int = 1, **changes: object) -> None:
        super().__init__(**changes)  # type: ignore[arg-type]
        self.old = self.begin_with(8)
        self.other, self.third = self.others(self.old)
        self.last_shared = self.end_of(self.old)
        self.isolate(self.old)
        for _ in range(4):
            self.write(self.old, 2)
        self.run_for(200)
        self.run_until(lambda: self.leader() not in (None, self.old), limit_ms=SOON_MS)
        self.must_store(self.leader())
        self.run_until(lambda: self.end_of(self.other) == self.end_of(self.third), limit_ms=SOON_MS)
        self.run_for(200)
        self.lose_power()
        index = self.last_shared
        self.flip(self.old, self.batch_of(self.old, index + 1), where)
        for _ in range(shared):
            batch = self.batch_of(self.old, index)
            self.flip(self.old, batch, where)
            index = batch.first_index - 1
        self.first_damaged = index + 1

    def must_be_repaired(self) -> None:
        self.run_until(lambda: not self.bit_flips.nodes, limit_ms=SOON_MS)
        self.end()
        assert self.bit_flips.check_all_repaired()

    def must_have_one_damage_over_the_parting(self) -> None:
        [damage] = self.process(self.old).store.damages
        assert damage.first_index == self.first_damaged <= self.last_shared < damage.last_index


@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize("where", WHERE)
def test_damage_over_the_place_where_the_logs_part_is_cut_and_repaired(where: str, shared: int) -> None:
    """No other log has all of it, so nobody can repair it as it is, and the leader needs this node's vote."""
    c = Parted(where, shared)
    c.boot_all([c.old, c.other])
    c.must_have_one_damage_over_the_parting()
    c.must_lead_and_store()
    assert c.leader() == c.other and c.counts["truncations"] == 1
    c.must_be_repaired()


@pytest.mark.parametrize("where", WHERE)
def test_what_is_shared_of_such_damage_may_take_many_pushes(where: str) -> None:
    c = Parted(where, 5, max_push_bytes=1)
    c.boot_all([c.old, c.other])
    c.must_have_one_damage_over_the_parting()
    c.must_lead_and_store()
    c.must_be_repaired()


@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_right_after_the_cut_loses_nothing(kind: CrashKind, where: str, shared: int) -> None:
    """The log ends in the damage then: the next start knows how far it had reached."""
    c = Parted(where, shared)
    c.boot_all([c.old, c.other, c.third])
    c.must_have_one_damage_over_the_parting()
    store = c.process(c.old).store
    c.run_until(lambda: store.damages[0].last_index <= c.last_shared, limit_ms=SOON_MS)
    c.crash(c.old, kind)
    c.run_for(50)
    c.boot(c.old)
    c.must_be_repaired()


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_a_crash_in_any_disk_operation_of_the_cut_loses_nothing(where: str) -> None:
    for operations in range(1, 40, 2):
        c = Parted(where, 2)
        c.boot_all([c.old, c.other, c.third])
        node = c.nodes[c.old]
        replica = c.process(c.old).replica
        end = replica.core.log.end_index
        c.run_until(lambda r=replica, end=end: r.core.log.end_index < end, limit_ms=SOON_MS)  # type: ignore[misc]
        node.restart_after_ms = 50
        node.crash_kind = KINDS[operations % 4 // 2]
        node.host.crash_within(operations, CrashPoint.BEFORE)
        c.run_for(300)
        c.must_be_repaired()


def _with_an_entry_at(offset: int, body_end: bytes = b"") -> tuple[Restarted, str, int]:
    """A cluster in which a batch begins so many bytes behind the border of a sector, and ends in this way,
    with others behind it; its leader, and the index of that batch. All have lost power."""
    c = Restarted()
    leader = c.begin()
    body = b"%06d"
    made = 0

    def store(size: int, end: bytes = b"") -> None:
        nonlocal made
        made += 1
        attempt = c.append(leader, (body % made).ljust(size, b"x") + end)
        c.run_until(lambda: attempt.is_acknowledged, limit_ms=SOON_MS)

    while (pos := c.process(leader).replica.log_tail.pos) % 512 != offset:
        store((offset - pos - 48 - 16) % 512 + 16)
    index = c.end_of(leader) + 1
    store(40, body_end)
    for _ in range(4):
        store(20)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    c.lose_power()
    return c, leader, index


@pytest.mark.parametrize("offset", [1, 256, 507, 508, 509, 510, 511])
def test_damage_at_the_border_of_a_sector_is_not_taken_for_a_write_that_was_lost(offset: int) -> None:
    """The first bytes of an entry are zeros, as is what was never written. What follows was acknowledged."""
    c, node, index = _with_an_entry_at(offset)
    end = c.invariants.mirrors[node].durable_index
    c.flip(node, c.batch_of(node, index))
    c.boot_all(c.profile.node_ids)
    assert c.end_of(node) == end and c.process(node).store.damages
    c.must_lead_and_store()
    c.must_be_whole()


@pytest.mark.parametrize("zeros", [1, 8, 20])
def test_zeros_at_the_end_of_a_damaged_entry_are_not_taken_for_a_write_that_was_lost(zeros: int) -> None:
    """The next entry begins in the same sector, behind them, and is good."""
    size = 48 + 40 + zeros
    c, node, index = _with_an_entry_at((zeros - size) % 512, bytes(zeros))
    batch = c.batch_of(node, index)
    assert (batch.pos + batch.size) % 512 == zeros
    end = c.invariants.mirrors[node].durable_index
    c.flip(node, batch, offset=zeros + 3)
    c.boot_all(c.profile.node_ids)
    assert c.end_of(node) == end and c.process(node).store.damages
    c.must_lead_and_store()
    c.must_be_whole()
