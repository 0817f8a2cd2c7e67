"""Keeps a broker registered with every NameServer, without delaying the broker."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from broker_adapter.api import PERM_READ, TopicConfig
from broker_adapter.client.core.outcomes import error_of
from broker_adapter.errors import (
    AnswerMissing,
    BrokerError,
    NameServerBusy,
    NameServerRefused,
    NameServerUnavailable,
    ResponseCode,
    Status,
)
from broker_adapter.namesrv.remoting_bodies import (
    DataVersion,
    body_crc32,
    encode_register_body,
)
from broker_adapter.namesrv.values import NO_TERM, Registration, RegistrationAnswer, send_name
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import MASTER_TERM, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.json_bodies import dump
from broker_adapter.wire.broker_ids import MASTER_ID
from broker_adapter.wire.longs import long_of
from dledger import TlsFiles
from dledger.infra.logs import get_logger
from dledger.infra.transport.tls import ClientTls

# Registration of a node with one NameServer, over the remoting protocol. A NameServer of this project derives
# the write-only names of a log from a single registration (`route_data`), and keeps the name of a member that
# is down. Its responses contain MASTER_TERM. In NameServers of RocketMQ and of older versions of this
# project, a route is the union of the registrations. A node registers twice with them: as a replica of its
# broker, and under its write-only name. If the member fails, its write-only name disappears until the member
# is back.

#: A NameServer of RocketMQ 5 drops a node that sends nothing for this time (ms).
EXPIRE_MS = 20_000
#: Heartbeat interval, in seconds. Older NameServers wait for 120 s and do not know this heartbeat.
BEAT_S = 5.0
_ANSWER_S = 5.0


class _Row(NamedTuple):
    """One entry in the tables of a NameServer."""

    broker_name: str
    broker_id: int
    cluster: str
    address: str
    topics: tuple[TopicConfig, ...]


def rows_of(given: Registration) -> tuple[_Row, ...]:
    """Return the rows to register: the broker's own name, and the write-only name of a member with a
    send-only port.

    The write-only names are in a separate cluster, because tools add up the results for all names in a
    cluster. Clients send to the master under the broker's own name, so the master's write-only name has no
    permissions.
    """
    own = _Row(given.broker_name, given.broker_id, given.cluster, given.address, tuple(given.topics))
    if not given.send_address:
        return (own,)
    is_master = given.broker_id == MASTER_ID
    topics = tuple(topic._replace(perm=0 if is_master else topic.perm & ~PERM_READ) for topic in given.topics)
    name = send_name(given.broker_name, given.node_id)
    return (own, _Row(name, MASTER_ID, f"{given.cluster}-nodes", given.send_address, topics))


class RemotingRegistrationSession:
    """A connection over which one node registers. Only one task uses it."""

    def __init__(self, address: str, beat_s: float, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._address, self._beat_s, self._tls = address, beat_s, tls
        self._connection: RemotingConnection | None = None
        self._registered: Registration | None = None
        self._is_ours = False
        self._answer = RegistrationAnswer()  # the response to the last registration
        self._reason = ""
        self._closed = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    async def register(self, given: Registration) -> RegistrationAnswer:
        """Register, unless this registration was already sent and the NameServer still has it.

        A slave with an HA address always registers, to receive the address of the master. Raises
        NameServerRefused or NameServerUnavailable.
        """
        if self._connection is None:
            self._connection = await self._connected()
            await self._recognise(given)
        asks_for_master = bool(given.ha_address) and given.broker_id != MASTER_ID
        if given is self._registered and not asks_for_master and not await self._is_forgotten(given):
            return self._answer
        self._registered = None
        for row in self._rows(given):
            if len(row.topics) == 1 and not self._is_ours:
                # RocketMQ 5 treats a single topic as an incremental change of a broker that is already
                # registered.
                await self._register(given, row._replace(topics=()), DataVersion())
            answer = await self._register(given, row, _version(given))
            if row.broker_name == given.broker_name:
                self._answer = _published_master(given, answer)
        self._registered = given
        return self._answer

    def ended(self) -> asyncio.Future[None]:
        """Return a future that fails with NameServerUnavailable when the connection ends.

        The caller must not cancel it.
        """
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())
        return self._beating

    async def finish(self) -> None:
        """Unregister. Raises NameServerUnavailable."""
        if (given := self._registered) is not None:
            for row in self._rows(given):
                await self._request(RequestCode.UNREGISTER_BROKER, _fields(given, row))

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close("the registration has ended")
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    # -- internal -----------------------------------------------------------------------------------------

    def _rows(self, given: Registration) -> tuple[_Row, ...]:
        return rows_of(given)[:1] if self._is_ours else rows_of(given)

    async def _recognise(self, given: Registration) -> None:
        """Query the data version, as RocketMQ's brokers do before they register.

        The response reveals the kind of NameServer.
        """
        answer = await self._query_version(given, rows_of(given)[0])
        self._is_ours = MASTER_TERM in answer.fields
        names = "one registration" if self._is_ours else "one registration for each broker name"
        _log.info("connected to a NameServer", server=self._address, ours=self._is_ours, needs=names)

    async def _query_version(self, given: Registration, row: _Row) -> RemotingCommand:
        body = dump(_version(given).to_json())
        return await self._request(RequestCode.QUERY_DATA_VERSION, _fields(given, row), body)

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
            "haServerAddr": given.ha_address or row.address,
            "heartbeatTimeoutMillis": str(EXPIRE_MS),
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(body_crc32(body)),
        }
        answer = await self._request(RequestCode.REGISTER_BROKER, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            raise _refusal(answer, self._address)
        return answer

    async def _is_forgotten(self, given: Registration) -> bool:
        """Return True if the NameServer does not know the registration.

        The query renews the rows that it knows.
        """
        for row in self._rows(given):
            answer = await self._query_version(given, row)
            if answer.code != ResponseCode.SUCCESS or answer.fields.get("changed") != "false":
                return True
            if self._is_ours:
                self._answer = _published_master(given, answer)
        return False

    async def _beat(self) -> None:
        while not self._closed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s):
                    await self._closed.wait()
            if (given := self._registered) is not None and not self._closed.is_set():
                for row in self._rows(given):
                    await self._request(RequestCode.BROKER_HEARTBEAT, _fields(given, row))
        raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, f"{self._address}: {self._reason}")

    async def _request(
        self, code: RequestCode, fields: Mapping[str, str], body: bytes = b""
    ) -> RemotingCommand:
        assert self._connection is not None, "register connects first"
        try:
            return await self._connection.invoke(RemotingCommand(code, dict(fields), body), _ANSWER_S)
        except AnswerMissing as error:
            raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, error.message) from None


def _refusal(answer: RemotingCommand, address: str) -> BrokerError:
    """Return the error for a response. The registration does not end if the NameServer is overloaded."""
    error = error_of(answer, address)
    if isinstance(error, NameServerRefused):
        return error
    if answer.code == ResponseCode.SYSTEM_BUSY:
        return NameServerBusy(Status.NAMESRV_BUSY, error.message)
    return NameServerRefused(Status.NAMESRV_INVALID, error.message)


def _published_master(given: Registration, answer: RemotingCommand) -> RegistrationAnswer:
    """Return the published master. RocketMQ's NameServers do not send a master its own address."""
    fields = answer.fields
    term = long_of(fields.get(MASTER_TERM, ""))
    address = fields.get("masterAddr") or (given.address if given.broker_id == MASTER_ID else "")
    return RegistrationAnswer(address, NO_TERM if term is None else term, fields.get("haServerAddr") or "")


