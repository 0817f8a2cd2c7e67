"""An HTTP status server: JSON, Prometheus metrics, static pages. Callers provide the content. It is read-only
unless a caller provides handlers of PUT.

Paths below /page/ are files of a page, and are not listed in the answer to an unknown path.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from importlib import resources
from types import MappingProxyType
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from dledger.errors import ConfigError
from dledger.infra.http.connections import ConnectionTable, HttpConnectionLimits
from dledger.infra.loops.turns import large_turns, wake_queue
from dledger.infra.transport.listener import BoundPort, Listener

_log = logging.getLogger(__name__)


class _ClientErrorFilter(logging.Filter):
    """Drops log records of malformed requests and of disconnected clients, which could fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | ConnectionError)


_request_log = logging.getLogger(f"{__name__}.requests")
_request_log.addFilter(_ClientErrorFilter())

_STOP_SECONDS = 1.0
#: Maximum size of the body of a PUT (bytes).
_MAX_BODY_BYTES = 4 << 10
_METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

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
    """A running status server. `address` is host:port with the port that was actually bound."""

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
        """Stop listening and close all connections. Idempotent."""
        await self._listener.stop()
        await self._runner.cleanup()
        if self._on_stop is not None:
            await self._on_stop()


async def serve_web(
    handlers: Mapping[str, WebHandler],
    listen: str | BoundPort,
    tls: ssl.SSLContext | None = None,
    *,
    puts: Mapping[str, WebHandler] = MappingProxyType({}),
    allowed_hosts: Collection[str] = (),
    probes: Collection[str] = ("/livez",),
    limits: HttpConnectionLimits | None = None,
    on_stop: Callable[[], Awaitable[None]] | None = None,
) -> HttpServer:
    """Serve handlers by path on `listen`: host:port, [v6]:port or :port (all interfaces). Port 0 selects a
    free port. It may also be bound already. `puts`: handlers of PUT at other paths, for programs and not for
    web pages; bodies are limited to 4 KiB.

    The Host header of a request may be an IP address, localhost, the host of `listen`, this machine's name,
    or one of `allowed_hosts` (`AllowedHosts`). `probes`: paths answered when all other slots are busy.

    Raises ConfigError with PORT_IN_USE if another process uses the port, CONFIG_INVALID if the address is
    invalid.
    """
    host = _host(listen if isinstance(listen, str) else listen.address)
    table = ConnectionTable(limits or HttpConnectionLimits())
    hosts = AllowedHosts({host, socket.gethostname(), *allowed_hosts})
    app = _application(handlers, puts, _within_limits(table, frozenset(probes)), _of_hosts(hosts))
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


def _application(
    handlers: Mapping[str, WebHandler], puts: Mapping[str, WebHandler], limits: Any, hosts: Any
) -> web.Application:
    paths = [path for path in (*handlers, *puts) if not path.startswith("/page/")]
    app = web.Application(
        middlewares=[limits, _errors_as_json(paths), hosts], client_max_size=_MAX_BODY_BYTES
    )
    app.on_response_prepare.append(_add_headers)
    for path, handler in handlers.items():
        app.router.add_get(path, handler)  # includes HEAD
        app.router.add_options(path, handler)
    for path, handler in puts.items():
        # Without OPTIONS, so that browsers refuse to send a PUT from a page of another site.
        app.router.add_put(path, _not_from_pages(handler))
    return app


def _not_from_pages(handler: WebHandler) -> WebHandler:
    """Reject requests of web pages. Browsers add Origin to every PUT, also if a name of another site resolves
    to this server, which `AllowedHosts` does not detect if any host is allowed."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if "Origin" in request.headers:
            return json_answer(request, 403, {"error": "web pages may not send this request"})
        return await handler(request)

    return handle


def page_file(name: str) -> bytes:
    """Return a file of the log's status page. Other pages can reuse app.css, words.js and icon.svg."""
    return resources.files("dledger.infra.http").joinpath("page", name).read_bytes()


def static(body: bytes, content_type: str) -> WebHandler:
    """Return a handler for constant bytes. They are read once, so that a page never mixes files of two
    versions."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return _answer(request, 200, body, content_type, charset="utf-8")

    return handler


def json_answer(request: web.Request, http_status: int, data: dict[str, Any]) -> web.Response:
    """Return `data` as a JSON response."""
    body = json.dumps(data, separators=(",", ":")).encode() + b"\n"
    return _answer(request, http_status, body, "application/json", charset="utf-8")


def metrics_answer(request: web.Request, text: bytes) -> web.Response:
    """Return a response with Prometheus text."""
    response = _answer(request, 200, text, "text/plain", charset=None)
    response.headers["Content-Type"] = _METRICS_CONTENT_TYPE
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
    # Do not disclose library versions.
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
            text = "only PUT" if "PUT" in methods else "read only"
            response = json_answer(request, 405, {"error": text, "methods": methods})
            response.headers["Allow"] = ", ".join(methods)
            return response
        except web.HTTPRequestEntityTooLarge:
            return json_answer(request, 413, {"error": f"a body has at most {_MAX_BODY_BYTES} bytes"})
        except web.HTTPException:
            raise
        except Exception:
            # Status is needed most during failures: report the error, and keep serving the other paths.
            _log.exception("status request failed: %s", request.path)
            return json_answer(request, 500, {"error": "internal error, see the log of this node"})

    return answer


def _within_limits(table: ConnectionTable, probes: frozenset[str]) -> Any:
    @web.middleware
    async def answer(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        connection = table.connection_of(request)
        if connection is None:  # closed in the meantime
            return await handler(request)
        connection.begin_request()
        try:
            if connection.probes_only and request.path not in probes:
                response: web.StreamResponse = json_answer(request, 503, {"error": "too many connections"})
            else:
                # A request takes some milliseconds, and hundreds may arrive at the same time.
                turns = wake_queue() if request.path in probes else large_turns()
                await turns.turn(request.remote)
                response = await handler(request)
            if connection.probes_only:
                response.force_close()
            return response
        finally:
            connection.end_request()

    return answer


def _of_hosts(hosts: AllowedHosts) -> Any:
    """Reject foreign Host headers. Otherwise a page of another site could make a browser query this server,
    through a name of that site that resolves to this server's address (DNS rebinding)."""

    @web.middleware
    async def answer(request: web.Request, handler: WebHandler) -> web.StreamResponse:
        named = request.headers.get("Host")
        if named is not None and not hosts.allow(named):
            return json_answer(request, 421, {"error": f"{named!r} is not a host name of this server"})
        return await handler(request)

    return answer


ANY = "*"


class AllowedHosts:
    """Host names without ports; ".example.com" matches that name and all subdomains, "*" any name.

    IP addresses and localhost are always allowed: no page of another site has such a name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        lowered = {_plain(name) for name in names if name}
        self._any = ANY in lowered
        self._names = {name.removeprefix(".") for name in lowered} | {"localhost"}
        self._suffixes = tuple(name for name in lowered if name.startswith("."))

    def allow(self, header: str) -> bool:
        """Return True if the value of a Host header is allowed."""
        if self._any:
            return True
        host = _without_port(header)
        return host in self._names or host.endswith(self._suffixes) or _is_address(host)


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return _plain(text.partition(":")[0])


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
