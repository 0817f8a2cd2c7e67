"""A local cluster with TLS, from the command line: real processes, files that change under them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.cli.local.certificates import Authority
from dledger.cli.local.local_cluster import LocalCluster

from .conftest import Command

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("cli-cluster")]


@pytest.fixture
def up(command: Command, tmp_path: Path) -> Iterator[tuple[LocalCluster, dict[str, str]]]:
    """A running cluster, and what `cluster up` says to export."""
    directory = tmp_path / "cluster"
    try:
        done = subprocess.run(
            command.line(
                *("cluster", "up", "--dir", str(directory), "--tls"),
                *("--base-port", "0", "--detach", "--timeout", "60"),
            ),
            capture_output=True,
            text=True,
            check=False,
            env=command.process_environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        exports = [line.removeprefix("export ") for line in done.stdout.splitlines() if "export " in line]
        yield LocalCluster(directory), dict(line.split("=", 1) for line in exports)
    finally:
        if LocalCluster.exists(directory):
            LocalCluster(directory).stop()


def test_a_cluster_with_tls(up: tuple[LocalCluster, dict[str, str]], tmp_path: Path) -> None:
    cluster, exports = up
    assert list(exports) == ["DLEDGER_SERVERS", "DLEDGER_TLS_CA", "DLEDGER_TLS_CERT", "DLEDGER_TLS_KEY"]
    client = Command(exports)
    client("append", stdin=b"secret\n")
    assert client("read").output == "secret\n"
    shown = json.loads(client("status", "--json").stdout)
    assert [node["error"] for node in shown["nodes"]] == [None] * 3
    assert cluster.leader() is not None, "HTTPS is spoken to the status port"
    for key in (cluster.directory / "tls").glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0

    plain = Command({"DLEDGER_SERVERS": exports["DLEDGER_SERVERS"]})
    refused = plain("append", "--timeout", "1", stdin=b"x\n", code=1)
    assert "closed the plain-text connection" in refused.output and "--tls-ca" in refused.output
    other = Authority("other").save(tmp_path / "other")
    refused = plain("status", "--tls-ca", str(other), code=1)
    assert "CERTIFICATE_REFUSED" in refused.output
    assert "need --tls-ca" in plain("status", "--tls-key", str(other), code=2).output
    assert (
        "must be given together"
        in plain("status", "--tls-ca", str(other), "--tls-key", str(other), code=2).output
    )


def test_tls_cannot_be_added_later(command: Command, tmp_path: Path) -> None:
    LocalCluster.create(tmp_path / "cluster", nodes=1, base_port=0)
    refused = command("cluster", "up", "--dir", str(tmp_path / "cluster"), "--tls", code=2)
    assert "created without TLS" in refused.output