def _version(given: Registration) -> DataVersion:
    """Return the version of a registration.

    RocketMQ 5 refuses broker id 0 for a lower stateVersion and reads topics only for a new version.
    NameServers must read the topics of a new master even if its predecessor had the same topics. Brokers that
    hold no elections have no term.
    """
    state_version = 0 if given.ha_address else max(given.term, 0)
    return DataVersion(state_version, given.role_epoch, given.data_version)


def _fields(given: Registration, row: _Row) -> dict[str, str]:
    fields = {
        "brokerName": row.broker_name,
        "brokerAddr": row.address,
        "clusterName": row.cluster,
        "brokerId": str(row.broker_id),
    }
    if given.ha_address:
        return fields
    return {
        **fields,
        # RocketMQ ignores these fields.
        "nodeId": given.node_id,
        "term": str(given.term),
        "roleEpoch": str(given.role_epoch),
        "httpAddress": given.http_address,
        "sendAddress": given.send_address,
        "nodeAddress": given.node_address,
        "members": " ".join(given.members),
    }


_log = get_logger("registrar")

#: Registration interval in seconds; RocketMQ's default.
EVERY_S = 30.0
#: Response timeout per NameServer, in seconds.
ANSWER_S = 5.0
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class RegistrarStatus:
    """The state of the registration with one NameServer."""

    address: str
    registered: bool = False  # True if the newest registration is accepted
    registered_unix_ms: int = 0  # last success, wall clock; 0 before the first one
    last_error: str = ""  # since the last success
    failures: int = 0  # consecutive
    master_address: str = ""  # address of the master of the broker name, according to the NameServer
    master_term: int = NO_TERM
    master_ha_address: str = ""  # where slaves fetch the master's log, "" if unknown


