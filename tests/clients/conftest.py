"""Tests with released clients. All but a short part of them need `make test-clients`, which sets the
variable ROCKETMQ_CLIENTS: they are not collected without it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import installed
from tests.clients.cluster import ClientCluster, client_cluster

_SHORT = ("test_first_message.py", "test_port_mapping.py")
collect_ignore = (
    []
    if os.environ.get("ROCKETMQ_CLIENTS")
    else [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in _SHORT]
)

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientCluster]:
    with client_cluster(tmp_path_factory.mktemp("clients") / "cluster") as running:
        yield running


@pytest.fixture
def run(client: str, cluster: ClientCluster, tmp_path: Path) -> Run:
    """`run(scenario, ...)`: what the client has seen, whose process it is. Options go to the driver."""
    installed.require(client)

    def run_scenario(scenario: str, **options: Any) -> Any:
        return installed.run(client, tmp_path / "home", cluster.address(cluster.first), scenario, options)

    return run_scenario
