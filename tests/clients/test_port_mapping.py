"""Released RocketMQ 5 clients with a development broker behind mapped ports: only that of gRPC is mapped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_adapter.dev.port_mapping import PortMapping, mapped_broker
from tests.clients import installed

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-mapping")]
#: `make test` installs only the first one.
CLIENTS = installed.CLIENTS if os.environ.get("ROCKETMQ_CLIENTS") else installed.CLIENTS[:1]


@pytest.fixture(scope="module")
def mapping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortMapping]:
    with mapped_broker(tmp_path_factory.mktemp("mapped"), "client", ["grpc"]) as (broker, mapping):
        with broker.admin() as admin:
            for client in CLIENTS:
                admin.create_topic(f"{installed.NAMES[client]}-normal")
        yield mapping


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_back_what_it_sends_through_one_mapped_port(
    mapping: PortMapping, tmp_path: Path, client: str
) -> None:
    installed.require(client)
    before = mapping.connections["grpc"]
    seen = installed.run(client, tmp_path / "home", mapping.address("grpc"), "normal", {})
    assert len(seen["sent"]) == 20 and seen["received"] == seen["sent"]
    assert mapping.connections["grpc"] > before
