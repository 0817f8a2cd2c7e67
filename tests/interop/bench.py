"""The same Java client with RocketMQ's DLedger group of three or its master and slave, and with ours:
`make bench-rocketmq`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from benchmarks.common import BenchError, end_on_signals
from benchmarks.profiles import py_spy
from tests.process.cluster import free_ports

from . import bench_classic, genuine, ours
from .bench_client import CLUSTER, MASTER, Servers, Side, Table, measure, run_profiled

_REPLICATED = "DLedger"


@contextmanager
def dledger_group(home: Path) -> Iterator[Servers]:
    """Three brokers of RocketMQ 5.5 with a replicated log."""
    names, *ports = free_ports(13)
    at = f"127.0.0.1:{names}"
    peers = ";".join(f"n{number}-127.0.0.1:{ports[9 + number]}" for number in range(3))
    with ExitStack() as running:
        processes = [running.enter_context(genuine.name_server(home / "names", names))]
        pids = {}
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
            pids[f"127.0.0.1:{ports[3 * number]}"] = processes[-1].pid
        line = genuine.until_registered(home / "names", at, " 0     ")  # a master has id 0
        names_of = {address: f"slave {number}" for number, address in enumerate(pids)}
        names_of |= {address: MASTER for address in pids if address in line.split()}
        yield Servers(at, {names_of[address]: pid for address, pid in pids.items()})
        for process in processes:
            process.kill()


def over_grpc(home: Path, servers: Servers, seconds: int, side: Side, profile: Path | None = None) -> None:
    """Run BenchGrpc.java, with the client of RocketMQ 5; print why not if that is not there."""
    if any(genuine.CLIENT_GRPC.glob("rocketmq-client-java-*.jar")):
        run_profiled(home, genuine.CLIENT_GRPC, "BenchGrpc", servers, seconds, side, profile)
    else:
        print(f"NOT MEASURED OVER GRPC: no jars in {genuine.CLIENT_GRPC} (`make clients-java` fetches them)")


def replicated(home: Path, seconds: int, table: Table, profile: Path | None) -> None:
    """Measure a group of three of each."""
    with dledger_group(home / "genuine") as servers:
        measure(home, servers, seconds, table.theirs)
        if any(genuine.PROXY.glob("rocketmq-proxy-*.jar")):
            with genuine.proxy(home / "proxy", servers.address, CLUSTER, *free_ports(2)) as (address, pid):
                with_proxy = Servers(address, {**servers.pids, "proxy": pid})
                over_grpc(home, with_proxy, seconds, table.theirs)
        else:
            print(
                f"NOT MEASURED AT THEIR PROXY: no jars in {genuine.PROXY} (`make interop-proxy` fetches them)"
            )
    with ours.cluster(home / "ours") as cluster:
        name_server = cluster.plan.companions[0].address
        measure(home, Servers(name_server, ours.pids(cluster)), seconds, table.ours, profile)
        master = ours.master(cluster).address  # may have changed meanwhile
        over_grpc(home, Servers(master, ours.pids(cluster)), seconds, table.ours, profile)


@click.command()
@click.option("--seconds", default=20, help="Of each load.")
@click.option("--log", type=click.Choice(["replicated", "classic", "both"]), default="both")
@click.option("--messages", default=300_000, help="Of 1 KiB, which a new slave copies at least.")
@click.option(
    "--profile",
    type=click.Path(file_okay=False, path_type=Path, resolve_path=True),
    help="Run our loads once more, and write flame graphs of the master below this folder (needs py-spy).",
)
def main(seconds: int, log: str, messages: int, profile: Path | None) -> None:
    """Print both systems' figures, one after the other on this machine, and their ratio."""
    if reason := genuine.missing() or ("" if shutil.which("javac") else "there is no `javac` on PATH"):
        raise click.ClickException(
            f"{reason}; the benchmark needs a JDK of 11 or newer and Maven (Debian: apt-get install "
            "default-jdk-headless maven), and `make bench-rocketmq` then fetches RocketMQ"
        )
    end_on_signals()
    home = Path(tempfile.mkdtemp(prefix="bench-rocketmq-"))
    tables = {title: Table(title) for title in (_REPLICATED, *bench_classic.IS_SYNC)}
    try:
        if profile is not None:
            py_spy()
        if log != "classic":
            replicated(home, seconds, tables[_REPLICATED], profile and profile / "replicated")
        if log != "replicated":
            bench_classic.run(home, seconds, messages, tables, profile)
    except KeyboardInterrupt:
        print("interrupted")
        raise SystemExit(130) from None
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    finally:
        shutil.rmtree(home, ignore_errors=True)
        for table in tables.values():
            table.show()


if __name__ == "__main__":
    main()
