"""AdminService: the status of a node, and handing leadership over."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc.aio

from dledger.errors import Code, DLedgerError, InvalidRequest
from dledger.rpc.convert_admin import node_status_to_pb
from dledger.rpc.convert_log import status_of
from dledger.rpc.handlers import malformed
from dledger.rpc.ports import AdminPort
from dledger.v1 import admin_pb2 as pb

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class AdminService:
    """What an operator asks of one node."""

    def __init__(self, port: AdminPort) -> None:
        self._port = port

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

    async def transfer_leadership(
        self, request: pb.TransferLeadershipRequest | None, context: _Context
    ) -> pb.TransferLeadershipResponse:
        try:
            if request is None:
                raise malformed()
            self._check_group(request.group)
            await self._port.transfer(request.to or None)
        except DLedgerError as error:
            return pb.TransferLeadershipResponse(status=status_of(error))
        now = self._port.node_status()
        return pb.TransferLeadershipResponse(term=now.term, leader_id=now.leader_id)

    def _check_group(self, group: str) -> None:
        # An operator who asks a node who it is need not know its group yet.
        if group and group != self._port.group:
            raise InvalidRequest(
                f"group {group!r}; this node serves {self._port.group!r}", code=Code.UNKNOWN_GROUP
            )
