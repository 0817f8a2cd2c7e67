"""Client of the live RocketMQ master that is being migrated.

Like SlaveSynchronize, uses the remoting protocol.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.client.core import requests
from broker_adapter.client.core.admin_bodies import parse_runtime
from broker_adapter.client.core.route_data import BrokerAddresses, parse_clusters
from broker_adapter.client.instance import ClientInstance
from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import (
    AnswerMissing,
    BrokerError,
    FrameRefused,
    PutRefused,
    ReadFailed,
    Status,
    TopicRefused,
    error_for,
)
from broker_adapter.log.classic.tables import delays_of, groups_of, offsets_of, parse_table, topics_of
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.topic_names import HALF_TOPIC
from dledger.infra.addresses import host_of, split_address

_CALL_S = 10.0
# Consumer group with which RocketMQ's broker reads half messages.
_CHECKER = "CID_RMQ_SYS_TRANS"
_PERMISSION, _SENDS_FROM = "brokerPermission", "startAcceptSendRequestTimeStamp"


class QueueUnit(NamedTuple):
    """Position of a queue's message in the CommitLog, and its tag code."""

    physical_offset: int
    size: int
    tag_code: int

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class BrokerAdmission(NamedTuple):
    """Permissions of a RocketMQ broker.

    `permission`: permission in the broker's routes. A client with an older route may still send, except to
    ordered topics. `sends_from_ms`: Unix time in ms before which the broker refuses all sends.
    """

    permission: int
    sends_from_ms: int


# In the year 9999.
NEVER_MS = 253_402_300_799_000


class Frontier(NamedTuple):
    """Bounds of the CommitLog. Messages before `dispatched` are in their ConsumeQueues."""

    log_begin: int
    log_end: int
    dispatched: int


