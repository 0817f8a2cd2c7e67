"""Requests of the status ports, as bytes on a connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from tests.fuzz.mutation import mutated

METHOD = "HTTP"
_PATHS = (
    *(
        "/",
        "/status",
        "/cluster",
        "/leader",
        "/replica?lag=5&lag_bytes=1000",
        "/health",
        "/livez",
        "/metrics",
    ),
    *(
        "/page/app.js",
        "/brokers",
        "/topics",
        "/routes",
        "/replica?lag=-1",
        "/replica?lag=x",
        "/%00",
        "/..%2f",
    ),
)
_VERBS = ("GET", "GET", "GET", "HEAD", "OPTIONS", "POST", "DELETE", "TRACE")
_HEADERS = (
    *(
        "Accept: */*",
        "Connection: close",
        "Connection: keep-alive",
        "Range: bytes=0-1",
        "Expect: 100-continue",
    ),
    *("If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT", "Accept-Encoding: gzip", "Cookie: " + "x" * 3000),
)
_BODIES = ("", "", "Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


def request(rng: Random, address: str) -> bytes:
    """One or two on a connection, whole mostly."""
    made = b""
    for _ in range(rng.choice((1, 1, 2))):
        host = rng.choice((address, address, "localhost", "example.com", "[::1", ""))
        lines = [f"{rng.choice(_VERBS)} {rng.choice(_PATHS)} HTTP/1.1", f"Host: {host}"]
        lines += rng.sample(_HEADERS, rng.randrange(3))
        body = rng.choice(_BODIES)
        made += "\r\n".join([*lines, body if body else "\r\n"]).encode()
    return mutated(made, rng, text=True) if rng.random() < 0.6 else made


async def problem_of(address: str, data: bytes, seconds: float) -> str:
    """What is wrong with the answer; "" if nothing. A connection that is closed without one is fine."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    try:
        async with asyncio.timeout(seconds):
            writer.write(data)
            with suppress(ConnectionError, OSError):
                await writer.drain()
                writer.write_eof()
                while part := await reader.read(1 << 16):
                    answer += part
    except TimeoutError:
        return f"the connection is not closed within {seconds:g} s, although no more can come"
    finally:
        writer.close()
    # aiohttp answers a request that names no version with HTTP/0.9.
    if answer and not answer.startswith((b"HTTP/1.", b"HTTP/0.9 ")):
        return f"no answer of HTTP: {answer[:200]!r}"
    heads = [line for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.")]
    broken = [line for line in heads if line.split()[1:2] in ([b"500"], [b"502"])]
    return f"an internal error: {broken[0]!r}" if broken else ""
