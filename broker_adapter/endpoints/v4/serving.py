"""Assembles the remoting endpoint of one node."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker_adapter.api import (
    DEFAULT_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    BrokerApi,
    ImportApi,
    TopicConfig,
)
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.delivery.api import DeliveryApi, PeekApi
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.lists.calls import ForwardList
from broker_adapter.endpoints.lists.send_list import NodeSends, SendStarter
from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.endpoints.v4.access import RemotingAccess
from broker_adapter.endpoints.v4.admin import AdminProcessor, ImportProcessor
from broker_adapter.endpoints.v4.calls import (
    Forwarding,
    MasterProcessors,
    NodeClients,
    ProtocolHandlers,
    RepeatedChanges,
)
from broker_adapter.endpoints.v4.locks import LockProcessor
from broker_adapter.endpoints.v4.node import (
    ClientProcessor,
    Executors,
    NodeProcessors,
    make_executors,
    queue_rows,
)
from broker_adapter.endpoints.v4.node_queries import NodeQueries, NodeReport, ReadableQueues
from broker_adapter.endpoints.v4.offsets import OffsetProcessor
from broker_adapter.endpoints.v4.pops import PeekProcessor, PopProcessor
from broker_adapter.endpoints.v4.port import RemotingPort, SendOnly
from broker_adapter.endpoints.v4.pulls import PullProcessor, ReadRules
from broker_adapter.endpoints.v4.recalls import RecallProcessor
from broker_adapter.endpoints.v4.replies import ReplyProcessor
from broker_adapter.endpoints.v4.request import REMOTING, SEND
from broker_adapter.endpoints.v4.requests import TABLE
from broker_adapter.endpoints.v4.retries import Retries, SendBackProcessor
from broker_adapter.endpoints.v4.send_only import SendOnlyAnswers, SendOnlyEvents, marked
from broker_adapter.endpoints.v4.sends import SendProcessor, SendRules, SendTopics
from broker_adapter.endpoints.v4.transactions import TransactionProcessor
from broker_adapter.endpoints.v5.calls.handlers import Answering
from broker_adapter.endpoints.v5.messages.methods import SEND_MESSAGE
from broker_adapter.errors import Status, error_for
from broker_adapter.put.sender import SendApi
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, ListProcessor, Processor
from broker_adapter.wire.topic_names import reply_topic
from dledger import Code, ConfigError, InvalidRequest, NodeConfig, TlsFiles
from dledger.node.setup.config import is_loopback

#: Raises InvalidRequest for a client certificate that does not belong to an operator.
CheckOperator = Callable[[Mapping[str, Iterable[bytes]]], None]


class Store(NamedTuple):
    """The interfaces to the store on the master."""

    broker: BrokerApi
    sends: SendApi
    delivery: DeliveryApi
    peeks: PeekApi
    imports: ImportApi
    traffic: Traffic


class TopicsAndGroups(NamedTuple):
    """Lookup and creation of topics and groups on the master.

    `version` increases with each change. `make_group` creates a group for the client at
    host:port if the settings permit it.
    """

    directory: Directory
    version: Callable[[], int]
    make_group: Callable[[str, str], Awaitable[None]]
    topics: SendTopics


class NodeTopics(NamedTuple):
    """Topics and groups of this log, and the queues of topics at all brokers of the cluster."""

    directory: Directory
    readable_queues: ReadableQueues


class OperatorRules(NamedTuple):
    """Access rules.

    `access`: accounts. If there are any, no other rule applies. `check_operator` raises an error for clients
    that may not send operator requests; None: all clients may. `commands`: processors of operator requests
    for this node's log, by code.
    """

    access: RemotingAccess | None = None
    check_operator: CheckOperator | None = None
    commands: Mapping[int, Processor] = MappingProxyType({})


def master_processors(
    settings: BrokerSettings,
    store: Store,
    topics: TopicsAndGroups,
    sends: SendRules,
    reads: ReadRules,
    locks: LockProcessor,
    replies: ReplyProcessor,
) -> MasterProcessors:
    broker, delivery, directory = store.broker, store.delivery, topics.directory
    retries = Retries(directory.group, locks.has_locks, topics.make_group, topics.topics.make)
    return MasterProcessors(
        sends=SendProcessor(broker, store.sends, delivery, retries, topics.topics, sends),
        send_backs=SendBackProcessor(broker, store.sends, delivery, retries, reads.check_read),
        transactions=TransactionProcessor(delivery),
        recalls=RecallProcessor(delivery, directory),
        pulls=PullProcessor(broker, reads),
        offsets=OffsetProcessor(broker),
        pops=PopProcessor(delivery, store.peeks, settings.name),
        peeks=PeekProcessor(store.peeks),
        locks=locks,
        replies=replies,
        admin=AdminProcessor(
            broker,
            store.traffic,
            settings.name,
            lambda: str(sends.store_host()),
            topics.version,
            directory,
            default_topics(settings),
        ),
        imports=ImportProcessor(store.imports),
    )


def node_sends(
    master: MasterProcessors,
    producers: SendStarter,
    accepts_writes: Callable[[], bool],
    forward: ForwardList,
    timeout_s: float,
) -> NodeSends:
    """Return the sends that this node stores while `accepts_writes` returns True, and otherwise forwards.

    `producers` starts the sends of RocketMQ 5 clients. `timeout_s` applies to those without a deadline.
    """
    starters: dict[str, SendStarter] = {REMOTING: master.sends, SEND_MESSAGE: producers}
    return NodeSends(starters, accepts_writes, forward, timeout_s=timeout_s)


def both_protocols(proxy: Answering, master: MasterProcessors) -> ProtocolHandlers:
    """Build the master's handlers. `proxy` serves RocketMQ 5 clients."""
    once = RepeatedChanges(time.monotonic).once
    table = {}
    for row in TABLE:
        if row.handler is not None:
            handler = row.handler(master)
            table[int(row.code)] = once(handler) if row.once_per_route else handler
    return ProtocolHandlers(proxy, table)


