"""The door of the remoting protocol put together for one node."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE, BrokerApi, ImportApi, TopicConfig
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.errors import ResponseCode
from broker_adapter.format.host import Host
from broker_adapter.format.topic_names import RETRY_PREFIX
from broker_adapter.pop.api import DeliveryApi, PeekApi
from broker_adapter.processor import admin_bodies, bodies
from broker_adapter.processor.admin import AdminProcessor
from broker_adapter.processor.assignments import Assignments
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.processor.handlers import BothProtocols, Handler
from broker_adapter.processor.imports import ImportProcessor
from broker_adapter.processor.locks import LockProcessor
from broker_adapter.processor.offsets import OffsetProcessor
from broker_adapter.processor.peeks import PeekProcessor
from broker_adapter.processor.pops import PopProcessor
from broker_adapter.processor.pulls import PullProcessor, ReadRules
from broker_adapter.processor.replies import ReplyProcessor, reply_topic
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.processor.send_back import SendBackProcessor
from broker_adapter.processor.sends import SendProcessor
from broker_adapter.processor.transactions import TransactionProcessor
from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.directory import Directory
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.executors import Dispatch, Processor
from broker_adapter.remoting_door.access import RemotingAccess
from broker_adapter.remoting_door.door import PULLS, REPLIES, SENDS, CheckOperator, RemotingDoor
from broker_adapter.remoting_door.member_queries import MemberQueries
from broker_adapter.remoting_door.node_queries import NodeQueries
from broker_adapter.remoting_door.port import RemotingPort
from broker_adapter.traffic.traffic import Traffic
from dledger import NodeConfig, TlsFiles

_DEFAULT_TIMES = 16
#: Whose protocol it is, for those who go by it.
_VERSION = "V5_3_3"
#: RocketMQ's name of the topic that others are made like, and the permission that says so.
_DEFAULT_TOPIC, _PERM_INHERIT = "TBW102", 1


class Making(NamedTuple):
    """How the broker makes a topic of its own, and knows a group for a client at host:port."""

    topic: Callable[[str], Awaitable[None]]
    group: Callable[[str, str], Awaitable[None]]


def both_protocols(
    proxy: Answering,
    *,
    broker: BrokerApi,
    traffic: Traffic,
    imports: ImportApi,
    delivery: DeliveryApi,
    peeks: PeekApi,
    directory: Directory,
    making: Making,
    broker_name: str,
    store_host: Host,
    max_body_bytes: int,
    node_id: str,
    lock_live_s: float,
    is_member: Callable[[str, str], bool],
    cluster: str,
    replies: ReplyProcessor,
    version: Callable[[], int],
    rules: ReadRules,
    defaults: Iterable[TopicConfig],
    access: RemotingAccess | None = None,
) -> BothProtocols:
    """As the master answers. `proxy`: clients of RocketMQ 5; `max_body_bytes`: of one message; `version`: of
    topics and groups; `rules`: for whoever reads; `defaults`: of `default_topics`; `access`: who may see what
    was found;
    `is_member(group, client id)`: of clients of RocketMQ 4 at this node."""

    def check_read(context: CallContext, topic: str) -> None:
        if access is not None:
            access.check_read(context.account, topic)

    sends = SendProcessor(broker, delivery, store_host, max_body_bytes, node_id, cluster)
    pulls, offsets = PullProcessor(broker, check_read, rules), OffsetProcessor(broker)
    locks = LockProcessor(time.monotonic, lock_live_s, is_member)

    def max_times(group: str) -> int:
        found = directory.group(group)
        return _DEFAULT_TIMES if found is None else found.retry_max_times

    back = SendBackProcessor(broker, delivery, making.group, making.topic, max_times, check_read)
    admin = AdminProcessor(broker, traffic, broker_name, str(store_host), version, directory, defaults)
    imported = ImportProcessor(imports)

    async def heartbeat(request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """What a group needs before its first message is sent back."""
        for data in bodies.heartbeat(request.command.body).consumers:
            await making.group(data.group, context.remote)
            await making.topic(RETRY_PREFIX + data.group)
        return request.command.answer(ResponseCode.SUCCESS)

    pops, peeking = PopProcessor(delivery, peeks, directory, broker_name), PeekProcessor(peeks)
    table: dict[int, Handler] = {
        RequestCode.POP_MESSAGE: pops.pop,
        RequestCode.ACK_MESSAGE: pops.ack,
        RequestCode.BATCH_ACK_MESSAGE: pops.ack_many,
        RequestCode.PEEK_MESSAGE: peeking.peek,
        RequestCode.NOTIFICATION: peeking.notify,
        RequestCode.POLLING_INFO: peeking.count_waiting,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pops.change_invisible,
        **dict.fromkeys(SENDS, sends.send),
        **dict.fromkeys(PULLS, pulls.pull),
        **dict.fromkeys(REPLIES, replies.reply),
        RequestCode.CONSUMER_SEND_MSG_BACK: back.send_back,
        RequestCode.HEART_BEAT: heartbeat,
        RequestCode.QUERY_MESSAGE: pulls.query,
        RequestCode.VIEW_MESSAGE_BY_ID: pulls.view,
        RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
        RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
        RequestCode.GET_MAX_OFFSET: offsets.max_offset,
        RequestCode.GET_MIN_OFFSET: offsets.min_offset,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.by_time,
        RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest_time,
        RequestCode.END_TRANSACTION: TransactionProcessor(delivery).end,
        **_of_administrators(admin, imported),
        RequestCode.LOCK_BATCH_MQ: locks.lock,
        RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
    }
    return BothProtocols(proxy, table)


def _of_administrators(admin: AdminProcessor, imported: ImportProcessor) -> dict[int, Handler]:
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: admin.put_topic,
        RequestCode.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
        RequestCode.GET_ALL_TOPIC_CONFIG: admin.all_topics,
        RequestCode.GET_TOPIC_CONFIG: admin.topic,
        RequestCode.GET_TOPIC_STATS_INFO: admin.topic_stats,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.put_group,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.delete_group,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.all_groups,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.group,
        RequestCode.GET_CONSUME_STATS: admin.consume_stats,
        RequestCode.GET_BROKER_CONSUME_STATS: admin.all_consume_stats,
        RequestCode.GET_ALL_CONSUMER_OFFSET: admin.all_offsets,
        RequestCode.GET_ALL_DELAY_OFFSET: admin.all_delays,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.groups_of_topic,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: admin.reset,
        RequestCode.BEGIN_QUEUE: imported.begin_queue,
        RequestCode.IMPORT_MESSAGES: imported.store,
        RequestCode.READ_QUEUE: imported.read_queue,
    }


def default_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """What NameServers are told beside the topics that there are: answers are sent as the route of one says,
    and messages of a topic that nobody has created as that of the other."""
    if not settings.remoting.listen:
        return []
    found, queues = [TopicConfig(reply_topic(settings.cluster), 1, 1)], settings.default_queues
    if settings.auto_create_topics:
        permission = PERM_READ | PERM_WRITE | _PERM_INHERIT
        found.append(TopicConfig(_DEFAULT_TOPIC, queues, queues, permission))
    return found


def remoting_port(
    settings: BrokerSettings,
    config: NodeConfig,
    answering: Answering,
    directory: Directory,
    clients: RemotingClients,
    replies: ReplyProcessor,
    node_files: TlsFiles | None,
    broker_id: Callable[[], int],
    traffic: Traffic,
    *,
    check_operator: CheckOperator | None,
    access: RemotingAccess | None = None,
    commands: Mapping[int, Processor] = MappingProxyType({}),
    more_settings: Callable[[], Mapping[str, str]] = dict,
    log_rows: Callable[[], Mapping[str, str]] = dict,
) -> RemotingPort:
    """`answering`: who has what this node does not answer itself; `check_operator`: as RemotingDoor has it;
    `access`: who may ask what, which then decides alone; `commands`: of operators to this node alone;
    `more_settings`: of its log; `log_rows`: what it says of that and its disk. ConfigError as from
    RemotingPort."""
    dispatch, boot_ms = Dispatch([] if access is None else [access]), time.time_ns() // 1_000_000
    door = RemotingDoor(
        answering,
        settings.remoting,
        clients,
        lambda topic: directory.topic(topic) is not None,
        replies,
        check_operator=check_operator if access is None else None,
        knows_accounts=access is not None,
    )

    def shown() -> dict[str, str]:
        return {
            "brokerClusterName": settings.cluster,
            "brokerName": settings.name,
            "brokerId": str(broker_id()),
            "listenPort": settings.remoting.listen.rpartition(":")[2],
            "namesrvAddr": ";".join(settings.namesrv),
            "autoCreateTopicEnable": str(settings.auto_create_topics).lower(),
            "defaultTopicQueueNums": str(settings.default_queues),
            **more_settings(),
        }

    def runtime() -> dict[str, str]:
        told = {"brokerVersionDesc": _VERSION, "brokerVersion": "479", "bootTimestamp": str(boot_ms)}
        return {**told, **admin_bodies.traffic_rows(traffic), **door.places(), **log_rows()}

    door.register_with(dispatch)
    Assignments(clients, directory.topic, settings.name).register_with(dispatch, door.of_clients)
    NodeQueries(clients, shown, runtime, traffic).register_with(dispatch, door.admin)
    members = MemberQueries(clients, settings.name, door.ask_master)
    members.register_with(dispatch, door.guarded)
    for code, processor in commands.items():
        dispatch.register([code], door.guarded(processor), door.admin)
    return RemotingPort(
        settings.remoting,
        config.address,
        dispatch,
        node_files,
        allow_plaintext=config.allow_plaintext,
        events=[clients],
    )
