"""Large requests and answers: bounded in bytes, and one of them in a turn of the event loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_adapter.errors import Busy, Status
from broker_adapter.rpc.calls import LargeAnswers, LargeRequests
from dledger.platform import LARGE_BYTES


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


class Call:
    """Of gRPC."""

    def __init__(self, address: str = "") -> None:
        self._callbacks: list[Callable[[object], None]] = []
        self._address = address

    def peer(self) -> str:
        return f"ipv4:{self._address}:1" if self._address else "unix:"

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


async def test_an_answer_holds_its_place_until_its_call_is_over() -> None:
    """Whoever does not read it makes gRPC keep it for so long."""
    answers, silent = LargeAnswers(2 * LARGE_BYTES), Call()
    await answers.take(2 * LARGE_BYTES, silent)
    with pytest.raises(Busy) as refused:
        await answers.take(LARGE_BYTES, Call())
    assert refused.value.status is Status.TOO_MANY_PENDING_BYTES
    await answers.take(LARGE_BYTES - 1, Call())  # small
    silent.end()
    assert answers.bytes == 0
    await answers.take(3 * LARGE_BYTES, Call())  # alone


async def test_an_address_that_does_not_read_leaves_room_to_others() -> None:
    answers, calls = LargeAnswers(64 * LARGE_BYTES), list[Call]()
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        with pytest.raises(Busy):
            for _ in range(65):
                calls.append(Call(address))
                await answers.take(LARGE_BYTES, calls[-1])
    assert answers.bytes <= 64 * LARGE_BYTES
    await answers.take(LARGE_BYTES, Call("10.0.0.4"))
    for call in calls:
        call.end()
    assert answers.bytes == LARGE_BYTES
