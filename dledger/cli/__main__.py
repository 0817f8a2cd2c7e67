"""`python -m dledger.cli`: the same as the `dledger` command."""

from dledger.cli.main import main

if __name__ == "__main__":
    main()
