"""Status of the broker, for the status page, JSON and /metrics."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from broker_adapter.config.settings import BrokerSettings
from broker_adapter.delivery.service import DeliveryService
from broker_adapter.endpoints.forwarding.forwarder import Forwarder
from broker_adapter.endpoints.forwarding.service import ForwardService
from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.endpoints.v4.port import RemotingPort
from broker_adapter.endpoints.v5.serving import ClientService
from broker_adapter.log.node import BrokerNode
from broker_adapter.metadata.group_expiry import GroupExpiry
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.topic_expiry import TopicExpiry
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.role.broker_role import BrokerRoleAdapter
from broker_adapter.role.role_change import RoleChangeHandler
from broker_adapter.role.role_status import HandlerStatus, RoleChangeMetrics
from broker_adapter.server.broker import Broker
from broker_adapter.server.dispatched_files import DispatchedFiles
from broker_adapter.server.log_host import LogHost
from broker_adapter.store.dispatcher import Dispatcher
from broker_adapter.store.dispatching import SetAside
from dledger.metrics import LatencyHistogram

#: A dispatch backlog above this is highlighted (bytes).
_MUCH_BEHIND = 1 << 20


class BrokerFacts(Protocol):
    """The parts of a broker's program that the status describes."""

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
        """Return the state of the registration with each NameServer, by address."""


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
        """Return the rows about the log in RocketMQ's runtime table."""
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
        """Return the facts for the node's status page, which displays the facts of any program (showOwner in
        view.js).
        """
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
        yield _duplicates(program.delivery.duplicates)
        yield from _client_metrics(program)
        yield from _remoting_metrics(program.remoting)
        yield from program.host.metrics()
        yield _elected_to_writable(changes.elected_to_writable)
        yield from _role_change(program.handler.status, changes)

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        """Return (name, description, value) for each gauge."""
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
                "Committed bytes that are not yet dispatched to ConsumeQueues and metadata.",
                program.files.dispatch_behind_bytes,
            ),
            (
                "broker_index_pending",
                "Messages dispatched but not yet in the IndexFile.",
                figures.index_pending,
            ),
            ("broker_held_pulls", "Pulls that wait for messages.", len(program.broker.long_polls)),
            ("broker_topics", "Topics that exist.", len(program.metadata.topics)),
            (
                "broker_delivery_pending",
                "Messages received but neither acknowledged nor dropped.",
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
                "Bytes of the log kept beyond the retention for delayed messages.",
                delivery.kept_log_bytes,
            ),
            (
                "broker_delivery_known_ids",
                "Sends remembered for duplicate detection.",
                delivery.known_ids,
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
        """Return (name, description, value) for each counter."""
        program = self._program
        figures, delivery = program.dispatcher.figures(), program.delivery.figures()
        return (
            (
                "broker_foreign_records",
                "User entries in the log that are not messages.",
                figures.foreign_records,
            ),
            (
                "broker_set_aside",
                "Committed entries that could not be applied.",
                figures.set_aside.number,
            ),
            (
                "broker_delivery_refused_fresh",
                "Times that a queue gave a receive no new messages because of the pending limits.",
                delivery.refused_fresh,
            ),
            (
                "broker_delivery_dead_letters",
                "Messages moved to a dead letter topic after too many deliveries.",
                delivery.dead_letters,
            ),
            (
                "broker_delivery_appends",
                "Appends of delivery state; each may hold many requests.",
                delivery.rounds,
            ),
            (
                "broker_delivery_damaged",
                "Commands of delivery state that could not be read.",
                delivery.damaged,
            ),
            (
                "broker_delivery_ids_left_early",
                "Sends forgotten early because of too many others. Late retries of them are stored again.",
                delivery.ids_left_early,
            ),
            (
                "broker_topics_expired",
                "Unused automatically created topics that this node deleted.",
                program.topic_expiry.expired,
            ),
            (
                "broker_groups_expired",
                "Unused automatically created groups that this node deleted.",
                program.group_expiry.expired,
            ),
        )


def _set_aside(set_aside: SetAside) -> Any:
    """Describe the entries that were set aside. If there are none, the text is empty and is not displayed."""
    if not set_aside.number:
        return ""
    text = f"{set_aside.number} entries, the last one {set_aside.last_index}: {set_aside.last_reason}"
    return {"text": text, "level": "bad"}


def _traffic(traffic: Traffic) -> Iterable[Metric]:
    """Return only totals, because there may be 10,000 topics and 10,000 groups.

    Remoting request 315 returns values per topic and group.
    """
    put, given = traffic.put_totals, traffic.given_totals
    for name, text, value in (
        ("broker_messages_put", "Messages that this node has stored as the master.", put.messages),
        ("broker_bytes_put", "Bytes of the records of these messages.", put.size),
        ("broker_messages_given", "Messages that this node has delivered to consumers.", given.messages),
        ("broker_bytes_given", "Bytes of the records of these messages.", given.size),
    ):
        family = CounterMetricFamily(name, text)
        family.add_metric([], value)
        yield family


def _duplicates(by_topic: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "broker_duplicate_sends",
        "Sends that this node, as master, recognized as duplicates of a stored message.",
        labels=["topic"],
    )
    for topic, count in by_topic.items():
        family.add_metric([topic], count)
    return family


def _client_metrics(program: BrokerFacts) -> Iterable[Metric]:
    """Return metrics for RocketMQ 5 clients."""
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
    held_s = CounterMetricFamily("broker_held_calls_seconds", "Total waiting time of such calls in seconds.")
    held_s.add_metric([], figures.held_s)
    yield held_s


def _remoting_metrics(port: RemotingPort) -> Iterable[Metric]:
    """Return metrics for RocketMQ 4 clients."""
    server = port.server
    connections = GaugeMetricFamily("broker_remoting_connections", "Connections of remoting clients.")
    connections.add_metric([], len(server.connections) if server else 0)
    yield connections
    requests = CounterMetricFamily(
        "broker_remoting_requests",
        "Requests of remoting clients, by code (-1: unknown codes) and answer (-1: the master responded, or "
        "no response).",
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


def _elected_to_writable(histogram: LatencyHistogram) -> Metric:
    family = HistogramMetricFamily(
        "broker_elected_to_writable_seconds",
        "Time from the election of this node to its first accepted write.",
    )
    names = [*(str(float(bound)) for bound in histogram.buckets), "+Inf"]
    family.add_metric([], list(zip(names, accumulate(histogram.counts), strict=True)), histogram.sum)
    return family


def _role_change(status: HandlerStatus, changes: RoleChangeMetrics) -> Iterable[Metric]:
    """Return the state and the counters of role changes."""
    wait = GaugeMetricFamily(
        "broker_role_change_waiting_seconds",
        "Time that the current role change has spent in its step; absent without a role change.",
        labels=["step"],
    )
    if status.waits_for:
        wait.add_metric([status.step.value], status.waiting_ms / 1000)
    yield wait
    yield GaugeMetricFamily("broker_fit", "1 while this node may receive leadership.", float(status.fit))
    for name, text, label, counts in (
        ("broker_role_switches", "Completed role changes.", "to", changes.switches),
        (
            "broker_role_change_step_seconds",
            "Seconds spent in each step of role changes.",
            "step",
            changes.seconds,
        ),
        (
            "broker_role_change_failures",
            "Steps of role changes that failed and were retried.",
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
            "Leadership hand-overs by an unfit broker, by outcome.",
            "outcome",
            changes.hand_overs,
        ),
    ):
        family = CounterMetricFamily(name, text, labels=[label])
        for key, count in counts.items():
            family.add_metric([str(key)], count)
        yield family
    for name, text, number in (
        ("broker_role_events_superseded", "Role events dropped in favor of newer ones.", changes.superseded),
        ("broker_role_events_stale", "Role events that arrived after a newer one.", changes.stale_events),
    ):
        yield CounterMetricFamily(name, text, value=number)


_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: RocketMQ's values for rows that this broker does not measure or that do not apply.
_NOTHING: Final = {
    "putMessageDistributeTime": "null",
    "getMissTps": "0.0 0.0 0.0",
    "putMessageEntireTimeMax": "0",
    "getMessageEntireTimeMax": "0",
    "earliestMessageTimeStamp": "-1",
    "dispatchMaxBuffer": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
}


class LogFacts(NamedTuple):
    """Positions and sizes in bytes. `sync_ms`: duration of the current sync."""

    begin_pos: int
    end_pos: int
    pending: int
    behind: int
    disk_total: int
    disk_free: int
    sync_ms: int
    uptime_ms: int


def runtime_rows(facts: LogFacts) -> dict[str, str]:
    """Return the rows for RocketMQ monitoring, with RocketMQ's names and number formats."""
    used = 1 - facts.disk_free / facts.disk_total if facts.disk_total else 0.0
    total, free = _readable(facts.disk_total), _readable(facts.disk_free)
    return {
        **_NOTHING,
        "commitLogMinOffset": str(facts.begin_pos),
        "commitLogMaxOffset": str(facts.end_pos),
        "dispatchBehindBytes": str(facts.behind),
        "remainHowManyDataToFlush": f"{facts.pending} B",
        "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
        "commitLogDiskRatio": str(used),
        "consumeQueueDiskRatio": str(used),
        "pageCacheLockTimeMills": str(facts.sync_ms),
        "runtime": _duration(facts.uptime_ms // 1000),
    }


def _readable(size: int) -> str:
    """Format a size like RocketMQ: one decimal place, a space, the unit."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}"


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
