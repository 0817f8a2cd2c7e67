"""Prints a notice on stderr if a command waits for a leader, so that users learn before the timeout why the
cluster is unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import click

from dledger.client import AsyncClient

_PAUSE_SECONDS = 1.0


@asynccontextmanager
async def reporting_search(client: AsyncClient) -> AsyncGenerator[None, None]:
    """If a search for the leader takes longer than a few seconds while the block runs, print the reason
    once."""
    notice = asyncio.create_task(_report(client))
    try:
        yield
    finally:
        notice.cancel()


async def _report(client: AsyncClient) -> None:
    was_searching = False
    while True:
        await asyncio.sleep(_PAUSE_SECONDS)
        problem = client.search_problem
        if problem is not None and was_searching:
            click.echo(f"still waiting: {problem.message}", err=True)
            return
        was_searching = problem is not None
