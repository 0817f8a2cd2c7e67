"""Start of the `dledger-chaos` and `dledger-check` commands."""

from dledger.cli.start import run


def chaos() -> None:
    run("chaos.cli.main", "main")


def check() -> None:
    run("chaos.checker.main", "main")
