"""A start that is cancelled releases everything, whenever the cancellation arrives."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from dledger.errors import Code, StorageError
from dledger.node import server as server_module
from dledger.node.server import NodeServer
from dledger.store.disk_store import DiskLogStore
from tests.node.local import make_server
from tests.process.cluster import free_ports


async def test_a_start_cancelled_while_the_log_opens_releases_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open = asyncio.Event(), threading.Event()
    loop, opened = asyncio.get_running_loop(), NodeServer._open_store

    def slowly(server: NodeServer) -> None:
        loop.call_soon_threadsafe(opening.set)
        may_open.wait()
        opened(server)

    monkeypatch.setattr(NodeServer, "_open_store", slowly)
    server = make_server(tmp_path, "n1", {"n1": f"127.0.0.1:{free_ports(1)[0]}"})
    starting = asyncio.ensure_future(server.start())
    await opening.wait()
    starting.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert server.is_released
    DiskLogStore.open(tmp_path / "n1").close()


async def test_a_start_that_cannot_store_its_incarnation_releases_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no such sector", code=Code.DISK_ERROR)

    monkeypatch.setattr(server_module, "start_incarnation", fail)
    server = make_server(tmp_path, "n1", {"n1": f"127.0.0.1:{free_ports(1)[0]}"})
    with pytest.raises(StorageError, match="no such sector") as caught:
        await server.start()
    assert server.is_released
    DiskLogStore.open(tmp_path / "n1").close()
    del caught  # its frames refer to the store, which is closed if nothing does


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_a_start_cancelled_at_any_turn(tmp_path: Path, turns: int) -> None:
    server = make_server(tmp_path, "n1", {"n1": f"127.0.0.1:{free_ports(1)[0]}"})
    starting = asyncio.ensure_future(server.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    if not starting.cancelled():
        await server.stop()
    assert server.is_released
    DiskLogStore.open(tmp_path / "n1").close()
