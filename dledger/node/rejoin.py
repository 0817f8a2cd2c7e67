"""Bringing back a node whose directory was lost: an empty directory that knows it is one.

Rule 11 of docs/guarantees.md.
"""

from __future__ import annotations

import asyncio

from dledger.core.values import FlushMode
from dledger.errors import Code, DLedgerError, StorageError
from dledger.logs import get_logger
from dledger.node.setup.config import NodeConfig
from dledger.node.setup.security import NodeSecurity
from dledger.rpc.log_client import LogClient
from dledger.status.model import NodeStatus
from dledger.store.disk import OsDisk
from dledger.store.format.layout import NodePaths
from dledger.store.identity import (
    Identity,
    first_incarnation,
    init_directory,
    load_identity,
    member_list,
)
from dledger.store.state_files import read_hard_state

_log = get_logger("rejoin")

_ASK_S = 2.0
_PAUSE_S = 0.5


async def prepare_rejoin(config: NodeConfig) -> None:
    """Make an empty or absent directory that of a node which lost its own; one that is rejoining stays.

    What has to be equal on all nodes (data file size, flush mode) is asked of the other members. StorageError
    ALREADY_INITIALIZED if the directory holds a node that has not lost its memory.
    """
    try:
        load_identity(config.directory, cluster_id=config.cluster_id, node_id=config.node_id)
    except StorageError as error:
        if error.code is not Code.NOT_INITIALIZED:
            raise
    else:
        if read_hard_state(OsDisk(), NodePaths(config.directory).hard_state).rejoining:
            return
        raise StorageError(
            f"{config.directory} is the directory of a node that knows its term and vote: start it without "
            "--rejoin; if its log is lost, move the directory away first",
            code=Code.ALREADY_INITIALIZED,
        )
    model = await _ask_members(config)
    identity = Identity(
        config.cluster_id,
        config.group,
        config.node_id,
        model.data_file_size,
        FlushMode(model.flush_mode),
        members=member_list(config.members),
    )
    init_directory(config.directory, identity, incarnation=first_incarnation(), rejoining=True)
    _log.info("an empty directory was made; the log comes from the other members", like=model.node_id)


async def _ask_members(config: NodeConfig) -> NodeStatus:
    """The status of any other member, as soon as one answers."""
    security = NodeSecurity(config) if config.tls is not None else None
    others = {node: config.peer_address(node) for node in config.members if node != config.node_id}
    if not others:
        raise StorageError("the only member of a cluster has nobody to rejoin: its log is lost")
    clients = {
        node: LogClient(address, config.group, security.channel(node) if security else None)
        for node, address in others.items()
    }
    said = ""
    try:
        while True:
            for node, client in clients.items():
                try:
                    status = await client.get_status(_ASK_S)
                except DLedgerError as error:
                    if said != str(error):
                        said = str(error)
                        _log.warning("waiting for a member to answer", peer=node, reason=said)
                    continue
                if (status.cluster_id, status.node_id) == (config.cluster_id, node):
                    return status
                if said != (stranger := f"it is node {status.node_id!r} of cluster {status.cluster_id!r}"):
                    said = stranger
                    _log.warning("at a member's address is somebody else", peer=node, reason=said)
            await asyncio.sleep(_PAUSE_S)
    finally:
        for client in clients.values():
            await client.close()
