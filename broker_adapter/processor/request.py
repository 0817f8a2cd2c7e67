"""A request of the remoting protocol, as nodes hand it on to the master."""

from __future__ import annotations

from typing import Final

from broker_adapter.errors import BrokerError, ResponseCode
from broker_adapter.processor.fields import long_names
from broker_adapter.proxy.messages.request import Request
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import PREFIX, RemotingCommand, decode, encode
from dledger.platform import get_logger

_log = get_logger("processor")

#: The name of the method under which such requests travel between nodes.
REMOTING: Final = "Remoting"
_LENGTH_BYTES = PREFIX.size // 2
_SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2})
#: Done twice they change something: what stands behind no id.
_ONCE = frozenset(
    {
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    }
)
#: They wait for messages: with nobody to take these they end.
WAITING: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
    }
)
#: What POP would give, and to how many.
PEEKS: Final = (RequestCode.PEEK_MESSAGE, RequestCode.POLLING_INFO)
#: Beside pulls, what any node may answer that has what is asked for.
READS: Final = (
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
ADMIN_QUERIES: Final = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
)
_OF_ANY_NODE: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, *READS})
#: What is of no use when its caller has gone: it changes nothing, or waits for messages.
_END_WITH_CALLER: Final = WAITING | {*READS, *PEEKS, *ADMIN_QUERIES}
_HAS_UNIQ_KEY = "UNIQ_KEY\x01"


class RemotingRequest(Request):
    """The answer is the bytes of a frame, for this request and in its form."""

    __slots__ = ("command",)

    def __init__(self, command: RemotingCommand) -> None:
        self.name = REMOTING
        self.command = command

    def __len__(self) -> int:
        return len(self.command.body) + sum(len(n) + len(v) for n, v in self.command.fields.items())

    @property
    def appends(self) -> bool:
        return self.command.code in _SENDS

    @property
    def is_read(self) -> bool:
        return self.command.code in _OF_ANY_NODE

    @property
    def streams_answers(self) -> bool:
        return False

    @property
    def ends_with_caller(self) -> bool:
        return self.command.code in _END_WITH_CALLER

    @property
    def is_repeatable(self) -> bool:
        code, fields = self.command.code, self.command.fields
        if code in _SENDS:
            is_batch = (fields.get("m") or fields.get("batch")) in ("true", "1")
            return not is_batch and _HAS_UNIQ_KEY in (fields.get("i") or fields.get("properties") or "")
        return code not in _ONCE

    def encoded(self) -> bytes:
        return encode(self.command)[_LENGTH_BYTES:]

    def refused(self, error: Exception) -> bytes:
        if isinstance(error, BrokerError):
            return encode(self.command.answer(error.response_code, str(error)))
        _log.error("a request failed", code=self.command.code, exc_info=error)
        return encode(self.command.answer(ResponseCode.SYSTEM_ERROR, "a defect of the server: see its log"))

    @property
    def fields(self) -> dict[str, str]:
        """Under their long names."""
        return long_names(self.command)


def request_of(name: str, data: bytes) -> Request:
    """For `ForwardService`, of both protocols."""
    return RemotingRequest(decode(data)) if name == REMOTING else Request(name, data)
