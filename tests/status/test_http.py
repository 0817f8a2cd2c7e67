"""The HTTP face: what each path answers for each role, and how it behaves when asked wrongly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dledger.errors import Code, ConfigError
from dledger.infra.http.server import HttpServer
from dledger.status.encoding import node_status_from_json
from dledger.status.http import PATHS, start_http
from dledger.status.model import NodeStatus
from tests.status.fakes import NODES, FakeSource, make_follower, make_status


@pytest.fixture
async def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
async def server(source: FakeSource) -> AsyncIterator[HttpServer]:
    running = await start_http(source, "127.0.0.1:0")
    yield running
    await running.stop()


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{server.address}") as session:
        yield session


async def get_json(client: aiohttp.ClientSession, path: str) -> tuple[int, dict[str, Any]]:
    async with client.get(path) as response:
        assert response.content_type == "application/json"
        return response.status, await response.json()


async def test_status_carries_every_field(client: aiohttp.ClientSession, source: FakeSource) -> None:
    code, body = await get_json(client, "/status")
    assert code == 200
    assert node_status_from_json(body) == source.node_status()


@pytest.mark.parametrize(
    ("changes", "leader", "replica", "health"),
    [
        ({"role": "LEADER"}, 200, 503, 200),
        ({"role": "FOLLOWER", "leader_id": "n2"}, 503, 200, 200),
        ({"role": "FOLLOWER", "leader_id": ""}, 503, 503, 503),
        ({"role": "CANDIDATE", "leader_id": ""}, 503, 503, 503),
        ({"role": "UNKNOWN", "leader_id": ""}, 503, 503, 503),
        ({"role": "FOLLOWER", "leader_id": "n2", "health": "fsync failed"}, 503, 200, 503),
        ({"role": "LEADER", "health": "disk full"}, 200, 503, 503),
    ],
)
async def test_probes_by_role(
    client: aiohttp.ClientSession,
    source: FakeSource,
    changes: dict[str, object],
    leader: int,
    replica: int,
    health: int,
) -> None:
    source.change("n1", **changes)
    for path, expected in (("/leader", leader), ("/replica", replica), ("/health", health), ("/livez", 200)):
        code, body = await get_json(client, path)
        assert (path, code) == (path, expected)
        assert body["ok"] is (expected == 200)
        for method in ("HEAD", "OPTIONS"):
            async with client.request(method, path) as response:
                assert (method, path, response.status) == (method, path, expected)
                assert await response.read() == b""


async def test_leader_gives_a_hint(client: aiohttp.ClientSession, source: FakeSource) -> None:
    source.change("n1", role="FOLLOWER", leader_id="n2", leader_address="127.0.0.1:20912")
    _, body = await get_json(client, "/leader")
    assert body["leader_id"] == "n2"
    assert body["leader_address"] == "127.0.0.1:20912"
    assert body["leader_http_address"] == "127.0.0.1:8092"
    assert "n2" in body["reason"]


async def test_health_names_what_is_wrong(client: aiohttp.ClientSession, source: FakeSource) -> None:
    source.change("n1", health="disk full")
    code, body = await get_json(client, "/health")
    assert (code, body["reason"]) == (503, "disk full")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("lag=5120", 200),
        ("lag=5119", 503),
        ("lag_bytes=5200000", 200),
        ("lag_bytes=5199999", 503),
        ("lag=9999&lag_bytes=1", 503),
        ("lag=0", 503),
        ("lag=-1", 400),
        ("lag=ten", 400),
        ("lag=", 400),
        ("lag_bytes=1e9", 400),
        ("lag=" + "9" * 5000, 400),
    ],
)
@pytest.mark.parametrize("probe", ["/replica", "/health"])
async def test_lag_bound(probe: str, query: str, expected: int) -> None:
    server = await start_http(FakeSource("n3"), "127.0.0.1:0")
    try:
        async with aiohttp.ClientSession(f"http://{server.address}") as client:
            code, body = await get_json(client, f"{probe}?{query}")
            assert code == expected, body
    finally:
        await server.stop()


async def test_a_leader_is_healthy_within_every_bound() -> None:
    server = await start_http(FakeSource("n1"), "127.0.0.1:0")
    try:
        async with aiohttp.ClientSession(f"http://{server.address}") as client:
            assert (await get_json(client, "/health?lag=0"))[0] == 200
            assert (await get_json(client, "/replica?lag=0"))[0] == 503
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "leader",
    [
        "connection refused",
        make_status("n1", followers=()),
        make_status("n1", followers=(make_follower("n3", match_index=-1),)),
        make_status("n1", followers=(make_follower("n3"),), term=6),
    ],
    ids=["unreachable", "not in its list", "not matched yet", "of an older term"],
)
async def test_replica_with_a_bound_needs_the_leaders_word(leader: NodeStatus | str) -> None:
    source = FakeSource("n3")
    source.answers["n1"] = leader
    server = await start_http(source, "127.0.0.1:0")
    try:
        async with aiohttp.ClientSession(f"http://{server.address}") as client:
            assert (await get_json(client, "/replica"))[0] == 200
            assert (await get_json(client, "/replica?lag=1000000"))[0] == 503
    finally:
        await server.stop()


async def test_cluster_shows_all_nodes(client: aiohttp.ClientSession, source: FakeSource) -> None:
    source.answers["n2"] = "no answer within 500 ms"
    code, body = await get_json(client, "/cluster")
    assert code == 200
    assert [n["node_id"] for n in body["nodes"]] == list(NODES)
    assert body["leader"]["node_id"] == "n1"
    assert body["nodes"][1]["error"] == "no answer within 500 ms"
    assert body["nodes"][1]["status"] is None
    assert body["nodes"][2]["lag_entries"] == 5120
    assert node_status_from_json(body["nodes"][2]["status"]) == source.answers["n3"]


async def test_many_open_pages_ask_the_cluster_once(
    client: aiohttp.ClientSession, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 20 requests take longer than the usual half second on a busy machine.
    monkeypatch.setattr("dledger.status.cluster.CACHE_SECONDS", 600.0)
    bodies = await asyncio.gather(*(get_json(client, "/cluster") for _ in range(20)))
    assert source.asked == 1
    assert len({json.dumps(body) for _, body in bodies}) == 1


async def test_cluster_that_does_not_answer_in_time(
    client: aiohttp.ClientSession, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> dict[str, NodeStatus | str]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    monkeypatch.setattr("dledger.status.cluster.QUERY_SECONDS", 0.01)
    # The server looked the method up when it started, so a server of its own is needed here.
    source.cluster_status = never  # type: ignore[method-assign]
    slow = await start_http(source, "127.0.0.1:0")
    try:
        async with client.get(f"http://{slow.address}/cluster") as response:
            assert response.status == 504
        async with client.get(f"http://{slow.address}/status") as response:
            assert response.status == 200
    finally:
        await slow.stop()


async def test_metrics_are_prometheus_text(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        names = {family.name for family in text_string_to_metric_families(await response.text())}
    assert {"dledger_term", "dledger_role", "dledger_append_latency_seconds"} <= names


async def test_page_needs_nothing_from_elsewhere(client: aiohttp.ClientSession) -> None:
    async with client.get("/") as response:
        assert response.content_type == "text/html"
        html = await response.text()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert "http://" not in html
    assert "https://" not in html
    for name, kind in (
        ("app.js", "text/javascript"),
        ("view.js", "text/javascript"),
        ("words.js", "text/javascript"),
        ("app.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ):
        async with client.get(f"/page/{name}") as response:
            assert (response.status, response.content_type) == (200, kind)


@pytest.mark.parametrize("path", [*PATHS, "/nowhere"])
async def test_nothing_is_cached_or_framed(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(path) as response:
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
        assert "aiohttp" not in response.headers["Server"].lower()


@pytest.mark.parametrize(
    "path", ["/nowhere", "/page/", "/page/../http.py", "/page/%2e%2e/http.py", "/status/"]
)
async def test_unknown_paths_name_the_known(client: aiohttp.ClientSession, path: str) -> None:
    code, body = await get_json(client, path)
    assert code == 404
    assert body["paths"] == list(PATHS)


async def test_every_listed_path_exists(client: aiohttp.ClientSession) -> None:
    for path in PATHS:
        async with client.get(path) as response:
            assert response.status in (200, 503), path


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_it_only_reads(client: aiohttp.ClientSession, method: str) -> None:
    async with client.request(method, "/status") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD, OPTIONS"


async def test_a_failing_source_is_a_500_and_the_rest_goes_on(
    client: aiohttp.ClientSession, source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    del source.answers["n1"]
    code, body = await get_json(client, "/status")
    assert (code, body) == (500, {"error": "internal error, see the log of this node"})
    assert "KeyError" in caplog.text
    assert (await get_json(client, "/livez"))[0] == 200


async def test_port_in_use(server: HttpServer) -> None:
    with pytest.raises(ConfigError, match=server.address) as caught:
        await start_http(FakeSource(), server.address)
    assert caught.value.code is Code.PORT_IN_USE


@pytest.mark.parametrize(
    "listen", ["", "8080", "localhost", "localhost:", "host:http", "127.0.0.1:65536", "::1:80", "1.2.3.4:-1"]
)
async def test_wrong_listen_address(listen: str) -> None:
    with pytest.raises(ConfigError, match="host:port") as caught:
        await start_http(FakeSource(), listen)
    assert caught.value.code is Code.CONFIG_INVALID


async def test_address_of_another_machine() -> None:
    with pytest.raises(ConfigError, match="cannot listen") as caught:
        await start_http(FakeSource(), "192.0.2.1:0")
    assert caught.value.code is Code.CONFIG_INVALID


async def test_stop_frees_the_port_and_can_be_repeated() -> None:
    first = await start_http(FakeSource(), "127.0.0.1:0")
    await first.stop()
    await first.stop()
    second = await start_http(FakeSource(), first.address)
    assert second.address == first.address
    await second.stop()


async def test_stop_ends_idle_connections(server: HttpServer) -> None:
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b'{"ok":true}\n')
    await server.stop()
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    "request_", [b"GET / HTTQ\r\n\r\n", b"GET / HTTP/1.1\r\n\x01Host: a\r\n\r\n", b"\0\0\r\n\r\n"]
)
async def test_what_is_no_request_is_answered_and_does_not_fill_the_log(
    server: HttpServer, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_)
    assert (await reader.readline()).startswith(b"HTTP/1.0 400")
    writer.close()
    assert not caplog.records


async def test_who_leaves_before_being_told_to_go_on_does_not_fill_the_log(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /status HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n")
    writer.write_eof()
    await reader.read()
    writer.close()
    assert not caplog.records
