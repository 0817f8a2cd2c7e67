"""A node and a request of the remoting protocol: it answers itself, or passes it on to the master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.errors import ResponseCode, Status, error_for
from broker_adapter.format.topic_names import RETRY_PREFIX
from broker_adapter.processor import bodies
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.processor.fields import flag, number, text
from broker_adapter.processor.pulls import SUBSCRIPTION
from broker_adapter.processor.replies import ReplyProcessor
from broker_adapter.processor.request import ADMIN_QUERIES, PEEKS, READS, RemotingRequest
from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.filters import filter_from
from broker_adapter.proxy.messages.rejected import Rejected
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand, decode
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor, Processor
from broker_adapter.remoting_door.access import access_key_of
from dledger import InvalidRequest

#: Clients wait for 3 s, if they are not told otherwise: what is stored later is sent again by them.
_SEND_S = 3.0
_CALL_S = 5.0
#: What a pull may take beside its own time to wait.
_PULL_S = 5.0
_MAX_SUSPEND_MS = 600_000
#: A list of more of them is made by a thread.
_MANY_MEMBERS = 1_024
_RESET_FIELDS = ("topic", "group", "timestamp", "isForce")

#: InvalidRequest for certificates of others.
CheckOperator = Callable[[Mapping[str, Iterable[bytes]]], None]

SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
#: Beside sends, what appends to the log.
CHANGES = (
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.END_TRANSACTION,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
REPLIES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
#: They wait for messages that are popped.
POPS = (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION)
QUERIES = (*READS, *PEEKS, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
ADMIN_CHANGES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.BEGIN_QUEUE,
    RequestCode.IMPORT_MESSAGES,
    RequestCode.READ_QUEUE,
)


class RemotingDoor:
    """Registers the codes that it takes with a Dispatch. `clients` are those of this node; `is_known` says
    whether there is a topic, as far as this node knows."""

    def __init__(
        self,
        answering: Answering,
        settings: RemotingSettings,
        clients: RemotingClients,
        is_known: Callable[[str], bool],
        replies: ReplyProcessor,
        *,
        check_operator: CheckOperator | None,
        knows_accounts: bool = False,
    ) -> None:
        """`check_operator`: raises for certificates of clients that may not change what belongs to all; None:
        nobody has to be known. `knows_accounts`: requests are signed, and were checked."""
        self._answering = answering
        self._clients = clients
        self._is_known = is_known
        self._replies = replies
        self._check_operator = check_operator
        self._knows_accounts = knows_accounts
        self._sends = Executor("sends", settings.max_sends, 0)
        self._most_send_wait_s = settings.send_queue_wait_ms / 1000
        self._pulls = Executor("pulls", settings.max_pulls, 0, ends_with_connection=True)
        self._queries = Executor("queries", settings.max_queries, settings.max_queries)
        # Who waits for one takes it as late as it likes: none waits in front of others.
        self._pushes = Executor("replies", 2 * settings.max_queries, 0)
        self.of_clients = Executor("clients", settings.max_queries, settings.max_queries)
        self.admin = Executor("admin", settings.max_queries, settings.max_queries)

    def places(self) -> dict[str, str]:
        """As RocketMQ shows the queues in front of its thread pools. How long the first one waits is not
        measured."""
        found: dict[str, str] = {}
        for name, one in (("send", self._sends), ("pull", self._pulls), ("query", self._queries)):
            found[f"{name}ThreadPoolQueueSize"] = str(max(0, one.under_way - one.running))
            found[f"{name}ThreadPoolQueueCapacity"] = str(one.most)
            found[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return found

    def register_with(self, dispatch: Dispatch) -> None:
        dispatch.register(SENDS, self._pass_on, self._sends, most_wait_s=self._most_send_wait_s)
        dispatch.register(CHANGES, self._pass_on, self._sends)
        dispatch.register(PULLS, self._pull, self._pulls)
        dispatch.register(POPS, self._pass_on, self._pulls)
        dispatch.register(REPLIES, self._reply, self._pushes)
        dispatch.register(QUERIES, self._pass_on, self._queries)
        dispatch.register(ADMIN_QUERIES, self._pass_on, self.admin)
        dispatch.register(ADMIN_CHANGES, self._change, self.admin)
        dispatch.register([RequestCode.INVOKE_BROKER_TO_RESET_OFFSET], self._reset, self.admin)
        for code, processor in (
            (RequestCode.HEART_BEAT, self._heartbeat),
            (RequestCode.UNREGISTER_CLIENT, self._unregister),
            (RequestCode.GET_CONSUMER_LIST_BY_GROUP, self._consumer_list),
            (RequestCode.CHECK_CLIENT_CONFIG, self._check_config),
        ):
            dispatch.register([code], processor, self.of_clients)

    # -- passed on ----------------------------------------------------------------------------------------

    async def _pass_on(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """To the master, which may be this node. Its answer is a frame for this request."""
        answer = await self._ask(request, self._context(connection, request))
        if not request.is_oneway:
            connection.send_encoded(answer)

    async def ask_master(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Its answer to what the client of this connection asks. BrokerError as from Answering."""
        return decode(memoryview(await self._ask(request, self._context(connection, request)))[4:])

    async def _ask(self, request: RemotingCommand, context: CallContext) -> bytes:
        try:
            return await self._answering.unary(RemotingRequest(request), context)
        except Rejected as error:  # by what is between the nodes, which knows the other protocol
            raise error_for(Status.BODY_TOO_LARGE, error.message) from None

    async def _reply(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """To the client that waits for it: most are connected to each node. The master may know one that has
        not found this node yet."""
        wanted = RemotingRequest(request)
        if self._replies.knows(wanted):
            return await self._replies.reply(wanted, self._context(connection, request))
        await self._pass_on(connection, request)
        return None

    async def _pull(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand | None:
        """With what the client has said in its heartbeats that it wants, if it does not say so now."""
        fields = request.fields
        if not number(fields, "sysFlag", 0) & SUBSCRIPTION:
            group, topic = text(fields, "consumerGroup"), text(fields, "topic")
            found = self._clients.subscription(connection, group, topic)
            if found is None:
                problem = f"the consumer's group info not exist: {group}, {topic}"
                return request.answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, problem)
            wanted = {"subscription": found.expression, "expressionType": "SQL92" if found.is_sql else "TAG"}
            request = replace(request, fields={**fields, **wanted})
        await self._pass_on(connection, request)
        return None

    async def _change(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """What belongs to all. IllegalMessage (CHANGE_NOT_ALLOWED)."""
        self._check_change(connection)
        await self._pass_on(connection, request)

    def guarded(self, processor: Processor) -> Processor:
        """What only operators may ask of this node. IllegalMessage (CHANGE_NOT_ALLOWED)."""

        async def checked(connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand | None:
            self._check_change(connection)
            return await processor(connection, request)

        return checked

    def _check_change(self, connection: RemotingConnection) -> None:
        if self._check_operator is None:
            return
        try:
            self._check_operator(connection.auth_context)
        except InvalidRequest as error:
            raise error_for(Status.CHANGE_NOT_ALLOWED, error.message) from None

    async def _reset(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """The members of the group, all of which are connected here, go on from the new offsets."""
        self._check_change(connection)
        data = await self._ask(request, self._context(connection, request))
        answer = decode(memoryview(data)[4:])
        if answer.code == ResponseCode.SUCCESS:
            fields = {name: request.fields.get(name, "") for name in _RESET_FIELDS}
            # The answer shows that the others are names and a number; of this one any text is taken.
            fields["isForce"] = str(flag(request.fields, "isForce", default=True)).lower()
            command = RemotingCommand.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, answer.body)
            self._clients.tell_group(fields["group"], command)
        connection.send_encoded(data)

    def _context(self, connection: RemotingConnection, request: RemotingCommand) -> CallContext:
        client_id = self._clients.client_id(connection)
        account = access_key_of(request) if self._knows_accounts else ""
        return CallContext(client_id, remote=connection.peer, timeout_s=_timeout_s(request), account=account)

    # -- clients ------------------------------------------------------------------------------------------

    async def _heartbeat(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """The master makes what consumers need, if it is not there."""
        beat = bodies.heartbeat(request.body)
        context = self._context(connection, request)
        self._clients.heard_of(connection, beat, request.language, request.version, context.account)
        if not all(self._is_known(RETRY_PREFIX + one.group) for one in beat.consumers):
            await self._ask(request, context)
        return request.answer(ResponseCode.SUCCESS)

    async def _unregister(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        client_id = text(request.fields, "clientID")
        for name, consumes in (("producerGroup", False), ("consumerGroup", True)):
            if group := request.fields.get(name):
                self._clients.gone(connection, group, client_id, consumes=consumes)
        return request.answer(ResponseCode.SUCCESS)

    async def _consumer_list(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        group = text(request.fields, "consumerGroup")
        members = self._clients.consumers.get(group)
        if not members:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        names = list(members)
        is_long = len(names) > _MANY_MEMBERS
        body = (
            await asyncio.to_thread(bodies.consumer_list, names) if is_long else bodies.consumer_list(names)
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def _check_config(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """Whether an expression can be understood."""
        found = bodies.parse(request.body).get("subscriptionData")
        if isinstance(found, dict):
            wanted = bodies.subscription(found)
            try:
                filter_from(wanted.expression, is_sql=wanted.is_sql)
            except Rejected as error:
                return request.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.message)
        return request.answer(ResponseCode.SUCCESS)


def _timeout_s(request: RemotingCommand) -> float:
    """What a client waits for: no field says it."""
    code = request.code
    if code in SENDS or code in REPLIES:
        return _SEND_S
    if code in PULLS or code in POPS:
        name = "suspendTimeoutMillis" if code in PULLS else "pollTime"
        suspend_ms = number(request.fields, name, 0)
        return min(max(0, suspend_ms), _MAX_SUSPEND_MS) / 1000 + _PULL_S
    return _CALL_S
