"""A replica in a world that the test moves by hand: groups, barriers, damage, catch-up, answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core.messages import (
    Append,
    Commit,
    HeartbeatResponse,
    PushResponse,
    PushType,
    TakeLeadership,
    VoteRequest,
    VoteResponse,
)
from dledger.core.values import ENTRY_HEADER_SIZE, Role
from dledger.errors import Code, DLedgerError, Indeterminate, NotLeader, Overloaded
from dledger.replica.admission import AppendLimits
from dledger.replica.shell import AppendOutcome, DiskJob, HardStateJob, WriteJob
from dledger.store.format.batch import MAGIC_NORMAL
from dledger.store.format.internal import NoOp, StampedInternal, encode_internal
from tests.replica.replica_world import Host, World, pushes


def outcome(host: Host, token: object) -> AppendOutcome:
    found = host.shell.appends[token]
    assert isinstance(found, AppendOutcome), found
    return found


def refusal(host: Host, token: object) -> DLedgerError:
    found = host.shell.appends[token]
    assert isinstance(found, DLedgerError), found
    return found


def all_equal(world: World) -> None:
    logs = [host.entries() for host in world.hosts.values()]
    assert all(log == logs[0] for log in logs)


# -- groups


def test_a_lone_append_is_written_and_pushed_at_once() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append("one", b"x")
    assert [type(j) for j in leader.shell.jobs] == [WriteJob]
    assert [(s.peer, s.message.first_index) for s in leader.shell.sent if isinstance(s.message, Append)] == [
        ("b", 1),
        ("c", 1),
    ]
    world.carry()
    assert outcome(leader, "one") == AppendOutcome(1, 1, leader.core.term, leader.entries()[1].pos)


def test_appends_gather_while_a_group_is_uncommitted_and_go_out_as_one_group() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append(0, b"first")
    for i in range(1, 4):
        leader.append(i, b"later %d" % i)
    assert len(leader.shell.jobs) == 1
    before = leader.core.log.end_index
    assert before == 1
    leader.disk()
    assert leader.core.log.end_index == before, "nothing is committed yet"
    leader.shell.sent = [s for s in leader.shell.sent if isinstance(s.message, Append)]
    world.carry(disk=False)
    assert leader.core.log.end_index == before
    world["b"].disk()
    world.carry(disk=False)
    job = leader.shell.jobs[-1]
    assert isinstance(job, WriteJob) and [b.first_index for b in job.batches] == [2, 3, 4]
    world.carry()
    assert [outcome(leader, i).index for i in range(4)] == [1, 2, 3, 4]
    all_equal(world)


def test_gathered_bytes_beyond_a_group_go_at_once() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append(0, b"first")
    leader.append(1, bytes(32 << 10))
    assert leader.core.log.end_index == 1
    leader.append(2, bytes(32 << 10))
    assert leader.core.log.end_index == 3
    world.carry()
    assert outcome(leader, 2).index == 3


def test_a_commit_travels_with_the_next_group_and_by_itself_if_there_is_none() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append(0, b"first")
    leader.append(1, b"gathered")
    leader.disk()
    ack = PushResponse(leader.core.term, "b", world.streams["b"], Code.SUCCESS, PushType.APPEND, 1, 0, 1)
    leader.shell.sent.clear()
    leader.replica.receive(leader.now, "b", ack)
    to_b = [s.message for s in leader.shell.sent if s.peer == "b"]
    assert [(type(m), m.committed_index) for m in to_b] == [(Append, 1)]  # type: ignore[union-attr]
    leader.disk()
    leader.shell.sent.clear()
    leader.replica.receive(leader.now, "b", replace(ack, index=2))
    assert not leader.shell.sent
    leader.announce()
    assert [type(s.message) for s in leader.shell.sent if s.peer == "b"] == [Commit]


def test_nothing_gathered_is_left_behind_when_a_transfer_fails() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append(0, b"first")
    leader.append(1, b"gathered", timeout_ms=5000)
    leader.replica.transfer(leader.now, "t", "b")
    leader.disk()
    leader.shell.sent = [s for s in leader.shell.sent if isinstance(s.message, Append)]
    world.carry(disk=False)
    world["b"].disk()
    world["b"].shell.jobs.clear()
    for sent in world["b"].shell.sent:
        leader.replica.receive(leader.now, "b", sent.message)
    world["b"].shell.sent.clear()
    asked = [s for s in leader.shell.sent if isinstance(s.message, TakeLeadership)]
    assert len(asked) == 1
    assert leader.core.log.end_index == 1, "what is handed over stays as it was when the peer was asked"
    leader.shell.sent.clear()  # the peer never hears of it
    leader.now += 500
    leader.replica.receive(leader.now, "b", HeartbeatResponse(leader.core.term, "b", 1, True))
    leader.pass_time(600)
    error = leader.shell.transfers["t"]
    assert error is not None and error.code is Code.TAKE_LEADERSHIP_FAILED
    assert leader.core.log.end_index == 2
    assert leader.append("more", b"x") is None
    world.carry()
    assert outcome(leader, 1).index == 2
    assert outcome(leader, "more").index == 4, "a second has passed: a stamp goes before it"


def test_what_was_only_gathered_when_leadership_is_handed_over_is_refused_definitely() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append(0, b"first")
    leader.append(1, b"gathered")
    leader.replica.transfer(leader.now, "t", "b")
    world.carry()
    assert world["b"].core.role is Role.LEADER
    assert outcome(leader, 0).index == 1
    assert isinstance(refusal(leader, 1), NotLeader)
    for peer in ("a", "c"):
        world.connect(world["b"], peer)
    world.carry()
    assert leader.shell.transfers["t"] is None
    assert b"gathered" not in [e.body for e in world["b"].entries()]


# -- positions


def test_answers_name_what_is_really_stored() -> None:
    host = Host("a", ["a"]).lead_alone()
    host.append("single", b"alpha")
    host.append("batch", b"beta", b"gamma")
    host.append("open", open_session=True)
    host.disk()
    session_id = outcome(host, "open").index
    host.append("in session", b"delta", b"epsilon", session=(session_id, 1))
    host.disk()
    entries = {e.index: e for e in host.entries()}
    for token, bodies in {
        "single": [b"alpha"],
        "batch": [b"beta", b"gamma"],
        "in session": [b"delta", b"epsilon"],
    }.items():
        found = outcome(host, token)
        assert found.count == len(bodies)
        first = entries[found.index]
        assert (first.pos, first.term, first.magic) == (found.pos, found.term, MAGIC_NORMAL)
        assert [entries[found.index + i].body for i in range(found.count)] == bodies
    assert entries[session_id].pos == outcome(host, "open").pos
    assert outcome(host, "open").count == 0


def test_positions_are_right_after_a_file_border() -> None:
    host = Host("a", ["a"]).lead_alone()
    for i in range(6):
        host.append(i, bytes([i]) * ((1 << 20) - 200))
        host.disk()
    entries = {e.index: e for e in host.entries()}
    for i in range(6):
        found = outcome(host, i)
        assert entries[found.index].pos == found.pos
        assert entries[found.index].body[:1] == bytes([i])


# -- the hard-state barrier


def test_rule_2_a_vote_leaves_only_after_it_is_durable() -> None:
    world = World("a", "b", "c")
    candidate, voter = world["a"], world["b"]
    candidate.pass_time(5000)
    for sent in candidate.shell.sent:
        if sent.peer == "b" and isinstance(sent.message, VoteRequest):
            voter.replica.receive(voter.now, "a", sent.message)
    candidate.shell.sent.clear()
    [pre_vote] = voter.shell.sent
    assert isinstance(pre_vote.message, VoteResponse) and pre_vote.message.pre_vote
    voter.shell.sent.clear()
    candidate.replica.receive(candidate.now, "b", pre_vote.message)
    assert [type(j) for j in candidate.shell.jobs] == [HardStateJob]
    assert candidate.shell.sent == [], "the candidate's own vote is not durable"
    candidate.disk()
    for sent in candidate.shell.sent:
        if sent.peer == "b":
            voter.replica.receive(voter.now, "a", sent.message)
    assert voter.shell.sent == []
    assert len(voter.shell.jobs) == 1  # the term with the vote
    voter.one_job()
    [vote] = voter.shell.sent
    assert isinstance(vote.message, VoteResponse) and not vote.message.pre_vote


def test_rule_2_later_messages_do_not_overtake_held_ones() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    b = world["b"]
    b.shell.sent.clear()
    b.replica.receive(b.now, "c", TakeLeadership(leader.core.term + 1, "c", -1))
    b.shell.jobs, jobs = [], b.shell.jobs
    b.replica.receive(b.now, "c", TakeLeadership(leader.core.term + 1, "c", 99))
    assert b.shell.sent == []
    b.shell.jobs = jobs
    b.disk()
    assert len(b.shell.sent) == 2


# -- damage


def test_a_damaged_push_changes_nothing_and_is_sent_again() -> None:
    world = World("a", "b", "c")
    leader, b = world.elect("a"), world["b"]
    leader.append("x", b"hello")
    before = (b.core.log.end_index, len(b.shell.jobs))
    for sent in leader.shell.sent:
        if sent.peer == "b" and sent.payload:
            sent.payload = sent.payload[:-1] + b"\0"
    world.carry()
    assert b.replica.admission.limits_hit == {"damaged_push": 1}
    assert (b.core.log.end_index, len(b.shell.jobs)) == before
    assert outcome(leader, "x").index == 1, "the other follower is a majority with the leader"
    for _ in range(3):
        for host in world.hosts.values():
            host.pass_time(leader.core.timing.heartbeat_ms)
        world.carry()
    all_equal(world)
    assert b.core.committed_index == 1


@pytest.mark.parametrize("payload", [None, b"", b"\0" * 48], ids=["none", "empty", "zeros"])
def test_a_push_without_its_bytes_is_refused(payload: bytes | None) -> None:
    world = World("a", "b", "c")
    leader, b = world.elect("a"), world["b"]
    leader.append("x", b"hello")
    [append] = [s.message for s in leader.shell.sent if s.peer == "b" and isinstance(s.message, Append)]
    b.replica.receive(b.now, "a", append, payload)
    [answer] = b.shell.sent
    assert isinstance(answer.message, PushResponse) and answer.message.code is Code.DATA_DAMAGED
    assert b.core.log.end_index == 0 and not b.shell.jobs


def test_rule_6_another_history_under_the_same_index_and_term_stops_the_node() -> None:
    world = World("a", "b")
    leader, b = world.elect("a"), world["b"]
    leader.append("x", b"hello")
    leader.append("y", b"world")
    world.carry()
    other = World("a", "b")
    twin = other.elect("a")
    twin.append("x", b"HELLO")
    twin.append("y", b"world")
    twin.append("z", b"!")
    other.streams.clear()
    other.connect(twin, "b")
    [probe] = [s.message for s in twin.shell.sent if s.peer == "b" and not isinstance(s.message, Append)][-1:]
    stream = world.streams["b"]
    assert probe.stream_id >= stream  # type: ignore[union-attr]
    b.replica.receive(b.now, "a", probe)
    if not b.shell.fatals:  # the probe was beyond the end: the leader backs up
        twin.replica.receive(twin.now, "b", b.shell.sent[-1].message)
        b.replica.receive(b.now, "a", twin.shell.sent[-1].message)
    assert [e.code for e in b.shell.fatals] == [Code.DATA_DAMAGED]


def test_rule_6_entries_after_another_history_are_never_written() -> None:
    world = World("a", "b")
    leader, b = world.elect("a"), world["b"]
    leader.append("x", b"hello")
    world.carry()
    other = World("a", "b")
    twin = other.elect("a")
    twin.append("x", b"HELLO", flush=False)
    twin.append("y", b"world")
    [append] = pushes(twin)
    [payload] = [s.payload for s in twin.shell.sent if isinstance(s.message, Append)]
    assert (append.first_index, append.last_index, append.term) == (1, 2, leader.core.term)
    b.replica.receive(b.now, "a", append, payload)
    assert [e.code for e in b.shell.fatals] == [Code.DATA_DAMAGED]
    assert not b.shell.jobs


# -- catching up


def test_a_follower_far_behind_is_fed_from_the_store() -> None:
    world = World("a", "b", "c", cache_bytes=400, max_push_bytes=300)
    world.cut.add("c")
    leader = world.elect("a")
    for i in range(20):
        leader.append(i, b"entry %d" % i)
        world.carry()
    assert leader.replica.cache.byte_size <= 400
    world.cut.clear()
    world.connect(leader, "c")
    world.carry(load=False)
    assert leader.shell.loads, "the cache does not reach back so far"
    world.carry()
    all_equal(world)
    assert world["c"].core.committed_index == leader.core.committed_index


def test_a_follower_knows_what_it_gets_later_than_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    shell = world["c"].shell
    jobs: list[DiskJob] = []
    submit = shell.submit
    monkeypatch.setattr(shell, "submit", lambda job: (jobs.append(job), submit(job)))
    world.cut.add("c")
    for i in range(3):
        leader.append(i, b"entry %d" % i)
        world.carry()
    world.cut.clear()
    world.connect(leader, "c")
    world.carry()
    leader.append(3, b"in time")
    world.carry()
    all_equal(world)
    writes = [job for job in jobs if isinstance(job, WriteJob)]
    late = {
        entry: job.is_late
        for job in writes
        for b in job.batches
        for entry in range(b.first_index, b.last_index + 1)
    }
    assert late == {1: True, 2: True, 3: True, 4: False}


def test_a_read_that_failed_is_tried_again_after_a_heartbeat() -> None:
    world = World("a", "b", "c", cache_bytes=0)
    world.cut.add("c")
    leader = world.elect("a")
    for i in range(3):
        leader.append(i, b"entry %d" % i)
        world.carry()
    world.cut.clear()
    world.connect(leader, "c")
    world.carry(load=False)
    [load] = leader.shell.loads
    leader.shell.loads.clear()
    leader.replica.push_loaded(leader.now, "c", load.stream_id, load.first_index, None)
    world.carry()
    assert world["c"].core.log.end_index < leader.core.log.end_index
    leader.pass_time(leader.core.timing.heartbeat_ms)
    world.carry()
    all_equal(world)


def test_a_range_read_for_an_older_stream_or_leadership_is_not_sent() -> None:
    world = World("a", "b", "c", cache_bytes=0)
    world.cut.add("c")
    leader = world.elect("a")
    leader.append(0, b"entry")
    world.carry()
    world.cut.clear()
    world.connect(leader, "c")
    world.carry(load=False)
    [load] = leader.shell.loads
    frames = leader.store.read(load.first_index, load.last_index, 1 << 20, whole_batches=True)
    world.connect(leader, "c")
    leader.shell.sent.clear()
    leader.replica.push_loaded(leader.now, "c", load.stream_id, load.first_index, frames)
    assert not pushes(leader)
    leader.pass_time(10_000)
    assert leader.core.role is Role.FOLLOWER
    leader.shell.sent.clear()
    leader.replica.push_loaded(leader.now, "c", load.stream_id, load.first_index, frames)
    assert not pushes(leader)


def test_a_follower_with_another_tail_is_cut_and_brought_level() -> None:
    world = World("a", "b", "c")
    old = world.elect("a")
    old.append("kept", b"kept")
    world.carry()
    world.cut.add("a")
    old.append("lost", b"lost 1", b"lost 2")
    old.disk()
    old.shell.sent.clear()
    new = world.elect("b")
    new.append("won", b"won")
    world.carry()
    world.cut.clear()
    world.connect(new, "a")
    world.carry()
    all_equal(world)
    assert refusal(old, "lost").code is Code.TERM_CHANGED
    assert isinstance(refusal(old, "lost"), Indeterminate)
    assert [e.body for e in new.entries() if e.magic == MAGIC_NORMAL] == [b"kept", b"won"]


def test_a_push_after_a_truncation_carries_the_entries_of_the_new_log() -> None:
    """The same range was pushed before the truncation, in one message, with other bytes: pushed again, these
    would be refused by the follower for ever."""
    world = World("a", "b", "c", limits=AppendLimits(group_bytes=1))
    deposed = world.elect("a")
    world.cut = {"a"}
    for i in range(3):
        deposed.append(i, b"lost")
    stream = world.connect(deposed, "b")
    term = deposed.core.term
    for answer in (
        PushResponse(term, "b", stream, Code.INCONSISTENT_STATE, PushType.COMPARE, 3, 0, 0, -1, 1),
        PushResponse(term, "b", stream, Code.SUCCESS, PushType.COMPARE, 0, 0, 0),
    ):
        deposed.shell.sent.clear()
        deposed.replica.receive(deposed.now, "b", answer)
    assert [(m.first_index, m.last_index) for m in pushes(deposed)] == [(1, 3)]
    deposed.disk()
    leader = world.elect("b", streams=False)
    world.cut = {"c"}
    world.connect(leader, "a")
    world.carry()
    leader.append("kept", b"kept")
    world.carry()
    assert outcome(leader, "kept").index == 2 and deposed.core.log.end_index == 2
    leader.replica.transfer(leader.now, "t", "a")
    world.carry()
    assert deposed.core.role is Role.LEADER and deposed.core.log.end_index == 3
    world.cut = set()
    for peer in ("c", "b"):
        world.connect(deposed, peer)
        world.carry()
    all_equal(world)
    assert world["c"].replica.admission.limits_hit == {}
    assert [entry.body for entry in world["c"].entries() if entry.magic == MAGIC_NORMAL] == [b"kept"]


def test_a_probe_inside_a_batch_that_is_not_written_yet_is_answered_from_memory() -> None:
    world = World("a", "b", "c")
    world.cut.add("c")
    leader = world.elect("a")
    leader.append("big", *[b"%d" % i for i in range(20)])
    c = world["c"]
    assert c.core.log.end_index == -1
    world.cut.clear()
    assert leader.replica._tail_at(7).index == 7
    assert leader.store.end_index == 0
    expected = leader.replica._tail_at(7)
    leader.disk()
    assert leader.store.tail_at(7) == expected


# -- losing leadership


def test_giving_up_leadership_tells_apart_what_was_written_and_what_was_only_gathered() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append("open", open_session=True)
    world.carry()
    session = outcome(leader, "open").index
    leader.append("written", b"1", session=(session, 1))
    leader.append("gathered", b"2", session=(session, 2))
    leader.append("retry of written", b"1", session=(session, 1))
    leader.append("retry of gathered", b"2", session=(session, 2))
    leader.pass_time(5000)
    assert leader.core.role is Role.FOLLOWER
    codes = {token: refusal(leader, token).code for token in leader.shell.appends if token != "open"}
    assert codes == {
        "written": Code.TERM_CHANGED,
        "gathered": Code.NOT_LEADER,
        "retry of written": Code.TERM_CHANGED,
        "retry of gathered": Code.NOT_LEADER,
    }
    assert leader.replica.admission.pending_bytes == leader.replica.admission.gathered_bytes == 0
    assert isinstance(leader.append("after", b"x"), NotLeader)


def test_appends_are_refused_while_leadership_is_handed_over() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.replica.transfer(leader.now, "t", "b")
    error = leader.append("x", b"x")
    assert isinstance(error, NotLeader)
    assert (error.code, error.leader_id) == (Code.LEADER_TRANSFERRING, "b")


# -- reads


def test_reads_are_answered_after_a_round_and_limited() -> None:
    world = World("a", "b", "c", max_waiting_reads=3)
    leader = world.elect("a")
    for i in range(4):
        leader.replica.read_index(leader.now, i)
    error = leader.shell.reads.pop(3)
    assert isinstance(error, Overloaded) and error.code is Code.TOO_MANY_WAITING_READS
    assert leader.shell.reads == {}
    world.carry()
    assert leader.shell.reads == {0: 0, 1: 0, 2: 0}
    world["b"].replica.read_index(world["b"].now, "b")
    answer = world["b"].shell.reads["b"]
    assert isinstance(answer, NotLeader) and answer.leader_id == "a"


# -- restart


def test_a_restarted_node_knows_its_sessions_to_the_end_of_its_log() -> None:
    host = Host("a", ["a"]).lead_alone()
    host.append("open", open_session=True)
    host.disk()
    session = outcome(host, "open").index
    host.append(1, b"one", session=(session, 1))
    host.disk()
    committed, sessions = host.replica.checkpoint()
    host.store.save_checkpoint(committed, sessions)
    host.append(2, b"two", session=(session, 2))
    host.disk()
    again = Host("a", ["a"], store=host.store)
    assert len(again.replica.admission.sessions) == 1
    again.lead_alone()
    for seq, body in ((1, b"one"), (2, b"two")):
        again.append(("retry", seq), body, session=(session, seq))
        found = outcome(again, ("retry", seq))
        assert found.duplicate and found.index == outcome(host, seq).index
        assert found.pos == outcome(host, seq).pos
    again.append(3, b"three", session=(session, 3))
    again.disk()
    assert not outcome(again, 3).duplicate


def test_status_tells_followers_and_positions() -> None:
    world = World("a", "b", "c")
    leader = world.elect("a")
    leader.append(0, b"entry")
    world.carry()
    status = leader.replica.status()
    assert (status.role, status.committed_index, status.ledger_end_index) == (Role.LEADER, 1, 1)
    noop = len(encode_internal(StampedInternal(0, NoOp())))
    assert status.committed_pos == status.ledger_end_pos == 2 * ENTRY_HEADER_SIZE + noop + len(b"entry")
    assert [(f.node_id, f.match_index, f.lag_bytes) for f in status.followers] == [("b", 1, 0), ("c", 1, 0)]
    assert status.pending_bytes == 0
    assert world["b"].replica.status().followers == ()
