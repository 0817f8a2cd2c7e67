"""The manifests of examples/deploy/kubernetes."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from broker_adapter.config.settings import parse_settings
from broker_adapter.namesrv.config import NameServerConfig
from dledger.cli.server_commands import server
from dledger.node.setup.config import NodeConfig, parse_config
from dledger.status.http import PROBES
from tests.conftest import DID_NOT_RUN
from tests.docs.command_lines import fault_of
from tests.docs.pages import ROOT, Command

yaml = pytest.importorskip("yaml", reason=f"{DID_NOT_RUN}: the manifests: there is no PyYAML")

FOLDER = ROOT / "examples/deploy/kubernetes"
BASE = FOLDER / "base"
#: The oldest and the newest version whose schemas are compared.
VERSIONS = ("1.30", "1.33")
NODES = [f"dledger-{i}" for i in range(3)]

Manifest = Mapping[str, Any]


def manifests() -> Iterator[Manifest]:
    for name in ("dledger.yaml", "namesrv.yaml"):
        yield from yaml.safe_load_all((BASE / name).read_text())


def manifest(kind: str, name: str) -> Manifest:
    (found,) = (one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def container(name: str) -> Manifest:
    (found,) = manifest("StatefulSet", name)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def node_config() -> NodeConfig:
    return parse_config(tomllib.loads(manifest("ConfigMap", "dledger")["data"]["node.toml"]))


def name_server_config() -> NameServerConfig:
    text = manifest("ConfigMap", "dledger-namesrv")["data"]["namesrv.toml"]
    return NameServerConfig.model_validate(tomllib.loads(text))


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("one", list(manifests()), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_a_manifest_matches_the_schema(one: Manifest, version: str) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason=f"{DID_NOT_RUN}: the manifests: there is no kubernetes-validate"
    )
    validate.validate(one, version, strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate({**one, "metadata": {**one["metadata"], "lables": {}}}, version, strict=True)


@pytest.mark.parametrize("name", ["dledger", "dledger-namesrv"])
def test_a_command_exists_and_reads_the_mounted_file(name: str) -> None:
    arguments = container(name)["args"]
    assert fault_of(Command(1, tuple(arguments))) is None
    (file,) = (word.removeprefix("--config=") for word in arguments if word.startswith("--config="))
    places = {mount["mountPath"]: mount.get("subPath") for mount in container(name)["volumeMounts"]}
    assert places[file] in manifest("ConfigMap", name)["data"]


def test_the_members_are_the_names_of_the_pods() -> None:
    spec, service = manifest("StatefulSet", "dledger")["spec"], manifest("Service", "dledger")
    config = node_config()
    assert spec["replicas"] == len(NODES) and spec["serviceName"] == service["metadata"]["name"]
    assert config.members == {node: f"{node}.dledger:{port_of(config.listen)}" for node in NODES}
    assert config.http_members == {node: f"{node}.dledger:{port_of(config.http_listen)}" for node in NODES}
    assert service["spec"]["publishNotReadyAddresses"] and service["spec"]["clusterIP"] == "None"
    assert spec["podManagementPolicy"] == "Parallel", "a node is not ready without others"
    names = manifest("StatefulSet", "dledger-namesrv")["spec"]
    assert config.program is not None
    expected = [f"dledger-namesrv-{i}.{names['serviceName']}:9876" for i in range(names["replicas"])]
    assert list(parse_settings(config.program.settings).namesrv) == expected
    tls = name_server_config().tls
    assert tls is not None and list(tls.broker_names) == NODES


def test_ports_and_probes_are_those_of_the_configuration() -> None:
    config, names = node_config(), name_server_config()
    assert config.program is not None
    remoting = parse_settings(config.program.settings).remoting
    listened = {"remoting": remoting.listen, "remoting-send": remoting.send_only_listen}
    listened |= {"log": config.listen, "page": config.http_listen}
    assert _ports("dledger") == {name: port_of(address) for name, address in listened.items()}
    assert _ports("dledger-namesrv") == {
        "remoting": port_of(names.listen),
        "page": port_of(names.http_listen),
    }
    for name, probes in (("dledger", PROBES), ("dledger-namesrv", ("/livez",))):
        for kind in ("livenessProbe", "readinessProbe"):
            request = container(name)[kind]["httpGet"]
            assert request["path"].partition("?")[0] in probes
            assert request["port"] == "page" and request["scheme"] == "HTTPS"


def _ports(name: str) -> dict[str, int]:
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    assert {one["name"]: one["port"] for one in manifest("Service", name)["spec"]["ports"]} == ports
    return ports


@pytest.mark.parametrize("name", ["dledger", "dledger-namesrv"])
def test_a_pod_has_no_rights_and_one_writable_volume(name: str) -> None:
    pod = manifest("StatefulSet", name)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    rights = container(name)["securityContext"]
    assert rights["readOnlyRootFilesystem"] and rights["capabilities"] == {"drop": ["ALL"]}
    assert not rights["allowPrivilegeEscalation"]
    writable = {m["mountPath"] for m in container(name)["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/var/lib/dledger", "/tmp"}


def test_only_the_first_start_creates_directories() -> None:
    variables = {one["name"]: one.get("value") for one in container("dledger")["env"]}
    (option,) = (one for one in server.params if one.name == "if_empty")
    assert variables[str(option.envvar)] == "rejoin"
    if shutil.which("kubectl") is None:
        pytest.skip(f"{DID_NOT_RUN}: the patch of the first start: there is no kubectl")
    base, first = (_kustomized(folder) for folder in ("base", "first-start"))
    assert sorted(one["kind"] for one in base) == sorted(one["kind"] for one in manifests())
    changes = [(old, new) for old, new in zip(base, first, strict=True) if old != new]
    ((old, new),) = changes
    assert new["metadata"]["name"] == "dledger"
    expected, patched = (yaml.safe_dump(one).replace("- ", "  ").splitlines() for one in (old, new))
    assert set(patched) - set(expected) == {
        line.replace("rejoin", "init") for line in expected if "rejoin" in line
    }


def _kustomized(folder: str) -> list[Manifest]:
    command = ["kubectl", "kustomize", str(FOLDER / folder)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return list(yaml.safe_load_all(printed))
