"""The classic log under a broker: its node, roles by hand, and RocketMQ's tables beside it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from broker_adapter.api import BrokerRole
from broker_adapter.classic_node.node import ClassicNode
from broker_adapter.classic_node.records import RECORDS
from broker_adapter.client.core.route_data import parse_clusters
from broker_adapter.client.instance import ClientInstance
from broker_adapter.client.options import ClientOptions
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.deferred.deferring import Deferring, DeferringParts
from broker_adapter.errors import BrokerError, IllegalMessage, ResponseCode, Status
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.ha.handshake import HaIdentity
from broker_adapter.log.protocol import AppendLog, RecordLog
from broker_adapter.metadata.state import MetadataState
from broker_adapter.pop.state import DeliveryState
from broker_adapter.processor import fields as read
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Processor
from broker_adapter.server.classic_tables import TableWriter, adopt_tables, set_back_offsets
from broker_adapter.server.log_host import Beside, BrokerParts
from broker_adapter.server.slave_sync import SlaveSync
from broker_adapter.store.dispatcher import Dispatcher
from broker_adapter.system_queues.service import OWN_TOPICS, SystemQueues
from dledger import NodeConfig, TlsFiles
from dledger.platform import ClientTls, NodeTrace, get_logger

_log = get_logger("classic")
#: A NameServer that is asked at the start has so long (seconds).
_NAMESRV_S = 2.0
_MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_ROLES = {"master": True, "slave": False}


class ClassicHost:
    """Implements LogHost."""

    format = RECORDS
    slaves_read = True
    register_every_s = 5.0  # a slave learns so of another master
    own_topics = OWN_TOPICS

    def __init__(self, config: NodeConfig, settings: BrokerSettings) -> None:
        self._config = config
        self._settings = settings
        self._classic = settings.classic
        self.root = config.directory
        self.slave_id = settings.classic.broker_id

    def make_node(
        self,
        machine: Dispatcher,
        metadata: MetadataState,
        delivery: DeliveryState,
        trace: NodeTrace | None,
        options: Mapping[str, Any],
    ) -> ClassicNode:
        self._dispatcher = machine
        slave = HaIdentity(self._settings.cluster, self._settings.name, self.slave_id)

        has_adopted = False

        def adopt(is_new: bool) -> None:
            nonlocal has_adopted
            has_adopted = adopt_tables(self.root / "config", metadata, delivery, is_new)
            if has_adopted:
                machine.adopted()

        def settle() -> None:
            if has_adopted:
                set_back_offsets(metadata, self._max_offset)

        self._node = ClassicNode(
            self._config,
            self._classic,
            slave,
            machine,
            derived_end=lambda: machine.figures().checkpoint.end_pos,
            other_master=self._other_master,
            adopt=adopt,
            settle=settle,
            **options,
        )
        return self._node

    @property
    def appends(self) -> AppendLog:
        return self._node.appends

    @property
    def records(self) -> RecordLog:
        return self._node.records

    @property
    def reads_here(self) -> bool:
        """A slave that has what its master has not may have other messages at the same offsets."""
        return not self._node.replication.has_diverged

    @property
    def master_role(self) -> BrokerRole:
        return BrokerRole.SYNC_MASTER if self._node.waits_for_slaves else BrokerRole.ASYNC_MASTER

    @property
    def ha_address(self) -> str:
        return self._classic.ha_advertise or self._node.replication.address or self._classic.ha_listen

    def may_register(self, *, is_master: bool) -> bool:
        """A master begins as a slave of nobody, whose id another one may have."""
        return is_master == self._node.roles.leads

    def beside(self, parts: BrokerParts) -> Sequence[Beside]:
        return (
            SlaveSync(self._node, parts, self._client_tls, self._max_offset, self._dispatcher.adopted),
            TableWriter(
                self.root / "config", parts, self._node.wait_applied, lambda: self._dispatcher.is_durable
            ),
        )

    def _max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._dispatcher.queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def suggested_reader(self, physical_offset: int) -> int:
        """RocketMQ's rule: what is further behind than a part of the memory is read from the disk."""
        classic = self._classic
        behind = self._node.log.end_offset - physical_offset
        is_far = behind > _MEMORY_BYTES * classic.access_message_in_memory_max_ratio // 100
        return classic.which_broker_when_consume_slowly if is_far and classic.slave_read_enable else MASTER_ID

    def commands(self) -> Mapping[int, Processor]:
        return {
            RequestCode.CHANGE_BROKER_ROLE: self._change_role,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._delete_expired,
        }

    def deferring(self, own: Deferring, parts: DeferringParts) -> Deferring:
        return SystemQueues(own, parts, reserved_ms=3_600_000 * self._classic.file_reserved_hours)

    def told_settings(self) -> Mapping[str, str]:
        classic = self._classic
        role = self.master_role.value if self._node.roles.leads else BrokerRole.SLAVE.value
        return {
            "brokerRole": role,
            "flushDiskType": classic.flush,
            "haListenPort": self.ha_address.rpartition(":")[2],
            "mappedFileSizeCommitLog": str(classic.file_size),
            "slaveReadEnable": str(classic.slave_read_enable).lower(),
            "storePathRootDir": str(self.root),
        }

    def metrics(self) -> Iterable[Metric]:
        return self._node.replication.metrics()

    def shown(self) -> Mapping[str, Any]:
        log = self._node.log
        recovery = log.recovery
        return {
            "ha": self._node.replication.shown(),
            "commit_log": {
                "begin_offset": log.begin_offset,
                "end_offset": log.end_offset,
                "flushed_offset": log.flushed_offset,
                "refusal": log.refusal,
                "was_clean": recovery.was_clean,
                "cut_bytes": recovery.cut_bytes,
                "damage": recovery.damage,
            },
        }

    async def _other_master(self) -> str:
        """As NameServers have it; nothing is known if none answers."""
        remoting = self._settings.remoting
        if not remoting.namesrv:
            return ""
        client = ClientInstance(
            list(remoting.namesrv), ClientOptions(request_timeout_s=_NAMESRV_S), self._client_tls()
        )
        try:
            answer = await client.call_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
            clusters = parse_clusters(answer.body)
        except BrokerError as error:
            _log.warning("no NameServer says who is master now", reason=str(error))
            return ""
        finally:
            await client.close()
        brokers = clusters.get(self._settings.cluster, ())
        masters = [one.master for one in brokers if one.name == self._settings.name and one.master]
        own = remoting.told_address(self._config.address)
        return next((master for master in masters if master != own), "")

    def _client_tls(self) -> ssl.SSLContext | None:
        """Of what this broker asks by remoting; None: plain text. Reads files."""
        section = self._config.tls
        if section is None or not self._settings.remoting.client_tls:
            return None
        return ClientTls(TlsFiles(section.ca, section.certificate, section.key)).stream_context()

    async def _delete_expired(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """As RocketMQ's: files of old messages go at this hour, too. Answered before they have gone."""
        self._node.upkeep.clean_now()
        return request.answer(ResponseCode.SUCCESS)

    async def _change_role(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """`role`: master or slave; `force`: whatever it lacks."""
        role = read.text(request.fields, "role")
        if role not in _ROLES:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"role {role[:32]!r}: master or slave")
        await self._node.change_role(_ROLES[role], force=read.flag(request.fields, "force"))
        return request.answer(ResponseCode.SUCCESS)
