"""The `dledger` command: that of the log, and what the broker adds to it."""

from __future__ import annotations

from broker_adapter.cli.local_broker import BROKER_KIND
from dledger.cli.cluster_commands import add_kind
from dledger.cli.main import add_command
from dledger.cli.main import main as log_main

add_kind(BROKER_KIND)
add_command("broker", "broker_adapter.cli.broker_group:broker")
add_command("demo", "broker_adapter.cli.demo_command:demo")


def main() -> None:
    log_main()
