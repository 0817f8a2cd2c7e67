"""What a NameServer counts, as Prometheus text; built at each scrape, no global state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.namesrv.values import UNKNOWN_ID

if TYPE_CHECKING:
    from broker_adapter.namesrv.name_server import NameServer


class Exporter:
    """Writes the metrics of one NameServer."""

    def __init__(self, server: NameServer) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(server))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        """The same as values: name, type, meaning, labels, samples."""
        return self._registry.collect()


class _Collector(Collector):
    def __init__(self, server: NameServer) -> None:
        self._server = server

    def describe(self) -> Iterable[Metric]:
        """Nothing: else the registry would collect at registration."""
        return ()

    def collect(self) -> Iterable[Metric]:
        server = self._server
        brokers = server.brokers()
        kinds = {"master": 0, "slave": 0, "unknown": 0}
        for entry in brokers:
            kinds[{MASTER_ID: "master", UNKNOWN_ID: "unknown"}.get(entry.broker_id, "slave")] += 1
        family = GaugeMetricFamily("namesrv_brokers", "Registered brokers, by role.", labels=["role"])
        for kind, count in kinds.items():
            family.add_metric([kind], count)
        yield family
        yield _master_terms(server)
        for name, text, value in (
            ("namesrv_topics", "Topics that have a route.", len(server.tables.topic_queue_table)),
            ("namesrv_sessions", "Open streams of registrations.", len(server.sessions)),
            ("namesrv_watchers", "Clients that watch routes.", len(server.watchers)),
            ("namesrv_config_entries", "Settings, over all namespaces.", len(server.kv)),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        events = CounterMetricFamily("namesrv_events", "What happened to registrations.", labels=["event"])
        for event, count in sorted(server.counts.items()):
            events.add_metric([event], count)
        yield events
        limits = CounterMetricFamily("namesrv_limits_hit", "Calls that a limit refused.", labels=["limit"])
        for limit, count in sorted(server.limits_hit.items()):
            limits.add_metric([limit], count)
        yield limits


def _master_terms(server: NameServer) -> Metric:
    family = GaugeMetricFamily(
        "namesrv_master_term", "Term of the published master of a broker name.", labels=["broker"]
    )
    for entry in server.brokers():
        if entry.broker_id == MASTER_ID:
            family.add_metric([entry.broker_name], entry.term)
    return family
