"""Asking members whether they run, within one limit."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dledger.node import probe
from dledger.node.setup.config import parse_config
from dledger.rpc.log_client import NetworkFailure
from dledger.status.model import NodeStatus
from tests.status.fakes import make_status


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


async def test_members_of_the_log_and_of_the_file_are_asked_and_other_clusters_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    class Client:
        def __init__(self, address: str, *_: object) -> None:
            self.address = address

        async def get_status(self, timeout_s: float) -> NodeStatus:
            asked.append(self.address)
            status = make_status(
                "n2", "FOLLOWER", committed_index={"h:2": 70, "h:3": 50}.get(self.address, 90)
            )
            return replace(status, cluster_id="foreign") if self.address == "h:9" else status

        async def close(self) -> None: ...

    async def is_open(address: str, timeout_s: float) -> bool:
        return True

    monkeypatch.setattr(probe, "LogClient", Client)
    monkeypatch.setattr(probe, "_is_open", is_open)
    members = {"n1": "h:1", "n2": "h:2"}
    config = parse_config({"directory": "d", "node_id": "n1", "cluster_id": "c", "members": members})
    others = [("n1", "h:8"), ("n3", "h:3"), ("n9", "h:9")]
    found = await probe.probe_members(config, ["orders"], others, timeout_s=60)
    assert sorted(asked) == ["h:2", "h:3", "h:9"]
    assert [line.split(":")[0] for line in found.running] == ["n2 at h", "n3 at h"]
    assert found.committed_index == 70 and not found.silent
