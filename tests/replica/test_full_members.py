"""A leader whose peers are full: what could not be committed is refused before it is anywhere (rule 9)."""

from __future__ import annotations

from dledger.core.messages import HeartbeatResponse
from dledger.errors import Code, Overloaded
from dledger.replica.shell import AppendOutcome, HardStateJob, TruncateJob
from tests.replica.replica_world import Host, World


def say(leader: Host, peer: str, *, has_room: bool) -> None:
    leadership = leader.core.leadership
    assert leadership is not None
    answer = HeartbeatResponse(leader.core.term, peer, leadership.round, True, has_room=has_room)
    leader.replica.receive(leader.now, peer, answer)


def test_rule_9_appends_are_refused_while_a_majority_has_no_room() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    say(leader, "b", has_room=False)
    leader.append(1, b"two of three can store it")
    world.carry()
    assert isinstance(leader.shell.appends[1], AppendOutcome)
    say(leader, "b", has_room=False)  # again: its answers to pushes have said otherwise since
    say(leader, "c", has_room=False)
    end = leader.core.log.end_index
    refused = leader.append(2, b"nobody else can")
    assert isinstance(refused, Overloaded) and refused.code is Code.DISK_FULL
    assert leader.core.log.end_index == end and not leader.replica.admission.gathered_bytes
    say(leader, "b", has_room=True)
    leader.append(3, b"and again")
    world.carry()
    assert isinstance(leader.shell.appends[3], AppendOutcome)
    assert leader.replica.admission.limits_hit == {"disk_reserve_bytes": 1}


def test_rule_9_a_retry_of_what_was_stored_is_answered_while_the_others_are_full() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append("open", open_session=True)
    world.carry()
    opened = leader.shell.appends["open"]
    assert isinstance(opened, AppendOutcome)
    leader.append(1, b"once", session=(opened.index, 1))
    world.carry()
    say(leader, "b", has_room=False)
    say(leader, "c", has_room=False)
    again = leader.append(2, b"once", session=(opened.index, 1))
    assert isinstance(again, AppendOutcome) and again.duplicate
    refused = leader.append(3, b"more", session=(opened.index, 2))
    assert isinstance(refused, Overloaded) and refused.code is Code.DISK_FULL


def test_rule_9_space_that_a_truncation_takes_along_is_not_counted_on_by_who_leads_later() -> None:
    world = World("a", "b", "c")
    old = world.elect("a")
    world.cut.add("a")
    old.append("lost", b"of a leader that nobody hears")
    old.disk()
    new = world.elect("b")
    world.cut.clear()
    world.connect(new, "a")
    while not any(isinstance(job, TruncateJob) for job in old.shell.jobs):
        world.carry(disk=False)
        if old.shell.jobs and isinstance(old.shell.jobs[0], HardStateJob):
            old.one_job()
    world.carry(disk=False)
    assert old.replica.log_tail == new.replica.log_tail, "pushed before the truncation is carried out"
    old.store.prepare = lambda *_, **__: False  # type: ignore[method-assign]
    world.carry()
    world.elect("a")
    assert old.core.committed_index == old.store.end_index
    old.store.capacity = old.store.tail.pos
    refused = old.append("more", bytes(100))
    assert isinstance(refused, Overloaded) and refused.code is Code.DISK_FULL
    assert not old.shell.jobs
