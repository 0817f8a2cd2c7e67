"""The same Java client with RocketMQ's DLedger group of three or its master and slave, and with ours:
`make bench-rocketmq`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from tests.process.cluster import free_ports

from . import bench_classic, genuine, ours
from .bench_client import CLUSTER, measured, said, show


@contextmanager
def dledger_group(home: Path) -> Iterator[str]:
    """Three brokers of RocketMQ 5.5 with a replicated log; the NameServer's address."""
    names, *ports = free_ports(13)
    at = f"127.0.0.1:{names}"
    peers = ";".join(f"n{number}-127.0.0.1:{ports[9 + number]}" for number in range(3))
    with ExitStack() as running:
        processes = [running.enter_context(genuine.name_server(home / "names", names))]
        for number in range(3):
            settings = {
                "brokerName": "broker-a",
                "brokerClusterName": CLUSTER,
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "broker-a",
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
                "flushDiskType": "SYNC_FLUSH",
                "brokerId": -1,
                "mappedFileSizeCommitLog": 1 << 30,
            }
            broker = genuine.broker(home / f"n{number}", at, ports[3 * number], **settings)
            processes.append(running.enter_context(broker))
        genuine.until_registered(home / "names", at, " 0     ")  # a master has id 0
        yield at
        for process in processes:
            process.kill()


def over_grpc(home: Path, address: str, seconds: int) -> dict[str, int]:
    """What BenchGrpc.java says, with the client of RocketMQ 5; nothing, loudly, if that is not there."""
    if not any(genuine.CLIENT_GRPC.glob("rocketmq-client-java-*.jar")):
        print(f"NOT MEASURED OVER GRPC: no jars in {genuine.CLIENT_GRPC} (`make clients-java` fetches them)")
        return {}
    return said(home, genuine.CLIENT_GRPC, "BenchGrpc", address, str(seconds))


def replicated(home: Path, seconds: int) -> None:
    """A group of three of each."""
    with dledger_group(home / "genuine") as servers:
        theirs = measured(home, servers, seconds)
        if any(genuine.PROXY.glob("rocketmq-proxy-*.jar")):
            with genuine.proxy(home / "proxy", servers, CLUSTER, *free_ports(2)) as address:
                theirs |= over_grpc(home, address, seconds)
        else:
            print(
                f"NOT MEASURED AT THEIR PROXY: no jars in {genuine.PROXY} (`make interop-proxy` fetches them)"
            )
    with ours.cluster(home / "ours") as cluster:
        mine = measured(home, cluster.plan.companions[0].address, seconds)
        mine |= over_grpc(home, ours.master(cluster).address, seconds)
    show("DLedger", theirs, mine)


@click.command()
@click.option("--seconds", default=20, help="Of each load.")
@click.option("--log", type=click.Choice(["replicated", "classic", "both"]), default="both")
@click.option("--messages", default=300_000, help="Of 1 KiB, which a new slave copies at least.")
def main(seconds: int, log: str, messages: int) -> None:
    """Print both systems' figures, one after the other on this machine, and their ratio."""
    home = Path(tempfile.mkdtemp(prefix="bench-rocketmq-"))
    try:
        if log != "classic":
            replicated(home, seconds)
        if log != "replicated":
            bench_classic.run(home, seconds, messages)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
