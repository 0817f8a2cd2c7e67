"""Frames that two nodes exchange: their content and size limits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5.clients import ClientInfo
from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.v1 import forward_pb2 as pb
from dledger.infra.transport.channels import MAX_PAYLOAD_BYTES

SERVICE: Final = "dledger.broker.v1.ForwardService"
METHOD: Final = f"/{SERVICE}/Forward"
VERSION: Final = 1

#: Maximum size of a request or response. It always fits into a frame (bytes).
MAX_PART_BYTES: Final = MAX_PAYLOAD_BYTES
#: A frame contains waiting parts up to this size. A larger part is sent alone.
_FRAME_BYTES = 1 << 20
#: Approximate overhead of a call, response or client (bytes).
_OVERHEAD = 128

AddTo = Callable[[Any], None]


class FrameQueue:
    """Parts that wait to be written to the stream. `new_frame` creates an empty frame."""

    def __init__(self, new_frame: Callable[[], Any]) -> None:
        self.bytes = 0
        self._new_frame = new_frame
        self._waiting: deque[tuple[int, AddTo]] = deque()
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()

    def put(self, size: int, add: AddTo) -> None:
        """Queue a part. When the frame is built, `add` writes the part's `size` bytes into it."""
        size += _OVERHEAD
        self.bytes += size
        self._waiting.append((size, add))
        self._wake.set()

    async def room(self, most: int) -> None:
        """Wait until fewer than `most` bytes are queued."""
        while self.bytes >= most:
            self._has_room.clear()
            await self._has_room.wait()

    async def run(self, write: Callable[[Any], Awaitable[object]]) -> None:
        """Write frames until canceled. Raises the errors of `write`."""
        while True:
            while self._waiting:
                await write(self._frame())
                self._has_room.set()
            self._wake.clear()
            await self._wake.wait()

    def _frame(self) -> Any:
        frame, waiting, total = self._new_frame(), self._waiting, 0
        while waiting and (not total or total + waiting[0][0] <= _FRAME_BYTES):
            size, add = waiting.popleft()
            add(frame)
            total += size
        self.bytes -= total
        return frame


def context_to_pb(context: CallContext) -> pb.CallerContext:
    found = pb.CallerContext(
        client_id=context.client_id,
        namespace=context.namespace,
        language=context.language,
        client_version=context.client_version,
        remote=context.remote,
        account=context.account,
        listener=context.listener,
        is_repeated=context.is_repeated,
    )
    if context.timeout_s is not None:
        found.timeout_ms = max(0, int(context.timeout_s * 1000))
    return found


def context_from_pb(found: pb.CallerContext) -> CallContext:
    return CallContext(
        client_id=found.client_id,
        namespace=found.namespace,
        language=found.language,
        client_version=found.client_version,
        remote=found.remote,
        account=found.account,
        timeout_s=found.timeout_ms / 1000 if found.HasField("timeout_ms") else None,
        listener=found.listener,
        is_repeated=found.is_repeated,
    )


def client_to_pb(client_id: str, infos: Sequence[ClientInfo]) -> pb.ConnectedClient:
    """Encode a connected client. `infos` has one entry per account that has streams under the client's id."""
    first, *others = map(_info_to_pb, infos)
    first.client_id = client_id
    first.others.extend(others)
    return first


def _info_to_pb(info: ClientInfo) -> pb.ConnectedClient:
    return pb.ConnectedClient(
        client_type=int(info.client_type),
        group=info.group,
        topics=sorted(info.topics),
        account=info.account,
    )


def clients_from_pb(found: Iterable[pb.ConnectedClient]) -> dict[str, list[ClientInfo]]:
    return {one.client_id: [_info_from_pb(part) for part in (one, *one.others)] for one in found}


def _info_from_pb(one: pb.ConnectedClient) -> ClientInfo:
    account = one.account if one.HasField("account") else None
    return ClientInfo(one.client_type, one.group, frozenset(one.topics), account)  # type: ignore[arg-type]


def error_from_pb(code: int, message: str) -> BrokerError:
    """Return the error that another node has sent.

    If its number is unknown, the outcome of the call is unknown.
    """
    try:
        return error_for(Status(code), message)
    except ValueError:
        return error_for(Status.OUTCOME_UNKNOWN, f"{code} {message}")
