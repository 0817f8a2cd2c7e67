"""Nodes are killed while released clients send: the other two go on, and no send fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients import installed
from tests.clients.cluster import client_cluster

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-faults")]
_SECONDS = 10


@pytest.mark.parametrize("client", ["python", "node"])
@pytest.mark.parametrize("killed", ["the master", "the node that the client came to"])
def test_no_send_fails_when_a_node_is_killed(client: str, killed: str, tmp_path: Path) -> None:
    """Sends at 50 a second; what was acknowledged is delivered."""
    installed.require(client)
    with client_cluster(tmp_path / "cluster") as cluster:
        master = cluster.master()
        near = next(node for node in cluster.local.node_ids if node != master)
        victim = master if killed == "the master" else near
        options = {"seconds": _SECONDS}
        driver = installed.start(client, tmp_path / "home", cluster.address(near), "steady", options)
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline().strip() == "begun"
            cluster.local.kill(victim)
            said, _ = driver.communicate(timeout=installed.SCENARIO_S)
        finally:
            driver.kill()
            driver.wait()
        assert driver.returncode == 0, said
        seen = json.loads(said.splitlines()[-1])
        assert seen["failed"] == [] and seen["lost"] == []
        assert seen["sent"] == 50 * _SECONDS
