"""Limits that nothing else reaches (rule 13): paces, and how many may ask for what at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dledger.core.messages import Heartbeat
from dledger.errors import Code, DLedgerError, Overloaded
from dledger.infra.transport.channels import open_channel
from dledger.node.members.inbound import PeerRequests
from dledger.node.members.repairer import Repairer
from dledger.rpc.envelope import PeerIdentity
from dledger.rpc.log_client import LogClient
from dledger.rpc.ports import FetchedFrames
from dledger.store.format.batch import encode_batch
from dledger.store.identity import Identity
from dledger.testing.memory_store import MemoryLogStore
from dledger.v1 import log_pb2, log_pb2_grpc
from tests.node.disk.faulty_disk import FaultyDisk
from tests.node.local import GROUP, make_server, running_nodes, until
from tests.node.members.test_inbound import no_image
from tests.node.test_bad_days import SMALL, equal_and_committed, fill, leader_of


def limited(**limits: Any) -> dict[str, Any]:
    return {"limits": {**SMALL["limits"], **limits}}


async def test_rule_13_catching_up_has_a_pace(tmp_path: Path) -> None:
    settings = limited(catch_up_bytes_per_second=400_000, tail_cache_bytes=1, max_push_bytes=32 << 10)
    async with running_nodes(tmp_path, 3, settings, data_file_size=64 << 10) as servers:
        late = next(s for s in servers if s is not leader_of(servers))
        await late.stop()
        servers.remove(late)
        await fill(servers, 400)
        back = make_server(tmp_path, late.config.node_id, late.config.members, settings)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await back.start()
        servers.append(back)
        await until(lambda: equal_and_committed(servers))
        assert loop.time() - began > 0.7, "400 kB, the last piece of which need not be waited for"


class FakeSource:
    def __init__(self, frames: FetchedFrames) -> None:
        self.frames = frames

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        return self.frames


async def test_rule_13_a_repair_has_a_pace() -> None:
    store = MemoryLogStore(Identity("c", "g", "n", 4 << 20))
    batch = encode_batch(store.tail, 1, [bytes(100_000)], data_file_size=4 << 20)
    store.append([batch])
    store.sync()
    store.corrupt(0)

    def at_once(work: Any) -> Future[object]:
        done: Future[object] = Future()
        done.set_result(work())
        return done

    source = FakeSource(FetchedFrames(0, 0, bytes(batch.data)))
    repairer = Repairer(
        store,
        {"peer": source},
        at_once,
        on_fatal=lambda _: None,
        on_purged=lambda _: None,
        is_urgent=lambda: True,
        bytes_per_second=200_000,
    )
    loop = asyncio.get_running_loop()
    began = loop.time()
    repairer.suspect(0)
    repairer.start()
    await until(lambda: repairer.repaired == 1)
    await repairer.stop()
    assert loop.time() - began > 0.4
    assert store.damages == () and repairer.repaired == 1


async def test_rule_13_only_so_many_members_fetch_entries_and_ask_questions_at_once() -> None:
    going = asyncio.Event()

    async def fetch(first: int, last: int, size: int, *, uncommitted: bool) -> FetchedFrames:
        await going.wait()
        return FetchedFrames(first, last, b"")

    class Silent:
        def receive(self, peer: str, message: object, payload: bytes | None) -> None: ...
        def leader_stream_lost(self, leader_id: str, stream_id: int) -> None: ...

    inbound = PeerRequests(PeerIdentity("c", "g", "n", ("n", "m"), 1), Silent(), fetch, no_image)
    fetching = [asyncio.ensure_future(inbound.fetch(0, 9, 100, uncommitted=True)) for _ in range(2)]
    asking = [asyncio.ensure_future(inbound.request("m", Heartbeat(1, "m", n, 0))) for n in range(64)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await inbound.fetch(0, 9, 100, uncommitted=True)
    with pytest.raises(Overloaded):
        await inbound.request("m", Heartbeat(1, "m", 99, 0))
    going.set()
    assert [frames.last_index for frames in await asyncio.gather(*fetching)] == [9, 9]
    assert (await inbound.fetch(0, 9, 100, uncommitted=True)).last_index == 9
    asking[-1].cancel()
    await asyncio.gather(asking.pop(), return_exceptions=True)
    asking.append(asyncio.ensure_future(inbound.request("m", Heartbeat(1, "m", 99, 0))))
    await asyncio.sleep(0)
    assert not asking[-1].done(), "whoever has gone leaves room for another one"
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_rule_13_one_scrub_is_run_for_those_who_ask(tmp_path: Path) -> None:
    settings = {**SMALL, "scrub": {"bytes_per_second": 0}}
    async with running_nodes(tmp_path, 1, settings, data_file_size=64 << 10) as (node,):
        await fill([node], 20)
        client = LogClient(node.address, GROUP)
        slow = client.scrub(1)
        first = asyncio.ensure_future(anext(slow))
        await until(lambda: node.admin._scrubbing)
        with pytest.raises(DLedgerError) as caught:
            async for _ in client.scrub(0):
                pass
        assert caught.value.code is Code.LEADER_PENDING_FULL
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await slow.aclose()
        await client.close()


async def test_rule_13_no_append_waits_longer_than_the_node_allows(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    settings = limited(append_timeout_ms=150, max_append_timeout_ms=400)
    async with running_nodes(tmp_path, 1, settings, disks={"n1": disk}) as (node,):
        await until(lambda: node.node_status().committed_index == 0)
        async with open_channel(node.address) as channel:
            log: Any = log_pb2_grpc.LogServiceStub(channel)
            disk.stick()
            try:
                loop = asyncio.get_running_loop()
                for asked_ms, least_s in ((0, 0.15), (3_600_000, 0.4)):
                    began = loop.time()
                    answer = await log.Append(
                        log_pb2.AppendRequest(group=GROUP, bodies=[b"x"], timeout_ms=asked_ms)
                    )
                    assert answer.status.code == Code.WAIT_QUORUM_ACK_TIMEOUT
                    assert least_s <= loop.time() - began
            finally:
                disk.release()


async def test_rule_13_a_message_of_a_read_stream_is_no_larger_than_a_chunk(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1, limited(read_chunk_bytes=3000)) as (node,):
        indexes = await fill([node], 20)
        async with open_channel(node.address) as channel:
            log: Any = log_pb2_grpc.LogServiceStub(channel)
            request = log_pb2.ReadRequest(
                group=GROUP, from_index=indexes[0], format=log_pb2.READ_FORMAT_FRAMES
            )
            sizes = [len(message.frames) async for message in log.ReadStream(request)]
        assert len(sizes) > 5 and max(sizes) <= 3000
