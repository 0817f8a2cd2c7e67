"""Members of a group and transactions against a broker that answers as a test tells it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent import futures
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace

import pytest

from broker_adapter.client import (
    ConsumeFromWhere,
    ConsumeSettings,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    QueueListener,
    TransactionProducer,
)
from broker_adapter.client.group_requests import MessageModel
from broker_adapter.client.queue_worker import NOT_LOCKED
from broker_adapter.errors import BrokerError, IllegalMessage
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire import message as record
from broker_adapter.wire.host import Host
from broker_adapter.wire.message_id import format_offset_id
from broker_adapter.wire.properties import join_properties
from tests.node.local import until

from .scripted import ScriptedServer, route_body, serving

MESSAGES = 4
OFFSET = 1000
HOST = Host(b"\x7f\0\0\1", 10911)


class Broker:
    """One topic `t` with one queue of messages, one group with the members that a test names."""

    def __init__(self) -> None:
        self.answers: dict[int, Callable[[RemotingCommand], RemotingCommand | None]] = {}
        self.members: list[str] | None = None  # None: who has sent heartbeats
        self.greeted: list[str] = []
        self.server: ScriptedServer
        self.committed: dict[str, int] = {}

    def script(self, request: RemotingCommand) -> RemotingCommand | None:
        if request.code in self.answers:
            return self.answers[request.code](request)
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC if request.fields["topic"] == "t":
                return request.answer(0, body=route_body([self.server]))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return request.answer(17)
            case RequestCode.HEART_BEAT:
                self.greeted.append(json.loads(request.body)["clientID"])
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = sorted(set(self.greeted)) if self.members is None else self.members
                return request.answer(0, body=json.dumps({"consumerIdList": members}).encode())
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return request.answer(22)
            case RequestCode.GET_MAX_OFFSET | RequestCode.GET_MIN_OFFSET:
                return request.answer(0, fields={"offset": "0"})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.committed[request.fields["queueId"]] = int(request.fields["commitOffset"])
            case RequestCode.LOCK_BATCH_MQ:
                return request.answer(0, body=b'{"lockOKMQSet":' + _queues(request) + b"}")
            case RequestCode.PULL_MESSAGE:
                return self._pull(request)
        return request.answer(0)

    def _pull(self, request: RemotingCommand) -> RemotingCommand | None:
        queue_id, first = int(request.fields["queueId"]), int(request.fields["queueOffset"])
        if first >= MESSAGES:
            return None  # the long poll goes on
        body = b"".join(
            bytes(
                record.encode(
                    record.MessageRecord(
                        "t", b"%d" % offset, queue_id=queue_id, queue_offset=offset, store_host=HOST
                    )
                )
            )
            for offset in range(first, MESSAGES)
        )
        offsets = {"nextBeginOffset": str(MESSAGES), "minOffset": "0", "maxOffset": str(MESSAGES)}
        return request.answer(0, fields=offsets, body=body)


def _queues(request: RemotingCommand) -> bytes:
    return json.dumps(json.loads(request.body)["mqSet"]).encode()


@asynccontextmanager
async def broker() -> AsyncIterator[Broker]:
    world = Broker()
    async with serving(world.script) as (server,):
        world.server = server
        yield world


def two_queues(world: Broker) -> None:
    """Instead of one."""
    world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: (
        request.answer(0, body=route_body([world.server], queues=2))
        if request.fields["topic"] == "t"
        else request.answer(17)
    )


def consumer(
    world: Broker,
    listener: Callable[[Sequence[MessageExt]], object],
    *,
    noted: QueueListener | None = None,
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    **settings: object,
) -> PushConsumer:
    made = PushConsumer(
        "g",
        world.server.server.address,
        listener,
        consume_from=consume_from,
        settings=replace(ConsumeSettings(local_retry_s=0.0, suspend_s=0.0), **settings),  # type: ignore[arg-type]
        queue_listener=noted,
    )
    made.subscribe("t")
    return made


async def test_a_member_consumes_commits_and_leaves() -> None:
    seen: list[bytes] = []
    async with broker() as world:
        async with consumer(world, lambda messages: seen.extend(one.body for one in messages)) as member:
            await until(lambda: len(seen) == MESSAGES)
            assert member.assigned == [MessageQueue("t", "a", 0)]
        assert world.committed == {"0": MESSAGES}
        codes = [request.code for request in world.server.seen]
        assert codes.index(RequestCode.HEART_BEAT) < codes.index(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        assert codes[-2:] == [RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT]


class Noted(QueueListener):
    """What a member was told, in words."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int] | tuple[str]] = []

    def assigned(self, queue: MessageQueue, offset: int) -> None:
        self.told.append(("assigned", offset))

    def revoked(self, queue: MessageQueue) -> None:
        self.told.append(("revoked",))

    def committing(self, queue: MessageQueue, offset: int) -> None:
        self.told.append(("committing", offset))

    def committed(self, queue: MessageQueue, offset: int, error: BaseException | None) -> None:
        self.told.append(("failed" if error else "committed", offset))


