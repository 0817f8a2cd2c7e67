"""The key-value example: linearizable reads, purging, a restart from an image, a node that was far behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dledger.client import AsyncClient
from examples.kv import KeyValueStore, apply_command, delete_command, get, put_command
from tests.node.local import GROUP, leader_of, make_server, running_nodes, until

FILE = 64 << 10
SETTINGS: dict[str, Any] = {
    "limits": {"max_batch_bytes": 32 << 10, "max_body_bytes": 16 << 10, "tail_cache_bytes": 64 << 10},
    "retention": {"max_bytes": 2 * FILE, "hold_bytes": 0, "check_interval": "20ms"},
}


def test_what_is_no_command_changes_nothing() -> None:
    values = {"a": "1"}
    for body in (b"", b"nonsense", b"[]", b'["put"]', b'["put", "a"]', b'["fly", "a"]', b"7"):
        apply_command(values, body)
    assert values == {"a": "1"}


def test_an_image_is_the_whole_state() -> None:
    one, other = KeyValueStore(), KeyValueStore()
    other.load([b'{"left": "over"}'])
    one.load([])
    other.load(one.save())
    assert len(other) == 0


async def test_reads_are_linearizable_on_every_node(tmp_path: Path) -> None:
    stores = {f"n{i}": KeyValueStore() for i in (1, 2, 3)}
    async with running_nodes(tmp_path, 3, machines=stores) as servers:
        await until(lambda: all(s.node_status().leader_id for s in servers))
        async with AsyncClient([s.address for s in servers], group=GROUP) as client:
            for turn in range(10):
                await client.append(put_command("colour", f"blue {turn}"))
                for server in servers:
                    assert await get(server, stores[server.config.node_id], "colour") == f"blue {turn}"
            await client.append(delete_command("colour"))
        for server in servers:
            assert await get(server, stores[server.config.node_id], "colour") is None


async def test_the_state_outlives_the_log_restarts_and_a_node_far_behind(tmp_path: Path) -> None:
    stores = {f"n{i}": KeyValueStore() for i in (1, 2, 3)}
    async with running_nodes(tmp_path, 3, SETTINGS, data_file_size=FILE, machines=stores) as servers:
        members = servers[0].config.members
        late = next(s for s in servers if s is not leader_of(servers))
        await late.stop()
        servers.remove(late)
        async with AsyncClient([s.address for s in servers], group=GROUP) as client:
            for first in range(0, 600, 20):
                batch = [put_command(f"k{n % 100}", f"{n}" + "x" * 1000) for n in range(first, first + 20)]
                await client.append_many(batch)
        await until(lambda: all(s.node_status().ledger_begin_index > 100 for s in servers))

        restarted = servers.pop()
        await restarted.stop()
        for node in (late.config.node_id, restarted.config.node_id):
            stores[node] = KeyValueStore()
            back = make_server(tmp_path, node, members, SETTINGS, machine=stores[node])
            servers.append(back)
            await back.start()
        await until(lambda: all(s.node_status().leader_id for s in servers))
        for server in servers:
            await until(lambda server=server: not server.node_status().needs_image)  # type: ignore[misc]
            store = stores[server.config.node_id]
            for n in (500, 555, 599):
                assert await get(server, store, f"k{n % 100}") == f"{n}" + "x" * 1000
            assert len(store) == 100
