"""The status over HTTP: JSON, probes for load balancers, Prometheus metrics and the live page.

=============  =========================================================================================
path           response
=============  =========================================================================================
/              the live page
/status        200, the status of this node, field names as in proto/dledger/v1/admin.proto
/cluster       200, the status of all nodes, queried by this one; at most 0.5 s old, see `unix_ms`
/leader        200 if this node believes that it leads, else 503. The body names the known leader
/replica       200 if this node is a follower that knows its leader, else 503. `?lag=N` (entries) and
               `?lag_bytes=N` limit its lag as known to the leader: 503 if it is further behind, or if
               the leader does not respond
/health        200 if the node is healthy and knows a leader, else 503 with the reason. `?lag=N` and
               `?lag_bytes=N` also limit the lag of a node that does not lead
/livez         200 whenever the event loop runs
/metrics       200, Prometheus text
=============  =========================================================================================

`/leader` reports what the node *believes*. No lease is used, so a partitioned leader responds with 200 until
check-quorum makes it step down. Use it for routing and not as a lock: only an append proves leadership.

The response to a Host header with a foreign name is 421 (`dledger.infra.http.server`).

HEAD returns the same response without a body, and so does OPTIONS, which HAProxy uses for probes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Protocol

from aiohttp import web

from dledger.infra.http.connections import HttpConnectionLimits
from dledger.infra.http.server import (
    HttpServer,
    WebHandler,
    json_answer,
    metrics_answer,
    page_file,
    serve_web,
    static,
)
from dledger.infra.transport.listener import BoundPort
from dledger.status import probes
from dledger.status.cluster import ClusterCache, NodeAnswer
from dledger.status.encoding import node_status_to_json
from dledger.status.model import NodeStatus

PATHS = ("/", "/status", "/cluster", "/leader", "/replica", "/health", "/livez", "/metrics")
PROBES = ("/leader", "/replica", "/health", "/livez")

_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page/app.js": ("app.js", "text/javascript"),
    "/page/view.js": ("view.js", "text/javascript"),
    "/page/words.js": ("words.js", "text/javascript"),
    "/page/app.css": ("app.css", "text/css"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}


class StatusSource(Protocol):
    """The interface of a node to the status server."""

    def node_status(self) -> NodeStatus:
        """Return the node's own status without waiting."""
        ...

    async def cluster_status(self) -> dict[str, NodeAnswer]:
        """Return the status of each node by id, or why it is unavailable. Has its own short deadline."""
        ...

    def metrics_text(self) -> bytes:
        """Return Prometheus text, as written by StatusExporter.text()."""
        ...


async def start_http(
    source: StatusSource,
    listen: str | BoundPort,
    tls: ssl.SSLContext | None = None,
    *,
    puts: Mapping[str, WebHandler] = MappingProxyType({}),
    allowed_hosts: Collection[str] = (),
    limits: HttpConnectionLimits | None = None,
) -> HttpServer:
    """Serve `source` on `listen`: host:port, [v6]:port, or :port for all interfaces. Port 0 selects a free
    port. It may also be bound already.

    Host headers are checked, and `puts` are served, as in `serve_web`. With `tls` it serves HTTPS; new
    connections use the certificate that was last loaded into that context.

    Raises ConfigError with PORT_IN_USE if another process uses the port, CONFIG_INVALID if the address is
    invalid.
    """
    cache = ClusterCache(source.node_status, source.cluster_status)
    return await serve_web(
        _handlers(source, cache),
        listen,
        tls,
        allowed_hosts=allowed_hosts,
        puts=puts,
        probes=PROBES,
        limits=limits,
        on_stop=cache.close,
    )


def _handlers(source: StatusSource, cache: ClusterCache) -> dict[str, WebHandler]:
    endpoints = _Endpoints(source, cache)
    page: dict[str, WebHandler] = {
        path: static(page_file(name), content_type) for path, (name, content_type) in _PAGE_FILES.items()
    }
    return {
        **page,
        "/status": endpoints.status,
        "/cluster": endpoints.cluster,
        "/leader": endpoints.leader,
        "/replica": endpoints.replica,
        "/health": endpoints.health,
        "/livez": endpoints.livez,
        "/metrics": endpoints.metrics,
    }


class _Endpoints:
    def __init__(self, source: StatusSource, cache: ClusterCache) -> None:
        self._source = source
        self._cache = cache

    async def status(self, request: web.Request) -> web.StreamResponse:
        return json_answer(request, 200, node_status_to_json(self._source.node_status()))

    async def cluster(self, request: web.Request) -> web.StreamResponse:
        try:
            view = await self._cache.view()
        except TimeoutError:
            return json_answer(request, 504, {"error": "the nodes did not answer in time"})
        return json_answer(request, 200, view.to_json())

    async def leader(self, request: web.Request) -> web.StreamResponse:
        status = self._source.node_status()
        return _probe(request, status, probes.probe_leader(status))

    async def replica(self, request: web.Request) -> web.StreamResponse:
        return await self._probe_with_lag(request, probes.probe_replica)

    async def health(self, request: web.Request) -> web.StreamResponse:
        return await self._probe_with_lag(request, probes.probe_health)

    async def _probe_with_lag(
        self, request: web.Request, probe: Callable[[NodeStatus], probes.ProbeResult]
    ) -> web.StreamResponse:
        try:
            bound = probes.LagBound(_count(request, "lag"), _count(request, "lag_bytes"))
        except ValueError as error:
            return json_answer(request, 400, {"error": str(error)})
        status = self._source.node_status()
        verdict = probe(status)
        if verdict.ok and bound.is_limited and not status.is_leader:
            verdict = probes.probe_lag(await self._lag(status), bound)
        return _probe(request, status, verdict)

    async def livez(self, request: web.Request) -> web.StreamResponse:
        return json_answer(request, 200, {"ok": True})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        return metrics_answer(request, self._source.metrics_text())

    async def _lag(self, status: NodeStatus) -> probes.Lag:
        try:
            view = await self._cache.view()
        except TimeoutError:
            return "the leader did not report the lag of this node in time"
        leader = view.leader
        # The response of a deposed leader is useless: it knows neither the new log nor this node's position
        # in it.
        if leader is None or leader.term < status.term:
            return "the leader does not answer, so the lag is unknown"
        lag = view.lag_of(status.node_id)
        return "the leader does not know the lag of this node yet" if lag is None else lag


def _count(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValueError(f"{name} must be a whole number, not {text!r}")
    return int(text)


def _probe(request: web.Request, status: NodeStatus, verdict: probes.ProbeResult) -> web.Response:
    leader_http = next((m.http_address for m in status.members if m.node_id == status.leader_id), "")
    body = {
        "ok": verdict.ok,
        "reason": verdict.reason,
        "node_id": status.node_id,
        "role": status.role,
        "term": status.term,
        "leader_id": status.leader_id,
        "leader_address": status.leader_address,
        "leader_http_address": leader_http,
        "committed_index": status.committed_index,
        "applied_index": status.applied_index,
    }
    return json_answer(request, verdict.http_status, body)
