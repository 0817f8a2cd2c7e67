"""The compose file of examples/deploy/compose, and what its services read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.config.settings import parse_settings
from broker_adapter.namesrv.config import NameServerConfig
from dledger.cli.health_command import URL_VARIABLE
from dledger.node.setup.config import parse_config
from dledger.status.http import PROBES
from tests.conftest import DID_NOT_RUN
from tests.docs.command_lines import fault_of
from tests.docs.pages import ROOT, Command

yaml = pytest.importorskip("yaml", reason=f"{DID_NOT_RUN}: the compose file: there is no PyYAML")

FOLDER = ROOT / "examples/deploy/compose"
#: The loader of the compose specification, which has its schema.
LOADER = "github.com/compose-spec/compose-go/v2/cmd@v2.9.0"
FILE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: Mapping[str, Any] = FILE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "dledger"]
NODES = [name for name in OURS if "server" in SERVICES[name]["command"]]


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def loaded(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The file as the specification's loader has it, in JSON."""
    command = ["go", "run", LOADER, "--format", "json", str(file)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.xdist_group("compose")
def test_the_file_follows_the_specification(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip(f"{DID_NOT_RUN}: the compose file against its schema: there is no go")
    done = loaded(FOLDER / "compose.yaml", FOLDER)
    if "dial tcp" in done.stderr or "no such host" in done.stderr:
        pytest.skip(
            f"{DID_NOT_RUN}: the compose file against its schema: no Go modules: {done.stderr[-200:]}"
        )
    assert done.returncode == 0, done.stderr
    project = json.loads(done.stdout)
    for name in NODES:
        assert project["services"][name]["environment"]["DLEDGER_IF_EMPTY"] == "rejoin", "unless it is set"
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((FOLDER / "compose.yaml").read_text().replace("cap_drop:", "cap_dropp:"))
    assert "cap_dropp" in loaded(wrong, FOLDER).stderr


def test_every_file_exists_and_is_used() -> None:
    named = {source["file"] for source in FILE["configs"].values()}
    there = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    made_by_the_reader = {"secret"}
    assert there - made_by_the_reader == named | {"compose.yaml", ".gitignore"}
    used = {config["source"] for service in SERVICES.values() for config in service["configs"]}
    assert used == set(FILE["configs"])
    build = SERVICES["n1"]["build"]
    context = FOLDER / build["context"]
    assert context.resolve() == ROOT and (context / build["dockerfile"]).exists()


@pytest.mark.parametrize("name", OURS)
def test_a_server_has_no_rights_one_volume_and_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["volumes"] == [f"{name}:/var/lib/dledger"] and name in FILE["volumes"]
    assert fault_of(Command(1, tuple(service["command"]))) is None
    probe = service["environment"][URL_VARIABLE].rpartition("/")[2]
    assert f"/{probe}" in PROBES


def test_the_nodes_are_the_members() -> None:
    config = parse_config(tomllib.loads((FOLDER / "node.toml").read_text()))
    assert config.program is not None
    settings = parse_settings(config.program.settings)
    assert NODES == list(config.members) == ["n1", "n2", "n3"]
    for node in NODES:
        assert SERVICES[node]["command"][-2:] == ["--node-id", node]
        assert config.members[node] == f"{node}:20911" and config.http_members[node] == f"{node}:20980"
        assert f":{20980}/health" in SERVICES[node]["environment"][URL_VARIABLE]
    assert config.listen.endswith(":20911") and config.http_listen.endswith(":20980")
    assert str(config.cluster_secret_file) == f"/run/secrets/{SERVICES['n1']['secrets'][0]}"
    names = NameServerConfig.model_validate(tomllib.loads((FOLDER / "namesrv.toml").read_text()))
    names.refuse_plaintext()
    config.refuse_plaintext()
    assert list(settings.namesrv) == [f"namesrv:{names.listen.rpartition(':')[2]}"]
    assert "namesrv" in names.http_hosts


def test_all_servers_are_scraped() -> None:
    targets = [
        target
        for job in read("prometheus.yaml")["scrape_configs"]
        for one in job["static_configs"]
        for target in one["targets"]
    ]
    assert targets == [*(f"{node}:20980" for node in NODES), "namesrv:9880"]


def test_the_dashboard_shows_metrics_that_exist() -> None:
    dashboard = json.loads((FOLDER / "grafana/dledger.json").read_text())
    reference = (ROOT / "docs/reference/metrics.md").read_text()
    metrics = set(re.findall(r"^\| `(\w+)` \|", reference, re.MULTILINE))
    labels = set(re.findall(r"`(\w+)`", reference)) | {"instance", "le"}
    source = read("grafana/datasource.yaml")["datasources"][0]["uid"]
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == source
        for target in panel["targets"]:
            names = re.findall(r"\b(?:dledger|broker|namesrv|process)_\w+", target["expr"])
            assert names and {re.sub(r"_bucket$", "", name) for name in names} <= metrics, target
            grouped = re.findall(r"by \(([\w, ]+)\)", target["expr"])
            shown = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            assert {*", ".join(grouped).split(", "), *shown} - {""} <= labels, target
