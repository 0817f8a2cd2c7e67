"""`python -m broker_adapter.namesrv --config FILE`: equivalent to `dledger-namesrv run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dledger import ConfigError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m broker_adapter.namesrv", description="Run a NameServer.")
    parser.add_argument(
        "--config", required=True, metavar="FILE", type=Path, help="configuration file (TOML)"
    )
    arguments = parser.parse_args()
    # Imported here because they are slow to import.
    from broker_adapter.namesrv.config import load_config
    from broker_adapter.namesrv.server import run_name_server

    try:
        config = load_config(arguments.config, {})
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return run_name_server(config)


if __name__ == "__main__":
    sys.exit(main())
