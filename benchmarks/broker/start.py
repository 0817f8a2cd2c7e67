"""Create and start a local cluster with brokers: `python start.py DIRECTORY STORE DATA_FILE_SIZE`.

This is a script, so that the Python of another checkout can run it. The configuration and the servers are
then those of that checkout. The servers continue to run after the script has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker_adapter.cli.cluster_command import BROKER_KIND
from dledger.cli.local.local_cluster import LocalCluster


def main(directory: str, store: str, data_file_size: str) -> None:
    """`store`: replicated (three nodes), or classic (SYNC_MASTER and SLAVE). Both sync each message."""
    file_size = int(data_file_size)
    choices = {"store": "classic", "role": "sync"} if store == "classic" else {}
    additions = BROKER_KIND.prepare(0, choices)
    classic = {"flush": "SYNC_FLUSH", "file_size": file_size}
    cluster = LocalCluster.create(
        Path(directory),
        nodes=additions.nodes,
        base_port=0,
        data_file_size=file_size,
        settings=additions.settings,
        companions=additions.companions,
        remoting=additions.remoting,
        of_node=[{"classic": {**settings["classic"], **classic}} for settings in additions.of_node],
        has_log=additions.has_log,
    )
    cluster.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
