"""RocketMQ 4 clients in Java, Go and Node.js with a development broker behind mapped ports.

Only the ports of the NameServer and of the broker are mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_adapter.client import BlockingAdmin
from broker_adapter.testing import DevProcess
from tests.broker_adapter.dev.port_mapping import PortMapping, advertised_broker

from . import genuine

pytestmark = [pytest.mark.xdist_group("interop-mapping"), pytest.mark.process]

CLIENTS: dict[str, Callable[[Path], genuine.Client]] = {
    "java49": lambda folder: genuine.java_client("4.9", folder),
    "java55": lambda folder: genuine.java_client("5.5", folder),
    "go": genuine.go_client,
    "node": genuine.node_client,
}


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevProcess, PortMapping]]:
    genuine.require()
    with advertised_broker(tmp_path_factory.mktemp("mapped"), "name_server", "broker") as made:
        yield made


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_sends_and_consumes_through_two_mapped_ports(
    mapped: tuple[DevProcess, PortMapping], tmp_path: Path, name: str
) -> None:
    client, (_, mapping) = CLIENTS[name](tmp_path), mapped
    topic, before = f"mapped-{name}", mapping.connections["broker"]
    server = f"127.0.0.1:{mapping.ports['name_server']}"  # the Go client accepts no name
    with BlockingAdmin(server) as admin:
        admin.create_topic(topic)
    client.run("send", server, topic, "5", "1")
    lines = client.run("orderly", server, topic, f"group-{name}", "*", "5")
    assert {line.split()[1] for line in lines if line.startswith("got ")} == set("01234")
    if name == "java55":  # its POP consumer also asks the broker for its queues
        lines = client.run("pop", server, topic, "popping", "5")
        assert {line.split()[1] for line in lines if line.startswith("got ")} == set("01234")
    assert mapping.connections["broker"] >= before + 2
