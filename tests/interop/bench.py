"""The same Java client with RocketMQ's DLedger group of three, and with ours: `make bench-rocketmq`."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from tests.process.cluster import free_ports

from . import genuine, ours

TOPIC = "bench"
_CLUSTER = "DefaultCluster"
#: The figure of Bench.java that BenchGrpc.java measures, too.
_SENDS = "sends a second, 64 in flight"


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
                "brokerClusterName": _CLUSTER,
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


def measured(home: Path, servers: str, seconds: int) -> dict[str, int]:
    """What Bench.java says, by figure."""
    genuine.mqadmin(home, servers, *f"updateTopic -c {_CLUSTER} -t {TOPIC} -r 8 -w 8".split())
    return _said(home, genuine.LIB, "Bench", servers, seconds)


def over_grpc(home: Path, address: str, seconds: int) -> dict[str, int]:
    """What BenchGrpc.java says, with the client of RocketMQ 5; nothing, loudly, if that is not there."""
    if not any(genuine.CLIENT_GRPC.glob("rocketmq-client-java-*.jar")):
        print(f"NOT MEASURED OVER GRPC: no jars in {genuine.CLIENT_GRPC} (`make clients-java` fetches them)")
        return {}
    return _said(home, genuine.CLIENT_GRPC, "BenchGrpc", address, seconds)


def _said(home: Path, lib: Path, program: str, at: str, seconds: int) -> dict[str, int]:
    """The figures that a program beside this file says of a topic."""
    path = f"{home}:{lib}/*"
    source = Path(__file__).with_name(f"{program}.java")
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", home, source], check=True)
    command, environment = genuine.java(home, path, program, at, TOPIC, str(seconds))
    said = subprocess.run(
        command,
        env=environment,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    ).stdout
    figures = [line[2:].rsplit(": ", 1) for line in said.splitlines() if line.startswith("@ ")]
    return {name: int(figure) for name, figure in figures}


@click.command()
@click.option("--seconds", default=20, help="Of each load.")
def main(seconds: int) -> None:
    """Print both systems' figures, one after the other on this machine, and their ratio."""
    home = Path(tempfile.mkdtemp(prefix="bench-rocketmq-"))
    with dledger_group(home / "genuine") as servers:
        theirs = measured(home, servers, seconds)
    with ours.cluster(home / "ours") as cluster:
        mine = measured(home, cluster.plan.companions[0].remoting_address, seconds)
        by_grpc = over_grpc(home, ours.master(cluster).address, seconds)
    print("| figure | RocketMQ 5.5.0, DLedger | ours | ours / theirs |\n|---|---|---|---|")
    for name, figure in mine.items():
        other = theirs.get(name, 0)
        print(f"| {name} | {other:,} | {figure:,} | {figure / max(other, 1):.2f} |")
    for name, figure in by_grpc.items():  # beside RocketMQ's sends by its own protocol
        other = theirs.get(_SENDS, 0)
        print(f"| {name} | {other:,} | {figure:,} | {figure / max(other, 1):.2f} |")


if __name__ == "__main__":
    main()
