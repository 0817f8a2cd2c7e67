"""Routes remoting requests from the node that receives them to the handlers on the master.

The master may be another node (`broker_adapter.endpoints.forwarding`) or this node. The module `node`
contains the requests that a node answers without the master.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from broker_adapter.api import GroupConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.lists.calls import ListedCall
from broker_adapter.endpoints.lists.send_list import NodeSends
from broker_adapter.endpoints.rejected import ELSEWHERE, Rejected
from broker_adapter.endpoints.v4.admin import AdminProcessor, ImportProcessor
from broker_adapter.endpoints.v4.client_outcomes import ClientOutcomes
from broker_adapter.endpoints.v4.clients import RemotingClients
from broker_adapter.endpoints.v4.locks import LockProcessor
from broker_adapter.endpoints.v4.offsets import OffsetProcessor
from broker_adapter.endpoints.v4.pops import PeekProcessor, PopProcessor
from broker_adapter.endpoints.v4.pulls import SUBSCRIPTION, SUSPEND, PullProcessor
from broker_adapter.endpoints.v4.recalls import RecallProcessor
from broker_adapter.endpoints.v4.replies import ReplyProcessor
from broker_adapter.endpoints.v4.request import CHANGE, RemotingRequest, RequestKind, flag, number, text
from broker_adapter.endpoints.v4.retries import SendBackProcessor
from broker_adapter.endpoints.v4.sends import SendProcessor
from broker_adapter.endpoints.v4.transactions import TransactionProcessor
from broker_adapter.endpoints.v5.calls.handlers import Answering
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, ResponseCode, Status, error_for
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand, decode, encode
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import RequestList
from broker_adapter.remoting.signing import ACCESS_KEY

Handler: TypeAlias = Callable[[RemotingRequest, CallContext], Awaitable[RemotingCommand]]
#: The field that marks a request received on the send-only port of a member.
SEND_ONLY_PORT: Final = "sendOnlyPort"
#: The field that marks the response to such a request if the request was not executed again.
REPEATED: Final = "repeated"
_KEPT_S = 60.0
_MAX_KEPT = 256

#: Called with group and client id of a consumer.
MemberLeft: TypeAlias = Callable[[str, str], Awaitable[None]]
_RESET_FIELDS = ("topic", "group", "timestamp", "isForce")
_Key: TypeAlias = tuple[int, tuple[tuple[str, str], ...], bytes]


class NodeClients(NamedTuple):
    """The clients that are connected to this node.

    `member_left(group, client id)` is called when a consumer that unregisters has no other connection to this
    node.
    """

    table: RemotingClients
    replies: ReplyProcessor
    member_left: MemberLeft


class Forwarding:
    """Forwards requests to the master, which may be this node."""

    def __init__(
        self,
        answering: Answering,
        clients: NodeClients,
        directory: Directory,
        kinds: Mapping[int, RequestKind],
        *,
        knows_accounts: bool,
        sends: NodeSends,
    ) -> None:
        """`kinds`: the kinds of requests by code, from the table of request codes.

        `knows_accounts`: True if requests are signed and their signatures have been checked.
        """
        self._answering = answering
        self._clients = clients.table
        self._replies = clients.replies
        self._directory = directory
        self._kinds = kinds
        self._knows_accounts = knows_accounts
        self._sends = sends

    async def pass_on(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Forward a request to the master, which may be this node. Write the response to the client."""
        answer = await self._forward(connection, request)
        if not request.is_oneway:
            connection.send_encoded(answer)

    async def store_together(self, connection: RemotingConnection, listed: RequestList) -> None:
        """Store the sends of a list if this node is the master. Otherwise forward them together."""
        requests = [self._request_of(command) for command in listed.requests]
        if not requests:
            return
        shared = self._context(connection, requests[0])
        sends: list[ListedCall] = []
        for request in requests:
            account = self.account_of(request.command)
            context = shared if account == shared.account else shared._replace(account=account)
            sends.append(ListedCall(request, context))
        await self._sends.process(sends, ClientOutcomes(listed, sends, self._answer))

    async def call_master(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Forward a request and return the master's response. Raises the BrokerErrors of `Answering`."""
        return decode(memoryview(await self._forward(connection, request))[4:])

    async def _forward(self, connection: RemotingConnection, command: RemotingCommand) -> bytes:
        request = self._request_of(command)
        return await self._answer(request, self._context(connection, request))

    async def _answer(self, request: Request, context: CallContext) -> bytes:
        try:
            return await self._answering.unary(request, context)
        except Rejected as error:  # raised by the forwarding layer, which uses the codes of RocketMQ 5
            raise error_for(Status.BODY_TOO_LARGE, error.message) from None

    async def reply(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand | None:
        """Send a reply to the waiting client if it is connected to this node. Otherwise forward the reply to
        the master.

        Most clients connect to every node, but a client may not have connected to this node yet.
        """
        wanted = self._request_of(request)
        if self._replies.knows(wanted):
            return await self._replies.reply(wanted, self._context(connection, wanted))
        await self.pass_on(connection, request)
        return None

    async def pull(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand | None:
        """Forward a pull. If the request has no subscription, add the newest one of the client.

        A heartbeat may change the subscription during a long poll. The poll then continues with the new
        expression; with the old one, it would skip messages to which the client has subscribed in the
        meantime.
        """
        fields = request.fields
        sys_flag = number(fields, "sysFlag", 0)
        if sys_flag & SUBSCRIPTION:
            await self.pass_on(connection, request)
            return None
        group, topic = text(fields, "consumerGroup"), text(fields, "topic")
        version = number(fields, "subVersion", 0)
        answer, used = b"", None
        while (found := self._clients.subscription(connection, group, topic)) is None or found != used:
            if found is None:
                problem = f"the consumer's group info not exist: {group}, {topic}"
                return request.answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, problem)
            if self._clients.is_broadcasting(connection, group) and not self._may_broadcast(group):
                problem = f"the consumer group[{group}] can not consume by broadcast way"
                return request.answer(ResponseCode.NO_PERMISSION, problem)
            if found.version < version:
                problem = f"the consumer's subscription not latest: {group}, {topic}"
                return request.answer(ResponseCode.SUBSCRIPTION_NOT_LATEST, problem)
            wanted = {
                "subscription": found.expression,
                "expressionType": "SQL92" if found.is_sql else "TAG",
                "sysFlag": str(sys_flag if used is None else sys_flag & ~SUSPEND),
            }
            full = replace(request, fields={**fields, **wanted})
            answer, used = await self._forward(connection, full), found
        if not request.is_oneway:
            connection.send_encoded(answer)
        return None

    async def reset(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Reset a group's offsets.

        The master sets the offsets, and members continue at them with their next pull (`ResetBarriers`).
        Broadcasting members store their own offsets. They are all connected to this node, which sends the new
        offsets to them.
        """
        data = await self._forward(connection, request)
        answer = decode(memoryview(data)[4:])
        if answer.code == ResponseCode.SUCCESS and REPEATED not in answer.fields:
            fields = {name: request.fields.get(name, "") for name in _RESET_FIELDS}
            # The response shows that the other fields are valid. This field may contain any text.
            fields["isForce"] = str(flag(request.fields, "isForce", default=True)).lower()
            command = RemotingCommand.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, answer.body)
            self._clients.notify_group(fields["group"], command, lambda member: member.is_broadcasting)
        connection.send_encoded(data)

    def account_of(self, request: RemotingCommand) -> str:
        """Return the access key of the account that signed the request, or "" if there is no access
        control.
        """
        return request.fields.get(ACCESS_KEY, "") if self._knows_accounts else ""

    def _request_of(self, command: RemotingCommand) -> RemotingRequest:
        return RemotingRequest(command, self._kinds.get(command.code, CHANGE))

    def _context(self, connection: RemotingConnection, request: RemotingRequest) -> CallContext:
        client_id, account = self._clients.client_id(connection), self.account_of(request.command)
        return CallContext(client_id, remote=connection.peer, timeout_s=request.timeout_s, account=account)

    def _may_broadcast(self, group: str) -> bool:
        return (self._directory.group(group) or GroupConfig(group)).consume_broadcast_enable


class MasterProcessors(NamedTuple):
    """The processors of the master. Rows of the table of request codes refer to their methods."""

    sends: SendProcessor
    send_backs: SendBackProcessor
    transactions: TransactionProcessor
    recalls: RecallProcessor
    pulls: PullProcessor
    offsets: OffsetProcessor
    pops: PopProcessor
    peeks: PeekProcessor
    locks: LockProcessor
    replies: ReplyProcessor
    admin: AdminProcessor
    imports: ImportProcessor


class ProtocolHandlers:
    """Implements Answering for both protocols: RocketMQ 5, and the remoting protocol, whose handlers are in
    `table`.
    """

    def __init__(self, proxy: Answering, table: Mapping[int, Handler]) -> None:
        self._proxy = proxy
        self._table = table

    async def unary(self, request: Request, context: CallContext) -> bytes:
        if not isinstance(request, RemotingRequest):
            return await self._proxy.unary(request, context)
        command = request.command
        handler = self._table.get(command.code)
        if handler is None:  # the code is from a newer node
            text = f"request type {command.code} not supported"
            return encode(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text))
        try:
            return encode(await handler(request, context))
        except Rejected as error:
            return encode(command.answer(ResponseCode.SYSTEM_ERROR, str(error)))
        except BrokerError as error:
            if error.status in ELSEWHERE:
                raise
            return request.refused(error)

    def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        return self._proxy.stream(request, context)


class LocalReads:
    """Implements Answering on a slave, which answers reads itself.

    Clients read from a slave if the master directs them to it, or if the master is down. As in RocketMQ, they
    then read the slave's data.
    """

    def __init__(self, local: Answering, others: Answering, reads_here: Callable[[], bool]) -> None:
        """`others` handles requests that require a master, and also reads while `reads_here` returns
        False.
        """
        self._local = local
        self._others = others
        self._reads_here = reads_here

    async def unary(self, request: Request, context: CallContext) -> bytes:
        is_here = (request.is_read or request.is_admin_query) and self._reads_here()
        return await (self._local if is_here else self._others).unary(request, context)

    def stream(self, request: Request, context: CallContext) -> AsyncGenerator[bytes, None]:
        return self._others.stream(request, context)


class _CompletedChange(NamedTuple):
    when_s: float
    answer: RemotingCommand


class RepeatedChanges:
    """Suppresses repetitions of a change on the master.

    Tools like mqadmin send a change to each broker name of a route: to the main port under the broker's name,
    and to send-only ports under the write-only names. If a change arrives at a send-only port within 60 s of
    the same successful change, it is not executed, and the response is the earlier one. Otherwise, for
    example, a second offset reset would undo the commits that followed the first. A change at the main port
    is always executed, because it is intentional.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic."""
        self._now_s = now_s
        self._done: dict[_Key, _CompletedChange] = {}  # oldest first

    def once(self, handler: Handler) -> Handler:
        async def carry_out(request: RemotingRequest, context: CallContext) -> RemotingCommand:
            command = request.command
            fields = {name: value for name, value in command.fields.items() if name != SEND_ONLY_PORT}
            key = command.code, tuple(sorted(fields.items())), bytes(command.body)
            done = self._done.get(key)
            is_recent = done is not None and self._now_s() - done.when_s < _KEPT_S
            if done is not None and is_recent and SEND_ONLY_PORT in command.fields:
                before, told = done.answer, {**done.answer.fields, REPEATED: "true"}
                return command.answer(ResponseCode.SUCCESS, before.remark, fields=told, body=before.body)
            answer = await handler(request, context)
            if answer.code == ResponseCode.SUCCESS:
                self._done.pop(key, None)
                self._done[key] = _CompletedChange(self._now_s(), answer)
                if len(self._done) > _MAX_KEPT:
                    del self._done[next(iter(self._done))]
            return answer

        return carry_out
