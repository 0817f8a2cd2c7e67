"""The read-only HTTP interface of a NameServer.

============  ==========================================================
path          response
============  ==========================================================
/             the live page
/status       200, the server, its brokers, topics and latest events
/livez        200 while the event loop runs
/metrics      200, Prometheus text
============  ==========================================================
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker_adapter.namesrv.name_server import NameServer
from broker_adapter.namesrv.values import UNKNOWN_ID, ClusterInfo
from broker_adapter.wire.broker_ids import MASTER_ID
from dledger.infra.http.server import (
    HttpServer,
    WebHandler,
    json_answer,
    metrics_answer,
    page_file,
    serve_web,
    static,
)

if TYPE_CHECKING:
    from broker_adapter.namesrv.name_server import NameServer

#: Maximum number of topics in /status, sorted by name; the page shows the same ones.
SHOWN_TOPICS = 500

_OWN_FILES = {
    "/": ("index.html", "text/html"),
    "/page/namesrv.js": ("namesrv.js", "text/javascript"),
}
_FILES_OF_THE_LOG = {
    "/page/words.js": ("words.js", "text/javascript"),
    "/page/app.css": ("app.css", "text/css"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}


async def start_http(
    server: NameServer,
    info: Callable[[], ClusterInfo],
    address: Callable[[], str],
    unix_ms: Callable[[], int],
    listen: str,
    tls: ssl.SSLContext | None,
    allowed_hosts: Collection[str] = (),
) -> HttpServer:
    """Serve on host:port. Raises ConfigError (PORT_IN_USE or CONFIG_INVALID)."""
    exporter = Exporter(server)

    async def status(request: web.Request) -> web.StreamResponse:
        head = {"address": address(), "unix_ms": unix_ms()}
        return json_answer(request, 200, head | status_to_json(server, info()))

    async def livez(request: web.Request) -> web.StreamResponse:
        return json_answer(request, 200, {"ok": True})

    async def metrics(request: web.Request) -> web.StreamResponse:
        return metrics_answer(request, exporter.text())

    page: dict[str, WebHandler] = {}
    folder = resources.files("broker_adapter.namesrv").joinpath("page")
    for path, (name, content_type) in _OWN_FILES.items():
        page[path] = static(folder.joinpath(name).read_bytes(), content_type)
    for path, (name, content_type) in _FILES_OF_THE_LOG.items():
        page[path] = static(page_file(name), content_type)
    handlers = {**page, "/status": status, "/livez": livez, "/metrics": metrics}
    return await serve_web(handlers, listen, tls, allowed_hosts=allowed_hosts)


def status_to_json(server: NameServer, info: ClusterInfo) -> dict[str, Any]:
    """Return the status as values that json.dumps accepts."""
    rows = server.topic_rows(SHOWN_TOPICS)
    return {
        **info._asdict(),
        "brokers": [entry._asdict() for entry in info.brokers],
        "topic_rows": {
            topic: {name: config.to_fields() for name, config in found.items()}
            for topic, found in rows.items()
        },
        "events": [event._asdict() for event in server.events],
        "counts": dict(server.counts),
    }


class Exporter:
    """Exports the metrics of one NameServer."""

    def __init__(self, server: NameServer) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(server))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        """Return the metric families: name, type, description, labels and samples."""
        return self._registry.collect()


class _Collector(Collector):
    def __init__(self, server: NameServer) -> None:
        self._server = server

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering the collector does not collect any."""
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
            ("namesrv_sessions", "Registered nodes with a connection.", len(server.sessions)),
            ("namesrv_watchers", "Connections that watch routes.", len(server.watchers)),
            ("namesrv_config_entries", "Settings in all namespaces.", len(server.kv)),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        events = CounterMetricFamily("namesrv_events", "Events of registrations, by kind.", labels=["event"])
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
