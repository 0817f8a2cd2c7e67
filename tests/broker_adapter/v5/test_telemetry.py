"""The conversation with a client: settings, what is told again, and who is asked about transactions."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from broker_adapter.api import GroupConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5 import front
from broker_adapter.endpoints.v5.clients import ClientInfo, ClientStreams
from broker_adapter.endpoints.v5.connected import ConnectedClients
from broker_adapter.endpoints.v5.messages.client_settings import SettingsLimits
from broker_adapter.endpoints.v5.telemetry import TelemetryStream
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from tests.broker_adapter.namesrv.helpers import until
from tests.broker_adapter.v5.memory_delivery import MemoryDelivery
from tests.broker_adapter.v5.world import HEADERS, QUICK, message, resource, world


def producer(*topics: str) -> calls.TelemetryCommand:
    publishing = pb.Publishing(topics=map(resource, topics))
    settings = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing)
    return calls.TelemetryCommand(settings=settings)


def consumer(group: str = "g") -> calls.TelemetryCommand:
    subscription = pb.Subscription(group=resource(group))
    settings = pb.Settings(client_type=pb.ClientType.PUSH_CONSUMER, subscription=subscription)
    return calls.TelemetryCommand(settings=settings)


class Talk:
    """A conversation without a network; `timers` are what is to be done later."""

    def __init__(
        self,
        streams: ClientStreams,
        client_id: str = "c",
        language: str = "JAVA",
        remote: str = "",
        account: str = "",
    ) -> None:
        self.timers: list[tuple[float, Any]] = []
        self.wakes = 0
        self.delivery = MemoryDelivery()
        self.conversation = TelemetryStream(
            CallContext(client_id, language=language, namespace="", remote=remote, account=account),
            streams,
            self.delivery,
            SettingsLimits(1_000, 20_000),
            later=lambda seconds, call: self.timers.append((seconds, call)),
            wake=self._woken,
        )

    def _woken(self) -> None:
        self.wakes += 1

    def told(self) -> list[calls.TelemetryCommand]:
        return list(iter(self.conversation.next_to_write, None))


COMMAND = calls.TelemetryCommand(print_thread_stack_trace_command={"nonce": "n"})


def test_settings_are_answered_with_a_status() -> None:
    """Quirk: Python takes no answer without one."""
    talk = Talk(ClientStreams(9))
    talk.conversation.heard(producer("t"))
    (answer,) = talk.told()
    assert answer.status.code == Code.OK
    assert answer.settings.publishing.max_body_size == 1_000
    assert talk.wakes == 1 and not talk.timers


def settings_of(size: int) -> calls.TelemetryCommand:
    """A command of so many bytes, or a few less."""
    found = producer("t")
    found.settings.user_agent.hostname = "h" * (size - found.ByteSize() - 16)
    return found


def test_settings_that_are_too_large_are_refused() -> None:
    streams = ClientStreams(9)
    talk = Talk(streams)
    talk.conversation.heard(settings_of((64 << 10) + 100))
    (answer,) = talk.told()
    assert answer.status.code == Code.PAYLOAD_TOO_LARGE
    assert streams.settings_room.used == 0 and streams.infos("c") == [ClientInfo()]


def test_settings_of_one_address_leave_room_for_those_of_others() -> None:
    streams = ClientStreams(5_000, settings_bytes=1 << 20)

    def kept(address: str) -> int:
        """Clients whose settings are taken."""
        talks = [Talk(streams, f"{address}-{n}", remote=f"{address}:{n + 1}") for n in range(100)]
        for talk in talks:
            talk.conversation.heard(settings_of(60 << 10))
        return sum(answer.status.code == Code.OK for talk in talks for answer in talk.told())

    assert kept("10.0.0.1") == 12
    assert kept("10.0.0.2") == 3
    good = Talk(streams, "good", remote="10.0.0.3:1")
    good.conversation.heard(settings_of(4 << 10))
    assert good.told()[0].status.code == Code.OK
    assert streams.settings_room.used <= 1 << 20


def test_commands_that_wait_for_clients_of_one_address_leave_room_for_those_of_others() -> None:
    streams = ClientStreams(999, commands_bytes=1 << 20)
    asked = calls.TelemetryCommand()
    asked.recover_orphaned_transaction_command.message.body = bytes(100 << 10)

    talks = [Talk(streams, f"c{n}", remote=f"10.0.0.1:{n + 1}") for n in range(50)]
    assert sum(talk.conversation.queue_command(asked) for talk in talks) == 7
    good = Talk(streams, "good", remote="10.0.0.2:1")
    assert good.conversation.queue_command(asked)
    assert good.told() == [asked]
    (first,) = [talk for talk in talks if talk.conversation.next_to_write() is not None][:1]
    assert not talks[-1].conversation.queue_command(asked), "what is being written takes room still"
    first.told()
    assert talks[-1].conversation.queue_command(asked)
    for talk in talks[:25]:
        talk.told()
    for talk in talks[25:]:
        talk.conversation.close()
    assert streams.commands_room.used == 0


def test_settings_that_are_replaced_or_gone_take_no_room() -> None:
    streams = ClientStreams(9, settings_bytes=200 << 10)
    talk = Talk(streams)
    for _ in range(20):
        talk.conversation.heard(settings_of(60 << 10))
    assert all(answer.status.code == Code.OK for answer in talk.told())
    assert 59 << 10 < streams.settings_room.used <= 60 << 10
    talk.conversation.heard(producer("not a name!"))  # the old ones stay, and their room
    assert talk.told()[-1].status.code == Code.ILLEGAL_TOPIC
    assert streams.settings_room.used > 59 << 10
    talk.conversation.close()
    talk.conversation.close()
    assert streams.settings_room.used == 0


async def test_a_change_of_a_group_is_told_to_its_consumers() -> None:
    streams = ClientStreams(9)
    talk, other = Talk(streams), Talk(streams, "other")
    talk.delivery.groups["g"] = GroupConfig("g", retry_max_times=2)
    talk.conversation.heard(consumer())
    other.conversation.heard(consumer("another"))
    talk.told(), other.told()
    streams.group_changed("g")
    assert not talk.told(), "nothing is new"
    talk.delivery.groups["g"] = GroupConfig("g", retry_max_times=5, consume_orderly=True)
    streams.group_changed("g")
    (told,) = talk.told()
    assert told.status.code == Code.OK
    assert told.settings.backoff_policy.max_attempts == 6 and told.settings.subscription.fifo
    assert not other.told()


async def test_a_repeated_answer_is_the_newest_one() -> None:
    """Quirk: Node.js may not listen yet when its settings are answered."""
    streams = ClientStreams(9)
    talk = Talk(streams, language="NODE_JS")
    talk.conversation.heard(consumer())
    talk.delivery.groups["g"] = GroupConfig("g", retry_max_times=5)
    streams.group_changed("g")
    talk.told()
    ((_, repeat),) = talk.timers
    repeat()
    assert [one.settings.backoff_policy.max_attempts for one in talk.told()] == [6]


def test_a_group_that_the_server_knows_decides() -> None:
    talk = Talk(ClientStreams(9))
    talk.delivery.groups["g"] = GroupConfig("g", retry_max_times=2)
    talk.conversation.heard(consumer())
    assert talk.told()[0].settings.backoff_policy.max_attempts == 3


def test_node_js_is_told_its_settings_again() -> None:
    """Quirk: with several topics it may not listen yet when the first answer comes."""
    talk = Talk(ClientStreams(9), language="NODE_JS")
    talk.conversation.heard(producer("t", "u"))
    (first,) = talk.told()
    ((seconds, call),) = talk.timers
    call()
    assert talk.told() == [first] and seconds == 1.0
    talk.conversation.close()
    call()
    assert talk.told() == []


def test_settings_that_are_wrong_are_answered_with_the_reason() -> None:
    talk = Talk(ClientStreams(9))
    talk.conversation.heard(calls.TelemetryCommand(settings=pb.Settings()))
    talk.conversation.heard(producer("no such name"))
    codes = [answer.status.code for answer in talk.told()]
    assert codes == [Code.UNRECOGNIZED_CLIENT_TYPE, Code.ILLEGAL_TOPIC]


def test_answers_of_clients_are_passed_over() -> None:
    talk = Talk(ClientStreams(9))
    talk.conversation.heard(calls.TelemetryCommand(thread_stack_trace={"nonce": "n"}))
    assert talk.told() == []


def test_a_client_that_does_not_read_is_not_waited_for() -> None:
    streams = ClientStreams(9)
    talk = Talk(streams)
    told = [streams.send_command("c", COMMAND) for _ in range(100)]
    assert told == [True] * 64 + [False] * 36
    assert len(talk.told()) == 64


def test_large_commands_that_wait_for_a_client_are_bounded_in_bytes() -> None:
    streams = ClientStreams(9)
    talk = Talk(streams)
    large = calls.TelemetryCommand()
    large.recover_orphaned_transaction_command.message.body = bytes(3 << 20)
    assert [streams.send_command("c", large) for _ in range(4)] == [True, True, False, False]
    assert len(talk.told()) == 2
    assert streams.send_command("c", large)


def test_a_client_that_only_writes_is_not_remembered_without_a_bound() -> None:
    talk = Talk(ClientStreams(9), language="NODE_JS")
    talk.conversation.heard(producer(*(f"topic-{i}".ljust(120, "x") for i in range(9_999))))
    assert [answer.status.code for answer in talk.told()] == [Code.PAYLOAD_TOO_LARGE]
    for i in range(100):
        talk.conversation.heard(producer(*(f"topic-{i}-{n}".ljust(120, "x") for n in range(256))))
        for _, repeat in talk.timers:
            repeat()
    (newest,) = {id(answer): answer for answer in talk.told()}.values()
    assert newest.settings.publishing.topics[0].name.startswith("topic-99-0x")


def test_the_number_of_streams_is_bounded() -> None:
    streams = ClientStreams(2)
    first, _ = Talk(streams, "a"), Talk(streams, "a")
    with pytest.raises(Rejected) as caught:
        Talk(streams, "b")
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    first.conversation.close()
    first.conversation.close()
    assert len(streams) == 1
    Talk(streams, "b")


def test_the_newest_stream_of_a_client_is_told() -> None:
    streams = ClientStreams(9)
    old, new = Talk(streams), Talk(streams)
    assert streams.send_command("c", COMMAND) and (len(old.told()), len(new.told())) == (0, 1)
    new.conversation.close()
    assert streams.send_command("c", COMMAND) and len(old.told()) == 1
    old.conversation.close()
    assert not streams.send_command("c", COMMAND)


def test_the_producer_itself_is_asked_first_and_then_others_in_turns() -> None:
    streams = ClientStreams(9)
    talks = {name: Talk(streams, name) for name in ("a", "b", "x")}
    for name in ("a", "b"):
        talks[name].conversation.heard(producer("t"))
        talks[name].told()
    talks["x"].conversation.heard(producer("other"))
    talks["x"].told()

    def asked(client_id: str) -> list[str]:
        assert ConnectedClients(streams, lambda: 0.0).send_to_producer("t", client_id, COMMAND)
        return [name for name, talk in talks.items() if talk.told()]

    assert asked("x") == ["x"]  # it has sent to it, whatever its settings say
    assert [asked("gone") for _ in range(4)] == [["a"], ["b"], ["a"], ["b"]]
    talks["a"].conversation.close()
    assert [asked("gone") for _ in range(2)] == [["b"], ["b"]]
    talks["b"].conversation.heard(producer("other"))
    talks["b"].told()
    assert not ConnectedClients(streams, lambda: 0.0).send_to_producer("t", "gone", COMMAND)


def test_what_a_stream_says_is_said_for_no_other_one_with_its_client_id() -> None:
    """Two accounts may have the same client id; neither speaks for the other."""
    streams = ClientStreams(9)
    changed: list[str] = []
    streams.on_change = changed.append
    one = Talk(streams, "p", account="owner")
    one.conversation.heard(producer("t"))
    two = Talk(streams, "p", account="stranger")
    two.conversation.heard(consumer("g"))
    changed.clear()
    one.told(), two.told()
    assert {info.account: info.topics for info in streams.infos("p")} == {
        "owner": frozenset({"t"}),
        "stranger": frozenset(),
    }
    assert streams.send_to_any_producer("t", COMMAND) and len(one.told()) == 1
    two.conversation.close()
    assert [info.account for info in streams.infos("p")] == ["owner"] and changed == ["p"]
    assert streams.send_to_any_producer("t", COMMAND) and len(one.told()) == 1
    one.conversation.close()
    assert not streams.send_to_any_producer("t", COMMAND) and not streams._producers


async def test_an_orphaned_transaction_is_asked_of_its_producer() -> None:
    async with world() as w:
        w.delivery.check_after_ms = 50
        stream = w.telemetry()
        await stream.write(producer("t"))
        assert (await stream.read()).HasField("settings")
        sent = await w.send(message(b"half", message_type=pb.MessageType.TRANSACTION))
        command = (await stream.read()).recover_orphaned_transaction_command
        assert command.transaction_id == sent.entries[0].transaction_id
        assert (command.message.body, command.message.topic.name) == (b"half", "t")
        system = command.message.system_properties
        assert system.message_type == pb.MessageType.TRANSACTION
        assert system.body_digest.checksum and system.body_encoding == pb.Encoding.IDENTITY
        await stream.done_writing()


async def test_the_stream_ends_when_the_client_has_said_all() -> None:
    async with world() as w:
        stream = w.telemetry()
        await stream.write(producer("t"))
        await stream.done_writing()
        assert [command.WhichOneof("command") async for command in stream] == ["settings"]
        await until(lambda: not len(w.service.clients))


async def test_what_is_too_large_for_a_command_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MiB of the smallest fields that there are take long. The conversation goes on."""
    read: list[int] = []
    parse = front._parse_command

    def note(data: bytes) -> calls.TelemetryCommand | None:
        read.append(len(data))
        return parse(data)

    monkeypatch.setattr(front, "_parse_command", note)
    async with world() as w:
        stream = w.telemetry()
        await stream.write(
            calls.TelemetryCommand(
                settings=pb.Settings(publishing=pb.Publishing(topics=[pb.Resource()] * 200_000))
            )
        )
        assert (await stream.read()).status.code == Code.PAYLOAD_TOO_LARGE
        await stream.write(producer("t"))
        assert (await stream.read()).HasField("settings")
        assert len(read) == 1
        stream.cancel()


