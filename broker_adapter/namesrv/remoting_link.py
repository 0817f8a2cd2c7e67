"""Register with a NameServer of RocketMQ's own, by the remoting protocol.

A route of RocketMQ is the sum of what brokers register, so a node registers twice: as replica of its broker,
which is read from, and under a name of its own, which is written to. `route_data` makes the same of a
registration at our NameServer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE, TopicConfig
from broker_adapter.errors import (
    AnswerMissing,
    NameServerRefused,
    NameServerUnavailable,
    ResponseCode,
    Status,
)
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.namesrv.remoting_bodies import (
    DataVersion,
    body_crc32,
    encode_register_body,
    node_name,
)
from broker_adapter.namesrv.values import NO_TERM, Registration, RegistrationAnswer
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.json_bodies import dump

#: A NameServer of RocketMQ 5 forgets who says nothing for so long (ms) ...
EXPIRE_MS = 20_000
#: ... and hears from a node so often (seconds). Older ones wait for 120 s, and do not know this heartbeat.
BEAT_S = 5.0
_ANSWER_S = 5.0


class _Row(NamedTuple):
    """One entry in the tables of a NameServer."""

    broker_name: str
    broker_id: int
    cluster: str
    topics: tuple[TopicConfig, ...]


def rows_of(given: Registration) -> tuple[_Row, ...]:
    """What is read from, and what is written to. A broker whose slaves fetch its log registers as RocketMQ's
    do: each by its id, once.

    RocketMQ forgets a broker by cluster and address, and takes one name of these out of its routes. So that
    both go, the names that are written to have a cluster of their own.
    """
    if given.ha_address:
        return (_Row(given.broker_name, given.broker_id, given.cluster, tuple(given.topics)),)
    reading = tuple(topic._replace(perm=topic.perm & ~PERM_WRITE) for topic in given.topics)
    writing = tuple(topic._replace(perm=topic.perm & ~PERM_READ) for topic in given.topics)
    return (
        _Row(given.broker_name, given.broker_id, given.cluster, reading),
        _Row(node_name(given.broker_name, given.node_id), MASTER_ID, f"{given.cluster}-nodes", writing),
    )


class RemotingNameServerLink:
    """The same as NameServerLink, as far as the registrar needs it."""

    def __init__(
        self, address: str, *, tls: Callable[[], ssl.SSLContext] | None = None, beat_s: float = BEAT_S
    ) -> None:
        """`tls`: called for each connection; None: plain text."""
        self.address = address
        self._tls = tls
        self._beat_s = beat_s

    def open_session(self) -> RemotingRegistrationSession:
        return RemotingRegistrationSession(self.address, self._beat_s, self._tls)

    async def close(self) -> None:
        """Each session has a connection of its own."""


class RemotingRegistrationSession:
    """One connection, over which one node registers; used by one task."""

    def __init__(self, address: str, beat_s: float, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._address, self._beat_s, self._tls = address, beat_s, tls
        self._connection: RemotingConnection | None = None
        self._registered: Registration | None = None
        self._answer = RegistrationAnswer()
        self._reason = ""
        self._closed = asyncio.Event()
        self._beating: asyncio.Task[RegistrationAnswer] | None = None

    async def send(self, given: Registration) -> None:
        """Register, or ask whether that is needed. NameServerRefused; NameServerUnavailable."""
        if self._connection is None:
            self._connection = await self._connected()
        asks_for_master = bool(given.ha_address) and given.broker_id != MASTER_ID
        if given is self._registered and not asks_for_master and not await self._is_forgotten(given):
            return
        self._registered = None
        for row in rows_of(given):
            if len(row.topics) == 1:
                # RocketMQ 5 takes a single topic for a change at a broker that is registered already.
                await self._register(given, row._replace(topics=()), DataVersion())
            answer = await self._register(given, row, _version(given))
            if row.broker_name == given.broker_name:
                master = _address(given) if row.broker_id == MASTER_ID else answer.fields.get("masterAddr")
                ha_address = answer.fields.get("haServerAddr") or ""
                self._answer = RegistrationAnswer(master or "", NO_TERM, ha_address)
        self._registered = given

    async def receive(self) -> RegistrationAnswer:
        """The answer to what was sent last."""
        return self._answer

    def next_answer(self) -> asyncio.Future[RegistrationAnswer]:
        """Done when the connection has ended, with NameServerUnavailable."""
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())
        return self._beating

    async def finish(self) -> None:
        """Un-register. NameServerUnavailable."""
        if (given := self._registered) is not None:
            for row in rows_of(given):
                await self._ask(RequestCode.UNREGISTER_BROKER, _fields(given, row))

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close("the registration has ended")
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    # -- inside -------------------------------------------------------------------------------------------

    async def _connected(self) -> RemotingConnection:
        def closed(reason: str) -> None:
            self._reason = reason
            self._closed.set()

        try:
            tls = self._tls() if self._tls is not None else None
            return await connect(self._address, timeout_s=_ANSWER_S, on_closed=closed, tls=tls)
        except AnswerMissing as error:
            raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, error.message) from None

    async def _register(self, given: Registration, row: _Row, version: DataVersion) -> RemotingCommand:
        body = await asyncio.to_thread(encode_register_body, row.topics, version)
        fields = {
            **_fields(given, row),
            "haServerAddr": given.ha_address or _address(given),
            "heartbeatTimeoutMillis": str(EXPIRE_MS),
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(body_crc32(body)),
        }
        answer = await self._ask(RequestCode.REGISTER_BROKER, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            problem = f"{self._address}: {answer.code}: {answer.remark or 'refused'}"
            raise NameServerRefused(Status.NAMESRV_INVALID, problem)
        return answer

    async def _is_forgotten(self, given: Registration) -> bool:
        """One that was asked for a row it knows has heard that the row lives."""
        for row in rows_of(given):
            body = dump(_version(given).to_json())
            answer = await self._ask(RequestCode.QUERY_DATA_VERSION, _fields(given, row), body)
            if answer.code != ResponseCode.SUCCESS or answer.fields.get("changed") != "false":
                return True
        return False

    async def _beat(self) -> RegistrationAnswer:
        while not self._closed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s):
                    await self._closed.wait()
            if (given := self._registered) is not None and not self._closed.is_set():
                for row in rows_of(given):
                    await self._ask(RequestCode.BROKER_HEARTBEAT, _fields(given, row))
        raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, f"{self._address}: {self._reason}")

    async def _ask(self, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        assert self._connection is not None, "the first send connects"
        try:
            return await self._connection.invoke(RemotingCommand(code, dict(fields), body), _ANSWER_S)
        except AnswerMissing as error:
            raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, error.message) from None


def _address(given: Registration) -> str:
    return given.remoting_address or given.address


def _version(given: Registration) -> DataVersion:
    """RocketMQ 5 refuses the name's id 0 to a lower stateVersion, and reads topics of a new version only: a
    master has to be read although its predecessor had the same topics. Brokers without elections have no
    term."""
    state_version = 0 if given.ha_address else max(given.term, 0)
    return DataVersion(state_version, given.role_epoch, given.data_version)


def _fields(given: Registration, row: _Row) -> dict[str, str]:
    found = {
        "brokerName": row.broker_name,
        "brokerAddr": _address(given),
        "clusterName": row.cluster,
        "brokerId": str(row.broker_id),
    }
    if given.ha_address:
        return found
    return {
        **found,
        # RocketMQ passes over these.
        "nodeId": given.node_id,
        "term": str(given.term),
        "roleEpoch": str(given.role_epoch),
        "httpAddress": given.http_address,
    }