class Master:
    """Client of the master, and an async context manager. Calls are not retried and raise BrokerErrors."""

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        name: str = "",
        address: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Create a client for the master at `address`, or for the one that `find` selects.

        `name`: broker name at the NameServers. `address`: remoting address, if the NameServers do not know
        the broker. `tls`: None for plain text.
        """
        self._client = ClientInstance(name_servers, ClientOptions(request_timeout=_CALL_S), tls)
        self.name = name
        self.address = address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def find(self, ha_address: str) -> None:
        """Select the master whose HA port is that of `ha_address`.

        The host is compared only if the client was created with neither a name nor an address. Raises
        TopicRefused (QUEUE_UNKNOWN) if there is no such master.
        """
        host, port = split_address(ha_address)
        if self.address:
            await self._check_port(self.address, port)
            return
        request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        clusters = parse_clusters((await self._client.call_name_server(request)).body)
        known = [broker for brokers in clusters.values() for broker in brokers if broker.master is not None]
        named = [broker for broker in known if broker.name == self.name]
        for broker in named if self.name else self._on(host, known):
            if (await self._settings(str(broker.master))).get("haListenPort") == port:
                self.name, self.address = broker.name, str(broker.master)
                return
        names = ", ".join(sorted({broker.name for broker in known})) or "no master"
        text = f"the NameServers know {names}, none with haListenPort {port} at {host}: name it with --master"
        raise TopicRefused(Status.QUEUE_UNKNOWN, text)

    @staticmethod
    def _on(host: str, known: Sequence[BrokerAddresses]) -> list[BrokerAddresses]:
        return [broker for broker in known if host_of(str(broker.master)) == host]

    async def _check_port(self, address: str, ha_port: str) -> None:
        settings = await self._settings(address)
        self.name = self.name or settings.get("brokerName", "")
        if settings.get("haListenPort") != ha_port or settings.get("brokerId") != "0":
            text = (
                f"{address} is broker {settings.get('brokerName')} with id {settings.get('brokerId')} and "
                f"haListenPort {settings.get('haListenPort')}, no master with {ha_port}"
            )
            raise TopicRefused(Status.QUEUE_UNKNOWN, text)

    # -- state of the broker -----------------------------------------------------------------------------

    async def _settings(self, address: str) -> dict[str, str]:
        answer = await self._client.call(address, RemotingCommand(RequestCode.GET_BROKER_CONFIG))
        lines = answer.body.decode(errors="replace").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    async def admission(self) -> BrokerAdmission:
        settings = await self._settings(self.address)
        return BrokerAdmission(int(settings.get(_PERMISSION, "6")), int(settings.get(_SENDS_FROM, "0")))

    async def set_admission(self, admission: BrokerAdmission) -> None:
        """Set the permissions. The broker announces them to the NameServers immediately."""
        body = f"{_PERMISSION}={admission.permission}\n{_SENDS_FROM}={admission.sends_from_ms}\n"
        await self._call(RequestCode.UPDATE_BROKER_CONFIG, body=body.encode())

    async def frontier(self) -> Frontier:
        # A single response is not a consistent snapshot. The order of two calls never overestimates
        # `dispatched`.
        first = await self._runtime()
        log_begin, log_end = _number_of(first, "commitLogMinOffset"), _number_of(first, "commitLogMaxOffset")
        behind = _number_of(await self._runtime(), "dispatchBehindBytes")
        return Frontier(max(0, log_begin), log_end, max(0, log_end - behind))

    async def log_end(self) -> int:
        return _number_of(await self._runtime(), "commitLogMaxOffset")

    async def open_transactions(self) -> int:
        """Return the number of half messages that the broker's transaction check has not passed yet.

        The check runs every 30 s (transactionCheckInterval). Its next round passes ended transactions.
        """
        _, end = await self.bounds(HALF_TOPIC, 0)
        checked = (await self.offsets()).get(_CHECKER, ())
        done = [row.offset for row in checked if row.topic == HALF_TOPIC]
        return max(0, end - max(done, default=0))

    async def is_consuming(self, group: str) -> bool:
        """True if the group has members."""
        try:
            await self._call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        except BrokerError as error:
            if isinstance(error, AnswerMissing | PutRefused):
                raise
            return False
        return True

    async def waiting_timers(self) -> int:
        """Return the number of messages in RocketMQ 5's timers that are not due yet."""
        table = await self._runtime()
        return _number_of(table, "timerCongestNum", 0) + _number_of(table, "timerOffsetBehind", 0)

    async def _runtime(self) -> Mapping[str, str]:
        return parse_runtime((await self._call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)

    # -- tables ------------------------------------------------------------------------------------------

    async def topics(self) -> dict[str, TopicConfig]:
        """Return all topics, including the broker's system topics."""
        answer = await self._call(RequestCode.GET_ALL_TOPIC_CONFIG)
        found = topics_of(parse_table(answer.body))
        _check_complete(answer, "totalTopicNum", len(found))
        return found

    async def groups(self) -> dict[str, GroupConfig]:
        answer = await self._call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found = groups_of(parse_table(answer.body))
        _check_complete(answer, "totalGroupNum", len(found))
        return found

    async def offsets(self) -> dict[str, list[QueueOffset]]:
        """Return committed offsets by group."""
        return offsets_of(parse_table((await self._call(RequestCode.GET_ALL_CONSUMER_OFFSET)).body))

    async def delays(self) -> dict[int, int]:
        """Return the first undelivered offset in the queue of each delay level, by level."""
        return delays_of(parse_table((await self._call(RequestCode.GET_ALL_DELAY_OFFSET)).body))

    # -- queues ------------------------------------------------------------------------------------------

    async def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (first offset, end offset) of a queue."""
        fields = {"topic": topic, "queueId": str(queue_id)}
        least = requests.number(await self._call(RequestCode.GET_MIN_OFFSET, fields), "offset")
        end = requests.number(await self._call(RequestCode.GET_MAX_OFFSET, fields), "offset")
        return max(0, min(least, end)), max(0, end)

    async def unit(self, topic: str, queue_id: int, offset: int) -> QueueUnit:
        """Return one ConsumeQueue unit.

        Raises ReadFailed (MESSAGE_NOT_FOUND) if the unit was removed by retention.
        """
        fields = {"topic": topic, "queueId": str(queue_id), "index": str(offset), "count": "1"}
        fields["consumerGroup"] = ""
        body = (await self._call(RequestCode.QUERY_CONSUME_QUEUE, fields)).body
        try:
            rows = json.loads(body).get("queueData") or []
            found = [
                QueueUnit(int(r["physicOffset"]), int(r["physicSize"]), int(r["tagsCode"])) for r in rows[:1]
            ]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise FrameRefused(f"{self.address}: a ConsumeQueue of topic {topic} cannot be parsed") from None
        if not found:
            text = f"{self.address}: queue {queue_id} of {topic} no longer has message {offset}"
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, text)
        return found[0]

    async def record_at(self, physical_offset: int) -> bytes:
        fields = {"offset": str(physical_offset)}
        return (await self._call(RequestCode.VIEW_MESSAGE_BY_ID, fields)).body

    async def _call(
        self, code: RequestCode, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return await self._client.call(self.address, RemotingCommand(code, dict(fields or {}), body))


def _number_of(table: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = table.get(name, default)
    try:
        return int("" if value is None else value)
    except ValueError:
        raise AnswerMissing(
            Status.ANSWER_MISSING, f"{name} is missing in the master's runtime info"
        ) from None


def _check_complete(answer: RemotingCommand, field: str, count: int) -> None:
    """Check that a table is complete, because a broker may return only a part of it."""
    total = requests.number(answer, field, count)
    if total > count:
        raise error_for(
            Status.STORE_UNSUPPORTED, f"the master returned only {count} of {total} entries ({field})"
        )
