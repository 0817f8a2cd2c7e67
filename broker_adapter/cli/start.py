"""Start of the `dledger-namesrv` command."""

from dledger.cli.start import run


def namesrv() -> None:
    run("broker_adapter.cli.namesrv_command", "main")
