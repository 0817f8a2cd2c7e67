"""docs/reference/metrics.md: every metric that a node with a broker, and a NameServer, export.

Creates one of each in this process and exports its metrics.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric

from broker_adapter.config.settings import parse_settings
from broker_adapter.namesrv.config import NameServerConfig
from broker_adapter.namesrv.http import Exporter
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.server.broker_status import BrokerStatus
from broker_adapter.server.program import BrokerProgram
from dledger.node.setup.config import parse_config
from dledger.status.metrics import StatusExporter
from dledger.store.identity import Identity, init_directory
from tests.docs.reference.markdown import GENERATED, table

_PAGE = """# Metrics

This page is for operators who look up a metric of `/metrics` (`http_listen` of a node or a NameServer), its
labels and its meaning. [Operations](../operations.md#monitoring) and
[running the broker](../broker-operations.md#monitoring) recommend alerts. Names are those in Prometheus. A
histogram has `_bucket`, `_sum` and `_count`.
"""
_HEAD = ("metric", "type", "labels", "meaning")


async def node_families(folder: Path) -> list[Metric]:
    """Return the metrics of one node with a broker."""
    init_directory(folder / "n1", Identity("reference", "default", "n1", data_file_size=4 << 20))
    members = {"n1": "127.0.0.1:0"}
    content = {
        "directory": str(folder / "n1"),
        "node_id": "n1",
        "cluster_id": "reference",
        "members": members,
    }
    program = BrokerProgram(parse_config(content), parse_settings({"index_slots": 100, "index_items": 400}))
    node = program.make_node()
    await node.start()
    try:
        await program.start()
        exporter = StatusExporter(node.node_status, node.metrics, BrokerStatus(program).metrics)
        return list(exporter.families())
    finally:
        await program.stop()
        await node.stop()


async def name_server_families(folder: Path) -> list[Metric]:
    """Return the metrics of one NameServer."""
    process = NameServerProcess(NameServerConfig(directory=folder / "namesrv", listen="127.0.0.1:0"))
    await process.start()
    try:
        return list(Exporter(process.name_server).families())
    finally:
        await process.stop()


async def families() -> tuple[list[Metric], list[Metric]]:
    with tempfile.TemporaryDirectory() as folder:
        return await node_families(Path(folder)), await name_server_families(Path(folder))


def rows(found: Iterable[Metric]) -> list[tuple[str, str, str, str]]:
    """Return one row for each metric, with its name in Prometheus."""
    suffixes = {"counter": "_total", "info": "_info"}
    return [
        (
            f"`{metric.name}{suffixes.get(metric.type, '')}`",
            metric.type,
            ", ".join(f"`{label}`" for label in labels(metric)),
            metric.documentation,
        )
        for metric in found
    ]


def labels(metric: Metric) -> list[str]:
    """Return the label names, also of a metric without samples."""
    if metric.type == "info":
        return sorted({label for sample in metric.samples for label in sample.labels})
    return list(getattr(metric, "_labelnames", ()))


def page() -> str:
    node, name_server = asyncio.run(families())
    node = [metric for metric in node if not metric.name.startswith("process_")]
    log = [metric for metric in node if metric.name.startswith("dledger_")]
    broker = [metric for metric in node if metric.name.startswith("broker_")]
    process = [metric for metric in name_server if metric.name.startswith("process_")]
    name_server = [metric for metric in name_server if metric.name.startswith("namesrv_")]
    lines = [GENERATED, "", *_PAGE.splitlines()]
    for heading, what, found in (
        ("Node", "Every node.", log),
        ("Broker", "Every node with a broker, in addition to the metrics of the node.", broker),
        ("NameServer", "Every NameServer.", name_server),
        ("Process", "Every node and every NameServer.", process),
    ):
        lines += ["", f"## {heading}", "", what, "", *table(_HEAD, rows(found))]
    return "\n".join(lines) + "\n"
