"""Helpers for gRPC calls: limits for large requests, and the address of the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc.aio

from broker_adapter.errors import Busy, PutRefused, Status
from dledger.infra.loops.turns import large_turns
from dledger.infra.quotas import Quota
from dledger.infra.quotas import peer_host as host_of_peer

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@asynccontextmanager
async def large_request(quota: Quota, size: int, client: str) -> AsyncIterator[None]:
    """Hold `size` bytes of the quota, and wait for a step of the event loop that no other large request uses.

    `client`: the address whose share of the quota is used. Raises Busy (TOO_MANY_PENDING_BYTES) if the bytes
    exceed the quota.
    """
    if (refusal := quota.refusal(client, size)) is not None:
        raise Busy(Status.TOO_MANY_PENDING_BYTES, refusal)
    with quota.holding(client, size):
        await large_turns().turn(client)
        yield


def stopping() -> PutRefused:
    return PutRefused(Status.SHUTTING_DOWN, "the broker is shutting down")


def peer_host(context: Context) -> str:
    """Return the address of the caller in the form that `Host.parse` reads, or "" if the caller has no IP
    address.
    """
    return host_of_peer(context.peer())
