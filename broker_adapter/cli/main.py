"""The `dledger` command with what the broker adds, whatever is installed."""

from __future__ import annotations

from broker_adapter.cli.plug_in import extended
from dledger.cli.main import RootGroup
from dledger.cli.main import cli as log_cli
from dledger.cli.main import main as log_main

assert isinstance(log_cli, RootGroup)
cli = extended(log_cli)


def main() -> None:
    log_main(cli)
