"""The directory of a new node, for programs that run nodes in their process."""

from __future__ import annotations

from dledger.core.values import FlushMode
from dledger.node.setup.config import NodeConfig
from dledger.store import identity
from dledger.store.format.layout import DEFAULT_DATA_FILE_SIZE
from dledger.store.identity import Identity, first_incarnation, member_list


def init_directory(
    config: NodeConfig,
    *,
    data_file_size: int = DEFAULT_DATA_FILE_SIZE,
    flush_mode: FlushMode = FlushMode.SYNC_FLUSH,
) -> None:
    """Initialize `config.directory`, which is absent or empty, for a new node. `dledger init` does the same.

    Once per node, before its first start; never for a node that lost its directory, because it no longer
    knows how it voted. `data_file_size` (bytes) and `flush_mode` must be equal on all nodes of the cluster.
    Raises StorageError (ALREADY_INITIALIZED), ConfigError for a wrong size.
    """
    own = Identity(
        cluster_id=config.cluster_id,
        group=config.group,
        node_id=config.node_id,
        data_file_size=data_file_size,
        flush_mode=flush_mode,
        members=member_list(config.members),
    )
    identity.init_directory(config.directory, own, incarnation=first_incarnation())
