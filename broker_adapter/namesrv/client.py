"""A client for NameServers of this project and of RocketMQ. It tries them in turn until one responds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from broker_adapter.client.core.outcomes import error_of
from broker_adapter.client.core.route_data import (
    TopicRoute,
    parse_body,
    parse_clusters,
    parse_route,
    parse_topic_list,
)
from broker_adapter.errors import (
    AnswerMissing,
    BrokerError,
    FrameRefused,
    NameServerBusy,
    NameServerRefused,
    NameServerUnavailable,
    ResponseCode,
    Status,
    TopicRefused,
)
from broker_adapter.namesrv.values import NO_TERM, BrokerEntry, ClusterInfo
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import DETAILS, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.wire.broker_ids import MASTER_ID
from broker_adapter.wire.longs import long_of
from dledger import TlsFiles
from dledger.infra.port_kinds import ALPN, PortHints, PortKind
from dledger.infra.transport.tls import ClientTls

T = TypeVar("T")

#: Response timeout per NameServer, in seconds.
TIMEOUT_S = 3.0


class NameServerClient:
    """A client for one event loop: `async with NameServerClient(["127.0.0.1:9876"]) as client: ...`

    Queries go to one NameServer at a time, starting with the one that responded last. Changes (`kv_put`,
    `kv_delete`, `wipe_write_permission`) go to all NameServers, because NameServers do not replicate to each
    other.
    """

    def __init__(
        self, addresses: Sequence[str], tls: TlsFiles | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`tls`: None for plain text.

        Raises ConfigError if the TLS files are invalid, and ValueError if `addresses` is empty.
        """
        self.addresses = tuple(dict.fromkeys(addresses))
        if not self.addresses:
            raise ValueError("at least one NameServer address is required")
        self._security = security = None if tls is None else ClientTls(tls)
        self._hints = PortHints(
            PortKind.NAME_SERVER, lambda: None if security is None else security.stream_context(ALPN)
        )
        self._timeout_s = timeout_s
        self._connections: dict[str, RemotingConnection] = {}
        self._current = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close("the client is closed")
        self._connections.clear()

    # -- queries ------------------------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRoute:
        """Return the topic's route.

        Raises TopicRefused (TOPIC_UNKNOWN) if no NameServer knows the topic, IllegalMessage, or
        NameServerUnavailable.
        """
        fields = {"topic": topic, "acceptStandardJsonOnly": "true", DETAILS: "true"}
        # A NameServer that has just started may not have received all registrations yet.
        answer = await self._query(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, also_next=(TopicRefused,))
        return parse_route(answer.body)

    async def cluster_info(self) -> ClusterInfo:
        """Return the information from the first NameServer that responds. Raises NameServerUnavailable."""
        answer = await self._query(RequestCode.GET_BROKER_CLUSTER_INFO, {DETAILS: "true"})
        return parse_cluster_info(answer.body)

    async def cluster_infos(self) -> dict[str, ClusterInfo | BrokerError]:
        """Query each NameServer. Return its information, or the error of the call, by address."""

        async def query(address: str) -> ClusterInfo:
            answer = await self._call(address, RequestCode.GET_BROKER_CLUSTER_INFO, {DETAILS: "true"})
            return parse_cluster_info(answer.body)

        return await self._at_each(query)

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted. Raises NameServerUnavailable."""
        answer = await self._query(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        return sorted(parse_topic_list(answer.body))

    async def kv_get(self, namespace: str, key: str) -> str:
        """Return a setting. Raises NameServerRefused (NAMESRV_CONFIG_UNKNOWN) or NameServerUnavailable."""
        answer = await self._query(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})
        return answer.fields.get("value", "")

    async def kv_list(self, namespace: str = "") -> dict[str, str]:
        """Return all settings of a namespace.

        For "", return the namespaces as keys. Raises NameServerUnavailable.
        """
        answer = await self._query(
            RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace}, but=ResponseCode.QUERY_NOT_FOUND
        )
        if not answer.body:
            return {}
        return {str(key): str(value) for key, value in (parse_body(answer.body).get("table") or {}).items()}

    # -- changes ------------------------------------------------------------------------------------------

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a value on every NameServer.

        Raises the first error. Other NameServers may have set the value nevertheless.
        """
        fields = {"namespace": namespace, "key": key, "value": value}
        await self._change(RequestCode.PUT_KV_CONFIG, fields)

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Delete a setting on every NameServer that has it. Raises the errors of `kv_put`."""
        await self._change(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    async def wipe_write_permission(self, broker_name: str, *, give_back: bool = False) -> int:
        """Wipe or restore the write permission of a broker. Return the number of affected topics.

        Raises the errors of `kv_put`, and NameServerRefused (NAMESRV_BROKER_UNKNOWN).
        """
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if give_back else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        answers = await self._change(code, {"brokerName": broker_name})
        field = "addTopicCount" if give_back else "wipeTopicCount"
        return max(long_of(answer.fields.get(field, "")) or 0 for answer in answers)

    # -- requests ----------------------------------------------------------------------------------------

    async def _call(
        self, address: str, code: RequestCode, fields: Mapping[str, str], but: ResponseCode | None = None
    ) -> RemotingCommand:
        """Send a request. Return the response if its code is SUCCESS or `but`; otherwise raise an error."""
        try:
            return await self._request(address, code, fields, but)
        except BrokerError as error:
            if error.status not in (Status.NAMESRV_UNREACHABLE, Status.CODE_UNKNOWN):
                raise
            if not (hint := await self._hints.hint(address)):
                raise
            raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, hint) from None

    async def _request(
        self, address: str, code: RequestCode, fields: Mapping[str, str], but: ResponseCode | None
    ) -> RemotingCommand:
        try:
            connection = self._connections.get(address)
            if connection is None or connection.is_closed:
                tls = self._security.stream_context() if self._security is not None else None
                connection = await connect(address, timeout_s=self._timeout_s, tls=tls)
                self._connections[address] = connection
            answer = await connection.invoke(RemotingCommand(code, dict(fields)), self._timeout_s)
        except AnswerMissing as error:
            raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, error.message) from None
        if answer.code in (ResponseCode.SUCCESS, but):
            return answer
        refusal = error_of(answer, address)
        if answer.code == ResponseCode.SYSTEM_BUSY and not isinstance(refusal, NameServerRefused):
            raise NameServerBusy(Status.NAMESRV_BUSY, refusal.message)
        raise refusal

    async def _query(
        self,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        also_next: tuple[type[BrokerError], ...] = (),
        but: ResponseCode | None = None,
    ) -> RemotingCommand:
        """Return the first response.

        If there is none, raises the last error whose type is in `also_next`; otherwise NameServerUnavailable
        with the reasons.
        """
        silent: list[str] = []
        negative: BrokerError | None = None
        first = self._current
        for number in range(first, first + len(self.addresses)):
            try:
                answer = await self._call(self.addresses[number % len(self.addresses)], code, fields, but)
            except (NameServerUnavailable, NameServerBusy) as error:
                silent.append(error.message)
            except also_next as error:
                negative = error
            else:
                self._current = number
                return answer
        if negative is not None:
            raise negative
        raise NameServerUnavailable(
            Status.NAMESRV_UNREACHABLE, f"no NameServer responded: {'; '.join(silent)}"
        )

    async def _at_each(self, question: Callable[[str], Awaitable[T]]) -> dict[str, T | BrokerError]:
        async def query(address: str) -> T | BrokerError:
            try:
                return await question(address)
            except BrokerError as error:
                return error

        answers = await asyncio.gather(*map(query, self.addresses))
        return dict(zip(self.addresses, answers, strict=True))

    async def _change(self, code: RequestCode, fields: Mapping[str, str]) -> list[RemotingCommand]:
        answers = (await self._at_each(lambda address: self._call(address, code, fields))).values()
        for answer in answers:
            if isinstance(answer, BrokerError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BrokerError)]


def parse_cluster_info(body: bytes) -> ClusterInfo:
    """Decode the body of cluster info. Raises FrameRefused (FRAME_INVALID).

    The response of RocketMQ's NameServers contains only brokers and addresses.
    """
    value = parse_body(body).get("nameServer")
    if value is None:
        return ClusterInfo("", 0, 0, _entries_of_rocketmq(body), 0, 0, 0, 0, (), {})
    try:
        known: dict[str, Any] = {name: value[name] for name in ClusterInfo._fields}
        brokers = [
            BrokerEntry(**{name: entry[name] for name in BrokerEntry._fields}) for entry in value["brokers"]
        ]
    except (KeyError, TypeError) as error:
        raise FrameRefused(f"the cluster information from a NameServer is invalid: {error!r}") from None
    return ClusterInfo(**{**known, "brokers": brokers})


def _entries_of_rocketmq(body: bytes) -> list[BrokerEntry]:
    return [
        BrokerEntry(
            cluster=cluster,
            broker_name=broker.name,
            node_id=address,
            broker_id=broker_id,
            role="MASTER" if broker_id == MASTER_ID else "SLAVE",
            address=address,
            http_address="",
            term=NO_TERM,
            role_epoch=0,
            last_update_ms=0,
            expire_ms=0,
            has_session=True,
            node_address="",
        )
        for cluster, brokers in sorted(parse_clusters(body).items())
        for broker in brokers
        for broker_id, address in sorted(broker.addresses.items())
    ]
