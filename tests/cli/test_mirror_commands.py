"""`dledger mirror`: what it prints, and when it does not go ahead."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.cli import mirror_commands, recover_command
from dledger.cli.exits import Exit
from dledger.cli.mirror_commands import learner_rows
from dledger.core.values import HardState, Member, Membership, MembershipAt
from dledger.errors import Code
from dledger.node.probe import Probe
from dledger.rpc.log_client import NetworkFailure
from dledger.status.model import MemberAddress, NodeStatus
from dledger.store.disk_store import DiskLogStore
from dledger.store.identity import Identity, init_directory, joined, load_identity
from tests.cli.conftest import Command
from tests.process.cluster import free_ports, toml_of
from tests.status.fakes import make_follower, make_status
from tests.store.helpers import SIZE, make_batches

LOG = make_batches(6)
QUICK = ["--timeout", "1"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a stopped learner with a log, whose voters have ports of their own."""
    directory = tmp_path / "m1"
    members = {
        node: f"127.0.0.1:{port}" for node, port in zip(("m1", "n1", "n2"), free_ports(3), strict=True)
    }
    init_directory(directory, joined(Identity("orders", "default", "m1", SIZE)))
    store = DiskLogStore.open(directory)
    store.append(LOG)
    uids = {"m1": 7, "n1": 0, "n2": 0}
    identities = tuple(Member(node, uids[node], address) for node, address in members.items())
    membership = Membership(("n1", "n2"), learners=("m1",), identities=identities)
    at = MembershipAt(LOG[1].first_index, LOG[1].term, membership)
    store.save_hard_state(HardState(40, None, 3, memberships=(MembershipAt(-1, -1, membership), at), uid=7))
    store.sync()
    store.save_checkpoint(LOG[3].last_index, None)
    store.close()
    path = tmp_path / "m1.toml"
    path.write_text(toml_of({"node_id": "m1", "cluster_id": "orders", "directory": "m1", "members": members}))
    return path


def is_unchanged(config: Path) -> bool:
    return load_identity(config.parent / "m1").cluster_id == "orders"


def test_without_a_terminal_it_shows_the_report_and_changes_nothing(config: Path, command: Command) -> None:
    result = command("mirror", "promote", "--config", str(config), *QUICK, code=Exit.USAGE)
    assert "pass --yes" in result.stderr and "nothing was changed" in result.stderr
    last, committed = LOG[-1].last_index, LOG[3].last_index
    assert f"all up to entry {committed}, the last one known to be committed" in result.stdout
    assert f"{last - committed} entries above it" in result.stdout
    assert "unknown: no member of the former group answers" in result.stdout
    assert "n1 (127.0.0.1:" in result.stdout and "m1, learner of group default" in result.stdout
    assert is_unchanged(config)


def test_it_asks_on_a_terminal(config: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover_command, "_has_terminal", lambda: True)
    arguments = ["mirror", "promote", "--config", str(config), *QUICK]
    refused = command(*arguments, stdin=b"n\n", code=Exit.FAILED)
    assert f"{int(Code.PROMOTION_REFUSED)} PROMOTION_REFUSED" in refused.stderr and is_unchanged(config)
    agreed = command(*arguments, stdin=b"y\n")
    new_id = load_identity(config.parent / "m1").cluster_id
    assert f'cluster_id = "{new_id}"' in agreed.stdout and new_id.startswith("orders-r1-")
    assert "dledger member remove" in agreed.stdout


