"""What clients may ask for at most: RocketMQ's bounds, and ours."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker_adapter.api import GetMessageResult, GetMessageStatus
from broker_adapter.delivery.api import ReceivedBatch
from broker_adapter.delivery_state.handles import receipt_handle
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4.access import read_check
from broker_adapter.endpoints.v4.pops import PeekProcessor, PopProcessor
from broker_adapter.endpoints.v4.pulls import SUSPEND, PullProcessor, ReadRules
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

CALLER = CallContext("c", remote="10.0.0.1:5")
QUEUE: dict[str, object] = {"consumerGroup": "g", "topic": "t", "queueId": 0}


class Noted:
    """The parts that processors ask: they note what of, and have nothing."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.batches: list[ReceivedBatch] = []
        self.closed = 0

    async def receive(self, group: str, topic: str, **asked: Any) -> ReceivedBatch:
        self.asked = asked
        # kept, so that only `close` can release it
        self.batches.append(ReceivedBatch((), self._close))
        return self.batches[-1]

    def _close(self) -> None:
        self.closed += 1

    def now_ms(self) -> int:
        return 0

    async def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        self.asked = {"invisible_ms": invisible_ms}
        return receipt_handle(topic, 0, 5, 9)

    async def wait_for_message(self, group: str, topic: str, **asked: Any) -> bool:
        self.asked = asked
        return False

    async def peek(self, group: str, topic: str, **asked: Any) -> list[Any]:
        self.asked = asked
        return []

    async def pull(self, topic: str, queue_id: int, offset: int, **asked: Any) -> GetMessageResult:
        self.asked = {"offset": offset, **asked}
        return GetMessageResult(GetMessageStatus.NO_NEW_MESSAGE, 0, 0, 0, [])


def request(code: RequestCode, **fields: object) -> RemotingRequest:
    found = {name: str(value) for name, value in (QUEUE | fields).items()}
    return RemotingRequest(RemotingCommand(code, found))


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ({"pollTime": 15_000}, {"wait_ms": 15_000}),
        ({"pollTime": 60_001}, {"wait_ms": 60_000}),
        ({"pollTime": -1}, {"wait_ms": 0}),
        ({"invisibleTime": 0}, {"invisible_ms": 1_000}),
        ({"invisibleTime": -5}, {"invisible_ms": 1_000}),
        ({"invisibleTime": 43_200_001}, {"invisible_ms": 43_200_000}),
        ({"maxMsgNums": 33}, {"max_messages": 32}),
        ({"maxMsgNums": 0}, {"max_messages": 1}),
        ({"attemptId": "a" * 300}, {"attempt_id": "a" * 255}),
    ],
)
async def test_of_a_pop(asked: dict[str, object], taken: dict[str, object]) -> None:
    noted = Noted()
    pops = PopProcessor(cast(Any, noted), cast(Any, noted), "broker-a")
    await pops.pop(request(RequestCode.POP_MESSAGE, **({"invisibleTime": 60_000} | asked)), CALLER)
    assert noted.asked | taken == noted.asked
    assert noted.closed == 1, "the memory of the batch is released"


@pytest.mark.parametrize(("asked_ms", "taken_ms"), [(0, 1_000), (5_000, 5_000), (1 << 40, 43_200_000)])
async def test_of_another_invisible_time(asked_ms: int, taken_ms: int) -> None:
    noted = Noted()
    pops = PopProcessor(cast(Any, noted), cast(Any, noted), "broker-a")
    fields = {"extraInfo": "9 0 0 0 0 broker-a 0 5", "offset": 5, "invisibleTime": asked_ms}
    answer = await pops.change_invisible(request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields), CALLER)
    assert noted.asked == {"invisible_ms": taken_ms} and answer.fields["invisibleTime"] == str(taken_ms)


@pytest.mark.parametrize(("asked", "taken"), [(-1, 0), (5, 5), (60_001, 60_000)])
async def test_of_a_wait_for_a_message(asked: int, taken: int) -> None:
    noted = Noted()
    await PeekProcessor(cast(Any, noted)).notify(request(RequestCode.NOTIFICATION, pollTime=asked), CALLER)
    assert noted.asked["wait_ms"] == taken


@pytest.mark.parametrize(("asked", "taken"), [(0, 1), (5, 5), (33, 32)])
async def test_of_a_peek(asked: int, taken: int) -> None:
    noted = Noted()
    await PeekProcessor(cast(Any, noted)).peek(request(RequestCode.PEEK_MESSAGE, maxMsgNums=asked), CALLER)
    assert noted.asked["max_messages"] == taken


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ({"sysFlag": SUSPEND, "suspendTimeoutMillis": 15_000}, {"wait_ms": 15_000}),
        ({"sysFlag": SUSPEND, "suspendTimeoutMillis": 60_001}, {"wait_ms": 60_000}),
        ({"sysFlag": 0, "suspendTimeoutMillis": 15_000}, {"wait_ms": 0}),
        ({"maxMsgNums": 1_025}, {"max_messages": 1_024}),
        ({"maxMsgNums": 0}, {"max_messages": 1}),
        ({"maxMsgBytes": 1 << 30}, {"max_bytes": 1 << 20}),
        ({"queueOffset": -7}, {"offset": 0}),
    ],
)
async def test_of_a_pull(asked: dict[str, object], taken: dict[str, object]) -> None:
    noted = Noted()
    rules = ReadRules(is_master=lambda: True, suggest=lambda physical: 0, check_read=read_check(None))
    pulls = PullProcessor(cast(Any, noted), rules)
    await pulls.pull(request(RequestCode.PULL_MESSAGE, **({"queueOffset": 0} | asked)), CALLER)
    assert noted.asked | taken == noted.asked
