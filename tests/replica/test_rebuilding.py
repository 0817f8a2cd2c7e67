"""A replica rebuilds its sessions while it votes and follows: against one that saw the whole log."""

from __future__ import annotations

from random import Random

import pytest

from dledger.core.messages import VoteRequest, VoteResponse
from dledger.core.values import Role, VoteResult
from dledger.replica import rebuilding
from dledger.testing.memory_store import MemoryLogStore
from tests.replica.replica_world import Host, World


def restarted(world: World, node_id: str) -> Host:
    """A node of the world in its next life, which has not read its log yet."""
    old = world[node_id]
    host = Host(node_id, tuple(world.hosts), store=old.store, rebuilds=False)
    host.now = old.now
    world.hosts[node_id] = host
    return host


def with_session(world: World, leader: Host, batches: int) -> int:
    leader.append("open", open_session=True)
    world.carry()
    session = leader.shell.appends["open"].index  # type: ignore[union-attr]
    for seq in range(1, batches + 1):
        leader.append(f"first {seq}", b"body %d" % seq, session=(session, seq))
        world.carry()
    return session


def tables(world: World) -> list[bytes | None]:
    return [host.replica.admission.state.encode_committed() for host in world.hosts.values()]


def test_a_node_that_reads_its_log_votes_follows_and_does_not_lead() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    session = with_session(world, leader, 3)
    back = restarted(world, "b")
    back.pass_time(20_000)
    assert back.core.role is Role.FOLLOWER and not back.core.may_lead
    world.connect(leader, "b")
    world.carry()
    leader.append("more", b"more", session=(session, 4))
    world.cut = {"c"}
    world.carry()
    assert back.core.log.end_index == leader.core.log.end_index == leader.core.committed_index
    assert "reads the log" in back.replica.rebuilding.text() and not back.shell.is_rebuilt
    request = VoteRequest(leader.core.term + 1, "c", 1 << 30, leader.core.term, False, True, 7)
    back.replica.receive(back.now, "c", request)
    back.disk()
    votes = [s.message for s in back.shell.sent if isinstance(s.message, VoteResponse)]
    assert [vote.result for vote in votes] == [VoteResult.ACCEPT]
    back.rebuild()
    assert back.core.may_lead and back.shell.is_rebuilt and back.replica.rebuilding.text() == ""


@pytest.mark.parametrize("lost", ["a batch of two entries", "the last entry"])
def test_a_job_that_has_read_what_is_truncated_meanwhile_is_void(lost: str) -> None:
    world = World("a", "b", "c")
    old = world.elect("a")
    session = with_session(world, old, 2)
    world.cut = {"a"}
    if lost == "the last entry":
        old.append("lost", open_session=True)
    else:
        old.append("lost", b"lost", session=(session, 3))
    old.disk()
    world.cut = {"a"}
    back = restarted(world, "a")
    [job] = back.shell.rebuilds
    outcome = job.run(back.store, 100, back.now)
    assert isinstance(outcome, rebuilding.RebuildResult) and outcome.state.sessions.encode_committed()
    new = world.elect("b")
    new.append("other", b"other", session=(session, 3))
    world.carry()
    world.cut = set()
    world.connect(new, "a")
    world.carry()
    assert back.core.log.end_index == new.core.log.end_index
    back.replica.log_read(back.now, job.number, outcome)
    assert not back.replica.rebuilding.is_done, "it holds the batch that was cut"
    back.pass_time(20)
    del back.shell.rebuilds[0]
    back.rebuild()
    assert back.replica.rebuilding.is_done
    world.carry()
    new.append("after", b"after", session=(session, 4))
    world.carry()
    assert len(set(tables(world))) == 1


