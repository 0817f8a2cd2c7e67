"""A leader whose pushes are lost while its heartbeats are answered is replaced (rule 14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.client import AsyncClient
from tests.node.local import GROUP, leader_of, running_nodes, until


@pytest.mark.slow
async def test_rule_14_a_leader_that_commits_nothing_gives_way_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3) as servers:
        async with AsyncClient([s.address for s in servers], group=GROUP) as client:
            await client.append(b"before", timeout=60)
            old = leader_of(servers)
            for link in old._shell._links.values():
                monkeypatch.setattr(link, "push", lambda *_: None)
            await client.append(b"meanwhile", timeout=60)
            await until(lambda: any(s.node_status().is_leader for s in servers if s is not old))
            assert "commit-stalled" in [event.cause for event in old.node_status().elections]
            assert old.metrics.elections_by_cause["commit-stalled"] == 1
        assert "acknowledged nothing new" in caplog.text
