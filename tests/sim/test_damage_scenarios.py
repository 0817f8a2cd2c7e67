"""Named histories of bytes that go bad on a disk (rule 10): found, repaired from a peer, never cut."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dledger.core.messages import Append, PushMessage
from dledger.errors import Code, ReadFailed
from dledger.infra.files.disk import CrashKind
from dledger.replica.shell import AppendOutcome
from dledger.store.format.batch import Batch
from dledger.store.format.layout import INDEX_RECORD_SIZE, NodePaths, file_name, index_file_size
from dledger.testing.stores import DIRECTORY, DiskHost
from tests.sim.cluster import KINDS, SOON_MS, Cluster
from tests.sim.test_retention_scenarios import Retaining

FILE = 1024
WHERE = ["header", "body", "index record"]


class Damaged(Cluster):
    """Real files, a scrub, and words for flipping bits."""

    def __init__(self, nodes: int = 3, **changes: object) -> None:
        options = {"on_disk": True, "data_file_size": FILE, "scrub_every_ms": 20} | changes
        super().__init__(nodes, **options)

    def flip(self, node_id: str, batch: Batch, where: str = "body", offset: int = 3) -> None:
        host = self.nodes[node_id].host
        assert isinstance(host, DiskHost)
        path, at = _place(batch, where, offset, self.profile.data_file_size)
        is_there = host.disk.flip_durable(path, at, 0x10)
        assert is_there is not None, f"{path} has nothing durable at {at}"
        self.counts["bits flipped"] += 1
        self.bit_flips.put(node_id, batch, is_there)

    def batch_of(self, node_id: str, index: int) -> Batch:
        batch = self.invariants.mirrors[node_id].written.holding(index)
        assert batch is not None
        return batch

    def begin_with(self, entries: int) -> str:
        """A leader, and so many batches that are on all disks, index records included."""
        leader = self.begin()
        for _ in range(entries):
            self.must_store(leader, 2)
        self.run_until(self.is_settled, limit_ms=SOON_MS)
        self.run_for(700)  # a checkpoint makes index records durable
        return leader

    def must_be_whole(self) -> None:
        """All is repaired, logs are equal, and nothing was cut to get there."""
        self.run_for(700)  # the scrub has been everywhere
        self.must_store()  # what was written again in the index is durable with the next checkpoint
        self.run_until(lambda: not self.bit_flips.nodes, limit_ms=SOON_MS)
        truncated = self.counts["truncations"]
        self.end()
        assert self.bit_flips.check_all_repaired()
        assert self.counts["truncations"] == truncated == 0


def _place(batch: Batch, where: str, offset: int, file_size: int) -> tuple[Path, int]:
    paths = NodePaths(DIRECTORY)
    if where == "index record":
        size = index_file_size(file_size)
        pos = batch.first_index * INDEX_RECORD_SIZE + offset
        return paths.index_files / file_name(pos - pos % size), pos % size
    pos = batch.pos + (offset if where == "header" else batch.size - 1 - offset)
    return paths.data / file_name(pos - pos % file_size), pos % file_size


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_scrub_finds_what_nobody_reads_and_a_peer_repairs_it(role: str, where: str) -> None:
    c = Damaged()
    leader = c.begin_with(12)
    victim = leader if role == "leader" else c.others(leader)[0]
    for index in (1, 9, 15):
        c.flip(victim, c.batch_of(victim, index), where)
    c.must_be_whole()
    assert where == "index record" or c.counts["damages repaired"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", WHERE)
def test_damage_below_the_end_is_repaired_after_a_crash(where: str, kind: CrashKind) -> None:
    for index in range(0, 20, 3):
        c = Damaged()
        leader = c.begin_with(12)
        victim = c.others(leader)[0]
        end = c.end_of(victim)
        c.crash(victim, kind)
        c.flip(victim, c.batch_of(victim, index), where)
        c.boot(victim)
        c.run_until(lambda c=c, victim=victim: c.nodes[victim].process is not None, limit_ms=SOON_MS)  # type: ignore[misc]
        assert c.end_of(victim) == end, "nothing is cut"
        c.must_be_whole()


@pytest.mark.parametrize("nodes", [3, 5])
def test_damage_at_the_end_makes_the_node_rejoin_with_its_floor(nodes: int) -> None:
    """It acknowledged the last batch, and cannot read it any more: it must not vote as if it never had it.

    No checkpoint covers that batch; its index record alone tells that it was durable."""
    c = Damaged(nodes, checkpoint_every_ms=1 << 40)
    leader = c.begin_with(5)
    victim = c.others(leader)[0]
    end = c.end_of(victim)
    c.crash(victim, CrashKind.PROCESS)
    c.flip(victim, c.batch_of(victim, end))
    others = c.others(victim)
    c.network.gate = lambda source, target, _message: victim not in (source, target)
    c.boot(victim)
    core = c.process(victim).replica.core
    assert core.hard_state.rejoining
    assert (core.hard_state.floor_term, core.hard_state.floor_index) == (c.term(leader), end)
    c.run_for(SOON_MS)
    assert core.hard_state.rejoining and c.term(victim) == c.term(leader), "no vote, no candidacy"
    c.network.gate = None
    for stream in list(c.network.streams):
        stream.break_off(0, 0)
    c.run_until(lambda: not c.process(victim).replica.core.hard_state.is_barred, limit_ms=SOON_MS)
    # With one of the others gone, it makes a majority again.
    c.isolate(others[0])
    c.elect()
    c.must_store()
    c.end()
    assert c.bit_flips.check_all_repaired()


def test_batch_on_a_bare_majority_survives_damage_at_the_end_of_one_copy() -> None:
    """Acknowledged on n0 and n1 only. n1 loses it; n2, which never had it, must not lead with n1's vote."""
    c = Damaged(checkpoint_every_ms=1 << 40)
    leader = c.begin_with(5)
    holder, late = c.others(leader)
    c.isolate(late)
    last = c.must_store(leader, 2)
    c.run_until(lambda: c.end_of(holder) == c.end_of(leader), limit_ms=SOON_MS)
    c.run_for(700)
    for node_id in (leader, holder):
        c.crash(node_id, CrashKind.PROCESS)
    c.flip(holder, c.batch_of(holder, c.invariants.mirrors[holder].durable_index))
    c.network.heal_all()
    c.boot(holder)
    c.run_for(SOON_MS)
    assert c.leader() is None, "those two do not know what was acknowledged"
    c.boot(leader)
    c.run_until(c.is_settled, limit_ms=2 * SOON_MS)
    assert isinstance(last.answer, AppendOutcome)
    assert c.invariants.committed_batch(last.answer.index) is not None
    c.end()


