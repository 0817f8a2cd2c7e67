"""Conversion of statuses and of results of appends to protobuf."""

from __future__ import annotations

from typing import Protocol

from dledger.errors import DLedgerError
from dledger.v1 import log_pb2 as pb


class AppendResult(Protocol):
    """A committed append. index and pos are -1 if the entry is stored but its position is no longer known."""

    @property
    def index(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def pos(self) -> int: ...
    @property
    def duplicate(self) -> bool: ...


def status_of(error: DLedgerError) -> pb.Status:
    return pb.Status(
        code=int(error.code),
        message=error.message,
        leader_id=error.leader_id or "",
        leader_address=error.leader_address or "",
    )


def append_response(request_id: int, outcome: AppendResult | DLedgerError) -> pb.AppendResponse:
    if isinstance(outcome, DLedgerError):
        return pb.AppendResponse(request_id=request_id, status=status_of(outcome))
    return pb.AppendResponse(
        request_id=request_id,
        index=outcome.index,
        count=outcome.count,
        term=outcome.term,
        pos=outcome.pos,
        duplicate=outcome.duplicate,
        position_forgotten=outcome.index < 0,
    )
