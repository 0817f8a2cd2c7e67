"""Large requests: bounded in bytes, and one of them in a turn of the event loop."""

from __future__ import annotations

import pytest

from broker_adapter.errors import Busy, Status
from broker_adapter.rpc.calls import LargeRequests


async def test_those_above_the_limit_are_refused_and_one_alone_never_is() -> None:
    requests = LargeRequests(10)
    async with requests.taking(6), requests.taking(4):
        with pytest.raises(Busy) as refused:
            async with requests.taking(1):
                raise AssertionError("there was room")
        assert refused.value.status is Status.TOO_MANY_PENDING_BYTES
    async with requests.taking(100):
        pass
    async with requests.taking(10):
        pass