@pytest.mark.parametrize("code", [0, 2])
async def test_a_listener_hears_of_queues_and_commits(code: int) -> None:
    seen: list[bytes] = []
    noted = Noted()
    async with broker() as world:
        world.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: request.answer(code)
        member = consumer(world, lambda messages: seen.extend(one.body for one in messages), noted=noted)
        with pytest.raises(BrokerError) if code else nullcontext():
            async with member:
                await until(lambda: len(seen) == MESSAGES)
                await until(lambda: member.positions == {MessageQueue("t", "a", 0): MESSAGES})
    ended = "failed" if code else "committed"
    assert noted.told == [("assigned", 0), ("committing", MESSAGES), (ended, MESSAGES), ("revoked",)]


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize(
    ("error", "is_coroutine"),
    [
        (futures.CancelledError, False),
        (futures.CancelledError, True),
        (asyncio.CancelledError, False),
        (asyncio.CancelledError, True),
        # On the event loop these are meant to end the program.
        (SystemExit, False),
        (KeyboardInterrupt, False),
    ],
)
async def test_no_exception_of_a_listener_stops_its_queue(
    is_ordered: bool, error: type[BaseException], is_coroutine: bool
) -> None:
    """Such as that of a future which the listener waits for and another thread has cancelled."""
    seen: list[int] = []
    failures = [error()]

    def listen(messages: Sequence[MessageExt]) -> None:
        if failures:
            raise failures.pop()
        seen.extend(one.queue_offset for one in messages)

    async def listen_on_loop(messages: Sequence[MessageExt]) -> None:
        listen(messages)

    async with broker() as world:
        listener = listen_on_loop if is_coroutine else listen
        async with consumer(world, listener, is_ordered=is_ordered) as member:
            await until(lambda: set(member.positions.values()) == {MESSAGES})
        back = len(world.server.seen_of(RequestCode.CONSUMER_SEND_MSG_BACK))
        assert (len(seen), back) == ((MESSAGES, 0) if is_ordered else (MESSAGES - 1, 1))


async def test_a_listener_that_is_cancelled_at_close_has_not_failed() -> None:
    """Its messages stay uncommitted, and are not redelivered as failed ones."""
    started = asyncio.Event()

    async def listen(messages: Sequence[MessageExt]) -> None:
        started.set()
        await asyncio.get_running_loop().create_future()

    async with broker() as world:
        member = consumer(world, listen)
        await member.start()
        await started.wait()
        await member.close(timeout=0.0)
        assert not world.server.seen_of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert not world.committed


class Failing(QueueListener):
    """Raises at each notification of one kind."""

    def __init__(self, kind: str) -> None:
        def fail(*_: object) -> None:
            raise ValueError(kind)

        setattr(self, kind, fail)


@pytest.mark.parametrize("kind", ["assigned", "revoked", "committing", "committed"])
async def test_a_listener_of_queues_that_raises_stops_nothing(kind: str) -> None:
    seen: list[bytes] = []

    def listen(messages: Sequence[MessageExt]) -> None:
        seen.extend(one.body for one in messages)

    async with broker() as world:
        async with consumer(world, listen, noted=Failing(kind), commit_interval_s=0.01) as member:
            await until(lambda: len(seen) == MESSAGES)
            await until(lambda: world.committed == {"0": MESSAGES})
            assert not any(task.done() for task in member._client._tasks)
        assert world.server.seen[-1].code == RequestCode.UNREGISTER_CLIENT


async def test_a_commit_that_failed_is_reported_by_close_after_it_has_left() -> None:
    seen: list[bytes] = []
    async with broker() as world:
        world.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: request.answer(2)
        member = consumer(world, lambda messages: seen.extend(one.body for one in messages))
        await member.start()
        await until(lambda: len(seen) == MESSAGES)
        with pytest.raises(BrokerError):
            await member.close()
        assert world.server.seen[-1].code == RequestCode.UNREGISTER_CLIENT
        await member.close()  # reported once


async def test_a_commit_that_a_reset_has_replaced_is_no_success_and_no_fault_of_the_member() -> None:
    """RocketMQ answers such a commit with SUCCESS as well, and says in words that it does not count."""
    seen: list[bytes] = []
    noted = Noted()
    async with broker() as world:
        answer = "Offset has been previously reset"
        world.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: request.answer(0, answer)
        member = consumer(world, lambda messages: seen.extend(one.body for one in messages), noted=noted)
        await member.start()
        await until(lambda: len(seen) == MESSAGES)
        await member.close()
        assert ("failed", MESSAGES) in noted.told and ("committed", MESSAGES) not in noted.told
        async with PullConsumer("g", world.server.server.address) as puller:
            with pytest.raises(BrokerError, match="761 GENERATION_STALE"):
                await puller.commit(MessageQueue("t", "a", 0), 1)


