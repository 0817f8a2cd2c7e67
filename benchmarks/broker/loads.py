"""Measure a broker under many loads: rate, latency, and CPU time per message of each process.

With another checkout, the servers of both versions run at the same time, and only one of them is loaded at a
time. The client is the same, so ratios compare the servers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from grpc.aio import AioRpcError

from benchmarks.broker import brokers, remoting_load
from benchmarks.broker.cases import BATCHES, GRPC, RECEIVE, SENDS, Case, Selection
from benchmarks.broker.clients import Client
from benchmarks.common import (
    WARM_UP_SECONDS,
    BenchError,
    Cpu,
    Load,
    Operation,
    Row,
    body_of,
    closed_loops,
    say,
    scratch,
)
from benchmarks.profiles import flame_graph, py_spy
from dledger.infra.transport.channels import open_channel

_MASTER, _FOLLOWERS, _CLIENT = "master", "followers", "client"
_DEFAULT = Selection()
_OLD, _NEW = "old", "new"
#: Messages that are sent before a receive load, per second of the load. It ends early if it received most.
_SENT_FIRST = 8000
_FILLERS = 2
_ATTEMPTS = 4
#: Shares of these messages that are received at most while warming up, and during the measurement.
_WARM_UP_SHARE, _MEASURED_SHARE = 0.2, 0.7


class Measurement(NamedTuple):
    """`cpu_us`: µs of CPU time per message, by process."""

    load: Load
    cpu_us: dict[str, float]

    def by_role(self) -> dict[str, float]:
        """Return the CPU time per message of the master, of a follower on average, and of the client."""
        followers = [us for who, us in self.cpu_us.items() if who not in (_MASTER, _CLIENT)]
        return {
            _MASTER: self.cpu_us[_MASTER],
            _FOLLOWERS: fmean(followers),
            _CLIENT: self.cpu_us[_CLIENT],
        }


async def run(seconds: float, selection: Selection = _DEFAULT) -> AsyncGenerator[Row]:
    """Measure the selected cases one after the other, `seconds` for each measurement."""
    pythons = {"": sys.executable}
    if selection.against is not None:
        pythons = {_OLD: str(_python_of(selection.against)), _NEW: sys.executable}
    if selection.profile is not None:
        py_spy()
    for store in selection.store:
        cases = list(selection.cases(store))
        if not cases:
            raise BenchError("no case is selected: RocketMQ 5 clients have no batches")
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(scratch("broker-loads"))
            systems = {}
            for version, python in pythons.items():
                say(f"starting brokers with the {store} log {version}")
                running = brokers.running(folder / (version or "brokers"), store=store, python=python)
                systems[version] = await stack.enter_async_context(running)
            for case in cases:
                for system in systems.values():
                    await system.create_topic(case.topic, case.queues)
                try:
                    if selection.against is None:
                        yield _row(case, await _measure(systems[""], case, seconds))
                    else:
                        async for row in _pairs(systems, case, seconds, selection.pairs):
                            yield row
                    if selection.profile is not None:
                        for version, system in systems.items():
                            name = f"{case.file_name}{version and '-'}{version}.svg"
                            await _profile(system, case, seconds, selection.profile / name)
                except (BenchError, AioRpcError) as error:  # the other cases may succeed
                    yield Row(str(case), "failed", detail=str(error))


def _python_of(checkout: Path) -> Path:
    python = checkout / ".venv/bin/python"
    if not python.exists():
        raise BenchError(f"{python} does not exist: run `make install` in {checkout}")
    return python


async def _pairs(
    systems: dict[str, brokers.Brokers], case: Case, seconds: float, pairs: int
) -> AsyncGenerator[Row]:
    """Measure both versions in turns. Each row has the ratios new / old of a pair, the last one medians."""
    ratios: list[dict[str, float]] = []
    for number in range(pairs):
        order = [_OLD, _NEW] if number % 2 == 0 else [_NEW, _OLD]
        found = {version: await _measure(systems[version], case, seconds) for version in order}
        ratios.append(_ratios(found[_OLD], found[_NEW]))
        absolute = "; ".join(f"{version} {_text(found[version])}" for version in (_OLD, _NEW))
        yield _ratio_row(f"{case}, pair {number + 1}", ratios[-1], absolute)
    medians = {name: median(one[name] for one in ratios) for name in ratios[0]}
    yield _ratio_row(f"{case}, median of the pairs", medians, "")


def _ratios(old: Measurement, new: Measurement) -> dict[str, float]:
    cpu = {who: us / old.by_role()[who] for who, us in new.by_role().items()}
    p50 = new.load.latency_ms(0.5) / old.load.latency_ms(0.5)
    return {"rate": new.load.rate / old.load.rate, "p50": p50, **cpu}


def _ratio_row(figure: str, ratios: dict[str, float], detail: str) -> Row:
    cpu = ", ".join(f"{who} {ratios[who]:.2f}" for who in (_MASTER, _FOLLOWERS, _CLIENT))
    measured = f"new / old: rate {ratios['rate']:.2f}, p50 {ratios['p50']:.2f}, CPU {cpu}"
    return Row(figure, measured, detail=detail, values={"ratios": ratios})


def _row(case: Case, found: Measurement) -> Row:
    values = {"rate": found.load.rate, "p50_ms": found.load.latency_ms(0.5), "cpu_us": found.cpu_us}
    ratio = found.cpu_us[_MASTER] / found.by_role()[_FOLLOWERS]
    return Row(
        str(case),
        f"{found.load.rate:,.0f}/s, p50 {found.load.latency_ms(0.5):.2f} ms",
        detail=f"CPU µs per message: {_cpu(found)}; master / follower {ratio:.1f}",
        values=values,
    )


def _text(found: Measurement) -> str:
    return f"{found.load.rate:,.0f}/s, p50 {found.load.latency_ms(0.5):.2f} ms, CPU µs {_cpu(found)}"


def _cpu(found: Measurement) -> str:
    return ", ".join(f"{who} {us:.0f}" for who, us in found.cpu_us.items())


async def _measure(system: brokers.Brokers, case: Case, seconds: float) -> Measurement:
    """Measure a case. Repeats a measurement that failed, or during which the master changed."""
    for _ in range(_ATTEMPTS):
        await system.wait_for_master()
        master = system.master_id
        say(f"{case} ...")
        try:
            found = await _measure_once(system, case, seconds)
        except (BenchError, AioRpcError) as error:
            say(f"repeating: {error}")
            continue
        await system.wait_for_master()
        if system.master_id == master:
            return found
        say(f"repeating: the master changed from {master} to {system.master_id}")
    raise BenchError(f"no valid measurement in {_ATTEMPTS} attempts")


async def _measure_once(system: brokers.Brokers, case: Case, seconds: float) -> Measurement:
    async with _operation(system, case, seconds) as (operation, available):
        messages = 0

        async def counting() -> int:
            nonlocal messages
            done = await operation()
            messages += done
            return done

        await closed_loops(operation, case.in_flight, WARM_UP_SECONDS, _WARM_UP_SHARE * available)
        cpu = Cpu(system)
        cpu.begin()
        load = await closed_loops(counting, case.in_flight, seconds, _MEASURED_SHARE * available)
        cpu.end()
    if not load.entries:
        raise BenchError(f"{case}: no request ended within {seconds:g} s; use more --seconds")
    named = {_MASTER: cpu.used.pop(system.master_id), **cpu.used}
    # The CPU time includes requests that ended too late for the load.
    return Measurement(load, {who: 1e6 * used / messages for who, used in named.items()})


async def _profile(system: brokers.Brokers, case: Case, seconds: float, path: Path) -> None:
    """Profile the master under the load, in addition to the measurement, because profiling costs CPU time."""
    await system.wait_for_master()
    pid = system.cluster.process(system.master_id).pid
    assert pid is not None
    async with _operation(system, case, seconds) as (operation, available):
        await closed_loops(operation, case.in_flight, WARM_UP_SECONDS, _WARM_UP_SHARE * available)
        with flame_graph(pid, path, seconds):
            await closed_loops(operation, case.in_flight, seconds + 1, _MEASURED_SHARE * available)


@asynccontextmanager
async def _operation(
    system: brokers.Brokers, case: Case, seconds: float
) -> AsyncIterator[tuple[Operation, float]]:
    """Connect a client to the master. The second value is the number of messages that it can receive."""
    available = math.inf
    node = system.cluster.plan.node(system.master_id)
    remoting = await remoting_load.connect(node.remoting_address, case)
    try:
        if case.load == RECEIVE:
            available = await _fill(remoting, seconds)
        if case.protocol == GRPC:
            async with open_channel(node.address) as channel:
                client = Client([channel], case.topic, body_of(case.size), with_keys=case.keys)
                yield {SENDS: client.send, RECEIVE: client.receive_and_ack}[case.load], available
        else:
            operations = {SENDS: remoting.send, BATCHES: remoting.send_batch, RECEIVE: remoting.receive}
            yield operations[case.load], available
    finally:
        remoting.close()


async def _fill(client: remoting_load.RemotingLoad, seconds: float) -> int:
    """Send messages for at most twice the duration of a load. Return their number."""
    load = await closed_loops(client.send_batch, _FILLERS, 2 * seconds, _SENT_FIRST * seconds)
    return load.entries