def default_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """Return the topics announced to NameServers in addition to existing ones.

    The route of the reply topic is used for replies, and the route of the default topic for topics that do
    not exist yet. Tools create topics at the brokers in the route of a cluster's or broker's name.
    """
    if not settings.remoting.listen:
        return []
    queues, permission = settings.default_queues, PERM_INHERIT
    if settings.auto_create_topics:
        permission |= PERM_READ | PERM_WRITE
    found = [TopicConfig(reply_topic(settings.cluster), 1, 1)]
    found += [
        TopicConfig(name, 1, 1, permission) for name in dict.fromkeys([settings.cluster, settings.name])
    ]
    if settings.auto_create_topics:
        found.append(TopicConfig(DEFAULT_TOPIC, queues, queues, permission))
    return found


def _refuse_plaintext(settings: BrokerSettings, config: NodeConfig) -> None:
    """Raise ConfigError (PLAINTEXT_REFUSED) if registrations would be sent unencrypted to other machines."""
    if config.allow_plaintext or (config.tls is not None and settings.remoting.client_tls):
        return
    if beyond := [one for one in settings.namesrv if not is_loopback(one)]:
        raise ConfigError(
            f"namesrv: {beyond[0]} is on another machine, and registrations would be sent in plain text: "
            "add a [tls] section (with client_tls), or set allow_plaintext = true if the network is "
            "trusted",
            code=Code.PLAINTEXT_REFUSED,
        )


