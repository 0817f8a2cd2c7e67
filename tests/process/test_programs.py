"""Programs that live on the node of a server process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger.cli.exits import Exit
from dledger.client import AsyncClient
from examples.kv import put_command
from tests.process.cluster import GROUP, ProcessCluster

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-programs")]


def program(factory: str = "tests.process.echo_program:EchoProgram", **settings: Any) -> dict[str, Any]:
    return {"program": {"factory": factory, "settings": settings}}


async def test_a_program_begins_after_its_node_and_ends_before_it(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path, 1, settings=program(word="hello")) as cluster:
        await cluster.leader()
        async with AsyncClient(cluster.addresses, group=GROUP) as client:
            await client.append(put_command("colour", "blue"))
        assert await cluster.stop("n1") == 0
        log = cluster.log_of("n1")
        assert f"hello begins on {cluster.members['n1']}" in log
        assert "hello ends with blue" in log


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (program(word="hello", fails=True), "this program was told to fail"),
        (program(wort="hello"), "wort is unknown"),
        (program("nonsense"), "expected MODULE:FACTORY"),
        (program("tests.process.echo_program:nobody"), "nobody"),
        (program("no.such.module:x"), "no.such.module"),
    ],
)
async def test_a_program_that_cannot_begin_ends_the_process(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    async with ProcessCluster(tmp_path, 1, settings=settings) as cluster:
        assert await cluster.ended("n1") == Exit.USAGE
        assert why in cluster.log_of("n1")