async def test_a_commit_that_failed_when_a_queue_was_left_is_reported_by_close() -> None:
    """The member that takes the queue gets these messages again."""
    seen: list[bytes] = []
    async with broker() as world:
        world.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: request.answer(2)
        member = consumer(world, lambda messages: seen.extend(one.body for one in messages))
        await member.start()
        await until(lambda: len(seen) == MESSAGES)
        world.members = ["0", member.client_id]  # the first of two has the only queue
        notice = RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        world.server.connections[0].notify(notice)
        await until(lambda: not member.assigned)
        del world.answers[RequestCode.UPDATE_CONSUMER_OFFSET]
        with pytest.raises(BrokerError):
            await member.close()


async def test_an_error_of_the_program_is_not_replaced_by_one_of_a_commit() -> None:
    seen: list[bytes] = []
    async with broker() as world:
        world.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: request.answer(2)
        with pytest.raises(ZeroDivisionError):
            async with consumer(world, lambda messages: seen.extend(one.body for one in messages)):
                await until(lambda: len(seen) == MESSAGES)
                raise ZeroDivisionError


@pytest.mark.parametrize("name", ["", "a b", "g" * 249, "g\n", "ä"])
def test_a_client_with_an_invalid_name_is_not_made(name: str) -> None:
    with pytest.raises(IllegalMessage):
        PushConsumer(name, "127.0.0.1:1", print)
    with pytest.raises(IllegalMessage):
        PullConsumer(name, "127.0.0.1:1")
    with pytest.raises(IllegalMessage):
        PushConsumer("g", "127.0.0.1:1", print).subscribe(name)


async def test_a_member_that_dies_commits_nothing_and_tells_nobody() -> None:
    seen: list[bytes] = []
    noted = Noted()
    async with broker() as world:
        member = consumer(world, lambda messages: seen.extend(one.body for one in messages), noted=noted)
        await member.start()
        await until(lambda: len(seen) == MESSAGES)
        await member.abandon()
        await member.close()
        codes = {request.code for request in world.server.seen}
    assert noted.told == [("assigned", 0), ("revoked",)]
    assert not codes & {RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT}


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_member_goes_on_where_its_group_was_reset_to(is_ordered: bool) -> None:
    seen: list[bytes] = []
    noted = Noted()
    async with broker() as world:
        member = consumer(
            world,
            lambda messages: seen.extend(one.body for one in messages),
            noted=noted,
            is_ordered=is_ordered,
        )
        async with member:
            await until(lambda: len(seen) == MESSAGES)
            (before,) = member._workers.values()
            for group, to in (("other", 1), ("g", -1), ("g", 1 << 63), ("g", 2)):
                world.server.connections[0].notify(
                    RemotingCommand.oneway(
                        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                        {"group": group, "topic": "t"},
                        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:%d,'
                        b'{"brokerName":"a","queueId":7,"topic":"t"}:0}}' % to,
                    )
                )
            await until(lambda: [worker is before for worker in member._workers.values()] == [False])
            assert [worker.locked_at for worker in member._workers.values()] == [before.locked_at]
            await until(lambda: len(seen) == 2 * MESSAGES - 2)
    assert seen[MESSAGES:] == [b"2", b"3"]
    assert noted.told[:3] == [("assigned", 0), ("revoked",), ("assigned", 2)]


@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY]
)
async def test_a_member_answers_for_its_own_group_and_with_what_it_can_read(code: RequestCode) -> None:
    seen: list[bytes] = []
    async with (
        broker() as world,
        consumer(world, lambda messages: seen.extend(one.body for one in messages)),
    ):
        await until(lambda: len(seen) == MESSAGES)
        asked = world.server.connections[0]
        told = await asked.invoke(RemotingCommand(code, {"consumerGroup": "other"}), 40)
        assert (told.code, "<other> not exist" in (told.remark or "")) == (1, True)
        if code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            for body in (b"", b"no record", bytes(200)):
                told = await asked.invoke(RemotingCommand(code, {"consumerGroup": "g"}, body), 40)
                assert told.code != 0, body
        assert len(seen) == MESSAGES, "the listener was given nothing more"


