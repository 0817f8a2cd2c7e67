"""The interface to one other member: gRPC (`peer_client`), or a network in virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from dledger.core.messages import (
    Heartbeat,
    HeartbeatResponse,
    PositionRequest,
    PositionResponse,
    PushMessage,
    PushResponse,
    TakeLeadership,
    TakeLeadershipResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.errors import InvalidRequest
from dledger.rpc.ports import FetchedFrames, ImageChunk, ImageQuestion

Question = VoteRequest | Heartbeat | TakeLeadership | PositionRequest
Answer = VoteResponse | HeartbeatResponse | TakeLeadershipResponse | PositionResponse


def check_fetch(first_index: int, last_index: int) -> None:
    """Raise InvalidRequest if a requested range of entries is invalid."""
    if not 0 <= first_index <= last_index:
        raise InvalidRequest(f"invalid range of entries {first_index}..{last_index}")


class PeerUnreachable(Exception):
    """Raised if no response arrived, because of a failed connection, a deadline or a broken stream. The peer
    may or may not have executed the request."""


class PeerTlsFailure(PeerUnreachable):
    """The connection failed because of TLS. A retry does not help; an operator must act."""


class PushStream(Protocol):
    """The leader's end of one push stream. See dledger.rpc.push_stream.PushSender."""

    @property
    def stream_id(self) -> int: ...

    is_up: bool

    def put(self, message: PushMessage, payload: bytes | memoryview | None) -> None: ...
    def finish(self) -> None: ...
    async def run(
        self, on_up: Callable[[int], None], on_response: Callable[[PushResponse], None]
    ) -> None: ...


class PeerTransport(Protocol):
    """All requests of a node to one member."""

    @property
    def address(self) -> str: ...

    def connect(self) -> None:
        """Start connecting, so that the first message does not have to wait."""

    async def request(self, message: Question, timeout_s: float) -> Answer:
        """Send a request and return the response. Raises PeerUnreachable if none arrives, InvalidRequest if
        the peer rejects this node."""

    def fetch(
        self, first_index: int, last_index: int, max_bytes: int, timeout_s: float
    ) -> AsyncGenerator[FetchedFrames, None]:
        """Fetch entries of the peer for a repair. Raises PeerUnreachable, and InvalidRequest if the peer has
        none of them."""

    async def image(self, question: ImageQuestion, timeout_s: float) -> ImageChunk:
        """Fetch a chunk of a state image. Raises PeerUnreachable, and InvalidRequest if the peer has none."""

    def open_push(self, stream_id: int) -> PushStream:
        """Create a push stream. When it runs, it opens as soon as the peer is reachable."""

    async def close(self) -> None: ...

    async def retire(self) -> None:
        """Close once no call is pending. A working push stream continues until it ends."""
