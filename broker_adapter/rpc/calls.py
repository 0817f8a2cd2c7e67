"""What calls of gRPC go through: places, room for large requests, the caller's address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import grpc.aio

from broker_adapter.errors import Busy, PutRefused, Status
from broker_adapter.shares import SharedRoom
from dledger.platform import SharedPlaces, large_turns
from dledger.platform import peer_host as host_of_peer

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Places:
    """A bounded number of calls of one kind under way."""

    def __init__(self, what: str, most: int, advice: str = "try again later") -> None:
        self._places = SharedPlaces(most, f"{what} are under way", advice)

    @property
    def taken(self) -> int:
        return self._places.taken

    @contextmanager
    def taking(self, client: str = "") -> Iterator[None]:
        """Hold a place. Busy (TOO_MANY_CALLS) if none is free. `client`: the address whose share it is, ""
        for what lasts no longer than this node takes for it."""
        if (refusal := self._places.refusal(client)) is not None:
            raise Busy(Status.TOO_MANY_CALLS, refusal)
        with self._places.taking(client):
            yield


class LargeRequests:
    """Large requests under way: so many bytes of them, each begun in a turn of its own (`large_turns`)."""

    def __init__(self, most_bytes: int) -> None:
        self._room = SharedRoom(most_bytes)

    def has_room(self, size: int, client: str = "") -> bool:
        return self._room.has_room(size) and self._room.is_due(client, size)

    @asynccontextmanager
    async def taking(self, size: int, client: str = "", *, caller: str = "") -> AsyncIterator[None]:
        """Hold a place. Busy (TOO_MANY_PENDING_BYTES) if there is none; a single request has one always.
        `client`: the address whose share it is, "" for what takes no longer than this node does; `caller`:
        for whose other large requests nobody else waits."""
        if not self.has_room(size, client):
            text = f"{self._room.used} bytes are under way; try again later"
            raise Busy(Status.TOO_MANY_PENDING_BYTES, text)
        self._room.take(client, size)
        try:
            await large_turns().turn(client or caller)
            yield
        finally:
            self._room.take(client, -size)


def stopping() -> PutRefused:
    return PutRefused(Status.SHUTTING_DOWN, "the broker is shutting down")


def peer_host(context: Context) -> str:
    """The caller as `Host.parse` reads it, "" for one that has no IP address."""
    return host_of_peer(context.peer())
