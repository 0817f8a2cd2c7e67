"""`python -m broker_adapter.cli`: the same as the `dledger` command."""

from broker_adapter.cli.main import main

if __name__ == "__main__":
    main()
