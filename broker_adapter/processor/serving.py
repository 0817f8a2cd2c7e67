"""The door of the remoting protocol put together for one node."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE, BrokerApi, TopicConfig
from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.errors import ResponseCode
from broker_adapter.format.host import Host
from broker_adapter.format.topic_names import RETRY_PREFIX
from broker_adapter.pop.api import DeliveryApi
from broker_adapter.processor import bodies
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.processor.door import PULLS, SENDS, RemotingDoor
from broker_adapter.processor.handlers import BothProtocols, Handler
from broker_adapter.processor.locks import LockProcessor
from broker_adapter.processor.offsets import OffsetProcessor
from broker_adapter.processor.port import RemotingPort
from broker_adapter.processor.pulls import PullProcessor
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.processor.send_back import SendBackProcessor
from broker_adapter.processor.sends import SendProcessor
from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.directory import Directory
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.executors import Dispatch
from dledger import TlsFiles

_DEFAULT_TIMES = 16
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
    delivery: DeliveryApi,
    directory: Directory,
    making: Making,
    store_host: Host,
    max_body_bytes: int,
) -> BothProtocols:
    """As the master answers. `proxy`: clients of RocketMQ 5; `max_body_bytes`: of one message."""
    sends = SendProcessor(broker, delivery, store_host, max_body_bytes)
    pulls, offsets, locks = PullProcessor(broker), OffsetProcessor(broker), LockProcessor(time.monotonic)

    def max_times(group: str) -> int:
        found = directory.group(group)
        return _DEFAULT_TIMES if found is None else found.retry_max_times

    back = SendBackProcessor(broker, delivery, making.topic, max_times)

    async def heartbeat(request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """What a group needs before its first message is sent back."""
        for data in bodies.heartbeat(request.command.body).consumers:
            await making.group(data.group, context.remote)
            await making.topic(RETRY_PREFIX + data.group)
        return request.command.answer(ResponseCode.SUCCESS)

    table: dict[int, Handler] = {
        **dict.fromkeys(SENDS, sends.send),
        **dict.fromkeys(PULLS, pulls.pull),
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
        RequestCode.LOCK_BATCH_MQ: locks.lock,
        RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
    }
    return BothProtocols(proxy, table)


def default_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """What NameServers are told beside the topics that there are: producers send to a topic that nobody has
    created as the route of this one says."""
    if not (settings.remoting.listen and settings.auto_create_topics):
        return []
    queues = settings.default_queues
    return [TopicConfig(_DEFAULT_TOPIC, queues, queues, PERM_READ | PERM_WRITE | _PERM_INHERIT)]


def remoting_port(
    settings: RemotingSettings,
    member_address: str,
    answering: Answering,
    directory: Directory,
    node_files: TlsFiles | None,
    *,
    allow_plaintext: bool,
) -> RemotingPort:
    """`answering`: who has what this node does not answer itself. ConfigError as from RemotingPort."""
    dispatch, clients = Dispatch(), RemotingClients()
    door = RemotingDoor(answering, settings, clients, lambda topic: directory.topic(topic) is not None)
    door.register_with(dispatch)
    return RemotingPort(
        settings, member_address, dispatch, node_files, allow_plaintext=allow_plaintext, events=[clients]
    )
