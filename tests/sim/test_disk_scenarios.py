"""Named histories of disks that hang, are slow, or fail (rule 9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core.messages import Append as AppendMessage
from dledger.core.messages import Message
from dledger.core.values import Role
from dledger.testing import QUIET, Attempt
from tests.sim.cluster import SOON_MS, Cluster

LONG_MS = 30_000
#: As in production, by proportion: a stall is two of the longest election time-outs.
STALL = replace(QUIET.timing, fsync_stall_ms=2 * QUIET.timing.election_max_ms)


class Busy(Cluster):
    """With a client that appends to whoever leads, all the time."""

    def __init__(self, nodes: int = 3, **changes: object) -> None:
        super().__init__(nodes, **{"timing": STALL} | changes)
        self.attempts: list[Attempt] = []
        self.is_writing = False

    def write_on(self) -> None:
        self.is_writing = True
        self._next_write()

    def _next_write(self) -> None:
        if not self.is_writing:
            return
        leader = self.leader()
        if leader is not None and not self.process(leader).is_paused:
            self.attempts.append(self.write(leader, 2))
        self.clock.after(20, self._next_write)

    def stick(self, *nodes: str, for_ms: int = LONG_MS) -> None:
        for node_id in nodes:
            self.process(node_id).disk_stuck_until_ms = self.clock.now_ms + for_ms

    def finish(self) -> None:
        self.is_writing = False
        self.end()


#: Five nodes take most of the time, and three go the same way through this.
THREE_OR_FIVE = (3, pytest.param(5, marks=pytest.mark.long))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", THREE_OR_FIVE)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_leader_whose_fsync_hangs_is_replaced_and_is_no_candidate(nodes: int, on_disk: bool) -> None:
    """The kernel does not come back for half a minute: another one serves, within three time-outs."""
    c = Busy(nodes, on_disk=on_disk)
    leader = c.begin()
    c.write_on()
    c.run_for(200)
    c.stick(leader)
    took = c.run_until(lambda: c.leader() not in (None, leader), limit_ms=LONG_MS)
    assert took <= 3 * STALL.election_max_ms
    begun = len(c.attempts)
    c.run_until(lambda: any(a.is_acknowledged for a in c.attempts[begun:]), limit_ms=STALL.election_max_ms)
    elections, since = c.counts["elections won"], len(c.roles)
    c.run_for(LONG_MS - 3 * STALL.election_max_ms)
    assert c.counts["elections won"] == elections, "one election is enough"
    stuck = [notice.role for _, node_id, notice in c.roles[since:] if node_id == leader]
    assert Role.CANDIDATE not in stuck and Role.LEADER not in stuck
    c.run_for(SOON_MS)
    c.finish()
    assert c.counts["candidacies: transfer"] >= 1, "it names its successor"


@pytest.mark.slow
@pytest.mark.parametrize("nodes", THREE_OR_FIVE)
def test_all_nodes_on_one_disk_that_hangs_keep_their_leader(nodes: int) -> None:
    """Nobody would do better: leadership stays, and goes on when the disk does."""
    c = Busy(nodes)
    leader = c.begin()
    c.write_on()
    for _ in range(3):
        c.run_for(500)
        c.stick(*c.profile.node_ids, for_ms=10_000)
        c.run_for(10_000)
        assert c.leader() == leader
    c.run_for(500)
    assert c.counts["elections won"] == 1
    assert c.attempts[-20].is_acknowledged
    c.finish()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", THREE_OR_FIVE)
def test_all_nodes_on_one_slow_disk_do_not_flap(nodes: int) -> None:
    """Every fsync takes longer than the stall that a leader would step down for, some twice as long."""
    c = Busy(nodes, fsync_min_ms=4, fsync_max_ms=8, request_timeout_ms=LONG_MS)
    leader = c.begin()
    c.write_on()
    c.run_for(500)
    elections = c.counts["elections won"]
    for process in c.processes():
        process.disk_factor = STALL.fsync_stall_ms // 4
    c.run_for(2 * LONG_MS)
    assert c.counts["elections won"] - elections <= 2
    assert c.committed(leader) > 100, "it is slow, but it goes on"
    c.is_writing = False
    c.heal()
    c.run_for(SOON_MS)  # what is queued on the slow disk comes first
    c.finish()


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 1.0, 2.0, 3.0])
def test_a_leader_is_elected_where_votes_take_long_to_become_durable(share: float, nodes: int) -> None:
    """`share` of the least election time-out for each write. From 0.2 on there was no leader ever again: each
    vote came after its round, which the candidate had given up for the next."""
    timing = replace(QUIET.timing, fsync_stall_ms=4 * QUIET.timing.election_max_ms)
    c = Cluster(nodes, fsync_min_ms=1, fsync_max_ms=1, timing=timing)
    leader = c.begin()
    for process in c.processes():
        process.disk_factor = int(share * timing.election_min_ms)
    c.pause(leader)
    c.run_until(lambda: c.leader() not in (None, leader), limit_ms=LONG_MS)
    c.heal()
    c.must_store()
    c.end()


@pytest.mark.slow
def test_follower_whose_fsync_hangs_disturbs_nobody() -> None:
    c = Busy()
    leader = c.begin()
    follower = c.others(leader)[0]
    c.write_on()
    c.stick(follower)
    c.run_for(LONG_MS)
    assert c.leader() == leader and c.counts["elections won"] == 1
    recent = c.attempts[-100:-10]
    assert all(a.is_acknowledged for a in recent)
    c.run_for(SOON_MS)
    c.finish()


@pytest.mark.slow
def test_new_leader_whose_disk_hangs_too_is_left_at_once() -> None:
    """One disk after the other: what counts is who has acknowledged since the fsync began."""
    c = Busy(5)
    first = c.begin()
    c.write_on()
    c.run_for(200)
    c.stick(first)
    c.run_until(lambda: c.leader() not in (None, first), limit_ms=SOON_MS)
    second = c.leader()
    assert second is not None
    c.run_for(200)
    c.stick(second)
    c.run_until(lambda: c.leader() not in (None, first, second), limit_ms=SOON_MS)
    elections = c.counts["elections won"]
    c.run_for(LONG_MS // 2)
    assert c.counts["elections won"] == elections
    c.run_for(LONG_MS)
    c.finish()


# -- fsync fails


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["fdatasync", "pwritev", "sync_directory"])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_node_stops_when_its_disk_fails_and_comes_back_without_what_was_in_doubt(
    role: str, operation: str
) -> None:
    """At each of the next calls: nothing acknowledged is lost, and nothing else believed."""
    stopped = 0
    for call in range(1, 9):
        c = Busy(on_disk=True, data_file_size=1024)
        leader = c.begin()
        c.must_store(leader, 3)
        victim = leader if role == "leader" else c.others(leader)[0]
        c.fail_disk(victim, operation, call, 50)
        c.write_on()
        c.run_for(600)
        stopped += c.counts["stopped by FSYNC_FAILED"] + c.counts["stopped by DISK_ERROR"]
        c.finish()
        assert sum(a.is_acknowledged for a in c.attempts) > 5
    assert stopped >= (3 if operation == "sync_directory" else 6)


def test_batch_whose_fsync_failed_is_not_read_from_the_page_cache() -> None:
    """The leader alone has it, in its cache; after the failure the kernel calls the pages clean."""
    c = Busy(on_disk=True)
    leader = c.begin()
    c.must_store(leader, 3)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    c.run_for(1000)  # checkpoints are done
    c.network.gate = lambda _source, _target, message: not _is_append(message)
    end = c.end_of(leader)
    node = c.nodes[leader]
    # The next sync is that of the batch: no file is prepared meanwhile.
    c.process(leader).store.prepare = lambda *_ahead, **_options: True  # type: ignore[method-assign]
    assert c.fail_disk(leader, "fdatasync", 1, 50)
    attempt = c.write(leader, 5)
    c.run_until(lambda: node.process is None, limit_ms=SOON_MS)
    assert c.counts["stopped by FSYNC_FAILED"] == 1
    assert not attempt.is_acknowledged
    c.run_until(lambda: node.process is not None, limit_ms=SOON_MS)
    assert node.process is not None and node.process.store.end_index == end
    c.finish()


def _is_append(message: Message) -> bool:
    return isinstance(message, AppendMessage)


@pytest.mark.slow
@pytest.mark.parametrize("files_left", [1, 2, 3])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_follower_whose_full_disk_is_slow_takes_no_more_than_it_can_store(
    on_disk: bool, files_left: int
) -> None:
    """What waits for the disk thread takes room, too: a follower refuses what would not fit behind that,
    instead of finding out when it writes."""
    c = Cluster(on_disk=on_disk, data_file_size=2048, max_inflight_bytes=1 << 20)
    leader = c.begin()
    victim = c.others(leader)[0]
    c.run_for(500)
    c.nodes[victim].host.fill(files_left)
    c.process(victim).disk_stuck_until_ms = c.clock.now_ms + 2_000
    attempts = [c.write(leader, 5) for _ in range(120) if not c.run_for(10)]
    assert all(attempt.is_acknowledged for attempt in attempts[:-5])
    c.run_for(3_000)
    assert c.process(victim).replica.admission.limits_hit["disk_reserve_bytes"]
    assert c.leader() == leader and not c.process(victim).replica.core.has_room
    c.end()
