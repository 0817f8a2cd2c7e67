"""Group commit of delivery: what shares an append, and when the next one goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.delivery_state.commands import (
    Ack,
    Defer,
    DeferredKind,
    Pop,
    QueueKey,
    StoredIds,
    SystemOffset,
)
from broker_adapter.delivery_state.duplicate_filter import SendIdentity
from broker_adapter.delivery_state.records import decode, encode
from broker_adapter.errors import BrokerError, Busy, NotMaster, PutIndeterminate, Status, error_for
from broker_adapter.put.committer import ROUND_ENTRIES, Committer, PutRequest, RequestOutcome
from broker_adapter.put.message_writer import (
    AnyTopic,
    AppendedBatch,
    LateCommand,
    QueuedRecords,
    StoredAt,
    TopicCheck,
)
from broker_adapter.put.record_writer import RecordBatch
from broker_adapter.wire.host import NO_HOST

KEY = QueueKey("g", "t", 0)
MAX_ROUND_BYTES = 2_000


class Append:
    """One append, until the test says what became of it."""

    def __init__(self, queued: Sequence[QueuedRecords], commands: Sequence[LateCommand]) -> None:
        self.firsts = list(range(len(queued)))
        bodies = [command.body(self.firsts, 0) for command in commands]
        decoded = [command for body in bodies if (command := decode(body)) is not None]
        self.commands = [
            command._replace(elements=[one for one in command.elements if one != StoredIds((), 0)])
            for command in decoded
        ]
        self.done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.put_status: asyncio.Future[Status | None] | None = None

    def commit(self) -> None:
        self.done.set_result(self.firsts)


class Writer:
    """Of a broker that is master; what is appended is seen here."""

    def __init__(self) -> None:
        self.appends: asyncio.Queue[Append] = asyncio.Queue()
        self.topics: TopicCheck = AnyTopic()

    def check_master(self) -> tuple[int, int]:
        return 1, 1

    async def put_together(
        self, queued: Sequence[QueuedRecords], topic: str, commands: Sequence[LateCommand], **_: Any
    ) -> AppendedBatch:
        append = Append(queued, commands)
        self.appends.put_nowait(append)
        places = [StoredAt(first, 100 * first) for first in await append.done]
        return AppendedBatch(places, append.put_status)


class World:
    """`when_idle`: as a loop that always has nothing else to do, unless a test says otherwise."""

    def __init__(
        self,
        when_idle: Callable[[Callable[[], None]], None] | None = None,
        max_round_entries: int = ROUND_ENTRIES,
    ) -> None:
        self.writer = Writer()
        numbers = count(1)
        self.committer = Committer(
            self.writer,  # type: ignore[arg-type]
            new_request_id=lambda: next(numbers).to_bytes(16, "big"),
            max_waiting_bytes=1 << 20,
            when_idle=when_idle or asyncio.get_running_loop().call_soon,
            max_round_bytes=MAX_ROUND_BYTES,
            max_round_entries=max_round_entries,
        )

    def apply(self, append: Append) -> None:
        for command in append.commands:
            self.committer.on_outcomes(command.request_id, [True] * len(command.elements))


def ack(offset: int) -> PutRequest:
    return PutRequest(elements=[Ack(KEY, offset, 7)])


def send(digest: bytes, release: Callable[[], None] = lambda: None) -> PutRequest:
    """`digest` of the id; b"" without an id."""
    identity = SendIdentity(digest, b"c" * 16, 7) if digest else None
    message = OutgoingMessage(b"x")
    batch = RecordBatch("t", 0, [message], born_host=NO_HOST, store_host=NO_HOST, now_ms=1, max_body_bytes=99)
    return PutRequest(queued=[QueuedRecords("t", 0, batch)], identity=identity, release=release)


async def turns() -> None:
    """So that all that can happen has."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_shares_an_append() -> None:
    world = World()
    asked = [world.committer.submit(ack(offset)) for offset in range(3)]
    append = await world.writer.appends.get()
    append.commit()
    world.apply(append)
    assert [done.outcomes for done in await asyncio.gather(*asked)] == [[True]] * 3
    assert world.committer.rounds == 1


