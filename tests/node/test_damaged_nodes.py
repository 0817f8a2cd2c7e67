"""Real nodes whose disks rot (rule 10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.node.log_state import rebuild
from dledger.store.api import EntryDamaged
from dledger.store.disk_store import DiskLogStore
from dledger.store.layout import file_name
from tests.node.local import leader_of, make_server, running_nodes, until
from tests.node.test_bad_days import FILE, SMALL, equal_and_committed, fill, read_all


def flip_at(directory: Path, pos: int) -> None:
    """Change the byte at a position of the log."""
    with (directory / "data" / file_name(pos - pos % FILE)).open("r+b") as file:
        file.seek(pos % FILE)
        old = file.read(1)[0]
        file.seek(pos % FILE)
        file.write(bytes([old ^ 1]))


async def test_rule_10_a_start_repairs_what_its_sessions_are_rebuilt_from(tmp_path: Path) -> None:
    """Entries below the checkpoint are not looked at by a start, unless the stored table is lost."""
    async with running_nodes(tmp_path, 3, SMALL, data_file_size=FILE) as servers:
        await fill(servers, 100)
        await until(lambda: equal_and_committed(servers))
        node = next(s for s in servers if s is not leader_of(servers))
        directory, members = node.config.directory, node.config.members
        head = next(iter(node.store.iter_heads(10)))
        await node.stop()
        servers.remove(node)
        (directory / "sessions").unlink()
        flip_at(directory, head.pos + 50)
        store = DiskLogStore.open(directory)
        assert not store.damages, "nobody has looked"
        with pytest.raises(EntryDamaged):
            rebuild(store, 100, 0)
        store.close()
        back = make_server(tmp_path, node.config.node_id, members, SMALL)
        await back.start()
        servers.append(back)
        assert not back.node_status().damaged and back.node_status().sessions == 1
        assert len(await read_all(leader_of(servers))) == 100