@pytest.mark.parametrize("most", [2, 1000])
@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_while_the_log_is_read_the_sessions_are_those_of_the_log(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pushes, commits, ticks, damage and jobs that end at any time; few heads are noted, or all."""
    monkeypatch.setattr(rebuilding, "MOST_NOTED", most)
    rng = Random(seed)
    world = World("a", "b", "c")
    leader = world.elect("a")
    session = with_session(world, leader, 3)
    back = restarted(world, "b")
    world.connect(leader, "b")
    seq, jobs = 3, []
    for _ in range(40):
        kind = rng.random()
        if kind < 0.5:
            seq += 1
            leader.append(f"next {seq}", bytes(rng.randrange(20)), session=(session, seq))
        elif kind < 0.6:
            store = back.store
            assert isinstance(store, MemoryLogStore)
            store.corrupt(rng.randrange(store.begin_index, store.end_index + 1))
        elif kind < 0.8:
            jobs += [(job, job.run(back.store, 100, back.now)) for job in back.shell.rebuilds]
            back.shell.rebuilds.clear()
        elif jobs:
            job, outcome = jobs.pop(0)
            back.replica.log_read(back.now, job.number, outcome)
        if rng.random() < 0.7:
            world.carry()
        back.pass_time(rng.choice((10, 100)))
    world.carry()
    repair(back, leader)
    for job, outcome in jobs:
        back.replica.log_read(back.now, job.number, outcome)
    for _ in range(10):
        back.pass_time(100)
        back.rebuild()
    assert back.replica.rebuilding.is_done
    seq += 1
    leader.append(f"next {seq}", b"last", session=(session, seq))
    world.carry()
    assert len(set(tables(world))) == 1, tables(world)
    assert back.replica.admission.sessions.encode_all() == leader.replica.admission.sessions.encode_all()


def repair(host: Host, source: Host) -> None:
    """Scrub it, and take what is damaged from another one."""
    at, store = 0, host.store
    while True:
        step = store.scrub(at, 1 << 20)
        if step.damage is not None:
            store.note_damage(step.damage.first_index)
        if step.next_index <= max(at, store.begin_index):
            break
        at = step.next_index
    for damage in store.damages:
        store.repair(source.store.read(damage.first_index, damage.last_index, 1 << 20, whole_batches=True))


@pytest.mark.parametrize("lost", ["one entry", "a batch"])
def test_a_job_that_meets_damage_waits_for_the_repair_or_goes_on_behind_what_others_have_purged(
    lost: str,
) -> None:
    world = World("a", "b", "c")
    session = with_session(world, world.elect("a"), 3)
    back = restarted(world, "b")
    store = back.store
    assert isinstance(store, MemoryLogStore)
    at = session if lost == "one entry" else session + 1
    store.corrupt(at)
    back.rebuild()
    assert back.replica.suspects == [at], "nobody looks for the damage"
    back.pass_time(50)
    assert not back.shell.rebuilds, "nobody has looked at it so soon"
    damage = store.note_damage(at)
    assert damage is not None and (damage.last_index == at) == (lost == "one entry")
    back.pass_time(1000)
    assert not back.shell.rebuilds and f"the repair of entry {at}" in back.replica.rebuilding.text()
    back.replica.purged_elsewhere(back.now, damage)
    back.pass_time(1000)
    back.rebuild()
    assert back.shell.is_rebuilt and back.replica.rebuilding.text() == ""
    assert back.replica.admission.state.needs_image and not back.core.may_lead


def test_an_installed_base_leaves_nothing_to_be_read() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    with_session(world, leader, 3)
    back = restarted(world, "b")
    [job] = back.shell.rebuilds
    outcome = job.run(back.store, 100, back.now)
    assert isinstance(outcome, rebuilding.RebuildResult)
    back.replica._reset(back.store.base._replace(index=1 << 20, pos=1 << 40), 99)
    assert back.replica.rebuilding.is_done and back.shell.is_rebuilt
    state = back.replica.admission.state
    back.replica.log_read(back.now, job.number, outcome)
    assert back.replica.admission.state is state and state.needs_image