class Registrar:
    """Registers a broker with all NameServers.

    Create it on any thread, and call `update`, `status` and `stop` on one event loop. There is one task per
    NameServer, so that a NameServer that is down does not delay the others. When the connection breaks, the
    NameServer unregisters the broker. The broker registers again as soon as the NameServer is reachable.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tls: TlsFiles | None = None,
        *,
        every_s: float = EVERY_S,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`addresses`: NameServers of this project or RocketMQ's. `tls`: None for plain text. `jitter`
        returns a number from 0 to 1.

        Raises ConfigError if the files of `tls` are invalid.
        """
        context = None if tls is None else ClientTls(tls).stream_context

        def open_session(address: str) -> RemotingRegistrationSession:
            return RemotingRegistrationSession(address, BEAT_S, context)

        self._registrations = [
            _ServerRegistration(address, open_session, every_s, unix_ms, jitter)
            for address in dict.fromkeys(addresses)
        ]

    def update(self, given: Registration) -> None:
        """Replace the registration and start sending it. Only the newest registration is sent."""
        for registration in self._registrations:
            registration.update(given)

    def status(self) -> Mapping[str, RegistrarStatus]:
        """Return the state of each registration, by address."""
        return {registration.status.address: registration.status for registration in self._registrations}

    async def stop(self, timeout_s: float = 1.0) -> None:
        """Unregister from all reachable NameServers within the timeout.

        May be called again. Afterwards calls of `update` have no effect.
        """
        await asyncio.gather(*(registration.stop(timeout_s) for registration in self._registrations))


class _ServerRegistration:
    """Registers with one NameServer."""

    def __init__(
        self,
        address: str,
        open_session: Callable[[str], RemotingRegistrationSession],
        every_s: float,
        unix_ms: Callable[[], int],
        jitter: Callable[[], float],
    ) -> None:
        self.status = RegistrarStatus(address)
        self._open_session = open_session
        self._every_s = every_s
        self._unix_ms, self._jitter = unix_ms, jitter
        self._newest: Registration | None = None
        self._updated = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def update(self, given: Registration) -> None:
        if self._stopping.is_set():
            return
        self._newest = given
        self.status = replace(self.status, registered=False)
        self._updated.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        self._updated.set()
        if self._task is not None:
            _, late = await asyncio.wait((self._task,), timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.status = replace(self.status, registered=False)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._keep_registered()
            except BrokerError as error:
                self._failed(error)
            except Exception as error:
                # No error may end the registration permanently or reach the broker.
                _log.exception("registration failed", server=self.status.address)
                self._failed(NameServerUnavailable(Status.NAMESRV_UNREACHABLE, repr(error)))
            if not self._stopping.is_set():
                await self._pause(self._retry_s())

    async def _keep_registered(self) -> None:
        """Keep the broker registered over one connection until the connection ends."""
        session = self._open_session(self.status.address)
        try:
            while not self._stopping.is_set():
                await self._register(session)
            with suppress(NameServerUnavailable, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await session.finish()
        finally:
            await session.close()

    async def _register(self, session: RemotingRegistrationSession) -> None:
        """Register once, then wait until the next registration is due.

        The error NameServerUnavailable ends the connection.
        """
        assert self._newest is not None, "the task starts with the first registration"
        given = self._newest
        self._updated.clear()
        refusal: NameServerRefused | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await session.register(given)
        except TimeoutError:
            raise NameServerUnavailable(
                Status.NAMESRV_UNREACHABLE, f"{self.status.address}: no response within {ANSWER_S:g} s"
            ) from None
        except NameServerRefused as error:
            refusal = error
            self._failed(error)
            wait_s = self._retry_s()
        else:
            if self.status.failures or not self.status.registered_unix_ms:
                _log.info("registered", server=self.status.address, broker=given.broker_name)
            self.status = RegistrarStatus(
                self.status.address, given is self._newest, self._unix_ms(), "", 0, *answer
            )
            wait_s = self._every_s
        ended = session.ended()
        await self._pause(wait_s, ended)
        if ended.done():
            if refusal is not None:
                raise refusal  # more specific than the disconnect that follows it
            ended.result()

    async def _pause(self, seconds: float, *also: asyncio.Future[Any]) -> None:
        """Wait until the time has passed, a newer registration exists, or a future in `also` is done."""
        updated = asyncio.ensure_future(self._updated.wait())
        try:
            await asyncio.wait((updated, *also), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            updated.cancel()

    def _failed(self, error: BrokerError) -> None:
        status = self.status
        if not status.failures:
            _log.warning("not registered", server=status.address, reason=str(error))
        self.status = replace(status, registered=False, last_error=str(error), failures=status.failures + 1)

    def _retry_s(self) -> float:
        """Return the delay before the next attempt.

        It grows with each failure and is randomized, so that brokers do not retry at the same time.
        """
        longest = min(_RETRY_MAX_S, _RETRY_FIRST_S * 2.0 ** min(self.status.failures - 1, 16))
        return longest * (0.5 + self._jitter() / 2)
