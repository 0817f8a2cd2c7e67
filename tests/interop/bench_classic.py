"""The same Java client with RocketMQ's master and slave, and with ours; how fast a new slave copies all."""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from broker_adapter.cli.cluster_command import BROKER_KIND, is_writable_master
from dledger.cli.local.local_cluster import LocalCluster, LocalNode
from tests.process.cluster import free_ports

from . import genuine, ours
from .bench_client import CLUSTER, MASTER, Figure, Servers, Table, fill, make_topic, measure

#: The tables' titles.
IS_SYNC = {"SYNC_MASTER, SYNC_FLUSH": True, "ASYNC_MASTER, ASYNC_FLUSH": False}
#: One file of each log, so that a new slave of RocketMQ's, which begins with the last one, copies all.
_FILE_SIZE = 1 << 30
_WITHIN_S = 120
_LOOK_S = 0.005
_PIECE = 1 << 20


class Pair(NamedTuple):
    """A master and its slave. `master` and `slave`: folders with a commitlog somewhere
    below. `begin_anew`: a slave with nothing takes the place of the slave."""

    servers: Servers
    master: Path
    slave: Path
    begin_anew: Callable[[], None]


@contextmanager
def of_rocketmq(home: Path, *, is_sync: bool) -> Iterator[Pair]:
    names, master_port, _, _, slave_port, _ = free_ports(6)
    at = f"127.0.0.1:{names}"
    common = {
        "brokerName": "broker-a",
        "brokerClusterName": CLUSTER,
        "flushDiskType": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": _FILE_SIZE,
        "registerNameServerPeriod": 10_000,
    }
    role = "SYNC_MASTER" if is_sync else "ASYNC_MASTER"
    with ExitStack() as running, ExitStack() as slaves:
        running.enter_context(genuine.name_server(home / "names", names))
        master = running.enter_context(
            genuine.broker(home / "master", at, master_port, brokerRole=role, **common)
        )
        genuine.until_registered(home / "names", at, f"127.0.0.1:{master_port}")

        def start_slave() -> subprocess.Popen[bytes]:
            slave = {"brokerRole": "SLAVE", "brokerId": 1, **common}
            return slaves.enter_context(genuine.broker(home / "slave", at, slave_port, **slave))

        def begin_anew() -> None:
            slaves.close()
            shutil.rmtree(home / "slave")
            start_slave()

        pids = {MASTER: master.pid, "slave": start_slave().pid}
        genuine.until_registered(home / "names", at, f"127.0.0.1:{slave_port}")
        yield Pair(Servers(at, pids), home / "master", home / "slave", begin_anew)


@contextmanager
def of_ours(home: Path, *, is_sync: bool) -> Iterator[Pair]:
    additions = BROKER_KIND.prepare(0, {"store": "classic", "role": "sync" if is_sync else "async"})
    flush = {"flush": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH", "file_size": _FILE_SIZE}
    with LocalCluster.create(
        home,
        nodes=additions.nodes,
        base_port=0,
        settings=additions.settings,
        companions=additions.companions,
        remoting=True,
        of_node=[{"classic": {**one["classic"], **flush}} for one in additions.of_node],
        has_log=False,
    ) as running:
        running.start()

        def found(nodes: list[LocalNode]) -> bool | None:
            return any(is_writable_master(one.owner) for one in nodes) or None

        running.wait_until(found, _WITHIN_S, "a writable master with its slave")

        def begin_anew() -> None:
            running.stop_node("n2")
            shutil.rmtree(running.store_directory("n2"))
            running.start_node("n2")

        servers = Servers(running.plan.companions[0].address, ours.pids(running))
        yield Pair(servers, running.store_directory("n1"), running.store_directory("n2"), begin_anew)


def _log_file(folder: Path) -> Path | None:
    return next((path for path in folder.rglob("commitlog/*") if path.name.isdecimal()), None)


def _has(folder: Path, at: int, size: int) -> bool:
    """Whether the log in a folder has something other than zeros there."""
    path = _log_file(folder)
    if path is None:
        return False
    with path.open("rb") as opened:
        return any(os.pread(opened.fileno(), size, at))


def _end(folder: Path) -> int:
    """Behind the last byte of the log in a folder that is no zero: a record ends with its properties."""
    path = _log_file(folder)
    assert path is not None, folder
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for begin in range(len(data) - _PIECE, -1, -_PIECE):
            if piece := data[begin : begin + _PIECE].rstrip(b"\0"):
                return begin + len(piece)
    return 0


async def _until_there(folder: Path, at: int, size: int = 1) -> float:
    """When the log in a folder had something there, in seconds of the monotonic clock."""

    async def is_there() -> bool:
        with suppress(FileNotFoundError):
            return _has(folder, at, size)
        return False

    await genuine.eventually(is_there, _WITHIN_S, _LOOK_S)
    return time.monotonic()


async def catch_up(pair: Pair) -> int:
    """KB a second, from the first bytes that a new slave has until it has all."""
    end = _end(pair.master)
    pair.begin_anew()
    begun = await _until_there(pair.slave, 0, 4)
    seconds = await _until_there(pair.slave, end - 1) - begun
    return int(end / 1000 / max(seconds, _LOOK_S))


def run(home: Path, seconds: int, messages: int, tables: Mapping[str, Table], profile: Path | None) -> None:
    """Measure both pairs, with and without synchronous double write, one after the other."""
    for title, is_sync in IS_SYNC.items():
        table = tables[title]
        for pair_of, side in ((of_rocketmq, table.theirs), (of_ours, table.ours)):
            graphs = profile / title.split("_")[0].lower() if profile and side is table.ours else None
            with pair_of(home / f"{pair_of.__name__}-{is_sync}", is_sync=is_sync) as pair:
                make_topic(home, pair.servers.address)
                fill(home, pair.servers.address, 64)
                asyncio.run(_until_there(pair.slave, 0, 4))  # it follows
                measure(home, pair.servers, seconds, side, graphs)
                if not is_sync:
                    fill(home, pair.servers.address, messages)
                    side.add("KB a second that a new slave copies", Figure(asyncio.run(catch_up(pair)), {}))
