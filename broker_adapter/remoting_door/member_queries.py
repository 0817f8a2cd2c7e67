"""What administrators ask one member of a group, through the node that it is connected to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker_adapter.errors import ResponseCode
from broker_adapter.format.message_id import parse_offset_id
from broker_adapter.processor.clients import Member, RemotingClients
from broker_adapter.processor.fields import text
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor, Processor

#: Administrators wait for 5 s.
_SAY_S = 4.0
#: As long as RocketMQ waits for a listener.
_CONSUME_S = 10.0
#: Asked at a time. Members take as long as they like: none of these wait in front of what nodes answer
#: themselves. Each message may be in memory twice, in the request and on its way to the member.
_MOST_ASKED, _MOST_GIVEN = 64, 16
_OF_STATE = ("consumerGroup", "clientId", "jstackEnable")
_OF_MESSAGE = ("consumerGroup", "clientId", "msgId", "topic", "topicSysFlag", "groupSysFlag")

#: The master's answer to a request of this connection.
Ask = Callable[[RemotingConnection, RemotingCommand], Awaitable[RemotingCommand]]


class MemberQueries:
    """`broker_name`: members name queues by it; `ask`: the master, for messages."""

    def __init__(self, clients: RemotingClients, broker_name: str, ask: Ask) -> None:
        self._clients = clients
        self._broker_name = broker_name
        self._ask = ask

    def register_with(self, dispatch: Dispatch, guarded: Callable[[Processor], Processor]) -> None:
        """`guarded`: for operators alone."""
        asked = Executor("member queries", _MOST_ASKED, 0, ends_with_connection=True)
        dispatch.register([RequestCode.GET_CONSUMER_RUNNING_INFO], self._running_info, asked)
        given = Executor("messages out of turn", _MOST_GIVEN, 0, ends_with_connection=True)
        consume = guarded(self._consume_directly)
        dispatch.register([RequestCode.CONSUME_MESSAGE_DIRECTLY], consume, given)

    async def _running_info(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """What the member says of itself. AnswerMissing (ANSWER_MISSING) if it says nothing in time."""
        member = self._member(request)
        return _not_online(request) if member is None else await _told(member, request, _OF_STATE, _SAY_S)

    async def _consume_directly(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """The member's listener is given a message once more, out of turn; offsets stay where they are.

        IllegalMessage (MESSAGE_ID_INVALID), AnswerMissing (ANSWER_MISSING).
        """
        offset = parse_offset_id(text(request.fields, "msgId")).physical_offset
        if (member := self._member(request)) is None:
            return _not_online(request)
        view = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {**request.fields, "offset": str(offset)})
        found = await self._ask(connection, view)
        if found.code != ResponseCode.SUCCESS:
            return request.answer(found.code, found.remark)
        more = {"brokerName": self._broker_name}
        return await _told(member, request, _OF_MESSAGE, _CONSUME_S, more, found.body)

    def _member(self, request: RemotingCommand) -> Member | None:
        group, client_id = text(request.fields, "consumerGroup"), text(request.fields, "clientId")
        return self._clients.consumers.get(group, {}).get(client_id)


def _not_online(request: RemotingCommand) -> RemotingCommand:
    group, client_id = request.fields["consumerGroup"], request.fields["clientId"]
    return request.answer(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")


async def _told(
    member: Member,
    request: RemotingCommand,
    names: tuple[str, ...],
    timeout_s: float,
    more: dict[str, str] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    """The member's answer is the answer."""
    fields = {name: request.fields[name] for name in names if name in request.fields} | (more or {})
    told = await member.connection.invoke(RemotingCommand(request.code, fields, body=body), timeout_s)
    return request.answer(told.code, told.remark, fields=told.fields, body=told.body)
