"""Directories of nodes that get the log from others: of a node whose directory was lost, marked as rejoining
(rule 11 of docs/guarantees.md), and of one that is added to a running group (rule 15)."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Self

from dledger.core.quorum import majority
from dledger.core.values import FlushMode
from dledger.errors import Code, ConfigError, DLedgerError, StorageError
from dledger.infra.files.disk import OsDisk
from dledger.infra.logs import get_logger
from dledger.node.setup.config import NodeConfig
from dledger.node.setup.security import NodeSecurity
from dledger.rpc.log_client import LogClient
from dledger.status.model import NodeStatus
from dledger.store.format.layout import NodePaths
from dledger.store.identity import (
    Identity,
    first_incarnation,
    init_directory,
    joined,
    load_identity,
    member_list,
)
from dledger.store.state_files import read_hard_state

_log = get_logger("rejoin")

_STATUS_TIMEOUT_S = 2.0
_PAUSE_S = 0.5
_MAJORITY_WITHIN_S = 10.0


async def prepare_rejoin(config: NodeConfig) -> None:
    """Initialize an empty or absent directory for a rejoining node. A directory that is already rejoining is
    kept.

    Values that are equal on all nodes (data file size, flush mode) come from another member. Raises
    StorageError ALREADY_INITIALIZED if the directory holds a node that has not lost its state.
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
            f"{config.directory} belongs to a node that still has its term and vote: start it without "
            "--rejoin; if its log is lost, move the directory away first",
            code=Code.ALREADY_INITIALIZED,
        )
    model = await _fetch_newest_status(config)
    identity = replace(_identity_like(config, model), members=member_list(config.members))
    own = next((member for member in model.members if member.node_id == config.node_id), None)
    if own is None and model.membership_index > 0:
        raise ConfigError(
            f"{config.node_id} is no longer a member of the group: start it with --join, and add it with "
            "`dledger member add`",
            code=Code.UNKNOWN_MEMBER,
        )
    if model.membership_index > 0:  # the first members are not known here
        identity = joined(identity)
    init_directory(
        config.directory,
        identity,
        incarnation=first_incarnation(),
        rejoining=True,
        uid=0 if own is None else own.uid,
    )


async def prepare_join(config: NodeConfig) -> None:
    """Initialize an empty or absent directory for a node that is added to a running group. An initialized
    directory is kept. Raises StorageError FOREIGN_DIRECTORY if it belongs to another node."""
    try:
        load_identity(config.directory, cluster_id=config.cluster_id, node_id=config.node_id)
    except StorageError as error:
        if error.code is not Code.NOT_INITIALIZED:
            raise
        identity = joined(_identity_like(config, await _fetch_member_status(config)))
        init_directory(config.directory, identity, incarnation=first_incarnation())


def _identity_like(config: NodeConfig, model: NodeStatus) -> Identity:
    """Return this node's identity, with the fixed values of the group that `model` belongs to."""
    _log.info("created an empty directory; the other members will supply the log", like=model.node_id)
    return Identity(
        config.cluster_id, config.group, config.node_id, model.data_file_size, FlushMode(model.flush_mode)
    )


async def _fetch_member_status(config: NodeConfig) -> NodeStatus:
    """Return the status of the first other member that responds."""
    async with _OtherMembers(config) as others:
        while True:
            if statuses := await others.statuses():
                return statuses[0]
            await asyncio.sleep(_PAUSE_S)


async def _fetch_newest_status(config: NodeConfig) -> NodeStatus:
    """Return the status with the newest configuration, from a majority of its voters.

    One member alone may not have received the newest changes of the members yet. If no majority responds
    within a time, the newest status of those that do is returned.
    """
    loop = asyncio.get_running_loop()
    deadline = math.inf
    async with _OtherMembers(config) as others:
        while True:
            statuses = await others.statuses()
            if statuses:
                newest = max(statuses, key=lambda status: (status.membership_index, status.term))
                voters = {member.node_id for member in newest.members if member.role == "voter"}
                answered = voters & {status.node_id for status in statuses}
                if len(answered) >= majority(voters) or answered == voters - {config.node_id}:
                    return newest
                deadline = min(deadline, loop.time() + _MAJORITY_WITHIN_S)
                if loop.time() >= deadline:
                    _log.warning(
                        "no majority of the voters answers: the members may have changed since",
                        like=newest.node_id,
                        silent=", ".join(sorted(voters - answered - {config.node_id})),
                    )
                    return newest
                others.add(newest)
            await asyncio.sleep(_PAUSE_S)


class _OtherMembers:
    """Clients of the other members: those in the configuration file, and those in their statuses."""

    def __init__(self, config: NodeConfig) -> None:
        """Raises StorageError if the file names no other member."""
        self._config = config
        self._security = NodeSecurity(config) if config.tls is not None else None
        self._clients: dict[str, LogClient] = {}
        self._logged: dict[str, str] = {}  # by node id: the last reason
        for node_id in config.members:
            self._add(node_id, config.peer_address(node_id))
        if not self._clients:
            raise StorageError(
                f"{config.node_id} is the only one of `members`: no other member has the log that it needs"
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.close()

    def add(self, status: NodeStatus) -> None:
        """Add the members that a status names."""
        for member in status.members:
            self._add(member.node_id, member.address)

    def _add(self, node_id: str, address: str) -> None:
        if node_id != self._config.node_id and node_id not in self._clients:
            channel = self._security.channel(node_id) if self._security else None
            self._clients[node_id] = LogClient(address, self._config.group, channel)

    async def statuses(self) -> list[NodeStatus]:
        """Return the statuses of all members that respond now."""
        asked = [self._status_of(node_id, client) for node_id, client in self._clients.items()]
        return [status for status in await asyncio.gather(*asked) if status is not None]

    async def _status_of(self, node_id: str, client: LogClient) -> NodeStatus | None:
        try:
            status = await client.get_status(_STATUS_TIMEOUT_S)
        except DLedgerError as error:
            self._log_once("waiting for a member to answer", node_id, str(error))
            return None
        if (status.cluster_id, status.node_id) == (self._config.cluster_id, node_id):
            return status
        expected = f"node {node_id!r} of cluster {self._config.cluster_id!r}"
        stranger = f"it is node {status.node_id!r} of cluster {status.cluster_id!r}, not {expected}"
        self._log_once("another node answers at a member's address", node_id, stranger)
        return None

    def _log_once(self, text: str, node_id: str, reason: str) -> None:
        if self._logged.get(node_id) != reason:
            self._logged[node_id] = reason
            _log.warning(text, peer=node_id, reason=reason)
