"""Java clients that sign their requests (ACL of RocketMQ 4.x), unmodified, with nodes that know accounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.cli.local.local_cluster import LocalCluster

from . import genuine, ours
from .test_java_clients import got, java, servers

__all__ = ["java"]

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

ACCOUNTS = """
[[accounts]]
access_key = "boss"
secret = "s-boss"
admin = true

[[accounts]]
access_key = "shop"
secret = "s-shop"
topics = { "kinds*" = "PUB|SUB", "transactions*" = "PUB|SUB", "retry*" = "PUB|SUB" }
groups = { "*" = "SUB" }

[[accounts]]
access_key = "guest"
secret = "s-guest"
topics = { "kinds*" = "PUB" }
"""
SHOP, GUEST, BOSS = "shop:s-shop", "guest:s-guest", "boss:s-boss"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    genuine.require()
    accounts = tmp_path_factory.mktemp("accounts") / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    with ours.cluster(tmp_path_factory.mktemp("cluster"), accounts=accounts) as running:
        yield running


def test_what_an_account_may_do_works_as_without_accounts(
    cluster: LocalCluster, java: genuine.Client
) -> None:
    server = servers(cluster)
    topic = f"kinds{java.slug}"
    said = dict(line.split(" ", 1) for line in java.run("kinds", server, topic, account=SHOP))
    assert said["compressed"] == said["batch"] == said["delayed"] == "SEND_OK"
    assert len(got(java.run("orderly", server, topic, "g2", "*", "11", account=SHOP))) == 11
    java.run("send", server, f"retry{java.slug}", "1", "1", account=SHOP)
    consumed = got(java.run("retry", server, f"retry{java.slug}", "g4", account=SHOP))
    assert [one[4] for one in consumed] == ["0", "1", "2"]
    said_of = java.run("transactions", server, f"transactions{java.slug}", account=SHOP)
    assert [line.split()[1] for line in said_of if line.startswith("asked")] == ["UNKNOW"]


def test_what_it_may_not_do_is_refused(cluster: LocalCluster, java: genuine.Client) -> None:
    server, topic = servers(cluster), f"kinds{java.slug}"

    def says(topic: str, account: str) -> str:
        said = java.run("send", server, topic, "1", "1", account=account)
        return said[-1]

    for account, why in (
        ("", "805 NOT_AUTHENTICATED"),
        ("shop:wrong", "805 NOT_AUTHENTICATED: Check signature failed for accessKey=shop"),
        (GUEST, "sent"),
    ):
        assert why in says(topic, account)
    assert "806 NOT_PERMITTED: account guest may not PUB in topic other" in says("other", GUEST)


def test_mqadmin_signs_as_an_administrator(cluster: LocalCluster, tmp_path: Path) -> None:
    arguments = ("updateTopic", "-c", "DefaultCluster", "-t", "made", "-r", "2", "-w", "2")
    for account, is_made in ((SHOP, False), (BOSS, True)):
        said = genuine.mqadmin(tmp_path, servers(cluster), *arguments, account=account)
        assert ("success" in said) is is_made
