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

HEAD gives the same answer without a body, and so does OPTIONS, which HAProxy likes to use for probes.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, Protocol

from aiohttp import web

from dledger.errors import Code, ConfigError
from dledger.status import probes
from dledger.status.cluster import Answer, ClusterCache
from dledger.status.encoding import node_status_to_json
from dledger.status.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from dledger.status.model import NodeStatus

_log = logging.getLogger(__name__)

# More at once are answered 503 and closed: status must not eat the file descriptors of the log.
MAX_CONNECTIONS = 256
_STOP_SECONDS = 1.0
_HANDSHAKE_SECONDS = 5.0

PATHS = ("/", "/status", "/cluster", "/leader", "/replica", "/health", "/livez", "/metrics")

_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page/app.js": ("app.js", "text/javascript"),
    "/page/view.js": ("view.js", "text/javascript"),
    "/page/words.js": ("words.js", "text/javascript"),
    "/page/app.css": ("app.css", "text/css"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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


class HttpServer:
    """A running status server. `address` is host:port with the port that was really bound."""

    def __init__(
        self, runner: web.AppRunner, server: asyncio.Server, cache: ClusterCache, address: str
    ) -> None:
        self._runner = runner
        self._server = server
        self._cache = cache
        self.address = address

    async def stop(self) -> None:
        """Stop listening and close all connections. May be called again."""
        self._server.close()
        await self._runner.cleanup()
        await self._cache.close()


async def start_http(source: StatusSource, listen: str, tls: ssl.SSLContext | None = None) -> HttpServer:
    """Serve `source` on `listen` (host:port, [v6]:port, or :port for all interfaces; port 0: any free one).

    With `tls` it is HTTPS; a certificate loaded into that context later is used from the next connection on.

    ConfigError with PORT_IN_USE when somebody else has the port, CONFIG_INVALID when the address is wrong.
    """
    host, port = _split(listen)
    cache = ClusterCache(source.node_status, source.cluster_status)
    runner = web.AppRunner(
        _build_app(source, cache), access_log=None, handler_cancellation=True, shutdown_timeout=_STOP_SECONDS
    )
    await runner.setup()
    try:
        server = await asyncio.get_running_loop().create_server(
            _limited(runner),
            host or None,
            port,
            reuse_address=True,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else _HANDSHAKE_SECONDS,
        )
    except OSError as error:
        await runner.cleanup()
        raise _listen_error(listen, error) from error
    bound = server.sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return HttpServer(runner, server, cache, f"{shown}:{bound}")


def _split(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    wrong_host = ":" in host and not bracketed
    if not colon or wrong_host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"status address {listen!r}: expected host:port, [v6]:port or :port")
    return host, int(port)


def _listen_error(listen: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"status address {listen}: the port is in use by another process", code=Code.PORT_IN_USE
        )
    if isinstance(error, socket.gaierror):
        return ConfigError(f"status address {listen}: the host name is not known ({error})")
    return ConfigError(f"status address {listen}: cannot listen: {error}")


class _Refusal(asyncio.Protocol):
    """A connection above the limit: told why, and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        body = b"too many connections\n"
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        transport.write(head.encode() + body)
        transport.close()


def _limited(runner: web.AppRunner) -> Callable[[], asyncio.BaseProtocol]:
    server = runner.server
    assert server is not None, "the runner was set up"

    def accept() -> asyncio.BaseProtocol:
        return _Refusal() if len(server.connections) >= MAX_CONNECTIONS else server()

    return accept


def _build_app(source: StatusSource, cache: ClusterCache) -> web.Application:
    app = web.Application(middlewares=[_errors_as_json])
    app.on_response_prepare.append(_add_headers)
    endpoints = _Endpoints(source, cache)
    handlers: dict[str, _Handler] = {
        "/status": endpoints.status,
        "/cluster": endpoints.cluster,
        "/leader": endpoints.leader,
        "/replica": endpoints.replica,
        "/health": endpoints.health,
        "/livez": endpoints.livez,
        "/metrics": endpoints.metrics,
    }
    for path, (name, content_type) in _PAGE_FILES.items():
        # Read once, at the start: a page that is half of one version and half of another shows nothing right.
        body = resources.files("dledger.status").joinpath("page", name).read_bytes()
        handlers[path] = _static(body, content_type)
    for path, handler in handlers.items():
        app.router.add_get(path, handler)  # with HEAD
        app.router.add_options(path, handler)
    return app


def _static(body: bytes, content_type: str) -> _Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return _answer(request, 200, body, content_type, charset="utf-8")

    return handler


class _Endpoints:
    def __init__(self, source: StatusSource, cache: ClusterCache) -> None:
        self._source = source
        self._cache = cache

    async def status(self, request: web.Request) -> web.StreamResponse:
        return _json(request, 200, node_status_to_json(self._source.node_status()))

    async def cluster(self, request: web.Request) -> web.StreamResponse:
        try:
            view = await self._cache.view()
        except TimeoutError:
            return _json(request, 504, {"error": "the nodes were not asked in time"})
        return _json(request, 200, view.to_json())

    async def leader(self, request: web.Request) -> web.StreamResponse:
        status = self._source.node_status()
        return _probe(request, status, probes.leader_verdict(status))

    async def replica(self, request: web.Request) -> web.StreamResponse:
        try:
            bound = probes.LagBound(_count(request, "lag"), _count(request, "lag_bytes"))
        except ValueError as error:
            return _json(request, 400, {"error": str(error)})
        status = self._source.node_status()
        verdict = probes.replica_verdict(status)
        if verdict.ok and bound.given:
            verdict = probes.lag_verdict(await self._lag(status), bound)
        return _probe(request, status, verdict)

    async def health(self, request: web.Request) -> web.StreamResponse:
        status = self._source.node_status()
        return _probe(request, status, probes.health_verdict(status))

    async def livez(self, request: web.Request) -> web.StreamResponse:
        return _json(request, 200, {"ok": True})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        body = self._source.metrics_text()
        response = _answer(request, 200, body, "text/plain", charset=None)
        response.headers["Content-Type"] = METRICS_CONTENT_TYPE
        return response

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
    return _json(request, verdict.http_status, body)


def _json(request: web.Request, http_status: int, data: dict[str, Any]) -> web.Response:
    body = json.dumps(data, separators=(",", ":")).encode() + b"\n"
    return _answer(request, http_status, body, "application/json", charset="utf-8")


def _answer(
    request: web.Request, http_status: int, body: bytes, content_type: str, *, charset: str | None
) -> web.Response:
    if request.method != "OPTIONS":
        return web.Response(status=http_status, body=body, content_type=content_type, charset=charset)
    return web.Response(status=http_status, headers={"Allow": "GET, HEAD, OPTIONS"})


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    # Versions of libraries are nobody's business.
    response.headers["Server"] = "dledger"


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _json(request, 404, {"error": "no such path", "paths": list(PATHS)})
    except web.HTTPMethodNotAllowed as error:
        response = _json(request, 405, {"error": "read only", "methods": sorted(error.allowed_methods)})
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return response
    except web.HTTPException:
        raise
    except Exception:
        # The status is asked for most when something is wrong: say so, and keep serving the other paths.
        _log.exception("status request failed: %s", request.path)
        return _json(request, 500, {"error": "internal error, see the log of this node"})
