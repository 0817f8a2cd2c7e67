"""What a message that comes back is stored as."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker_adapter.api import GroupConfig, OutgoingMessage, TopicConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4.pulls import with_reconsume_times
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.endpoints.v4.retries import Retries, SendBackProcessor
from broker_adapter.endpoints.v4.sends import outgoing
from broker_adapter.put.sender import Send
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.message import MessageRecord, decode, encode
from broker_adapter.wire.properties import join_properties, split_properties, text_of
from broker_adapter.wire.sys_flag import COMPRESSED, TRANSACTION_COMMIT

TRIED = {"UNIQ_KEY": "third", "ORIGIN_MESSAGE_ID": "first", "RETRY_TOPIC": "t", "RECONSUME_TIME": "2"}


class World:
    """A broker that has one message, and notes what is sent."""

    def __init__(self, topic: str, properties: dict[str, str], sys_flag: int = 0) -> None:
        message = MessageRecord(topic, b"x", join_properties(properties), sys_flag=sys_flag)
        self.record = bytes(encode(message))
        self.sent: list[tuple[str, OutgoingMessage, int]] = []
        self.config = GroupConfig("g")

    async def message_at(self, offset: int, remote: str = "") -> bytes:
        return self.record

    async def send_one(self, send: Send) -> None:
        self.sent.append((send.config.name, send.messages[0], -1))

    def now_ms(self) -> int:
        return 1_700_000_000_000

    async def send_delayed(self, topic: str, message: OutgoingMessage, *, level: int, **_: Any) -> None:
        self.sent.append((topic, message, level))

    async def back(self, **fields: object) -> tuple[str, OutgoingMessage, int]:
        async def make(*names: str) -> TopicConfig:
            return TopicConfig(names[0])

        retries = Retries(lambda group: self.config, lambda group: False, cast(Any, make), make)
        me = cast(Any, self)
        processor = SendBackProcessor(me, me, me, retries, lambda context, topic: None)
        told = {name: str(value) for name, value in ({"group": "g", "offset": 0} | fields).items()}
        request = RemotingRequest(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, told))
        await processor.send_back(request, CallContext("c", remote="10.0.0.1:5"))
        return self.sent[-1]


@pytest.mark.parametrize(
    ("topic", "properties", "asked", "level"),
    [
        ("t", {}, 0, 3),
        ("%RETRY%g", TRIED, 0, 5),
        ("%RETRY%g", TRIED, 7, 7),
        ("t", TRIED, 0, 3),
    ],
)
async def test_it_waits_longer_each_time(
    topic: str, properties: dict[str, str], asked: int, level: int
) -> None:
    assert (await World(topic, properties).back(delayLevel=asked))[::2] == ("%RETRY%g", level)


@pytest.mark.parametrize("asked", [1, -1])
async def test_it_has_the_id_and_the_topic_that_it_had_first(asked: int) -> None:
    topic, again, _ = await World("%RETRY%g", TRIED).back(delayLevel=asked)
    found = split_properties(text_of(again.properties))
    assert (found["ORIGIN_MESSAGE_ID"], found["RETRY_TOPIC"], found["RECONSUME_TIME"]) == ("first", "t", "3")
    assert (topic, found.get("DLQ_ORIGIN_MESSAGE_ID")) == (
        ("%RETRY%g", None) if asked > 0 else ("%DLQ%g", "first")
    )


@pytest.mark.parametrize(
    ("config", "fields", "times", "is_dead"),
    [
        (GroupConfig("g"), {}, 15, False),
        (GroupConfig("g"), {}, 16, True),
        (GroupConfig("g", retry_max_times=3), {}, 3, True),
        (GroupConfig("g", retry_max_times=3), {"maxReconsumeTimes": 16}, 3, False),
        (GroupConfig("g", retry_max_times=-1), {}, 1_000, False),
        (GroupConfig("g", retry_max_times=-1), {"maxReconsumeTimes": 2}, 2, True),
        (GroupConfig("g", retry_queues=0), {}, 0, True),
    ],
)
async def test_it_becomes_a_dead_letter_at_the_maximum(
    config: GroupConfig, fields: dict[str, int], times: int, is_dead: bool
) -> None:
    world = World("%RETRY%g", {**TRIED, "RECONSUME_TIME": str(times)})
    world.config = config
    topic, _, _ = await world.back(**fields)
    assert topic == ("%DLQ%g" if is_dead else "%RETRY%g")


async def test_one_of_a_transaction_is_no_half_any_more() -> None:
    _, again, _ = await World("t", {}, COMPRESSED | TRANSACTION_COMMIT).back(delayLevel=1)
    assert again.sys_flag == COMPRESSED


@pytest.mark.parametrize(("stored", "shown"), [(0, 2), (7, 7)])
def test_the_number_of_its_tries_is_that_of_the_broker_which_stored_it(stored: int, shown: int) -> None:
    """RocketMQ's has it in the record, and may have left the property as it was."""
    record = encode(MessageRecord("%RETRY%g", b"x", join_properties(TRIED), reconsume_times=stored))
    assert decode(with_reconsume_times(bytes(record))).reconsume_times == shown


@pytest.mark.parametrize(("topic", "shown"), [("t", 0), ("%RETRY%g", 3), ("%DLQ%g", 3)])
def test_a_forwarded_message_starts_with_no_tries_in_an_ordinary_topic(topic: str, shown: int) -> None:
    """A copy of a retried message still has the property. Ordered consumers count tries against a maximum."""
    record = encode(MessageRecord(topic, b"x", join_properties({**TRIED, "RECONSUME_TIME": "3"})))
    assert decode(with_reconsume_times(bytes(record))).reconsume_times == shown


@pytest.mark.parametrize(("header", "property_of_it"), [("", "3"), ("0", "3"), ("5", "5")])
def test_the_header_of_a_send_overrides_the_property(header: str, property_of_it: str) -> None:
    properties = join_properties({"RECONSUME_TIME": "3", "a": "b"})
    fields = {"topic": "%RETRY%g", "properties": properties, "reconsumeTimes": header}
    message = outgoing({name: value for name, value in fields.items() if value}, b"x", 100)
    assert dict(message.properties) == {"RECONSUME_TIME": property_of_it, "a": "b"}


@pytest.mark.parametrize(("length", "is_dead"), [(32_600, False), (32_690, True), (32_700, True)])
async def test_one_whose_properties_leave_no_room_for_a_retry_is_a_dead_letter(
    length: int, is_dead: bool
) -> None:
    """Its consumer would send it back for ever: all attempts would be refused."""
    own = {"UNIQ_KEY": "u", "X": "v" * length}
    topic, again, _ = await World("t", own).back(delayLevel=1)
    found = split_properties(text_of(again.properties))
    assert topic == ("%DLQ%g" if is_dead else "%RETRY%g")
    assert own.items() <= found.items() and len(text_of(again.properties)) <= 32_767
    assert length == 32_700 or found["RETRY_TOPIC"] == "t"
    _, dead, _ = await World("t", own).back(delayLevel=-1)
    assert len(text_of(dead.properties)) <= 32_767
