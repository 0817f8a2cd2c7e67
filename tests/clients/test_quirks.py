"""What the service's work-arounds rest on: of these clients, in these versions."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from broker_adapter.api import GroupConfig
from tests.clients import installed
from tests.clients.cluster import ClientCluster
from tests.clients.load import Load

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients-quirks")]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()


def said(program: str, home: Path) -> str:
    done = subprocess.run(
        [str(installed.PYTHON), "-c", program],
        env={**installed.environment(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=installed.SCENARIO_S,
    )
    return done.stdout + done.stderr


def test_the_python_client_is_the_pinned_one(tmp_path: Path) -> None:
    installed.require("python")
    program = "from importlib.metadata import version; print(version('rocketmq-python-client'))"
    assert re.findall(r"rocketmq-python-client==([\d.]+)", MAKEFILE) == [said(program, tmp_path).strip()]


def test_the_node_js_client_is_the_pinned_one() -> None:
    installed.require("node")
    package = installed.NODE_MODULES / "rocketmq-client-nodejs" / "package.json"
    found = json.loads(package.read_text())["version"]
    assert re.findall(r"rocketmq-client-nodejs@([\d.]+)", MAKEFILE) == [found]


def test_the_java_and_go_clients_are_the_pinned_ones() -> None:
    installed.require("java")
    jars = {path.name for path in (installed.JAVA / "lib").iterdir()}
    pinned = re.search(r"<client.version>([\d.]+)<", (HERE / "java" / "pom.xml").read_text())
    assert pinned and f"rocketmq-client-java-{pinned[1]}.jar" in jars
    oldest = re.search(r"rocketmq-client-java:([\d.]+)", MAKEFILE)
    assert oldest and (installed.JAVA / "oldest" / f"rocketmq-client-java-{oldest[1]}.jar").exists()
    installed.require("go")
    found = re.search(r"golang/v5 v([\d.]+)", (HERE / "go" / "go.mod").read_text())
    assert found and b"rocketmq-clients/golang/v5@v" + found[1].encode() in installed.GO.read_bytes()


def test_the_client_and_the_service_cannot_live_in_one_process(tmp_path: Path) -> None:
    """Both register the same message names: so each client here is a process of its own."""
    installed.require("python")
    program = "import broker_adapter.v2.definition_pb2\nprint('alone')\nimport rocketmq"
    seen = said(program, tmp_path)
    assert seen.startswith("alone") and "duplicate symbol 'apache.rocketmq.v2." in seen


@pytest.mark.parametrize(
    ("client", "group", "tries"), [("node", "node-retried-g", 3), ("python", "py-retried-g", 1)]
)
def test_node_js_takes_over_a_change_of_the_group_and_python_reads_its_settings_once(
    client: str, group: str, tries: int, cluster: ClientCluster, tmp_path: Path
) -> None:
    """Consumers in order count their tries themselves, by the settings that they were told."""
    installed.require(client)
    cluster.put(GroupConfig(group, retry_max_times=0, consume_orderly=True))
    with Load(client, tmp_path / "home", cluster.address(cluster.first), "retried") as load:
        cluster.put(GroupConfig(group, retry_max_times=2, consume_orderly=True))
        assert load.finish() == {"tries": tries, "dead": ["bad"]}
