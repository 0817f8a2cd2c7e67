"""`python -m dledger.cli`: the same as the `dledger` command."""

from dledger.cli.start import run

if __name__ == "__main__":
    run("dledger.cli.main", "main")
