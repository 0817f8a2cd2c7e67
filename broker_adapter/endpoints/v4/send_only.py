"""The send-only port, for requests that clients send to the write-only name of a member.

Clients of RocketMQ 4 fail over quickly only between broker names, so each member has a write-only name that
points to this port. Clients and tools also send other requests to this port, because they use an arbitrary
name in a route, or add up the results for all names. To requests about messages, offsets or traffic, the port
responds like an empty broker, so that totals over a route equal the totals of the main port. It answers all
other requests like the main port.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.endpoints.v4 import admin_bodies
from broker_adapter.endpoints.v4.calls import SEND_ONLY_PORT
from broker_adapter.endpoints.v4.clients import RemotingClients
from broker_adapter.endpoints.v4.node_queries import NodeReport
from broker_adapter.endpoints.v4.pops import MAX_WAIT_MS
from broker_adapter.endpoints.v4.pulls import SUSPEND
from broker_adapter.endpoints.v4.request import number, text
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Processor
from broker_adapter.remoting.json_bodies import dump

_MAX_SUSPEND_MS = 30_000
_NO_INDEX = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


class SendOnlyEvents:
    """Marks connections to this port.

    Notices are sent on such a connection only if the client has no connection to the main port. Implements
    ChannelEvents.
    """

    def __init__(self, clients: RemotingClients) -> None:
        self._clients = clients

    def channel_connected(self, connection: RemotingConnection) -> None:
        self._clients.add_send_only(connection)

    def channel_closed(self, connection: RemotingConnection, reason: str) -> None:
        self._clients.channel_closed(connection, reason)


class SendOnlyAnswers:
    """Handles the requests that the main port answers differently.

    Rows in the table of request codes refer to these methods.
    """

    def __init__(
        self,
        address: Callable[[], str],
        report: NodeReport,
        queue_rows: Callable[[], Mapping[str, str]],
    ) -> None:
        """`address` returns the address of this port."""
        self._address = address
        self._report = report
        self._queue_rows = queue_rows

    # -- a queue without messages -------------------------------------------------------------------------

    async def pull(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Respond that there is no message, but only after the client's wait time. The client pulls again
        immediately after the response.
        """
        fields = request.fields
        offset = max(0, number(fields, "queueOffset"))
        if number(fields, "sysFlag", 0) & SUSPEND:
            await _wait_ms(number(fields, "suspendTimeoutMillis", 0), _MAX_SUSPEND_MS)
        told = {"nextBeginOffset": offset, "minOffset": 0, "maxOffset": 0, "suggestWhichBrokerId": 0}
        texts = {name: str(value) for name, value in told.items()}
        return request.answer(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", fields=texts)

    async def pop(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        await _wait_ms(number(request.fields, "pollTime", 0), MAX_WAIT_MS)
        return request.answer(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")

    async def notify(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        await _wait_ms(number(request.fields, "pollTime", 0), MAX_WAIT_MS)
        return request.answer(ResponseCode.SUCCESS, fields={"hasMsg": "false", "pollingFull": "false"})

    async def peek(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")

    async def zero_offset(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS, fields={"offset": "0"})

    async def accept(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS)

    async def no_time(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS, fields={"timestamp": "-1"})

    # -- a broker without messages ------------------------------------------------------------------------

    async def no_message(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        remark = "can not find message, maybe time range not correct"
        return request.answer(ResponseCode.QUERY_NOT_FOUND, remark, fields=_NO_INDEX)

    async def no_consume_stats(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS, body=admin_bodies.consume_stats([], 0.0))

    async def no_groups(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        body = admin_bodies.all_consume_stats(self._address(), {})
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def no_topic_stats(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS, body=admin_bodies.topic_stats("", []))

    async def zero_runtime(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Return all runtime rows, because tools fail if a row is missing. Rows that tools add up are 0."""
        rows = self._report.runtime(_no_traffic(), self._queue_rows())
        return request.answer(ResponseCode.SUCCESS, body=dump({"table": rows}))

    async def zero_stats(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        text(request.fields, "statsName")
        sums = _no_traffic().sums("BROKER_PUT_NUMS", "")
        assert sums is not None, "a broker has these counters from its start"
        return request.answer(ResponseCode.SUCCESS, body=dump(admin_bodies.stats_data(sums)))


def marked(processor: Processor) -> Processor:
    """Wrap a processor.

    The wrapper marks requests, so that the master does not repeat a change that was already made under
    another name of the route.
    """

    async def marked_processor(
        connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        fields = {**request.fields, SEND_ONLY_PORT: "true"}
        return await processor(connection, replace(request, fields=fields))

    return marked_processor


def _no_traffic() -> Traffic:
    return Traffic(time.monotonic, lambda: 0)


async def _wait_ms(wanted: int, most: int) -> None:
    await asyncio.sleep(max(0, min(wanted, most)) / 1000)