async def test_a_stream_that_breaks_is_forgotten() -> None:
    async with world() as w:
        stream = w.telemetry()
        await stream.write(producer("t"))
        await stream.read()
        assert len(w.service.clients) == 1
        stream.cancel()
        await until(lambda: not len(w.service.clients))


async def test_streams_end_when_the_service_stops() -> None:
    async with world() as w:
        stream = w.telemetry()
        await stream.write(producer("t"))
        await stream.read()
        w.service.stop()
        assert await stream.read() is grpc.aio.EOF
        assert [c.status.code async for c in w.telemetry()] == [Code.HA_NOT_AVAILABLE]


async def test_one_client_too_many_is_told_so() -> None:
    async with world(QUICK.model_copy(update={"max_clients": 1})) as w:
        stream = w.telemetry()
        await stream.write(producer("t"))
        await stream.read()
        refused = [c.status.code async for c in w.telemetry({**HEADERS, "x-mq-client-id": "2"})]
        assert refused == [Code.TOO_MANY_REQUESTS]


async def test_without_a_client_id_there_is_no_conversation() -> None:
    async with world() as w:
        assert [c.status.code async for c in w.telemetry({})] == [Code.CLIENT_ID_REQUIRED]


def test_one_address_leaves_streams_to_others() -> None:
    streams = ClientStreams(16)

    def open_all(address: str) -> list[Talk]:
        found = []
        for number in range(20):
            try:
                found.append(Talk(streams, client_id=f"{address}-{number}", remote=f"{address}:{number}"))
            except Rejected:
                break
        return found

    first, second = open_all("10.0.0.1"), open_all("10.0.0.2")
    assert (len(first), len(second)) == (12, 3)
    assert len(open_all("")) == 1, "an address that is not known has no share"
    for talk in first:
        talk.conversation.close()
    assert len(open_all("10.0.0.1")) == 9
