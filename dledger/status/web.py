"""An HTTP server for status, read only: JSON, Prometheus metrics, static pages. What it serves is handed in.

Paths below /page/ are files of a page and not told to whoever asks for a path that is not there.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from importlib import resources
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from dledger.errors import ConfigError
from dledger.status.connections import ConnectionLimits, ConnectionTable
from dledger.status.hosts import AllowedHosts
from dledger.status.listener import Listener
from dledger.status.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from dledger.turns import large_turns, wake_queue

_log = logging.getLogger(__name__)


class _NotOfSenders(logging.Filter):
    """Passes over requests that are none of HTTP, or whose senders are gone: these could fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | ConnectionError)


_request_log = logging.getLogger(f"{__name__}.requests")
_request_log.addFilter(_NotOfSenders())

_STOP_SECONDS = 1.0

_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 21\r\nConnection: close\r\n\r\n"
    b"too many connections\n"
)

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

WebHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """A running status server. `address` is host:port with the port that was really bound."""

    def __init__(
        self,
        runner: web.AppRunner,
        listener: Listener,
        address: str,
        on_stop: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._runner = runner
        self._listener = listener
        self._on_stop = on_stop
        self.address = address

    async def stop(self) -> None:
        """Stop listening and close all connections. May be called again."""
        await self._listener.stop()
        await self._runner.cleanup()
        if self._on_stop is not None:
            await self._on_stop()


async def serve_web(
    handlers: Mapping[str, WebHandler],
    listen: str,
    tls: ssl.SSLContext | None = None,
    *,
    allowed_hosts: Collection[str] = (),
    probes: Collection[str] = ("/livez",),
    limits: ConnectionLimits | None = None,
    on_stop: Callable[[], Awaitable[None]] | None = None,
) -> HttpServer:
    """Serve path -> handler on `listen`: host:port, [v6]:port or :port (all interfaces); port 0: any free.

    Requests may name the server by an address, as localhost, by the host of `listen`, by this machine's
    name, or as `allowed_hosts` says (`AllowedHosts`). `probes`: paths answered when all other slots are busy.

    ConfigError with PORT_IN_USE when somebody else has the port, CONFIG_INVALID when the address is wrong.
    """
    host = _host(listen)
    table = ConnectionTable(limits or ConnectionLimits())
    hosts = AllowedHosts({host, socket.gethostname(), *allowed_hosts})
    app = _application(handlers, _within_limits(table, frozenset(probes)), _of_hosts(hosts))
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_request_log,
        handler_cancellation=True,
        shutdown_timeout=_STOP_SECONDS,
    )
    await runner.setup()
    assert runner.server is not None, "the runner was set up"
    listener = Listener(partial(table.admit, runner.server), tls, refusal=_REFUSAL)
    try:
        address = await listener.listen("status", listen)
    except ConfigError:
        await runner.cleanup()
        raise
    return HttpServer(runner, listener, address, on_stop)


def _application(handlers: Mapping[str, WebHandler], limits: Any, hosts: Any) -> web.Application:
    paths = [path for path in handlers if not path.startswith("/page/")]
    app = web.Application(middlewares=[limits, _errors_as_json(paths), hosts])
    app.on_response_prepare.append(_add_headers)
    for path, handler in handlers.items():
        app.router.add_get(path, handler)  # with HEAD
        app.router.add_options(path, handler)
    return app


def page_file(name: str) -> bytes:
    """A file of the log's own page: app.css, words.js and icon.svg may be of use to other pages."""
    return resources.files("dledger.status").joinpath("page", name).read_bytes()


def static(body: bytes, content_type: str) -> WebHandler:
    """Always the same bytes, read once: a page that is half of one version shows nothing right."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return _answer(request, 200, body, content_type, charset="utf-8")

    return handler


def json_answer(request: web.Request, http_status: int, data: dict[str, Any]) -> web.Response:
    """`data` as JSON."""
    body = json.dumps(data, separators=(",", ":")).encode() + b"\n"
    return _answer(request, http_status, body, "application/json", charset="utf-8")


def metrics_answer(request: web.Request, text: bytes) -> web.Response:
    """Prometheus text."""
    response = _answer(request, 200, text, "text/plain", charset=None)
    response.headers["Content-Type"] = METRICS_CONTENT_TYPE
    return response


def _answer(
    request: web.Request, http_status: int, body: bytes, content_type: str, *, charset: str | None
) -> web.Response:
    if request.method != "OPTIONS":
        return web.Response(status=http_status, body=body, content_type=content_type, charset=charset)
    return web.Response(status=http_status, headers={"Allow": "GET, HEAD, OPTIONS"})


def _host(listen: str) -> str:
    host, colon, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    wrong_host = ":" in host and not bracketed
    if not colon or wrong_host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"status address {listen!r}: expected host:port, [v6]:port or :port")
    return host


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    # Versions of libraries are nobody's business.
    response.headers["Server"] = "dledger"


def _errors_as_json(paths: list[str]) -> Any:
    @web.middleware
    async def answer(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return json_answer(request, 404, {"error": "no such path", "paths": paths})
        except web.HTTPMethodNotAllowed as error:
            methods = sorted(error.allowed_methods)
            response = json_answer(request, 405, {"error": "read only", "methods": methods})
            response.headers["Allow"] = ", ".join(methods)
            return response
        except web.HTTPException:
            raise
        except Exception:
            # The status is asked for most when something is wrong: say so, and keep serving the other paths.
            _log.exception("status request failed: %s", request.path)
            return json_answer(request, 500, {"error": "internal error, see the log of this node"})

    return answer


def _within_limits(table: ConnectionTable, probes: frozenset[str]) -> Any:
    @web.middleware
    async def answer(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        connection = table.of(request)
        if connection is None:  # it was closed meanwhile
            return await handler(request)
        connection.begin()
        try:
            if connection.probes_only and request.path not in probes:
                response: web.StreamResponse = json_answer(request, 503, {"error": "too many connections"})
            else:
                # Some milliseconds each, and hundreds of connections may ask at once.
                turns = wake_queue() if request.path in probes else large_turns()
                await turns.turn(request.remote)
                response = await handler(request)
            if connection.probes_only:
                response.force_close()
            return response
        finally:
            connection.end()

    return answer


def _of_hosts(hosts: AllowedHosts) -> Any:
    """A page of another site can make a browser ask here by a name of its own that it points here."""

    @web.middleware
    async def answer(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        named = request.headers.get("Host")
        if named is not None and not hosts.allow(named):
            return json_answer(request, 421, {"error": f"the host {named!r} is not one of this server"})
        return await handler(request)

    return answer