def test_damaged_leader_hands_over_and_leads_no_more_until_it_is_repaired() -> None:
    c = Damaged()
    leader = c.begin_with(5)
    others = c.others(leader)
    # No other member may say what belongs there, for a while.
    for node_id in others:
        c.process(node_id).parts.repairer.suspect = lambda _index: None  # type: ignore[method-assign]
        c.process(node_id).store.read = _refuse  # type: ignore[method-assign]
    c.flip(leader, c.batch_of(leader, 3))
    c.run_until(lambda: c.leader() not in (None, leader), limit_ms=SOON_MS)
    assert c.process(leader).store.damages
    c.run_for(500)
    assert c.leader() != leader
    for node_id in others:
        del c.process(node_id).store.read  # type: ignore[attr-defined]
    c.must_be_whole()


def _refuse(*_args: object, **_options: object) -> None:
    raise ReadFailed("says the test", code=Code.READ_NOT_CONFIRMED)


def test_different_entries_damaged_on_every_node_are_all_repaired() -> None:
    """No entry has lost a majority of its copies: each node has what the others lack."""
    c = Damaged(scrub_every_ms=10)
    c.begin_with(12)
    for number, node_id in enumerate(c.profile.node_ids):
        for index in range(1 + 2 * number, 20, 6):
            c.flip(node_id, c.batch_of(node_id, index), WHERE[number])
    c.must_be_whole()


