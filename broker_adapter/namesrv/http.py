"""The HTTP face of a NameServer, read only.

============  ==========================================================
path          answer
============  ==========================================================
/             the live page
/status       200, the server, its brokers, topics and last events
/livez        200 whenever the event loop runs
/metrics      200, Prometheus text
============  ==========================================================
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection
from importlib import resources
from typing import Any

from aiohttp import web

from broker_adapter.namesrv.metrics import Exporter
from broker_adapter.namesrv.name_server import NameServer
from broker_adapter.namesrv.values import ClusterInfo
from dledger.platform import HttpServer, WebHandler, json_answer, metrics_answer, page_file, serve_web, static

#: So many topics are in /status, the first by name; the page shows no more either.
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
    """Serve on host:port. ConfigError with PORT_IN_USE or CONFIG_INVALID."""
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
    """Plain values only: what json.dumps takes."""
    rows = server.topic_rows(SHOWN_TOPICS)
    return {
        **info._asdict(),
        "brokers": [entry._asdict() for entry in info.brokers],
        "topic_rows": {
            topic: {name: config.told() for name, config in found.items()} for topic, found in rows.items()
        },
        "events": [event._asdict() for event in server.events],
        "counts": dict(server.counts),
    }
