"""What the status page, JSON and /metrics say of the broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from broker_adapter.commitlog.message_writer import MessageWriter
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.log.node import BrokerNode
from broker_adapter.metadata.group_expiry import GroupExpiry
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_expiry import TopicExpiry
from broker_adapter.pop.service import DeliveryService
from broker_adapter.proxy.forwarding.forwarder import Forwarder
from broker_adapter.proxy.forwarding.service import ForwardService
from broker_adapter.proxy.serving import ClientService
from broker_adapter.remoting_door.port import RemotingPort
from broker_adapter.role.broker_role import BrokerRoleAdapter
from broker_adapter.role.role_change import RoleChangeHandler
from broker_adapter.role.role_status import HandlerStatus, RoleChangeMetrics
from broker_adapter.server.broker import Broker
from broker_adapter.server.dispatched_files import DispatchedFiles
from broker_adapter.server.log_host import LogHost
from broker_adapter.server.runtime_rows import LogFacts, runtime_rows
from broker_adapter.store.dispatcher import Dispatcher
from broker_adapter.store.dispatching import SetAside
from broker_adapter.traffic.traffic import Traffic
from dledger.platform import Histogram

#: A dispatch that is further behind than this is worth a look (bytes).
_MUCH_BEHIND = 1 << 20


class BrokerFacts(Protocol):
    """The parts of a broker's program whose figures are shown."""

    node: BrokerNode
    settings: BrokerSettings
    adapter: BrokerRoleAdapter
    handler: RoleChangeHandler
    dispatcher: Dispatcher
    writer: MessageWriter
    files: DispatchedFiles
    metadata: MetadataState
    broker: Broker
    delivery: DeliveryService
    clients: ClientService
    forwarder: Forwarder
    forwarding: ForwardService
    remoting: RemotingPort
    topic_expiry: TopicExpiry
    traffic: Traffic
    group_expiry: GroupExpiry
    host: LogHost

    def registrations(self) -> Mapping[str, Any]:
        """What each NameServer last answered to the registration, by address."""