class Asked:
    """Answers for the former members, one of which runs from the nth question on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.clusters: list[tuple[str, ...]] = []

    async def __call__(
        self, config: object, clusters: tuple[str, ...], others: Iterable[tuple[str, str]], timeout_s: float
    ) -> Probe:
        assert {node for node, _ in others} == {"n1", "n2"}
        self.clusters.append(clusters)
        runs = len(self.clusters) >= self.number
        return Probe(("n1 at x: it leads",), (), LOG[4].last_index) if runs else Probe((), ())


def test_members_that_run_are_met_before_and_after_the_question(
    config: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recover_command, "_has_terminal", lambda: True)
    for number in (1, 2):
        asked = Asked(number)
        monkeypatch.setattr(mirror_commands, "probe_members", asked)
        refused = command("mirror", "promote", "--config", str(config), stdin=b"y\n", code=Exit.FAILED)
        assert f"{int(Code.PROMOTION_REFUSED)} PROMOTION_REFUSED" in refused.stderr and is_unchanged(config)
        lacks = LOG[4].last_index - LOG[3].last_index
        assert "n1 at x: it leads" in refused.stderr and f"lacks {lacks} entries" in refused.stderr
        assert asked.clusters == [("orders",)] * number
    forked = command("mirror", "promote", "--config", str(config), "--fork", "--yes")
    assert "warning: n1 at x: it leads" in forked.stdout and not is_unchanged(config)


def test_json_has_what_was_done(config: Path, command: Command) -> None:
    options = ["--config", str(config), *QUICK, "--yes", "--json", "--new-cluster-id", "orders-2"]
    report = json.loads(command("mirror", "promote", *options).stdout)
    assert load_identity(config.parent / "m1").cluster_id == report["cluster_id"] == "orders-2"
    assert report["committed_index"] == LOG[3].last_index
    assert report["uncommitted_count"] == LOG[-1].last_index - LOG[3].last_index
    assert (report["role"], report["missing_count"], report["running"]) == ("learner", None, [])
    again = command("mirror", "promote", *options, code=Exit.FAILED)
    assert "is a voter of its group" in again.stderr


def test_what_accepts_connections_and_does_not_answer_is_named(config: Path, command: Command) -> None:
    port = int(config.read_text().split('n1 = "127.0.0.1:')[1].split('"')[0])
    with socket.create_server(("127.0.0.1", port)):
        result = command("mirror", "promote", "--config", str(config), *QUICK, "--yes")
    assert f"warning: n1 at 127.0.0.1:{port} accepts connections" in result.stdout


def test_the_help_tells_the_two_mirrors_apart(command: Command) -> None:
    assert "dledger broker mirror" in command("mirror", "--help").stdout


def test_what_a_learner_lacks_is_what_the_leader_has_committed_and_the_learner_does_not_know() -> None:
    members = tuple(
        MemberAddress(node, f"{node}:1", "", "voter" if node == "n1" else "learner")
        for node in ("m1", "m2", "m3", "n1")
    )
    followers = (
        replace(make_follower("m1"), lag_entries=4, lag_bytes=400, not_ready=""),
        replace(make_follower("m2"), lag_entries=9, lag_bytes=900, not_ready="it lags"),
    )
    leader = make_status("n1", committed_index=100, members=members, followers=followers)
    late = make_status("m3", "FOLLOWER", committed_index=120)  # it has answered after the leader
    known = {"m1": make_status("m1", "FOLLOWER", committed_index=97), "m2": None, "m3": late}
    assert learner_rows(leader, known) == [
        ("m1", "m1:1", 97, 3, 4, 400, "ready"),
        ("m2", "m2:1", None, None, 9, 900, "it lags"),
        ("m3", "m3:1", 120, 0, None, None, ""),
    ]


async def test_the_leader_is_asked_after_its_learners_and_a_node_of_another_cluster_counts_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a learner lacks is never too low. One that was promoted with --fork lacks whatever comes."""
    members = tuple(MemberAddress(node, f"{node}:1", "", "learner") for node in ("m1", "m2", "m3"))

    class Client:
        def __init__(self, *_: object, **options: object) -> None:
            self.committed = 100

        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def leader(self, timeout: float) -> NodeStatus:
            return make_status("n1", committed_index=self.committed, members=members)

        async def status_of(self, address: str, timeout: float) -> NodeStatus:
            self.committed += 1
            if address == "m3:1":
                raise NetworkFailure("no answer")
            status = make_status(address[:2], "FOLLOWER", committed_index=90)
            return replace(status, cluster_id="orders-r1") if address == "m2:1" else status

    monkeypatch.setattr(mirror_commands, "AsyncClient", Client)
    monkeypatch.setattr(mirror_commands, "reporting_search", lambda client: nullcontext())
    leader, learners = await mirror_commands._statuses(["n1:1"], "main", None, 1.0)
    assert leader.committed_index == 103
    assert {node: status is not None for node, status in learners.items()} == {
        "m1": True,
        "m2": False,
        "m3": False,
    }
