"""examples/rocketmq, as a newcomer runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clients import installed
from tests.clients.cluster import ClientCluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "rocketmq"
PROGRAMS = {"python": (str(installed.PYTHON), "py"), "node": ("node", "cjs")}

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-examples")]


def run(client: str, home: Path, name: str, *arguments: str) -> list[str]:
    program, suffix = PROGRAMS[client]
    done = subprocess.run(
        [program, str(EXAMPLES / f"{name}.{suffix}"), *arguments],
        env=installed.environment(home),
        capture_output=True,
        text=True,
        check=False,
        timeout=installed.SCENARIO_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("client", ["python", "node"])
def test_a_producer_and_a_consumer(client: str, cluster: ClientCluster, tmp_path: Path) -> None:
    installed.require(client)
    address, topic = cluster.address(cluster.first), f"example-{client}"
    sent = run(client, tmp_path, "producer", address, topic)
    assert [line.split()[0] for line in sent if line.startswith("sent ")] == ["sent"] * 3
    lines = run(client, tmp_path, "consumer", address, topic, "3")
    received = sorted(line for line in lines if line.startswith("received "))
    language = {"python": "Python", "node": "Node.js"}[client]
    assert received == [f"received order {i} from {language} (attempt 1)" for i in range(3)]
