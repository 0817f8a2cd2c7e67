"""Faults under unmodified clients of RocketMQ, 50 sends a second each: `make test-interop-faults`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.cli.local.local_cluster import LocalCluster

from . import faults, genuine, ours

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    genuine.require()
    with ours.cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module", params=["4.9.8", "5.5.0", "go", "node"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> genuine.Client:
    genuine.require()
    folder: Path = tmp_path_factory.mktemp("client")
    match request.param:
        case "go":
            return genuine.go_client(folder)
        case "node":
            return genuine.node_client(folder)
        case version:
            return genuine.java_client(version, folder)


#: Clients whose program can leave the time-outs alone, and in which ways it sends.
_OWN_TIME_OUTS = [
    ("4.9.8", "default"),
    ("4.9.8", "again"),
    ("5.5.0", "default"),
    ("5.5.0", "again"),
    ("go", "default"),
]


# Applications that change no time-out. By a selector a client tries once; who wants more takes another name.
@pytest.mark.parametrize(("client", "how"), _OWN_TIME_OUTS, indirect=["client"])
def test_no_send_fails_with_the_clients_own_time_outs_when_the_master_dies(
    cluster: LocalCluster, client: genuine.Client, how: str
) -> None:
    fault, servers = "SIGKILL of the master", cluster.plan.companions[0].address
    result = faults.suffered(cluster, client, servers, fault, f"own{client.slug}{how}", how)
    print("\n" + result.row(client.name, f"{fault}, {how}"))
    print(*result.failed, sep="\n")
    assert len(result.failed) <= faults.CLIENTS_OWN.get((client.name, f"{fault}, {how}"), 0)
    assert (result.lost, result.reordered) == (0, 0)


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_no_send_fails_and_nothing_is_lost(cluster: LocalCluster, client: genuine.Client, fault: str) -> None:
    topic = f"fault{client.slug}-{list(faults.FAULTS).index(fault)}"
    result = faults.suffered(cluster, client, cluster.plan.companions[0].address, fault, topic)
    print("\n" + result.row(client.name, fault))
    print(*result.failed, sep="\n")
    assert len(result.failed) <= faults.CLIENTS_OWN.get((client.name, fault), 0)
    assert (result.lost, result.reordered) == (0, 0)