def remoting_port(
    settings: BrokerSettings,
    config: NodeConfig,
    answering: Answering,
    topics: NodeTopics,
    clients: NodeClients,
    rules: OperatorRules,
    report: NodeReport,
    sends: NodeSends,
) -> RemotingPort:
    """Build the remoting port.

    `answering` forwards calls to the master. Raises the ConfigErrors of RemotingPort.
    """
    _refuse_plaintext(settings, config)
    access, executors = rules.access, make_executors(settings.remoting)
    hooks = [] if access is None else [access]
    dispatch = Dispatch(hooks, max_request_bytes=settings.remoting.max_request_bytes)
    node = node_processors(settings, answering, topics, clients, rules, report, executors, sends)
    check = rules.check_operator if access is None else None
    processors = processors_of(node, check)
    most_send_wait_s = settings.remoting.send_queue_wait_ms / 1000
    together = node.forwarding.store_together
    register(dispatch, processors, executors, most_send_wait_s=most_send_wait_s, together=together)
    send_only: SendOnly | None = None
    if settings.store == "replicated":
        answers = SendOnlyAnswers(lambda: port.send_advertised, report, lambda: queue_rows(executors))
        variant = dispatch.variant(send_only_processors(answers, processors))
        send_only = SendOnly(variant, [SendOnlyEvents(clients.table)])
    tls = config.tls
    port = RemotingPort(
        settings.remoting,
        config.address,
        dispatch,
        None if tls is None else TlsFiles(tls.ca, tls.certificate, tls.key),
        allow_plaintext=config.allow_plaintext,
        certificates_decide=check is not None,
        events=[clients.table],
        send_only=send_only,
    )
    return port


def node_processors(
    settings: BrokerSettings,
    answering: Answering,
    topics: NodeTopics,
    clients: NodeClients,
    rules: OperatorRules,
    report: NodeReport,
    executors: Executors,
    sends: NodeSends,
) -> NodeProcessors:
    kinds = {int(row.code): row.kind for row in TABLE}
    forwarding = Forwarding(
        answering, clients, topics.directory, kinds, knows_accounts=rules.access is not None, sends=sends
    )
    return NodeProcessors(
        forwarding,
        ClientProcessor(clients, topics.directory, forwarding),
        NodeQueries(
            clients.table,
            settings.name,
            topics.directory.topic,
            forwarding.call_master,
            report,
            lambda: queue_rows(executors),
            topics.readable_queues,
        ),
        rules.commands,
    )


def processors_of(node: NodeProcessors, check: CheckOperator | None) -> dict[int, Processor]:
    """Return the processors of the main port by code."""
    found = {int(row.code): (row, row.at_node(node)) for row in TABLE}
    return {
        code: guarded(processor, check) if row.for_operators and check is not None else processor
        for code, (row, processor) in found.items()
        if processor is not None
    }


def guarded(processor: Processor, check: CheckOperator) -> Processor:
    """Wrap a processor so that only operators may use it.

    The wrapper raises IllegalMessage (CHANGE_NOT_ALLOWED).
    """

    async def checked(connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand | None:
        try:
            check(connection.auth_context)
        except InvalidRequest as error:
            raise error_for(Status.CHANGE_NOT_ALLOWED, error.message) from None
        return await processor(connection, request)

    return checked


def register(
    dispatch: Dispatch,
    processors: Mapping[int, Processor],
    executors: Executors,
    *,
    most_send_wait_s: float,
    together: ListProcessor,
) -> None:
    """Register the processors. `most_send_wait_s`: maximum time that a send waits before it is rejected.

    `together`: processes sends that arrive together.
    """
    for row in TABLE:
        if row.code in processors:
            wait_s = most_send_wait_s if row.kind.appends else None
            dispatch.register(
                [row.code],
                processors[row.code],
                executors[row.executor],
                most_wait_s=wait_s,
                together=together if row.kind is SEND else None,
            )


def send_only_processors(
    answers: SendOnlyAnswers, processors: Mapping[int, Processor]
) -> dict[int, Processor]:
    """Return the processors that the send-only port uses instead of the main port's processors."""
    found: dict[int, Processor] = {}
    for row in TABLE:
        if row.send_only is not None:
            found[row.code] = row.send_only(answers)
        elif row.once_per_route:
            found[row.code] = marked(processors[row.code])
    return found
