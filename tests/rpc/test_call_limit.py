"""Calls of every kind are counted while they last."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from dledger.infra.transport.call_limit import CallLimit


class Aborted(Exception):
    pass


class Context:
    def __init__(self, peer: str = "ipv4:10.0.0.1:4711") -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

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


async def test_rule_13_connections_of_one_address_share_its_part_of_the_limit() -> None:
    limit = CallLimit(4, lambda: None)
    limited = limit.wrap(stream)
    lasting = [limited("x", Context(f"ipv4:10.0.0.1:{port}")) for port in range(3)]
    for one in lasting:
        await anext(one)
    with pytest.raises(Aborted, match=r"612 .* for 10\.0\.0\.1"):
        await anext(limited("x", Context("ipv4:10.0.0.1:4")))
    assert await anext(limited("x", Context("ipv4:10.0.0.2:1"))) == "x"
    for one in lasting:
        await one.aclose()