async def test_a_queue_that_was_reset_is_not_committed_by_who_began_before() -> None:
    """A round of commits takes as long as brokers do."""
    seen: list[bytes] = []
    may_commit, may_go_on = asyncio.Event(), asyncio.Event()

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(one.body for one in messages)
        if len(seen) > 2 * MESSAGES:
            await may_go_on.wait()

    async with broker() as world:
        two_queues(world)
        async with consumer(world, listener, commit_interval_s=60.0) as member:
            await until(lambda: set(member.positions.values()) == {MESSAGES})
            slow, reset = member._workers.values()
            slow.commit = may_commit.wait  # type: ignore[method-assign,assignment]
            committing = asyncio.create_task(member._commit())
            world.server.connections[0].notify(
                RemotingCommand.oneway(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    {"group": "g", "topic": "t"},
                    b'{"offsetTable":{{"brokerName":"a","queueId":%d,"topic":"t"}:0}}' % reset.queue.queue_id,
                )
            )
            await until(lambda: len(seen) > 2 * MESSAGES)
            may_commit.set()
            await committing
            assert world.committed == {}
            may_go_on.set()


async def test_who_is_not_listed_takes_no_queue() -> None:
    async with broker() as world:
        world.members = ["somebody else"]
        async with consumer(world, lambda messages: None) as member:
            assert member.assigned == []


async def test_who_is_listed_no_more_keeps_the_queues_that_it_has() -> None:
    """A broker that has just become master knows nobody yet: nobody else takes them there."""
    async with broker() as world, consumer(world, lambda messages: None) as member:
        had = member.assigned
        assert had == [MessageQueue("t", "a", 0)]
        world.members = ["somebody else"]
        asked = len(world.server.seen_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        notice = RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        world.server.connections[0].notify(notice)
        # Who is asked a second time has acted on the first answer.
        await until(lambda: len(world.server.seen_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) >= asked + 2)
        assert member.assigned == had


async def test_what_was_consumed_in_order_is_committed_before_its_queue_is_unlocked() -> None:
    seen: list[bytes] = []
    async with broker() as world:
        async with consumer(
            world, lambda messages: seen.extend(one.body for one in messages), is_ordered=True
        ):
            await until(lambda: len(seen) == MESSAGES)
        codes = [request.code for request in world.server.seen]
        unlocked = codes.index(RequestCode.UNLOCK_BATCH_MQ)
        assert RequestCode.UPDATE_CONSUMER_OFFSET in codes[:unlocked] and world.committed == {"0": MESSAGES}
        assert RequestCode.UPDATE_CONSUMER_OFFSET not in codes[unlocked:]


async def test_a_queue_is_committed_before_another_member_takes_it() -> None:
    seen: list[bytes] = []

    def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(one.body for one in messages)

    async with broker() as world, consumer(world, listener) as member:
        await until(lambda: len(seen) == MESSAGES)
        world.members = ["0", member.client_id]  # the first of two has the only queue
        notice = {"consumerGroup": "g"}
        world.server.connections[0].notify(
            RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, notice)
        )
        await until(lambda: world.committed == {"0": MESSAGES})
        assert member.assigned == []


@pytest.mark.parametrize("is_raised", [False, True])
async def test_a_failed_message_goes_back_to_the_broker(is_raised: bool) -> None:
    def listener(messages: Sequence[MessageExt]) -> ConsumeStatus | None:
        if messages[0].body != b"2":
            return None
        if is_raised:
            raise ValueError("no")
        return ConsumeStatus.RECONSUME_LATER

    async with broker() as world:
        async with consumer(world, listener):
            await until(lambda: bool(world.server.seen_of(RequestCode.CONSUMER_SEND_MSG_BACK)))
        (request,) = world.server.seen_of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert (request.fields["originTopic"], request.fields["group"]) == ("t", "g")
        assert world.committed == {"0": MESSAGES}


async def test_a_message_that_cannot_go_back_is_consumed_again_here() -> None:
    seen: list[tuple[bytes, int]] = []

    def listener(messages: Sequence[MessageExt]) -> ConsumeStatus | None:
        (one,) = messages
        seen.append((one.body, one.reconsume_times))
        return ConsumeStatus.RECONSUME_LATER if seen[-1] == (b"2", 0) else None

    async with broker() as world:
        world.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.answer(1)
        async with consumer(world, listener):
            await until(lambda: (b"2", 1) in seen)
        assert world.committed == {"0": MESSAGES} and len(seen) == MESSAGES + 1


