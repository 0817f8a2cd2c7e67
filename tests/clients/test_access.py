"""TLS and signed calls: clients that are switched to them, and what accounts may do."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.cli.local.certificates import Authority
from dledger.cli.local.cluster_plan import to_toml
from dledger.cli.local.local_cluster import LocalCluster
from tests.clients import installed
from tests.clients.cluster import client_cluster
from tests.process.cluster import free_ports

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-access")]

ACCOUNTS = """
[[accounts]]
access_key = "all"
secret = "of all"
admin = true

[[accounts]]
access_key = "reader"
secret = "of the reader"
topics = { "t" = "SUB" }
groups = { "readers" = "SUB" }

[[accounts]]
access_key = "writer"
secret = "of the writer"
topics = { "t" = "PUB" }
"""
ALL, READER, WRITER = ("all", "of all"), ("reader", "of the reader"), ("writer", "of the writer")
Run = Callable[..., Any]


class Secured:
    """Writes what the nodes need: a port with TLS for clients on each, and the accounts."""

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        self.roots = authority.save(folder)
        self._files = authority.issue(folder, "clients", hosts=("127.0.0.1",))
        self._accounts = folder / "accounts.toml"
        self._accounts.write_text(ACCOUNTS)
        self.addresses: dict[str, str] = {}

    def prepare(self, local: LocalCluster) -> None:
        ports = free_ports(len(local.node_ids))
        self.addresses = {n: f"127.0.0.1:{port}" for n, port in zip(local.node_ids, ports, strict=True)}
        certificate, key = map(str, self._files)
        for node, address in self.addresses.items():
            path = local.process(node).config
            config = tomllib.loads(path.read_text())
            config["program"]["settings"]["rocketmq_v2"] |= {
                "tls_listen": address,
                "tls_certificate": certificate,
                "tls_key": key,
                "tls_advertise": self.addresses,
                "access_control": str(self._accounts),
            }
            path.write_text(to_toml(config))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """`runs(client, home, scenario, ...)`, at the ports with TLS if the option `tls` is true."""
    folder = tmp_path_factory.mktemp("access")
    secured = Secured(folder)
    with client_cluster(folder / "cluster", prepare=secured.prepare) as cluster:

        def run(client: str, home: Path, scenario: str, **options: Any) -> Any:
            address = (
                secured.addresses[cluster.first] if options.get("tls") else cluster.address(cluster.first)
            )
            return installed.run(client, home, address, scenario, options, roots=secured.roots)

        yield run


#: What a client says that may not do what its settings name. Java does not start then, and does not say why;
#: Go waits for other settings for ever.
_FORBIDDEN = {
    "python": "ForbiddenException",
    "node": "ForbiddenException",
    "java": "the service has FAILED",
    "go": "not started",
}


@pytest.fixture(params=installed.CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(client: str, runs: Run, tmp_path: Path) -> Run:
    installed.require(client)

    def of_client(scenario: str, **options: Any) -> Any:
        return runs(client, tmp_path / "home", scenario, **options)

    return of_client


def test_signed_messages_go_there_and_back_over_tls(run: Run) -> None:
    """Routes lead on to the ports with TLS."""
    seen = run("normal", tls=True, account=ALL)
    assert len(seen["sent"]) == 20 and seen["received"] == seen["sent"]


def test_push_consumers_work_over_tls(run: Run) -> None:
    seen = run("push", tls=True, account=ALL)
    assert seen["seen"] == [["0", 1], ["1", 1], ["1", 2], ["2", 1]]


@pytest.mark.parametrize("account", [None, ("all", "wrong"), ("nobody", "of all")])
def test_who_does_not_sign_as_an_account_is_refused(run: Run, account: tuple[str, str] | None) -> None:
    """Java and Go say why they got no route, Python and Node.js do not."""
    options = {} if account is None else {"account": account}
    seen = run("calls", topic="t", group="readers", **options)
    assert all("route" in error or "UnauthorizedException" in error for error in seen.values()), seen


def test_an_account_does_what_it_may_and_no_more(client: str, run: Run) -> None:
    says_why = client in ("python", "node")
    assert run("calls", topic="t", group="readers", account=ALL) == {"send": "", "receive": ""}
    reader = run("calls", topic="t", group="readers", account=READER)
    assert _FORBIDDEN[client] in reader["send"]
    assert ("may not PUB" in reader["send"]) == says_why
    assert reader["receive"] == ""
    writer = run("calls", topic="t", group="readers", account=WRITER)
    assert _FORBIDDEN[client] in writer["receive"]
    assert ("may not SUB" in writer["receive"]) == says_why
    assert writer["send"] == ""
