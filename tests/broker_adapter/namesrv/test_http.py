"""The HTTP face: JSON, metrics, page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker_adapter.namesrv.server import NameServerProcess
from tests.broker_adapter.namesrv.helpers import name_server, registration


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServerProcess]:
    async with name_server(tmp_path, http_listen="127.0.0.1:0") as process:
        process.name_server.register(registration("n1", 0, term=7))
        process.name_server.register(registration("n2", 2))
        process.name_server.register(registration("n3", -1))
        yield process


@pytest.fixture
async def http(server: NameServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{server.http_address}") as session:
        yield session


async def test_status_tells_brokers_topics_and_events(
    server: NameServerProcess, http: aiohttp.ClientSession
) -> None:
    async with http.get("/status") as response:
        body = await response.json()
    assert body["address"] == server.address
    assert {b["node_id"]: b["broker_id"] for b in body["brokers"]} == {"n1": 0, "n2": 2, "n3": -1}
    assert body["topic_rows"]["orders"]["broker-a"]["write_queues"] == 8
    assert [event["what"] for event in body["events"]] == ["registered"] * 3
    assert body["topics"] == 1 and body["limits_hit"] == {}


async def test_metrics_can_be_parsed(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics") as response:
        text = await response.text()
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["namesrv_brokers", "master"] == values["namesrv_brokers", "slave"] == 1
    assert values["namesrv_brokers", "unknown"] == 1
    assert values["namesrv_master_term", "broker-a"] == 7
    assert values["namesrv_topics",] == 1
    assert values["namesrv_events_total", "registered"] == 3


async def test_the_page_and_its_files_are_served(http: aiohttp.ClientSession) -> None:
    async with http.get("/") as response:
        page = await response.text()
        assert "script-src 'self'" in response.headers["Content-Security-Policy"]
    for path in ("/page/namesrv.js", "/page/words.js", "/page/app.css", "/page/icon.svg"):
        async with http.get(path) as response:
            assert response.status == 200 and await response.read()
    assert "/page/namesrv.js" in page
    async with http.get("/livez") as response:
        assert json.loads(await response.text()) == {"ok": True}
    async with http.get("/nothing") as response:
        assert response.status == 404
        assert (await response.json())["paths"] == ["/", "/status", "/livez", "/metrics"]
