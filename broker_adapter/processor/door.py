"""A node and a request of the remoting protocol: it answers itself, or passes it on to the master."""

from __future__ import annotations

from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.processor.fields import number
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor

#: Clients wait for 3 s, if they are not told otherwise: what is stored later is sent again by them.
_SEND_S = 3.0
_CALL_S = 5.0
#: What a pull may take beside its own time to wait.
_PULL_S = 5.0
_MAX_SUSPEND_MS = 600_000

SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)


class RemotingDoor:
    """Registers the codes that it takes with a Dispatch."""

    def __init__(self, answering: Answering, settings: RemotingSettings) -> None:
        self._answering = answering
        self._sends = Executor("sends", settings.max_sends, 0)

    def register_with(self, dispatch: Dispatch) -> None:
        dispatch.register(SENDS, self._pass_on, self._sends)

    async def _pass_on(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """To the master, which may be this node. Its answer is a frame for this request."""
        context = self._context(connection, request)
        answer = await self._answering.unary(RemotingRequest(request), context)
        if not request.is_oneway:
            connection.send_encoded(answer)

    def _context(self, connection: RemotingConnection, request: RemotingCommand) -> CallContext:
        return CallContext(connection.peer, remote=connection.peer, timeout_s=_timeout_s(request))


def _timeout_s(request: RemotingCommand) -> float:
    """What a client waits for: no field says it."""
    code = request.code
    if code in SENDS:
        return _SEND_S
    if code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        suspend_ms = number(request.fields, "suspendTimeoutMillis", 0)
        return min(max(0, suspend_ms), _MAX_SUSPEND_MS) / 1000 + _PULL_S
    return _CALL_S
