"""A group whose nodes are upgraded from the previous release one by one, and back before the members change.

The nodes of the previous release run from its sources, which are taken from the history of the repository.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger.cli.local.local_cluster import LocalCluster
from dledger.client import Client
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.errors import Code, Refused
from tests.conftest import DID_NOT_RUN

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-upgrade")]

#: The commit of release 0.2.0. A checkout may lack the tag.
PREVIOUS = "bf8f3b18aa29c13ffa9370ad7a91c44cc8efe610"
ROOT = Path(__file__).resolve().parents[2]
NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process of the previous release."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", PREVIOUS, "dledger"], capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip(f"{DID_NOT_RUN}: no release 0.2.0 in this history; run git fetch --unshallow")
    folder = tmp_path_factory.mktemp("previous")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def cluster(tmp_path: Path, previous: dict[str, str]) -> Iterator[LocalCluster]:
    """Three nodes of the previous release."""
    with LocalCluster.create(tmp_path / "cluster", nodes=3, base_port=0) as cluster:
        cluster.start(previous)
        cluster.wait_for_leader()
        yield cluster


class Appends:
    """A client that appends without a pause, and remembers what was acknowledged."""

    def __init__(self, servers: list[str]) -> None:
        self.acknowledged: list[bytes] = []
        self.problem: Exception | None = None
        self._servers = servers
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Appends:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Client(self._servers, timeout=60.0) as client:
                while not self._stopped.is_set():
                    body = b"%d" % len(self.acknowledged)
                    client.append(body)
                    self.acknowledged.append(body)
        except Exception as error:
            self.problem = error


def restart(cluster: LocalCluster, node: str, environment: dict[str, str] | None) -> None:
    cluster.stop_node(node)
    cluster.start_node(node, environment)
    cluster.wait_for_all()


def is_previous(cluster: LocalCluster, node: str) -> bool:
    """The status of that release does not have the number of the directory."""
    status = cluster.node_status(node)
    assert status is not None
    return status.directory == 0


def test_nodes_are_upgraded_and_downgraded_under_load_until_the_members_change(
    cluster: LocalCluster, previous: dict[str, str]
) -> None:
    change = MembershipChange((MemberStep(ChangeKind.DEMOTE, "n3"),))
    with Appends(cluster.addresses) as appends, Client(cluster.addresses, timeout=60.0) as client:
        assert _problem_of(lambda: client.change_members(change)) is Code.MEMBER_OUTDATED
        restart(cluster, "n1", None)
        restart(cluster, "n2", None)
        client.transfer_leadership("n1", timeout=60.0)
        refused = _until(lambda: _problem_of(lambda: client.change_members(change)))
        assert refused is Code.MEMBER_OUTDATED
        assert [is_previous(cluster, node) for node in NODES] == [False, False, True]

        restart(cluster, "n1", previous)  # nothing has been used that it does not know
        assert is_previous(cluster, "n1")
        restart(cluster, "n1", None)
        restart(cluster, "n3", None)
        done = _until(lambda: _problem_of(lambda: client.change_members(change), Code.MEMBER_OUTDATED))
        assert done is Code.SUCCESS
    assert appends.problem is None and appends.acknowledged
    with Client(cluster.addresses, timeout=60.0) as client:
        assert [entry.body for entry in client.read(0)] == appends.acknowledged


def test_after_a_change_of_the_members_the_previous_release_does_not_start(
    cluster: LocalCluster, previous: dict[str, str]
) -> None:
    for node in NODES:
        restart(cluster, node, None)
    with Client(cluster.addresses, timeout=60.0) as client:
        change = MembershipChange((MemberStep(ChangeKind.DEMOTE, "n3"),))
        done = _until(lambda: _problem_of(lambda: client.change_members(change), Code.MEMBER_OUTDATED))
        assert done is Code.SUCCESS
    cluster.stop_node("n2")
    ended = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "dledger.cli",
            "server",
            "--config",
            str(cluster.folder("n2") / "node.toml"),
        ],
        env={**previous, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode != 0
    assert f"code={int(Code.FOREIGN_DIRECTORY)}" in ended.stderr and "format version 3" in ended.stderr


def _problem_of(change: Callable[[], object], *passing: Code) -> Code | None:
    """Return the result of a change, or None if it may be another one once more members have answered."""
    try:
        change()
    except Refused as error:
        return None if error.code in (Code.CHANGE_RUNNING, Code.NO_LIVE_MAJORITY, *passing) else error.code
    return Code.SUCCESS


def _until(look: Callable[[], Code | None]) -> Code:
    for _ in range(1000):
        if (found := look()) is not None:
            return found
    raise AssertionError("not reached")
