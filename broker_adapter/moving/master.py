"""The live master that messages move away from, asked by way of the remoting protocol (SlaveSynchronize)."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.classic.tables import delays_of, groups_of, offsets_of, parse_table, topics_of
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
from broker_adapter.format.topic_names import HALF_TOPIC
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from dledger.platform import host_of, split_address

_CALL_S = 10.0
#: The group in whose name the broker looks at half messages.
_CHECKER = "CID_RMQ_SYS_TRANS"
_PERMISSION, _SENDS_FROM = "brokerPermission", "startAcceptSendRequestTimeStamp"


class Unit(NamedTuple):
    """Where a message of a queue is in the CommitLog, and the code of its tag."""

    physical_offset: int
    size: int
    tag_code: int

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Admission(NamedTuple):
    """What a broker of RocketMQ lets clients do. `permission`: what its routes say; who has an older route
    may send all the same, but to ordered topics. `sends_from_ms`: before that time (Unix, ms) no send is
    stored, whatever its sender knows."""

    permission: int
    sends_from_ms: int


#: In the year 9999.
NEVER_MS = 253_402_300_799_000


class Frontier(NamedTuple):
    """`log_begin`, `log_end`: of the CommitLog. `dispatched`: all messages before it are in their queues."""

    log_begin: int
    log_end: int
    dispatched: int


class Master:
    """Use it with `async with`. Nothing is tried twice: BrokerErrors."""

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        name: str = "",
        address: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`name`: of the broker at the NameServers. `address`: its remoting port, if they do not know it.
        `tls` None: plain text."""
        self._client = ClientInstance(name_servers, ClientOptions(request_timeout_s=_CALL_S), tls)
        self.name = name
        self.address = address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def find(self, ha_address: str) -> None:
        """Which master it is whose port for slaves is there. TopicRefused (QUEUE_UNKNOWN)."""
        host, port = split_address(ha_address)
        if self.address:
            await self._check_port(self.address, port)
            return
        request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        clusters = parse_clusters((await self._client.call_name_server(request)).body)
        known = [one for brokers in clusters.values() for one in brokers if one.master is not None]
        candidates = [one for one in known if one.name == self.name] if self.name else self._on(host, known)
        for one in candidates:
            if (await self._settings(str(one.master))).get("haListenPort") == port:
                self.name, self.address = one.name, str(one.master)
                return
        names = ", ".join(sorted({one.name for one in known})) or "no master"
        text = f"the NameServers know {names}, none with haListenPort {port} at {host}: name it with --master"
        raise TopicRefused(Status.QUEUE_UNKNOWN, text)

    @staticmethod
    def _on(host: str, known: Sequence[BrokerAddresses]) -> list[BrokerAddresses]:
        return [one for one in known if host_of(str(one.master)) == host]

    async def _check_port(self, address: str, ha_port: str) -> None:
        settings = await self._settings(address)
        self.name = self.name or settings.get("brokerName", "")
        if settings.get("haListenPort") != ha_port or settings.get("brokerId") != "0":
            text = (
                f"{address} is broker {settings.get('brokerName')} with id {settings.get('brokerId')} and "
                f"haListenPort {settings.get('haListenPort')}, no master with {ha_port}"
            )
            raise TopicRefused(Status.QUEUE_UNKNOWN, text)

    # -- state of the broker ------------------------------------------------------------------------------

    async def _settings(self, address: str) -> dict[str, str]:
        answer = await self._client.call(address, RemotingCommand(RequestCode.GET_BROKER_CONFIG))
        lines = answer.body.decode(errors="replace").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    async def admission(self) -> Admission:
        settings = await self._settings(self.address)
        return Admission(int(settings.get(_PERMISSION, "6")), int(settings.get(_SENDS_FROM, "0")))

    async def set_admission(self, admission: Admission) -> None:
        """The NameServers learn of it at once."""
        body = f"{_PERMISSION}={admission.permission}\n{_SENDS_FROM}={admission.sends_from_ms}\n"
        await self._call(RequestCode.UPDATE_BROKER_CONFIG, body=body.encode())

    async def frontier(self) -> Frontier:
        # Asked twice: the answer is not made at one moment, and in this order the frontier is never too far.
        first = await self._runtime()
        log_begin, log_end = _figure(first, "commitLogMinOffset"), _figure(first, "commitLogMaxOffset")
        behind = _figure(await self._runtime(), "dispatchBehindBytes")
        return Frontier(max(0, log_begin), log_end, max(0, log_end - behind))

    async def log_end(self) -> int:
        return _figure(await self._runtime(), "commitLogMaxOffset")

    async def open_transactions(self) -> int:
        """Half messages that the broker has not passed: it does when they were ended, at its next look, which
        is every 30 s (transactionCheckInterval)."""
        _, end = await self.bounds(HALF_TOPIC, 0)
        done = [one.offset for one in (await self.offsets()).get(_CHECKER, ()) if one.topic == HALF_TOPIC]
        return max(0, end - max(done, default=0))

    async def is_consuming(self, group: str) -> bool:
        """Whether the group has members."""
        try:
            await self._call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        except BrokerError as error:
            if isinstance(error, AnswerMissing | PutRefused):
                raise
            return False
        return True

    async def waiting_timers(self) -> int:
        """Messages of RocketMQ 5's timers that are not due yet."""
        table = await self._runtime()
        return _figure(table, "timerCongestNum", 0) + _figure(table, "timerOffsetBehind", 0)

    async def _runtime(self) -> Mapping[str, str]:
        return parse_runtime((await self._call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)

    # -- tables -------------------------------------------------------------------------------------------

    async def topics(self) -> dict[str, TopicConfig]:
        """All, those of the broker's own too."""
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
        """By group."""
        return offsets_of(parse_table((await self._call(RequestCode.GET_ALL_CONSUMER_OFFSET)).body))

    async def delays(self) -> dict[int, int]:
        """By level, the first offset of its queue that was not delivered."""
        return delays_of(parse_table((await self._call(RequestCode.GET_ALL_DELAY_OFFSET)).body))

    # -- queues -------------------------------------------------------------------------------------------

    async def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(the first offset, the one behind the last) of a queue."""
        fields = {"topic": topic, "queueId": str(queue_id)}
        least = requests.number(await self._call(RequestCode.GET_MIN_OFFSET, fields), "offset")
        end = requests.number(await self._call(RequestCode.GET_MAX_OFFSET, fields), "offset")
        return max(0, min(least, end)), max(0, end)

    async def unit(self, topic: str, queue_id: int, offset: int) -> Unit:
        """ReadFailed (MESSAGE_NOT_FOUND) if retention has removed it."""
        fields = {"topic": topic, "queueId": str(queue_id), "index": str(offset), "count": "1"}
        fields["consumerGroup"] = ""
        body = (await self._call(RequestCode.QUERY_CONSUME_QUEUE, fields)).body
        try:
            rows = json.loads(body).get("queueData") or []
            found = [Unit(int(r["physicOffset"]), int(r["physicSize"]), int(r["tagsCode"])) for r in rows[:1]]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise FrameRefused(f"{self.address}: a queue of {topic} that cannot be read") from None
        if not found:
            text = f"{self.address}: queue {queue_id} of {topic} has no message {offset} any more"
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, text)
        return found[0]

    async def record_at(self, physical_offset: int) -> bytes:
        fields = {"offset": str(physical_offset)}
        return (await self._call(RequestCode.VIEW_MESSAGE_BY_ID, fields)).body

    async def _call(
        self, code: RequestCode, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return await self._client.call(self.address, RemotingCommand(code, dict(fields or {}), body))


def _figure(table: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = table.get(name, default)
    try:
        return int("" if value is None else value)
    except ValueError:
        raise AnswerMissing(Status.ANSWER_MISSING, f"the master does not say its {name}") from None


def _check_complete(answer: RemotingCommand, field: str, count: int) -> None:
    """Brokers may give their tables in parts."""
    total = requests.number(answer, field, count)
    if total > count:
        raise error_for(Status.STORE_UNSUPPORTED, f"the master gave {count} of {total} ({field})")