async def test_what_could_not_go_back_is_not_committed_before_it_is_done() -> None:
    is_there = True

    def send_back(request: RemotingCommand) -> RemotingCommand:
        return request.answer(1 if is_there else 0)

    def listener(messages: Sequence[MessageExt]) -> ConsumeStatus | None:
        return ConsumeStatus.RECONSUME_LATER if messages[0].body == b"2" else None

    async with broker() as world:
        world.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = send_back
        async with consumer(world, listener, commit_interval_s=60.0) as member:
            # Of the second try the first one is over.
            await until(lambda: len(world.server.seen_of(RequestCode.CONSUMER_SEND_MSG_BACK)) >= 2)
            await until(lambda: len(member._workers[MessageQueue("t", "a", 0)].state) == 1)
            await member._commit()
            assert world.committed == {"0": 2}
            is_there = False
            await until(lambda: set(member.positions.values()) == {MESSAGES})


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_call_that_was_cancelled_leaves_its_turn_to_others(is_ordered: bool) -> None:
    """That of a queue which was reset, say."""
    seen: list[bytes] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(one.body for one in messages)
        if len(seen) == 1:
            await asyncio.Event().wait()

    async with broker() as world, consumer(world, listener, threads=1, is_ordered=is_ordered):
        await until(lambda: seen == [b"0"])
        world.server.connections[0].notify(
            RemotingCommand.oneway(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                {"group": "g", "topic": "t"},
                b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:1}}',
            )
        )
        await until(lambda: len(seen) == MESSAGES)
    assert seen == [b"0", b"1", b"2", b"3"]


async def test_two_commits_at_once_are_one() -> None:
    """The periodic one, and that of a queue which is left."""
    seen: list[bytes] = []
    async with (
        broker() as world,
        consumer(
            world, lambda messages: seen.extend(one.body for one in messages), commit_interval_s=60.0
        ) as member,
    ):
        await until(lambda: set(member.positions.values()) == {MESSAGES})
        await asyncio.gather(member._commit(), member._commit())
        assert len(world.server.seen_of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1


async def test_a_broadcast_message_that_failed_goes_to_nobody_again() -> None:
    seen: list[bytes] = []

    def listener(messages: Sequence[MessageExt]) -> ConsumeStatus:
        seen.extend(one.body for one in messages)
        return ConsumeStatus.RECONSUME_LATER

    async with broker() as world:
        member = PushConsumer("g", world.server.server.address, listener, model=MessageModel.BROADCASTING)
        member.subscribe("t")
        async with member:
            await until(lambda: set(member.positions.values()) == {MESSAGES})
        assert len(seen) == MESSAGES and not world.server.seen_of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert world.committed == {}


async def test_a_group_begins_with_the_first_message_that_came_back() -> None:
    """Wherever it begins in the topics that it has subscribed."""
    asked: list[tuple[int, str]] = []

    def offset(request: RemotingCommand) -> RemotingCommand:
        asked.append((request.code, request.fields["topic"]))
        return request.answer(0, fields={"offset": "4"})

    async with broker() as world:
        for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            world.answers[code] = offset
        world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: request.answer(
            0, body=route_body([world.server])
        )
        last = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        async with consumer(world, lambda messages: None, consume_from=last) as member:
            assert [queue.topic for queue in member.assigned] == ["%RETRY%g", "t"]
    assert set(asked) == {(RequestCode.GET_MAX_OFFSET, "t"), (RequestCode.GET_MIN_OFFSET, "%RETRY%g")}


async def test_after_a_slave_that_does_not_answer_the_master_is_asked() -> None:
    seen: list[bytes] = []

    async with broker() as world:
        address = world.server.server.address
        route = json.loads(route_body([world.server]))
        route["brokerDatas"][0]["brokerAddrs"] = {"0": address, "1": "127.0.0.1:1"}

        def pull(request: RemotingCommand) -> RemotingCommand | None:
            found = world._pull(request)
            if found is not None:
                found.fields["suggestWhichBrokerId"] = "1"
            return found

        world.answers[RequestCode.PULL_MESSAGE] = pull
        world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: (
            request.answer(0, body=json.dumps(route).encode())
            if request.fields["topic"] == "t"
            else request.answer(17)
        )
        async with consumer(
            world, lambda messages: seen.extend(one.body for one in messages), pull_retry_s=0.01
        ):
            await until(lambda: len(seen) == MESSAGES)
            await until(lambda: len(world.server.seen_of(RequestCode.PULL_MESSAGE)) == 2)


async def test_an_ordered_queue_waits_for_its_message() -> None:
    seen: list[tuple[bytes, int]] = []

    async def listener(messages: Sequence[MessageExt]) -> ConsumeStatus | None:
        (one,) = messages
        seen.append((one.body, one.reconsume_times))
        return ConsumeStatus.RECONSUME_LATER if one.body == b"1" and one.reconsume_times < 2 else None

    async with broker() as world:
        async with consumer(world, listener, is_ordered=True):
            await until(lambda: len(seen) == MESSAGES + 2)
        assert seen == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0), (b"3", 0)]
        assert not world.server.seen_of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert world.server.seen_of(RequestCode.UNLOCK_BATCH_MQ)


