"""`python -m dledger`: the installed command `dledger`."""

from dledger.cli.start import command

if __name__ == "__main__":
    command()