async def test_an_append_has_no_more_entries_than_a_batch_of_the_log_may_have() -> None:
    """Its command among them. What is larger is refused as a whole, and again whenever it is tried."""
    world = World(max_round_entries=3)
    for number in range(5):
        world.committer.submit(send(bytes((number,)) * 16))
    messages = []
    for _ in range(3):
        append = await world.writer.appends.get()
        assert len(append.firsts) + len(append.commands) <= 3
        messages.append(len(append.firsts))
        append.commit()
        await turns()
        world.apply(append)
    assert messages == [2, 2, 1]


@pytest.mark.parametrize("where", ["in the append", "in what is put together"])
async def test_a_mistake_costs_a_round_and_not_all_that_are_to_come(where: str) -> None:
    world = World()
    if where == "in the append":
        mistaken = world.committer.submit(ack(0))
        (await world.writer.appends.get()).done.set_exception(ZeroDivisionError("a mistake"))
    else:
        mistaken = world.committer.submit(PutRequest(elements=[Ack(KEY, 1 << 70, 7)]))
    with pytest.raises(PutIndeterminate, match="internal error"):
        await asyncio.wait_for(mistaken, 30)
    asked = world.committer.submit(ack(1))
    append = await asyncio.wait_for(world.writer.appends.get(), 30)
    append.commit()
    world.apply(append)
    assert (await asyncio.wait_for(asked, 30)).outcomes == [True]


async def test_what_comes_until_the_loop_is_idle_shares_an_append() -> None:
    idle: list[Callable[[], None]] = []
    world = World(idle.append)
    for offset in range(3):
        world.committer.submit(ack(offset))
        await turns()
    assert world.writer.appends.empty()
    idle.pop()()
    append = await world.writer.appends.get()
    assert [len(command.elements) for command in append.commands] == [3]
    assert not idle, "asked once"
    world.committer.submit(ack(3))
    append.commit()
    world.apply(append)
    await turns()
    assert world.writer.appends.empty(), "the next one is not different"
    idle.pop()()
    assert (await world.writer.appends.get()).commands


