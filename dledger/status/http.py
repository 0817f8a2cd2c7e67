"""The HTTP face of the status: JSON, probes for load balancers, Prometheus metrics and the live page.

=============  =========================================================================================
path           answer
=============  =========================================================================================
/              the live page
/status        200, what this node knows, field names as in proto/dledger/v1/admin.proto
/cluster       200, all nodes, each asked by this one; at most 0.5 s old, `unix_ms` says when
/leader        200 if this node believes that it leads, else 503. The body names the leader it knows
/replica       200 if this node is a follower that knows its leader, else 503. `?lag=N` (entries) and
               `?lag_bytes=N` bound how far it may be behind, by the leader's word: 503 if it is further
               behind, or if the leader does not say
/health        200 if the node is healthy and knows a leader, else 503 with the reason
/livez         200 whenever the event loop runs
/metrics       200, Prometheus text
=============  =========================================================================================

`/leader` says what the node *believes*: no lease is used, so a leader that was just cut off says 200 until
its check-quorum makes it step down. Route by it, but do not build a lock on it: an append is what decides.

A Host header that is none of this server's names is answered 421 (`dledger.status.hosts`).

HEAD gives the same answer without a body, and so does OPTIONS, which HAProxy likes to use for probes.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection
from typing import Protocol

from aiohttp import web

from dledger.status import probes
from dledger.status.cluster import Answer, ClusterCache
from dledger.status.connections import ConnectionLimits
from dledger.status.encoding import node_status_to_json
from dledger.status.model import NodeStatus
from dledger.status.web import (
    HttpServer,
    WebHandler,
    json_answer,
    metrics_answer,
    page_file,
    serve_web,
    static,
)

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
    """What the server needs of a node."""

    def node_status(self) -> NodeStatus:
        """What the node knows of itself; never waits."""
        ...

    async def cluster_status(self) -> dict[str, Answer]:
        """node_id -> what that node says, or why it says nothing. Keeps a short deadline of its own."""
        ...

    def metrics_text(self) -> bytes:
        """Prometheus text, as StatusExporter.text() writes it."""
        ...


async def start_http(
    source: StatusSource,
    listen: str,
    tls: ssl.SSLContext | None = None,
    *,
    allowed_hosts: Collection[str] = (),
    limits: ConnectionLimits | None = None,
) -> HttpServer:
    """Serve `source` on `listen` (host:port, [v6]:port, or :port for all interfaces; port 0: any free one).

    Requests may name the server as `serve_web` says.
    With `tls` it is HTTPS; a certificate loaded into that context later is used from the next connection on.

    ConfigError with PORT_IN_USE when somebody else has the port, CONFIG_INVALID when the address is wrong.
    """
    cache = ClusterCache(source.node_status, source.cluster_status)
    return await serve_web(
        _handlers(source, cache),
        listen,
        tls,
        allowed_hosts=allowed_hosts,
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
            return json_answer(request, 504, {"error": "the nodes were not asked in time"})
        return json_answer(request, 200, view.to_json())

    async def leader(self, request: web.Request) -> web.StreamResponse:
        status = self._source.node_status()
        return _probe(request, status, probes.leader_verdict(status))

    async def replica(self, request: web.Request) -> web.StreamResponse:
        try:
            bound = probes.LagBound(_count(request, "lag"), _count(request, "lag_bytes"))
        except ValueError as error:
            return json_answer(request, 400, {"error": str(error)})
        status = self._source.node_status()
        verdict = probes.replica_verdict(status)
        if verdict.ok and bound.given:
            verdict = probes.lag_verdict(await self._lag(status), bound)
        return _probe(request, status, verdict)

    async def health(self, request: web.Request) -> web.StreamResponse:
        status = self._source.node_status()
        return _probe(request, status, probes.health_verdict(status))

    async def livez(self, request: web.Request) -> web.StreamResponse:
        return json_answer(request, 200, {"ok": True})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        return metrics_answer(request, self._source.metrics_text())

    async def _lag(self, status: NodeStatus) -> probes.Lag:
        try:
            view = await self._cache.view()
        except TimeoutError:
            return "the leader did not say in time how far this node is behind"
        leader = view.leader
        # A deposed leader's word is worth nothing: it knows neither the new log nor this node's place in it.
        if leader is None or leader.term < status.term:
            return "the leader does not answer, so the lag is not known"
        lag = view.lag_of(status.node_id)
        return "the leader does not know yet how far this node is behind" if lag is None else lag


def _count(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValueError(f"{name} must be a whole number, not {text!r}")
    return int(text)


def _probe(request: web.Request, status: NodeStatus, verdict: probes.Verdict) -> web.Response:
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