def test_damage_is_repaired_while_clients_append_and_leaders_change() -> None:
    for seed in range(4):
        c = Damaged()
        leader = c.begin_with(8)
        rng = Random(seed)
        attempts = []
        for _ in range(6):
            victim = rng.choice(c.profile.node_ids)
            if not c.bit_flips.nodes and c.nodes[victim].process is not None:
                c.bit_flips.flip(victim, rng)
            leader = c.elect()
            attempts.append(c.must_store(leader))
            if rng.random() < 0.5:
                c.crash(leader, CrashKind.POWER)
                c.run_for(50)
                c.boot_if_down(leader)
            c.run_for(100)
        c.run_until(lambda c=c: not c.bit_flips.nodes, limit_ms=SOON_MS)  # type: ignore[misc]
        c.end()
        assert c.bit_flips.check_all_repaired()


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_damage_that_all_others_have_purged_is_left_behind_for_their_image(on_disk: bool) -> None:
    """The node needs the entry to know its sessions, and nobody has it any more."""
    c = Retaining(on_disk=on_disk, checkpoint_every_ms=1 << 40, scrub_every_ms=20)
    leader = c.begin()
    c.fill_files(3)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    victim = c.others(leader)[0]
    c.crash(victim, CrashKind.PROCESS)
    batch = c.invariants.mirrors[victim].written.holding(c.session + 1)
    assert batch is not None
    is_there = c.nodes[victim].host.flip(batch, Random(1), is_down=True)
    assert is_there is not None
    c.bit_flips.put(victim, batch, is_there)
    c.fill_files(3)
    before = c.counts["purges committed"]
    c.ask_purge(c.elect())
    c.run_until(lambda: c.counts["purges committed"] > before, limit_ms=SOON_MS)
    c.run_for(200)
    c.network.gate = lambda _source, target, message: target != victim or not isinstance(message, PushMessage)
    c.boot(victim)
    replica = c.process(victim).replica
    c.run_until(lambda: replica.admission.state.needs_image, limit_ms=SOON_MS)
    assert c.counts["rebuilds behind damage that others have purged"] > 0
    assert replica.rebuilding.is_done and not replica.core.may_lead
    c.network.gate = None
    for stream in list(c.network.streams):
        stream.break_off(0, 0)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    c.run_until(lambda: c.process(victim).replica.core.may_lead, limit_ms=SOON_MS)
    c.only(victim)
    c.crash(c.elect(), CrashKind.POWER)
    c.run_until(lambda: c.leader() == victim, limit_ms=SOON_MS)
    c.elect()
    c.retry_all(victim)
    c.end()
    assert c.bit_flips.check_all_repaired()


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_the_longest_log_leads_with_damage_that_the_only_other_member_has_purged(on_disk: bool) -> None:
    """It crashed before it carried the PURGE out, and does not know that this is committed: only its own
    leadership can tell, as the other one has less of the log. The third one does not come back."""
    c = Retaining(on_disk=on_disk, checkpoint_every_ms=1 << 40, scrub_every_ms=20)
    gone = c.begin()
    c.fill_files(6)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    longest, purger = c.others(gone)
    batch = c.invariants.mirrors[longest].written.holding(c.session + 1)
    assert batch is not None
    replica = c.process(gone).replica
    c.ask_purge(gone)
    c.run_until(lambda: replica.retainer._purge_pending, limit_ms=SOON_MS)
    purge = c.end_of(gone)
    c.network.gate = lambda _source, target, message: (
        not (target == purger and isinstance(message, Append) and message.last_index > purge)
    )
    c.process(longest).disk_factor = 10
    c.write(gone, 2)
    c.run_until(lambda: c.process(longest).store.durable_index > purge, limit_ms=SOON_MS)
    c.crash(longest, CrashKind.PROCESS)
    c.run_until(lambda: c.process(purger).store.begin_index > 0, limit_ms=SOON_MS)
    c.crash(gone, CrashKind.PROCESS)
    c.crash(purger, CrashKind.PROCESS)
    is_there = c.nodes[longest].host.flip(batch, Random(1), is_down=True)
    assert is_there is not None
    c.bit_flips.put(longest, batch, is_there)
    c.network.gate = None
    c.boot(longest)
    c.boot(purger)
    assert c.process(longest).store.begin_index == 0 and c.end_of(longest) > c.end_of(purger)
    c.run_until(lambda: c.leader() == longest, limit_ms=SOON_MS)
    assert c.counts["rebuilds behind damage that others have purged"] > 0
    c.run_until(lambda: not c.process(longest).store.damages, limit_ms=SOON_MS)
    assert c.process(longest).store.begin_index == c.process(purger).store.begin_index
    c.retry_all(longest)
    c.end()


@pytest.mark.slow
def test_every_byte_of_a_header_may_go_bad_while_the_node_is_down() -> None:
    """Index, term, length, chain or the place in its batch: a start believes none of it alone."""
    for offset in range(0, 48, 3):
        c = Damaged()
        leader = c.begin_with(6)
        victim = c.others(leader)[0]
        end = c.end_of(victim)
        c.crash(victim, CrashKind.PROCESS)
        c.flip(victim, c.batch_of(victim, 5), "header", offset)
        c.boot(victim)
        c.run_until(lambda c=c, victim=victim: c.nodes[victim].process is not None, limit_ms=SOON_MS)  # type: ignore[misc]
        assert c.end_of(victim) == end
        c.must_be_whole()
