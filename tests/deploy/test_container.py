"""The image of examples/deploy/container serves everything, run as a container engine would run it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dledger.cli.health_command import URL_VARIABLE
from dledger.node.setup.secret_file import make_secret
from tests.deploy.image import Container, Image, built_image
from tests.node.local import until
from tests.process.cluster import free_ports, toml_of

pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    pytest.mark.xdist_group("image"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with built_image(tmp_path_factory.mktemp("image")) as image:
        yield image


def check_health(image: Image, url: str) -> subprocess.CompletedProcess[str]:
    """Run the health check of the image."""
    kind, *command = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return image.call(command, {}, {URL_VARIABLE: url})


def test_the_image_is_small_in_rights_and_content(image: Image) -> None:
    assert (image.config["User"], image.config["StopSignal"]) == ("10001:10001", "SIGTERM")
    assert not list(image.root.glob("opt/dledger/bin/pip*"))
    for path in ("/opt/dledger/x", "/etc/x", "/var/lib/dledger/x"):
        done = image.call(["touch", path], {})
        assert "Read-only file system" in done.stderr, done
    assert image.call(["touch", "/tmp/x"], {}).returncode == 0


async def test_a_broker_for_tests_is_the_default(image: Image, tmp_path: Path) -> None:
    command = [*image.config["Cmd"], "--port", "0", "--json"]
    with (tmp_path / "log").open("w") as log, image.running(command, {}, log) as container:
        assert container.process.stdout is not None
        facts = json.loads(container.process.stdout.readline())
        url = f"{facts['page']}health"
        await until(lambda: check_health(image, url).returncode == 0)
        assert container.capabilities() == 0
        assert container.stop() == 0
    done = check_health(image, url)
    assert done.returncode == 1 and url in done.stderr


async def test_a_name_server(image: Image, tmp_path: Path) -> None:
    port, page = free_ports(2)
    data = tmp_path / "data"
    data.mkdir()
    image.give(data)
    command = ["dledger-namesrv", "run", "--directory", "/var/lib/dledger/namesrv"]
    command += ["--listen", f"127.0.0.1:{port}", "--http-listen", f"127.0.0.1:{page}"]
    binds = {data: "/var/lib/dledger"}
    with (tmp_path / "log").open("w") as log, image.running(command, binds, log) as container:
        await until(lambda: check_health(image, f"http://127.0.0.1:{page}/livez").returncode == 0)
        assert container.stop() == 0
    assert (data / "namesrv").is_dir()


async def test_nodes_find_each_other_by_names_that_resolve_late(image: Image, tmp_path: Path) -> None:
    """A name of a pod resolves once the pod has an address, which may be after the start of the others."""
    ports, pages = free_ports(3), free_ports(3)
    secret = tmp_path / "secret"
    make_secret(secret)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    members = {f"n{i}": f"n{i}.dledger.test:{port}" for i, port in enumerate(ports, 1)}
    urls = [f"http://127.0.0.1:{page}/health" for page in pages]
    with ExitStack() as stack:
        containers: list[Container] = []
        for node, port, page in zip(members, ports, pages, strict=True):
            folder = tmp_path / node
            folder.mkdir()
            config = {
                "node_id": node,
                "cluster_id": "c",
                "directory": "/var/lib/dledger/log",
                "listen": f"127.0.0.1:{port}",
                "http_listen": f"127.0.0.1:{page}",
                "allow_plaintext": True,
                "cluster_secret_file": "/var/lib/dledger/secret",
                "members": members,
            }
            (folder / "node.toml").write_text(toml_of(config))
            shutil.copy(secret, folder)
            image.give(folder, folder / "secret")
            binds = {folder: "/var/lib/dledger", hosts: "/etc/hosts"}
            file = ["--config", "/var/lib/dledger/node.toml"]
            done = image.call(["dledger", "init", *file, "--data-file-size", str(1 << 24)], binds)
            assert done.returncode == 0, done.stderr
            log = stack.enter_context((tmp_path / f"{node}.log").open("w"))
            containers.append(stack.enter_context(image.running(["dledger", "server", *file], binds, log)))
        for url in urls:
            livez = url.replace("health", "livez")
            await until(lambda livez=livez: check_health(image, livez).returncode == 0)
            assert "no leader" in check_health(image, url).stdout
        with hosts.open("a") as file_of_names:  # the same file, which the containers have mounted
            file_of_names.writelines(f"127.0.0.1 {name.rpartition(':')[0]}\n" for name in members.values())
        for url in urls:
            await until(lambda url=url: check_health(image, url).returncode == 0)
        assert [container.stop() for container in containers] == [0, 0, 0]