async def test_an_ordered_queue_whose_lock_is_another_members_is_not_taken() -> None:
    async with broker() as world:
        world.answers[RequestCode.LOCK_BATCH_MQ] = lambda request: request.answer(0, body=b"{}")
        async with consumer(world, lambda messages: None, is_ordered=True) as member:
            assert member.assigned == []
        assert not world.server.seen_of(RequestCode.PULL_MESSAGE)


async def test_a_lock_that_is_refused_is_believed_in_no_more() -> None:
    """The broker has given it to another member, who consumes."""
    seen: list[bytes] = []
    may_go_on, is_granted = asyncio.Event(), True

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(one.body for one in messages)
        await may_go_on.wait()

    def lock(request: RemotingCommand) -> RemotingCommand:
        locked = _queues(request) if is_granted else b"[]"
        return request.answer(0, body=b'{"lockOKMQSet":' + locked + b"}")

    async with broker() as world:
        world.answers[RequestCode.LOCK_BATCH_MQ] = lock

        async def renewed() -> None:
            # The second one is asked for when the answer to the first was read.
            before = len(world.server.seen_of(RequestCode.LOCK_BATCH_MQ))
            await until(lambda: len(world.server.seen_of(RequestCode.LOCK_BATCH_MQ)) >= before + 2)

        async with consumer(world, listener, is_ordered=True, lock_interval_s=0.01):
            await until(lambda: seen == [b"0"])
            is_granted = False
            await renewed()
            may_go_on.set()
            for _ in range(5):
                await renewed()
            assert seen == [b"0"]
            is_granted = True
            await until(lambda: len(seen) == MESSAGES)


async def test_a_lock_that_is_lost_while_all_threads_are_busy_is_believed_in_no_more() -> None:
    """A queue waits for its turn as long as the listener is at others: its lock may be another's by then."""
    seen: list[MessageQueue] = []
    may_go_on = asyncio.Event()

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(one.queue for one in messages)
        await may_go_on.wait()

    def lock(request: RemotingCommand) -> RemotingCommand:
        asked = json.loads(request.body)["mqSet"]
        granted = [one for one in asked if not seen or one["queueId"] == seen[0].queue_id]
        return request.answer(0, body=json.dumps({"lockOKMQSet": granted}).encode())

    async with broker() as world:
        world.answers[RequestCode.LOCK_BATCH_MQ] = lock
        two_queues(world)
        async with consumer(world, listener, is_ordered=True, threads=1, lock_interval_s=0.01) as member:
            await until(lambda: len(seen) == 1 and len(member._slots._waiters or ()) == 1)
            (other,) = (worker for queue, worker in member._workers.items() if queue != seen[0])
            await until(lambda: other.locked_at == NOT_LOCKED)
            may_go_on.set()
            await until(lambda: len(seen) >= MESSAGES)
            assert len(set(seen)) == 1


async def test_a_lock_that_a_broker_does_not_renew_is_believed_in_on() -> None:
    """Only for as long as it was granted: it may be given to nobody else meanwhile."""
    answers = 0

    def lock(request: RemotingCommand) -> RemotingCommand:
        nonlocal answers
        answers += 1
        if answers > 1:
            return request.answer(1)
        return request.answer(0, body=b'{"lockOKMQSet":' + _queues(request) + b"}")

    async with broker() as world:
        world.answers[RequestCode.LOCK_BATCH_MQ] = lock
        async with consumer(world, lambda messages: None, is_ordered=True, lock_interval_s=0.01) as member:
            (worker,) = member._workers.values()
            locked_at = worker.locked_at
            await until(lambda: answers > 3)
            assert worker.locked_at == locked_at and worker.is_locked


