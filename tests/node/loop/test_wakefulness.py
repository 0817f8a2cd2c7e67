"""CPUs that stay awake while there is work in flight, and only then."""

from __future__ import annotations

import asyncio
import selectors
import socket
import struct
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from dledger.client import AsyncClient
from dledger.infra.loops.polling import NodeLoop, SparingSelector
from dledger.infra.loops.wakefulness import DEVICE, LINGER_S, CpuLatency, CpuWakeLock
from tests.node.local import GROUP, running_nodes, until
from tests.process.cluster import ProcessCluster, free_ports


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_it_is_asked_for_once_while_work_goes_on() -> None:
    clock, asked = Clock(), list[bool]()
    wake_lock = CpuWakeLock(asked.append, clock)
    assert asked == [] and not wake_lock.is_kept
    for _ in range(3):
        wake_lock.work()
        assert wake_lock.remaining_s() == pytest.approx(LINGER_S), "each piece of work makes it longer"
        clock.now_s += LINGER_S / 2
        assert wake_lock.remaining_s() == pytest.approx(LINGER_S / 2)
    assert asked == [True] and wake_lock.is_kept
    clock.now_s += LINGER_S
    assert wake_lock.remaining_s() < 0
    wake_lock.release()
    wake_lock.release()
    assert asked == [True, False] and not wake_lock.is_kept
    wake_lock.work()
    assert asked == [True, False, True]


def test_nobody_is_asked_where_it_is_not_wanted() -> None:
    wake_lock = CpuWakeLock(None)
    wake_lock.work()
    assert not wake_lock.is_kept


@pytest.mark.parametrize("fails_at", [True, False])
def test_a_kernel_that_refuses_is_not_asked_again(fails_at: bool) -> None:
    asked = list[bool]()

    def ask(yes: bool) -> None:
        asked.append(yes)
        if yes is fails_at:
            raise PermissionError

    wake_lock = CpuWakeLock(ask)
    for _ in range(2):
        wake_lock.work()
        wake_lock.release()
    assert asked == ([True] if fails_at else [True, False]) and not wake_lock.is_kept
    assert not wake_lock.is_possible


def test_the_device_is_told_in_microseconds_and_released_by_what_the_kernel_assumes(tmp_path: Path) -> None:
    path = tmp_path / "latency"
    path.touch()
    device = CpuLatency(path)
    device.stay_awake(True)
    device.stay_awake(False)
    device.close()
    assert struct.unpack("3i", path.read_bytes()) == (2_000_000_000, 0, 2_000_000_000)
    with pytest.raises(FileNotFoundError):
        CpuLatency(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_loop_that_waits_without_work_lets_the_cpus_sleep() -> None:
    clock, asked = Clock(), list[bool]()
    wake_lock = CpuWakeLock(asked.append, clock)
    left, right = socket.socketpair()
    with SparingSelector(clock, wake_lock) as selector, left, right:
        selector.register(left, selectors.EVENT_READ)
        wake_lock.work()
        assert selector.select(None) == [], "it waits no longer than that counts as work"
        assert asked == [True], "it is looked at before the next wait"
        right.send(b"x")
        clock.now_s += LINGER_S / 2
        assert selector.select(None), "events end the wait"
        assert asked == [True]
        clock.now_s += LINGER_S
        assert selector.select(None)
        assert asked == [True, False]
        left.recv(1)
        assert selector.select(0.001) == []
        assert asked == [True, False]


def test_a_node_keeps_the_cpus_awake_for_an_append_and_not_for_heartbeats(tmp_path: Path) -> None:
    asked = list[bool]()

    async def appends() -> None:
        loop = asyncio.get_running_loop()
        async with running_nodes(tmp_path, 3) as servers:
            addresses = [server.config.address for server in servers]
            async with AsyncClient(addresses, group=GROUP) as client:
                await client.append(b"first")
                before, looks = 0, 0
                while before != len(asked):  # until nothing is asked for over several heartbeats
                    before, heartbeats = len(asked), loop.time() + 0.3
                    await until(lambda end=heartbeats: loop.time() > end)  # type: ignore[misc]
                    looks += 1
                    assert looks < 30, "something other than work keeps them awake"
                assert not asked[-1]
                await client.append(b"second")
                await until(lambda: len(asked) >= before + 2 and not asked[-1])

    with asyncio.Runner(loop_factory=partial(NodeLoop, CpuWakeLock(asked.append))) as runner:
        runner.run(appends())
    assert asked == [i % 2 == 0 for i in range(len(asked))], "by turns"


def has_device_open(pid: int) -> bool:
    handles = Path(f"/proc/{pid}/fd").iterdir()
    return any(handle.is_symlink() and handle.readlink() == DEVICE for handle in handles)


@pytest.mark.process
@pytest.mark.xdist_group("process-wakefulness")
@pytest.mark.parametrize("wanted", [True, False])
async def test_a_process_opens_the_device_if_its_configuration_wants_it_and_says_if_it_cannot(
    tmp_path: Path, wanted: bool
) -> None:
    page = f"127.0.0.1:{free_ports(1)[0]}"
    settings = {"keep_cpus_awake": wanted, "http_listen": page}
    async with ProcessCluster(tmp_path, 1, settings=settings) as cluster, aiohttp.ClientSession() as session:
        await cluster.leader()
        is_open = has_device_open(cluster.processes["n1"].pid)
        was_refused = "CPUs may sleep" in cluster.log_of("n1")
        assert (is_open or was_refused) is wanted
        async with session.get(f"http://{page}/metrics") as answer:
            assert f"\ndledger_keeps_cpus_awake {float(is_open)}\n" in await answer.text()
