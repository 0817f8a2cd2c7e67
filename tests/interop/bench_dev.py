"""`dledger dev` and RocketMQ's NameServer and broker: time until the first message is stored, and memory:
`make bench-dev`."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
from tenacity import TryAgain, retry, retry_if_exception_type, wait_fixed

from broker_adapter.client import BlockingAdmin, BlockingProducer, Message
from broker_adapter.errors import BrokerError
from broker_adapter.testing import DevProcess
from tests.process.cluster import free_ports

from . import genuine


class Start(NamedTuple):
    seconds: float
    mib: float


@contextmanager
def theirs(home: Path) -> Iterator[tuple[str, list[int]]]:
    """RocketMQ 5.5 with one master that syncs each message: the NameServer's address, the processes."""
    names, port = free_ports(2)
    at = f"127.0.0.1:{names}"
    with ExitStack() as running:
        processes = [
            running.enter_context(genuine.name_server(home / "names", names)),
            running.enter_context(
                genuine.broker(
                    home / "broker", at, port, flushDiskType="SYNC_FLUSH", brokerRole="ASYNC_MASTER"
                )
            ),
        ]
        yield at, [process.pid for process in processes]
        for process in processes:
            process.kill()


@contextmanager
def ours(home: Path) -> Iterator[tuple[str, list[int]]]:
    with DevProcess(home) as broker:
        yield broker.name_server, [int(broker.addresses["pid"])]


def measured(system: Callable[[Path], AbstractContextManager[tuple[str, list[int]]]]) -> Start:
    """Start a system, send a message to it, and stop it."""
    home = Path(tempfile.mkdtemp(prefix="bench-dev-"))
    try:
        begin = time.monotonic()
        with system(home) as (servers, pids):
            _send_first(servers)
            seconds = time.monotonic() - begin
            return Start(seconds, sum(map(_mib, pids)))
    finally:
        shutil.rmtree(home)


def _send_first(servers: str) -> None:
    _create_topic(servers)
    with BlockingProducer("bench", servers) as producer:
        producer.send(Message("bench", b"hello"))


@retry(retry=retry_if_exception_type(BrokerError), wait=wait_fixed(0.01))
def _create_topic(servers: str) -> None:
    with BlockingAdmin(servers) as admin:
        if not admin.clusters():
            raise TryAgain
        admin.create_topic("bench")


def _mib(pid: int) -> float:
    found = re.search(r"Rss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _print(name: str, start: Start) -> None:
    click.echo(f"{name:12} {start.seconds:6.2f} s {start.mib:6.0f} MiB")


@click.command()
@click.option("--runs", default=5, help="Of each system, in turn.")
def main(runs: int) -> None:
    """Print the medians of both systems, and their ratio."""
    systems = {"dledger dev": ours, "RocketMQ": theirs}
    found: dict[str, list[Start]] = {name: [] for name in systems}
    for _ in range(runs):
        for name, system in systems.items():
            found[name].append(measured(system))
            _print(name, found[name][-1])
    click.echo("medians")
    rows = {
        name: Start(median(one.seconds for one in starts), median(one.mib for one in starts))
        for name, starts in found.items()
    }
    for name, row in rows.items():
        _print(name, row)
    own, other = rows["dledger dev"], rows["RocketMQ"]
    click.echo(f"{'ratio':12} {other.seconds / own.seconds:6.1f}   {other.mib / own.mib:6.1f}")


if __name__ == "__main__":
    main()
