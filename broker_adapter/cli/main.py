"""The `dledger` command with the commands of the broker."""

from __future__ import annotations

from dledger.cli.main import RootGroup
from dledger.cli.main import cli as log_cli
from dledger.cli.main import main as log_main


def extended(root: RootGroup) -> RootGroup:
    """Add `dledger broker`, `dledger dev`, `dledger cluster up --broker`, and `dledger explain`."""
    return root.extended(
        {
            "broker": "broker_adapter.cli.broker_group:broker",
            "cluster": "broker_adapter.cli.cluster_command:cluster",
            "dev": "broker_adapter.cli.dev_command:dev",
            "explain": "broker_adapter.cli.explain_command:explain",
        }
    )


assert isinstance(log_cli, RootGroup)
cli = extended(log_cli)


def main() -> None:
    log_main(cli)
