"""Messages that wait for a hard state (rule 2) while the disk hangs: in order, and bounded (rule 13)."""

from __future__ import annotations

from dledger.core.messages import (
    Commit,
    Heartbeat,
    HeartbeatResponse,
    Message,
    PushResponse,
    PushType,
    VoteRequest,
)
from dledger.errors import Code
from dledger.replica.outbox import DurableOutbox
from dledger.replica.shell import HardStateJob
from tests.replica.replica_world import World


def heartbeat(round_: int) -> Heartbeat:
    return Heartbeat(3, "a", round_, 7)


def commit(stream_id: int, index: int) -> Commit:
    return Commit(3, "a", stream_id, index)


def answer(stream_id: int, index: int) -> PushResponse:
    return PushResponse(3, "a", stream_id, Code.SUCCESS, PushType.APPEND, index, 0, index)


def leaving(outbox: DurableOutbox, number: int) -> list[tuple[str, Message]]:
    return [(item.peer, item.message) for item in outbox.release(number)]


def test_what_is_held_leaves_in_order_and_only_when_its_hard_state_is_durable() -> None:
    outbox = DurableOutbox()
    messages: list[tuple[int, str, Message]] = [
        (1, "b", commit(5, 1)),
        (1, "c", heartbeat(1)),
        (2, "b", commit(5, 2)),
        (3, "b", answer(9, 4)),
    ]
    for number, peer, message in messages:
        outbox.add(number, peer, message, None)
    assert leaving(outbox, 0) == []
    assert leaving(outbox, 2) == [(peer, message) for _, peer, message in messages[:3]]
    assert leaving(outbox, 3) == [("b", messages[3][2])]
    assert len(outbox) == 0


def test_rule_13_of_what_is_repeated_anyway_the_newest_few_are_kept() -> None:
    outbox = DurableOutbox()
    for number in range(1000):
        for peer in ("b", "c"):
            outbox.add(number, peer, heartbeat(number), None)
            outbox.add(number, peer, HeartbeatResponse(3, "a", number, True, True, True), None)
    assert len(outbox) == 4 * 8
    assert ("b", heartbeat(999)) in leaving(outbox, 999)


def test_rule_13_a_newer_stream_makes_what_is_held_for_an_older_one_void() -> None:
    outbox = DurableOutbox()
    for stream_id in range(1, 1000):
        outbox.add(1, "b", commit(stream_id, 1), None)
        outbox.add(1, "b", commit(stream_id, 2), None)
        outbox.add(1, "b", answer(stream_id, 3), None)
        outbox.add(1, "c", commit(7, 3), None) if stream_id == 5 else None
    assert leaving(outbox, 1) == [
        ("c", commit(7, 3)),
        ("b", commit(999, 1)),
        ("b", commit(999, 2)),
        ("b", answer(999, 3)),
    ]


def test_rule_13_a_vote_that_the_disk_does_not_store_for_an_hour_costs_no_memory() -> None:
    world = World("a", "b", "c")
    follower = world["b"]
    request = VoteRequest(5, "c", 1, 1, False, False, 1)
    follower.now += 10_000
    follower.replica.receive(follower.now, "c", request)
    assert any(isinstance(job, HardStateJob) for job in follower.shell.jobs), "and it is never done"
    before = len(follower.shell.sent)
    for round_ in range(20_000):
        follower.replica.receive(follower.now, "c", Heartbeat(5, "c", round_, -1))
        if round_ % 10 == 0:
            follower.pass_time(20)
    assert len(follower.shell.sent) == before, "nothing has left"
    assert len(follower.replica._outbox) < 50
