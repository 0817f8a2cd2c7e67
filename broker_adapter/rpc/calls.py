"""What every call of the service goes through: places, numbered answers, the caller's address."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc.aio

from broker_adapter.errors import BrokerError, Busy, IllegalMessage, PutIndeterminate, PutRefused, Status
from dledger import handlers

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_log = logging.getLogger(__name__)


class Places:
    """A bounded number of calls of one kind under way."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self.taken = 0

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Hold a place. Busy (TOO_MANY_CALLS) if none is free."""
        if self.taken >= self._most:
            raise Busy(Status.TOO_MANY_CALLS, f"{self._most} {self._what} are under way")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


def malformed() -> IllegalMessage:
    return IllegalMessage(Status.REQUEST_MALFORMED, handlers.MALFORMED)


def stopping() -> PutRefused:
    return PutRefused(Status.SHUTTING_DOWN, "the broker is shutting down")


def out_of_range(problem: str) -> IllegalMessage:
    return IllegalMessage(Status.FIELD_OUT_OF_RANGE, problem)


def numbered(error: Exception, call: str) -> BrokerError:
    """`error` as it is answered. Any that is no BrokerError is a bug, met nobody knows where."""
    if isinstance(error, BrokerError):
        return error
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
    kind, _, address = context.peer().partition(":")
    return unquote(address) if kind in {"ipv4", "ipv6"} else ""
