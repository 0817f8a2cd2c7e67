"""What the broker adds to the `dledger` command (entry point `dledger.commands` of pyproject.toml)."""

from __future__ import annotations

from broker_adapter.cli.local_broker import BROKER_KIND
from dledger.cli.local.cluster_commands import add_kind
from dledger.cli.main import RootGroup


def extended(root: RootGroup) -> RootGroup:
    """`dledger broker`, `dledger cluster up --broker`, and `dledger explain`."""
    add_kind(BROKER_KIND)
    return root.extended(
        {
            "broker": "broker_adapter.cli.broker_group:broker",
            "explain": "broker_adapter.cli.explain_command:explain",
        }
    )
