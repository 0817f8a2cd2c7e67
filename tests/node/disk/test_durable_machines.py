"""Real nodes with machines that keep files of their own, and reads by position."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dledger.errors import Code, ConfigError, InvalidRequest, ReadFailed, StorageError
from dledger.infra.loops.readable import ReadableLog
from dledger.node.disk.body_reader import BodyReader
from dledger.node.machine.state_machine import Applied, AppliedEntry
from dledger.node.server import NodeServer
from dledger.store.format.batch import decode_entries
from dledger.store.format.layout import file_name
from dledger.testing.memory_store import MemoryLogStore
from tests.node.local import make_server, running_nodes, until
from tests.node.test_bad_days import EAGER, FILE, SMALL, fill
from tests.store.helpers import IDENTITY, make_batches

MEMBERS = {"n1": "127.0.0.1:0"}


class Tally:
    """Counts entries; keeps the count, how far it goes, and how many entries were derived from, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = self.derived = self.loads = self.applied_here = 0
        self.reached: Applied | None = None
        self.spans: list[tuple[int, int]] = []
        self.closed = False

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        self.count += len(entries)
        self.applied_here += len(entries)
        self.replay(entries)
        last = entries[-1]
        self.reached = Applied(last.index, last.term, last.pos + 48 + len(last.body))

    def save(self) -> Iterable[bytes]:
        return [b"%d" % self.count]

    def load(self, chunks: Iterable[bytes]) -> None:
        self.loads += 1
        self.count, self.derived, self.reached = int(b"".join(chunks) or b"0"), 0, None

    def recover(self) -> Applied | None:
        if not self.path.exists():
            return None
        self.count, self.derived, *reached = json.loads(self.path.read_text())
        self.reached = Applied(*reached)
        return self.reached

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        self.derived += len(entries)
        self.spans += [(entry.pos, len(entry.body)) for entry in entries]

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        if self.reached is not None:
            self.path.write_text(json.dumps([self.count, self.derived, *self.reached]))


async def start_again(
    server: NodeServer, tmp_path: Path, machine: Tally, settings: Mapping[str, Any] | None = None
) -> NodeServer:
    back = make_server(tmp_path, server.config.node_id, server.config.members, settings, machine=machine)
    await back.start()
    return back


async def test_a_graceful_stop_and_a_start_apply_nothing_twice(tmp_path: Path) -> None:
    first = Tally(tmp_path / "state")
    async with running_nodes(tmp_path, machines={"n1": first}) as servers:
        await fill(servers, 100)
        await servers[0].wait_applied()
        assert (first.count, first.derived, first.loads) == (100, 100, 1)
        assert first.reached is not None and servers[0].durable_index >= first.reached.index
    assert first.closed
    second = Tally(tmp_path / "state")
    back = await start_again(servers[0], tmp_path, second)
    try:
        assert back.node_status().applied_index >= first.reached.index
        assert back.node_status().committed_index >= first.reached.index
        await until(lambda: back.node_status().is_leader)
        await fill([back], 20)
        await back.wait_applied()
        assert (second.count, second.applied_here, second.loads) == (120, 20, 0)
    finally:
        await back.stop()


async def test_state_of_a_log_that_is_gone_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text(json.dumps([7, 7, 1000, 3, 99_000]))
    machine = Tally(path)
    async with running_nodes(tmp_path, machines={"n1": machine}) as servers:
        await fill(servers, 20)
        await servers[0].wait_applied()
        assert (machine.count, machine.loads) == (20, 1)


async def test_behind_an_image_what_is_still_there_is_replayed(tmp_path: Path) -> None:
    machine = Tally(tmp_path / "none")
    settings = {**EAGER, **SMALL}
    async with running_nodes(
        tmp_path, settings=settings, data_file_size=FILE, machines={"n1": machine}
    ) as servers:
        await fill(servers, 400)
        await until(lambda: servers[0].begin_pos > 0)
        assert servers[0].begin_pos % FILE == 0
        await servers[0].wait_applied()
    (tmp_path / "none").unlink()
    again = Tally(tmp_path / "none")
    back = await start_again(servers[0], tmp_path, again, settings)
    try:
        await until(lambda: back.node_status().is_leader)
        await back.wait_applied()
        kept = [span for span in machine.spans if span[0] >= back.begin_pos]
        assert again.count == machine.count and again.loads == 1
        assert again.spans == kept and again.derived == len(kept) > again.applied_here
    finally:
        await back.stop()