class BrokerStatus:
    def __init__(self, program: BrokerFacts) -> None:
        self._program = program

    def shown(self) -> Mapping[str, Any]:
        program = self._program
        adapter, handler = program.adapter, program.handler
        figures = program.dispatcher.figures()
        return {
            "card": self._card(),
            "broker": program.settings.name,
            "cluster": program.settings.cluster,
            "broker_role": adapter.role.value,
            "broker_id": adapter.broker_id,
            "term": adapter.term,
            "role_epoch": adapter.role_epoch,
            "writable": program.writer.expected is not None,
            "dispatch_behind_bytes": program.files.dispatch_behind_bytes,
            "dispatched_index": figures.dispatched.index,
            "dispatched_pos": figures.dispatched.end_pos,
            "checkpoint_index": figures.checkpoint.index,
            "index_pending": figures.index_pending,
            "index_items": figures.index_items,
            "foreign_records": figures.foreign_records,
            "set_aside": figures.set_aside._asdict(),
            "topics": len(program.metadata.topics),
            "groups": len(program.metadata.groups()),
            "held_pulls": len(program.broker.long_polls),
            "delivery": program.delivery.figures()._asdict(),
            "clients": {"by_type": dict(program.clients.streams.by_type()), **self._forwarding()},
            "role_change": handler.status.as_dict(),
            "remoting_address": program.remoting.advertised,
            "ha_address": program.host.ha_address,
            **program.host.shown(),
            "nameservers": {
                address: {"registered": status.registered, "last_error": status.last_error}
                for address, status in program.registrations().items()
            },
        }

    def log_rows(self) -> Mapping[str, str]:
        """Of the table of a broker's runtime."""
        node = self._program.node
        status = node.node_status()
        try:
            disk = shutil.disk_usage(node.config.directory)
            total, free = disk.total, disk.free
        except OSError:
            total, free = 0, 0
        facts = LogFacts(
            begin_pos=node.begin_pos,
            end_pos=status.ledger_end_pos,
            pending=status.pending_bytes,
            behind=self._program.files.dispatch_behind_bytes,
            disk_total=total,
            disk_free=free,
            sync_ms=status.fsync_ms,
            uptime_ms=status.uptime_ms,
        )
        return runtime_rows(facts)

    def _card(self) -> Mapping[str, Any]:
        """What the status page shows, which knows nothing of brokers: see showOwner in its view.js."""
        program = self._program
        adapter, status = program.adapter, program.handler.status
        figures = program.dispatcher.figures()
        behind = program.files.dispatch_behind_bytes
        servers = program.registrations().values()
        registered = sum(server.registered for server in servers)
        took = status.elected_to_writable_ms
        if status.waits_for:
            state = {"text": f"waits for {status.waits_for}", "level": "warn"}
        elif not status.fit:
            state = {"text": status.last_failure or "unfit to lead", "level": "bad"}
        else:
            state = {"text": "takes messages" if program.writer.expected is not None else "ok"}
        clients = len(program.clients.streams)
        facts: list[tuple[str, Any]] = [
            ("Role", adapter.role.value),
            ("State", state),
            ("Broker id", adapter.broker_id),
            ("Last switch", {"unix_ms": status.last_switch_unix_ms}),
            ("Elected to writable", f"{took} ms" if took >= 0 else ""),
            ("RocketMQ clients", f"{clients} here" if clients else ""),
            ("Set aside", _set_aside(figures.set_aside)),
            ("Dispatch lag", {"bytes": behind, "level": "warn" if behind > _MUCH_BEHIND else "ok"}),
            (
                "NameServers",
                {
                    "text": f"{registered} of {len(servers)}",
                    "level": "ok" if registered == len(servers) else "warn",
                },
            ),
        ]
        return {"title": f"Broker {program.settings.name}", "facts": facts}

    def _forwarding(self) -> Mapping[str, Any]:
        program = self._program
        link = program.forwarder.link
        return {
            "forwards_to": link.node_id if link is not None and link.is_writable else "",
            "forwarded_under_way": 0 if link is None else len(link),
            "forwarded_from": program.forwarding.nodes,
        }

    def metrics(self) -> Iterable[Metric]:
        program = self._program
        changes = program.handler.metrics
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(name, text, value=float(value))
        for name, text, value in self._counters():
            family = CounterMetricFamily(name, text)
            family.add_metric([], value)
            yield family
        yield from _traffic(program.traffic)
        yield from _client_metrics(program)
        yield from _remoting_metrics(program.remoting)
        yield from program.host.metrics()
        yield _elected_to_writable(changes.elected_to_writable)
        yield from _role_change(program.handler.status, changes)

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        """(name, meaning, value)."""
        program = self._program
        figures, delivery = program.dispatcher.figures(), program.delivery.figures()
        clients = program.clients.service
        return (
            ("broker_is_master", "1 if this node's broker is the master, else 0.", program.adapter.is_master),
            (
                "broker_writable",
                "1 while this broker accepts messages, else 0.",
                program.writer.expected is not None,
            ),
            (
                "broker_dispatch_behind_bytes",
                "Bytes committed here and not yet dispatched to ConsumeQueues and metadata.",
                program.files.dispatch_behind_bytes,
            ),
            (
                "broker_index_pending",
                "Messages dispatched and not yet in the IndexFile.",
                figures.index_pending,
            ),
            ("broker_held_pulls", "Pulls that wait for messages.", len(program.broker.long_polls)),
            ("broker_topics", "Topics that exist.", len(program.metadata.topics)),
            (
                "broker_delivery_pending",
                "Messages received and neither acknowledged nor given up.",
                delivery.pending,
            ),
            (
                "broker_delivery_held_messages",
                "Delayed and half messages.",
                delivery.held_messages,
            ),
            (
                "broker_delivery_held_bytes",
                "Memory of half messages.",
                delivery.held_bytes,
            ),
            (
                "broker_delivery_kept_log_bytes",
                "Bytes of the log that retention would purge, were it not for delayed messages.",
                delivery.kept_log_bytes,
            ),
            (
                "broker_delivery_waiting_receives",
                "Receives that wait for messages on the master.",
                delivery.waiting_receives,
            ),
            (
                "broker_waiting_receives",
                "Calls of RocketMQ 5 clients that wait for messages.",
                clients.waiting_receives,
            ),
        )

    def _counters(self) -> Iterable[tuple[str, str, float]]:
        """(name, meaning, value)."""
        program = self._program
        figures, delivery = program.dispatcher.figures(), program.delivery.figures()
        return (
            (
                "broker_foreign_records",
                "Entries of users in the log that are no messages.",
                figures.foreign_records,
            ),
            (
                "broker_set_aside",
                "Committed entries that could not be applied.",
                figures.set_aside.number,
            ),
            (
                "broker_delivery_refused_fresh",
                "Times that nothing fresh was given, as too much is pending.",
                delivery.refused_fresh,
            ),
            (
                "broker_delivery_dead_letters",
                "Messages delivered too often and moved to a dead letter topic.",
                delivery.dead_letters,
            ),
            (
                "broker_delivery_appends",
                "Appends of delivery state, each for many requests.",
                delivery.rounds,
            ),
            (
                "broker_delivery_damaged",
                "Commands of delivery state that could not be read.",
                delivery.damaged,
            ),
            (
                "broker_topics_expired",
                "Topics made by use that this node deleted, as nobody used them.",
                program.topic_expiry.expired,
            ),
            (
                "broker_groups_expired",
                "Groups made by use that this node deleted, as nobody used them.",
                program.group_expiry.expired,
            ),
        )


