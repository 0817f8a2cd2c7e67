"""Real nodes whose disks rot (rule 10)."""

from __future__ import annotations

from pathlib import Path

from tests.node.local import make_server, running_nodes, until
from tests.node.test_bad_days import FILE, SMALL, equal_and_committed, fill, flip, leader_of, read_all


async def test_rule_10_a_start_repairs_what_its_sessions_are_rebuilt_from(tmp_path: Path) -> None:
    """Entries below the checkpoint are not looked at by a start, unless the stored table is lost."""
    async with running_nodes(tmp_path, 3, SMALL, data_file_size=FILE) as servers:
        await fill(servers, 100)
        await until(lambda: equal_and_committed(servers))
        node = next(s for s in servers if s is not leader_of(servers))
        node_id, members = node.config.node_id, node.config.members
        await node.stop()
        servers.remove(node)
        (tmp_path / node_id / "sessions").unlink()
        flip(tmp_path / node_id, b"000040")
        flip(tmp_path / node_id, b"000000")
        back = make_server(tmp_path, node_id, members, SMALL)
        await back.start()
        servers.append(back)
        assert back.node_status().sessions == 1
        assert len(await read_all(leader_of(servers))) == 100
