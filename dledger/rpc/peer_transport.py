"""The way to one other member as a node uses it: gRPC (`peer_client`), or a network in virtual time."""

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
from dledger.rpc.ports import FetchedFrames

Question = VoteRequest | Heartbeat | TakeLeadership | PositionRequest
Answer = VoteResponse | HeartbeatResponse | TakeLeadershipResponse | PositionResponse


def check_fetch(first_index: int, last_index: int) -> None:
    """InvalidRequest if a member asks for no range of entries."""
    if not 0 <= first_index <= last_index:
        raise InvalidRequest(f"a range {first_index}..{last_index}")


class PeerUnreachable(Exception):
    """No answer: no connection, a deadline, a broken stream. Says nothing of what the peer did."""


class PeerTlsFailure(PeerUnreachable):
    """No connection, because the two ends do not agree about TLS: no waiting helps, a person must."""


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
    """Everything that a node asks of one member goes through one of these."""

    @property
    def address(self) -> str: ...

    def connect(self) -> None:
        """Begin to connect, so that the first message need not wait for it."""

    async def ask(self, message: Question, timeout_s: float) -> Answer:
        """PeerUnreachable without an answer, InvalidRequest if the peer refuses to talk to us."""

    def fetch(
        self, first_index: int, last_index: int, max_bytes: int, timeout_s: float
    ) -> AsyncGenerator[FetchedFrames, None]:
        """Entries of the peer, to repair ours. PeerUnreachable, InvalidRequest if it has none."""

    def open_push(self, stream_id: int) -> PushStream:
        """It opens in the moment in which the peer can be reached, once it is run."""

    async def close(self) -> None: ...

    async def retire(self) -> None:
        """Close once no call is under way; a push stream that works goes on until it ends."""