def _set_aside(found: SetAside) -> Any:
    """Empty, and so not shown, without any."""
    if not found.number:
        return ""
    text = f"{found.number} entries, the last one {found.last_index}: {found.last_reason}"
    return {"text": text, "level": "bad"}


def _traffic(traffic: Traffic) -> Iterable[Metric]:
    """By topic and group there may be ten thousands: ask for those with the remoting request 315."""
    put, given = traffic.put_totals, traffic.given_totals
    for name, text, value in (
        ("broker_messages_put", "Messages that this node has stored as the master.", put.messages),
        ("broker_bytes_put", "Bytes of their records.", put.size),
        ("broker_messages_given", "Messages that this node has given to consumers.", given.messages),
        ("broker_bytes_given", "Bytes of their records.", given.size),
    ):
        family = CounterMetricFamily(name, text)
        family.add_metric([], value)
        yield family


def _client_metrics(program: BrokerFacts) -> Iterable[Metric]:
    """Of clients of RocketMQ 5."""
    clients = GaugeMetricFamily(
        "broker_clients", "RocketMQ 5 clients connected to this node, by type.", labels=["type"]
    )
    for client_type, count in program.clients.streams.by_type().items():
        clients.add_metric([client_type], count)
    yield clients
    figures = program.forwarder.figures
    forwarded = CounterMetricFamily(
        "broker_forwarded_calls",
        "Calls of RocketMQ 5 clients forwarded to the master, by outcome.",
        labels=["method", "outcome"],
    )
    for labels, count in figures.outcomes.items():
        forwarded.add_metric(labels, count)
    yield forwarded
    held = CounterMetricFamily(
        "broker_held_calls", "Calls of RocketMQ 5 clients that had to wait for a master."
    )
    held.add_metric([], figures.held)
    yield held
    held_s = CounterMetricFamily("broker_held_calls_seconds", "Seconds that such calls have waited.")
    held_s.add_metric([], figures.held_s)
    yield held_s


def _remoting_metrics(port: RemotingPort) -> Iterable[Metric]:
    """Of clients of RocketMQ 4."""
    server = port.server
    connections = GaugeMetricFamily("broker_remoting_connections", "Connections of remoting clients.")
    connections.add_metric([], len(server.connections) if server else 0)
    yield connections
    requests = CounterMetricFamily(
        "broker_remoting_requests",
        "Requests of remoting clients, by code (-1: codes that nobody knows) and answer (-1: the master has "
        "answered, or nobody).",
        labels=["code", "answer"],
    )
    for (code, answer), count in sorted(port.counts.items()):
        requests.add_metric([str(code), str(answer)], count)
    yield requests
    limits = CounterMetricFamily(
        "broker_remoting_limits_hit", "Connections of remoting clients refused or closed.", labels=["limit"]
    )
    for name, count in sorted(server.limits_hit.items()) if server else ():
        limits.add_metric([name], count)
    yield limits


def _elected_to_writable(histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(
        "broker_elected_to_writable_seconds", "From the election of this node to its first accepted write."
    )
    names = [*(str(float(bound)) for bound in histogram.buckets), "+Inf"]
    family.add_metric([], list(zip(names, accumulate(histogram.counts), strict=True)), histogram.sum)
    return family


def _role_change(status: HandlerStatus, changes: RoleChangeMetrics) -> Iterable[Metric]:
    """What the handler is at, and all that it has counted."""
    wait = GaugeMetricFamily(
        "broker_role_change_waiting_seconds",
        "How long the role change under way has waited in its step, by which it is named; none at rest.",
        labels=["step"],
    )
    if status.waits_for:
        wait.add_metric([status.step.value], status.waiting_ms / 1000)
    yield wait
    yield GaugeMetricFamily("broker_fit", "1 while this node may be handed leadership.", float(status.fit))
    for name, text, label, counts in (
        ("broker_role_switches", "Changes of role that were completed.", "to", changes.switches),
        (
            "broker_role_change_step_seconds",
            "Seconds spent in each step of role changes.",
            "step",
            changes.seconds,
        ),
        (
            "broker_role_change_failures",
            "Steps of role changes that failed and were tried again.",
            "step",
            changes.failures,
        ),
        (
            "broker_role_change_overdue",
            "Steps of role changes that exceeded `role_change_report_ms`.",
            "step",
            changes.overdue,
        ),
        (
            "broker_hand_overs",
            "Hand-overs of leadership by a broker that was unfit, by outcome.",
            "outcome",
            changes.hand_overs,
        ),
    ):
        family = CounterMetricFamily(name, text, labels=[label])
        for key, count in counts.items():
            family.add_metric([str(key)], count)
        yield family
    for name, text, number in (
        ("broker_role_events_superseded", "Role events dropped for newer ones.", changes.superseded),
        ("broker_role_events_stale", "Role events that came after a newer one.", changes.stale_events),
    ):
        yield CounterMetricFamily(name, text, value=number)