async def test_a_lock_that_was_being_renewed_while_its_queue_was_left_is_given_back() -> None:
    """Else no other member gets the queue before the lock is over."""
    is_asked, may_go_on = False, asyncio.Event()

    async with (
        broker() as world,
        consumer(world, lambda messages: None, is_ordered=True, lock_interval_s=0.01) as member,
    ):
        call = member._client.call

        async def slow(
            address: str, request: RemotingCommand, timeout_s: float | None = None
        ) -> RemotingCommand:
            nonlocal is_asked
            if request.code == RequestCode.LOCK_BATCH_MQ:
                is_asked = True
                await may_go_on.wait()
            return await call(address, request, timeout_s)

        member._client.call = slow  # type: ignore[method-assign]
        await until(lambda: is_asked)
        world.members = ["0", member.client_id]  # the first of two has the only queue
        notice = RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        world.server.connections[0].notify(notice)
        await until(lambda: len(world.server.seen_of(RequestCode.UNLOCK_BATCH_MQ)) == 1)
        may_go_on.set()
        await until(lambda: len(world.server.seen_of(RequestCode.UNLOCK_BATCH_MQ)) == 2)
        locks = (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
        asked = [request.code for request in world.server.seen if request.code in locks]
        assert asked[-3:] == [locks[1], *locks]


class Busy:
    """A listener on a thread, whose first call lasts until it may go on."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.may_go_on = threading.Event()
        self.most = self._running = 0

    def __call__(self, messages: Sequence[MessageExt]) -> None:
        self._running += 1
        self.most = max(self.most, self._running)
        self.seen.extend(one.body for one in messages)
        self.may_go_on.wait(60)
        self._running -= 1


async def test_a_queue_that_is_left_while_the_listener_is_at_it_keeps_its_lock() -> None:
    """Nothing ends a function on a thread: another member would consume beside it."""
    listener = Busy()
    async with broker() as world, consumer(world, listener, is_ordered=True) as member:
        await until(lambda: listener.seen == [b"0"])
        world.members = ["0", member.client_id]  # the first of two has the only queue
        notice = RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        world.server.connections[0].notify(notice)
        await until(lambda: member.assigned == [] and not member._balancing.locked())
        assert not world.server.seen_of(RequestCode.UNLOCK_BATCH_MQ)
        listener.may_go_on.set()
        await until(lambda: len(world.server.seen_of(RequestCode.UNLOCK_BATCH_MQ)) == 1)
        assert world.committed == {} and listener.seen == [b"0"]


async def test_a_queue_that_is_reset_while_the_listener_is_at_it_waits_for_it() -> None:
    listener = Busy()
    async with broker() as world, consumer(world, listener, is_ordered=True) as member:
        await until(lambda: listener.seen == [b"0"])
        (before,) = member._workers.values()
        world.server.connections[0].notify(
            RemotingCommand.oneway(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                {"group": "g", "topic": "t"},
                b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:2}}',
            )
        )
        await until(
            lambda: any(one is not before and one.state.has_waiting for one in member._workers.values())
        )
        for _ in range(10):
            await asyncio.sleep(0)
        listener.may_go_on.set()
        await until(lambda: len(listener.seen) == 3)
        assert listener.seen == [b"0", b"2", b"3"] and listener.most == 1
        assert not world.server.seen_of(RequestCode.UNLOCK_BATCH_MQ)


async def test_a_lock_is_believed_in_from_when_it_was_asked_for() -> None:
    """What comes between, as a look for the offset to begin at, may take as long as the lock lives."""
    loop, asked_at = asyncio.get_running_loop(), list[float]()

    def lock(request: RemotingCommand) -> RemotingCommand:
        asked_at.append(loop.time())
        return request.answer(0, body=b'{"lockOKMQSet":' + _queues(request) + b"}")

    async with broker() as world:
        world.answers[RequestCode.LOCK_BATCH_MQ] = lock
        async with consumer(world, lambda messages: None, is_ordered=True) as member:
            (worker,) = member._workers.values()
            assert worker.locked_at <= asked_at[0]


async def test_a_renewed_lock_is_believed_in_from_when_it_was_asked_for() -> None:
    loop, asked_at = asyncio.get_running_loop(), list[float]()

    def lock(request: RemotingCommand) -> RemotingCommand | None:
        asked_at.append(loop.time())
        if len(asked_at) > 2:
            return None
        return request.answer(0, body=b'{"lockOKMQSet":' + _queues(request) + b"}")

    async with broker() as world:
        world.answers[RequestCode.LOCK_BATCH_MQ] = lock
        async with consumer(world, lambda messages: None, is_ordered=True, lock_interval_s=0.01) as member:
            await until(lambda: len(asked_at) == 3)
            (worker,) = member._workers.values()
            assert asked_at[0] < worker.locked_at <= asked_at[1]


def half_stored(request: RemotingCommand) -> RemotingCommand:
    fields = {"msgId": format_offset_id(HOST, OFFSET), "queueId": "0", "queueOffset": "7"}
    return request.answer(0, fields=fields)


def never(message: MessageExt) -> LocalTransactionState:
    raise AssertionError("nobody asks")


@pytest.mark.parametrize(
    ("state", "type_of_end"),
    [(LocalTransactionState.COMMIT_MESSAGE, ["8"]), (LocalTransactionState.ROLLBACK_MESSAGE, ["12"])],
)
async def test_a_half_message_is_ended(state: LocalTransactionState, type_of_end: list[str]) -> None:
    async with broker() as world:
        world.answers[RequestCode.SEND_MESSAGE_V2] = half_stored
        async with TransactionProducer("p", world.server.server.address, never) as producer:
            result = await producer.send_in_transaction(Message("t", b"x"), lambda message: state)
        (half,) = world.server.seen_of(RequestCode.SEND_MESSAGE_V2)
        assert half.fields["f"] == "4" and "TRAN_MSG\x01true\x02PGROUP\x01p\x02" in half.fields["i"]
        ends = world.server.seen_of(RequestCode.END_TRANSACTION)
        assert [end.fields["commitOrRollback"] for end in ends] == type_of_end and result.is_ended
        assert (ends[0].fields["commitLogOffset"], ends[0].fields["tranStateTableOffset"]) == ("1000", "7")
        codes = [request.code for request in world.server.seen]
        assert codes.index(RequestCode.HEART_BEAT) < codes.index(RequestCode.SEND_MESSAGE_V2)


async def test_a_local_transaction_on_a_thread_has_the_context_of_its_caller() -> None:
    """Such as the request that a tracing library stores there."""
    traced: ContextVar[str] = ContextVar("traced", default="")
    seen: list[str] = []

    def execute(message: Message) -> LocalTransactionState:
        seen.append(traced.get())
        return LocalTransactionState.COMMIT_MESSAGE

    async with broker() as world:
        world.answers[RequestCode.SEND_MESSAGE_V2] = half_stored
        async with TransactionProducer("p", world.server.server.address, never) as producer:
            traced.set("a request")
            await producer.send_in_transaction(Message("t", b"x"), execute)
    assert seen == ["a request"]


async def test_a_local_transaction_that_raises_is_unknown() -> None:
    def execute(message: Message) -> LocalTransactionState:
        raise ValueError("no")

    async with broker() as world:
        world.answers[RequestCode.SEND_MESSAGE_V2] = half_stored
        async with TransactionProducer("p", world.server.server.address, never) as producer:
            result = await producer.send_in_transaction(Message("t", b"x"), execute)
        assert result.state is LocalTransactionState.UNKNOWN and not result.is_ended
        assert not world.server.seen_of(RequestCode.END_TRANSACTION)


async def test_a_transaction_that_has_run_is_told_of_whatever_the_broker_has_said() -> None:
    async with broker() as world:
        world.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.answer(
            0, fields={"msgId": "odd", "queueId": "0", "queueOffset": "7"}
        )
        async with TransactionProducer("p", world.server.server.address, never) as producer:
            state = LocalTransactionState.COMMIT_MESSAGE
            result = await producer.send_in_transaction(Message("t", b"x"), lambda message: state)
        assert result.state is state and not result.is_ended


async def test_a_half_message_whose_slave_is_late_is_rolled_back_without_the_transaction() -> None:
    def execute(message: Message) -> LocalTransactionState:
        raise AssertionError("it must not run")

    async with broker() as world:
        world.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: replace(half_stored(request), code=12)
        async with TransactionProducer("p", world.server.server.address, never) as producer:
            result = await producer.send_in_transaction(Message("t", b"x"), execute)
        assert result.state is LocalTransactionState.ROLLBACK_MESSAGE and result.is_ended


async def test_a_broker_that_asks_is_told() -> None:
    async def check(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE if message.body == b"x" else LocalTransactionState.UNKNOWN

    async with broker() as world:
        world.answers[RequestCode.SEND_MESSAGE_V2] = half_stored
        async with TransactionProducer("p", world.server.server.address, check) as producer:
            await producer.send_in_transaction(
                Message("t", b"x"), lambda message: LocalTransactionState.UNKNOWN
            )
            text = join_properties({"UNIQ_KEY": "K"})
            for body in (b"unknown", b"x"):
                half = bytes(record.encode(record.MessageRecord("t", body, text)))
                fields = {"tranStateTableOffset": "7", "commitLogOffset": "1000", "transactionId": "T"}
                asked = RemotingCommand.oneway(RequestCode.CHECK_TRANSACTION_STATE, fields, half)
                world.server.connections[0].notify(asked)
            await until(lambda: bool(world.server.seen_of(RequestCode.END_TRANSACTION)))
        (end,) = world.server.seen_of(RequestCode.END_TRANSACTION)
        assert (end.fields["commitOrRollback"], end.fields["fromTransactionCheck"]) == ("8", "true")
        assert (end.fields["msgId"], end.fields["transactionId"]) == ("K", "T")


@pytest.mark.parametrize(
    "delayed",
    [Message("t", b"x", delay_level=1), Message("t", b"x", properties={"TIMER_DELAY_MS": "5000"})],
    ids=["level", "timer"],
)
async def test_a_message_of_a_transaction_has_no_delay(delayed: Message) -> None:
    async with broker() as world, TransactionProducer("p", world.server.server.address, never) as producer:
        with pytest.raises(IllegalMessage):
            await producer.send_in_transaction(delayed, lambda message: LocalTransactionState.UNKNOWN)
