"""Rule 10 in the replica: what cannot be read is handed over for repair, and stops neither node nor log."""

from __future__ import annotations

from dledger.core.messages import Append, Compare, PushResponse, Truncate
from dledger.core.values import Role
from dledger.errors import Code
from tests.replica.replica_world import Host, World, probes


def repair(host: Host, source: Host) -> None:
    """What the shell does about suspects: look, and take a peer's entries."""
    while host.replica.suspects:
        host.store.note_damage(host.replica.suspects.pop())
    for damage in host.store.damages:
        host.store.repair(
            source.store.read(damage.first_index, damage.last_index, 1 << 20, whole_batches=True)
        )


def lagging_world() -> tuple[World, Host, Host]:
    """A leader without a cache, and a follower that lacks the second half of its log."""
    world = World("a", "b", "c", cache_bytes=0)
    leader = world.elect("a")
    for i in range(4):
        leader.append(i, b"entry %d" % i)
        world.carry()
    world.cut.add("c")
    for i in range(4, 8):
        leader.append(i, b"entry %d" % i)
        world.carry()
    world.cut.clear()
    return world, leader, world["c"]


def caught_up(leader: Host, follower: Host) -> bool:
    return follower.entries() == leader.entries() and not leader.shell.fatals and not follower.shell.fatals


def test_rule_10_a_leader_that_cannot_read_what_it_compares_with_waits_for_the_repair() -> None:
    world, leader, late = lagging_world()
    leader.store.corrupt(late.core.log.end_index)
    world.connect(leader, "c")
    world.carry()
    assert leader.replica.suspects == [late.core.log.end_index]
    assert late.core.log.end_index < leader.core.log.end_index
    leader.pass_time(20)
    assert not probes(leader), "it still cannot say what is there"
    repair(leader, world["b"])
    leader.pass_time(20)
    assert probes(leader)
    world.carry()
    assert caught_up(leader, late)


def test_rule_10_a_probe_that_waited_for_a_repair_is_not_sent_on_another_stream() -> None:
    world, leader, late = lagging_world()
    leader.store.corrupt(late.core.log.end_index)
    world.connect(leader, "c")
    world.carry()
    repair(leader, world["b"])
    leader.replica.stream_down(leader.now, "c", world.streams["c"])
    leader.pass_time(20)
    assert not probes(leader)
    world.connect(leader, "c")
    world.carry()
    assert caught_up(leader, late)


def test_rule_10_a_leader_that_is_known_to_be_damaged_hands_over() -> None:
    world, leader, _ = lagging_world()
    world.connect(leader, "c")
    world.carry()
    leader.store.corrupt(3)
    assert leader.store.note_damage(3)
    assert leader.core.role is Role.LEADER
    for _ in range(100):
        for host in world.hosts.values():
            host.pass_time(20)
        world.carry()
    assert leader.core.role is Role.FOLLOWER
    assert any(host.core.role is Role.LEADER for host in world.hosts.values())
    assert not leader.shell.fatals


def test_rule_10_a_follower_that_cannot_read_what_is_compared_says_so_and_is_asked_again() -> None:
    world, leader, late = lagging_world()
    late.replica.cache.clear()
    late.store.corrupt(late.core.log.end_index - 1)
    index = late.core.log.end_index - 1
    stream = world.connect(leader, "c")
    leader.shell.sent.clear()
    log = leader.core.log
    compare = Compare(
        leader.core.term, "a", stream, leader.core.committed_index, index, log.term_at(index), 1
    )
    late.replica.receive(late.now, "a", compare)
    [answer] = [s.message for s in late.shell.sent if isinstance(s.message, PushResponse)]
    assert (answer.code, answer.index) == (Code.DATA_DAMAGED, index)
    assert late.replica.suspects == [index] and not late.shell.fatals
    leader.core.leadership.progress["c"].probe_index = index
    late.shell.sent.clear()
    leader.replica.receive(leader.now, "c", answer)
    repair(late, leader)
    leader.pass_time(leader.core.timing.heartbeat_ms)
    world.carry()
    assert caught_up(leader, late)


def test_rule_10_a_push_after_an_entry_that_cannot_be_read_is_refused_and_comes_again() -> None:
    world, leader, late = lagging_world()
    end = late.core.log.end_index
    world.connect(leader, "c")
    world.carry(load=False)
    assert leader.shell.loads, "compared, and about to push"
    late.replica.cache.clear()
    late.replica.log_tail = late.replica.log_tail._replace(index=-2)  # nothing in memory says how it ends
    late.store.corrupt(end)
    world.carry()
    assert late.replica.suspects and late.core.log.end_index == end
    repair(late, leader)
    late.replica.log_tail = late.store.tail
    leader.pass_time(leader.core.timing.heartbeat_ms)
    world.carry()
    assert caught_up(leader, late)


def diverged_world() -> tuple[World, Host, Host]:
    """The follower has two uncommitted entries of an older term that the leader lacks."""
    world = World("a", "b", "c", cache_bytes=0)
    old = world.elect("a")
    old.append(0, b"common")
    world.carry()
    world.cut = {"b", "c"}
    old.append(1, b"nobody else has this")
    world.carry()
    world.cut = {"a"}
    leader = world.elect("b")
    leader.append(2, b"this is what counts")
    world.carry()
    world.cut.clear()
    return world, leader, old


def test_rule_10_a_log_is_not_cut_behind_an_entry_that_cannot_be_read() -> None:
    world, leader, other = diverged_world()
    end = other.core.log.end_index
    other.replica.cache.clear()
    other.store.corrupt(end - 1)
    log = leader.core.log
    for message in (
        Truncate(leader.core.term, "b", 7, -1, end, log.term_at(end)),
        Append(
            leader.core.term,
            "b",
            7,
            -1,
            end - 1,
            log.term_at(end - 1),
            end,
            end,
            log.runs_between(end, end),
        ),
    ):
        payload = (
            leader.store.read(end, end, 1, whole_batches=True).data if isinstance(message, Append) else None
        )
        other.shell.sent.clear()
        other.replica.receive(other.now, "b", message, payload)
        [answer] = [s.message for s in other.shell.sent if isinstance(s.message, PushResponse)]
        assert answer.code is Code.DATA_DAMAGED
        assert other.core.log.end_index == end and not other.shell.fatals
    repair(other, leader)
    other.shell.sent.clear()
    world.connect(leader, "a")
    world.carry()
    assert caught_up(leader, other)


def test_rule_10_a_commit_up_to_an_entry_that_cannot_be_read_counts() -> None:
    world, leader, late = lagging_world()
    world.connect(leader, "c")
    world.carry()
    late.replica.cache.clear()
    end = late.core.log.end_index
    again = Host("c", ("a", "b", "c"), store=late.store, cache_bytes=0)
    again.now = late.now
    world.hosts["c"] = again
    again.replica.log_tail = again.replica.log_tail._replace(index=-2)
    again.store.corrupt(end)
    again.core.log.verified_index = end
    again.core.following.learn_committed(end)
    again.replica._effects.extend(again.core.take_effects())
    again.replica._settle(again.now)
    assert again.core.committed_index == end and again.shell.commits[-1] == end
    assert again.replica.suspects == [end] and not again.shell.fatals


def test_rule_10_the_status_of_a_damaged_leader_can_be_asked() -> None:
    world, leader, _ = lagging_world()
    world.connect(leader, "c")
    world.carry(load=False)
    leader.store.corrupt(world["c"].core.log.end_index)
    status = leader.replica.status()
    assert {f.node_id for f in status.followers} == {"b", "c"}
    assert leader.replica.retainer.follower_ends()
