"""python -m dledger.node --config node.toml"""

from __future__ import annotations

import argparse
import sys

from dledger.errors import ConfigError
from dledger.infra.libraries import configure_libraries, configure_node_channels


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dledger.node", description="Run one node.")
    parser.add_argument("--config", required=True, metavar="FILE", help="configuration of the node (TOML)")
    parser.add_argument("--rejoin", action="store_true", help="rejoin after losing the directory")
    arguments = parser.parse_args()
    configure_libraries()
    configure_node_channels()
    # These import grpc and numpy, which read the library settings at import.
    from dledger.node.run import EXIT_CONFIG, run_node
    from dledger.node.setup.config import load_config

    try:
        config = load_config(arguments.config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    return run_node(config, rejoin=arguments.rejoin)


if __name__ == "__main__":
    sys.exit(main())
