"""Calls are counted while they last, of every kind, and streams that say nothing while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from dledger.errors import Code, Overloaded
from dledger.rpc.transport import call_limit
from dledger.rpc.transport.call_limit import CallLimit, FirstMessages


class Aborted(Exception):
    pass


class Context:
    async def abort(self, code: object, details: str) -> None:
        raise Aborted(details)


async def unary(request: str, context: object) -> str:
    if request == "fail":
        raise ZeroDivisionError
    return request


async def stream(request: str, context: object) -> AsyncGenerator[str, None]:
    yield await unary(request, context)


async def called(limited: Callable[[str, Any], Any], request: str) -> list[str]:
    answer = limited(request, Context())
    if isinstance(answer, Awaitable):
        return [await answer]
    return [item async for item in answer]


@pytest.mark.parametrize("behavior", [unary, stream])
async def test_rule_13_a_call_counts_until_it_ends_however_it_ends(behavior: Callable[..., Any]) -> None:
    limit = CallLimit(1, lambda: None)
    limited = limit.wrap(behavior)
    for _ in range(3):
        assert await called(limited, "x") == ["x"]
        with pytest.raises(ZeroDivisionError):
            await called(limited, "fail")
    assert limit.under_way == 0


@pytest.mark.parametrize("behavior", [unary, stream])
async def test_rule_13_a_call_too_many_is_refused_and_does_not_count(behavior: Callable[..., Any]) -> None:
    hits: list[int] = []
    limit = CallLimit(2, lambda: hits.append(1))
    limited = limit.wrap(behavior)
    lasting = [limit.wrap(stream)("x", Context()) for _ in range(2)]
    for one in lasting:
        await anext(one)
    for _ in range(3):
        with pytest.raises(Aborted, match=r"612 .* 2 calls"):
            await called(limited, "x")
    assert len(hits) == 3
    await lasting.pop().aclose()
    assert await called(limited, "x") == ["x"]
    await lasting.pop().aclose()


class Silent:
    """A stream whose first message comes when the test lets it."""

    def __init__(self) -> None:
        self.message: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read(self) -> str:
        return await self.message


async def test_rule_13_the_oldest_stream_without_a_message_goes_and_those_that_spoke_count_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_limit, "MAX_FIRST_MESSAGES", 2)
    hits: list[str] = []
    first_messages = FirstMessages(hits.append)
    streams = [Silent() for _ in range(4)]
    reading = [asyncio.ensure_future(first_messages.read(one)) for one in streams[:2]]
    await asyncio.sleep(0)
    streams[0].message.set_result("hello")
    assert await reading[0] == "hello"
    reading.append(asyncio.ensure_future(first_messages.read(streams[2])))
    await asyncio.sleep(0)
    assert hits == [], "two are waited for"
    reading.append(asyncio.ensure_future(first_messages.read(streams[3])))
    with pytest.raises(Overloaded) as refused:
        await reading[1]
    assert refused.value.code is Code.TOO_MANY_CONNECTIONS and "first_messages" in hits
    for number in (2, 3):
        streams[number].message.set_result("hello")
        assert await reading[number] == "hello"
