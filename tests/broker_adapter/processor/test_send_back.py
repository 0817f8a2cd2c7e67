"""What a message that comes back is stored as."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker_adapter.api import OutgoingMessage
from broker_adapter.format.message import Message, decode, encode
from broker_adapter.format.properties import join_properties, split_properties, text_of
from broker_adapter.format.sys_flag import COMPRESSED, TRANSACTION_COMMIT
from broker_adapter.processor.pulls import with_reconsume_times
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.processor.send_back import SendBackProcessor
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

TRIED = {"UNIQ_KEY": "third", "ORIGIN_MESSAGE_ID": "first", "RETRY_TOPIC": "t", "RECONSUME_TIME": "2"}


class World:
    """A broker that has one message, and notes what is sent."""

    def __init__(self, topic: str, properties: dict[str, str], sys_flag: int = 0) -> None:
        message = Message(topic, b"x", join_properties(properties), sys_flag=sys_flag)
        self.record = bytes(encode(message))
        self.sent: list[tuple[str, OutgoingMessage, int]] = []

    async def message_at(self, offset: int, remote: str = "") -> bytes:
        return self.record

    async def send(self, topic: str, message: OutgoingMessage, **_: Any) -> None:
        self.sent.append((topic, message, -1))

    async def send_delayed(self, topic: str, message: OutgoingMessage, *, level: int, **_: Any) -> None:
        self.sent.append((topic, message, level))

    async def back(self, **fields: object) -> tuple[str, OutgoingMessage, int]:
        async def make(*_: str) -> None: ...

        processor = SendBackProcessor(
            cast(Any, self), cast(Any, self), make, make, lambda group: 16, lambda context, topic: None
        )
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


async def test_one_of_a_transaction_is_no_half_any_more() -> None:
    _, again, _ = await World("t", {}, COMPRESSED | TRANSACTION_COMMIT).back(delayLevel=1)
    assert again.sys_flag == COMPRESSED


@pytest.mark.parametrize(("stored", "shown"), [(0, 2), (7, 7)])
def test_the_number_of_its_tries_is_that_of_the_broker_which_stored_it(stored: int, shown: int) -> None:
    """RocketMQ's has it in the record, and may have left the property as it was."""
    record = encode(Message("%RETRY%g", b"x", join_properties(TRIED), reconsume_times=stored))
    assert decode(with_reconsume_times(bytes(record))).reconsume_times == shown
