"""What a node that is no master answers to consumers, with and without a master."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import pytest

from broker_adapter.api import BrokerApi, GetMessageResult, GetMessageStatus
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4.access import read_check
from broker_adapter.endpoints.v4.pulls import PullProcessor, ReadRules
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.endpoints.v4.requests import ROWS
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.message import MessageRecord, decode_all, encode
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.v4.asker import LISTEN, asking
from tests.node.local import until


async def test_a_slave_gives_committed_messages_without_a_majority(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2, LISTEN) as cluster:
        master = await cluster.master()
        other = next(program for program in cluster.programs.values() if program is not master)
        async with asking(other.remoting.address) as asker:
            await asker.send("t", b"one", 0)
            await until(lambda: other.files.next_offsets().get(("t", 0)) == 1)
            await cluster.stop(master.config.node_id)
            answer = await asker.ask(
                RequestCode.PULL_MESSAGE,
                consumerGroup="g",
                topic="t",
                queueId=0,
                queueOffset=0,
                maxMsgNums=32,
                sysFlag=4,
                subscription="*",
            )
            assert answer.code == ResponseCode.SUCCESS
            assert [message.body for message in decode_all(answer.body)] == [b"one"]


def test_a_slave_answers_itself_only_what_changes_nothing() -> None:
    """A pop that it answered would be refused there: only the log of the master gives messages out."""
    own = {code for code, row in ROWS.items() if row.kind.is_read}
    assert own == {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    }


T = TypeVar("T")


class Queue:
    """Answers each pull with this."""

    def __init__(self, result: GetMessageResult) -> None:
        self.result = result
        self.remotes: list[str] = []

    async def pull(self, *_: object, remote: str = "", **__: object) -> GetMessageResult:
        self.remotes.append(remote)
        return self.result

    async def filter(self, work: Callable[[], T], remote: str) -> T:
        self.remotes.append(remote)
        return work()


async def test_reads_and_filters_take_the_turns_of_the_client() -> None:
    queue = Queue(
        GetMessageResult(
            GetMessageStatus.FOUND, 1, 0, 9, [bytes(encode(MessageRecord("t", b"body", "n\x012")))]
        )
    )
    rules = ReadRules(lambda: True, lambda physical_offset: 0, read_check(None))
    processor = PullProcessor(cast(BrokerApi, queue), rules)
    fields = {"topic": "t", "queueId": "0", "queueOffset": "0", "consumerGroup": "g", "sysFlag": "4"}
    fields |= {"subscription": "n > 1", "expressionType": "SQL92"}
    request = RemotingRequest(RemotingCommand(RequestCode.PULL_MESSAGE, fields))
    told = await processor.pull(request, CallContext("c", remote="10.0.0.1:2"))
    assert [message.body for message in decode_all(told.body)] == [b"body"]
    assert queue.remotes == ["10.0.0.1:2"] * 2


async def pulled(
    result: GetMessageResult, offset: int, *, is_master: bool, suggested: int = 0
) -> RemotingCommand:
    rules = ReadRules(lambda: is_master, lambda physical_offset: suggested, read_check(None))
    processor = PullProcessor(cast(BrokerApi, Queue(result)), rules)
    fields = {"topic": "t", "queueId": "0", "queueOffset": str(offset), "consumerGroup": "g", "sysFlag": "4"}
    request = RemotingRequest(RemotingCommand(RequestCode.PULL_MESSAGE, fields))
    return await processor.pull(request, CallContext("c"))


@pytest.mark.parametrize(("offset", "nearest"), [(3, 5), (20, 9)])
async def test_only_a_master_says_where_a_queue_begins_and_ends(offset: int, nearest: int) -> None:
    """A slave may lack what the consumer has had, or begin later than its master."""
    illegal = GetMessageResult(GetMessageStatus.OFFSET_ILLEGAL, nearest, 5, 9)
    told = await pulled(illegal, offset, is_master=True)
    assert (told.code, told.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(nearest))
    told = await pulled(illegal, offset, is_master=False)
    assert (told.code, told.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, str(offset))
    assert told.fields["suggestWhichBrokerId"] == "0"


async def test_consumers_are_sent_where_the_rule_says() -> None:
    record = bytes(encode(MessageRecord("t", b"body", "", physical_offset=77)))
    found = GetMessageResult(GetMessageStatus.FOUND, 1, 0, 9, [record])
    told = await pulled(found, 0, is_master=True, suggested=1)
    assert (told.code, told.fields["suggestWhichBrokerId"]) == (ResponseCode.SUCCESS, "1")


async def test_where_a_consumer_goes_on_depends_on_its_last_message() -> None:
    """How far behind it is then."""
    records = [bytes(encode(MessageRecord("t", b"body", "", physical_offset=at))) for at in (7, 77)]
    asked: list[int] = []

    def suggest(physical_offset: int) -> int:
        asked.append(physical_offset)
        return 0

    queue = Queue(GetMessageResult(GetMessageStatus.FOUND, 2, 0, 9, records))
    processor = PullProcessor(cast(BrokerApi, queue), ReadRules(lambda: True, suggest, read_check(None)))
    fields = {"topic": "t", "queueId": "0", "queueOffset": "0", "consumerGroup": "g", "sysFlag": "4"}
    await processor.pull(RemotingRequest(RemotingCommand(RequestCode.PULL_MESSAGE, fields)), CallContext("c"))
    assert asked == [77]
