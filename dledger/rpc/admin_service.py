"""AdminService: the status of a node, and the operations of its operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc.aio

from dledger.errors import Code, DLedgerError, InvalidRequest
from dledger.infra.quotas import client_of, peer_host
from dledger.infra.transport.handlers import malformed
from dledger.infra.transport.host import GrpcMethod
from dledger.infra.transport.peer_names import AdminNames
from dledger.rpc.convert_admin import backup_head_to_pb, change_from_pb, node_status_to_pb, scrub_to_pb
from dledger.rpc.convert_log import status_of
from dledger.rpc.copies import Copies
from dledger.rpc.ports import AdminPort
from dledger.status.model import NodeStatus
from dledger.v1 import admin_pb2 as pb

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_MAX_BACKUPS = 8
#: Longest wait for the commit of a change of the members.
_CHANGE_S = 60.0

ADMIN_SERVICE = "dledger.v1.AdminService"


def status_service(
    group: str, node_status: Callable[[], NodeStatus]
) -> Mapping[str, Mapping[str, GrpcMethod]]:
    """Return a status service, to be passed to GrpcHost, for a node that has no log of this project."""

    async def get_status(request: pb.GetStatusRequest | None, context: _Context) -> pb.GetStatusResponse:
        try:
            if request is None:
                raise malformed()
            _check_group(request.group, group)
            return pb.GetStatusResponse(node=node_status_to_pb(node_status()))
        except DLedgerError as error:
            return pb.GetStatusResponse(status=status_of(error))

    return {ADMIN_SERVICE: {"GetStatus": GrpcMethod(get_status, pb.GetStatusRequest)}}


class AdminService:
    """Operations on one node. The status is public; the rest is restricted to `names`."""

    def __init__(
        self,
        port: AdminPort,
        names: AdminNames | None = None,
        limit_hit: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`names`: None if clients do not present certificates."""
        self._port = port
        self._names = names
        self._backups = Copies(_MAX_BACKUPS, "backups are under way", lambda: limit_hit("backups"))

    async def get_status(
        self, request: pb.GetStatusRequest | None, context: _Context
    ) -> pb.GetStatusResponse:
        try:
            if request is None:
                raise malformed()
            self._check_group(request.group)
            return pb.GetStatusResponse(node=node_status_to_pb(self._port.node_status()))
        except DLedgerError as error:
            return pb.GetStatusResponse(status=status_of(error))

    def _admit(self, context: _Context) -> None:
        if self._names is not None:
            self._names.check(context.auth_context())

    async def transfer_leadership(
        self, request: pb.TransferLeadershipRequest | None, context: _Context
    ) -> pb.TransferLeadershipResponse:
        try:
            if request is None:
                raise malformed()
            self._admit(context)
            self._check_group(request.group)
            await self._port.transfer(request.to or None)
        except DLedgerError as error:
            return pb.TransferLeadershipResponse(status=status_of(error))
        now = self._port.node_status()
        return pb.TransferLeadershipResponse(term=now.term, leader_id=now.leader_id)

    async def change_members(
        self, request: pb.ChangeMembersRequest | None, context: _Context
    ) -> pb.ChangeMembersResponse:
        try:
            if request is None:
                raise malformed()
            self._admit(context)
            self._check_group(request.group)
            left_s = context.time_remaining()
            index = await self._port.change_members(
                change_from_pb(request), _CHANGE_S if left_s is None else min(left_s, _CHANGE_S)
            )
        except DLedgerError as error:
            return pb.ChangeMembersResponse(status=status_of(error))
        return pb.ChangeMembersResponse(membership_index=index)

    async def purge(self, request: pb.PurgeRequest | None, context: _Context) -> pb.PurgeResponse:
        try:
            if request is None:
                raise malformed()
            self._admit(context)
            self._check_group(request.group)
            if request.before_index < 0 and request.before_age_ms <= 0:
                raise InvalidRequest("a purge request needs an index or an age")
            before = await self._port.purge(request.before_index, request.before_age_ms)
        except DLedgerError as error:
            return pb.PurgeResponse(status=status_of(error))
        begin = self._port.node_status().ledger_begin_index
        return pb.PurgeResponse(before_index=before, ledger_begin_index=begin)

    async def scrub(self, request: pb.ScrubRequest | None, context: _Context) -> None:
        try:
            if request is None:
                raise malformed()
            self._admit(context)
            self._check_group(request.group)
            async with aclosing(self._port.scrub(max(0, request.bytes_per_second))) as steps:
                async for progress in steps:
                    await context.write(scrub_to_pb(progress))
        except DLedgerError as error:
            await context.write(pb.ScrubResponse(status=status_of(error)))

    async def backup(self, request: pb.BackupRequest | None, context: _Context) -> None:
        try:
            if request is None:
                raise malformed()
            self._admit(context)
            self._check_group(request.group)
            self._backups.count(client_of(peer_host(context.peer())), context)
            async with aclosing(self._port.backup()) as parts:
                async for part in parts:
                    # Awaiting the write is the flow control: a slow receiver only delays itself.
                    if isinstance(part, bytes):
                        await context.write(pb.BackupResponse(frames=part))
                    else:
                        await context.write(pb.BackupResponse(head=backup_head_to_pb(part)))
        except DLedgerError as error:
            await context.write(pb.BackupResponse(status=status_of(error)))

    def _check_group(self, group: str) -> None:
        _check_group(group, self._port.group)


def _check_group(group: str, served: str) -> None:
    # Operators may query a node's status before they know its group.
    if group and group != served:
        raise InvalidRequest(
            f"the request is for group {group!r}; this node serves {served!r}", code=Code.UNKNOWN_GROUP
        )
