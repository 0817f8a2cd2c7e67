"""The `dledger` command: that of the log, and what the broker adds to it."""

from __future__ import annotations

from broker_adapter.cli.local_broker import BROKER_KIND
from dledger.cli.local.cluster_commands import add_kind
from dledger.cli.main import RootGroup
from dledger.cli.main import cli as log_cli
from dledger.cli.main import main as log_main

assert isinstance(log_cli, RootGroup)
add_kind(BROKER_KIND)
cli = log_cli.extended(
    {
        "broker": "broker_adapter.cli.broker_group:broker",
        "explain": "broker_adapter.cli.explain_command:explain",
    }
)


def main() -> None:
    log_main(cli)
