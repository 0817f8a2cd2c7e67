"""Each kind of command, and each Python client, names the server at a wrong port and the port to use."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from broker_adapter.cli import namesrv_command
from broker_adapter.client import (
    BlockingAdmin,
    BlockingProducer,
    BlockingPullConsumer,
    ClientOptions,
    Message,
    NameServerUnavailable,
)
from broker_adapter.testing import DevProcess
from dledger import Client, DLedgerError
from dledger.cli.local.local_cluster import LocalCluster
from dledger.infra.port_kinds import PortKind
from tests.cli.conftest import DATA_FILE_SIZE, Command
from tests.node.local import PATIENT

from .conftest import BrokerCommand

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("wrong-ports")]

#: port -> its kind.
KINDS = {
    "log": PortKind.GRPC,
    "log of the broker": PortKind.GRPC,
    "page": PortKind.HTTP,
    "NameServer": PortKind.NAME_SERVER,
    "remoting": PortKind.BROKER,
    "VIP": PortKind.BROKER,
    "send-only": PortKind.BROKER,
    "VIP of send-only": PortKind.BROKER,
}
NOT_LOG = [name for name, kind in KINDS.items() if kind is not PortKind.GRPC]
NOT_NAME_SERVER = [name for name, kind in KINDS.items() if kind is not PortKind.NAME_SERVER]
LOG_TEXT = "the log is at the `listen` address of a node (port 20911"
NAME_SERVER_TEXT = "the `listen` address of a NameServer is needed (port 9876"

LOG_COMMANDS = {
    "status": ("status", "--timeout", "1"),
    "append": ("append", "--timeout", "1"),
    "read": ("read", "--timeout", "1"),
    "read --local": ("read", "--local", "--timeout", "1"),
    "purge": ("purge", "--before", "1", "--timeout", "1"),
    "transfer": ("transfer", "--to", "n1", "--timeout", "1"),
    "scrub": ("scrub",),
    "backup": ("backup", "--to"),
    "broker topic list": ("broker", "topic", "list", "--timeout", "1"),
    "broker status": ("broker", "status", "--timeout", "1"),
}
BROKER_COMMANDS = {
    "topic list": ("broker", "topic", "list", "--timeout", "0.2"),
    "produce": ("broker", "produce", "--topic", "t", "--timeout", "0.2"),
    "consume": ("broker", "consume", "--topic", "t", "--timeout", "0.2"),
    "status": ("broker", "status", "--timeout", "0.2"),
}
NAME_SERVER_COMMANDS = {
    "status": ("status",),
    "topics": ("topics",),
    "kv put": ("kv", "put", "space", "key", "value"),
}


class NameServerCommand(Command):
    root = namesrv_command.cli


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of one node without a broker, and of `dledger dev`, by the names in KINDS."""
    node = LocalCluster.create(
        tmp_path_factory.mktemp("node"),
        nodes=1,
        base_port=0,
        data_file_size=DATA_FILE_SIZE,
        settings={"timing": PATIENT},
    )
    with node, DevProcess(tmp_path_factory.mktemp("dev")) as dev:
        node.start()
        node.wait_for_all()
        wait_for_page(dev.page)
        yield {
            "log": node.addresses[0],
            "log of the broker": dev.endpoints,
            "page": dev.page.split("/")[2],
            "NameServer": dev.name_server,
            "remoting": dev.broker,
            "VIP": dev.addresses["vip"],
            "send-only": dev.addresses["send_only"],
            "VIP of send-only": dev.addresses["send_only_vip"],
        }


def wait_for_page(url: str) -> None:
    """The page is served shortly after the broker."""
    while True:
        try:
            urllib.request.urlopen(url, timeout=20).close()
        except urllib.error.URLError:
            continue
        return


def assert_explained(output: str, ports: dict[str, str], port: str, text: str) -> None:
    assert f"{ports[port]}: {KINDS[port].value} listens there; {text}" in output, (port, output)


