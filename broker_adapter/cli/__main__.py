"""`python -m broker_adapter.cli`, which is equivalent to the `dledger` command."""

from dledger.cli.start import run

if __name__ == "__main__":
    run("broker_adapter.cli.main", "main")