async def test_a_machine_that_fails_while_it_recovers_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("nonsense")
    machine = Tally(tmp_path / "state")
    server = make_server(tmp_path, "n1", MEMBERS, machine=machine)
    with pytest.raises(StorageError, match="the state machine failed") as error:
        await server.start()
    assert error.value.code is Code.INTERNAL_ERROR and not machine.closed
    (tmp_path / "state").unlink()
    good = make_server(tmp_path, "n1", MEMBERS)
    await good.start()
    await good.stop()


async def test_a_machine_is_closed_when_the_start_fails_after_it_was_opened(tmp_path: Path) -> None:
    machine = Tally(tmp_path / "state")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = make_server(tmp_path, "n1", {"n1": address}, machine=machine)
        with pytest.raises(ConfigError) as error:
            await server.start()
    assert error.value.code is Code.PORT_IN_USE and machine.closed


async def test_bodies_are_read_by_position_from_any_thread(tmp_path: Path) -> None:
    machine = Tally(tmp_path / "state")
    async with running_nodes(tmp_path, 3, machines={"n1": machine}) as servers:
        await fill(servers, 100)
        node = next(server for server in servers if server.config.node_id == "n1")
        await node.wait_applied()
        spans = machine.spans
        bodies = await asyncio.to_thread(node.read_bodies, spans)
        assert [len(body) for body in bodies] == [size for _, size in spans]
        indexes = [await asyncio.to_thread(node.index_at_pos, pos) for pos, _ in spans]
        chunk = await node.log.load(indexes[0], indexes[-1], 1 << 20, decode=True)
        assert [entry.body for entry in chunk.entries if entry.index in indexes] == bodies
        for server in servers:
            await until(lambda server=server: server.log.readable_index >= indexes[-1])  # type: ignore[misc]
            assert server.read_bodies(spans) == bodies
        with pytest.raises(InvalidRequest):
            node.read_bodies([(spans[0][0], spans[0][1] + 1)])
        with pytest.raises(InvalidRequest):
            node.read_bodies([(0, 40 << 20), (0, 40 << 20)])
        with pytest.raises(ReadFailed) as error:
            node.read_bodies([(node.store.tail.pos, 10)])
        assert error.value.code is Code.INDEX_OUT_OF_RANGE


def test_what_is_not_committed_cannot_be_read_by_position() -> None:
    store, readable = MemoryLogStore(IDENTITY), ReadableLog(-1, -1, 0)
    bodies = BodyReader(store, readable, lambda index: None)
    batches = make_batches(5, seed=1)
    store.append(batches)
    for count in range(len(batches)):
        for at, batch in enumerate(batches):
            entry = decode_entries(batch.data)[-1]
            span = (entry.pos, len(entry.body))
            if at < count:
                assert bodies.read([span]) == [entry.body]
                assert bodies.index_at(entry.pos) == entry.index
                continue
            for ask in (lambda span=span: bodies.read([span]), lambda span=span: bodies.index_at(span[0])):  # type: ignore[misc]
                with pytest.raises(ReadFailed) as error:
                    ask()
                assert error.value.code is Code.INDEX_OUT_OF_RANGE
        readable.stored(0, batches[count].last_index)
        readable.committed(batches[count].last_index)


async def test_damage_met_by_position_is_repaired(tmp_path: Path) -> None:
    machine = Tally(tmp_path / "state")
    async with running_nodes(tmp_path, 3, machines={"n1": machine}) as servers:
        await fill(servers, 60)
        node = next(server for server in servers if server.config.node_id == "n1")
        await node.wait_applied()
        (pos, size), [body] = machine.spans[30], node.read_bodies([machine.spans[30]])
        path = node.config.directory / "data" / file_name(0)
        with path.open("r+b") as file:
            file.seek(pos + 48)
            file.write(bytes([body[0] ^ 1]))
        with pytest.raises(StorageError) as error:
            await asyncio.to_thread(node.read_bodies, [(pos, size)])
        assert error.value.code is Code.DATA_DAMAGED
        await until(lambda: node.status.node_status().repaired > 0)
        assert node.read_bodies([(pos, size)]) == [body]