async def test_a_full_append_goes_however_busy_the_loop_is() -> None:
    idle: list[Callable[[], None]] = []
    world = World(idle.append)
    few, size = ack(0), ack(0).size
    world.committer.submit(few)
    for offset in range(1, MAX_ROUND_BYTES // size + 1):
        await turns()
        assert world.writer.appends.empty()
        world.committer.submit(ack(offset))
    append = await world.writer.appends.get()
    world.committer.submit(ack(-1))
    idle.pop()()  # of those that went: means nothing while they are under way
    append.commit()
    world.apply(append)
    await turns()
    assert world.writer.appends.empty()
    idle.pop()()
    assert (await world.writer.appends.get()).commands


async def test_a_receive_is_not_held_for_smaller_than_it_is() -> None:
    """Its client and its attempt have names of any length: an append may get too large to be taken."""
    receive = Pop(KEY, "c" * 255, "\u00e4" * 255, 1, False, False, False, 0, 2, (0, 1), ((2, 3),))
    alone, both = (len(encode([receive] * n)) for n in (1, 2))
    other = receive._replace(client_id="d" * 255, attempt_id="\u00f6" * 255)
    added = len(encode([receive, other])) - alone
    assert both - alone < added <= PutRequest(elements=[other]).size


async def test_the_next_append_waits_until_the_one_before_is_committed_and_applied() -> None:
    world = World()
    first = world.committer.submit(ack(0))
    append = await world.writer.appends.get()
    later = [world.committer.submit(ack(1))]
    await turns()
    append.commit()
    await turns()
    later.append(world.committer.submit(ack(2)))
    await turns()
    assert world.writer.appends.empty()
    world.apply(append)
    await first
    second = await world.writer.appends.get()
    assert [len(command.elements) for command in second.commands] == [2]
    second.commit()
    world.apply(second)
    await asyncio.gather(*later)


async def test_a_send_is_answered_at_the_commit_whatever_waits_for_the_application() -> None:
    world = World()
    first = world.committer.submit(send(bytes(16)))
    append = await world.writer.appends.get()
    append.commit()
    assert (await first).offsets == [0]
    second = world.committer.submit(send(b"1" * 16))
    await turns()
    assert world.writer.appends.empty()
    world.apply(append)
    (await world.writer.appends.get()).commit()
    assert (await second).offsets == [0]


async def test_what_has_no_command_is_over_with_the_commit() -> None:
    world = World()
    world.committer.submit(send(b""))
    append = await world.writer.appends.get()
    assert append.commands == []
    world.committer.submit(send(b""))
    append.commit()
    (await world.writer.appends.get()).commit()


async def test_an_append_that_was_refused_is_over_at_once() -> None:
    world = World()
    refused = world.committer.submit(ack(0))
    append = await world.writer.appends.get()
    later = world.committer.submit(ack(1))
    append.done.set_exception(error_for(Status.NOT_MASTER, "no master"))
    with pytest.raises(NotMaster):
        await refused
    second = await world.writer.appends.get()
    second.commit()
    world.apply(second)
    assert (await later).outcomes == [True]


async def test_a_new_mastership_does_not_wait_for_what_the_old_one_left() -> None:
    world = World()
    world.committer.submit(ack(0))
    append = await world.writer.appends.get()
    append.commit()
    await turns()
    text = "this broker is not the master any more"
    world.committer.abandon(
        error_for(Status.NOT_MASTER, text), PutIndeterminate(Status.OUTCOME_UNKNOWN, text)
    )
    later = world.committer.submit(ack(1))
    second = await world.writer.appends.get()
    second.commit()
    world.apply(second)
    assert (await later).outcomes == [True]


async def test_a_send_in_doubt_is_over_when_it_is_applied() -> None:
    """Until then a duplicate has to wait: it may be in the log. Without an id nobody waits for it."""
    world, over = World(), list[str]()
    known = world.committer.submit(send(bytes(16), lambda: over.append("known")))
    other = world.committer.submit(send(b"", lambda: over.append("other")))
    append = await world.writer.appends.get()
    append.done.set_exception(PutIndeterminate(Status.OUTCOME_UNKNOWN, "no answer"))
    for asked in (known, other):
        with pytest.raises(PutIndeterminate):
            await asked
    assert over == ["other"]
    world.apply(append)
    await turns()
    assert over == ["other", "known"]


async def test_the_end_of_the_mastership_releases_what_waited_and_what_was_under_way() -> None:
    world, over = World(), list[int]()
    asked = [world.committer.submit(send(bytes(16), lambda: over.append(0)))]
    await world.writer.appends.get()
    asked.append(world.committer.submit(send(b"1" * 16, lambda: over.append(1))))
    refused = error_for(Status.NOT_MASTER, "no master")
    world.committer.abandon(refused, PutIndeterminate(Status.OUTCOME_UNKNOWN, "no master"))
    assert sorted(over) == [0, 1]
    for one, error in zip(asked, (PutIndeterminate, NotMaster), strict=True):
        with pytest.raises(error):
            await one


class Deleting(AnyTopic):
    """The topic t is going."""

    def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
        return error_for(Status.TOPIC_CHANGED, "gone") if topic == "t" else None


async def test_a_message_for_later_whose_topic_is_being_deleted_is_refused() -> None:
    """Behind the deletion it would wait for queues that do not come back."""
    world = World()
    world.writer.topics = Deleting()
    defer = Defer(DeferredKind.DELAYED, "t", 0, 7, b"", "i", "c", 1, 2, 3, b"", "p", b"body")
    refused, other = world.committer.submit(PutRequest(elements=[defer])), world.committer.submit(ack(0))
    append = await world.writer.appends.get()
    assert [command.elements for command in append.commands] == [[Ack(KEY, 0, 7)]]
    append.commit()
    world.apply(append)
    assert (await other).outcomes == [True]
    with pytest.raises(Busy):
        await refused


async def test_a_message_whose_topic_is_being_deleted_is_refused_and_others_of_its_round_are_not() -> None:
    world = World()
    world.writer.topics = Deleting()
    released: list[str] = []
    sent = send(b"")
    sent._release = lambda: released.append("sent")
    refused, other = world.committer.submit(sent), world.committer.submit(ack(0))
    append = await world.writer.appends.get()
    assert append.firsts == []
    append.commit()
    world.apply(append)
    assert (await other).outcomes == [True]
    with pytest.raises(Busy) as caught:
        await refused
    assert caught.value.status is Status.TOPIC_CHANGED and released == ["sent"]


async def test_a_command_that_was_set_aside_costs_its_round_and_not_all_that_are_to_come() -> None:
    """Its elements have no outcomes; the messages of its append are stored."""
    world = World()
    sent, mistaken = world.committer.submit(send(b"d" * 16)), world.committer.submit(ack(0))
    append = await world.writer.appends.get()
    append.commit()
    (command,) = append.commands
    world.committer.on_outcomes(command.request_id, [])
    with pytest.raises(PutIndeterminate, match="set aside"):
        await asyncio.wait_for(mistaken, 30)
    assert (await asyncio.wait_for(sent, 30)).offsets == [0]
    asked = world.committer.submit(ack(1))
    append = await asyncio.wait_for(world.writer.appends.get(), 30)
    append.commit()
    world.apply(append)
    assert (await asyncio.wait_for(asked, 30)).outcomes == [True]


@pytest.mark.parametrize("is_applied_first", [False, True])
async def test_a_request_with_both_is_over_when_it_is_applied_and_its_places_are_known(
    is_applied_first: bool,
) -> None:
    world = World()
    request = PutRequest(queued=send(b"").queued, elements=[SystemOffset("s", 0, 5)])
    done = world.committer.submit(request)
    append = await world.writer.appends.get()
    steps = [append.commit, lambda: world.apply(append)]
    if is_applied_first:
        steps.reverse()
    steps[0]()
    await turns()
    assert not done.done()
    steps[1]()
    assert await done == RequestOutcome([0], [True], [StoredAt(0, 0)])


async def test_sends_of_one_address_leave_room_for_those_of_another() -> None:
    """They filled what may wait for an append, and all other clients were refused."""
    world = World()  # its appends do not end

    def waiting(client: str) -> PutRequest:
        request = ack(0)
        request.client, request.size = client, 64 << 10
        return request

    def submit_until_refused(client: str) -> int:
        for submitted in range(17):
            try:
                world.committer.submit(waiting(client))
            except Busy as error:
                assert error.status is Status.TOO_MANY_PENDING_BYTES
                return submitted
        raise AssertionError("nothing was refused")

    assert submit_until_refused("10.0.0.1") == 1 + 12, "one is being appended"
    assert submit_until_refused("10.0.0.2") == 3
    world.committer.submit(waiting(""))  # the broker's own commands need no share
    world.committer.abandon(NotMaster("no"), PutIndeterminate(Status.OUTCOME_UNKNOWN, "?"))
    assert submit_until_refused("10.0.0.1") == 12


async def test_each_send_of_a_round_gets_its_own_position_and_its_id_is_stored_with_it() -> None:
    """Requests without messages and messages without ids precede, so their counts differ."""
    world = World()
    first, second = b"first".ljust(16), b"second".ljust(16)
    requests = [ack(1), send(b""), send(first), ack(2), send(second)]
    done = [world.committer.submit(request) for request in requests]
    append = await world.writer.appends.get()
    [ids] = [one for command in append.commands for one in command.elements if isinstance(one, StoredIds)]
    assert [(one.identity.id_digest, one.queue_offset) for one in ids.ids] == [(first, 1), (second, 2)]
    append.commit()
    world.apply(append)
    outcomes = await asyncio.gather(*done)
    assert [one.offsets for one in outcomes] == [[], [0], [1], [], [2]]


async def test_each_request_of_a_round_gets_its_own_outcomes() -> None:
    world = World()
    requests = [ack(1), send(b"id".ljust(16)), PutRequest(elements=[Ack(KEY, 2, 7), Ack(KEY, 3, 7)]), ack(4)]
    done = [world.committer.submit(request) for request in requests]
    append = await world.writer.appends.get()
    append.commit()
    [command] = append.commands
    world.committer.on_outcomes(command.request_id, [True, False, True, False])
    outcomes = await asyncio.gather(*done)
    assert [one.outcomes for one in outcomes] == [[True], [], [False, True], [False]]


async def test_positions_of_a_request_for_several_queues_are_not_taken_for_those_of_the_next_one() -> None:
    world = World()
    first, second = (SendIdentity(name.ljust(16), b"c" * 16, 7) for name in (b"first", b"second"))
    requests = [
        PutRequest(queued=[*send(b"").queued, *send(b"").queued], identity=first),
        PutRequest(queued=send(b"").queued, identity=second),
    ]
    done = [world.committer.submit(request) for request in requests]
    append = await world.writer.appends.get()
    [ids] = [one for command in append.commands for one in command.elements if isinstance(one, StoredIds)]
    assert [one.queue_offset for one in ids.ids] == [0, 2]
    append.commit()
    assert [one.offsets for one in await asyncio.gather(*done)] == [[0, 1], [2]]


async def test_an_id_is_kept_until_the_state_knows_it() -> None:
    """A second attempt between the commit and the application would be stored, too."""
    world, released = World(), list[str]()
    done = world.committer.submit(send(b"id".ljust(16), lambda: released.append("id")))
    append = await world.writer.appends.get()
    append.commit()
    assert (await done).offsets == [0]
    await turns()
    assert not released
    world.apply(append)
    await turns()
    assert released == ["id"]


async def test_requests_that_do_not_fit_into_an_append_are_the_first_ones_of_the_next() -> None:
    world, order = World(), list[int]()
    requests = [ack(number) for number in range(7)]
    for request, size in zip(requests, (900, 1200, 500, 1900, 300, 1800, 100), strict=True):
        request.size = size
    done = [world.committer.submit(request) for request in requests]
    while not all(one.done() for one in done):
        append = await world.writer.appends.get()
        order += [one.offset for command in append.commands for one in command.elements]
        append.commit()
        world.apply(append)
        await turns()
    assert order == [*range(7)] and world.committer.rounds > 3


async def test_requests_that_a_slave_refuses_use_no_bytes_of_their_client() -> None:
    world, check_master = World(), Mock(side_effect=NotMaster("no"))
    request = ack(0)
    request.client, request.size = "10.0.0.1", 512 << 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.writer, "check_master", check_master)
        for _ in range(3):
            with pytest.raises(NotMaster):
                world.committer.submit(request)
    world.committer.submit(request)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_all_messages_of_an_append_and_no_others_have_its_put_status(is_stopped: bool) -> None:
    """A later append ends while slaves still have time for the first one."""
    world = World()
    batch = [send(b""), ack(0), send(b"id".ljust(16)), send(b"")]
    asked = [world.committer.submit(request) for request in batch]
    append = await world.writer.appends.get()
    append.put_status = asyncio.get_running_loop().create_future()
    append.commit()
    world.apply(append)
    assert (await asked.pop(1)).outcomes == [True]
    later = world.committer.submit(send(b""))
    (await world.writer.appends.get()).commit()
    assert (await later).put_status is None
    await turns()
    assert not any(one.done() for one in asked)
    if is_stopped:
        append.put_status.set_exception(NotMaster("stopped"))
        for one in asked:
            with pytest.raises(PutIndeterminate):
                await one
    else:
        append.put_status.set_result(Status.FLUSH_SLAVE_TIMEOUT)
        outcomes = await asyncio.gather(*asked)
        assert [(one.offsets, one.put_status) for one in outcomes] == [
            ([offset], Status.FLUSH_SLAVE_TIMEOUT) for offset in range(3)
        ]
