"""Asking members whether they run, within one limit."""

from __future__ import annotations

import asyncio

import pytest

from dledger.node import probe
from dledger.node.setup.config import parse_config
from dledger.rpc.log_client import NetworkFailure


async def test_a_member_that_does_not_answer_takes_the_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is tried while the status is awaited, and not after it has failed."""
    connecting = asyncio.Event()

    async def is_open(address: str, timeout_s: float) -> bool:
        connecting.set()
        return True

    async def status(*_: object) -> str:
        async with asyncio.timeout(60):
            await connecting.wait()
        raise NetworkFailure("no answer in time")

    monkeypatch.setattr(probe, "_is_open", is_open)
    monkeypatch.setattr(probe, "_status", status)
    members = {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}
    config = parse_config({"directory": "d", "node_id": "n1", "cluster_id": "c", "members": members})
    found = await probe.probe_members(config, ["c"], [], timeout_s=60)
    assert found == probe.Probe((), ("n2 at 127.0.0.1:2",))
