"""What every call of the service goes through: places, numbered answers, the caller's address."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import grpc.aio

from broker_adapter.errors import BrokerError, Busy, IllegalMessage, PutIndeterminate, PutRefused, Status
from broker_adapter.shares import SharedRoom
from dledger import platform
from dledger.platform import LARGE_BYTES, SharedPlaces, client_of, handlers, large_turns

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_log = logging.getLogger(__name__)


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


class LargeAnswers:
    """Large answers of unary calls: so many bytes of them, each encoded in a turn of its own.

    gRPC holds an answer until its caller has taken it, however long that is, and gives none of it back before
    the call is over. So a client that does not read keeps what it has, and no address may have all of it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._room = SharedRoom(most_bytes)

    @property
    def bytes(self) -> int:
        return self._room.used

    async def take(self, size: int, context: Any) -> None:
        """Hold a place until the call is over. Busy (TOO_MANY_PENDING_BYTES) if there is none. A single
        answer has one always, and so has what is small."""
        if size < LARGE_BYTES:
            return
        client = client_of(peer_host(context))
        if not (self._room.has_room(size) and self._room.is_due(client, size)):
            text = f"answers of {self.bytes} bytes are on their way to their callers; try again later"
            raise Busy(Status.TOO_MANY_PENDING_BYTES, text)
        self._room.take(client, size)

        def is_over(_: object) -> None:
            self._room.take(client, -size)

        context.add_done_callback(is_over)
        await large_turns().turn(client)


def malformed() -> IllegalMessage:
    return IllegalMessage(Status.REQUEST_MALFORMED, handlers.MALFORMED)


def stopping() -> PutRefused:
    return PutRefused(Status.SHUTTING_DOWN, "the broker is shutting down")


def out_of_range(problem: str) -> IllegalMessage:
    return IllegalMessage(Status.FIELD_OUT_OF_RANGE, problem)


def numbered(error: Exception, call: str) -> BrokerError:
    """`error` as it is answered. Any that is no BrokerError is a bug, met nobody knows where, unless it is
    gRPC's own: then nobody is left to be answered."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, grpc.aio.BaseError):
        return PutIndeterminate(Status.OUTCOME_UNKNOWN, "the call is over")
    _log.error("%s failed", call, exc_info=error)
    return PutIndeterminate(Status.OUTCOME_UNKNOWN, f"internal error: {type(error).__name__}")


def check_least(**values: int) -> None:
    """FIELD_OUT_OF_RANGE unless all values are 0 or more."""
    for name, value in values.items():
        if value < 0:
            raise out_of_range(f"{name} {value} is negative")


def check_count(what: str, count: int, most: int) -> None:
    """FIELD_OUT_OF_RANGE beyond a limit."""
    if count > most:
        raise out_of_range(f"{count} {what}; at most {most}")


def peer_host(context: Context) -> str:
    """The caller as `Host.parse` reads it, "" for one that has no IP address."""
    return platform.peer_host(context.peer())