@pytest.mark.parametrize("port", NOT_LOG)
@pytest.mark.parametrize("name", LOG_COMMANDS)
def test_commands_that_need_a_node(ports: dict[str, str], port: str, name: str, tmp_path: Path) -> None:
    arguments = [*LOG_COMMANDS[name], *([str(tmp_path / "backup")] if name == "backup" else [])]
    result = BrokerCommand()(*arguments, "--servers", ports[port], stdin=b"line\n", code=1)
    if name in ("status", "broker status"):
        assert KINDS[port].value in result.output and LOG_TEXT in result.output  # the address is a column
    else:
        assert_explained(result.stderr, ports, port, LOG_TEXT)


@pytest.mark.parametrize("port", NOT_NAME_SERVER)
@pytest.mark.parametrize("name", BROKER_COMMANDS)
def test_commands_that_need_a_name_server(ports: dict[str, str], port: str, name: str) -> None:
    result = BrokerCommand()(*BROKER_COMMANDS[name], "--namesrv", ports[port], stdin=b"line\n", code=1)
    assert_explained(result.stderr, ports, port, NAME_SERVER_TEXT)
    assert ("--servers; see" in result.stderr) == (KINDS[port] is PortKind.GRPC)


@pytest.mark.parametrize("port", NOT_NAME_SERVER)
@pytest.mark.parametrize("name", NAME_SERVER_COMMANDS)
def test_commands_of_the_name_server(ports: dict[str, str], port: str, name: str) -> None:
    result = NameServerCommand()(*NAME_SERVER_COMMANDS[name], "--servers", ports[port], code=None)
    assert result.exit_code == (3 if name == "kv put" else 1)
    if name == "status":
        assert KINDS[port].value in result.output and NAME_SERVER_TEXT in result.output
    else:
        assert_explained(result.stderr, ports, port, NAME_SERVER_TEXT)


@pytest.mark.parametrize("port", NOT_LOG)
def test_the_client_of_the_log(ports: dict[str, str], port: str) -> None:
    with Client(ports[port], timeout=1.0) as client:
        with pytest.raises(DLedgerError) as appended:
            client.append(b"x")
        (answer,) = client.status().values()
    assert_explained(str(appended.value), ports, port, LOG_TEXT)
    assert_explained(str(answer), ports, port, LOG_TEXT)


def send(address: str, options: ClientOptions) -> None:
    with BlockingProducer("p", address, options=options) as producer:
        producer.send(Message("t", b"x"))


def list_queues(address: str, options: ClientOptions) -> None:
    with BlockingPullConsumer("g", address, options=options) as consumer:
        consumer.queues("t")


def list_topics(address: str, options: ClientOptions) -> None:
    with BlockingAdmin(address, options=options) as admin:
        admin.topics()


@pytest.mark.parametrize("port", NOT_NAME_SERVER)
@pytest.mark.parametrize("call", [send, list_queues, list_topics])
def test_the_clients_of_the_broker(
    ports: dict[str, str], port: str, call: Callable[[str, ClientOptions], None]
) -> None:
    with pytest.raises(NameServerUnavailable) as failed:
        call(ports[port], ClientOptions(timeout=2.0, request_timeout=2.0))
    assert_explained(failed.value.message, ports, port, NAME_SERVER_TEXT)


@pytest.mark.parametrize(
    ("arguments", "needs_node"),
    [(("status", "--servers"), True), (("broker", "topic", "list", "--namesrv"), False)],
)
def test_an_address_without_a_server_is_refused_as_before(arguments: Sequence[str], needs_node: bool) -> None:
    shown = BrokerCommand()(*arguments, "127.0.0.1:1", "--timeout", "0.2", code=1)
    assert "listens there;" not in shown.output + shown.stderr
    assert ("connection refused" if needs_node else "cannot connect") in shown.output + shown.stderr
