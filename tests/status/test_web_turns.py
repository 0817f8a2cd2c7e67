"""Hundreds of connections may ask for the status at once: answers share the turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aiohttp import web

from dledger.infra.http.server import json_answer, serve_web
from dledger.infra.loops.turns import MAX_WOKEN

_CONNECTIONS = 40


@pytest.mark.parametrize(("path", "most"), [("/metrics", 1), ("/livez", MAX_WOKEN)])
async def test_answers_share_the_turns(path: str, most: int) -> None:
    turn, of_turn = 0, Counter[int]()

    async def handler(request: web.Request) -> web.StreamResponse:
        of_turn[turn] += 1
        return json_answer(request, 200, {})

    server = await serve_web({"/metrics": handler, "/livez": handler}, "127.0.0.1:0")
    host, _, port = server.address.rpartition(":")
    streams = [await asyncio.open_connection(host, int(port)) for _ in range(_CONNECTIONS)]
    try:
        for _, writer in streams:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {server.address}\r\n\r\n".encode())
        while of_turn.total() < _CONNECTIONS:
            turn += 1
            await asyncio.sleep(0)
        assert max(of_turn.values()) <= most
        for reader, _ in streams:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    finally:
        for _, writer in streams:
            writer.close()
        await server.stop()
